"""Random integer networks with random foldings under true FIFO depths and stalls; the same on Xilinx's types.

Random graphs without stalls are in tests/conformance/test_random_graphs.py. CUVIL_NETWORKS=100 tries that many networks
instead of two; a seed in a failure reproduces its network, inputs and foldings.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.space import Choice
from cuvil_hw.types import TensorType
from tests.support import fpga_runner
from tests.support.fpga_networks import network
from tests.support.xilinx import ap_types

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++")]

COUNT = int(os.environ.get("CUVIL_NETWORKS", "2"))
BOUNDED = ("-DCUVIL_SIM_BOUNDED",)


def prepared(seed: int) -> tuple[Program, KernelGraph, Choice, list[np.ndarray], list[np.ndarray], str]:
    """A network, a folding of it, inputs and what they give; and a text that says what failed."""
    program, trace = network(seed)
    inputs = fpga_runner.samples(program, np.random.default_rng(seed), 8)
    wanted = fpga_runner.meaning(program, inputs)
    graph = fpga_runner.graph_of(program, narrow=seed % 4 > 0)
    choice = fpga_runner.random_choice(graph, random.Random(seed))
    foldings = [f"{name}: {c.form.describe()}" for name, c in choice.picked]
    return program, graph, choice, inputs, wanted, "\n".join([f"seed {seed}", *trace, *foldings])


def check(seed: int, flags: Sequence[str] = (), headers: Path | None = None, stalls: Sequence[int] = ()) -> None:
    program, graph, choice, inputs, wanted, about = prepared(seed)
    with fpga_runner.loaded(graph, choice, flags, headers) as simulation:
        for n, percent in enumerate(stalls or [None]):
            if percent is not None:
                simulation.stall(seed + n, percent)
            got, _ = simulation.run(inputs)
            different = fpga_runner.difference(program, got, wanted)
            assert not different, f"{different}\n{about}"


@pytest.mark.parametrize("seed", range(1000, 1000 + COUNT))
def test_true_fifo_depths_and_random_stalls_change_nothing(seed: int) -> None:
    check(seed, BOUNDED, stalls=range(100))


def test_one_bit_is_a_number_with_or_without_a_sign() -> None:
    """i1 holds -1 and 0, u1 and bool hold 0 and 1, though all are one wire."""
    shape = (1, 3, 4, 4)
    b = Builder([(f"x{n}", TensorType(shape, d)) for n, d in enumerate(["i1", "u1", "i8"])], "bits")
    signed, unsigned, wide = (b.input(n) for n in range(3))
    pool = ops.MaxPool((2, 2), (2, 2), (0, 0, 0, 0), (1, 1))
    narrow = b.op(ops.Rescale((1,), (7,), "i1"), wide)
    outputs = [
        b.op(pool, signed),
        b.op(pool, unsigned),
        b.op(ops.Add("i9"), narrow, signed),
        b.op(ops.Add("i9"), b.op(ops.Rescale((1,), (7,), "u1"), wide), unsigned),
        b.op(ops.Less(), signed, narrow),
        b.op(ops.Minimum(), signed, narrow),
        b.op(ops.Cast("i8"), b.op(ops.GreaterEqual(), wide, b.op(ops.Cast("i8"), signed))),
    ]
    program = b.finish([(f"y{n}", y) for n, y in enumerate(outputs)])
    inputs = fpga_runner.samples(program, np.random.default_rng(0), 12)
    wanted = fpga_runner.meaning(program, inputs)
    graph = fpga_runner.graph_of(program)
    with fpga_runner.loaded(graph, fpga_runner.random_choice(graph, random.Random(0))) as simulation:
        different = fpga_runner.difference(program, simulation.run(inputs)[0], wanted)
    assert not different, different


def test_what_other_tools_got_wrong() -> None:
    """Pools with SAME padding on odd extents, padding that won a maximum, a depthwise conv that stopped at its last
    pixel under back-pressure, flatten in another order: one design, heavy stalls, values worked out here."""
    i8 = [TensorType((1, 2, 5, 5), "i8"), TensorType((1, 2, 4, 4), "i8"), TensorType((1, 3, 6, 6), "i8")]
    b = Builder([(f"x{n}", kind) for n, kind in enumerate(i8)], "traps")
    same = b.op(ops.MaxPool((2, 2), (2, 2), (0, 0, 1, 1), (1, 1)), b.input(0))
    padded = b.op(ops.MaxPool((2, 2), (2, 2), (1, 1, 1, 1), (1, 1)), b.input(1))
    taps = np.arange(27, dtype=np.int8).reshape(3, 1, 3, 3)
    conv = ops.Conv((1, 1), (1, 1, 1, 1), (1, 1), 3, 0, (0,), "i32")
    depthwise = b.op(conv, b.input(2), b.const(taps))
    ramp = np.arange(2 * 18, dtype=np.int8).reshape(2, 18)
    flat = b.op(ops.Reshape((1, 18)), same)
    program = b.finish([("same", same), ("padded", padded), ("dw", depthwise),
                        ("flat", b.op(ops.Linear(0, (0,), "i32"), flat, b.const(ramp)))])  # fmt: skip
    rng = np.random.default_rng(0)
    x = [rng.integers(-128, 0, (3, *kind.shape)).astype(np.int8) for kind in i8]
    x[1][0] = -1
    graph = fpga_runner.graph_of(program)
    for seed in (0, 1):
        with fpga_runner.loaded(graph, fpga_runner.random_choice(graph, random.Random(seed)), BOUNDED) as simulation:
            simulation.stall(seed, 80)
            got = simulation.run(x)[0]
        wide = np.pad(x[0], [(0, 0)] * 3 + [(0, 1)] * 2, constant_values=-128).reshape(3, 1, 2, 3, 2, 3, 2)
        np.testing.assert_array_equal(got[0], wide.max(axis=(4, 6)))
        np.testing.assert_array_equal(got[1][0], -1)
        around = np.pad(x[2].astype(np.int64)[:, 0], [(0, 0), (0, 0), (1, 1), (1, 1)])
        views = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(2, 3))
        np.testing.assert_array_equal(got[2][:, 0], (views * taps[None, :, 0, None, None]).sum(axis=(4, 5)))
        np.testing.assert_array_equal(got[3][:, 0], got[0].reshape(3, 18).astype(np.int64) @ ramp.T)


@pytest.mark.slow
def test_a_random_network_gives_the_same_bits_on_the_types_of_xilinx() -> None:
    check(4, headers=ap_types())


def test_the_generator_meets_every_kind_of_stage() -> None:
    """Guards the tests above: networks that stopped meeting a kind would prove less than they say."""
    from cuvil_hw.adapters.streaming.analysis.classify import classify

    kinds: dict[str, int] = {}
    windows = ports = 0
    for seed in range(12):
        program, _ = network(seed)
        graph = fpga_runner.graph_of(program)
        for stage in map(classify, graph.kernels):
            kinds[stage.kind] = kinds.get(stage.kind, 0) + 1
            windows += stage.kind in ("dense", "depthwise") and stage.reordered
        ports += len(graph.outputs) > len(graph.inputs)
    assert set(kinds) == {"dense", "depthwise", "map", "moved", "buffered"}
    assert min(kinds.values()) >= 5
    assert windows >= 10
    assert ports >= 3


def test_one_wrong_bit_is_seen() -> None:
    program, _, _, _, wanted, _ = prepared(0)
    got = [w.copy() for w in wanted]
    got[0].reshape(-1)[-1] ^= 1
    assert fpga_runner.difference(program, wanted, wanted) == ""
    assert fpga_runner.difference(program, got, wanted).startswith("y0")
