"""Random level2 integer functions with their meaning in Python integers, written independently of the renderer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import FunctionType, IndexType, IntegerAttr, IntegerType, MemRefType
from xdsl.ir import Block, Region, SSAValue

from cuvil_hw.ir.annotations import Role, annotate
from cuvil_hw.ir.level2 import SaturateOp

NATIVE = (8, 16, 32, 64)
WIDTHS = (*NATIVE, 2, 3, 5, 7, 12, 20, 24, 33, 40, 48, 63)
Values = dict[SSAValue, int]


def wrap(value: int, bits: int) -> int:
    """The signed number with the same low bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def unsigned(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def trunc_div(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


RING: dict[Any, Callable[[int, int], int]] = {
    arith.AddiOp: lambda a, b: a + b, arith.SubiOp: lambda a, b: a - b, arith.MuliOp: lambda a, b: a * b,
    arith.AndIOp: lambda a, b: a & b, arith.OrIOp: lambda a, b: a | b, arith.XOrIOp: lambda a, b: a ^ b,
    arith.MaxSIOp: max, arith.MinSIOp: min,
}  # fmt: skip
DIVIDE: dict[Any, Callable[[int, int], int]] = {
    arith.DivSIOp: trunc_div, arith.RemSIOp: lambda a, b: a - b * trunc_div(a, b),
    arith.FloorDivSIOp: lambda a, b: a // b,
}  # fmt: skip
UNSIGNED: dict[Any, Callable[[int, int], int]] = {
    arith.DivUIOp: lambda a, b: a // b if b else 0, arith.RemUIOp: lambda a, b: a % b if b else 0,
    arith.MaxUIOp: max, arith.MinUIOp: min,
}  # fmt: skip
PREDICATES: tuple[Callable[[int, int], bool], ...] = (
    lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b,
    lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b,
)  # fmt: skip


@dataclass
class Maker:
    """Appends random ops to a block. Each op's meaning is a closure over the values of its operands; `ranges` bounds
    every value, so that sums and products of odd widths are only made where they fit, as level2 promises."""

    pick: random.Random
    block: Block = field(default_factory=Block)
    ranges: dict[SSAValue, tuple[int, int]] = field(default_factory=dict)
    meaning: list[tuple[SSAValue, Callable[[Values], int]]] = field(default_factory=list)

    def put(self, op: Any, meaning: Callable[[Values], int], bounds: tuple[int, int] | None = None) -> SSAValue:
        self.block.add_op(op)
        value: SSAValue = op.results[0]
        width = value.type.width.data if isinstance(value.type, IntegerType) else 32
        full = (0, 1) if width == 1 else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
        self.ranges[value] = bounds or full
        self.meaning.append((value, meaning))
        return value

    def constant(self, number: int, width: int) -> SSAValue:
        op = arith.ConstantOp(IntegerAttr(number, IntegerType(width)))
        return self.put(op, lambda v: number, (number, number))

    def value(self, width: int) -> SSAValue:
        """A random earlier value, converted to `width`."""
        some = self.pick.choice([v for v in self.ranges if v.type != IndexType()])
        have = some.type.width.data  # type: ignore[attr-defined]
        kind = IntegerType(width)
        if self.pick.random() < 0.1:
            return self.constant(wrap(self.pick.getrandbits(width), width), width)
        if have < width:
            if have == 1 or self.pick.random() < 0.3:
                lo, hi = self.ranges[some]
                bounds = (lo, hi) if lo >= 0 else (0, (1 << have) - 1)
                return self.put(arith.ExtUIOp(some, kind), lambda v: unsigned(v[some], have), bounds)
            return self.put(arith.ExtSIOp(some, kind), lambda v: v[some], self.ranges[some])
        return self.put(arith.TruncIOp(some, kind), lambda v: wrap(v[some], width)) if have > width else some

    def step(self) -> None:
        p, width = self.pick, self.pick.choice(WIDTHS)
        a, b = self.value(width), self.value(width)
        match p.randrange(8):
            case 0 | 1 | 2:
                op = p.choice(list(RING))
                f = RING[op]
                corners = [f(x, y) for x in self.ranges[a] for y in self.ranges[b]]
                lo, hi = min(corners), max(corners)
                bits = op in (arith.AndIOp, arith.OrIOp, arith.XOrIOp)
                fits = -(1 << (width - 1)) <= lo and hi < 1 << (width - 1)
                if width in NATIVE or bits or fits:
                    bounds = (lo, hi) if fits and not bits else None
                    self.put(op(a, b), lambda v: wrap(f(v[a], v[b]), width), bounds)
            case 3:
                op = p.choice(list(DIVIDE))
                g, d = DIVIDE[op], p.choice([1, 2, 3]) if width < 4 else p.choice([1, 2, 3, 7, -2, -3])
                if d < 1 << (width - 1):
                    c = self.constant(d, width)
                    self.put(op(a, c), lambda v: wrap(g(v[a], d), width))
            case 4:
                op = p.choice(list(UNSIGNED))
                h, c = UNSIGNED[op], self.constant(1, width) if op in (arith.DivUIOp, arith.RemUIOp) else b
                self.put(op(a, c), lambda v: wrap(h(unsigned(v[a], width), unsigned(v[c], width)), width))
            case 5:
                n = p.randrange(width) if width > 2 else 0
                c = self.constant(n, width) if n < 1 << (width - 1) else self.constant(0, width)
                m = n if n < 1 << (width - 1) else 0
                if p.random() < 0.5:
                    self.put(arith.ShRSIOp(a, c), lambda v: v[a] >> m)
                elif p.random() < 0.5 or width not in NATIVE:
                    self.put(arith.ShRUIOp(a, c), lambda v: wrap(unsigned(v[a], width) >> m, width))
                else:
                    self.put(arith.ShLIOp(a, c), lambda v: wrap(v[a] << m, width))
            case 6:
                k = p.randrange(10)
                t = PREDICATES[k if k < 6 else k - 4]
                read = wrap if k < 6 else unsigned
                cond = self.put(arith.CmpiOp(a, b, k), lambda v: int(t(read(v[a], width), read(v[b], width))))
                x, y = self.value(width), self.value(width)
                self.put(arith.SelectOp(cond, x, y), lambda v: v[x] if v[cond] else v[y])
            case 7:
                to = p.choice([w for w in WIDTHS if w < 32])
                if width > to:
                    lo, hi = (-(1 << (to - 1)), (1 << (to - 1)) - 1) if p.random() < 0.5 else (0, (1 << to) - 1)
                    op = SaturateOp(a, f"{'i' if lo else 'u'}{to}", p.randrange(9), IntegerType(to))
                    self.put(op, lambda v: wrap(min(max(v[a], lo), hi), to))


def function(seed: int, name: str) -> tuple[func.FuncOp, list[int], list[int], list[int]]:
    """A function @name(input0…, output0…) of one-element memories; widths and values of its inputs, wanted outputs."""
    pick = random.Random(seed)
    widths = [pick.choice(WIDTHS) for _ in range(4)]
    extremes = [wrap(pick.choice([pick.getrandbits(w), 1 << (w - 1), (1 << (w - 1)) - 1, -1, 0]), w) for w in widths]
    body = Maker(pick)
    zero = arith.ConstantOp(IntegerAttr(0, IndexType()))
    body.block.add_op(zero)
    values: Values = {}
    for w, number in zip(widths, extremes, strict=True):
        arg = body.block.insert_arg(MemRefType(IntegerType(w), [1]), len(body.block.args))
        load = memref.LoadOp.get(arg, [zero])
        body.put(load, lambda v, number=number: number)
    for _ in range(24):
        body.step()
    for value, meaning in body.meaning:
        values[value] = meaning(values)
    results = [v for v in body.ranges if v.type != IntegerType(1)][-6:]
    for r in results:
        out = body.block.insert_arg(MemRefType(r.type, [1]), len(body.block.args))
        body.block.add_op(memref.StoreOp.get(r, out, [zero]))
    body.block.add_op(func.ReturnOp())
    op = func.FuncOp(name, FunctionType.from_lists([a.type for a in body.block.args], []), Region(body.block))
    annotate(op, Role("kernel"))
    every = [*widths, *[r.type.width.data for r in results]]  # type: ignore[attr-defined]
    return op, every, extremes, [values[r] for r in results]
