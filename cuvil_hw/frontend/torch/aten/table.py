"""Importing this module fills the table of ATen converters."""

from cuvil_hw.frontend.torch.aten import (
    complex,
    composite,
    conv,
    custom,
    elementwise,
    grouped,
    index,
    math,
    nn,
    order,
    pool,
    reduce,
    resize,
    rnn,
    shape,
    spectral,
)

__all__ = [
    "complex",
    "composite",
    "conv",
    "custom",
    "elementwise",
    "grouped",
    "index",
    "math",
    "nn",
    "order",
    "pool",
    "reduce",
    "resize",
    "rnn",
    "shape",
    "spectral",
]
