"""Exact widths: which values an integer expression can have, and products no wider than their factors need.

Ranges come from interval arithmetic over the constants' own values. What a table stores, what a product multiplies and
what both are priced at all read them here, so that no two of these disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cuvil_hw import dtypes
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Lookup, Select, cast
from cuvil_hw.expr.traverse import rewrite, walk
from cuvil_hw.schedule.kernel import Kernel

Range = tuple[int, int]
Ranges = Mapping[str, Range]


@dataclass(frozen=True, slots=True)
class Multiplication:
    """One integer product of an expression. `a`, `b`: dtypes that just hold its factors; `factor`: the value of `b`
    where it is a constant."""

    a: str
    b: str
    factor: int | None = None

    @property
    def ports(self) -> Range:
        """Bits of the factors as signed numbers, as multiplier blocks take them."""
        return signed_bits(self.a), signed_bits(self.b)


@dataclass(frozen=True, slots=True)
class SharedFactor:
    """A product `node` of which all outputs have a factor in common, so that one multiplier may serve two. `bits`: of
    the shared factor, of the other, and of the product, signed."""

    node: Expr
    shared: Expr
    other: Expr
    bits: tuple[int, int, int]

    @property
    def ports(self) -> Range:
        """Bits of the factors of the one product: two of the others stand side by side, as far apart as a product is
        wide."""
        shared, other, product = self.bits
        return other + product + 1, shared


def shared_factor(term: Expr, sources: Iterable[str], outputs: Iterable[Iter], ranges: Ranges) -> SharedFactor | None:
    """The only multiplier of a term, if one of its factors comes from `sources` and is the same for all `outputs`."""
    multipliers = [n for n in walk(term) if is_multiplier(n, ranges)]
    if len(multipliers) != 1:
        return None
    node, streams, across = multipliers[0], set(sources), set(outputs)
    assert isinstance(node, Apply)

    def streamed(e: Expr) -> bool:
        return any(isinstance(n, Load) and n.buffer in streams for n in walk(e))

    for shared, other in (node.args, node.args[::-1]):
        if streamed(shared) and not streamed(other) and not any(n in across for n in walk(shared)):
            spans = [span(shared, ranges), span(other, ranges), _unwrapped(node, ranges, {})]
            a, b, s = (signed_bits(narrowest(*r)) for r in spans)
            return SharedFactor(node, shared, other, (a, b, s))
    return None


def narrowest(lo: int, hi: int) -> str:
    """The integer dtype of fewest bits that holds `lo` to `hi`; unsigned where nothing is below 0."""
    if lo >= 0:
        return f"u{max(1, hi.bit_length())}"
    return f"i{max((-lo - 1).bit_length(), hi.bit_length() if hi > 0 else 0) + 1}"


def signed_bits(dtype: str) -> int:
    """Bits that hold every value of `dtype` as a signed number."""
    signed, bits = dtypes.int_width(dtype) or (False, 1)
    return bits if signed else bits + 1


def ranges_of(kernel: Kernel, constants: ConstantStore) -> dict[str, Range]:
    """Least and largest element of each integer constant that a kernel reads."""
    found = {}
    for buffer in kernel.operands:
        if buffer.role == "const" and dtypes.is_int(buffer.type.dtype) and buffer.type.size:
            array = constants[buffer.digest]
            found[buffer.name] = int(array.min()), int(array.max())
    return found


def stored(leaf: Load | Lookup, ranges: Ranges) -> str:
    """The integer dtype in which a table holds what `leaf` reads, or its own for floats and bool."""
    if not dtypes.is_int(leaf.dtype):
        return leaf.dtype
    if isinstance(leaf, Lookup):
        return narrowest(int(min(leaf.values)), int(max(leaf.values)))
    return narrowest(*ranges[leaf.buffer]) if leaf.buffer in ranges else leaf.dtype


def narrowed(kernel: Kernel, ranges: Ranges) -> Kernel:
    """The kernel with every integer product on factors of exact width: what was computed in 32 bits because an
    accumulator is that wide becomes an i9 by i7 product of 16 bits. No value changes."""
    spans: dict[int, Range] = {}
    done: dict[int, Expr] = {}

    def exact(e: Expr) -> Expr | None:
        if not _is_product(e):
            return None
        assert isinstance(e, Apply)
        lo, hi = _unwrapped(e, ranges, spans)
        least, most = dtypes.int_range(e.dtype)
        if lo < least or hi > most:
            return None  # it wraps
        kinds = [narrowest(*span(a, ranges, spans)) for a in e.args]
        bits = sum(dtypes.record(k).bits for k in kinds) + all(k.startswith("u") for k in kinds)
        whole = f"i{bits}" if bits <= 64 else e.dtype
        factors = [rewrite(a, exact, done) for a in e.args]
        exacts = (_factor(f, kind, whole, ranges) for f, kind in zip(factors, kinds, strict=True))
        return cast(Apply(whole, "mul", tuple(exacts)), e.dtype)

    return replace(kernel, body=rewrite(kernel.body, exact, done))


def products(nodes: Iterable[Expr], ranges: Ranges) -> tuple[Multiplication, ...]:
    """The multipliers among `nodes`; not what wires, selections and sign changes do."""
    memo: dict[int, Range] = {}
    found = []
    for e in nodes:
        if is_multiplier(e, ranges, memo):
            assert isinstance(e, Apply)
            a, b = sorted((span(n, ranges, memo) for n in e.args), key=lambda r: r[0] == r[1])
            found.append(Multiplication(narrowest(*a), narrowest(*b), b[0] if b[0] == b[1] else None))
    return tuple(found)


def is_multiplier(e: Expr, ranges: Ranges, memo: dict[int, Range] | None = None) -> bool:
    """Whether a node is an integer product that takes a multiplier: a product by a power of two is wiring, one by a
    single bit a selection."""
    if not _is_product(e):
        return False
    assert isinstance(e, Apply)
    for lo, hi in (span(a, ranges, memo) for a in e.args):
        if lo == hi and abs(lo) & (abs(lo) - 1) == 0:
            return False
        if dtypes.record(narrowest(lo, hi)).bits == 1:
            return False
    return True


def span(e: Expr, ranges: Ranges, memo: dict[int, Range] | None = None) -> Range:
    """Least and largest value that an integer expression can have."""
    memo = {} if memo is None else memo
    if id(e) not in memo:
        lo, hi = _unwrapped(e, ranges, memo)
        least, most = dtypes.int_range(e.dtype) if e.dtype != "index" else (-(1 << 31), (1 << 31) - 1)
        memo[id(e)] = (lo, hi) if least <= lo and hi <= most else (least, most)
    return memo[id(e)]


def _is_product(e: Expr) -> bool:
    return isinstance(e, Apply) and e.op == "mul" and dtypes.is_int(e.dtype)


def _factor(e: Expr, kind: str, whole: str, ranges: Ranges) -> Expr:
    """A factor as `kind`, widened to `whole`. Tables store constants in as many bits as they need."""
    while isinstance(e, Apply) and e.op == "cast" and _holds(e.dtype, kind) and _holds(e.args[0].dtype, kind):
        e = e.args[0]
    table = isinstance(e, Lookup) or (isinstance(e, Load) and e.buffer in ranges)
    return cast(e if table else cast(e, kind), whole)


def _holds(dtype: str, kind: str) -> bool:
    if not dtypes.is_int(dtype):
        return False
    (least, most), (lo, hi) = dtypes.int_range(dtype), dtypes.int_range(kind)
    return least <= lo and hi <= most


def _unwrapped(e: Expr, ranges: Ranges, memo: dict[int, Range]) -> Range:
    """The range before it wraps at the width of `e`."""
    if e.dtype == "index" or dtypes.is_float(e.dtype):
        return -(1 << 64), 1 << 64

    def of(x: Expr) -> Range:
        return span(x, ranges, memo)

    match e:
        case Const():
            return int(e.value), int(e.value)
        case Lookup():
            return int(min(e.values)), int(max(e.values))
        case Load() if e.buffer in ranges:
            return ranges[e.buffer]
        case Select():
            (a, b), (c, d) = of(e.then), of(e.other)
            return min(a, c), max(b, d)
        case Apply(args=args) if all(dtypes.is_int(a.dtype) or a.dtype == "bool" for a in args):
            return _applied(e.op, e.dtype, [of(a) for a in args])
    return dtypes.int_range(e.dtype)


def _applied(op: str, dtype: str, args: list[Range]) -> Range:
    """The range of an operator's exact result."""
    if op == "cast":
        return args[0]
    if op == "saturate":
        least, most = dtypes.int_range(dtype)
        ((lo, hi),) = args
        return min(max(lo, least), most), max(min(hi, most), least)
    if op == "neg":
        return -args[0][1], -args[0][0]
    if len(args) == 2:
        (a, b), (c, d) = args
        match op:
            case "add":
                return a + c, b + d
            case "sub":
                return a - d, b - c
            case "mul":
                ends = (a * c, a * d, b * c, b * d)
                return min(ends), max(ends)
            case "min":
                return min(a, c), min(b, d)
            case "max":
                return max(a, c), max(b, d)
            case "shr" if c >= 0 and d < 64:
                return min(a >> c, a >> d), max(b >> c, b >> d)
            case "and" if c >= 0:
                return 0, d
    return dtypes.int_range(dtype)
