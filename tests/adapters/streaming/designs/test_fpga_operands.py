"""How stages read streams: parts, other orders, again and again; and tensors whose order isn't channels last."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from xdsl.ir import SSAValue

from cuvil_hw import ops
from cuvil_hw.adapters.streaming.analysis.cost import cycles
from cuvil_hw.adapters.streaming.analysis.operand import DISTANCE, Operand, evaluate_index, operand, part_needs
from cuvil_hw.adapters.streaming.analysis.order import stream_orders
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.lowering.folded import Folded
from cuvil_hw.adapters.streaming.lowering.form import Process, processes
from cuvil_hw.errors import Unsupported
from cuvil_hw.expr.nodes import Expr, Iter, Load, index, parallel
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.types import TensorType as T
from tests.support import fpga_runner
from tests.support.flat_check import unflat
from tests.support.level2_runner import Interpreted

Build = Callable[[Builder, SSAValue], SSAValue]


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)


def linear(b: Builder, x: SSAValue, outputs: int, inputs: int) -> SSAValue:
    return b.op(ops.Linear(3, (0,), "i24"), x, b.const(weights(outputs, inputs)))


def rescaled(b: Builder, x: SSAValue) -> SSAValue:
    return b.op(ops.Rescale((1 << 20,), (28,), "i8"), x)


def attention(b: Builder, x: SSAValue) -> SSAValue:
    """(1, 6, 24) → heads of 4 features; no softmax."""
    qkv = b.op(ops.Transpose((2, 0, 3, 1, 4)), b.op(ops.Reshape((1, 6, 3, 2, 4)), x))
    q, k, v = (
        b.op(ops.Reshape((1, 2, 6, 4)), b.op(ops.Slice((n, 0, 0, 0, 0), (1, 1, 2, 6, 4), (1,) * 5), qkv))
        for n in range(3)
    )
    scores = rescaled(b, b.op(ops.MatMul(1, (2,), "i24"), q, b.op(ops.Transpose((0, 1, 3, 2)), k)))
    mixed = rescaled(b, b.op(ops.MatMul(0, (1,), "i24"), scores, v))
    return linear(b, b.op(ops.Reshape((1, 6, 8)), b.op(ops.Transpose((0, 2, 1, 3)), mixed)), 4, 8)


def less_largest(axis: int, shape: tuple[int, ...]) -> Build:
    """x less the largest along an axis, which is broadcast."""

    def build(b: Builder, x: SSAValue) -> SSAValue:
        kept = tuple(1 if d == axis else n for d, n in enumerate(shape))
        most = b.op(ops.Reshape(kept), b.op(ops.ReduceMax((axis,)), x))
        return b.op(ops.Sub("i9"), x, b.op(ops.BroadcastTo(shape), most))

    return build


def along_positions(b: Builder, x: SSAValue) -> SSAValue:
    features = b.op(ops.Transpose((0, 2, 1)), rescaled(b, linear(b, x, 4, 8)))
    return b.op(ops.Conv((1,), (1, 1), (1,), 1, 3, (0,), "i24"), features, b.const(weights(3, 4, 3)))


CASES: dict[str, tuple[tuple[int, ...], Build]] = {
    "linear on every position": ((1, 6, 8), lambda b, x: linear(b, rescaled(b, linear(b, x, 12, 8)), 5, 12)),
    "linear across positions": ((1, 6, 8), lambda b, x: linear(b, b.op(ops.Transpose((0, 2, 1)), x), 4, 6)),
    "attention": ((1, 6, 24), attention),
    "rows": ((1, 6, 8), less_largest(2, (1, 6, 8))),
    "columns": ((1, 6, 8), less_largest(1, (1, 6, 8))),
    "channels of an image": ((1, 4, 3, 6), less_largest(1, (1, 4, 3, 6))),
    "rows of an image": ((1, 4, 3, 6), less_largest(3, (1, 4, 3, 6))),
    "slice": ((1, 4, 6, 6), lambda b, x: b.op(ops.Slice((0, 2, 1, 0), (1, 2, 4, 6), (1,) * 4), x)),
    "every other row": ((1, 4, 6, 6), lambda b, x: b.op(ops.Slice((0, 0, 1, 0), (1, 4, 3, 6), (1, 1, 2, 1)), x)),
    "split features": ((1, 6, 8), lambda b, x: b.op(ops.Transpose((0, 2, 1, 3)), b.op(ops.Reshape((1, 6, 2, 4)), x))),
    "joined features": (
        (1, 2, 6, 4),
        lambda b, x: linear(b, b.op(ops.Reshape((1, 6, 8)), b.op(ops.Transpose((0, 2, 1, 3)), x)), 3, 8),
    ),
    "a rescale of each row": (
        (1, 4, 3, 6),
        lambda b, x: b.op(ops.Rescale((3 << 20, 5 << 20, 7 << 20), (23,) * 3, "i8", axis=2), x),
    ),
    "rows of an image and two streams": (
        (1, 4, 3, 6),
        lambda b, x: b.op(ops.Add("i9"), x, b.op(ops.Rescale((3 << 20, 5 << 20, 7 << 20), (23,) * 3, "i8", axis=2), x)),
    ),
    "places": ((1, 6, 8), lambda b, x: b.op(ops.Add("i9"), x, b.const(weights(1, 6, 8)))),
    "a convolution along positions": ((1, 6, 8), along_positions),
}


def program_of(name: str) -> Program:
    shape, build = CASES[name]
    b = Builder([("x", T(shape, "i8"))])
    return b.finish([("y", build(b, b.input(0)))])


@pytest.mark.share(seed=2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CASES)
def test_streamed_in_any_order_with_the_bits_of_the_meaning(name: str, seed: int) -> None:
    """Any legal folding of each kernel, in the interpreter: FIFOs of their true depth, so that it may not deadlock."""
    forms = agree(program_of(name), seed)
    assert not [f.describe() for f in forms if f.folding.stage.kind == "buffered"]


def agree(program: Program, seed: int) -> list[Process]:
    """Runs any legal folding of each kernel."""
    inputs = fpga_runner.samples(program, np.random.default_rng(seed), 5)
    wanted = fpga_runner.meaning(program, inputs)
    graph = fpga_runner.graph_of(program)
    choice = fpga_runner.random_choice(graph, random.Random(seed))
    forms = fpga_runner.forms_of(choice)
    module = dataflow.lower(graph, forms, 64, packets=True)
    assert not unflat(module)
    got, _ = Interpreted(graph, module).run(inputs)
    difference = fpga_runner.difference(program, got, wanted)
    assert not difference, [f.describe() for f in forms]
    return forms


@pytest.mark.share(seed=2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", [ops.CumSum, ops.CumProd])
@pytest.mark.parametrize("axis", range(4))
def test_running_sums_take_other_elements_for_each_output(
    axis: int, op: type[ops.CumSum | ops.CumProd], reverse: bool, seed: int
) -> None:
    b = Builder([("x", T((2, 3, 2, 4), "i8"))])
    agree(b.finish([("y", b.op(op(axis, exclusive=bool(seed), reverse=reverse), b.input(0)))]), seed)


@pytest.mark.parametrize("seed", range(2))
def test_a_scalar_is_read_for_every_element(seed: int) -> None:
    b = Builder([("x", T((2, 3), "i8")), ("least", T((), "i8"))])
    least = b.op(ops.BroadcastTo((2, 3)), b.input(1))
    agree(b.finish([("y", b.op(ops.Maximum(), b.input(0), least))]), seed)


def test_a_linear_layer_on_every_position_takes_the_cycles_of_a_pointwise_convolution() -> None:
    b = Builder([("x", T((1, 16, 32), "i8"))])
    dense = fpga_runner.graph_of(b.finish([("y", linear(b, b.input(0), 64, 32))]))
    b = Builder([("x", T((1, 32, 4, 4), "i8"))])
    conv = ops.Conv((1, 1), (0, 0, 0, 0), (1, 1), 1, 3, (0,), "i24")
    image = fpga_runner.graph_of(b.finish([("y", b.op(conv, b.input(0), b.const(weights(64, 32, 1, 1))))]))
    family = fpga_runner.fabric(fpga_runner.PROFILE)
    found = []
    for graph in (dense, image):
        (kernel,) = graph.kernels
        forms = processes(kernel, family, graph.constants, stream_orders(graph))
        found.append({(f.folding.pe, f.folding.simd, f.folding.memory): cycles(f.folding) for f in forms})
    assert found[0] == found[1]


def test_a_port_brings_features_last_where_that_spares_a_memory() -> None:
    def port(name: str) -> tuple[int, ...]:
        graph = fpga_runner.graph_of(program_of(name))
        return stream_orders(graph)[graph.inputs[0]]

    assert port("linear on every position") == (0, 1, 2)
    assert port("linear across positions") == (0, 2, 1)
    assert port("channels of an image") == (0, 2, 3, 1)


def test_tables_over_many_places_hold_the_last_one_too() -> None:
    """np.unravel_index stops after 8,192 elements where an array has trailing dimensions of one element."""
    b = Builder([("x", T((1, 8, 48, 24), "i8"))])
    y = b.op(ops.Add("i9"), b.input(0), b.const(weights(1, 8, 48, 24)))
    graph = fpga_runner.graph_of(b.finish([("y", y)]))
    (kernel,) = graph.kernels
    form = processes(kernel, fpga_runner.fabric(fpga_runner.PROFILE), graph.constants, stream_orders(graph))[0]
    stage = form.folding.stage
    (row,) = (it for it in stage.lanes if it.extent == 48)
    grid = Folded(stage, graph, 1, 1).grids[row].ravel()
    np.testing.assert_array_equal(grid, np.repeat(np.arange(48), grid.size // 48))


BUFFERED: dict[str, tuple[Build, str]] = {
    "argmax": (lambda b, x: b.op(ops.ArgMax(1), x), "several running values"),
    "floats": (lambda b, x: b.op(ops.MatMul(), x, b.op(ops.Transpose((0, 2, 1)), x)), "a product of streams of floats"),
}


@pytest.mark.parametrize("name", BUFFERED)
def test_what_remains_buffered_says_why(name: str) -> None:
    build, why = BUFFERED[name]
    b = Builder([("x", T((1, 4, 6), "f32" if name == "floats" else "i8"))])
    graph = fpga_runner.graph_of(b.finish([("y", build(b, b.input(0)))]))
    family = fpga_runner.fabric(fpga_runner.PROFILE)
    forms = [processes(k, family, graph.constants, stream_orders(graph))[0] for k in graph.kernels]
    assert [f.describe() for f in forms if f"kind=buffered ({why})" in f.describe()]


def test_a_port_without_elements_is_refused() -> None:
    b = Builder([("x", T((2,), "i8"))])
    graph = fpga_runner.graph_of(b.finish([("y", b.const(np.zeros(0, np.int8)))]))
    with pytest.raises(Unsupported, match="has no elements"):
        dataflow.lower(graph, [], 64)


I, J, K = (parallel(n, extent) for n, extent in (("i", 4), ("j", 6), ("k", 8)))


def walked(shape: tuple[int, ...], at: tuple[Expr, ...], nest: list[tuple[Iter, str]]) -> Operand | None:
    return operand(Load("i8", "x", at), T(shape, "i8"), tuple(range(len(shape))), nest)


WALKS = [
    ((4, 6), (I, J)),
    ((6, 4), (J, I)),
    ((8, 6), (I + index(2), J)),
    ((8, 6), (I * 2 + index(1), J)),
    ((4, 3), (I, J // index(2))),
    ((24,), (I * 6 + J,)),
    ((2, 4, 8), (K // index(4), I, K % index(4) * 2)),
    ((2, 6, 4), (K // index(4), J, K % index(4))),
]


@pytest.mark.parametrize(("shape", "at"), WALKS)
def test_a_memory_gives_what_the_loops_say(shape: tuple[int, ...], at: tuple[Expr, ...]) -> None:
    """The part that passes, then the places of the memory, against the load itself, for all words that fit."""
    nest = [(I, "outer"), (J, "lane"), (K, "in")]
    found = walked(shape, at, nest)
    assert found is not None
    assert found.levels is not None
    stream = np.arange(found.elements)
    part = stream[part_needs(found.levels, 1) - 1] if found.sliced else stream
    assert len(part) == found.read
    wanted = [_place(shape, at, {I: i, J: j, K: k}) for i, j, k in product(range(4), range(6), range(8))]
    loops = [(x.extent, x.stride) for x in found.packed]
    places = np.zeros(1, np.int64)
    for extent, stride in loops:
        places = (places[:, None] + np.arange(extent) * stride).ravel()
    np.testing.assert_array_equal(part[places], wanted)
    for pe, simd in product((1, 2, 3), (1, 2, 4)):
        if found.stored and found.fits(pe, simd):
            plan = found.reorder(pe, simd)
            assert plan.blocks * plan.words * plan.lanes == found.read
            assert (
                plan.blocks * plan.given * plan.lanes * plan.banks
                == found.lanes(pe, simd)[0] * plan.blocks * plan.given
            )
            assert 0 <= plan.idle <= DISTANCE


def _place(shape: tuple[int, ...], at: tuple[Expr, ...], values: dict[Iter, int]) -> int:
    where = [evaluate_index(e, {it: np.asarray(v) for it, v in values.items()}) for e in at]
    return int(np.ravel_multi_index([int(w) for w in where if w is not None], shape))


@pytest.mark.parametrize("at", [(J * I,), (index(23) - J,), ((I + J) // index(2),)])
def test_what_is_no_nest_of_loops(at: tuple[Expr, ...]) -> None:
    assert walked((24,), at, [(I, "outer"), (J, "lane")]) is None
