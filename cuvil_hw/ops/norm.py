"""Normalisations. Statistics of f16 are taken in f32 (a sum of squares leaves f16 early)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cuvil_hw.expr.nodes import Expr, Tensor, binary, cast, unary
from cuvil_hw.ops.base import Array, Emit, Op
from cuvil_hw.ops.binary import Add, Div, Mul, Sub
from cuvil_hw.ops.elementwise import Sqrt, check_dtype, work_dtype, working
from cuvil_hw.ops.reduce import ReduceMean, narrowed
from cuvil_hw.ops.shape import BroadcastTo, Reshape
from cuvil_hw.types import TensorType


def on_channels(p: Array, rank: int) -> Array:
    """A per-channel parameter (C,) shaped to broadcast over (N, C, …)."""
    return p.reshape(-1, *[1] * (rank - 2))


@dataclass(frozen=True)
class BatchNorm(Op):
    """(x - mean) / √(var + eps) · scale + bias per channel. x (N, C, …); the others (C,), of x's dtype."""

    mnemonic: ClassVar[str] = "batch_norm"
    elementwise: ClassVar[bool] = True
    eps: float = 1e-5

    def infer(
        self, x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, var: TensorType
    ) -> TensorType:
        check_dtype(self, "float", x.dtype)
        self.want(x.rank >= 2, f"{x} needs at least the dimensions N and C")
        for name, p in (("scale", scale), ("bias", bias), ("mean", mean), ("var", var)):
            want = TensorType(x.shape[1:2], x.dtype)
            self.want(p == want, f"{name} is {p}, must be {want}")
        return x

    def evaluate(self, x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
        s, b, m, v = (on_channels(working(p), x.ndim) for p in (scale, bias, mean, var))
        w = working(x)
        return np.asarray((w - m) / np.sqrt(v + w.dtype.type(self.eps)) * s + b, x.dtype)

    def compute(self, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        work = work_dtype(x.dtype)

        def at(n: Expr, c: Expr, *p: Expr) -> Expr:
            s, b, m, v = (cast(t[c], work) for t in (scale, bias, mean, var))
            centred = cast(x[(n, c, *p)], work) - m
            return cast(binary("div", centred, unary("sqrt", binary("add", v, self.eps))) * s + b, x.dtype)

        return Tensor(self.infer(x.type, scale.type, bias.type, mean.type, var.type), at)


def normalise(x: Array, axes: Sequence[int], eps: float) -> Array:
    """(x - mean) / √(variance + eps) over `axes`; the variance is the biased one, of the centred values."""
    centred = x - x.mean(axis=tuple(axes), keepdims=True, dtype=x.dtype)
    variance = (centred * centred).mean(axis=tuple(axes), keepdims=True, dtype=x.dtype)
    return np.asarray(centred / np.sqrt(variance + x.dtype.type(eps)))


def emit_normalise(emit: Emit, x: Any, axes: tuple[int, ...], eps: float) -> Any:
    """`normalise` as ops."""
    kind = emit.type(x)
    wide = BroadcastTo(kind.shape)
    centred = emit.op(Sub(), x, emit.op(wide, emit.op(ReduceMean(axes, True), x)))
    variance = emit.op(ReduceMean(axes, True), emit.op(Mul(), centred, centred))
    fill = emit.const(
        np.full(emit.type(variance).shape, eps, np.float64 if kind.dtype == "f64" else np.float32), kind.dtype
    )
    deviation = emit.op(Sqrt(), emit.op(Add(), variance, fill))
    return emit.op(Div(), centred, emit.op(wide, deviation))


def emit_affine(emit: Emit, x: Any, scale: Any, bias: Any | None, shape: tuple[int, ...]) -> Any:
    """x · scale + bias, the parameters reshaped to `shape` and broadcast."""
    kind = emit.type(x)

    def spread(p: Any) -> Any:
        p = narrowed(emit, p, kind.dtype)
        p = p if emit.type(p).shape == shape else emit.op(Reshape(shape), p)
        return emit.op(BroadcastTo(kind.shape), p)

    y = emit.op(Mul(), x, spread(scale))
    return y if bias is None else emit.op(Add(), y, spread(bias))


@dataclass(frozen=True)
class LayerNorm(Op):
    """Normalised over the dimensions axis…, then · scale + bias; both have shape x.shape[axis:], bias is optional."""

    mnemonic: ClassVar[str] = "layer_norm"
    composite: ClassVar[bool] = True
    axis: int
    eps: float = 1e-5

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType | None = None) -> TensorType:
        check_dtype(self, "float", x.dtype)
        self.want(0 <= self.axis < x.rank, f"axis {self.axis} is outside rank {x.rank}")
        want = x.with_shape(x.shape[self.axis :])
        self.want(scale == want, f"scale is {scale}, must be {want}")
        self.want(bias in (None, want), f"bias is {bias}, must be {want}")
        return x

    def evaluate(self, x: Array, scale: Array, bias: Array | None = None) -> Array:
        y = normalise(working(x), range(self.axis, x.ndim), self.eps) * working(scale)
        return np.asarray(y if bias is None else y + working(bias), x.dtype)

    def decompose(self, emit: Emit, x: Any, scale: Any, bias: Any | None = None) -> Any:
        kind = emit.type(x)
        y = emit_normalise(
            emit, narrowed(emit, x, work_dtype(kind.dtype)), tuple(range(self.axis, kind.rank)), self.eps
        )
        return narrowed(emit, emit_affine(emit, y, scale, bias, kind.shape[self.axis :]), kind.dtype)


@dataclass(frozen=True)
class _PerSample(Op):
    """Shared by norms with scale and bias (C,) over x (N, C, …)."""

    composite: ClassVar[bool] = True

    def check(self, x: TensorType, scale: TensorType, bias: TensorType) -> None:
        check_dtype(self, "float", x.dtype)
        self.want(x.rank >= 2, f"{x} needs at least the dimensions N and C")
        want = x.with_shape(x.shape[1:2])
        self.want(scale == want and bias == want, f"scale {scale} and bias {bias} must be {want}")

    def normed(self, x: Array, scale: Array, bias: Array, groups: int, eps: float) -> Array:
        grouped = working(x).reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
        y = normalise(grouped, range(2, grouped.ndim), eps).reshape(x.shape)
        return np.asarray(y * on_channels(working(scale), x.ndim) + on_channels(working(bias), x.ndim), x.dtype)

    def emitted(self, emit: Emit, x: Any, scale: Any, bias: Any, groups: int, eps: float) -> Any:
        kind = emit.type(x)
        n, c, *rest = kind.shape
        shape = (n, groups, c // groups, *rest)
        y = emit.op(Reshape(shape), narrowed(emit, x, work_dtype(kind.dtype)))
        y = emit.op(Reshape(kind.shape), emit_normalise(emit, y, tuple(range(2, len(shape))), eps))
        return narrowed(emit, emit_affine(emit, y, scale, bias, (1, c, *[1] * len(rest))), kind.dtype)


@dataclass(frozen=True)
class InstanceNorm(_PerSample):
    """Normalised over the spatial dimensions of each sample and channel, then · scale + bias, both (C,)."""

    mnemonic: ClassVar[str] = "instance_norm"
    eps: float = 1e-5

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        self.check(x, scale, bias)
        return x

    def evaluate(self, x: Array, scale: Array, bias: Array) -> Array:
        return self.normed(x, scale, bias, x.shape[1], self.eps)

    def decompose(self, emit: Emit, x: Any, scale: Any, bias: Any) -> Any:
        return self.emitted(emit, x, scale, bias, emit.type(x).shape[1], self.eps)


@dataclass(frozen=True)
class GroupNorm(_PerSample):
    """Normalised over `groups` groups of consecutive channels of each sample, then · scale + bias, both (C,)."""

    mnemonic: ClassVar[str] = "group_norm"
    groups: int
    eps: float = 1e-5

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        self.check(x, scale, bias)
        self.want(self.groups >= 1 and x.shape[1] % self.groups == 0, f"{x.shape[1]} channels in {self.groups} groups")
        return x

    def evaluate(self, x: Array, scale: Array, bias: Array) -> Array:
        return self.normed(x, scale, bias, self.groups, self.eps)

    def decompose(self, emit: Emit, x: Any, scale: Any, bias: Any) -> Any:
        return self.emitted(emit, x, scale, bias, self.groups, self.eps)
