"""Results in bfloat16 inside a model: computed in f32, as PyTorch does, and rounded to its 8 significant bits."""

from __future__ import annotations

import math
from typing import Any

import torch
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.complex import PARTWISE
from cuvil_hw.frontend.torch.aten.emitter import Emitter, Value

# Ops that round anew; the others only move elements, which are rounded already.
_COMPUTE = ("aten.sum", "aten.mean", "aten.cumsum")
MOVES = frozenset(label for label in PARTWISE if not label.startswith(_COMPUTE))
# Ops that first turn integers beside a bfloat16 into one.
PROMOTE = frozenset(
    f"aten.{name}"
    for name in (
        "add.Tensor", "sub.Tensor", "rsub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default", "minimum.default",
        "pow.Tensor_Tensor", "remainder.Tensor", "fmod.Tensor",
    )
)  # fmt: skip
LARGE, SCALE = 2.0**100, 2.0**-30


def _widened(value: Any) -> Any:
    """Constants of bfloat16 as f32, which holds them exactly."""
    if isinstance(value, list | tuple):
        return [_widened(v) for v in value]
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value


def operands(e: Emitter, label: str, args: list[Any], fakes: Any) -> list[Any]:
    """The arguments of an op, those of bfloat16 held in f32."""
    promotes = label in PROMOTE and isinstance(fakes, torch.Tensor) and fakes.dtype == torch.bfloat16
    return [
        rounded(e, e.cast(a, "f32")) if promotes and isinstance(a, SSAValue) and dtypes.is_int(e.type(a).dtype) else a
        for a in _widened(args)
    ]


def rounded(e: Emitter, x: Value) -> Value:
    """x (f32) to the nearest number of 8 significant bits, ties to even: c - (c - x), with c = x + 2^16·x, leaves them
    (T. J. Dekker, 1971). 2^16·x is exact, so that it doesn't matter whether a product and a sum are rounded together.
    Below 2^-126 more bits stay than bfloat16 has."""
    kind = e.type(x)

    def number(v: float) -> Value:
        return e.splat(v, kind)

    size = e.op(ew.Abs(), x)
    large = e.op(ew.Greater(), size, number(LARGE))  # c would overflow
    y = e.op(ew.Where(), large, e.op(ew.Mul(), x, number(SCALE)), x)
    c = e.op(ew.Add(), e.op(ew.Mul(), y, number(2.0**16)), y)
    y = e.op(ew.Sub(), c, e.op(ew.Sub(), c, y))
    y = e.op(ew.Where(), large, e.op(ew.Mul(), y, number(1 / SCALE)), y)
    return e.op(ew.Where(), e.op(ew.Equal(), size, number(math.inf)), x, y)


def as_computed(e: Emitter, label: str, made: Any, fakes: Any) -> Any:
    """What a converter made, rounded where the node's results are bfloat16."""
    if isinstance(fakes, list | tuple):
        return [as_computed(e, label, m, f) for m, f in zip(made, fakes, strict=False)]
    is_bfloat = isinstance(fakes, torch.Tensor) and fakes.dtype == torch.bfloat16
    if not is_bfloat or label in MOVES or not isinstance(made, torch.Tensor | SSAValue):
        return made
    return rounded(e, made)


__all__ = ["as_computed", "operands"]
