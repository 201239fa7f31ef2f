"""Level2: what a module may hold, and what its interpreter finds wrong while it runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects import arith, func, gpu, memref, scf
from xdsl.dialects.builtin import FunctionType, IntegerType, MemRefType, ModuleOp, StringAttr, f32, i8, i32
from xdsl.ir import Block, Region, SSAValue

from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import Args, ArrayPartition, Pipeline, Role, Threads, Unroll, annotate
from cuvil_hw.ir.interpreter.machine import Machine
from cuvil_hw.ir.interpreter.scalars import SCALARS
from cuvil_hw.ir.interpreter.values import Memory, Stream, Wire
from cuvil_hw.ir.legal import SCALAR, SEQUENTIAL, STREAMING, legal, parse
from cuvil_hw.lower.emit import Emitter, Tables
from tests.support.level2_random import function

DESIGN = (Path(__file__).parents[1] / "ir" / "level2" / "design.mlir").read_text(encoding="utf-8")
I8 = MemRefType(i8, [4])


def emitter(*types: object) -> tuple[Emitter, tuple[SSAValue, ...]]:
    block = Block(arg_types=list(types))
    return Emitter(block, Tables(ConstantStore())), tuple(block.args)


def kernel(e: Emitter, role: str = "kernel") -> ModuleOp:
    e.do(func.ReturnOp())
    op = func.FuncOp("f", FunctionType.from_lists([a.type for a in e.block.args], []), Region(e.block))
    annotate(op, Role(role))
    return ModuleOp([*e.tables.ops, op])


def run(module: ModuleOp, *arguments: Memory | int, blocks: int = 1) -> None:
    legal(module)
    Machine(module, {}).run("f", list(arguments), blocks=blocks)


# -- what a module may hold --------------------------------------------------------------------------------------------


def looped() -> tuple[ModuleOp, scf.ForOp, memref.AllocaOp]:
    e, _ = emitter(I8)
    memory = e.alloca((4, 2), "i8", "m")
    e.loop(4, "n", lambda i, _: e.store(e.const(1, "i8"), memory, i, e.const(0, "index")))
    module = kernel(e)
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    return module, loop, next(op for op in module.walk() if isinstance(op, memref.AllocaOp))


def test_annotations_are_known_typed_and_where_they_belong() -> None:
    module, loop, memory = looped()
    legal(module)
    for op, key, value, why in (
        (loop, "cuvil.fast", Unroll(), r"scf\.for of @f: there is no annotation cuvil\.fast; there are cuvil\.name"),
        (loop, "cuvil.pipeline", StringAttr("2"), r'scf\.for of @f: cuvil\.pipeline is "2", not a #cuvil\.pipeline'),
        (memory, "cuvil.pipeline", Pipeline(1), r"memref\.alloca of @f: cuvil\.pipeline belongs to scf\.for"),
        (memory, "cuvil.partition", ArrayPartition((2,)), "names dimension 2 of a memory with 2"),
        (memory.parent_op(), "cuvil.args", Args(("x", "y")), "@f: cuvil.args has 2 names for 1 arguments"),
    ):
        op.attributes[key] = value
        with pytest.raises(CuvilError, match=why):
            legal(module)
        del op.attributes[key]
    legal(module)


@pytest.mark.parametrize(
    "text",
    ["pipeline<0>", "pipeline<fast>", "role<thread>", "partition<[0, 0]>", "dtype<\"i65\">", "space<texture>",
     "threads<2000>", "distance<1>", "handle<\"../x\">"],
)  # fmt: skip
def test_values_outside_their_range_are_refused_where_they_are_read(text: str) -> None:
    name = text.partition("<")[0]
    source = (
        f"func.func @f() attributes {{cuvil.role = #cuvil.role<kernel>, cuvil.{name} = #cuvil.{text}}} {{ return }}"
    )
    with pytest.raises(CuvilError, match="level2 text is not valid"):
        parse(source)


def test_an_op_of_another_stage_is_named() -> None:
    e, _ = emitter()
    e.do(gpu.BarrierOp())
    module = kernel(e, "process")
    with pytest.raises(CuvilError, match=r"gpu\.barrier of @f: a process of a streaming module doesn't hold this op"):
        legal(module)
    with pytest.raises(CuvilError, match="@f: has role process; functions of a sequential module have: kernel"):
        legal(module, SEQUENTIAL)
    assert set(STREAMING.ops) == {"process", "dataflow"}


def test_threads_meet_under_no_condition() -> None:
    e, (x,) = emitter(MemRefType(IntegerType(1), []))
    e.branch(e.load(x), lambda: e.do(gpu.BarrierOp()))
    with pytest.raises(CuvilError, match="threads meet where all of them come by"):
        legal(kernel(e))


def test_types_and_open_sizes_are_level2s() -> None:
    for kind, why in ((MemRefType(IntegerType(65), [1]), "i65 is no type"), (MemRefType(i8, [2, -1]), "open size")):
        e, _ = emitter(kind)
        with pytest.raises(CuvilError, match=why):
            legal(kernel(e))


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ("func.call @double(%a, %b)", "func.call @double(%b, %a)", "stream a is read by 0 processes, not by one"),
        ("func.call @double(%a, %b) : (!cuvil.stream<i8, 2>, !cuvil.stream<i8, 2>) -> ()", "", "calls it 0 times"),
        ("depth = 2", "depth = 0", r"cuvil\.level2\.stream of @top: .*at least one word, not 0"),
        ("count = 4", "count = -4", "a tensor of -4 elements"),
        ('dtype<"i8">', 'dtype<"i9">', "elements of i9 don't fit stream"),
        ("#cuvil.role<dataflow>", "#cuvil.role<process>", "one function of role dataflow, not 0|doesn't hold this op"),
    ],
)
def test_a_design_joins_each_stream_once(was: str, now: str, why: str) -> None:
    assert was in DESIGN
    parse(DESIGN)
    with pytest.raises(CuvilError, match=why):
        parse(DESIGN.replace(was, now))


def test_both_know_the_same_ops_on_numbers() -> None:
    assert SCALARS == SCALAR


# -- what it computes --------------------------------------------------------------------------------------------------


def test_random_integer_functions_mean_the_same() -> None:
    for seed in range(150):
        op, widths, inputs, wanted = function(seed, "f")
        kinds = [MemRefType(IntegerType(w), [1]) for w in widths]
        given = [Memory(k, [n]) for k, n in zip(kinds, inputs, strict=False)]
        room = [Memory.empty(k) for k in kinds[len(given) :]]
        run(ModuleOp([op]), *given, *room)
        assert [m.values[0] for m in room] == wanted, seed


def test_an_index_outside_names_the_op_and_the_index() -> None:
    e, (x,) = emitter(I8)
    e.loop(5, "n", lambda i, _: e.store(e.const(1, "i8"), x, i))
    with pytest.raises(CuvilError, match=r"memref\.store in loop n of @f: index \[4\] lies outside a memory of \[4\]"):
        run(kernel(e), Memory.empty(I8))


def test_what_was_never_written_may_be_moved_but_not_used() -> None:
    e, (x, y) = emitter(I8, I8)
    zero = e.const(0, "index")
    v = e.load(x, zero)
    e.store(e.put(arith.SelectOp(e.const(True, "bool"), e.const(3, "i8"), v)), y, zero)
    e.store(v, y, e.const(1, "index"))
    out = Memory.empty(I8)
    run(kernel(e), Memory.empty(I8), out)
    assert out.values == [3, None, None, None]
    with pytest.raises(CuvilError, match="element 1 was never written"):
        out.array("i8")
    e, (x, y) = emitter(I8, I8)
    e.store(e.put(arith.AddiOp(e.load(x, e.const(0, "index")), e.const(1, "i8"))), y, e.const(0, "index"))
    with pytest.raises(CuvilError, match=r"arith\.addi of @f: uses a value that was never written"):
        run(kernel(e), Memory.empty(I8), Memory.empty(I8))


@pytest.mark.parametrize(
    ("op", "dtype", "a", "b", "why"),
    [
        (arith.DivSIOp, "i8", 1, 0, "divides by zero"),
        (arith.RemUIOp, "i8", 1, 0, "divides by zero"),
        (arith.ShLIOp, "i8", 1, 8, "shifts 8 bits by 8"),
        (arith.AddiOp, "i5", 15, 1, "16 doesn't fit 5 bits, which don't wrap"),
    ],
)
def test_what_machines_leave_undefined_is_a_fault(op: type, dtype: str, a: int, b: int, why: str) -> None:
    kind = MemRefType(level2.signless(dtype), [1])
    e, (x, y) = emitter(kind, kind)
    zero = e.const(0, "index")
    e.store(e.put(op(e.load(x, zero), e.load(y, zero))), x, zero)
    with pytest.raises(CuvilError, match=rf"arith\.\w+ of @f: {why}"):
        run(kernel(e), Memory(kind, [a]), Memory(kind, [b]))


def test_floats_round_to_their_own_type_and_nan_goes_through_extremes() -> None:
    kind = MemRefType(f32, [3])
    e, (x, y) = emitter(kind, kind)
    for n in range(3):
        at = e.const(n, "index")
        v = e.load(x, at)
        e.store(e.put((arith.AddfOp, arith.MaximumfOp, arith.DivfOp)[n](v, e.load(y, at))), x, at)
    a = Memory.of(np.array([16777216, 1, 1], np.float32), kind)
    run(kernel(e), a, Memory.of(np.array([1, np.nan, 0], np.float32), kind))
    got = a.array("f32")
    assert got[0] == 16777216
    assert np.isnan(got[1])
    assert got[2] == np.inf
    e, (x,) = emitter(kind)
    zero = e.const(0, "index")
    e.put(arith.FPToSIOp(e.load(x, zero), i32))
    with pytest.raises(CuvilError, match=r"arith\.fptosi of @f: converts inf to an integer"):
        run(kernel(e), Memory.of(np.full(3, np.inf, np.float32), kind))


def test_a_loop_that_threads_leave_at_different_times_has_no_barrier_for_all() -> None:
    e, _ = emitter()
    thread = e.put(gpu.ThreadIdOp(gpu.DimensionAttr(gpu.DimensionEnum.X)))
    e.loop(thread, "n", lambda i, _: e.do(gpu.BarrierOp()))
    module = kernel(e)
    annotate(next(op for op in module.ops if isinstance(op, func.FuncOp)), Threads(3))
    with pytest.raises(
        CuvilError, match="block 0: thread 1 waits at a barrier that thread 0 doesn't reach: it has ended"
    ):
        run(module)


def test_unsigned_and_odd_integers_keep_their_container() -> None:
    e, (x, y) = emitter(MemRefType(i8, [2]), MemRefType(i8, [2]))
    e.loop(2, "n", lambda i, _: e.store(e.load(x, i), y, i))
    out = Memory.empty(MemRefType(i8, [2]))
    run(kernel(e), Memory.of(np.array([200, 1], np.uint8), MemRefType(i8, [2])), out)
    assert out.values == [-56, 1]
    np.testing.assert_array_equal(out.array("u8"), np.array([200, 1], np.uint8))
    assert Memory.of(np.array([-1]), MemRefType(IntegerType(1), [1])).array("i1").tolist() == [-1]


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_deadlock_says_who_waits_for_whom() -> None:
    """A process that reads three words of one stream before the first of another, which a fork fills at the same
    time."""
    word = "(!cuvil.stream<i8, 2>, memref<2xi8>) -> ()"
    two = "!cuvil.stream<i8, 2>"
    loop = "scf.for %i = %zero to %three step %one {{\n{0}\n}}"
    head = """
    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
    %three = arith.constant 3 : index
    %w = memref.alloca() {cuvil.word = #cuvil.word} : memref<2xi8>
    """
    move = '"cuvil.level2.stream_{0}"(%{1}, %w) : ' + word
    fork = loop.format("\n".join([move.format("read", "in"), move.format("write", "p"), move.format("write", "q")]))
    join = "\n".join([loop.format(move.format("read", "p")), loop.format(move.format("read", "q")),
                      loop.format(move.format("write", "out"))])  # fmt: skip
    role = "attributes {cuvil.role = #cuvil.role<process>}"
    processes = f"""
    func.func @fork(%in : {two}, %p : {two}, %q : {two}) {role} {{ {head} {fork} func.return }}
    func.func @join(%p : {two}, %q : {two}, %out : {two}) {role} {{ {head} {join} func.return }}
    """
    stream = '%{0} = "cuvil.level2.stream"() <{{depth = {1} : i32}}> {{cuvil.name = #cuvil.name<"{0}">}} : () -> ' + two
    calls = f"""
    {stream.format("p", 2)}
    {stream.format("q", "DEPTH")}
    func.call @fork(%a, %p, %q) : ({two}, {two}, {two}) -> ()
    func.call @join(%p, %q, %b) : ({two}, {two}, {two}) -> ()
    """
    top = DESIGN[DESIGN.index("func.func @top") :].replace("count = 4", "count = 6")
    top = re.sub(r"  func\.call @double.*\n", lambda _: calls, top)
    for depth, fine in ((2, True), (1, False)):
        module = parse((processes + top).replace("DEPTH", str(depth)))
        wire = Wire([[1, 2, 3, 4, 5, 6]], [True])
        out = Wire()
        if fine:
            Machine(module, {}).run("top", [wire, out])
            assert out.tensors == [[5, 6, 5, 6, 5, 6]]
            continue
        with pytest.raises(CuvilError) as error:
            Machine(module, {}).run("top", [wire, out])
        text = str(error.value)
        assert "fork waits for room in q, full with 1 words, which join reads" in text
        assert "join waits for a word of p, which fork writes" in text


def test_words_that_nobody_reads_are_found() -> None:
    source = DESIGN.replace("count = 4 : i32, dtype = #cuvil.dtype<\"i8\">}> : (!cuvil.axis<32>", "count = 6 : i32, "
                            "dtype = #cuvil.dtype<\"i8\">}> : (!cuvil.axis<32>")  # fmt: skip
    with pytest.raises(CuvilError, match="stream a still holds 1 words when all processes are through"):
        Machine(parse(source), {}).run("top", [Wire([[1, 2, 3, 4, 5, 6]], [True]), Wire()])


def test_one_process_runs_alone() -> None:
    words = Stream("in", 9)
    words.words.extend([[1, 2], [3, 4]])
    out = Stream("out", 9)
    Machine(parse(DESIGN), {}).run("double", [words, out])
    assert list(out.words) == [[2, 4], [6, 8]]
