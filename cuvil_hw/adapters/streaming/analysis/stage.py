"""Which way a kernel runs in a dataflow design, read off its accesses.

The one rule of spatial FPGA lowering: a kernel that reads its input in raster order through a bounded window streams
it; any other kernel first fills a buffer. Raster order is channels last: (N, spatial…, C).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.exact import (
    Multiplication,
    SharedFactor,
    is_multiplier,
    products,
    shared_factor,
)
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.adapters.streaming.analysis.tables import Table, tables
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Lookup, Reduce, Select, State, affine, const
from cuvil_hw.expr.traverse import rewrite, walk
from cuvil_hw.ops.base import Op
from cuvil_hw.schedule.kernel import Kernel
from cuvil_hw.types import TensorType


def channels(type: TensorType) -> int:
    """Extent of the innermost streamed dimension."""
    return type.shape[physical(type.rank)[-1]] if type.rank else 1


def lane_chain(extent: int) -> tuple[int, ...]:
    """Legal numbers of lanes for `extent` channels: divisors that divide one another, so that widths always convert."""
    chain, rest = [1], extent
    factor = 2
    while rest > 1:
        while rest % factor == 0:
            chain.append(chain[-1] * factor)
            rest //= factor
        factor += 1 if factor == 2 else 2
        if factor * factor > rest > 1:
            chain.append(chain[-1] * rest)
            break
    return tuple(chain)


def refusal(op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], target: str) -> str | None:
    """Why a streaming design can't run `op` on such tensors; None when it can."""
    for kind in (*inputs, *outputs):
        if dtypes.is_float(kind.dtype) and kind.dtype != "f32":
            return f"{op.mnemonic} works on {kind.dtype}; of floats the fabric of {target} computes f32 only"
    if any(t.size == 0 for t in (*inputs, *outputs)):
        return f"{op.mnemonic} has a tensor without elements; a stream can't carry it"
    return None


@dataclass(frozen=True, slots=True)
class WindowDim:
    """One non-channel dimension under a window, in elements."""

    size: int
    out: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    @property
    def span(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    @property
    def unit(self) -> bool:
        """Whether nothing moves along it: one element in, one out."""
        return self.size == self.out == self.kernel == 1 and not self.pad


@dataclass(frozen=True)
class Stage:
    """A kernel with its streaming form.

    `kind`: "dense" (every output channel reads every input channel: conv, linear), "depthwise" (channel by channel:
    depthwise conv, pools), "map" (element by element) or "buffered". `dims`: the window, outermost first; `taps`:
    reduction iterators in reading order, channel last for "dense"; `pad_value`: what cells outside hold; `term`:
    the update of the state by one element; `ranges`: least and largest element of each constant that is known;
    `multiplier`, `rescale`: what computes the products of the term and all others, once chosen.
    """

    kernel: Kernel
    kind: str
    sources: tuple[str, ...]
    channels_in: int
    channels_out: int
    dims: tuple[WindowDim, ...] = ()
    taps: tuple[Iter | None, ...] = ()
    channel: Iter | None = None
    pad_value: int | float = 0
    term: Expr | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    multiplier: str = ""
    rescale: str = ""

    @property
    def pixels(self) -> int:
        """Positions of the output, channels apart."""
        return self.kernel.type.size // max(self.channels_out, 1)

    @cached_property
    def epilogue(self) -> tuple[Expr, ...]:
        """Nodes of the body outside the reduction."""
        reduce = self.kernel.reduce
        inner = {id(n) for u in (reduce.update if reduce else ()) for n in walk(u)}
        return tuple(n for n in walk(self.kernel.body) if id(n) not in inner)

    @cached_property
    def loops(self) -> tuple[list[Iter], ...]:
        """The iterators behind each axis of a table: fold of outputs, fold of inputs, input lane, output lane."""
        k = self.kernel
        outputs = [k.iterators[physical(k.type.rank)[-1]]] if k.type.rank else []
        lanes = [self.channel] if self.channel is not None else []
        return outputs, [i for i in (*self.taps, self.channel) if i is not None], lanes, outputs

    @cached_property
    def weights(self) -> tuple[Table, ...]:
        """The constants that the term reads."""
        return tables(() if self.term is None else walk(self.term), self.sources, self.loops, self.ranges)

    @cached_property
    def parameters(self) -> tuple[Table, ...]:
        """All other constants: where sums start, and what the epilogue reads."""
        reduce = self.kernel.reduce
        nodes = (*self.epilogue, *(n for e in (reduce.init if reduce else ()) for n in walk(e)))
        known = {t.leaf for t in self.weights}
        return tuple(t for t in tables(nodes, self.sources, self.loops, self.ranges) if t.leaf not in known)

    @cached_property
    def products(self) -> tuple[tuple[Multiplication, ...], tuple[Multiplication, ...]]:
        """The integer multipliers of the term, and all others."""
        if self.kind == "buffered":
            return (), products(walk(self.kernel.body), self.ranges)
        term = () if self.term is None else walk(self.term)
        return products(term, self.ranges), products(self.epilogue, self.ranges)

    @cached_property
    def pair(self) -> SharedFactor | None:
        """The product that two outputs of a dense stage may make in one multiplier."""
        reduce = self.kernel.reduce
        if self.kind != "dense" or self.ordered or self.term is None or reduce is None or reduce.kind != "sum":
            return None
        return shared_factor(self.term, self.sources, self.loops[0], self.ranges)

    def in_term(self, e: Apply) -> str:
        """What computes a product of the term; "" for one that takes no multiplier."""
        return self.multiplier if is_multiplier(e, self.ranges) else ""

    def elsewhere(self, e: Apply) -> str:
        """Likewise of any other product."""
        return self.rescale if is_multiplier(e, self.ranges) else ""

    @cached_property
    def floats(self) -> bool:
        """Whether the reduction computes with floats."""
        reduce = self.kernel.reduce
        return reduce is not None and any(dtypes.is_float(n.dtype) for u in reduce.update for n in walk(u))

    @property
    def ordered(self) -> bool:
        """Whether it is a dense stage on floats, whose sums can't be split: every output has a running value, and the
        loop over the outputs is the inner one, so that a sum may take as many cycles as there are outputs."""
        return self.kind == "dense" and self.floats

    @property
    def side_by_side(self) -> int:
        """Outputs of a buffered stage whose reductions take turns: floats along the innermost streamed dimension."""
        if self.kind != "buffered" or not self.floats or not self.kernel.type.rank:
            return 1
        return channels(self.kernel.type)

    @property
    def tap_count(self) -> int:
        return prod(d.kernel for d in self.dims)

    @property
    def reordered(self) -> bool:
        """Whether a window generator is needed: False when the windows are the input in its own order."""
        full = False
        for d in self.dims:
            whole = d.kernel == d.size and d.out == 1 and d.pad == 0 and d.dilation == 1
            single = d.kernel == 1 and d.stride == 1 and d.pad == 0 and d.out == d.size
            if not (whole or single) or (full and not whole):
                return True
            full = full or d.kernel > 1
        return False


def classify(kernel: Kernel, ranges: Mapping[str, tuple[int, int]] | None = None) -> Stage:
    """The streaming form of a kernel; "buffered" when it has none. `ranges`: as of a Stage."""
    return replace(_classified(kernel), ranges=ranges or {})


def _classified(kernel: Kernel) -> Stage:
    sources = kernel.sources
    out_channels = channels(kernel.type)
    buffered = Stage(kernel, "buffered", sources, 1, out_channels)
    if kernel.type.size == 0 or not sources or any(kernel.operand(s).type.size == 0 for s in sources):
        return buffered
    if any(_by_data(load) for load in kernel.loads()):
        return buffered
    if kernel.reduce is None:
        return _map(kernel, sources) or buffered
    return _windowed(kernel, sources) or buffered


def _by_data(load: Load) -> bool:
    """Whether the place is computed from what streams in, so that neither a window nor a fold of constants says it."""
    return any(isinstance(n, Load | Reduce | State) for i in load.index for n in walk(i))


def _is(e: Expr, it: Iter) -> bool:
    return e == it or (it.extent == 1 and isinstance(e, Const) and e.value == 0)


def _channel_iter(kernel: Kernel) -> Iter | None:
    rank = kernel.type.rank
    return kernel.iterators[physical(rank)[-1]] if rank else None


def _only_channel(e: Expr, kernel: Kernel, sources: Sequence[str], *more: Iter) -> bool:
    """Whether constants in `e`, outside of the reduction, are indexed by nothing but the output channel, and `more`
    iterators."""
    allowed = {_channel_iter(kernel), *more}
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


def _map(kernel: Kernel, sources: tuple[str, ...]) -> Stage | None:
    for load in kernel.loads():
        if load.buffer in sources:
            same = kernel.operand(load.buffer).type.shape == kernel.type.shape
            if not same or not all(_is(e, it) for e, it in zip(load.index, kernel.iterators, strict=True)):
                return None
    if not _only_channel(kernel.body, kernel, sources) or _uses_position(kernel.body):
        return None
    c = channels(kernel.type)
    return Stage(kernel, "map", sources, c, c)


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


def _windowed(kernel: Kernel, sources: tuple[str, ...]) -> Stage | None:
    reduce = kernel.reduce
    assert reduce is not None
    inner = [e for u in reduce.update for e in walk(u)]
    loads = list(dict.fromkeys(e for e in inner if isinstance(e, Load) and e.buffer in sources))
    outer_loads = [e for e in kernel.loads() if e.buffer in sources and e not in loads]
    if len(reduce.update) != 1 or len(loads) != 1 or outer_loads or len(sources) != 1:
        return None
    load, source = loads[0], kernel.operand(sources[0]).type
    order = physical(source.rank)
    out_order = physical(kernel.type.rank)
    out_channel = _channel_iter(kernel)
    out_dims = [kernel.iterators[d] for d in out_order[:-1] if kernel.iterators[d].extent > 1]
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
    if used != out_dims:
        return None
    channel = load.index[order[-1]] if source.rank else None
    kind, channel_iter = _channel_kind(channel, source, reduce, out_channel)
    seen = [t for t in (*taps, channel_iter) if t is not None]
    if kind is None or set(seen) != set(reduce.iters) or len(set(seen)) != len(seen):
        return None
    term, pad = _split_guard(reduce.update[0], load, source, any(_leaves(d) for d in dims))
    body = [e for e in walk(kernel.body) if not any(e is n for n in inner)]
    if term is None or not all(_only_channel(e, kernel, sources) for e in (reduce.init[0], *_outside(body))):
        return None
    if not _only_channel(term, kernel, sources, *reduce.iters):
        return None
    epilogue = rewrite(kernel.body, lambda e: const(0, e.dtype) if e is reduce else None)
    if any(_uses_position(e) for e in (reduce.init[0], term, epilogue)):
        return None
    if not reduce.kind.startswith("arg") and sum(not d.unit for d in dims) <= 2:
        ends = channels(source), channels(kernel.type)
        return Stage(kernel, kind, sources, *ends, tuple(dims), tuple(taps), channel_iter, pad, term)
    return None


def _outside(nodes: Sequence[Expr]) -> list[Expr]:
    return [e for e in nodes if isinstance(e, Load | Lookup)]


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


def _channel_kind(
    e: Expr | None, source: TensorType, reduce: Reduce, out_channel: Iter | None
) -> tuple[str | None, Iter | None]:
    c = channels(source)
    if isinstance(e, Iter) and e.kind == "reduction" and e.extent == c:
        return "dense", e
    if isinstance(e, Iter) and e == out_channel and e.extent == c:
        return "depthwise", None
    if c == 1 and (e is None or (isinstance(e, Const) and e.value == 0)):
        single = out_channel is None or out_channel.extent == 1
        return ("depthwise" if single and reduce.kind != "sum" else "dense"), None
    return None, None


def _bounds_only(cond: Expr, load: Load, source: TensorType) -> bool:
    """Whether `cond` says nothing but that the load lies inside its buffer."""
    match cond:
        case Apply(op="and", args=(a, b)):
            return _bounds_only(a, load, source) and _bounds_only(b, load, source)
        case Apply(op="ge", args=(i, Const(value=0))):
            return i in load.index
        case Apply(op="lt", args=(i, Const(value=end))):
            return any(i == at and end == size for at, size in zip(load.index, source.shape, strict=True))
    return False


def _split_guard(update: Expr, load: Load, source: TensorType, leaves: bool) -> tuple[Expr | None, int | float]:
    """The update without its guard, and the value outside the input that has the same effect as the guard."""
    guards = [e for e in walk(update) if isinstance(e, Select) and any(n is load or n == load for n in walk(e.then))]
    guards = [g for g in guards if not any(n == load for n in walk(g.cond))]
    if not guards:
        return (None, 0) if leaves else (update, 0)
    guard = guards[0]
    if not isinstance(guard.other, Const) or not _bounds_only(guard.cond, load, source):
        return None, 0
    value = _neutral(guard.then, load, guard.other.value)
    if value is None and leaves:
        return None, 0
    return rewrite(update, lambda e: guard.then if e is guard else None), value or 0


def _neutral(e: Expr, load: Load, wanted: float | int | bool) -> int | float | None:
    """A value of `load` for which `e` is `wanted`, whatever the constants are."""
    if e == load:
        return wanted
    match e:
        case Apply(op="cast", args=(a,)):
            return _neutral(a, load, wanted)
        case Apply(op="sub", args=(a, Const(value=c))):
            return _neutral(a, load, wanted + c)
        case Apply(op="mul", args=(a, b)) if wanted == 0:
            return _neutral(a, load, 0) if any(n == load for n in walk(a)) else _neutral(b, load, 0)
    return None
