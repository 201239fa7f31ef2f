"""Level2's ops on integers as nodes. An integer type's values are those of its two's complement, one bit's are 0 and 1;
indices are numbers as they are (see ir/interpreter/scalars.py, whose meaning this is)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType
from xdsl.ir import Attribute, Operation

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.rtl.graph import Graph, Signal, bits_for, cut
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.adders import Adders
from cuvil_hw.ir.legal import place
from cuvil_hw.ir.level2 import MultiplyPairOp, SaturateOp

_OF_BITS = {
    "addi": "xor", "subi": "xor", "muli": "and", "maxsi": "and", "minsi": "or", "maxui": "or", "minui": "and",
}  # fmt: skip
_BITWISE = {"andi": "and", "ori": "or", "xori": "xor"}


class NotHardware(CuvilError):
    """Why a process has no hardware form."""


def refused(op: Operation, why: str) -> NotHardware:
    return NotHardware(f"rtl: {op.name}{place(op)}: {why}")


def width(kind: Attribute) -> int | None:
    """Bits of an integer type, None of an index."""
    return int(kind.width.data) if isinstance(kind, IntegerType) else None


def constant(graph: Graph, op: arith.ConstantOp) -> Signal:
    kind = op.result.type
    if not isinstance(op.value, IntegerAttr) or not isinstance(kind, IntegerType | IndexType):
        raise refused(op, "a number with a point; the hardware level computes in integers: quantise the model")
    value, bits = int(op.value.value.data), width(kind)
    return graph.const(value if bits is None else cut(value, bits))


def scalar(graph: Graph, op: Operation, args: Sequence[Signal]) -> Signal:
    """The result of an op with one. Raises NotHardware."""
    kinds = [*(v.type for v in op.operands), op.results[0].type]
    if not all(isinstance(k, IntegerType | IndexType) for k in kinds):
        raise refused(op, "computes in floats; the hardware level computes in integers: quantise the model")
    bits, have = width(kinds[-1]), width(kinds[0])
    stem = op.name.rpartition(".")[2]
    if isinstance(op, arith.SelectOp):
        return graph.select(*args)
    if isinstance(op, arith.CmpiOp):
        return _compared(graph, int(op.predicate.value.data), args, have)
    if isinstance(op, SaturateOp):
        lo, hi = dtypes.int_range(op.dtype.data)
        assert bits is not None
        return graph.wrap(graph.clip(args[0], lo, hi), bits)
    made = _arithmetic(graph, op, stem, args, bits, have)
    return made if bits is None else graph.wrap(made, bits)


def _arithmetic(
    graph: Graph, op: Operation, stem: str, args: Sequence[Signal], bits: int | None, have: int | None
) -> Signal:
    """The result before it is cut to its type."""
    a, b = args[0], args[-1]
    if bits == 1 and stem in _OF_BITS:
        return graph.bitwise(_OF_BITS[stem], a, b)
    match stem:
        case "addi":
            return graph.add(a, b)
        case "subi":
            return graph.sub(a, b)
        case "muli":
            bind = op.attributes.get("cuvil.multiplier")
            return graph.mul(a, b, getattr(bind, "data", None))
        case "andi" | "ori" | "xori":
            return graph.bitwise(_BITWISE[stem], a, b)
        case "shli" | "shrsi" | "shrui":
            by = graph.wrap(b, ((bits or 64) - 1).bit_length(), False) if b.value is None else b
            if stem == "shli":
                return graph.shift_left(a, by, (bits or 64) - 1)
            return graph.shift_right(natural(graph, a, bits) if stem == "shrui" else a, by)
        case "maxsi" | "maxui" | "minsi" | "minui":
            x, y = (natural(graph, n, bits) for n in (a, b)) if stem[3] == "u" else (a, b)
            less = graph.less(x, y)
            return graph.select(less, b, a) if stem[:3] == "max" else graph.select(less, a, b)
        case "extsi":
            return graph.total([(-1, a)]) if have == 1 else a
        case "extui":
            return natural(graph, a, have)
        case "trunci" | "index_cast":
            return a
        case "absi":
            return graph.select(graph.less(a, graph.const(0)), graph.total([(-1, a)]), a)
    return _divided(graph, op, stem, a, b, bits)


def natural(graph: Graph, a: Signal, bits: int | None) -> Signal:
    """The same bits as a number from zero up."""
    return a if bits is None else graph.wrap(a, bits, False)


def _compared(graph: Graph, predicate: int, args: Sequence[Signal], have: int | None) -> Signal:
    a, b = args
    if predicate < 2:
        same = graph.equal(a, b)
        return same if predicate == 0 else graph.invert(same)
    if predicate >= 6:
        a, b = (natural(graph, n, have) for n in args)
        predicate -= 4
    elif have == 1:  # true is -1
        a, b = b, a
    if predicate >= 4:  # greater
        a, b, predicate = b, a, predicate - 2
    return graph.less(a, b) if predicate == 2 else graph.invert(graph.less(b, a))


def _divided(graph: Graph, op: Operation, stem: str, a: Signal, b: Signal, bits: int | None) -> Signal:
    """Divisions: by a positive constant a product and a shift, by anything else a row of subtractions."""
    known = b.value
    if known == 0:
        raise refused(op, "a division by zero")
    if known is None or known < 0:
        return _long_divided(graph, op, stem, a, b, bits)
    if stem in ("divui", "remui", "ceildivui"):
        # An index that is divided isn't negative; a register's type may hold more than it does.
        a = natural(graph, a, bits if bits is not None else bits_for(0, a.hi))
    rest = graph.const(known - 1)
    match stem:
        case "floordivsi" | "divui":
            return graph.floor_divided(a, known)
        case "ceildivsi" | "ceildivui":
            return graph.floor_divided(graph.add(a, rest), known)
        case "remui":
            return graph.sub(a, graph.mul(graph.floor_divided(a, known), b))
        case "divsi" | "remsi":  # towards zero
            up = graph.select(graph.less(a, graph.const(0)), rest, graph.const(0))
            quotient = graph.floor_divided(graph.add(a, up), known)
            return quotient if stem == "divsi" else graph.sub(a, graph.mul(quotient, b))
    raise refused(op, "has no hardware form")


def _long_divided(graph: Graph, op: Operation, stem: str, a: Signal, b: Signal, bits: int | None) -> Signal:
    """As on paper: a bit of the quotient a row, so that stages may end between any two. By zero it is anything."""
    if stem in ("divui", "remui"):
        quotient, rest = _rows(graph, *(natural(graph, n, bits) for n in (a, b)))
        return quotient if stem == "divui" else rest
    if stem not in ("divsi", "remsi", "floordivsi"):
        raise refused(op, "has no hardware form for what isn't a positive constant")
    below, odd = (graph.less(n, graph.const(0)) for n in (a, b))
    quotient, rest = _rows(graph, *(_magnitude(graph, n) for n in (a, b)))
    apart = graph.bitwise("xor", below, odd)
    if stem == "remsi":  # has the sign of what is divided
        return graph.select(below, graph.total([(-1, rest)]), rest)
    if stem == "floordivsi":
        more = graph.both([apart, graph.less(graph.const(0), rest)])
        return graph.sub(graph.select(apart, graph.total([(-1, quotient)]), quotient), more)
    return graph.select(apart, graph.total([(-1, quotient)]), quotient)


def _magnitude(graph: Graph, a: Signal) -> Signal:
    if a.lo >= 0:
        return a
    made = graph.select(graph.less(a, graph.const(0)), graph.total([(-1, a)]), a)
    return graph.within(made, 0, max(-a.lo, a.hi))


def _rows(graph: Graph, a: Signal, b: Signal) -> tuple[Signal, Signal]:
    """Quotient and rest of numbers from zero up."""
    quotient, rest, length = graph.const(0), graph.const(0), a.bits
    for row in reversed(range(length)):
        bit = graph.wrap(graph.shift_right(a, graph.const(row)), 1, False)
        rest = graph.bitwise("or", graph.shift_left(rest, graph.const(1), 1), bit)
        fits = graph.invert(graph.less(rest, b))
        rest = graph.select(fits, graph.sub(rest, b), rest)
        rest = graph.within(rest, 0, min(max(b.hi - 1, 0), (1 << (length - row)) - 1))
        quotient = graph.bitwise("or", graph.shift_left(quotient, graph.const(1), 1), fits)
    return quotient, rest


def sums(graph: Graph, additions: Adders, x: Sequence[Signal]) -> list[Signal]:
    """Sums of constant products."""
    values = list(x)

    def shifted(value: int, by: int, sign: int = 1) -> tuple[int, Signal]:
        return sign, graph.shift_left(values[value], graph.const(by), by) if by else values[value]

    for s in additions.sums:
        values.append(graph.total([shifted(s.a, s.a_shift), shifted(s.b, s.b_shift, s.sign)]))
    return [graph.const(0) if o is None else graph.total([shifted(*o)]) for o in additions.outputs]


def pair(graph: Graph, op: MultiplyPairOp, args: Sequence[Signal]) -> tuple[Signal, Signal]:
    """Two products by one multiplier: the higher factor is put so far above the lower that their products meet in a
    borrow only."""
    shared_bits, other_bits, apart = (int(n.value.data) for n in (op.shared_bits, op.other_bits, op.apart))
    shared = graph.wrap(args[0], shared_bits)
    low, high = (graph.wrap(n, other_bits) for n in args[1:])
    both = graph.add(graph.mul(high, graph.const(1 << apart)), low)
    product = graph.mul(both, shared, "dsp")
    first = graph.wrap(product, apart)
    second = graph.add(graph.shift_right(product, graph.const(apart)), graph.less(first, graph.const(0)))
    bits = width(op.low_product.type)
    assert bits is not None
    return graph.wrap(first, bits), graph.wrap(graph.wrap(second, shared_bits + other_bits), bits)
