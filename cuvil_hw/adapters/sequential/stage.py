"""A stage: the part of an operand that a tile reads, copied beside it before the sums begin.

What lies outside the operand becomes zero in the copy, so that sums need no conditions on padding; narrow integers
become wider there once, less their zero point, instead of at every product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from cuvil_hw.adapters.sequential.nest import Layout
from cuvil_hw.adapters.sequential.product import Factor, Product
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, affine, bounds, index
from cuvil_hw.expr.traverse import walk
from cuvil_hw.lower.emit import Emitter, Env


@dataclass(frozen=True, slots=True)
class OperandStage:
    """A copy of the elements that `load` reads while the iterators `inside` run.

    Attributes:
        order: physical order of the dimensions in the copy.
        dtype: of its elements. `zero`: what is subtracted from them.
        even: the iterator that runs by twos, so that its extent is rounded up to an even one; "" for none.
    """

    load: Load
    inside: tuple[Iter, ...]
    order: Layout
    dtype: str
    zero: int = 0
    even: str = ""

    def sizes(self, extents: Mapping[str, int]) -> list[tuple[int, int]]:
        """First coordinate, beside what outer iterators add, and extent of each dimension of the operand; `extents` of
        iterators that run only so far."""
        found = []
        for i in self.load.index:
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
            for it, k in affine(self.load.index[d])[0].items():
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
        shape: Sequence[int],
        band: Iter | None,
        value: Callable[[Sequence[SSAValue]], SSAValue],
        store: Callable[[SSAValue, Sequence[SSAValue]], None],
    ) -> None:
        """Fill the copy. `shape`: of the operand; `band`: the iterator of which the copy holds some values, from the
        one in `env` on; `value`: an element by the operand's index; `store`: by the copy's."""
        nothing = e.const(0.0 if self.dtype.startswith("f") else 0, self.dtype)

        def zeros(level: int, at: tuple[SSAValue, ...]) -> None:
            if level == len(self.order):
                store(nothing, at)
                return
            e.loop(sizes[self.order[level]][1], "s", lambda i, _: zeros(level + 1, (*at, i)))

        def descend(level: int, at: tuple[SSAValue, ...], source: Mapping[int, SSAValue]) -> None:
            if level == len(self.order):
                store(value([source[d] for d in range(len(self.order))]), at)
                return
            d = self.order[level]
            low, size = sizes[d]
            moving = [(it, k) for it, k in affine(self.load.index[d])[0].items() if it not in self.inside or it == band]
            base: Expr = index(low)
            for it, k in moving:
                base = base + it * k

            def filled(i: SSAValue, _: object) -> None:
                here = i if isinstance(base, Const) and base.value == 0 else e.put(arith.AddiOp(e.value(base, env), i))

                def inner() -> None:
                    descend(level + 1, (*at, i), {**source, d: here})

                least, most = bounds(base)
                wrong = [("ge", 0)] * (least < 0) + [("lt", shape[d])] * (most + size > shape[d])
                if not moving or not wrong:
                    inner()
                    return
                cond, *more = (e.compare(op, here, e.const(n, "index")) for op, n in wrong)
                for other in more:
                    cond = e.put(arith.AndIOp(cond, other))
                e.branch(cond, inner, lambda: zeros(level + 1, (*at, i)))

            begin, end = (0, size) if moving else (min(max(0, -low), size), max(min(size, shape[d] - low), 0))
            empty = lambda i, _: zeros(level + 1, (*at, i))  # noqa: E731
            for first, last, body in ((0, begin, empty), (begin, end, filled), (max(begin, end), size, empty)):
                if last > first:
                    e.loop(last, "s", body, start=first)

        descend(0, (), {})


def stage_of(product: Product, factor: Factor, inside: Sequence[Iter], shape: Sequence[int]) -> OperandStage | None:
    """The copy of a factor that is one load, under which no guard of the product is needed; None where it isn't one, or
    guards say something else than that its index lies inside `shape`."""
    load = factor.bytes.load if factor.bytes is not None else factor.value
    if not isinstance(load, Load) or not load.index or not product.reduce.iters:
        return None
    for i in load.index:
        if not all(isinstance(it, Iter) for it in affine(i)[0]):
            return None
    if not all(_about(guard, load, shape) for guard in product.guards):
        return None
    inner = product.reduce.iters[-1]
    along = [d for d, i in enumerate(load.index) if inner in walk(i)]
    if len(along) != 1:
        return None
    order = (*(d for d in range(len(load.index)) if d != along[0]), along[0])
    if factor.bytes is None:
        return OperandStage(load, tuple(inside), order, load.dtype)
    even = load.index[along[0]] == inner or affine(load.index[along[0]])[0].get(inner) == 1
    return OperandStage(load, tuple(inside), order, "i16", factor.bytes.zero, inner.name) if even else None


def _about(guard: Expr, load: Load, shape: Sequence[int]) -> bool:
    """Whether a guard says that an index of the load is not below or not beyond the operand."""
    if not (isinstance(guard, Apply) and isinstance(guard.args[1], Const)):
        return False
    limit = int(guard.args[1].value)
    ends = [(guard.op == "ge" and limit == 0) or (guard.op == "lt" and limit == n) for n in shape]
    return any(ok and guard.args[0] == i for ok, i in zip(ends, load.index, strict=True))
