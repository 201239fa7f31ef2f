"""Loops of level1, with one meaning: as loops where kernels run one after another, unrolled on other targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cuvil_hw import api, ops
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Builder, Program, evaluate, parse
from cuvil_hw.passes import unroll
from cuvil_hw.schedule.memory import plan_memory, verify_plan
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType
from tests.support import cpu_runner
from tests.support.level2_check import lowered

Array = npt.NDArray[Any]
LOOPING = ("cpu", "h100", "mlu270")


def draw(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(size=shape), np.float32)


def recurrent(steps: int, batch: int, wide: int, reverse: int = 0) -> Program:
    """h = tanh(W·h + x); all of them, and the last one."""
    b = Builder([("x", TensorType((steps, batch, wide), "f32")), ("h0", TensorType((batch, wide), "f32"))])
    i, h, x = b.ops(ops.LoopBegin(steps, 1, (reverse,)), b.input(1), b.input(0))
    new = b.op(ops.Tanh(), b.op(ops.Add(), b.op(ops.Linear(), h, b.const(draw(wide, wide) / 2)), x))
    last, every = b.ops(ops.LoopEnd(steps, 1, (reverse,)), i, new, new)
    return b.finish([("every", every), ("last", last)])


def expected(x: Array, h: Array, reverse: int = 0) -> tuple[Array, Array]:
    """The same, in float64 and NumPy's own loop."""
    w, h, found = draw(h.shape[1], h.shape[1]).astype(np.float64) / 2, h.astype(np.float64), []
    for row in x[::-1] if reverse else x:
        h = np.tanh(h @ w.T + row)
        found.append(h)
    return np.stack(found[::-1] if reverse else found), h


def integers(steps: int) -> Program:
    """States that change places, one that stays, a count of steps, a slice that is handed on, a constant that is
    sliced, a result that is an input of the loop, and a loop within the loop."""
    b = Builder([("x", TensorType((steps, 4), "i32")), ("a", TensorType((4,), "i32")), ("s", TensorType((4,), "i32"))])
    table = b.const(np.arange(4 * steps, dtype=np.int32).reshape(steps, 4))
    i, first, second, stays, x, row = b.ops(
        ops.LoopBegin(steps, 3, (0, 1)), b.input(1), b.const(np.full(4, 7, np.int32)), b.input(2), b.input(0), table
    )
    j, inner, element = b.ops(ops.LoopBegin(4, 1, (0,)), x, row)
    spread = b.op(ops.BroadcastTo((4,)), element)
    grown = b.op(ops.Add("i32"), b.op(ops.Mul("i32"), inner, b.const(np.full(4, 3, np.int32))), spread)
    (inner_last,) = b.ops(ops.LoopEnd(4, 1, ()), j, grown)
    new = b.op(ops.Add("i32"), b.op(ops.Sub("i32"), first, inner_last), stays)
    count = b.op(ops.Cast("i32"), i)
    lasts = b.ops(ops.LoopEnd(steps, 3, (0, 1, 0, 0)), i, second, new, stays, count, x, new, stays)
    return b.finish([(f"out{n}", v) for n, v in enumerate(lasts)])


def integers_by_hand(x: Array, a: Array, s: Array) -> list[Array]:
    steps, first, second = len(x), a.astype(np.int64), np.full(4, 7, np.int64)
    counts, news = [], []
    for i in range(steps):
        inner = x[i].astype(np.int64)
        for element in np.arange(4 * steps).reshape(steps, 4)[steps - 1 - i]:
            inner = (inner * 3 + element + 2**31) % 2**32 - 2**31
        new = (first - inner + s + 2**31) % 2**32 - 2**31
        first, second = second, new
        counts.append(i)
        news.append(new)
    return [first, second, s, np.array(counts), x[::-1], np.stack(news), np.stack([s] * steps)]


@pytest.mark.parametrize("reverse", [0, 1])
def test_the_meaning_of_a_loop(reverse: int) -> None:
    x, h = draw(5, 2, 3, seed=1), draw(2, 3, seed=2)
    for got, want in zip(evaluate(recurrent(5, 2, 3, reverse), [x, h]), expected(x, h, reverse), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_states_counts_and_a_loop_within_a_loop(steps: int) -> None:
    given = _integers(steps)
    for got, want in zip(evaluate(integers(steps), given), integers_by_hand(*given), strict=True):
        np.testing.assert_array_equal(got, want)


def _integers(steps: int) -> list[Array]:
    draws = np.random.default_rng(steps)
    return [draws.integers(-1000, 1000, shape).astype(np.int32) for shape in ((steps, 4), (4,), (4,))]


@pytest.mark.parametrize(("target", "steps"), [("cpu", 1), ("cpu", 2), *((target, 5) for target in LOOPING)])
def test_integers_have_the_same_bits_on_targets_with_loops(target: str, steps: int) -> None:
    samples = [_integers(steps), [np.ascontiguousarray(a[::-1]) for a in _integers(steps)]]
    wanted = [integers_by_hand(*given) for given in samples]
    stacked = [np.stack(arrays) for arrays in zip(*samples, strict=True)]
    with lowered(integers(steps), target, seed=1, simulate=True) as (interpreted, simulated):
        assert simulated is not None
        for results in (interpreted.run(stacked)[0], simulated.run(stacked)[0]):
            for n, outputs in enumerate(wanted):
                for got, want in zip(results, outputs, strict=True):
                    np.testing.assert_array_equal(got[n], want)


@pytest.mark.parametrize("target", LOOPING)
def test_floats_on_targets_with_loops(target: str) -> None:
    x, h = draw(4, 2, 3, seed=1), draw(2, 3, seed=2)
    with lowered(recurrent(4, 2, 3, 1), target, seed=2, simulate=True) as (interpreted, simulated):
        assert simulated is not None
        for results in (interpreted.run([x[None], h[None]])[0], simulated.run([x[None], h[None]])[0]):
            for got, want in zip(results, expected(x, h, 1), strict=True):
                np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-6)


def test_unrolling_keeps_all_bits() -> None:
    program, given = integers(3), _integers(3)
    wanted = evaluate(program, given)
    unroll.run(program)
    program.verify()
    assert "loop" not in program.text()
    for got, want in zip(evaluate(program, given), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_loop_goes_through_text() -> None:
    program, given = integers(3), _integers(3)
    again = parse(program.text(), program.constants)
    for got, want in zip(evaluate(again, given), evaluate(program, given), strict=True):
        np.testing.assert_array_equal(got, want)


def test_memory_of_loops_is_planned_soundly() -> None:
    """What lives beyond a step keeps its place until the loop ends; the check replays several steps."""
    graph = api.fuse(integers(5), api.adapter_for(load_profile("cpu"), None))
    plan = plan_memory(graph, alignment=64)
    assert verify_plan(graph, plan) == []
    state = graph.loops[0].carried[0]
    assert not {state.even, state.odd} - set(plan.offset_bytes)
    assert plan.lifetimes[state.even] == (graph.loops[0].first, graph.loops[0].last)
    assert {k.runs for k in graph.kernels} == {5, 20}


def test_equal_steps_are_emitted_once() -> None:
    short, long = (cpu_runner.source_of(recurrent(steps, 2, 8)) for steps in (10, 1000))
    assert len(short.splitlines()) == len(long.splitlines())


def test_values_of_a_loop_stay_inside() -> None:
    b = Builder([("x", TensorType((3, 2), "f32"))])
    i, x = b.ops(ops.LoopBegin(3, 0, (0,)), b.input(0))
    (every,) = b.ops(ops.LoopEnd(3, 0, (0,)), i, x)
    with pytest.raises(CuvilError, match="outside of it"):
        b.finish([("every", every), ("leaks", x)])


def test_a_state_keeps_its_type() -> None:
    b = Builder([("x", TensorType((2,), "f32"))])
    i, _ = b.ops(ops.LoopBegin(3, 1), b.input(0))
    (last,) = b.ops(ops.LoopEnd(3, 1), i, b.const(np.zeros(3, np.float32)))
    with pytest.raises(CuvilError, match="other states or steps"):
        b.finish([("last", last)])
