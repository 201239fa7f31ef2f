"""bfloat16 in a model: most converters work on f32 in its place; their results are rounded once, as PyTorch's are."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.frontend.torch.aten.complex import PARTWISE
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value
from cuvil_hw.types import TensorType

# Converters that only move elements or their bits, and those that make a single op of level1, which rounds once by
# itself: weights stay bf16.
_COMPUTE = ("aten.sum", "aten.mean", "aten.cumsum")
_ONE_OP = frozenset(
    f"aten.{name}.default"
    for name in (
        "linear", "mm", "bmm", "matmul", "convolution", "conv1d", "conv2d", "conv3d", "relu", "embedding", "max_pool2d",
    )
)  # fmt: skip
_BITS = frozenset(("aten.view.dtype", "aten.view_copy.dtype"))
NATIVE = _ONE_OP | _BITS | frozenset(label for label in PARTWISE if not label.startswith(_COMPUTE))
# Ops that first turn integers beside a bfloat16 into one.
PROMOTE = frozenset(
    f"aten.{name}"
    for name in (
        "add.Tensor", "sub.Tensor", "rsub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default", "minimum.default",
        "pow.Tensor_Tensor", "remainder.Tensor", "fmod.Tensor",
    )
)  # fmt: skip


def _widened(e: AtenEmitter, value: Any) -> Any:
    """Values and constants of bfloat16 as f32, which holds them exactly."""
    if isinstance(value, list | tuple):
        return [_widened(e, v) for v in value]
    bfloat = isinstance(value, SSAValue | torch.Tensor) and e.type(value).dtype == "bf16"
    return e.cast(value, "f32") if bfloat else value


def operands(e: AtenEmitter, label: str, args: list[Any], fakes: Any) -> list[Any]:
    """The arguments of an op, as its converter takes them."""
    if label in NATIVE:
        return args
    promotes = label in PROMOTE and isinstance(fakes, torch.Tensor) and fakes.dtype == torch.bfloat16
    if promotes:
        args = [e.cast(a, "bf16") if isinstance(a, SSAValue) and dtypes.is_int(e.type(a).dtype) else a for a in args]
    return [_widened(e, a) for a in args]


def computed(label: str, results: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """The types of results as the converter makes them."""
    if label in NATIVE:
        return results
    return tuple(t.with_dtype("f32") if t.dtype == "bf16" else t for t in results)


def as_computed(e: AtenEmitter, made: Any, fakes: Any) -> Any:
    """What a converter made, rounded where the node's results are bfloat16."""
    if isinstance(fakes, list | tuple):
        return [as_computed(e, m, f) for m, f in zip(made, fakes, strict=False)]
    is_bfloat = isinstance(fakes, torch.Tensor) and fakes.dtype == torch.bfloat16
    return e.cast(made, "bf16") if is_bfloat and isinstance(made, Value) else made


__all__ = ["as_computed", "computed", "operands"]
