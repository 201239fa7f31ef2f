"""Importing this module fills the table of ATen converters."""

from cuvil_hw.frontend import (
    aten_conv,
    aten_custom,
    aten_elementwise,
    aten_index,
    aten_math,
    aten_nn,
    aten_order,
    aten_pool,
    aten_reduce,
    aten_resize,
    aten_rnn,
    aten_shape,
)

__all__ = [
    "aten_conv",
    "aten_custom",
    "aten_elementwise",
    "aten_index",
    "aten_math",
    "aten_nn",
    "aten_order",
    "aten_pool",
    "aten_reduce",
    "aten_resize",
    "aten_rnn",
    "aten_shape",
]
