"""The cost model against the vendors' own facts, and its shape: more parallel is never slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.adapters.streaming.analysis import cost, fold
from cuvil_hw.adapters.streaming.analysis.classify import classify
from cuvil_hw.adapters.streaming.analysis.fabric import (
    Use,
    block_rams,
    distributed,
    fifo_use,
    memory,
    multiplier_blocks,
)
from cuvil_hw.adapters.streaming.analysis.fold import Folding
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.zynq.fabric import FABRICS, fabric
from cuvil_hw.errors import ProfileError
from cuvil_hw.ir.program import Builder
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType
from tests.support.fpga_runner import graph_of

ZYNQ = FABRICS["dsp48e1"]
ULTRASCALE = FABRICS["dsp48e2"]


# UG573 and UG473: an 18 Kb block in simple dual port mode is 16K×1, 8K×2, 4K×4, 2K×9, 1K×18 or 512×36.
@pytest.mark.parametrize(
    ("depth", "width", "blocks"),
    [
        (16384, 1, 1), (8192, 2, 1), (4096, 4, 1), (2048, 9, 1), (1024, 18, 1), (512, 36, 1),
        (512, 37, 2), (513, 36, 2), (1025, 18, 2), (2048, 8, 1), (2048, 18, 2), (512, 72, 2),
        (65536, 1, 4), (16384, 8, 8), (100, 1, 1), (1, 1, 1), (0, 8, 0), (8, 0, 0),
    ],
)  # fmt: skip
def test_block_memories(depth: int, width: int, blocks: int) -> None:
    assert block_rams(ZYNQ, depth, width) == blocks


# UG474: a SLICEM LUT is a 64×1 memory; F7/F8 multiplexers join four of them.
@pytest.mark.parametrize(
    ("depth", "width", "luts"), [(64, 1, 1), (64, 8, 8), (16, 8, 8), (65, 1, 2), (256, 1, 4), (256, 8, 32), (0, 8, 0)]
)
def test_distributed_memories(depth: int, width: int, luts: int) -> None:
    assert distributed(ZYNQ, depth, width) == luts


def test_where_a_memory_goes() -> None:
    def of(depth: int, width: int, kind: str = "") -> tuple[float, float]:
        use = Use()
        memory(use, ZYNQ, depth, width, kind)
        return use.lut, use.ram

    assert of(64, 100) == (100, 0)  # not deeper than a LUT
    assert of(128, 8) == (16, 0)  # 1,024 bits
    assert of(129, 8) == (0, 1)
    assert of(16, 8, "bram") == (0, 1)
    assert of(4096, 8, "lutram")[1] == 0


# UG479: DSP48E1 multiplies 25 by 18 bits signed; UG579: DSP48E2 27 by 18.
@pytest.mark.parametrize(
    ("a", "b", "e1", "e2"),
    [
        (8, 8, 1, 1),
        (18, 25, 1, 1),
        (18, 26, 2, 1),
        (18, 27, 2, 1),
        (18, 28, 2, 2),
        (25, 25, 2, 2),
        (25, 35, 2, 2),
        (25, 36, 3, 3),
        (9, 49, 2, 2),
        (9, 50, 3, 2),
        (1, 32, 0, 0),
        (0, 8, 0, 0),
    ],
)
def test_multipliers(a: int, b: int, e1: int, e2: int) -> None:
    assert multiplier_blocks(ZYNQ, a, b) == multiplier_blocks(ZYNQ, b, a) == e1
    assert multiplier_blocks(ULTRASCALE, a, b) == e2


def test_fifos() -> None:
    shallow, deep = fifo_use(ZYNQ, 2, 8), fifo_use(ZYNQ, 2048, 8)
    assert (shallow.ram, deep.ram) == (0, 1)
    assert shallow.lut < deep.lut + 2048  # a deep one isn't in shift registers
    assert fifo_use(ZYNQ, 32, 512).ram == 0  # one SRL a bit


def test_families_of_profiles() -> None:
    assert fabric(load_profile("pynq-z2")) is ZYNQ
    assert fabric(load_profile("kv260")) is ULTRASCALE
    known = load_profile("pynq-z2")
    profile = replace(known, settings={**known.settings, "dsp": "dsp99"})
    with pytest.raises(ProfileError, match=r"settings.dsp: 'dsp99' is not one of dsp48e1, dsp48e2, dsp58"):
        fabric(profile)


# ---- stages ---------------------------------------------------------------------------------------------------------


def conv_stage(c: int = 8, o: int = 12, kernel: int = 3, size: int = 10, groups: int = 1, dtype: str = "i8") -> Stage:
    b = Builder([("x0", TensorType((1, c, size, size), dtype))])
    w = b.const(np.ones((o, c // groups, kernel, kernel), np.int8), "i8")
    pad = kernel // 2
    acc = b.op(ops.Conv((1, 1), (pad,) * 4, (1, 1), groups, 0, (0,), "i20"), b.input(0), w)
    y = b.op(ops.Rescale(tuple(range(1000, 1000 + o)), (16,), "i8"), acc)
    (kernel_,) = graph_of(b.finish([("y0", y)]), narrow=False).kernels
    return classify(kernel_)


def folding(stage: Stage, pe: int, simd: int, memory_: str = "bram", multiplier: str = "dsp") -> Folding:
    for s in fold.foldings(stage, ZYNQ.floats):
        got = (s.pe, s.simd, s.memory, s.multiplier)
        if got == (pe, simd, memory_, multiplier):
            return s
    raise AssertionError(f"no folding {pe}×{simd} {memory_} {multiplier}")


def test_cycles_count_every_product() -> None:
    s = conv_stage()
    products = 100 * 12 * 9 * 8  # pixels, outputs, taps, inputs
    assert cost.cycles(folding(s, 1, 1)) == products
    assert cost.cycles(folding(s, 4, 8)) == products // 32
    point = conv_stage(kernel=1)
    assert cost.cycles(folding(point, 12, 8, "")) == 100  # a pixel a cycle: no faster than the stream


def test_a_window_generator_bounds_a_stage() -> None:
    s = conv_stage()
    widest = cost.cycles(folding(s, 12, 8))
    assert widest == 900 + 10 + 2  # nine words a window, and a row and two pixels before the first


def test_multipliers_of_a_stage() -> None:
    s = conv_stage()
    small, wide = [cost.resources(folding(s, pe, simd), ZYNQ) for pe, simd in ((1, 1), (4, 8))]
    rescale = 1  # i20 by 11 bits
    assert small.dsp == 1 + rescale
    assert wide.dsp == 4 * 8 + rescale  # four sums every nine steps: one lane of the epilogue keeps up
    assert folding(conv_stage(kernel=1), 4, 8).tail == 0  # four every step
    assert cost.resources(folding(s, 4, 8, "bram", "lut"), ZYNQ).dsp == rescale


def test_what_rounding_costs() -> None:
    """Ties to even take the one adder that other modes take, guard bits another one, shifts by channel multiplexers."""

    def luts(**kind: Any) -> float:
        b = Builder([("x0", TensorType((1, 8, 4, 4), "i16"))])
        (kernel_,) = graph_of(b.finish([("y0", b.op(ops.Rescale(dtype="i8", **kind), b.input(0)))])).kernels
        stage = classify(kernel_)
        return cost.resources(next(iter(fold.foldings(stage, ZYNQ.floats))), ZYNQ).lut

    up, even = (luts(multiplier=(1,), shift=(8,), rounding=mode) for mode in ("half_up", "half_even"))
    assert even == up
    assert luts(multiplier=(1,), shift=(8,), rounding="floor") < up
    assert luts(multiplier=(77,), shift=(14,), guard=8) > luts(multiplier=(77,), shift=(14,)) + 16
    assert luts(multiplier=(77,) * 8, shift=(14, 9, 14, 2, 3, 4, 5, 6)) > luts(multiplier=(77,), shift=(14,)) + 30


def test_weights_of_a_stage() -> None:
    s = conv_stage(64, 64)
    bits = 64 * 64 * 9 * 8
    for pe, simd in ((1, 1), (4, 4), (8, 16)):
        in_blocks = cost.resources(folding(s, pe, simd, "bram"), ZYNQ)
        in_luts = cost.resources(folding(s, pe, simd, "lutram"), ZYNQ)
        assert in_blocks.ram - in_luts.ram >= bits / 18432
        assert in_luts.lut - in_blocks.lut >= bits / 64


@pytest.mark.parametrize("groups", [1, 12])
@pytest.mark.parametrize("multiplier", ["dsp", "lut"])
def test_more_lanes_are_not_slower_and_not_smaller(multiplier: str, groups: int) -> None:
    s = conv_stage(12, 12, groups=groups)
    grid = {}
    for sch in fold.foldings(s, ZYNQ.floats):
        if sch.memory == "bram" and sch.multiplier == multiplier:
            use = cost.resources(sch, ZYNQ)
            grid[sch.pe, sch.simd] = (cost.cycles(sch), use)
    assert len(grid) >= 4
    for (pe, simd), (cycles, use) in grid.items():
        for (more_pe, more_simd), (fewer, larger) in grid.items():
            if more_pe >= pe and more_simd >= simd:
                assert fewer <= cycles
                assert larger.dsp >= use.dsp
                if multiplier == "lut":
                    assert larger.lut >= use.lut


def test_wider_types_cost_more() -> None:
    narrow, wide = [conv_stage(dtype=d) for d in ("i4", "i16")]
    a, b = [cost.resources(folding(s, 2, 4, "bram", "lut"), ZYNQ) for s in (narrow, wide)]
    assert b.lut > a.lut
    assert b.ff > a.ff
    assert b.ram >= a.ram
