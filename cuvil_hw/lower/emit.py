"""Scalar expressions into level2 ops, inserted at one place in a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.dialects import arith, math, memref, scf
from xdsl.dialects.builtin import (
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    StringAttr,
    UnitAttr,
    VectorType,
)
from xdsl.ir import Block, Operation, Region, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Lookup, Reduce, Select, State, Whole, bounds
from cuvil_hw.expr.scalar import scalar
from cuvil_hw.expr.traverse import walk
from cuvil_hw.ir import annotations as notes
from cuvil_hw.ir import level2
from cuvil_hw.lower.bf16 import of_bf16, to_bf16

INDEX = IndexType()


class Tables:
    """Constant tables of a module: one `memref.global` each, equal arrays once."""

    def __init__(self, constants: ConstantStore) -> None:
        self._constants = constants
        self._symbols: dict[tuple[str, str], str] = {}
        self.ops: list[memref.GlobalOp] = []

    def add(self, array: Any, dtype: str, hint: str, stored: str = "") -> tuple[str, MemRefType[Any]]:
        """Symbol and type of the table that holds `array`. `stored`: an integer dtype that just holds its elements."""
        data = np.asarray(array)
        digest = self._constants.add(data, dtype)
        kind: MemRefType[Any] = MemRefType(level2.signless(dtype), list(data.shape))
        if (digest, stored) not in self._symbols:
            symbol = hint
            while symbol in self._symbols.values():
                symbol += "_"
            self._symbols[digest, stored] = symbol
            op = memref.GlobalOp.get(StringAttr(symbol), kind, UnitAttr(), constant=UnitAttr())
            notes.annotate(op, notes.Handle(digest), notes.ElementType(dtype))
            if stored:
                notes.annotate(op, notes.Stored(stored))
            self.ops.append(op)
        return self._symbols[digest, stored], kind


@dataclass(frozen=True)
class Env:
    """What the leaves of an expression stand for at the place of insertion. `product`: what computes an integer
    product ("dsp", "lut"), "" for one that takes no multiplier."""

    iters: Mapping[str, SSAValue] = field(default_factory=dict)
    load: Callable[[Load, Emitter, Env], SSAValue] | None = None
    lookup: Callable[[Lookup, Emitter, Env], SSAValue] | None = None
    reduce: Callable[[Reduce, Emitter, Env], SSAValue] | None = None
    states: tuple[SSAValue, ...] = ()
    product: Callable[[Apply], str] | None = None


class Emitter:
    """Appends ops to `block`. Constants go to the start of the outermost block, once each."""

    def __init__(self, block: Block, tables: Tables, layer: int = 0) -> None:
        self.block = block
        self.tables = tables
        self.layer = layer
        self._entry = block
        self._constants: dict[tuple[float | int, str], SSAValue] = {}
        self._tables: dict[str, SSAValue] = {}

    def put(self, op: Operation, name: str = "") -> SSAValue:
        """Append `op`; returns its result. `name` hints what the renderer calls it."""
        self.block.add_op(op)
        if name:
            notes.annotate(op, notes.Name(name))
        return op.results[0]

    def do(self, op: Operation) -> None:
        """Append an op without a result."""
        self.block.add_op(op)

    def const(self, value: float | int | bool, dtype: str) -> SSAValue:
        if dtype == "bf16":
            return self.const(int(dtypes.convert(value, dtype).view(np.uint16)), "u16")
        key = (repr(value) if isinstance(value, float) else int(value), dtype)
        if key not in self._constants:
            kind = level2.signless(dtype)
            if dtypes.is_float(dtype):
                op = arith.ConstantOp(FloatAttr(float(value), kind))
            else:
                width = dtypes.int_width(dtype)
                number = int(value)
                if width and not width[0] and number >= 1 << (width[1] - 1):
                    number -= 1 << width[1]  # signless storage of an unsigned value
                op = arith.ConstantOp(IntegerAttr(number, kind))
            self._first(op)
            self._constants[key] = op.results[0]  # type: ignore[index]
        return self._constants[key]  # type: ignore[index]

    def _first(self, op: Operation) -> None:
        """Insert at the start of the outermost block."""
        if self._entry.first_op is None:
            self._entry.add_op(op)
        else:
            self._entry.insert_op_before(op, self._entry.first_op)

    # -- structure --

    def loop(
        self,
        extent: int | SSAValue,
        name: str,
        body: Callable[[SSAValue, tuple[SSAValue, ...]], Sequence[SSAValue] | None],
        init: Sequence[SSAValue] = (),
        pipeline: int = 0,
        unroll: bool = False,
        start: int | SSAValue = 0,
        step: int | SSAValue = 1,
    ) -> tuple[SSAValue, ...]:
        """`for name in start..extent by step`: body(i, carried) returns the next carried values. Returns the last ones.

        `unroll`: all steps at once (a loop over lanes).
        A loop of a single step is left out, unless it is to be pipelined."""
        if extent == 1 and start == 0 and not pipeline:
            return tuple(body(self.const(0, "index"), tuple(init)) or ())
        inner = Block(arg_types=[INDEX, *[v.type for v in init]])
        inner.args[0].name_hint = name
        with self._inside(inner):
            carried = body(inner.args[0], tuple(inner.args[1:])) or ()
            inner.add_op(scf.YieldOp(*carried))
        lower = self.const(start, "index") if isinstance(start, int) else start
        upper = self.const(extent, "index") if isinstance(extent, int) else extent
        by = self.const(step, "index") if isinstance(step, int) else step
        op = scf.ForOp(lower, upper, by, list(init), Region(inner))
        notes.annotate(op, notes.Name(name))
        if pipeline:
            notes.annotate(op, notes.Pipeline(pipeline))
        if unroll:
            notes.annotate(op, notes.Unroll())
        self.block.add_op(op)
        return tuple(op.results)

    def nest(self, loops: Sequence[tuple[int, str]], body: Callable[[Sequence[SSAValue]], None], ii: int = 1) -> None:
        """Nested loops (extent, name), outermost first, the innermost that takes more than one step pipelined."""
        long = [n for n, (extent, _) in enumerate(loops) if extent > 1]
        innermost = long[-1] if long else len(loops) - 1

        def level(n: int, at: tuple[SSAValue, ...]) -> None:
            if n == len(loops):
                body(at)
                return
            extent, name = loops[n]

            def step(i: SSAValue, _: tuple[SSAValue, ...]) -> None:
                level(n + 1, (*at, i))

            self.loop(extent, name, step, pipeline=ii if n == innermost else 0)

        level(0, ())

    def branch(
        self,
        cond: SSAValue,
        then: Callable[[], Sequence[SSAValue] | None],
        other: Callable[[], Sequence[SSAValue] | None] | None = None,
    ) -> tuple[SSAValue, ...]:
        """`if cond`: both sides return values of the same types (or nothing)."""
        blocks = []
        values: Sequence[SSAValue] = ()
        for side in (then, other):
            block = Block()
            if side is not None:
                with self._inside(block):
                    values = side() or ()
                    block.add_op(scf.YieldOp(*values))
            blocks.append(block)
        otherwise = Region(blocks[1]) if other is not None else Region()
        op = scf.IfOp(cond, [v.type for v in values], Region(blocks[0]), otherwise)
        self.block.add_op(op)
        return tuple(op.results)

    @contextmanager
    def _inside(self, block: Block) -> Iterator[None]:
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer

    # -- memory --

    def alloca(
        self,
        shape: Sequence[int],
        dtype: str,
        name: str,
        *,
        word: bool = False,
        bind: str = "",
        space: str = "",
        partition: Sequence[int] = (),
        reshape: Sequence[int] = (),
        independent: bool = False,
        lanes: int = 0,
    ) -> SSAValue:
        """A local array (a register for shape ()). `space`: where it lies when not with the thread ("shared");
        `independent`: iterations of a loop never meet in it; `lanes`: elements are vectors of so many."""
        element = level2.signless(dtype)
        op = memref.AllocaOp.get(VectorType(element, [lanes]) if lanes else element, shape=list(shape))
        said: list[notes.Annotation] = [notes.StreamWord()] if word else []
        said += [notes.Bind(bind)] if bind else []
        said += [notes.Space(space)] if space else []
        said += [notes.ArrayPartition(tuple(partition))] if partition else []
        said += [notes.Reshape(tuple(reshape))] if reshape else []
        said += [notes.Independent()] if independent else []
        notes.annotate(op, *said)
        return self.put(op, name)

    def load(self, buffer: SSAValue, *at: SSAValue) -> SSAValue:
        return self.put(memref.LoadOp.get(buffer, list(at)))

    def store(self, value: SSAValue, buffer: SSAValue, *at: SSAValue) -> None:
        self.do(memref.StoreOp.get(value, buffer, list(at)))

    def table(self, array: Any, dtype: str, hint: str, *annotations: notes.Annotation, stored: str = "") -> SSAValue:
        """A constant table, brought into scope once, at the start. `annotations`: where and how it lies; `stored`: the
        integer dtype that just holds its elements. Of i1, -1 or 0 where it has a sign, a table holds the bit."""
        narrow = dtypes.is_int(stored) and dtypes.record(dtype).bits > 1 and dtypes.record(stored).bits < 64
        stored = stored if narrow else ""
        symbol, kind = self.tables.add(array, dtype, hint, stored)
        if symbol in self._tables:
            return self._tables[symbol]
        op = memref.GetGlobalOp(symbol, kind)
        notes.annotate(op, *annotations, *([notes.Stored(stored)] if stored else []))
        self._first(op)
        self._tables[symbol] = op.results[0]
        return op.results[0]

    # -- expressions --

    def value(self, e: Expr, env: Env, known: Mapping[int, SSAValue] | None = None) -> SSAValue:
        """Compute `e`; nodes that it shares are computed once. `known`: nodes that were computed before, by id."""
        return self._emit(e, env, dict(known or {}))

    def _emit(self, e: Expr, env: Env, memo: dict[int, SSAValue]) -> SSAValue:
        if id(e) not in memo:
            memo[id(e)] = self._node(e, env, memo)
        return memo[id(e)]

    def _node(self, e: Expr, env: Env, memo: dict[int, SSAValue]) -> SSAValue:
        match e:
            case Const():
                return self.const(e.value, e.dtype)
            case Iter():
                return env.iters[e.name]
            case State():
                return env.states[e.k]
            case Load():
                if env.load is None:
                    raise CuvilError(f"no way to load {e.buffer} here")
                return env.load(e, self, env)
            case Lookup():
                if env.lookup is not None:
                    return env.lookup(e, self, env)
                table = self.table(np.asarray(e.values), e.dtype, f"table{len(self.tables.ops)}")
                return self.load(table, self._emit(e.index, env, memo))
            case Reduce():
                if env.reduce is None:
                    raise CuvilError("no way to reduce here")
                return env.reduce(e, self, env)
            case Select():
                return self._select(e, env, memo)
            case Apply(op="cast"):
                return self.convert(self._emit(e.args[0], env, memo), e.args[0].dtype, e.dtype)
            case Apply(op="bitcast"):
                return self.put(arith.BitcastOp(self._emit(e.args[0], env, memo), level2.signless(e.dtype)))
            case Apply(op="saturate"):
                return self._saturate(self._emit(e.args[0], env, memo), e.args[0].dtype, e.dtype)
            case Apply():
                args = [self._emit(a, env, memo) for a in e.args]
                if e.dtype == "index":
                    return self._index(e, args)
                made = self.apply(e.op, e.args[0].dtype, args)
                kind = env.product(e) if env.product is not None and e.op == "mul" else ""
                if kind and isinstance(made.owner, arith.MuliOp):
                    notes.annotate(made.owner, notes.Multiplier(kind), notes.Name("product"))
                return made
            case Whole():
                raise CuvilError(
                    f"{e.op} has no loops: an adapter that names it in whole_composites lowers kernel.whole itself"
                )
        raise CuvilError(f"can't lower {type(e).__name__}")

    def _select(self, e: Select, env: Env, memo: dict[int, SSAValue]) -> SSAValue:
        cond = self._emit(e.cond, env, memo)
        if any(isinstance(n, Load) for side in (e.then, e.other) for n in walk(side)):
            sides = [lambda s=s: [self._emit(s, env, dict(memo))] for s in (e.then, e.other)]
            return self.branch(cond, *sides)[0]
        return self.put(arith.SelectOp(cond, self._emit(e.then, env, memo), self._emit(e.other, env, memo)))

    def _index(self, e: Apply, args: list[SSAValue]) -> SSAValue:
        a, b = args
        if e.op in ("floordiv", "mod"):
            natural = bounds(e.args[0])[0] >= 0
            if e.op == "floordiv":
                return self.put(arith.DivUIOp(a, b) if natural else arith.FloorDivSIOp(a, b))
            if natural:
                return self.put(arith.RemUIOp(a, b))
            q = self.put(arith.FloorDivSIOp(a, b))
            return self.put(arith.SubiOp(a, self.put(arith.MuliOp(q, b))))
        ops: dict[str, Any] = {
            "add": arith.AddiOp,
            "mul": arith.MuliOp,
            "min": arith.MinSIOp,
            "max": arith.MaxSIOp,
            "sub": arith.SubiOp,
        }
        return self.put(ops[e.op](a, b))

    def compare(self, op: str, a: SSAValue, b: SSAValue, dtype: str = "index") -> SSAValue:
        """eq, ne, lt, le, gt, ge of two values; NaN compares as in IEEE."""
        if dtypes.is_float(dtype):
            names = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
            return self.put(arith.CmpfOp(a, b, names[op]))
        unsigned = dtype == "bool" or dtype.startswith("u")
        names = {
            o: o if o in ("eq", "ne") else ("u" if unsigned else "s") + o for o in ("eq", "ne", "lt", "le", "gt", "ge")
        }
        return self.put(arith.CmpiOp(a, b, names[op]))

    def apply(self, op: str, dtype: str, args: list[SSAValue]) -> SSAValue:
        """An operator on operands of `dtype`."""
        if op in ("eq", "ne", "lt", "le", "gt", "ge"):
            return self.compare(op, args[0], args[1], dtype)
        unsigned = dtype.startswith("u") or dtype == "bool"
        if dtype == "bf16":
            raise CuvilError(f"{op} of bf16: it is only moved and converted; cast to {dtypes.record(dtype).work} first")
        row = scalar(op)
        name = row.real if dtypes.is_float(dtype) else row.unsigned if unsigned else row.signed
        if name:
            return self.put(_LEVEL2[name](*args))

        def one(v: float | bool) -> SSAValue:
            return self.const(v, dtype)

        match op:
            case "neg":
                return self.put(arith.SubiOp(one(0), args[0]))
            case "not":
                return self.put(arith.XOrIOp(args[0], one(True if dtype == "bool" else -1)))
            case "abs" if not dtypes.is_float(dtype):
                negative = self.compare("lt", args[0], one(0), dtype)
                return self.put(arith.SelectOp(negative, self.put(arith.SubiOp(one(0), args[0])), args[0]))
            case "isnan":
                return self.put(arith.CmpfOp(args[0], args[0], "uno"))
            case "isinf":
                return self.put(arith.CmpfOp(self.put(math.AbsFOp(args[0])), one(float("inf")), "oeq"))
            case "sigmoid":
                e = self.put(math.ExpOp(self.put(arith.NegfOp(args[0]))))
                return self.put(arith.DivfOp(one(1.0), self.put(arith.AddfOp(one(1.0), e))))
            case "mod":  # the sign of the divisor, as Python and NumPy
                return self._floor_mod(dtype, *args)
        raise CuvilError(f"can't lower {op} on {dtype}")

    def _floor_mod(self, dtype: str, a: SSAValue, b: SSAValue) -> SSAValue:
        real = dtypes.is_float(dtype)
        r = self.put(level2.RemFOp(a, b) if real else arith.RemSIOp(a, b))
        zero = self.const(0, dtype)
        differs = self.put(arith.XOrIOp(self.compare("lt", r, zero, dtype), self.compare("lt", b, zero, dtype)))
        wrong = self.put(arith.AndIOp(self.compare("ne", r, zero, dtype), differs))
        return self.put(arith.SelectOp(wrong, self.put(arith.AddfOp(r, b) if real else arith.AddiOp(r, b)), r))

    def _saturate(self, v: SSAValue, source: str, dtype: str) -> SSAValue:
        slo, shi = dtypes.int_range(source)
        lo, hi = dtypes.int_range(dtype)
        if lo <= slo and shi <= hi:
            return self.convert(v, source, dtype)
        if source.startswith("u"):
            v, source = self.convert(v, source, f"i{int(source[1:]) + 1}"), f"i{int(source[1:]) + 1}"
        return self.put(level2.SaturateOp(v, dtype, self.layer, level2.signless(dtype)))

    def convert(self, v: SSAValue, source: str, dtype: str) -> SSAValue:
        """A value of dtype `source` in `dtype`; see expr.cast."""
        to = level2.signless(dtype)
        if source == dtype:
            return v
        if source == "bf16":
            return self.convert(of_bf16(self, v), "f32", dtype)
        if dtype == "bf16":
            return to_bf16(self, self.convert(v, source, "f32"))
        if dtypes.is_float(source):
            if dtypes.is_float(dtype):
                wider = dtypes.record(dtype).bits > dtypes.record(source).bits
                return self.put(arith.ExtFOp(v, to) if wider else arith.TruncFOp(v, to))
            return self._float_to_int(v, source, dtype)
        unsigned = source == "bool" or source.startswith("u")
        if dtypes.is_float(dtype):
            return self.put(arith.UIToFPOp(v, to) if unsigned else arith.SIToFPOp(v, to))
        if dtype == "bool":
            return self.compare("ne", v, self.const(0, source), source)
        if dtype == "index":
            wide = self.put(arith.ExtUIOp(v, IntegerType(64))) if unsigned and source != "u64" else v
            return self.put(arith.IndexCastOp(wide, INDEX))
        if source == "index":
            return self.put(arith.IndexCastOp(v, to))
        have, want = dtypes.record(source).bits, dtypes.record(dtype).bits
        if want > have:
            return self.put(arith.ExtUIOp(v, to) if unsigned else arith.ExtSIOp(v, to))
        return self.put(arith.TruncIOp(v, to)) if want < have else v

    def _float_to_int(self, v: SSAValue, source: str, dtype: str) -> SSAValue:
        """Truncates; NaN → 0; out of range → the nearest value of the range."""
        if dtype == "bool":
            return self.compare("ne", v, self.const(0.0, source), source)
        if source == "f16":  # f16 has no numbers as large as the ends of wide integers
            v, source = self.convert(v, source, "f32"), "f32"
        lo, hi = dtypes.int_range(dtype)
        container = dtypes.to_numpy(source).type
        above = container(float(hi) + 1.0)  # a power of two
        below_top = float(np.nextafter(above, container(0)))
        zero = self.const(0.0, source)
        number = self.put(arith.SelectOp(self.apply("isnan", source, [v]), zero, v))
        least = self.apply("max", source, [number, self.const(float(lo), source)])
        clipped = self.apply("min", source, [least, self.const(below_top, source)])
        convert = arith.FPToUIOp if dtype.startswith("u") else arith.FPToSIOp
        whole = self.put(convert(clipped, level2.signless(dtype)))
        over = self.compare("ge", number, self.const(float(above), source), source)
        return self.put(arith.SelectOp(over, self.const(hi, dtype), whole))


_OPS: tuple[Any, ...] = (*arith.Arith.operations, *math.Math.operations, level2.RemFOp)
_LEVEL2: Mapping[str, Any] = {op.name: op for op in _OPS}
