"""ATen converters of convolution, plain and transposed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, converts, extended
from cuvil_hw.frontend.torch.aten.shape import joined, part, permuted
from cuvil_hw.ops.nn import Conv
from cuvil_hw.types import TensorType


def batched(e: AtenEmitter, x: Value, spatial: int) -> Value:
    """x with a batch axis, which torch lets one leave out."""
    shape = e.shape(x)
    return e.reshape(x, (1, *shape)) if len(shape) == spatial + 1 else x


def convolved(
    e: AtenEmitter,
    x: Value,
    w: Value,
    b: Value | None,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    """A convolution. `pads`: those at the begin of each spatial dimension, then those at the end. Integers are summed
    in i64, which holds their last bits, and wrap in their own type.
    """
    dtype = e.type(x).dtype
    acc = "" if dtypes.is_float(dtype) else "i64"
    op = Conv(tuple(strides), tuple(pads), tuple(dilations), groups, acc=acc)
    if b is not None and acc:
        b = e.cast(b, acc)
    y = e.op(op, x, w) if b is None else e.op(op, x, w, b)
    return e.cast(y, dtype)


@converts("convolution")
def convolution(
    e: AtenEmitter,
    x: Value,
    w: Value,
    b: Value | None,
    strides: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    n = len(e.shape(w)) - 2
    x = batched(e, x, n)
    strides, pads, dilations = extended(strides, n), extended(padding, n), extended(dilations, n)
    if not transposed:
        y = convolved(e, x, w, b, strides, pads + pads, dilations, groups)
    elif all(s == 1 or d == 1 for s, d in zip(strides, dilations, strict=True)):
        y = _by_phases(e, x, w, b, strides, pads, dilations, groups)
    elif dtypes.is_float(e.out.dtype):
        op = ew.ConvTranspose(strides, pads + pads, dilations, extended(output_padding, n), groups)
        y = e.op(op, x, w) if b is None else e.op(op, x, w, b)
    else:
        e.refuse(f"transposed convolution of {e.out.dtype} with strides {strides} and dilations {dilations}")
    return e.reshape(y, e.out.shape)


@converts("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_padding(
    e: AtenEmitter,
    x: Value,
    w: Value,
    b: Value | None,
    strides: Sequence[int],
    padding: str,
    dilations: Sequence[int],
    groups: int,
) -> Value:
    """'same': the odd one of an uneven total goes to the end, as in torch."""
    kernel = e.shape(w)[2:]
    n = len(kernel)
    dilations = extended(dilations, n)
    totals = [d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilations, strict=True)]
    pads = [t // 2 for t in totals] + [t - t // 2 for t in totals]
    y = convolved(e, batched(e, x, n), w, b, extended(strides, n), pads, dilations, groups)
    return e.reshape(y, e.out.shape)


def _by_phases(
    e: AtenEmitter,
    x: Value,
    w: Value,
    b: Value | None,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    groups: int,
) -> Value:
    """Transposed convolution as plain ones, which every target has: element s·a + r of the uncut result needs only the
    taps r, r + s, …, so that each phase r is a convolution of its own; they are then interleaved. No product with an
    inserted zero is ever made.

    w (C, O/groups, *kernel). Phases with equally many taps are one convolution with more channels.
    """
    n, rows, kernel = len(strides), e.shape(x)[0], e.shape(w)[2:]
    outs = e.out.shape[-n:]
    phases = list(product(*(range(s) for s in strides)))
    taps = [[len(range(r, k, s)) for r in range(s)] for k, s in zip(kernel, strides, strict=True)]
    # Rows before the cut that no phase has to make.
    skipped = [
        max(min(p // s, *((t - 1) * d for t in ts), p), 0)
        for p, s, d, ts in zip(pads, strides, dilations, taps, strict=True)
    ]
    lengths = [max(-(-(p - c * s + out) // s), 0) for p, c, s, out in zip(pads, skipped, strides, outs, strict=True)]
    per_group = e.shape(w)[1]
    if all(t[0] == t[-1] for t in taps):
        counts = [t[0] for t in taps]
        weights = joined(e, [_reversed(e, w, r, strides, groups) for r in phases], 1)
        bias = None if b is None else _repeated_bias(e, b, groups, len(phases))
        y = _phase(e, x, _merged(e, weights), bias, counts, skipped, lengths, dilations, groups)
        y = e.reshape(y, (rows, groups, len(phases), per_group, *lengths))
    else:
        made = []
        for r in phases:
            counts = [t[i] for t, i in zip(taps, r, strict=True)]
            shape = (rows, groups * per_group, *lengths)
            if all(counts):
                weights = _merged(e, _reversed(e, w, r, strides, groups))
                one = _phase(e, x, weights, b, counts, skipped, lengths, dilations, groups)
            else:
                one = e.splat(0, TensorType(shape, e.out.dtype))
                if b is not None:
                    one = e.broadcast(e.reshape(b, (1, shape[1], *[1] * n)), shape)
            made.append(e.reshape(one, (rows, groups, 1, per_group, *lengths)))
        y = joined(e, made, 2)
    # (N, g, r…, O/g, a…) → (N, g, O/g, a, r, a, r, …)
    y = e.reshape(y, (rows, groups, *strides, per_group, *lengths))
    order = [0, 1, 2 + n, *(d for i in range(n) for d in (3 + n + i, 2 + i))]
    whole = [a * s for a, s in zip(lengths, strides, strict=True)]
    y = e.reshape(permuted(e, y, order), (rows, groups * per_group, *whole))
    for axis, (p, c, s, out) in enumerate(zip(pads, skipped, strides, outs, strict=True), 2):
        y = part(e, y, axis, p - c * s, out)
    return y


def _reversed(e: AtenEmitter, w: Value, phase: Sequence[int], strides: Sequence[int], groups: int) -> Value:
    """(g, 1, O/g, C/g, *taps): the taps of a phase, last one first."""
    for axis, (r, s) in enumerate(zip(phase, strides, strict=True), 2):
        count = len(range(r, e.shape(w)[axis], s))
        w = part(e, w, axis, r + s * (count - 1), count, -s)
    c, per_group, *kernel = e.shape(w)
    w = e.reshape(w, (groups, 1, c // groups, per_group, *kernel))
    return permuted(e, w, [0, 1, 3, 2, *range(4, 4 + len(kernel))])


def _merged(e: AtenEmitter, w: Value) -> Value:
    """(g, phases, O/g, C/g, …) → (g · phases · O/g, C/g, …)"""
    shape = e.shape(w)
    return e.reshape(w, (math.prod(shape[:3]), *shape[3:]))


def _repeated_bias(e: AtenEmitter, b: Value, groups: int, phases: int) -> Value:
    per_group = e.shape(b)[0] // groups
    wide = e.broadcast(e.reshape(b, (groups, 1, per_group)), (groups, phases, per_group))
    return e.reshape(wide, (groups * phases * per_group,))


def _phase(
    e: AtenEmitter,
    x: Value,
    w: Value,
    b: Value | None,
    counts: Sequence[int],
    skipped: Sequence[int],
    lengths: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    """`lengths` rows of one phase, `skipped` of its first ones left out."""
    reach = [d * (t - 1) for t, d in zip(counts, dilations, strict=True)]
    extents = e.shape(x)[2:]
    begins = [g - c for g, c in zip(reach, skipped, strict=True)]
    ends = [a - m - lo + g for a, m, lo, g in zip(lengths, extents, begins, reach, strict=True)]
    for axis, (m, end) in enumerate(zip(extents, ends, strict=True), 2):
        x = part(e, x, axis, 0, m + min(end, 0))
    pads = (*begins, *(max(end, 0) for end in ends))
    return convolved(e, x, w, b, [1] * len(counts), pads, dilations, groups)
