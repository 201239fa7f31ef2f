"""Scalar expressions: the loops of every op, written once.

A tensor is a function from index expressions to a scalar expression (`Tensor`). An op's `compute` builds such
functions; a kernel is one of them with its iterators. Level2 lowering, cost models and FPGA streaming all read it.

Rules: both operands of a binary op have the same dtype; nothing converts by itself (`cast`, `saturate`). Index
arithmetic has dtype "index" and is kept in a simplified affine form, with floor division and modulo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cuvil_hw import dtypes
from cuvil_hw.expr.scalar import scalar
from cuvil_hw.types import TensorType

COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}


@dataclass(frozen=True, slots=True)
class Expr:
    """Base of all nodes. `dtype`: a dtype name or "index"."""

    dtype: str

    def children(self) -> tuple[Expr, ...]:
        return ()

    def __add__(self, other: Expr | int) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: int) -> Expr:
        return binary("add", _lift(other, self), self)

    def __sub__(self, other: Expr | int) -> Expr:
        return binary("sub", self, other)

    def __mul__(self, other: Expr | int) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: int) -> Expr:
        return binary("mul", self, other)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return binary("mod", self, other)

    def __neg__(self) -> Expr:
        return unary("neg", self)


@dataclass(frozen=True, slots=True)
class Const(Expr):
    value: float | int | bool


@dataclass(frozen=True, slots=True)
class Iter(Expr):
    """A loop variable, 0 ≤ it < extent. `kind`: "parallel" or "reduction"."""

    name: str
    extent: int
    kind: str


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """One element of a buffer, by logical index."""

    buffer: str
    index: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.index


@dataclass(frozen=True, slots=True)
class Whole(Expr):
    """Element of result number `result` of `op` (a dataclass of cuvil_hw.ops) applied to whole buffers. An adapter
    implements the op in its own way; no loops are given."""

    op: object
    buffers: tuple[str, ...]
    index: tuple[Expr, ...]
    result: int = 0

    def children(self) -> tuple[Expr, ...]:
        return self.index


@dataclass(frozen=True, slots=True)
class Apply(Expr):
    """`op`: a row of expr/scalar.py, such as "add", "cast" (wraps, truncates), "bitcast" or "saturate" (clips)."""

    op: str
    args: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """`cond ? then : other`; only the taken side is evaluated, so it may guard a Load."""

    cond: Expr
    then: Expr
    other: Expr

    def children(self) -> tuple[Expr, ...]:
        return self.cond, self.then, self.other


@dataclass(frozen=True, slots=True)
class Lookup(Expr):
    """A constant table of scalars at an index in range: per-channel parameters, activation tables."""

    values: tuple[float, ...] | tuple[int, ...]
    index: Expr

    def children(self) -> tuple[Expr, ...]:
        return (self.index,)


@dataclass(frozen=True, slots=True)
class State(Expr):
    """The k-th running value inside the innermost Reduce."""

    k: int


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """Fold over `iters` (in order, last fastest): states start at `init`, each step sets them to `update`.

    The value is state `result`. `kind`: "sum", "prod", "max", "min", "argmax", "argmin" (for pattern matching).
    """

    kind: str
    iters: tuple[Iter, ...]
    init: tuple[Expr, ...]
    update: tuple[Expr, ...]
    result: int = 0

    def children(self) -> tuple[Expr, ...]:
        return self.init + self.update


def const(value: float | int | bool, dtype: str) -> Const:
    if dtype == "bf16":
        return Const(dtype, float(dtypes.numbers(dtypes.convert(value, dtype))))
    if dtypes.is_float(dtype):
        return Const(dtype, float(value))
    if dtype == "bool":
        return Const(dtype, bool(value))
    return Const(dtype, int(value))


def index(value: int) -> Const:
    return Const("index", value)


def parallel(name: str, extent: int) -> Iter:
    return Iter("index", name, extent, "parallel")


def reduction(name: str, extent: int) -> Iter:
    return Iter("index", name, extent, "reduction")


def _lift(value: Expr | float, like: Expr) -> Expr:
    return value if isinstance(value, Expr) else const(value, like.dtype)


def binary(op: str, a: Expr, b: Expr | float) -> Expr:
    b = _lift(b, a)
    scalar(op)
    if a.dtype != b.dtype:
        raise TypeError(f"{op} of {a.dtype} and {b.dtype}: cast one of them")
    if op in COMPARISONS:
        return Apply("bool", op, (a, b))
    if a.dtype == "index":
        return index_op(op, a, b)
    return Apply(a.dtype, op, (a, b))


def unary(op: str, a: Expr) -> Expr:
    scalar(op)
    if a.dtype == "index" and op == "neg":
        return index_op("mul", a, index(-1))
    return Apply("bool" if op in ("isnan", "isinf") else a.dtype, op, (a,))


def cast(a: Expr, dtype: str) -> Expr:
    """Convert: integers wrap, float → integer truncates (out of range saturates, NaN → 0), bool → 0/1."""
    if a.dtype == dtype:
        return a
    if isinstance(a, Const):
        if dtypes.is_float(dtype) and a.dtype == "bf16":
            return const(a.value, dtype)
        if dtypes.is_float(dtype) and not dtypes.is_float(a.dtype):
            return const(a.value, dtype)
        if dtypes.is_int(dtype) and not dtypes.is_float(a.dtype) and _fits(int(a.value), dtype):
            return const(a.value, dtype)
    return Apply(dtype, "cast", (a,))


def _fits(value: int, dtype: str) -> bool:
    lo, hi = dtypes.int_range(dtype)
    return lo <= value <= hi


def bitcast(a: Expr, dtype: str) -> Expr:
    """The bits of `a` as a `dtype` of the same width."""
    if dtypes.is_float(a.dtype) or dtypes.is_float(dtype):
        return a if a.dtype == dtype else Apply(dtype, "bitcast", (a,))
    return cast(a, dtype)


def saturate(a: Expr, dtype: str) -> Expr:
    """Clip an integer to the range of `dtype` and narrow it; simulators count what was clipped."""
    return Apply(dtype, "saturate", (a,))


def select(cond: Expr, then: Expr, other: Expr) -> Expr:
    if then.dtype != other.dtype:
        raise TypeError(f"select between {then.dtype} and {other.dtype}: cast one of them")
    if isinstance(cond, Const):
        return then if cond.value else other
    return Select(then.dtype, cond, then, other)


def lookup(values: tuple[float, ...] | tuple[int, ...], i: Expr, dtype: str) -> Expr:
    """`values[i]`; a plain constant when all are equal or `i` is known."""
    if isinstance(i, Const):
        return const(values[int(i.value)], dtype)
    if len(set(values)) == 1:
        return const(values[0], dtype)
    return Lookup(dtype, values, i)


def all_of(conds: Sequence[Expr]) -> Expr:
    """Logical and; True for none."""
    result: Expr = const(True, "bool")
    for c in conds:
        if isinstance(c, Const):
            if not c.value:
                return c
            continue
        result = c if isinstance(result, Const) else Apply("bool", "and", (result, c))
    return result


def inside(i: Expr, extent: int) -> Expr:
    """0 ≤ i < extent, without the parts that are known from the ranges of the iterators."""
    lo, hi = bounds(i)
    conds: list[Expr] = []
    if lo < 0:
        conds.append(binary("ge", i, index(0)))
    if hi >= extent:
        conds.append(binary("lt", i, index(extent)))
    return all_of(conds)


def reduce(kind: str, iters: Sequence[Iter], term: Expr, init: Expr) -> Expr:
    """Single-state fold: kind "sum", "prod", "max" or "min"."""
    op = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}[kind]
    return Reduce(init.dtype, kind, tuple(iters), (init,), (binary(op, State(init.dtype, 0), term),))


# -- index arithmetic: affine forms {atom: coefficient} + constant, atoms being iterators and quotients/remainders -----


def affine(e: Expr) -> tuple[dict[Expr, int], int]:
    """`e` as Σ coefficient·atom + constant. Atoms are Iter nodes, or floordiv/mod nodes that did not simplify."""
    if isinstance(e, Const):
        return {}, int(e.value)
    if isinstance(e, Apply) and e.op in ("add", "mul"):
        a, b = e.args
        if e.op == "add":
            terms, c = affine(a)
            more, d = affine(b)
            merged = dict(terms)
            for atom, k in more.items():
                merged[atom] = merged.get(atom, 0) + k
            return {t: k for t, k in merged.items() if k}, c + d
        if isinstance(b, Const):
            terms, c = affine(a)
            k = int(b.value)
            return ({t: v * k for t, v in terms.items()} if k else {}), c * k
    return {e: 1}, 0


def _build(terms: Mapping[Expr, int], c: int) -> Expr:
    total: Expr | None = None
    for atom, k in terms.items():
        part = atom if k == 1 else Apply("index", "mul", (atom, index(k)))
        total = part if total is None else Apply("index", "add", (total, part))
    if total is None:
        return index(c)
    return total if c == 0 else Apply("index", "add", (total, index(c)))


def bounds(e: Expr) -> tuple[int, int]:
    """Smallest and largest value of an index expression, from the extents of its iterators."""
    if isinstance(e, Const):
        return int(e.value), int(e.value)
    if isinstance(e, Iter):
        return 0, max(e.extent - 1, 0)
    if isinstance(e, Apply) and e.op in ("floordiv", "mod"):
        lo, hi = bounds(e.args[0])
        d = int(e.args[1].value) if isinstance(e.args[1], Const) else 0
        if d > 0 and e.op == "floordiv":
            return lo // d, hi // d
        if d > 0:
            return (lo % d, hi % d) if lo // d == hi // d else (0, d - 1)
    if isinstance(e, Apply) and e.op in ("add", "mul"):
        terms, c = affine(e)
        if e not in terms:
            lo = hi = c
            for atom, k in terms.items():
                a, b = bounds(atom)
                lo, hi = lo + min(a * k, b * k), hi + max(a * k, b * k)
            return lo, hi
    return -(1 << 62), 1 << 62


def index_op(op: str, a: Expr, b: Expr) -> Expr:
    if op in ("add", "sub"):
        terms, c = affine(a)
        more, d = affine(b)
        sign = 1 if op == "add" else -1
        merged = dict(terms)
        for atom, k in more.items():
            merged[atom] = merged.get(atom, 0) + sign * k
        return _build({t: k for t, k in merged.items() if k}, c + sign * d)
    if op == "mul":
        if isinstance(a, Const):
            a, b = b, a
        if isinstance(b, Const):
            k = int(b.value)
            terms, c = affine(a)
            return _build({t: v * k for t, v in terms.items()} if k else {}, c * k)
        return Apply("index", "mul", (a, b))
    if op in ("floordiv", "mod") and isinstance(b, Const) and int(b.value) > 0:
        d = int(b.value)
        terms, c = affine(a)
        # a = d·q + r with q made of the terms that d divides: exact when 0 ≤ r < d
        q = {t: k // d for t, k in terms.items() if k % d == 0}
        r = _build({t: k for t, k in terms.items() if k % d}, c % d)
        lo, hi = bounds(r)
        quotient = _build(q, c // d)
        if lo // d == hi // d:
            step = lo // d
            if op == "floordiv":
                return index_op("add", quotient, index(step))
            return index_op("sub", r, index(step * d))
        rest = Apply("index", op, (r, b))
        return index_op("add", quotient, rest) if op == "floordiv" else rest
    if op in ("min", "max"):
        (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
        if op == "min":
            return a if ahi <= blo else b if bhi <= alo else Apply("index", op, (a, b))
        return a if alo >= bhi else b if blo >= ahi else Apply("index", op, (a, b))
    return Apply("index", op, (a, b))


# -- tensors as functions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a function of its index; `at` gets one index expression per dimension."""

    type: TensorType
    at: Callable[..., Expr]

    def __getitem__(self, i: Expr | tuple[Expr, ...]) -> Expr:
        return self.at(*i) if isinstance(i, tuple) else self.at(i)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype


def placeholder(buffer: str, type: TensorType) -> Tensor:
    """The tensor stored in a buffer."""
    return Tensor(type, lambda *i: Load(type.dtype, buffer, tuple(i)))
