"""What of a kernel can be computed by vectors of lanes, and where its rows meet no condition."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING

from cuvil_hw import dtypes
from cuvil_hw.adapters.sequential.nest import box_bits, identity
from cuvil_hw.expr.guarded import conjuncts
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Reduce, Select, State, affine
from cuvil_hw.expr.traverse import walk
from cuvil_hw.schedule.kernel import Kernel

if TYPE_CHECKING:
    from cuvil_hw.adapters.sequential.nest import Lowering

Last = Callable[[Load], int | None]


def alone(load: Load, it: Iter) -> int | None:
    """The dimension that `it` indexes by itself, when it appears nowhere else in the index; else None."""
    dims = [d for d, i in enumerate(load.index) if it in walk(i)]
    return dims[0] if len(dims) == 1 and load.index[dims[0]] == it else None


def beside(load: Load, it: Iter) -> int | None:
    """The dimension in which neighbours of `it` read neighbours, when it appears in no other; else None."""
    dims = [d for d, i in enumerate(load.index) if it in walk(i)]
    if len(dims) != 1:
        return None
    terms = affine(load.index[dims[0]])[0]
    return dims[0] if terms.pop(it, 0) == 1 and not any(it in walk(t) for t in terms) else None


def guards_of(reduce: Reduce) -> list[Expr] | None:
    """The conditions of a step of a sum, maximum or minimum under which it changes nothing; None when a step isn't
    `state op (conditions ? term : neutral)`."""
    match reduce.update:
        case (Apply(op="add" | "max" | "min", args=(State(k=0), Select(cond=cond, other=Const(value=value)))) as step,):
            return conjuncts(cond) if value == identity(reduce.kind, step.dtype) else None
        case (Apply(op="add" | "max" | "min", args=(State(k=0), term)),):
            return None if isinstance(term, Select) else []
    return None


def inner_range(kernel: Kernel, row: Iter) -> tuple[int, int] | None:
    """The values of `row`, first and one after the last, for which no condition on it is false at any step of the
    reduction; None when that isn't known or there are none."""
    assert kernel.reduce is not None
    low, high = 0, row.extent
    for guard in guards_of(kernel.reduce) or ():
        if row not in walk(guard):
            continue
        bound = _bound(guard, row)
        if bound is None:
            return None
        low, high = max(low, bound[0]), min(high, bound[1])
    return (low, high) if low < high else None


def _bound(guard: Expr, row: Iter) -> tuple[int, int] | None:
    """Where `index ≥ c` or `index < c` holds for all steps, as a range of `row`."""
    if not (isinstance(guard, Apply) and guard.op in ("ge", "lt") and isinstance(guard.args[1], Const)):
        return None
    limit = int(guard.args[1].value)
    terms, constant = affine(guard.args[0])
    factor = terms.pop(row, 0)
    if factor < 1 or not all(isinstance(i, Iter) and i.kind == "reduction" for i in terms):
        return None
    spans = [k * (i.extent - 1) for i, k in terms.items() if isinstance(i, Iter)]
    if guard.op == "ge":
        return max(0, ceil((limit - constant - sum(min(s, 0) for s in spans)) / factor)), row.extent
    return 0, (limit - 1 - constant - sum(max(s, 0) for s in spans)) // factor + 1


def fits(kernel: Kernel, lane: Iter, last: Last) -> bool:
    """Whether a step is arithmetic on vectors of `lane`: sums, differences, products and widenings of loads whose
    lanes are neighbours, under conditions on other iterators. `last`: the innermost dimension of a load's buffer in
    memory."""
    reduce = kernel.reduce
    if reduce is None or reduce.kind not in ("sum", "max", "min"):
        return False
    if not dtypes.is_float(reduce.dtype) and (reduce.kind != "sum" or not _narrow(reduce.dtype)):
        return False
    guards = guards_of(reduce)
    if guards is None or any(lane in walk(g) for g in guards):
        return False
    step = reduce.update[0]
    assert isinstance(step, Apply)
    term = step.args[1].then if isinstance(step.args[1], Select) else step.args[1]
    if not dtypes.is_float(reduce.dtype):  # what a sum starts from is added behind it
        return _in_lanes(term, lane, last)
    return _in_lanes(term, lane, last) and _in_lanes(reduce.init[0], lane, last)


def _in_lanes(e: Expr, lane: Iter, last: Last) -> bool:
    if lane not in walk(e):
        return _whole(e.dtype) or _narrow(e.dtype)
    match e:
        case Load():
            dim = beside(e, lane)
            return _whole(e.dtype) and dim is not None and dim == last(e)
        case Apply(op="cast", args=(a,)):
            return _widens(a.dtype, e.dtype) and _in_lanes(a, lane, last)
        case Apply(op="add" | "sub" | "mul", args=args):
            return (_whole(e.dtype) or _narrow(e.dtype)) and all(_in_lanes(a, lane, last) for a in args)
    return False


def _narrow(dtype: str) -> bool:
    """Whether it is an integer with a sign that lanes of 32 bits hold."""
    width = dtypes.int_width(dtype)
    return dtype != "bool" and width is not None and width[0] and 16 < width[1] <= 32


def whole_step(e: Expr, lane: Iter) -> bool:
    """Whether it is one number for all lanes."""
    return not any(n == lane or isinstance(n, Reduce) for n in walk(e))


def in_body(of: Lowering, lane: Iter) -> bool:
    """Whether what follows the reduction is arithmetic on vectors, too, and its results are neighbours in memory."""
    kernel = of.kernel
    if of.nest.layout(of.buffers[kernel.output])[-1] != kernel.iterators.index(lane):
        return False

    def ok(e: Expr) -> bool:
        if isinstance(e, Reduce):
            return True
        if whole_step(e, lane):
            return dtypes.is_float(e.dtype) and _whole(e.dtype)
        match e:
            case Load():
                dim = beside(e, lane)
                return _whole(e.dtype) and dim is not None and dim == of.nest.layout(of.buffers[e.buffer])[-1]
            case Apply(op="add" | "sub" | "mul" | "div" | "max" | "min", args=args):
                return dtypes.is_float(e.dtype) and all(map(ok, args))
        return False

    return _whole(kernel.type.dtype) and ok(kernel.body)


def _whole(dtype: str) -> bool:
    """Whether vectors of it are those of a machine: types that fill their container, and no narrow floats."""
    if dtypes.is_float(dtype):
        return dtype in ("f32", "f64")
    width = dtypes.int_width(dtype)
    return dtype != "bool" and width is not None and width[1] in (8, 16, 32, 64) and not box_bits(dtype)


def _widens(source: str, dtype: str) -> bool:
    bits = [dtypes.record(d).bits for d in (source, dtype)]
    return _whole(source) and (_whole(dtype) or _narrow(dtype)) and bits[0] <= bits[1] and not dtypes.is_float(source)
