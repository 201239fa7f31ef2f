"""ATen converters of interpolation: resizing by constant weights, and sampling at computed places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cuvil_hw import dtypes
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, converts
from cuvil_hw.ops.binary import Add, Mul
from cuvil_hw.ops.elementwise import work_dtype
from cuvil_hw.ops.resample import GridSample, Resample
from cuvil_hw.ops.shape import Gather
from cuvil_hw.types import TensorType


def _resized(e: AtenEmitter, x: Value, rows: Sequence[torch.Tensor | None]) -> Value:
    """Applies to each spatial axis a matrix (out, in) with few entries a row: a sum of weighted gathers."""
    for d, matrix in enumerate(rows):
        if matrix is None:
            continue
        taps = max(int((matrix != 0).sum(1).max()), 1)
        weights, where = matrix.abs().topk(taps, dim=1)
        weights = matrix.gather(1, where)
        total: Value | None = None
        for k in range(taps):
            term: Value = e.op(Gather(2 + d), x, where[:, k].contiguous())
            if not bool((weights[:, k] == 1).all()):
                kind = TensorType(e.shape(term), e.out.dtype)
                factor = weights[:, k].reshape([-1 if a == 2 + d else 1 for a in range(len(kind.shape))])
                term = e.op(Mul(), term, e.operand(factor, kind))
            total = term if total is None else e.op(Add(), total, term)
        assert total is not None
        x = total
    return x


def _axis_matrices(
    e: AtenEmitter, x: Value, linear: bool, exact: bool, corners: bool, factors: Sequence[float | None]
) -> list[torch.Tensor | None]:
    """What torch itself does to each axis, found by resizing the unit vectors; None where the axis stays."""
    result: list[torch.Tensor | None] = []
    ops = torch.ops.aten
    for n, out, factor in zip(e.shape(x)[2:], e.out.shape[2:], factors, strict=True):
        if linear:
            unit = torch.eye(n, dtype=torch.float64 if e.out.dtype == "f64" else torch.float32).reshape(n, 1, n)
            matrix = ops.upsample_linear1d.default(unit, [out], corners, factor).reshape(n, out).T
        else:
            resize = ops._upsample_nearest_exact1d if exact else ops.upsample_nearest1d
            source = resize.default(torch.arange(n, dtype=torch.float32).reshape(1, 1, n), [out], factor)
            matrix = torch.nn.functional.one_hot(source.reshape(out).long(), n).to(torch.float32)
        same = n == out and torch.equal(matrix, torch.eye(n, dtype=matrix.dtype))
        result.append(None if same else matrix)
    return result


def _resize(
    e: AtenEmitter, x: Value, linear: bool, exact: bool, corners: bool, factors: Sequence[float | None]
) -> Value:
    if not dtypes.is_float(e.out.dtype) and linear:
        e.refuse(f"interpolation of {e.out.dtype}")
    factors = factors or [None] * (len(e.out.shape) - 2)
    return _resized(e, x, _axis_matrices(e, x, linear, exact, corners, factors))


def _flat(factors: Sequence[Any]) -> list[float | None]:
    """Scale factors of the `.vec` overload (one list, or None) and of the others (one each) alike."""
    if len(factors) == 1 and isinstance(factors[0], list | tuple):
        return list(factors[0])
    return [] if all(f is None for f in factors) else list(factors)


def _enter_resize(n: int, name: str, linear: bool, exact: bool) -> None:
    if linear:

        @converts(f"upsample_{name}{n}d.vec", f"upsample_{name}{n}d")
        def resize_linear(e: AtenEmitter, x: Value, size: Any, corners: bool, *factors: Any) -> Value:
            return _resize(e, x, True, False, corners, _flat(factors))

        return

    @converts(f"{name}{n}d.vec", f"{name}{n}d")
    def resize_nearest(e: AtenEmitter, x: Value, size: Any, *factors: Any) -> Value:
        return _resize(e, x, False, exact, False, _flat(factors))


for _n, _linear in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _enter_resize(_n, _linear, True, False)
    _enter_resize(_n, "upsample_nearest", False, False)
    _enter_resize(_n, "_upsample_nearest_exact", False, True)


def _dense_matrices(
    e: AtenEmitter, x: Value, target: str, corners: bool, factors: Sequence[float | None]
) -> list[torch.Tensor | None]:
    """The same for resizes that torch has in two dimensions only."""
    result: list[torch.Tensor | None] = []
    resize = getattr(torch.ops.aten, target).default
    for n, out, factor in zip(e.shape(x)[2:], e.out.shape[2:], factors, strict=True):
        unit = torch.eye(n, dtype=torch.float64 if e.out.dtype == "f64" else torch.float32).reshape(n, 1, 1, n)
        # Along the last axis: down an image that is one element wide, torch's antialiased kernels read only its first.
        matrix = resize(unit, [1, out], corners, None, factor).reshape(n, out).T
        same = n == out and torch.equal(matrix, torch.eye(n, dtype=matrix.dtype))
        result.append(None if same else matrix)
    return result


def _enter_weighted(target: str) -> None:
    @converts(target, f"{target}.vec")
    def resize(e: AtenEmitter, x: Value, size: Any, corners: bool, *factors: Any) -> Value:
        if not dtypes.is_float(e.out.dtype):
            e.refuse(f"interpolation of {e.out.dtype}")
        for d, matrix in enumerate(_dense_matrices(e, x, target, corners, _flat(factors) or [None, None])):
            if matrix is None:
                continue
            taps = max(int((matrix != 0).sum(1).max()), 1)
            where = matrix.abs().topk(taps, dim=1).indices.sort(dim=1).values
            weights = matrix.gather(1, where)
            x = e.op(Resample(2 + d), x, where, e.cast(weights, work_dtype(e.out.dtype)))
        return x


for _target in ("upsample_bicubic2d", *(f"_upsample_{kind}2d_aa" for kind in ("bilinear", "bicubic", "lanczos"))):
    _enter_weighted(_target)

MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")


@converts("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(e: AtenEmitter, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    # Cubic samples in mode "border" let the place stand where it is, unlike ONNX's.
    name = "edge" if (MODES[mode], PADDINGS[padding]) == ("cubic", "border") else PADDINGS[padding]
    return e.op(GridSample(MODES[mode], name, corners), x, grid)
