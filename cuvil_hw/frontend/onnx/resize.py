"""Converters of interpolation: Resize, Upsample and GridSample. For a resize, positions and weights are constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.extent.size import unrecorded
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import Array, Converter, OnnxNode, Value
from cuvil_hw.ops.elementwise import work_dtype

Kernel = Callable[[float], float]
TIE = 1e-6  # as in ONNX Runtime
MOST_TAPS = 1 << 22  # weights of one axis, which are computed one by one


@dataclass(frozen=True)
class ResizedAxis:
    """One dimension: extents, scale, and the region to resize (for tf_crop_and_resize), as fractions."""

    size: int
    out: int
    scale: float
    begin: float = 0.0
    end: float = 1.0


def places(n: OnnxNode, a: ResizedAxis, transform: str) -> Array:
    """Positions in the input of the output's elements, by the formulas and in the single precision of ONNX Runtime: the
    choice of the nearest of two pixels at equal distance depends on the last bit.

    Corners, and the ends of a crop, refer to the whole extent of the result, as in PyTorch; ONNX's reference uses the
    product of extent and scale, which may be fractional.
    """
    y, one, half = np.arange(a.out).astype(np.float32), np.float32(1), np.float32(0.5)
    size, out, scale = (np.float32(int(a.size)), np.float32(int(a.out)), np.float32(a.scale))
    begin, end = np.float32(a.begin), np.float32(a.end)
    match transform:
        case "align_corners":
            found = y * 0 if a.out == 1 else y * (size - one) / (out - one)
        case "asymmetric":
            found = y / scale
        case "half_pixel":
            found = (y + half) / scale - half
        case "pytorch_half_pixel":
            found = y * 0 if a.out == 1 else (y + half) / scale - half
        case "half_pixel_symmetric":
            offset = np.float64(size / 2 * (one - out / (scale * size)))
            found = (offset + (y.astype(np.float64) + 0.5) / np.float64(scale) - 0.5).astype(np.float32)
        case "tf_crop_and_resize":
            if a.out == 1:
                found = y * 0 + half * (begin + end) * (size - one)
            else:
                found = begin * (size - one) + y * (end - begin) * (size - one) / (out - one)
        case _:
            n.refuse(f"coordinate_transformation_mode {transform!r}")
    return found.astype(np.float64)


def whole_places(n: OnnxNode, x: Array, mode: str) -> Array:
    """Positions rounded by `nearest_mode`. A position within single precision's error of the midpoint counts as a
    tie."""
    match mode:
        case "round_prefer_floor":
            return np.ceil(x - 0.5 - TIE)
        case "round_prefer_ceil":
            return np.floor(x + 0.5 + TIE)
        case "floor":
            return np.floor(x)
        case "ceil":
            return np.ceil(x)
    n.refuse(f"nearest_mode {mode!r}")


def triangle(v: float) -> float:
    return max(0.0, 1 - abs(v))


def keys(a: float) -> Kernel:
    """Keys' cubic convolution kernel with coefficient a."""

    def kernel(v: float) -> float:
        v = abs(v)
        if v <= 1:
            return ((a + 2) * v - (a + 3)) * v * v + 1
        return ((a * v - 5 * a) * v + 8 * a) * v - 4 * a if v < 2 else 0.0

    return kernel


def taps(x: Array, a: ResizedAxis, kernel: Kernel, reach: int, antialias: bool, exclude: bool) -> tuple[Array, Array]:
    """(indices, weights), each (out, taps). `antialias`: the kernel widens when the result is smaller; `exclude`: taps
    outside get no weight, else the border counts for them."""
    narrow = min(a.scale, 1.0) if antialias else 1.0
    half = -math.floor(-reach / narrow)
    indices, weights = [], []
    for place in x:
        base = math.ceil(place) - 1
        row = range(base - half + 1, base + half + 1)
        factors = [kernel((i - place) * narrow) * (not exclude or 0 <= i < a.size) for i in row]
        total = sum(factors) if antialias or exclude else 1.0
        indices.append([min(max(i, 0), a.size - 1) for i in row])
        weights.append([f / total if total else 0.0 for f in factors])
    return np.asarray(indices, np.int64).reshape(len(x), -1), np.asarray(weights, np.float64).reshape(len(x), -1)


def along(n: OnnxNode, x: Value, axis: int, a: ResizedAxis, mode: str, transform: str, fill: float) -> Value:
    """x resized along one axis."""
    n.affordable(f"its table for axis {axis}", a.out)
    with unrecorded():
        where = places(n, a, transform)
    if mode == "nearest":
        at = np.clip(whole_places(n, where, n.attr("nearest_mode", "round_prefer_floor")), 0, int(a.size) - 1)
        y = n.emit(e.Gather(axis), x, n.const(at.astype(np.int64), "i64", (a.out,)))
    else:
        if not dtypes.is_float(x.dtype):
            n.refuse(f"mode {mode!r} on {x.dtype}; cast to a float first")
        antialias, exclude = bool(n.integer("antialias", 0)), bool(n.integer("exclude_outside", 0))
        kernel, reach = (triangle, 1) if mode == "linear" else (keys(n.number("cubic_coeff_a", -0.75)), 2)
        with unrecorded():
            widened = max(1.0, 1 / a.scale) if antialias and a.scale > 0 else 1.0
            n.affordable(f"its table for axis {axis}", a.out, math.ceil(2 * reach * widened), most=MOST_TAPS)
            indices, weights = taps(where, a, kernel, reach, antialias, exclude)
        shape = (a.out, indices.shape[1])
        y = n.emit(e.Resample(axis), x, n.const(indices, "i64", shape), n.const(weights, work_dtype(x.dtype), shape))
    if transform != "tf_crop_and_resize":
        return y
    outside = ((where < 0) | (where > a.size - 1)).reshape([-1 if d == axis else 1 for d in range(x.rank)])
    return n.emit(e.Where(), n.expand(n.const(outside, "bool"), y.shape), n.like(fill, y), y)


def scaled(size: int, scale: float) -> int:
    """The output extent, with ONNX's rounding in single precision."""
    if float(scale).is_integer():
        return size * int(scale)
    return int(np.floor(np.float32(size) * np.float32(scale)))


def resize(n: OnnxNode, version: int) -> Value:
    x, mode = n[0], n.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        n.refuse(f"mode {mode!r}")
    if any(s == 0 for s in x.shape):
        n.refuse(f"the empty tensor {x.shape}")
    if version < 11:  # as Upsample
        factors = _known(n, 1, "scales")
        sizes = [scaled(s, f) for s, f in zip(x.shape, factors, strict=True)]
        return _each(
            n, x, [ResizedAxis(*a) for a in zip(x.shape, sizes, factors, strict=True)], mode, "asymmetric", "floor"
        )
    transform = n.attr("coordinate_transformation_mode", "half_pixel")
    axes = [n.axis(a, x.rank) for a in n.ints("axes", range(x.rank))]
    roi = _known(n, 1, "roi") if transform == "tf_crop_and_resize" else []
    if roi and len(roi) != 2 * len(axes):
        n.refuse(f"{len(roi)} values of roi for {len(axes)} axes")
    factors, sizes = _targets(n, [x.shape[a] for a in axes])
    if len(factors) != len(axes) or len(sizes) != len(axes) or min(factors, default=1) <= 0:
        n.refuse(f"scales {factors} and sizes {sizes} for {len(axes)} axes")
    result = [ResizedAxis(s, s, 1.0) for s in x.shape]
    for i, axis in enumerate(axes):
        part = (roi[i], roi[len(axes) + i]) if roi else (0.0, 1.0)
        result[axis] = ResizedAxis(x.shape[axis], sizes[i], factors[i], *part)
    return _each(n, x, result, mode, transform)


def _known(n: OnnxNode, i: int, what: str) -> list[float]:
    found = [float(v) for v in n.known(i, what).reshape(-1)] if n.has(i) else []
    if not all(map(math.isfinite, found)):
        n.refuse(f"{what} {found}")
    return found


def _targets(n: OnnxNode, extents: Sequence[int]) -> tuple[list[float], list[int]]:
    """(scale, output extent) of every resized axis."""
    factors = _known(n, 2, "scales")
    if factors:
        if len(factors) != len(extents):
            n.refuse(f"{len(factors)} scales for {len(extents)} axes")
        return factors, [scaled(s, f) for s, f in zip(extents, factors, strict=True)]
    sizes = list(n.known_ints(3, "sizes")) if n.has(3) else []
    if len(sizes) != len(extents) or min(sizes, default=1) < 1:
        n.refuse(f"{len(sizes)} sizes for {len(extents)} axes")
    factors = [out / s for out, s in zip(sizes, extents, strict=True)]
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return factors, sizes
    if policy not in ("not_larger", "not_smaller"):
        n.refuse(f"keep_aspect_ratio_policy {policy!r}")
    scale = min(factors) if policy == "not_larger" else max(factors)
    return [scale] * len(sizes), [math.floor(scale * s + 0.5) for s in extents]


def _each(n: OnnxNode, x: Value, axes: Sequence[ResizedAxis], mode: str, transform: str, rounding: str = "") -> Value:
    fill = n.number("extrapolation_value", 0.0)
    if mode == "linear" and dtypes.is_int(x.dtype) and not n.integer("antialias", 0):  # truncated, as in ONNX Runtime
        return cast_to(n, _each(n, cast_to(n, x, "f32"), axes, mode, transform, rounding), x.dtype)
    for axis, a in enumerate(axes):
        if a.size == a.out and (a.scale == 1 or n.integer("antialias", 0)):
            continue  # as in ONNX Runtime, which leaves a crop alone then, too
        if rounding and mode == "nearest":
            n.affordable(f"its table for axis {axis}", a.out)
            with unrecorded():
                where = places(n, a, transform)
            if a.scale < 1 and (where != np.floor(where)).any():
                n.refuse("which pixel is the nearest when shrinking is open before opset 11; convert the model to 11")
            at = np.clip(np.floor(where), 0, int(a.size) - 1)
            x = n.emit(e.Gather(axis), x, n.const(at.astype(np.int64), "i64", (a.out,)))
        else:
            x = along(n, x, axis, a, mode, transform, fill)
    return x


def upsample(n: OnnxNode, version: int) -> Value:
    """Upsample-7 has its scales as an attribute, Upsample-9 as an operand."""
    x, mode = n[0], n.attr("mode", "nearest")
    factors = [float(np.float32(s)) for s in n.attr("scales", ())] if version < 9 else _known(n, 1, "scales")
    if len(factors) != x.rank or not all(0 < f < math.inf for f in factors) or mode not in ("nearest", "linear"):
        n.refuse(f"mode {mode!r}, scales {factors} on {x.shape}")
    axes = [ResizedAxis(s, scaled(s, f), f) for s, f in zip(x.shape, factors, strict=True)]
    return _each(n, x, axes, mode, "asymmetric", "floor")


def grid_sample(n: OnnxNode, version: int) -> Value:
    """Before opset 20 the modes were called bilinear and bicubic."""
    mode = n.attr("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    op = e.GridSample(mode, n.attr("padding_mode", "zeros"), bool(n.integer("align_corners", 0)))
    return n.emit(op, n[0], n[1])


RESIZE: Mapping[str, Converter] = MappingProxyType({"Resize": resize, "Upsample": upsample, "GridSample": grid_sample})
