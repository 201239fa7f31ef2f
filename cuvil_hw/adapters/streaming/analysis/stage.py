"""What a kernel is in a dataflow design: its loops, what streams in and how, what it multiplies.

classify.py makes stages of kernels, and order.py decides in which order each tensor streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import log, prod

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.exact import (
    Multiplication,
    SharedFactor,
    is_multiplier,
    products,
    shared_factor,
)
from cuvil_hw.adapters.streaming.analysis.moved import Move
from cuvil_hw.adapters.streaming.analysis.operand import Operand, Order
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.adapters.streaming.analysis.tables import Table, tables
from cuvil_hw.expr.nodes import Apply, Expr, Iter
from cuvil_hw.expr.traverse import walk
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


def foldable(extent: int) -> int:
    """To how many channels `extent` are padded, so that lanes don't jump from few to all: no more where no prime factor
    is above 5, else what makes least of the steps between two numbers of lanes and of the work added. A number of lanes
    that a design has room for falls short of the next one by log(step)/2 on average, and meets a step with a
    probability of log(step)/log(extent). Added work counts with its multipliers, weights and cycles, three times."""
    if _steps(extent)[-1] <= 5:
        return extent

    def loss(n: int) -> float:
        return 3 * log(n / extent) + sum(log(s) ** 2 for s in _steps(n)) / (2 * log(n))

    return min(range(extent, extent + extent // 3 + 1), key=loss)


def _steps(extent: int) -> list[int]:
    """Between the numbers of lanes, the largest last."""
    chain = lane_chain(extent)
    return [b // a for a, b in pairwise(chain)] or [1]


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


@dataclass(frozen=True, slots=True)
class Sweep:
    """One loop of an elementwise stage. `channel`: whether its channels lie along it; `moves`: for each stream whether
    it brings other elements from step to step."""

    extent: int
    channel: bool
    moves: tuple[bool, ...]


@dataclass(frozen=True)
class Stage:
    """A kernel with its streaming form.

    `kind`: "dense" (every output channel reads every input channel: conv, linear), "depthwise" (channel by channel:
    depthwise conv, pools), "map" (element by element), "moved" (the same of elements from elsewhere), "border" (all of
    a tensor's channels and more, or fewer) or "buffered".
    `sources`: the buffer behind each stream that it reads; `order`: dimensions of the output as they stream,
    outermost first; `given`: likewise of each source; `lanes`: the iterators of the output along which its channels
    lie, the innermost last; `operands`: how the streams are read, unless they are windows or buffers; `moves`:
    likewise where elements come from elsewhere, of a "moved" stage, which is elementwise, too, or of a dense one of
    so many `groups` of outputs, each of which reads `channels_in` of its own; `rows`: iterators beside the channel
    that index constants of a "moved" stage; the second operand of a dense stage brings its weights. `dims`: the
    window, outermost first; `taps`: reduction iterators in reading order, channel last for "dense"; `pad_value`:
    what cells outside hold; `term`: the update of the state by one element; `ranges`: least and largest element of
    each constant that is known; `multiplier`, `rescale`: what computes the products of the term and all others,
    once chosen; `abreast`: taps of a window that come in one word, once chosen.
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
    order: Order = ()
    lanes: tuple[Iter, ...] = ()
    operands: tuple[Operand, ...] = ()
    moves: tuple[Move, ...] = ()
    rows: tuple[Iter, ...] = ()
    groups: int = 1
    given: tuple[Order, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    multiplier: str = ""
    rescale: str = ""
    abreast: int = 1

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
        lanes = [self.channel] if self.channel is not None else []
        if self.kind == "moved":
            return list(self.lanes), list(self.rows), lanes, list(self.lanes)
        inner = [i for i in (*self.taps, self.channel) if i is not None]
        return list(self.lanes), inner, inner if self.abreast > 1 else lanes, list(self.lanes)

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
        if self.product:
            return None
        return shared_factor(self.term, self.sources, self.loops[0], self.ranges)

    def in_term(self, e: Apply) -> str:
        """What computes a product of the term; "" for one that takes no multiplier."""
        return self.multiplier if is_multiplier(e, self.ranges) else ""

    def elsewhere(self, e: Apply) -> str:
        """Likewise of any other product."""
        return self.rescale if is_multiplier(e, self.ranges) else ""

    @property
    def product(self) -> bool:
        """Whether it is a dense stage of two streams."""
        return self.kind == "dense" and len(self.operands) > 1

    @property
    def plain(self) -> bool:
        """Whether every stream that it reads is a tensor, in its order."""
        return not self.moves and all(o.plain for o in self.operands)

    def sweeps(self, pe: int) -> tuple[Sweep, ...]:
        """The loops of an elementwise stage that makes `pe` elements a step, outermost first."""
        moving = [{n for i in o.load.index for n in walk(i)} for o in self.operands]
        first = len(self.order) - len(self.lanes)
        still = (False,) * len(self.operands)
        found = [Sweep(1, False, still), Sweep(1, True, still)]
        for n, d in enumerate(self.order):
            it = self.kernel.iterators[d]
            extent = it.extent // pe if n == len(self.order) - 1 else it.extent
            sweep = Sweep(
                extent, n >= first, tuple(o.stored or it in m for o, m in zip(self.operands, moving, strict=True))
            )
            if extent > 1:
                found.append(sweep)
        return _joined(found)

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
        return self.kernel.type.shape[self.order[-1]]

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


def _joined(sweeps: Sequence[Sweep]) -> tuple[Sweep, ...]:
    """Fewer loops: those that every stream follows, or doesn't, alike. At least one over positions and one over
    channels."""
    found: list[Sweep] = []
    for channel in (False, True):
        some: list[Sweep] = []
        for sweep in sweeps:
            if sweep.channel != channel:
                continue
            if some and (some[-1].extent == 1 or sweep.moves == some[-1].moves):
                sweep = replace(sweep, extent=sweep.extent * some.pop().extent)
            some.append(sweep)
        found += some
    return tuple(found)
