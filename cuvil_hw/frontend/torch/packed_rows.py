"""Operations that treat what a mask selects row by row: they are done to all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from xdsl.ir import SSAValue

from cuvil_hw import ops
from cuvil_hw.frontend.torch.aten.complex import held_types
from cuvil_hw.frontend.torch.aten.emitter import TABLE, AtenEmitter, Value, axis_of
from cuvil_hw.frontend.torch.packed import (
    INDEX,
    REASON,
    SCALAR,
    Fold,
    Packed,
    converted,
    count,
    counted,
    data_axis,
    inside,
    one_mask,
    packed_in,
    stand_in,
    unpacked,
)
from cuvil_hw.frontend.torch.packed_front import all_of, dense
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.shape import Gather


def _names(*groups: str) -> frozenset[str]:
    words = [w for g in groups for w in g.split()]
    return frozenset(f"aten.{w}" if "." in w else f"aten.{w}.default" for w in words)


# Element functions that torch doesn't call so, and what only renames.
_EACH = _names(
    "_to_copy to.dtype to.dtype_layout to.device to.other type_as clone alias detach contiguous lift_fresh_copy",
    "dropout native_dropout zeros_like ones_like full_like empty_like gelu silu mish where.self expand_as expand",
    "where.ScalarOther where.ScalarSelf where.Scalar __and__.Tensor __or__.Tensor __xor__.Tensor",
    "copy expand_copy fill.Scalar fill.Tensor lerp.Scalar lerp.Tensor",
)
_VIEWS = _names(
    "view _unsafe_view reshape view_copy _reshape_copy unsqueeze unsqueeze_copy squeeze squeeze.dim squeeze.dims",
    "squeeze_copy squeeze_copy.dim flatten.using_ints unflatten.int view_as reshape_as",
)
_TURNS = _names("permute permute_copy transpose.int transpose_copy.int t t_copy")
# Work along axes that their arguments `dim` or `dims` name.
_ALONG = _names(
    "softmax.int _softmax log_softmax.int _log_softmax _safe_softmax slice.Tensor slice_copy.Tensor select.int",
    "select_copy.int narrow narrow_copy split.Tensor split_with_sizes split_copy.Tensor split_with_sizes_copy chunk",
    "unbind.int unbind_copy.int cumsum cumprod cummax cummin logcumsumexp sort sort.stable topk kthvalue median.dim",
    "argmax argmin argsort max.dim min.dim logsumexp var.correction std.correction var.dim std.dim norm.ScalarOpt_dim",
    "linalg_vector_norm glu flip roll gather cat concat concatenate stack repeat_interleave.self_int",
    "prod.dim_int sum.dim_IntList mean.dim amax amin any.dim any.dims all.dim all.dims one_hot",
)
_PARTS = _names("select_scatter slice_scatter")
_NORMS = _names("layer_norm native_layer_norm rms_norm _fused_rms_norm")
_PRODUCTS = _names("mm matmul")
_LEFT = _PRODUCTS | _names("linear addmm bmm")
# The first axis is one of samples.
_SAMPLES = _names(
    "conv1d conv2d conv3d convolution max_pool2d max_pool1d avg_pool1d avg_pool2d max_pool2d_with_indices",
    "adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d batch_norm native_batch_norm",
    "_native_batch_norm_legit_no_training group_norm upsample_nearest2d.vec upsample_bilinear2d.vec",
)
_LOOKUPS = (INDEX, "aten.embedding.default", "aten.index_select.default", "aten.take.default")
_MADE = _names("zeros ones full empty new_zeros new_ones new_full new_empty expand expand_copy")
_SELECT = _names("select.int select_copy.int")
CATS = _names("cat concat concatenate")


def convert(e: AtenEmitter, target: Any, args: Sequence[Any], made: Any, fold: Fold) -> Any:
    """The node's result, packed where it has rows. Raises Refused."""
    label, values = str(target), packed_in(args)
    named = {a.name: v for a, v in zip(_schema(target), args, strict=False)}
    if label in CATS and (joined := _joined(e, args, made)) is not None:
        return joined
    if _elementwise(target, label) and (size := _beside(e, args, values)) is not None:
        full = converted(e, label, unpacked(args, lambda p: dense(e, p, size)), stand_in(e, made, size))
        axis = data_axis(e, made)
        return full if axis is None else all_of(e, full, axis)
    rows = one_mask(e, values)
    extent = e.shape(rows.full)[rows.axis]
    if label in _SELECT and axis_of(args[1], len(e.shape(rows.full))) == rows.axis:
        return _nth(e, rows, args[2], made)
    if label in _VIEWS:
        return _viewed(e, rows, made)
    if not _apart(e, target, label, args, named, made):
        e.refuse(REASON)
    fakes: Any = list(made) if isinstance(made, list | tuple) else made
    stand_ins = [stand_in(e, f, extent) for f in fakes] if isinstance(fakes, list) else stand_in(e, fakes, extent)
    use = (lambda p: inside(e, p)) if label in _LOOKUPS else (lambda p: p.full)
    plain = unpacked(args, use)
    if label.startswith("aten.expand"):
        result: Any = e.broadcast(plain[0], stand_ins.shape)  # type: ignore[union-attr]
    elif label not in _LOOKUPS and not _computed(plain):
        result = fold(target, plain)
    else:
        if label not in TABLE:
            e.refuse(REASON)
        result = converted(e, label, plain, stand_ins)
    if isinstance(result, list | tuple):
        return [_packed(e, r, rows, f) for r, f in zip(result, fakes, strict=False)]
    return _packed(e, result, rows, fakes)


def sized(e: AtenEmitter, label: str, args: Sequence[Any]) -> SSAValue | None:
    """The mask whose count is an extent of the tensor that a node makes; None where there is none."""
    sizes = args[0] if label in _MADE and isinstance(args[0], list) else args[1] if label in _MADE else []
    masks = [counted(n) for n in sizes if isinstance(n, SSAValue)]
    return masks[0] if len(masks) == 1 else None


def make(e: AtenEmitter, label: str, args: Sequence[Any], made: torch.Tensor, mask: SSAValue) -> Packed:
    """A tensor as long as what a mask selects."""
    axis = data_axis(e, made)
    if axis is None:
        e.refuse(REASON)
    fake = stand_in(e, made, e.type(mask).size)
    e.results = held_types(fake)
    if label.startswith("aten.expand"):
        return Packed(e.broadcast(args[0], e.out.shape), mask, e.loc, axis)
    name = label.split(".")[1].removeprefix("new_")
    value = args[1 + label.startswith("aten.new_")] if name == "full" else int(name == "ones")
    return Packed(e.operand(value, e.out), mask, e.loc, axis)


def _schema(target: Any) -> Sequence[Any]:
    return target._schema.arguments if isinstance(target, torch._ops.OpOverload) else ()


def _computed(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(_computed(v) for v in values)
    return isinstance(values, SSAValue)


def _packed(e: AtenEmitter, value: Any, rows: Packed, made: torch.Tensor) -> Any:
    axis = data_axis(e, made)
    return value if value is None or axis is None else replace(rows, full=value, axis=axis)


def _apart(e: AtenEmitter, target: Any, label: str, args: Sequence[Any], named: dict[str, Any], made: Any) -> bool:
    """Whether the node keeps rows apart. Raises Refused with the reason where there is more to say."""
    first = args[0]
    values = packed_in(args)
    if _elementwise(target, label):
        return _aligned(e, args, values, made)
    if label in _TURNS:
        return True
    if label in _LOOKUPS:
        if label == "aten.index_select.default" and isinstance(first, Packed):
            return len(values) == 1
        return _looks_up(first, args[1] if label == INDEX else args[-1:])
    if label in _SAMPLES:
        return isinstance(first, Packed) and first.axis == 0 and len(values) == 1
    if label in _NORMS:
        return isinstance(first, Packed) and len(values) == 1 and first.axis < len(e.shape(first.full)) - len(args[1])
    if label in _LEFT:
        return _left(e, label, args)
    if label in _PARTS:
        rank, axis, dim = len(e.shape(first.full)), first.axis, axis_of(args[2], len(e.shape(first.full)))
        shift = dim < axis and label == "aten.select_scatter.default"
        return all(isinstance(a, Packed) for a in args[:2]) and dim != axis and args[1].axis == axis - shift
    if label not in _ALONG or len({(p.axis, len(e.shape(p.full))) for p in values}) != 1:
        return False
    rank, axis = len(e.shape(values[0].full)), values[0].axis
    if label == "aten.stack.default":
        return len(values) == len(first)
    if label == "aten.gather.default" and len(values) != 2:
        return False
    if label in CATS and len(values) != len(first):
        return False
    dims = named.get("dim", named.get("dims"))
    if dims is None and ("dim" in named or "dims" in named):  # all axes
        return False
    given = dims if isinstance(dims, list | tuple) else [dims]
    return all(isinstance(d, int) and axis_of(d, rank) != axis for d in given) and bool(given)


def _beside(e: AtenEmitter, args: Sequence[Any], values: Sequence[Packed]) -> int | None:
    """How many rows an operand beside the selected ones has, which must be as many; None where it has one or none."""
    where = {p.axis - len(e.shape(p.full)) for p in values}
    plain = [e.shape(a) for a in args if isinstance(a, torch.Tensor | SSAValue)]
    sizes = {s[w] for w in where for s in plain if len(s) >= -w and s[w] != 1}
    return sizes.pop() if len(where) == len(sizes) == 1 else None


def _elementwise(target: Any, label: str) -> bool:
    return label in _EACH or (torch.Tag.pointwise in getattr(target, "tags", ()) and label not in _ALONG)


def _aligned(e: AtenEmitter, args: Sequence[Any], values: Sequence[Packed], made: Any) -> bool:
    """Whether broadcasting leaves the rows where they are."""
    results = made if isinstance(made, list | tuple) else [made]
    behind = {p.axis - len(e.shape(p.full)) for p in values}
    where = behind.pop()
    moved = bool(behind) or any(data_axis(e, f) != f.ndim + where for f in results)
    if moved:
        e.refuse("broadcasts what a mask selects so that its rows become another axis; use torch.where")
    return True


def _looks_up(x: Any, indices: Sequence[Any]) -> bool:
    """Whether rows are looked up by selected indices, or selected rows' elements by the same indices in each."""
    given = [i for i in indices if i is not None]
    if not isinstance(x, Packed):
        return all(p.axis == 0 for p in packed_in(given))  # axis 0 of indices is the first of theirs in the result
    # PyTorch puts the axes of separate index tensors first.
    return not packed_in(given) and len(given) == 1 and (len(indices) <= x.axis or indices[x.axis] is None)


def _left(e: AtenEmitter, label: str, args: Sequence[Any]) -> bool:
    """Whether a product's rows are the selected ones, or its samples."""
    others = list(args[1:]) if label != "aten.addmm.default" else [args[0], *args[2:]]
    x = args[1] if label == "aten.addmm.default" else args[0]
    if label in ("aten.bmm.default", "aten.matmul.default") and len(packed_in(args)) == 2:  # sample by sample
        ranks = {len(e.shape(p.full)) for p in args}
        return len(ranks) == 1 and args[0].axis == args[1].axis < ranks.pop() - 2
    if label in _PRODUCTS and not isinstance(x, Packed):  # columns of the right one
        columns: Packed = args[1]
        return columns.axis == len(e.shape(columns.full)) - 1 > 0
    if not isinstance(x, Packed) or packed_in(others):
        return False
    rank = len(e.shape(x.full))
    if label == "aten.addmm.default" and len(e.shape(args[0])) > 1 and e.shape(args[0])[0] != 1:
        return False
    if x.axis == rank - 1:
        return False
    if label == "aten.matmul.default" and len(e.shape(args[1])) > 2:
        batch = e.shape(args[1])[:-2]
        at = x.axis - (rank - 2)  # of the samples from behind, where it is one of them
        if (at < 0 and len(batch) >= -at) or (at == 0 and len(batch) > rank - 2):
            e.refuse("broadcasts what a mask selects so that its rows become another axis; use torch.where")
    return label != "aten.bmm.default" or x.axis == 1


def _viewed(e: AtenEmitter, rows: Packed, made: torch.Tensor) -> Packed | Value:
    """The rows in another shape: other axes change, or join that of the rows, which then are as many times more."""
    shape, axis = e.shape(rows.full), data_axis(e, made)
    before, behind = prod(shape[: rows.axis]), prod(shape[rows.axis + 1 :])
    if axis is None:
        size = made.numel() // max(before * behind, 1)
        return e.reshape(dense(e, rows, size), tuple(map(int, made.shape)))
    new = (prod(map(int, made.shape[:axis])), prod(map(int, made.shape[axis + 1 :])))
    if before and behind and (not all(new) or before % new[0] or behind % new[1]):
        e.refuse("parts the rows that a mask selects into several axes; reshape before they are selected")
    n = shape[rows.axis]
    times = (before // max(new[0], 1), n, behind // max(new[1], 1))
    mask: Value = rows.mask
    if times != (1, n, 1):
        mask = e.broadcast(e.reshape(mask, (1, n, 1)), times)
    sizes = [prod(times) if d == axis else int(extent) for d, extent in enumerate(made.shape)]
    mask = e.ssa(e.reshape(mask, (prod(times),)))
    return Packed(e.reshape(rows.full, sizes), mask, rows.loc, axis, rows.front and times[0] == 1)


def _joined(e: AtenEmitter, args: Sequence[Any], made: torch.Tensor) -> Packed | None:
    """Rows one after the other; None where they are joined side by side."""
    parts = list(args[0])
    axis = axis_of(args[1], made.ndim)
    if any(p.axis != axis for p in packed_in(parts)):
        return None
    masks = [p.mask if isinstance(p, Packed) else e.ssa(torch.ones(e.shape(p)[axis], dtype=torch.bool)) for p in parts]
    fulls: list[Value] = unpacked(parts)
    rows = sum(e.shape(f)[axis] for f in fulls)
    full = converted(e, "aten.cat.default", [fulls, axis], stand_in(e, made, rows))
    loc = packed_in(parts)[0].loc
    return Packed(full, e.op(ops.Concat(0), *masks), loc, axis)


def _nth(e: AtenEmitter, rows: Packed, n: Any, made: torch.Tensor) -> Value:
    """The n-th selected row, or the n-th from behind; a call in which there is none raises."""
    if not isinstance(n, int):
        e.refuse(REASON)
    found, mask = count(e, rows.mask), e.cast(rows.mask, "i64")
    kind = e.type(mask)
    number = e.splat(n + 1, SCALAR)
    wanted: Value = number if n >= 0 else e.op(ops.Add(), found, number)
    enough = e.op(ops.GreaterEqual(), found, e.splat(n + 1 if n >= 0 else -n, SCALAR))
    e.builder.guard(
        enough, f"{e.loc}: row {n} of the rows that a mask selects, and there are fewer", e.loc
    )  # fmt: skip
    order = e.op(ops.CumSum(0), mask)
    hit = e.op(ops.LogicalAnd(), rows.mask, e.op(ops.Equal(), order, e.broadcast(wanted, kind.shape)))
    at = e.op(rd.ArgMax(0, False), e.cast(hit, "i8"))
    picked = e.op(Gather(rows.axis), rows.full, at)
    return e.reshape(picked, [int(extent) for extent in made.shape])


__all__ = ["convert", "make", "sized"]
