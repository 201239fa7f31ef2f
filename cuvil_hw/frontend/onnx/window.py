"""Converters of convolutions and pools: explicit pads from auto_pad and ceil_mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.frontend.onnx.node import Converter, OnnxNode, Value
from cuvil_hw.frontend.onnx.shape import pad_value
from cuvil_hw.ops.base import too_large
from cuvil_hw.ops.nn import Conv
from cuvil_hw.ops.pool import AvgPool, MaxPool
from cuvil_hw.ops.transposed import MaxPoolPositions

MOST_PAD = 1 << 15  # every row of padding is one that is scheduled, streamed and computed


@dataclass(frozen=True)
class Window:
    """A sliding window with all defaults resolved. `extra`: elements of each end pad that only exist because of
    ceil_mode."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    extra: tuple[int, ...]

    def reach(self, d: int) -> int:
        """The distance, in elements, from the first to the last tap along dimension `d`."""
        return self.dilations[d] * (self.kernel[d] - 1) + 1


def window(n: OnnxNode, spatial: Sequence[int], kernel: Sequence[int]) -> Window:
    """The node's window over an input of extents `spatial`."""
    rank = len(spatial)
    strides, dilations = n.ints("strides", (1,) * rank), n.ints("dilations", (1,) * rank)
    pads, auto = n.ints("pads", (0,) * (2 * rank)), n.attr("auto_pad", "NOTSET")
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        n.refuse(f"kernel {tuple(kernel)}, strides {strides}, dilations {dilations}, pads {pads} on {rank} dimensions")
    if min((*strides, *dilations, *kernel), default=1) < 1:
        n.refuse("kernel, strides and dilations must be positive")
    n.affordable("its window", *kernel)
    if max(pads, default=0) > MOST_PAD:
        n.refuse(f"pads {pads}: more than {MOST_PAD:,} cells of padding")
    padded = tuple(s + max(0, a) + max(0, b) for s, a, b in zip(spatial, pads, pads[rank:], strict=False))
    if why := too_large(n[0].type.with_shape((*n[0].shape[: n[0].rank - rank], *padded))):
        n.refuse(f"with its pads the input would be {why}")
    found = Window(tuple(kernel), strides, pads, dilations, (0,) * rank)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        begin, end = [], []
        for d, size in enumerate(spatial):
            total = max(0, (-(-size // strides[d]) - 1) * strides[d] + found.reach(d) - size)
            small, large = total // 2, total - total // 2
            begin.append(small if auto == "SAME_UPPER" else large)
            end.append(large if auto == "SAME_UPPER" else small)
        return Window(found.kernel, strides, (*begin, *end), dilations, found.extra)
    if auto == "VALID":
        found = Window(found.kernel, strides, (0,) * (2 * rank), dilations, found.extra)
    elif auto != "NOTSET":
        n.refuse(f"auto_pad {auto!r}")
    return _ceil(found, spatial) if n.integer("ceil_mode", 0) else found


def _ceil(w: Window, spatial: Sequence[int]) -> Window:
    """ceil_mode as end pads: a last, partial window counts if it starts inside the input or the begin pad."""
    rank, end, extra = len(spatial), [], []
    for d, size in enumerate(spatial):
        lo, hi, stride = w.pads[d], w.pads[rank + d], w.strides[d]
        count = -(-(size + lo + hi - w.reach(d)) // stride) + 1
        if (count - 1) * stride >= size + lo:
            count -= 1
        more = max(0, (count - 1) * stride + w.reach(d) - size - lo - hi)
        end.append(hi + more)
        extra.append(more)
    return Window(w.kernel, w.strides, (*w.pads[:rank], *end), w.dilations, tuple(extra))


def _touches(w: Window, spatial: Sequence[int]) -> bool:
    """Whether every window has a tap inside the input."""
    for d, size in enumerate(spatial):
        lo, hi = w.pads[d], w.pads[len(spatial) + d]
        last = (size + lo + hi - w.reach(d)) // w.strides[d] * w.strides[d] - lo
        if w.dilations[d] == 1 and lo < w.kernel[d] and last < size:
            continue
        starts = np.arange(-lo, int(size) + hi - w.reach(d) + 1, w.strides[d])
        first = np.maximum(-(starts // w.dilations[d]), 0)  # the first tap that isn't before the input
        if (first >= w.kernel[d]).any() or int((starts + first * w.dilations[d]).max(initial=-1)) >= size:
            return False
    return True


def conv(n: OnnxNode, version: int) -> Value:
    return conv_value(n, n[0], n[1], n.get(2))


def conv_value(n: OnnxNode, x: Value, w: Value, b: Value | None, x_zp: int = 0, w_zp: tuple[int, ...] = (0,)) -> Value:
    """x (N, C, *spatial), w (O, C/groups, *kernel). Integers accumulate in i32."""
    if x.rank < 3 or w.rank != x.rank:
        n.refuse(f"x {x.shape} and w {w.shape} need the same rank ≥ 3")
    kernel = n.ints("kernel_shape", w.shape[2:])
    if kernel != w.shape[2:]:
        n.refuse(f"kernel_shape {kernel} contradicts the weight {w.shape}")
    win = window(n, x.shape[2:], kernel)
    if min(win.pads, default=0) < 0:
        rank = len(kernel)
        cut = [min(0, p) for p in win.pads]
        x = pad_value(n, x, (0, 0, *cut[:rank], 0, 0, *cut[rank:]))
    pads = tuple(max(0, p) for p in win.pads)
    acc = "i32" if dtypes.is_int(x.dtype) else ""
    op = Conv(win.strides, pads, win.dilations, n.integer("group", 1), x_zp, w_zp, acc)
    return n.emit(op, x, w, b) if b is not None else n.emit(op, x, w)


def _pool_window(n: OnnxNode) -> tuple[Value, Window]:
    x = n[0]
    if x.rank < 3:
        n.refuse(f"input {x.shape} has no spatial dimensions")
    win = window(n, x.shape[2:], n.ints("kernel_shape"))
    if min(win.pads, default=0) < 0:
        n.refuse(f"negative pads {win.pads}")
    return x, win


def max_pool(n: OnnxNode, version: int) -> Sequence[Value]:
    x, win = _pool_window(n)
    if not _touches(win, x.shape[2:]):
        n.refuse("a window lies wholly in the padding")
    y = n.emit(MaxPool(win.kernel, win.strides, win.pads, win.dilations), x)
    if not any(n.wanted[1:]):
        return (y,)
    by_columns = bool(n.integer("storage_order", 0))
    return y, n.emit(MaxPoolPositions(win.kernel, win.strides, win.pads, win.dilations, by_columns), x)


def average_pool(n: OnnxNode, version: int) -> Value:
    x, win = _pool_window(n)
    include = bool(n.integer("count_include_pad", 0))
    if not include and not _touches(win, x.shape[2:]):
        n.refuse("a window lies wholly in the padding, so that it has no mean")
    return n.emit(AvgPool(win.kernel, win.strides, win.pads, win.dilations, include, win.extra), x)


def whole_window(n: OnnxNode) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """kernel, strides, pads, dilations of a window over everything."""
    spatial = n[0].shape[2:]
    if not spatial or not all(spatial):
        n.refuse(f"input {n[0].shape} has no spatial elements")
    ones = (1,) * len(spatial)
    return spatial, ones, (0,) * (2 * len(spatial)), ones


def global_average_pool(n: OnnxNode, version: int) -> Value:
    return n.emit(AvgPool(*whole_window(n)), n[0])


def global_max_pool(n: OnnxNode, version: int) -> Value:
    return n.emit(MaxPool(*whole_window(n)), n[0])


WINDOW: Mapping[str, Converter] = MappingProxyType(
    {
        "Conv": conv,
        "MaxPool": max_pool,
        "AveragePool": average_pool,
        "GlobalAveragePool": global_average_pool,
        "GlobalMaxPool": global_max_pool,
    }
)
