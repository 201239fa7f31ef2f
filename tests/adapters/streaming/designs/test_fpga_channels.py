"""Numbers of channels without divisors are padded: no result changes, nothing padded leaves, cycles don't jump."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from xdsl.ir import SSAValue

import cuvil
from cuvil_hw import ops
from cuvil_hw.adapters.streaming.analysis.border import border
from cuvil_hw.adapters.streaming.analysis.stage import foldable, lane_chain
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.zynq.adapter import ZynqAdapter
from cuvil_hw.api import choose, fuse, propose
from cuvil_hw.compile.golden import meaning as meaning_of
from cuvil_hw.ir import level1
from cuvil_hw.ir.annotations import Role, text_of
from cuvil_hw.ir.flat import breaks
from cuvil_hw.ir.legal import functions
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.passes import pad_channels
from cuvil_hw.schedule.space import Choice
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType as T
from tests.support import fpga_runner
from tests.support.level2_runner import Interpreted

pytestmark = pytest.mark.needs("ortools")


def test_padding_leaves_no_large_step_between_numbers_of_lanes() -> None:
    assert [foldable(n) for n in (1, 3, 7, 10, 64, 61, 593)] == [1, 3, 8, 10, 64, 64, 600]
    for n in (*range(1, 130), 251, 509, 593, 1021):
        padded = foldable(n)
        assert n <= padded <= n * 4 / 3
        assert max((b // a for a, b in zip(lane_chain(padded), lane_chain(padded)[1:], strict=False)), default=1) <= 7


class Net:
    """Ops one after another on integers, with random constants."""

    def __init__(self, *shape: int) -> None:
        self.draw = np.random.default_rng(sum(shape))
        self.b = Builder([("x", T(shape, "i8"))])

    def weights(self, *shape: int) -> SSAValue:
        return self.b.const(self.draw.integers(-8, 8, shape).astype(np.int8))

    def shape(self, x: SSAValue) -> tuple[int, ...]:
        return level1.type_of(x).shape

    def i8(self, x: SSAValue, axis: int = 1) -> SSAValue:
        """As rescaled by one multiplier a channel."""
        each = tuple(self.draw.integers(1, 40, self.shape(x)[axis]).tolist())
        return self.b.op(ops.Rescale(each, (9,), "i8", 0, 3, axis), x)

    def linear(self, x: SSAValue, outputs: int) -> SSAValue:
        zeros = tuple(self.draw.integers(-3, 3, outputs).tolist())
        bias = self.b.const(self.draw.integers(-99, 99, outputs).astype(np.int32))
        axis = len(self.shape(x)) - 1
        op = ops.Linear(5, zeros, "i32")
        return self.i8(self.b.op(op, x, self.weights(outputs, self.shape(x)[-1]), bias), axis)

    def conv(self, x: SSAValue, outputs: int, kernel: int, groups: int = 1) -> SSAValue:
        window = (kernel, kernel)
        op = ops.Conv((1, 1), (kernel // 2,) * 4, (1, 1), groups, 3, (0,), "i32")
        return self.i8(self.b.op(op, x, self.weights(outputs, self.shape(x)[1] // groups, *window)))


def dense() -> Program:
    n = Net(1, 61)
    return n.b.finish([("y", n.linear(n.linear(n.b.input(0), 13), 37))])


def branches() -> Program:
    """A skip connection, a depthwise convolution, a pool, and a linear layer over all pixels and channels."""
    n = Net(1, 7, 4, 4)
    x = n.conv(n.b.input(0), 13, 3)
    wide = n.b.op(ops.Add("i16"), x, n.conv(x, 13, 3, groups=13))
    x = n.b.op(ops.Relu(), n.i8(wide))
    x = n.b.op(ops.MaxPool((2, 2), (2, 2), (0,) * 4, (1, 1)), x)
    return n.b.finish([("y", n.linear(n.b.op(ops.Reshape((1, 52)), x), 11))])


def sequence() -> Program:
    n = Net(1, 3, 11)
    return n.b.finish([("y", n.linear(n.linear(n.b.input(0), 7), 7))])


@pytest.mark.parametrize("make", [dense, branches, sequence])
@pytest.mark.parametrize("seed", [0, 1])
def test_padded_channels_change_no_result(make: Callable[[], Program], seed: int) -> None:
    program = make()
    inputs = fpga_runner.samples(program, np.random.default_rng(seed), 3)
    wanted = fpga_runner.meaning(program, inputs)
    pad_channels.run(program, foldable)
    assert program.notes["channels"]
    graph = fpga_runner.graph_of(program)
    sides = [b.type for name in (*graph.inputs, *graph.outputs) for b in (graph.buffers[name],)]
    assert sides == [t for _, t in (*program.inputs, *program.outputs)]
    choice = fpga_runner.random_choice(graph, random.Random(seed))
    module = dataflow.lower(graph, fpga_runner.forms_of(choice), 64, packets=True)
    assert not [x for f in functions(module) if text_of(f, Role) == "process" for x in breaks(f)]
    assert not fpga_runner.difference(program, Interpreted(graph, module).run(inputs)[0], wanted)


def test_channels_that_another_op_looks_at_are_not_padded() -> None:
    n = Net(1, 8, 4, 4)
    x = n.conv(n.b.input(0), 7, 1)
    turned = n.b.op(ops.Transpose((0, 2, 3, 1)), x)
    program = n.b.finish([("y", n.b.op(ops.Concat(3), turned, turned))])
    before = program.text()
    pad_channels.run(program, foldable)
    assert program.text() == before
    assert "channels" not in program.notes


def choice_of(channels: int) -> Choice:
    """Of a layer with so many inputs and outputs on pynq-z2."""
    n = Net(1, channels)
    program = n.b.finish([("y", n.linear(n.linear(n.b.input(0), channels), channels))])
    profile, adapter = load_profile("pynq-z2"), ZynqAdapter()
    return choose(propose(fuse(program, adapter), adapter, profile), profile)


def test_cycles_follow_the_number_of_channels() -> None:
    cycles = {n: choice_of(n).objective for n in (61, 64, 67)}
    assert cycles[61] == cycles[64] <= cycles[67] <= 2 * cycles[64]


@pytest.mark.needs("g++", "torch")
@pytest.mark.parametrize("interface", ["sim", "sim-cycles"])
def test_padded_layers_have_the_bits_of_the_model(interface: str) -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(11, 13), torch.nn.ReLU(), torch.nn.Linear(13, 7)).eval()
    data = torch.randn(16, 11).numpy()
    with cuvil.compile(model, "pynq-z2", data[:1], data, "int8", interface=interface) as program:
        got = program(data)
        meaning = meaning_of(program.artifact)
        note = next(n for n in program.report["notes"] if n.startswith("channels are padded"))
    np.testing.assert_array_equal(got, np.concatenate([evaluate(meaning, [row[None]])[0] for row in data]))
    assert all(f"{a} → {b}" in note for a, b in ((11, 12), (13, 16), (7, 8)))


@pytest.mark.parametrize(("first", "step", "kind"), [(0, 1, "border"), (2, 1, None), (4, -1, None)])
def test_only_the_last_channels_are_dropped_at_a_port(first: int, step: int, kind: str | None) -> None:
    b = Builder([("x", T((1, 5), "i8"))])
    cut = b.op(ops.Slice((0, first), (1, 1), (1, step)), b.input(0))
    (kernel,) = fpga_runner.graph_of(b.finish([("y", cut)]), narrow=False).kernels
    (source,) = kernel.sources
    stage = border(kernel, {source: (0, 1)}, [source])
    assert (stage and stage.kind) == kind
