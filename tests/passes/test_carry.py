"""Quantized loops: one grid at both ends of a step, integers across edges, and the bits of the unrolled program."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cuvil_hw import ops
from cuvil_hw.ir import level1
from cuvil_hw.ir.loops import loops_of
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.passes import unroll
from cuvil_hw.passes.pipeline import INTEGER, SIMPLIFY, run_pipeline
from cuvil_hw.passes.quantize.calibrate import collect, numbered
from cuvil_hw.passes.quantize.ptq import quantize
from cuvil_hw.target.schemes import Fixed, Int8, Scheme
from cuvil_hw.types import TensorType

Array = npt.NDArray[Any]
STEPS, WIDE = 5, 6
SCHEMES = [pytest.param(Int8(), id="int8"), pytest.param(Fixed(16, 6), id="fixed")]


def draw(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(size=shape), np.float32)


def gated(initial: bool) -> Program:
    """A gated cell: h' = z·tanh(W·h + x) + (1 - z)·h with z = sigmoid(V·h + x); the initial state is an input or 0."""
    inputs = [("x", TensorType((STEPS, 1, WIDE), "f32"))]
    b = Builder([*inputs, ("h", TensorType((1, WIDE), "f32"))] if initial else inputs)
    xs = b.op(ops.Linear(), b.input(0), b.const(draw(WIDE, WIDE, seed=3) / 2))
    start = b.input(1) if initial else b.const(np.zeros((1, WIDE), np.float32))
    i, h, x = b.ops(ops.LoopBegin(STEPS, 1, (0,)), start, xs)
    w, v = (b.op(ops.Linear(), h, b.const(draw(WIDE, WIDE, seed=n) / 2)) for n in (1, 2))
    z, new = b.op(ops.Sigmoid(), b.op(ops.Add(), v, x)), b.op(ops.Tanh(), b.op(ops.Add(), w, x))
    mixed = b.op(ops.Add(), b.op(ops.Mul(), z, b.op(ops.Sub(), new, h)), h)
    last, every = b.ops(ops.LoopEnd(STEPS, 1, (0,)), i, mixed, mixed)
    return b.finish([("every", every), ("last", last)])


def samples(program: Program, count: int = 8) -> list[tuple[Array, ...]]:
    return [tuple(draw(*kind.shape, seed=100 + n) for _, kind in program.inputs) for n in range(count)]


def test_calibration_sees_every_step() -> None:
    """The range of a state is that of all steps, computed here step by step in float64."""
    program = gated(initial=False)
    stats = collect(program, samples(program))
    (loop,) = loops_of(program.block)
    state = stats.ranges[numbered(program)[loop.carried[0][2]]]
    seen = [evaluate(program, sample)[0] for sample in samples(program)]
    assert state.lo == pytest.approx(min(map(np.min, seen)), rel=1e-6)
    assert state.hi == pytest.approx(max(map(np.max, seen)), rel=1e-6)


@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_loops_carry_integers_and_keep_the_bits_when_unrolled(scheme: Scheme, initial: bool) -> None:
    program = gated(initial)
    run_pipeline(program, SIMPLIFY)
    given = samples(program)
    placed = quantize(program, collect(program, given), scheme)
    run_pipeline(placed, INTEGER)
    (loop,) = loops_of(placed.block)
    inside = {level1.type_of(v).dtype for v in (*loop.begin.results, *loop.end.operands)}
    assert not any(dtype.startswith("f") for dtype in inside), placed.text()
    unrolled = placed.clone()
    unroll.run(unrolled)
    run_pipeline(unrolled, INTEGER)
    for sample in given:
        looped = evaluate(placed, sample)
        for got, want in zip(evaluate(unrolled, sample), looped, strict=True):
            np.testing.assert_array_equal(got, want)
        for got, want in zip(looped, evaluate(program, sample), strict=True):
            assert np.abs(got - want).max() < 0.1
