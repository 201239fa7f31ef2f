"""ATen converters that take the bits of elements as those of another type."""

from __future__ import annotations

import torch

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, converts, dtype_name
from cuvil_hw.ops.cast import Bitcast


@converts("view.dtype", "view_copy.dtype")
def view_dtype(e: AtenEmitter, x: Value, dtype: torch.dtype) -> Value:
    """x.view(dtype): of the same width element by element; else the last axis has fewer or more elements, those in
    front (in memory) the lower bits."""
    to = dtype_name(dtype)
    if "bool" in (e.type(x).dtype, to):
        if e.type(x).dtype == to:
            return x
        e.refuse("views memory as, or of, booleans; write x != 0, or x.to(torch.uint8)")
    have, want = (8 * dtypes.to_numpy(d).itemsize for d in (e.type(x).dtype, to))
    if have > want:
        x = _split(e, x, have, want)
    elif have < want:
        x = _merged(e, x, have, want)
    return x if e.type(x).dtype == to else e.op(Bitcast(to), x)


def _bits(e: AtenEmitter, x: Value, width: int) -> Value:
    """As unsigned integers."""
    return x if e.type(x).dtype == f"u{width}" else e.op(Bitcast(f"u{width}"), x)


def _steps(e: AtenEmitter, shape: tuple[int, ...], narrow: int, wide: int) -> Value:
    """How far the bits of narrow elements, the last axis of `shape`, lie from the lowest of the wide one."""
    return e.broadcast(torch.arange(0, wide, narrow).to(getattr(torch, f"uint{wide}")), shape)


def _split(e: AtenEmitter, x: Value, have: int, want: int) -> Value:
    shape = e.shape(x)
    apart = (*shape, have // want)
    wide = e.broadcast(e.reshape(_bits(e, x, have), (*shape, 1)), apart)
    parts = e.cast(e.op(ew.ShiftRight(), wide, _steps(e, apart, want, have)), f"u{want}")
    return e.reshape(parts, (*shape[:-1], shape[-1] * (have // want)))


def _merged(e: AtenEmitter, x: Value, have: int, want: int) -> Value:
    shape = e.shape(x)
    apart = (*shape[:-1], shape[-1] * have // want, want // have)
    wide = e.reshape(e.cast(_bits(e, x, have), f"u{want}"), apart)
    return e.op(ew.ReduceSum((len(shape),), False), e.op(ew.ShiftLeft(), wide, _steps(e, apart, have, want)))
