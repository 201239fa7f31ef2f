"""Converters of ONNX operators that move elements: shapes, slices, pads, gathers. Target shapes must be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType

import numpy as np

from cuvil_hw import ops as e
from cuvil_hw.extent.size import broadcast, clamped, same
from cuvil_hw.frontend.onnx.node import Converter, OnnxNode, Value, decode
from cuvil_hw.ops.shape import Concat, Gather, Pad, Slice


def axes_of(n: OnnxNode, version: int, since: int, operand: int = 1) -> tuple[int, ...] | None:
    """The axes of Squeeze, Unsqueeze, Reduce…: an attribute before opset `since`, an operand after; None: not given."""
    if version < since:
        return None if n.attr("axes") is None else n.ints("axes")
    return n.known_ints(operand, "axes") if n.has(operand) else None


def reshape(n: OnnxNode, version: int) -> Value:
    x, target = n[0], list(n.known_ints(1, "the target shape's values"))
    if not n.integer("allowzero", 0):
        if any(t == 0 and i >= x.rank for i, t in enumerate(target)):
            n.refuse(f"target {target} copies a dimension that {x.shape} doesn't have")
        target = [x.shape[i] if t == 0 else t for i, t in enumerate(target)]
    if target.count(-1) > 1 or (-1 in target and 0 in target and n.integer("allowzero", 0)):
        n.refuse(f"target {target} is ambiguous")
    if -1 in target:
        rest = prod(t for t in target if t != -1)
        if not rest or x.type.size % rest:
            n.refuse(f"can't reshape {x.shape} to {tuple(target)}")
        target[target.index(-1)] = x.type.size // rest
    return n.reshape(x, target)


def flatten(n: OnnxNode, version: int) -> Value:
    x = n[0]
    axis = n.integer("axis", 1)
    axis = axis if axis == x.rank else n.axis(axis, x.rank)
    return n.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def squeeze(n: OnnxNode, version: int) -> Value:
    x = n[0]
    given = axes_of(n, version, 13)
    axes = {i for i, s in enumerate(x.shape) if s == 1} if given is None else set(n.axes(given, x.rank))
    if wrong := [a for a in axes if x.shape[a] != 1]:
        n.refuse(f"squeezes axis {wrong[0]} of {x.shape}, which isn't 1")
    return n.reshape(x, [s for i, s in enumerate(x.shape) if i not in axes])


def unsqueeze(n: OnnxNode, version: int) -> Value:
    x = n[0]
    given = axes_of(n, version, 13) or ()
    axes = n.axes(given, x.rank + len(given))
    if len(axes) != len(given):
        n.refuse(f"axes {given} repeat")
    rest = iter(x.shape)
    return n.reshape(x, [1 if i in axes else next(rest) for i in range(x.rank + len(axes))])


def transpose(n: OnnxNode, version: int) -> Value:
    return n.transpose(n[0], n.ints("perm", tuple(reversed(range(n[0].rank)))))


def cut(
    n: OnnxNode, x: Value, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] | None = None
) -> Value:
    """A slice; x itself if the slice covers everything."""
    steps = tuple(steps or (1,) * x.rank)
    if same(tuple(sizes), x.shape) and all(s == 1 for s in steps):
        return x
    starts = tuple(0 if not size else start for start, size in zip(starts, sizes, strict=True))
    return n.emit(Slice(starts, tuple(sizes), steps), x)


def slice_(n: OnnxNode, version: int) -> Value:
    x = n[0]
    if version < 10:
        starts, ends = n.ints("starts"), n.ints("ends")
        axes, steps = n.ints("axes", range(len(starts))), (1,) * len(starts)
    else:
        starts, ends = n.known_ints(1, "starts"), n.known_ints(2, "ends")
        axes = n.known_ints(3, "axes") if n.has(3) else tuple(range(len(starts)))
        steps = n.known_ints(4, "steps") if n.has(4) else (1,) * len(starts)
    if 0 in steps or not len(starts) == len(ends) == len(axes) == len(steps):
        n.refuse(f"starts {starts}, ends {ends}, axes {axes}, steps {steps} don't go together")
    taken = [(0, s, 1) for s in x.shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        a = n.axis(axis, x.rank)
        first, count = clamped(start, end, step, x.shape[a])  # ONNX clamps as Python does
        taken[a] = (first, count, step if count > 1 else 1)
    return cut(n, x, [t[0] for t in taken], [t[1] for t in taken], [t[2] for t in taken])


def split(n: OnnxNode, version: int) -> tuple[Value, ...]:
    x = n[0]
    axis, parts = n.axis(n.integer("axis", 0), x.rank), len(n.proto.output)
    sizes = n.ints("split") if version < 13 else n.known_ints(1, "split") if n.has(1) else ()
    if not sizes:
        parts = n.integer("num_outputs", parts)
        chunk = -(-x.shape[axis] // parts)
        if version < 18 and chunk * parts != x.shape[axis]:
            n.refuse(f"can't split {x.shape[axis]} into {parts} equal parts")
        sizes = tuple(max(0, min(chunk, x.shape[axis] - i * chunk)) for i in range(parts))
    if sum(sizes) != x.shape[axis] or len(sizes) != len(n.proto.output):
        n.refuse(f"sizes {sizes} don't split {x.shape[axis]} into {len(n.proto.output)}")
    results, begin = [], 0
    for size in sizes:
        start = [begin if i == axis else 0 for i in range(x.rank)]
        results.append(cut(n, x, start, [size if i == axis else s for i, s in enumerate(x.shape)]))
        begin += size
    return tuple(results)


def concat(n: OnnxNode, version: int) -> Value:
    values = n.values
    axis = n.axis(n.integer("axis", 1), values[0].rank)
    return values[0] if len(values) == 1 else n.emit(Concat(axis), *values)


def pad(n: OnnxNode, version: int) -> Value:
    x, mode = n[0], n.attr("mode", "constant")
    fill: float | int = n.number("value", 0.0) if version < 11 else 0
    if version < 11:
        pads = list(n.ints("pads"))
    else:
        given = n.known_ints(1, "pads")
        axes = [n.axis(a, x.rank) for a in (n.known_ints(3, "axes") if n.has(3) else range(x.rank))]
        if len(given) != 2 * len(axes):
            n.refuse(f"{len(given)} pads for {len(axes)} axes")
        pads = [0] * (2 * x.rank)
        for i, axis in enumerate(axes):
            pads[axis], pads[x.rank + axis] = given[i], given[len(axes) + i]
        if n.has(2) and n[2].type.size:
            fill = n.known_scalar(2, "the padding value")
    return pad_value(n, x, pads, mode, fill)


def pad_value(n: OnnxNode, x: Value, pads: Sequence[int], mode: str = "constant", fill: float | int = 0) -> Value:
    """`pads` (begin…, end…); negative ones cut."""
    if len(pads) != 2 * x.rank:
        n.refuse(f"{len(pads)} pads for rank {x.rank}")
    if float(fill) != fill and fill == fill:
        n.refuse(f"padding value {fill} is not exact as a float")
    begin, end = pads[: x.rank], pads[x.rank :]
    sizes = [s + min(b, 0) + min(f, 0) for s, b, f in zip(x.shape, begin, end, strict=True)]
    if min(sizes, default=0) < 0:
        n.refuse(f"pads {tuple(pads)} cut more than {x.shape} has")
    x = cut(n, x, [max(-b, 0) for b in begin], sizes)
    grow = tuple(max(p, 0) for p in pads)
    if not any(grow):
        return x
    if mode == "wrap":
        return _wrap(n, x, grow)
    if mode not in ("constant", "reflect", "edge"):
        n.refuse(f"mode {mode!r}")
    return n.emit(Pad(grow, float(fill), mode), x)


def _wrap(n: OnnxNode, x: Value, pads: Sequence[int]) -> Value:
    rank = x.rank
    for axis, (before, after) in enumerate(zip(pads[:rank], pads[rank:], strict=True)):
        size = x.shape[axis]
        if max(before, after) > size:
            n.refuse(f"mode 'wrap' by more than the extent {size}")

        def part(start: int, length: int, x: Value = x, axis: int = axis) -> Value:
            starts = [start if i == axis else 0 for i in range(rank)]
            return cut(n, x, starts, [length if i == axis else s for i, s in enumerate(x.shape)])

        pieces = [part(size - before, before)] * (before > 0) + [x] + [part(0, after)] * (after > 0)
        x = x if len(pieces) == 1 else n.emit(Concat(axis), *pieces)
    return x


def expand(n: OnnxNode, version: int) -> Value:
    x, target = n[0], n.known_ints(1, "the target shape's values")
    try:
        return n.expand(x, broadcast(x.shape, target))
    except ValueError:
        n.refuse(f"can't expand {x.shape} to {target}")


def tile(n: OnnxNode, version: int) -> Value:
    x, repeats = n[0], n.known_ints(1, "repeats")
    if len(repeats) != x.rank:
        n.refuse(f"{len(repeats)} repeats for rank {x.rank}")
    apart = n.reshape(x, [d for s in x.shape for d in (1, s)])
    wide = n.expand(apart, [d for r, s in zip(repeats, x.shape, strict=True) for d in (r, s)])
    return n.reshape(wide, [r * s for r, s in zip(repeats, x.shape, strict=True)])


def constant(n: OnnxNode, version: int) -> Value:
    tensor = n.attr("value")
    if tensor is not None:
        array, dtype = decode(tensor)
        return n.const(array, dtype)
    for name, dtype in (("value_float", "f32"), ("value_floats", "f32"), ("value_int", "i64"), ("value_ints", "i64")):
        value = n.attr(name)
        if value is not None:
            return n.const(value, dtype)
    n.refuse("its value is sparse or text")


def constant_of_shape(n: OnnxNode, version: int) -> Value:
    shape = n.known_ints(0, "the shape's values")
    tensor = n.attr("value")
    array, dtype = decode(tensor) if tensor is not None else (np.zeros(1, np.float32), "f32")
    if min(shape, default=0) < 0:
        n.refuse(f"a shape of {shape}")
    if array.size != 1:
        n.refuse(f"a value of shape {array.shape}; one element expected")
    return n.expand(n.const(array.reshape(()), dtype), shape)


def shape(n: OnnxNode, version: int) -> Value:
    start, end = n.integer("start", 0), n.attr("end")
    return n.const(n[0].shape[start : None if end is None else int(end)], "i64")


def size(n: OnnxNode, version: int) -> Value:
    return n.const(n[0].type.size, "i64")


def gather(n: OnnxNode, version: int) -> Value:
    """Negative indices count from the end."""
    x, indices = n[0], n[1]
    axis = n.axis(n.integer("axis", 0), x.rank)
    extent = x.shape[axis]
    if indices.array is not None:
        n.emitter.pin((indices,))
        if ((indices.array < -extent) | (indices.array >= extent)).any():
            n.refuse(f"an index is outside the extent {extent} of axis {axis}")
        positive = np.where(indices.array < 0, indices.array + extent, indices.array)
        return n.emit(Gather(axis), x, n.const(positive, "i64", indices.shape))
    return n.emit(Gather(axis), x, indices)


def depth_to_space(n: OnnxNode, version: int) -> Value:
    x, b, mode = n[0], n.integer("blocksize", 1), n.attr("mode", "DCR")
    if x.rank != 4 or b < 1 or x.shape[1] % (b * b) or mode not in ("DCR", "CRD"):
        n.refuse(f"blocksize {b}, mode {mode} on {x.shape}")
    batch, c, h, w = x.shape
    c //= b * b
    split_shape, perm = ((b, b, c), (0, 3, 4, 1, 5, 2)) if mode == "DCR" else ((c, b, b), (0, 1, 4, 2, 5, 3))
    y = n.transpose(n.reshape(x, (batch, *split_shape, h, w)), perm)
    return n.reshape(y, (batch, c, h * b, w * b))


def space_to_depth(n: OnnxNode, version: int) -> Value:
    x, b = n[0], n.integer("blocksize", 1)
    if x.rank != 4 or b < 1 or x.shape[2] % b or x.shape[3] % b:
        n.refuse(f"blocksize {b} on {x.shape}")
    batch, c, h, w = x.shape
    perm = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}.get(n.attr("mode", "DCR"))
    if perm is None:
        n.refuse(f"mode {n.attr('mode')!r}")
    y = n.transpose(n.reshape(x, (batch, c, h // b, b, w // b, b)), perm)
    return n.reshape(y, (batch, c * b * b, h // b, w // b))


def trilu(n: OnnxNode, version: int) -> Value:
    x = n[0]
    if x.rank < 2:
        n.refuse(f"rank {x.rank}")
    k = int(n.known_scalar(1, "the diagonal")) if n.has(1) else 0
    n.affordable("its mask", *x.shape[-2:])
    ones = np.ones(x.shape[-2:], np.bool_)
    mask = np.triu(ones, k) if n.integer("upper", 1) else np.tril(ones, k)
    return n.emit(e.Where(), n.expand(n.const(mask, "bool"), x.shape), x, n.like(0, x))


def one_hot(n: OnnxNode, version: int) -> Value:
    indices, values = n[0], n[2]
    depth = int(n.known_scalar(1, "depth"))
    n.affordable("its table of positions", depth)
    axis = n.axis(n.integer("axis", -1), indices.rank + 1)
    whole = n.emit(e.Cast("i64"), indices) if indices.dtype != "i64" else indices
    below = n.emit(e.Less(), whole, n.like(0, whole))
    whole = n.emit(e.Where(), below, n.emit(e.Add(), whole, n.like(depth, whole)), whole)
    whole = n.reshape(whole, (*indices.shape[:axis], 1, *indices.shape[axis:]))
    steps = n.const(np.arange(depth).reshape([-1 if d == axis else 1 for d in range(whole.rank)]), "i64")
    hot = n.binary(e.Equal(), whole, steps)
    off, on = (n.expand(n.reshape(cut(n, values, (i,), (1,)), ()), hot.shape) for i in (0, 1))
    return n.emit(e.Where(), hot, on, off)


SHAPE: Mapping[str, Converter] = MappingProxyType(
    {
        "Reshape": reshape,
        "Flatten": flatten,
        "Squeeze": squeeze,
        "Unsqueeze": unsqueeze,
        "Transpose": transpose,
        "Slice": slice_,
        "Split": split,
        "Concat": concat,
        "Pad": pad,
        "Expand": expand,
        "Tile": tile,
        "Constant": constant,
        "ConstantOfShape": constant_of_shape,
        "Shape": shape,
        "Size": size,
        "Gather": gather,
        "DepthToSpace": depth_to_space,
        "SpaceToDepth": space_to_depth,
        "Trilu": trilu,
        "OneHot": one_hot,
    }
)
