"""Sums of products, seen once for all targets that run kernels one after another: what is multiplied, whether four
steps are one 8-bit dot product, and which matrix products they are, the form that tiles need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from cuvil_hw import dtypes
from cuvil_hw.expr.guarded import conjuncts
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Reduce, Select, State, affine
from cuvil_hw.expr.traverse import walk
from cuvil_hw.schedule.kernel import Kernel

BYTE = (-128, 127)


@dataclass(frozen=True, slots=True)
class Bytes:
    """A factor (load - zero) whose loaded value less `offset` fits a signed byte: value = byte - (zero - offset)."""

    load: Load
    zero: int
    offset: int

    @property
    def byte_zero(self) -> int:
        return self.zero - self.offset


@dataclass(frozen=True, slots=True)
class Factor:
    """One side of the products that a kernel sums.

    Attributes:
        iters: the parallel iterators that it depends on.
        batched: it differs between samples.
        bytes: set where it is a byte with a zero point.
    """

    value: Expr
    iters: frozenset[Iter]
    batched: bool
    bytes: Bytes | None


@dataclass(frozen=True, slots=True)
class Product:
    """init + Σ over `reduce.iters` of (guards ? left · right : 0). Guards depend on iterators of `left` and of the
    reduction only."""

    reduce: Reduce
    guards: tuple[Expr, ...]
    left: Factor
    right: Factor

    def sides(self, lane: Iter) -> tuple[Factor, Factor]:
        """The factor that depends on `lane`, and the other one; if both or none do, either."""
        return (self.left, self.right) if lane in self.left.iters else (self.right, self.left)


@dataclass(frozen=True, slots=True)
class Side:
    """Rows or columns of the output: `iters` flattened (last fastest), after the samples where `sampled`."""

    factor: Factor
    iters: tuple[Iter, ...]
    sampled: bool

    @property
    def extent(self) -> int:
        """For one sample."""
        return prod(i.extent for i in self.iters)


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """The product as a batch of matrix products. `batch`: iterators that both factors, or none, depend on; `sampled`:
    the samples are part of the batch."""

    product: Product
    rows: Side
    columns: Side
    batch: tuple[Iter, ...]
    sampled: bool

    @property
    def steps(self) -> int:
        return prod(i.extent for i in self.product.reduce.iters)


def product_of(kernel: Kernel) -> Product | None:
    """The kernel's reduction as a sum of products; None when it is none."""
    reduce = kernel.reduce
    if reduce is None or reduce.kind != "sum" or len(reduce.update) != 1:
        return None
    update = reduce.update[0]
    if not (isinstance(update, Apply) and update.op == "add" and isinstance(update.args[0], State)):
        return None
    term, guards = update.args[1], []
    if isinstance(term, Select) and isinstance(term.other, Const) and term.other.value == 0:
        guards, term = conjuncts(term.cond), term.then
    if not (isinstance(term, Apply) and term.op == "mul"):
        return None
    parallel = frozenset(kernel.iterators)
    left, right = (_factor(f, kernel, parallel) for f in term.args)
    needed = frozenset(_iters(guards)) & parallel
    if not needed <= left.iters:
        left, right = right, left
    return Product(reduce, tuple(guards), left, right) if needed <= left.iters else None


def _iters(exprs: Iterable[Expr]) -> set[Iter]:
    return {e for x in exprs for e in walk(x) if isinstance(e, Iter)}


def _factor(value: Expr, kernel: Kernel, parallel: frozenset[Iter]) -> Factor:
    loads = [e for e in walk(value) if isinstance(e, Load)]
    batched = any(kernel.operand(load.buffer).role != "const" for load in loads)
    return Factor(value, frozenset(_iters([value])) & parallel, batched, _bytes(value))


def _bytes(value: Expr) -> Bytes | None:
    """`cast(load)` or `cast(load) - zero` of an integer type of at most 8 bits, in an accumulator of at most 32."""
    zero = 0
    width = dtypes.int_width(value.dtype)
    if width is None or width[1] > 32 or width[1] <= 8:
        return None
    if isinstance(value, Apply) and value.op == "sub" and isinstance(value.args[1], Const):
        zero = int(value.args[1].value)
        value = value.args[0]
    load = value.args[0] if isinstance(value, Apply) and value.op == "cast" else None
    if not isinstance(load, Load):
        return None
    width = dtypes.int_width(load.dtype)
    if load.dtype == "bool" or width is None or not 1 < width[1] <= 8:
        return None
    offset = 128 if dtypes.int_range(load.dtype)[1] > BYTE[1] else 0
    made = Bytes(load, zero, offset)
    return made if BYTE[0] <= made.byte_zero <= BYTE[1] else None


def matrix_product(kernel: Kernel, product: Product) -> MatrixProduct | None:
    """The kernel, a sum of products, as matrix products; None when there is nothing to add up."""
    if any(i.extent == 0 for i in (*kernel.iterators, *product.reduce.iters)):
        return None
    left, right = product.left, product.right
    several = [i for i in kernel.iterators if i.extent > 1]

    def only(a: Factor, b: Factor) -> Side:
        return Side(a, tuple(i for i in several if i in a.iters - b.iters), a.batched and not b.batched)

    rows, columns = only(left, right), only(right, left)
    both = tuple(i for i in several if i not in (*rows.iters, *columns.iters))
    if several and several[-1] in rows.iters:  # neighbouring threads write neighbouring elements
        rows, columns = columns, rows
    return MatrixProduct(product, rows, columns, both, left.batched == right.batched)


def along_k(side: Side, product: Product) -> bool:
    """Whether the innermost index of a factor's load follows the reduction."""
    loads = [e for e in walk(side.factor.value) if isinstance(e, Load) and e.index]
    return any(it in walk(load.index[-1]) for load in loads for it in product.reduce.iters[-1:])


def dot4_fits(product: Product) -> bool:
    """Can four steps be one 8-bit dot product? One side must have zero point 0, so that the other's takes one more."""
    sides = product.left.bytes, product.right.bytes
    return all(s is not None for s in sides) and any(s is not None and s.byte_zero == 0 for s in sides)


def contiguous(product: Product, kernel: Kernel) -> bool:
    """Do four neighbouring steps of the innermost iterator read four neighbouring, aligned bytes on both sides?"""
    reduce = product.reduce
    if not reduce.iters or reduce.iters[-1].extent % 4 or not dot4_fits(product):
        return False
    inner = reduce.iters[-1]
    if inner in _iters(product.guards):
        return False
    for side in (product.left.bytes, product.right.bytes):
        assert side is not None
        index = side.load.index
        shape = kernel.operand(side.load.buffer).type.shape
        if not index or shape[-1] % 4 or any(inner in walk(i) for i in index[:-1]):
            return False
        terms, constant = affine(index[-1])
        if terms.pop(inner, 0) != 1 or constant % 4 or any(k % 4 for k in terms.values()):
            return False
        if any(inner in walk(t) for t in terms):
            return False
    return True
