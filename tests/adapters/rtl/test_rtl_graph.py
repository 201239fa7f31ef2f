"""Steps of processes as graphs of whole numbers: level2's meaning op by op, ranges that hold, sums that stay equal."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from xdsl.dialects import arith, math
from xdsl.dialects import test as dialect
from xdsl.dialects.builtin import IndexType, IntegerType, i1
from xdsl.ir import Attribute, Operation

from cuvil_hw.adapters.streaming.rtl.arrange import arrange, cycles
from cuvil_hw.adapters.streaming.rtl.graph import Graph, Signal, cut, word_range
from cuvil_hw.adapters.streaming.rtl.scalars import pair, scalar
from cuvil_hw.ir.interpreter.scalars import expression
from cuvil_hw.ir.interpreter.values import Fault
from cuvil_hw.ir.level2 import MultiplyPairOp, SaturateOp

RANDOM = random.Random(3)
WIDTHS = (1, 4, 8, 12, 32, 64)


def value(signal: Signal, known: Mapping[Signal, int], found: dict[Signal, int] | None = None) -> int:
    """What a signal is for given leaves, by Python's integers; checked against its range. `found`: those computed."""
    found = {} if found is None else found
    if signal not in found:
        found[signal] = computed(signal, known, [value(a, known, found) for a in signal.args])
    return found[signal]


def computed(signal: Signal, known: Mapping[Signal, int], args: list[int]) -> int:
    match signal.op:
        case "const":
            found = signal.lo
        case "leaf":
            found = known[signal]
        case "sum":
            found = sum(s * a for s, a in zip(signal.data, args, strict=True))
        case "mul":
            found = args[0] * args[1]
        case "wrap":
            found = cut(args[0], *signal.data)
        case "within":
            found = args[0]
        case "shr":
            found = args[0] >> args[1]
        case "shl":
            found = args[0] << args[1]
        case "and" | "or" | "xor":
            found = {"and": args[0] & args[1], "or": args[0] | args[1], "xor": args[0] ^ args[1]}[signal.op]
        case "eq":
            found = int(args[0] == args[1])
        case "lt":
            found = int((args[0] < args[1]) != signal.data)
        case "not":
            found = 1 - args[0]
        case "select":
            found = args[1] if args[0] else args[2]
        case _:
            raise AssertionError(signal.op)
    assert signal.lo <= found <= signal.hi, signal
    return found


def operands(*kinds: Attribute) -> list[Operation]:
    return [dialect.TestOp(result_types=[k]) for k in kinds]


def cases() -> dict[str, list[Operation]]:
    """Ops by name, each of several widths."""
    found: dict[str, list[Operation]] = {}
    two = (
        arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp, arith.MaxSIOp, arith.MinSIOp,
        arith.MaxUIOp, arith.MinUIOp, arith.ShLIOp, arith.ShRSIOp, arith.ShRUIOp, arith.DivSIOp, arith.DivUIOp,
        arith.RemSIOp, arith.RemUIOp, arith.FloorDivSIOp,
    )  # fmt: skip
    for bits in WIDTHS:
        kind = IntegerType(bits)
        for op in two:
            if bits > 1 or not any(part in op.name for part in ("sh", "div", "rem")):
                found.setdefault(op.name, []).append(op(*(o.results[0] for o in operands(kind, kind))))
        for rule in ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"):
            a, b = (o.results[0] for o in operands(kind, kind))
            found.setdefault(f"cmpi {rule}", []).append(arith.CmpiOp(a, b, rule))
        c, a, b = (o.results[0] for o in operands(i1, kind, kind))
        found.setdefault("select", []).append(arith.SelectOp(c, a, b))
        for wider in WIDTHS:
            if wider > bits:
                (a,) = (o.results[0] for o in operands(kind))
                found.setdefault("extsi", []).append(arith.ExtSIOp(a, IntegerType(wider)))
                found.setdefault("extui", []).append(arith.ExtUIOp(a, IntegerType(wider)))
                (a,) = (o.results[0] for o in operands(IntegerType(wider)))
                found.setdefault("trunci", []).append(arith.TruncIOp(a, kind))
        if bits > 8:
            (a,) = (o.results[0] for o in operands(kind))
            found.setdefault("saturate", []).append(SaturateOp(a, "i8", 0, IntegerType(8)))
            (a,) = (o.results[0] for o in operands(kind))
            found.setdefault("saturate", []).append(SaturateOp(a, "u4", 0, IntegerType(4)))
        if bits > 1:
            (a,) = (o.results[0] for o in operands(kind))
            found.setdefault("absi", []).append(math.AbsIOp(a))
    return found


@pytest.mark.parametrize("name", cases())
def test_every_integer_op_means_what_level2_says(name: str) -> None:
    for op in cases()[name]:
        graph = Graph()
        bits = [k.width.data if isinstance(k := v.type, IntegerType) else 64 for v in op.operands]
        leaves = [graph.leaf(*word_range(b), n) for n, b in enumerate(bits)]
        made = scalar(graph, op, leaves)
        names: dict[str, object] = {"clipped": {}}
        text = expression(op, [f"a{n}" for n in range(len(bits))], names)
        code = compile(text, op.name, "eval")
        for _ in range(60):
            args = [RANDOM.choice([*word_range(b), RANDOM.randint(*word_range(b)), 0, 1]) for b in bits]
            if "sh" in name:
                args[1] = RANDOM.randrange(min(bits[0], 1 << (bits[1] - 1)))
            try:
                wanted = eval(code, {**names, **{f"a{n}": a for n, a in enumerate(args)}})
            except Fault:  # a sum of an odd width has to fit; what hardware gives then is nobody's matter
                continue
            assert value(made, dict(zip(leaves, args, strict=True))) == wanted, (str(op), args)
            folded = scalar(graph, op, [graph.const(a) for a in args])
            assert folded.value == wanted, (str(op), args)


@pytest.mark.parametrize("by", [1, 2, 3, 7, 10, 64, 1000])
@pytest.mark.parametrize(("lo", "hi"), [(0, 50), (-77, 300), (-1000, -1), (0, 70_000)])
def test_divisions_by_constants_are_exact(by: int, lo: int, hi: int) -> None:
    graph = Graph()
    x = graph.leaf(lo, hi, "x")
    made = graph.floor_divided(x, by)
    for n in {*range(lo, min(hi, lo + 2500) + 1), hi, hi - 1, *(RANDOM.randint(lo, hi) for _ in range(200))}:
        assert value(made, {x: n}) == n // by


def test_an_index_is_divided_towards_zero_from_zero_up() -> None:
    graph = Graph()
    a, b = (o.results[0] for o in operands(IndexType(), IndexType()))
    x = graph.leaf(-128, 127, "x")  # a register's type holds more than the register does
    quotient = scalar(graph, arith.DivUIOp(a, b), [x, graph.const(6)])
    rest = scalar(graph, arith.RemUIOp(a, b), [x, graph.const(6)])
    for n in range(128):
        assert (value(quotient, {x: n}), value(rest, {x: n})) == divmod(n, 6)


def test_two_products_of_one_multiplier() -> None:
    op = MultiplyPairOp(*(o.results[0] for o in operands(*[IntegerType(32)] * 3)), (8, 8, 18))
    graph = Graph()
    leaves = [graph.leaf(-128, 127, n) for n in range(3)]
    low, high = pair(graph, op, leaves)
    for _ in range(500):
        args = [RANDOM.choice([-128, -1, 0, 1, 127, RANDOM.randint(-128, 127)]) for _ in range(3)]
        known = dict(zip(leaves, args, strict=True))
        assert (value(low, known), value(high, known)) == (args[0] * args[1], args[0] * args[2])


@pytest.mark.parametrize("seed", range(20))
def test_sums_and_products_are_arranged_without_a_change(seed: int) -> None:
    rng = random.Random(seed)
    graph = Graph()
    leaves = [graph.leaf(*word_range(rng.choice((3, 8, 20, 33))), n) for n in range(8)]
    made: list[Signal] = list(leaves)
    for _ in range(25):
        a, b = rng.choice(made), rng.choice(made[-6:])
        made.append(rng.choice([graph.add, graph.sub, graph.add])(a, b))
        if rng.random() < 0.3:
            made.append(graph.wrap(made[-1], rng.choice((6, 16, 24))))
        if rng.random() < 0.15 and max(a.bits, b.bits) < 60:
            made.append(graph.mul(a, b))
    roots = made[-3:]
    new = arrange(graph, roots, {})
    assert all(len(n.args) <= 2 for n in new.values() if n.op == "sum")
    for _ in range(40):
        known = {leaf: rng.choice([leaf.lo, leaf.hi, rng.randint(leaf.lo, leaf.hi)]) for leaf in leaves}
        for root in roots:
            assert value(new[root], known) == value(root, known)


def test_what_a_step_keeps_is_added_last() -> None:
    graph = Graph()
    kept = graph.leaf(*word_range(20), ("state", "acc"))
    words = [graph.leaf(-128, 127, n) for n in range(8)]
    total = kept
    for word in words:
        total = graph.wrap(graph.add(total, word), 20)
    after = arrange(graph, [total], {kept: total})[total]
    part = cycles([kept, *words], {kept: after})
    together = [n for n, p in part.items() if p == part[kept] and n.op == "sum"]
    assert len(together) == 1, "one addition stands between what was kept and what is kept next"
