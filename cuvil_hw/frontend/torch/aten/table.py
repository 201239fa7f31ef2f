"""Importing this module fills the table of ATen converters."""

from cuvil_hw.frontend.torch.aten import (
    conv,
    custom,
    elementwise,
    index,
    math,
    nn,
    order,
    pool,
    reduce,
    resize,
    rnn,
    shape,
)

__all__ = [
    "conv",
    "custom",
    "elementwise",
    "index",
    "math",
    "nn",
    "order",
    "pool",
    "reduce",
    "resize",
    "rnn",
    "shape",
]
