"""A stage: the part of an operand that a tile reads, copied beside it before the sums begin.

What lies outside the operand becomes zero in the copy, so that sums need no conditions on padding; narrow integers
become wider there once, less their zero point, instead of at every product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from cuvil_hw.adapters.sequential.nest import Layout
from cuvil_hw.adapters.sequential.product import Factor, Product
from cuvil_hw.expr.guarded import ranges_of, split, within
from cuvil_hw.expr.nodes import Const, Expr, Iter, Load, affine, bounds, index
from cuvil_hw.expr.traverse import walk
from cuvil_hw.lower.emit import Emitter, Env


@dataclass(frozen=True, slots=True)
class OperandStage:
    """A copy of the elements that `load` reads while the iterators `inside` run.

    Attributes:
        index, shape: the coordinates of an element and their extents: those of the buffer, or of the view that the
            product's conditions speak of, as a convolution's behind a reshape.
        place: of each dimension of the buffer, which coordinates it is the sum of, each times a number.
        order: physical order of the coordinates in the copy.
        dtype: of its elements. `zero`: what is subtracted from them.
        even: the iterator that runs by twos, so that its extent is rounded up to an even one; "" for none.
    """

    load: Load
    inside: tuple[Iter, ...]
    index: tuple[Expr, ...]
    shape: tuple[int, ...]
    place: tuple[tuple[tuple[int, int], ...], ...]
    order: Layout
    dtype: str
    zero: int = 0
    even: str = ""

    def sizes(self, extents: Mapping[str, int]) -> list[tuple[int, int]]:
        """First value, beside what outer iterators add, and extent of each coordinate; `extents` of iterators that run
        only so far."""
        found = []
        for i in self.index:
            terms, low = affine(i)
            high = low
            for it, k in terms.items():
                if it in self.inside:
                    assert isinstance(it, Iter)
                    extent = extents.get(it.name, it.extent)
                    span = k * (extent - 1 + (it.name == self.even) * (extent % 2))
                    low, high = low + min(span, 0), high + max(span, 0)
            found.append((low, high - low + 1))
        return found

    def elements(self, extents: Mapping[str, int]) -> int:
        return prod(size for _, size in self.sizes(extents))

    def at(self, renamed: Mapping[str, str]) -> list[Expr]:
        """The index in the copy, in physical order; iterators in `renamed` count from the copy's start under their new
        name."""
        exprs = []
        for d in self.order:
            total: Expr = index(0)
            for it, k in affine(self.index[d])[0].items():
                if it in self.inside:
                    assert isinstance(it, Iter)
                    own = Iter(it.dtype, renamed.get(it.name, it.name), it.extent, it.kind)
                    total = total + own * k + (-min(k * (it.extent - 1), 0))
            exprs.append(total)
        return exprs

    def copy(
        self,
        e: Emitter,
        env: Env,
        sizes: Sequence[tuple[int, int]],
        band: Iter | None,
        value: Callable[[Sequence[SSAValue]], SSAValue],
        store: Callable[[SSAValue, Sequence[SSAValue]], None],
    ) -> None:
        """Fill the copy. `band`: the iterator of which the copy holds some values, from the one in `env` on; `value`:
        an element by the buffer's index; `store`: by the copy's."""
        nothing = e.const(0.0 if self.dtype.startswith("f") else 0, self.dtype)

        def zeros(level: int, at: tuple[SSAValue, ...]) -> None:
            if level == len(self.order):
                store(nothing, at)
                return
            e.loop(sizes[self.order[level]][1], "s", lambda i, _: zeros(level + 1, (*at, i)))

        def descend(level: int, at: tuple[SSAValue, ...], source: Mapping[int, SSAValue]) -> None:
            if level == len(self.order):
                store(value([self._sum(e, terms, source) for terms in self.place]), at)
                return
            d = self.order[level]
            low, size = sizes[d]
            moving = [(it, k) for it, k in affine(self.index[d])[0].items() if it not in self.inside or it == band]
            base: Expr = index(low)
            for it, k in moving:
                base = base + it * k

            def filled(i: SSAValue, _: object) -> None:
                here = i if isinstance(base, Const) and base.value == 0 else e.put(arith.AddiOp(e.value(base, env), i))

                def inner() -> None:
                    descend(level + 1, (*at, i), {**source, d: here})

                least, most = bounds(base)
                wrong = [("ge", 0)] * (least < 0) + [("lt", self.shape[d])] * (most + size > self.shape[d])
                if not moving or not wrong:
                    inner()
                    return
                cond, *more = (e.compare(op, here, e.const(n, "index")) for op, n in wrong)
                for other in more:
                    cond = e.put(arith.AndIOp(cond, other))
                e.branch(cond, inner, lambda: zeros(level + 1, (*at, i)))

            begin, end = (0, size) if moving else (min(max(0, -low), size), max(min(size, self.shape[d] - low), 0))
            empty = lambda i, _: zeros(level + 1, (*at, i))  # noqa: E731
            for first, last, body in ((0, begin, empty), (begin, end, filled), (max(begin, end), size, empty)):
                if last > first:
                    e.loop(last, "s", body, start=first)

        descend(0, (), {})

    def _sum(self, e: Emitter, terms: Sequence[tuple[int, int]], source: Mapping[int, SSAValue]) -> SSAValue:
        total: SSAValue | None = None
        for d, factor in terms:
            part = source[d] if factor == 1 else e.put(arith.MuliOp(source[d], e.const(factor, "index")))
            total = part if total is None else e.put(arith.AddiOp(total, part))
        assert total is not None
        return total


def stage_of(product: Product, factor: Factor, inside: Sequence[Iter], shape: Sequence[int]) -> OperandStage | None:
    """The copy of a factor that is one load, under which no guard of the product is needed; None where it isn't one, or
    guards say something else than that coordinates of a buffer of this `shape`, or of a view of it, lie inside."""
    load = factor.bytes.load if factor.bytes is not None else factor.value
    if not isinstance(load, Load) or not load.index or not product.reduce.iters:
        return None
    view = _view(product, load, shape)
    if view is None or not all(isinstance(it, Iter) for i in view.index for it in affine(i)[0]):
        return None
    inner = product.reduce.iters[-1]
    along = [d for d, i in enumerate(view.index) if inner in walk(i)]
    if len(along) != 1:
        return None
    order = (*(d for d in range(len(view.index)) if d != along[0]), along[0])
    plain = OperandStage(load, tuple(inside), view.index, view.shape, view.place, order, load.dtype)
    if factor.bytes is None:
        return plain
    even = affine(view.index[along[0]])[0].get(inner) == 1
    return replace(plain, dtype="i16", zero=factor.bytes.zero, even=inner.name) if even else None


@dataclass(frozen=True, slots=True)
class _View:
    """Of OperandStage."""

    index: tuple[Expr, ...]
    shape: tuple[int, ...]
    place: tuple[tuple[tuple[int, int], ...], ...]


def _view(product: Product, load: Load, shape: Sequence[int]) -> _View | None:
    """Coordinates such that the guards say that some of them lie inside, and nothing else."""
    ranges = ranges_of(product.guards)
    plain = all(ranges_of([g]) for g in product.guards)
    if not plain or any(low != max(0, bounds(g)[0]) for g, (low, _) in ranges.items()):
        return None
    found: list[tuple[Expr, int]] = []
    places = []
    for i, extent in zip(load.index, shape, strict=True):
        parts, rest = ([(i, 1)], index(0)) if i in ranges else split(i, list(ranges))
        ends = [within(i, ranges)] * bool(parts)
        if not parts or rest != index(0):
            ends += [bounds(rest)] * bool(parts)
            parts.append((rest, 1))
        if any(low < 0 or high >= extent for low, high in ends):
            return None
        places.append(tuple((len(found) + n, factor) for n, (_, factor) in enumerate(parts)))
        found += [(part, ranges[part][1] + 1 if part in ranges else extent) for part, _ in parts]
    coordinates = [part for part, _ in found]
    if any(coordinates.count(g) != 1 for g in ranges):
        return None
    return _View(tuple(coordinates), tuple(extent for _, extent in found), tuple(places))
