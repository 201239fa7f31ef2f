"""Which way a kernel runs in a dataflow design, read off its accesses.

A kernel that reads its input through a bounded window, in the order of the stream, streams it; so does one that walks
through its inputs in nested loops (operand.py): elementwise with broadcasts, views, sums of rows, products of two
tensors. Any other kernel first fills a buffer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.border import border
from cuvil_hw.adapters.streaming.analysis.grouped import grouped
from cuvil_hw.adapters.streaming.analysis.guards import split_guard
from cuvil_hw.adapters.streaming.analysis.moved import moved
from cuvil_hw.adapters.streaming.analysis.operand import Loop, Operand, Order, operand
from cuvil_hw.adapters.streaming.analysis.positions import Array, by_position
from cuvil_hw.adapters.streaming.analysis.stage import Stage, WindowDim
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.expr.nodes import Const, Expr, Iter, Load, Lookup, Reduce, Select, affine, const
from cuvil_hw.expr.traverse import rewrite, walk
from cuvil_hw.schedule.kernel import Kernel

Orders = Mapping[str, Order]
MOST_ROWS = 16  # whose sums take turns


def classify(
    kernel: Kernel,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    orders: Orders | None = None,
    constants: ConstantStore | None = None,
    ends: Collection[str] = (),
) -> Stage:
    """The streaming form of a kernel; "buffered" when it has none. `ranges`: as of a Stage; `orders`: in which the
    dimensions of its sources stream, channels last where nothing is said; `constants`: the values of those that it
    reads, which may say where elements lie; `ends`: tensors whose last word may be filled in part."""
    known = {s: (orders or {}).get(s, physical(kernel.operand(s).type.rank)) for s in kernel.sources}
    values = {
        b.name: constants[b.digest].reshape(b.type.shape)
        for b in kernel.operands
        if constants is not None and b.role == "const" and dtypes.is_int(b.type.dtype)
    }
    stage = border(kernel, known, ends) or _classified(kernel, known, values)
    return replace(stage, ranges=ranges or {}, given=tuple(known[s] for s in stage.sources))


def _classified(kernel: Kernel, orders: Orders, constants: Mapping[str, Array]) -> Stage:
    sources = kernel.sources
    last = physical(kernel.type.rank)
    lanes = (kernel.iterators[last[-1]],) if last else ()
    buffered = Stage(kernel, "buffered", sources, 1, prod(i.extent for i in lanes), order=last, lanes=lanes)
    if kernel.type.size == 0 or not sources or any(kernel.operand(s).type.size == 0 for s in sources):
        return buffered
    if any(not by_position(i, sources) for load in kernel.loads() for i in load.index):
        return buffered  # a place computed from what streams in
    if kernel.reduce is not None:
        return next(_reduced(kernel, orders, constants), buffered)
    ways = list(_mapped(kernel, orders))
    lean = [s for s in ways if not _wasteful(s)]
    other = _moved(kernel, orders, constants)
    direct = [other] if other is not None and _wired(other) else []
    stored = any(o.stored for s in lean[:1] for o in s.operands)
    first = [*direct, *lean] if stored else [*lean, *direct]
    return next(iter([*first, *([other] if other is not None else []), *ways]), buffered)


def _wired(stage: Stage) -> bool:
    """Whether what comes from elsewhere comes as whole words over all channels, whose lanes go elsewhere at most."""
    for move, order in zip(stage.moves, stage.given, strict=True):
        wide = stage.kernel.operand(move.load.buffer).type.shape[order[-1]] if order else 1
        at = move.access
        if at is not None and stage.kind == "dense":
            at = at.merged(len(stage.taps), stage.groups)
            if at is None:
                return False
        if at is not None and at.words(wide, at.extents[-1]) is None:
            return False
    return True


def _moved(kernel: Kernel, orders: Orders, constants: Mapping[str, Array]) -> Stage | None:
    """Element by element, of elements that lie elsewhere, in the order of the first source where that has the same
    dimensions."""
    rank = kernel.type.rank
    first = next(iter(orders.values()))
    order = first if len(first) == rank else physical(rank)
    found = moved(kernel, orders, constants, order)
    if found is None or not order:
        return None
    lanes = (kernel.iterators[order[-1]],)
    c = lanes[0].extent
    streams = tuple(m.load.buffer for m in found.moves)
    return Stage(
        replace(kernel, body=found.body), "moved", streams, c, c, order=order, lanes=lanes, moves=found.moves,
        rows=found.rows, given=tuple(orders[s] for s in streams),
    )  # fmt: skip


def _others(*orders: Order) -> Iterator[Order]:
    return iter(dict.fromkeys(orders))


def _only(e: Expr, sources: Sequence[str], *allowed: Iter) -> bool:
    """Whether constants in `e`, outside of the reduction, are indexed by nothing but iterators that are allowed."""
    inside = {id(n) for r in walk(e) if isinstance(r, Reduce) for u in r.update for n in walk(u)}
    for node in walk(e):
        if id(node) in inside:
            continue
        if isinstance(node, Load) and node.buffer not in sources:
            parts = [n for i in node.index for n in walk(i)]
        elif isinstance(node, Lookup):
            parts = list(walk(node.index))
            if any(isinstance(n, Load | Reduce) for n in parts):
                continue  # a table indexed by data
        else:
            continue
        if any(isinstance(n, Iter) and n not in allowed for n in parts):
            return False
    return True


def _uses_position(e: Expr) -> bool:
    """Whether an iterator enters the arithmetic other than through an index."""
    stack, seen = [e], set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.dtype == "index" and not isinstance(node, Const):
            if any(isinstance(n, Iter) for n in walk(node)):
                return True
            continue
        if isinstance(node, Load):
            continue
        if isinstance(node, Lookup) and not any(isinstance(n, Load | Reduce) for n in walk(node.index)):
            continue
        stack.extend(node.children())
    return False


def _mapped(kernel: Kernel, orders: Orders) -> Iterator[Stage]:
    """Element by element: each input in its own order, or read again where it is broadcast, or reordered."""
    loads = [e for e in kernel.loads() if e.buffer in orders]
    if _uses_position(kernel.body):
        return
    first = max(loads, key=lambda e: len(_parallel(e)))
    for order in _out_orders(kernel, first, orders[first.buffer]):
        nest = [kernel.iterators[d] for d in order]
        constant = [i for i in nest if not _only(kernel.body, tuple(orders), *(n for n in nest if n != i))]
        inner = nest[min((nest.index(i) for i in constant), default=len(nest) - 1) :]
        loops = [(i, "lane" if i in inner[-1:] else "outer") for i in nest]
        made = [operand(e, kernel.operand(e.buffer).type, orders[e.buffer], loops) for e in loads]
        operands = tuple(o for o in made if o is not None)
        if len(operands) == len(loads):
            c = prod(i.extent for i in inner)
            sources = tuple(o.buffer for o in operands)
            yield Stage(kernel, "map", sources, c, c, order=order, lanes=tuple(inner), operands=operands)


def _wasteful(stage: Stage) -> bool:
    """Whether constants of an elementwise stage would have to be stored many times."""
    long, sources = [i for i in stage.lanes if i.extent > 1], stage.sources
    return len(long) > 1 and any(_only(stage.kernel.body, sources, *(n for n in long if n != i)) for i in long)


def _parallel(e: Expr) -> set[Iter]:
    return {n for n in walk(e) if isinstance(n, Iter) and n.kind == "parallel" and n.extent > 1}


def _out_orders(kernel: Kernel, load: Load, order: Order) -> Iterator[Order]:
    """Orders of the output, the one first in which `load` is read as it streams."""
    rank = kernel.type.rank
    natural, last = tuple(range(rank)), physical(rank)
    kind = kernel.operand(load.buffer).type
    same = kind.shape == kernel.type.shape and all(
        e == it or it.extent == 1 for e, it in zip(load.index, kernel.iterators, strict=True)
    )
    if same:
        return _others(order, last, natural)
    moving = [kernel.iterators.index(i) for i in _by_distance(kernel, load, order) if i.extent > 1]
    return _others(_with_channel(kernel, moving[:-1], moving[-1:]), last, natural)


def _reduced(kernel: Kernel, orders: Orders, constants: Mapping[str, Array]) -> Iterator[Stage]:
    reduce = kernel.reduce
    assert reduce is not None
    inner = {id(e) for u in reduce.update for e in walk(u)}
    loads = list(dict.fromkeys(e for u in reduce.update for e in walk(u) if isinstance(e, Load) and e.buffer in orders))
    outside = [e for e in walk(kernel.body) if id(e) not in inner and isinstance(e, Load) and e.buffer in orders]
    if len(reduce.update) != 1 or not loads or outside or reduce.kind.startswith("arg"):
        return
    epilogue = rewrite(kernel.body, lambda e: const(0, e.dtype) if e is reduce else None)
    if any(_uses_position(e) for e in (reduce.init[0], epilogue)):
        return
    if len(loads) == 1:
        load, order = loads[0], orders[loads[0].buffer]
        rank = len(order)
        row = _rows(kernel, load, order)
        if row is not None:
            yield row
        ways = (_windowed(kernel, load, order, o) for o in _others(order, physical(rank), tuple(range(rank))))
        found = [s for s in ways if s is not None]
        yield from (s for s in found if s.plain)
        made = _product(kernel, (load,), orders)
        if made is not None and all(not o.stored for o in made.operands):
            yield made
        yield from found
        groups = _grouped(kernel, load, order, constants)
        if groups is not None and (made is None or _wired(groups)):
            yield groups
        if made is not None:
            yield made
    elif len(loads) == 2:
        made = _product(kernel, loads, orders)
        if made is not None:
            yield made


def _grouped(kernel: Kernel, load: Load, given: Order, constants: Mapping[str, Array]) -> Stage | None:
    """Sums of integers over windows whose elements lie elsewhere, or in groups."""
    reduce, order = kernel.reduce, physical(kernel.type.rank)
    assert reduce is not None
    if not order or not given or any(_is_float(e) for e in walk(reduce.update[0])):
        return None
    guards = [e for e in walk(reduce.update[0]) if isinstance(e, Select) and load in set(walk(e.then))]
    term, pad = split_guard(reduce.update[0], load, None, bool(guards))
    lanes = (kernel.iterators[order[-1]],)
    if term is None or not _constants(kernel, term, (load.buffer,), lanes) or _uses_position(term):
        return None
    found = grouped(kernel, load, guards[0].cond if guards else None, given, order, constants)
    if found is None:
        return None
    dims = tuple(WindowDim(t.extent, 1, t.extent) for t in found.taps)
    return Stage(
        kernel, "dense", (load.buffer,), found.channels, lanes[0].extent, dims, found.taps, found.channel, pad, term,
        order, lanes, moves=(found.move,), groups=found.groups, given=(given,),
    )  # fmt: skip


def _constants(kernel: Kernel, term: Expr, sources: Sequence[str], lanes: Sequence[Iter]) -> bool:
    """Whether constants are those of the output's channels, and of taps and inputs within the reduction."""
    reduce = kernel.reduce
    assert reduce is not None
    inner = {id(n) for u in reduce.update for n in walk(u)}
    body = [e for e in walk(kernel.body) if id(e) not in inner and isinstance(e, Load | Lookup)]
    return all(_only(e, sources, *lanes) for e in (reduce.init[0], *body)) and _only(
        term, sources, *lanes, *reduce.iters
    )


def _product(kernel: Kernel, loads: Sequence[Load], orders: Orders) -> Stage | None:
    """Sums of products: a tensor by constants, or two tensors. The first is read in its order as far as possible."""
    reduce = kernel.reduce
    assert reduce is not None
    if reduce.kind != "sum" or any(isinstance(n, Select) for n in walk(reduce.update[0])):
        return None
    if _uses_position(reduce.update[0]) or not reduce.iters:
        return None
    moving = [i for i in kernel.iterators if i.extent > 1]
    across = [[i for i in moving if i not in _parallel(load)] for load in loads]
    ways = [n for n in range(len(loads)) if len(across[n]) <= 1]
    if not ways:
        return None
    x = max(ways, key=lambda n: moving.index(across[n][0]) if across[n] else -1)
    load, lanes = loads[x], tuple(across[x])
    if any(_is_float(e) for e in walk(reduce.update[0])) or not _constants(
        kernel, reduce.update[0], tuple(orders), lanes
    ):
        return None
    outer = [i for i in _by_distance(kernel, load, orders[load.buffer]) if i not in lanes]
    *taps, channel = reduce.iters
    inner = [*((t, "tap") for t in taps), (channel, "in")]
    across_all = [(i, "outer") for i in outer]
    nests = [[*across_all, *inner], [*across_all, *((i, "lane") for i in lanes), *inner]]
    made = [
        operand(e, kernel.operand(e.buffer).type, orders[e.buffer], nests[n], n == 0)
        for n, e in enumerate((load, *(e for e in loads if e is not load)))
    ]
    if any(o is None for o in made):
        return None
    operands = tuple(replace(o, holds=False) for o in made if o is not None)
    if any(not o.stored for o in operands[1:]):
        return None  # each weight once: no product of matrices
    order = tuple(kernel.iterators.index(i) for i in (*outer, *lanes))
    ends = channel.extent, prod(i.extent for i in lanes)
    dims = tuple(WindowDim(t.extent, 1, t.extent) for t in taps)
    return Stage(
        kernel, "dense", tuple(o.buffer for o in operands), *ends, dims, tuple(taps), channel, 0, reduce.update[0],
        order, lanes, operands,
    )  # fmt: skip


def _rows(kernel: Kernel, load: Load, order: Order) -> Stage | None:
    """A reduction of floats along the innermost dimension, many rows at once: their sums take turns, so that none waits
    for its adder. A memory turns rows into columns."""
    reduce = kernel.reduce
    assert reduce is not None
    term = reduce.update[0]
    if len(reduce.iters) != 1 or not any(_is_float(e) for e in walk(term)) or _uses_position(term):
        return None
    (tap,), kind = reduce.iters, kernel.operand(load.buffer).type
    outer = _by_distance(kernel, load, order)
    walked = operand(load, kind, order, [*((i, "outer") for i in outer), (tap, "tap")])
    if walked is None or not walked.plain or walked.loops[-1:] != (Loop(tap.extent, 1, "tap"),):
        return None
    if not _constants(kernel, term, (load.buffer,), ()):
        return None
    rows = kernel.type.size
    side = max(d for d in range(1, min(rows, MOST_ROWS) + 1) if rows % d == 0)
    loops = (Loop(rows // side, side * tap.extent), Loop(tap.extent, 1, "tap"), Loop(side, tap.extent, "lane"))
    if side == 1:
        return None
    return Stage(
        kernel, "depthwise", (load.buffer,), side, side, (WindowDim(tap.extent, 1, tap.extent),), (tap,), None, 0,
        term, tuple(kernel.iterators.index(i) for i in outer), (), (Operand(load, kind.size, loops),),
    )  # fmt: skip


def _by_distance(kernel: Kernel, load: Load, order: Order) -> list[Iter]:
    """The output's iterators as they come where `load` is read as it streams; those of one step before all others."""
    loops = [*kernel.iterators, *kernel.reduction_iters]
    walked = operand(load, kernel.operand(load.buffer).type, order, [(i, i.name) for i in loops])
    far = {x.role: x.stride for x in reversed(walked.loops)} if walked is not None else {}
    return sorted(kernel.iterators, key=lambda i: (i.extent > 1, -far.get(i.name, 0)))


def _is_float(e: Expr) -> bool:
    return dtypes.is_float(e.dtype)


def _windowed(kernel: Kernel, load: Load, given: Order, order: Order) -> Stage | None:
    """A window that moves over a tensor. `given`: the order in which it streams; `order`: in which it is read."""
    reduce, source = kernel.reduce, kernel.operand(load.buffer).type
    assert reduce is not None
    dims, taps, used = [], [], []
    for d in order[:-1]:
        form = _window_dim(load.index[d], source.shape[d])
        if form is None:
            return None
        dim, out_iter, tap = form
        if out_iter is not None:
            used.append(out_iter)
        dims.append(dim)
        taps.append(tap)
    rest = [i for i in kernel.iterators if i.extent > 1 and i not in used]
    if len(rest) > 1 or len(set(used)) != len(used):
        return None
    dimension = kernel.iterators.index
    out_order = _with_channel(kernel, [dimension(i) for i in used if i.extent > 1], [dimension(i) for i in rest])
    lanes = rest if rest or not out_order else [kernel.iterators[out_order[-1]]]
    if not rest and lanes and lanes[0].extent > 1:
        lanes = []
    out_channel = lanes[0] if lanes else None
    channel = load.index[order[-1]] if source.rank else None
    c = source.shape[order[-1]] if source.rank else 1
    kind, channel_iter = _channel_kind(channel, c, reduce, out_channel)
    seen = [t for t in (*taps, channel_iter) if t is not None]
    if kind is None or set(seen) != set(reduce.iters) or len(set(seen)) != len(seen):
        return None
    term, pad = split_guard(reduce.update[0], load, source, any(_leaves(d) for d in dims))
    if term is None or not _constants(kernel, term, (load.buffer,), lanes) or _uses_position(term):
        return None
    if sum(not d.unit for d in dims) > 2:
        return None
    operands: tuple[Operand, ...] = ()
    if [d for d in order if source.shape[d] > 1] != [d for d in given if source.shape[d] > 1]:
        strides, step = {}, 1
        for d in reversed(given):
            strides[d], step = step, step * source.shape[d]
        role = "in" if kind == "dense" else "lane"
        loops = [Loop(source.shape[d], strides[d], role if d == order[-1] else "outer") for d in order]
        operands = (Operand(load, source.size, tuple(x for x in loops if x.extent > 1)),)
    ends = c, prod(i.extent for i in lanes)
    return Stage(
        kernel, kind, (load.buffer,), *ends, tuple(dims), tuple(taps), channel_iter, pad, term, out_order,
        tuple(lanes), operands,
    )  # fmt: skip


def _with_channel(kernel: Kernel, used: Sequence[int], rest: Sequence[int]) -> Order:
    """An order of the output's dimensions in which those that have more than one element come as `used`, then `rest`,
    its channel."""
    shape, wanted = kernel.type.shape, [*used, *rest]
    for known in _others(physical(len(shape)), tuple(range(len(shape)))):
        if [d for d in known if shape[d] > 1] == wanted and (not rest or known[-1] == wanted[-1]):
            return known
    return (*(d for d in range(len(shape)) if shape[d] == 1), *wanted)


def _leaves(d: WindowDim) -> bool:
    return d.pad > 0 or (d.out - 1) * d.stride - d.pad + d.span > d.size


def _window_dim(e: Expr, size: int) -> tuple[WindowDim, Iter | None, Iter | None] | None:
    """`e` = stride·out + dilation·tap - pad, or None."""
    terms, c = affine(e)
    out_iter = tap = None
    stride = dilation = 1
    for atom, k in terms.items():
        if not isinstance(atom, Iter) or k < 1:
            return None
        if atom.kind == "parallel" and out_iter is None:
            out_iter, stride = atom, k
        elif atom.kind == "reduction" and tap is None:
            tap, dilation = atom, k
        else:
            return None
    if c > 0:
        return None
    dim = WindowDim(size, out_iter.extent if out_iter else 1, tap.extent if tap else 1, stride, dilation, -c)
    return dim, out_iter, tap


def _channel_kind(e: Expr | None, c: int, reduce: Reduce, out_channel: Iter | None) -> tuple[str | None, Iter | None]:
    if isinstance(e, Iter) and e.kind == "reduction" and e.extent == c:
        return "dense", e
    if isinstance(e, Iter) and e == out_channel and e.extent == c:
        return "depthwise", None
    if c == 1 and (e is None or (isinstance(e, Const) and e.value == 0)):
        single = out_channel is None or out_channel.extent == 1
        return ("depthwise" if single and reduce.kind != "sum" else "dense"), None
    return None, None
