"""Tiles of vector registers: the bits of the plain loops, on whole and broken tiles, under padding and without."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.adapters.cpu.adapter import CpuAdapter
from cuvil_hw.adapters.cpu.form import RegisterTile
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.types import TensorType as T
from tests.support import device_runner
from tests.support.cpu_runner import PROFILE, graph_of, source_of

Make = Callable[[str], tuple[Program, tuple[Any, ...]]]


def numbers(seed: int, dtype: str, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype({"f32": np.float32, "f64": np.float64}[dtype])


def conv(
    x: tuple[int, ...], w: tuple[int, ...], stride: int = 1, pad: int = 1, dilation: int = 1, relu: bool = True
) -> Make:
    def make(dtype: str) -> tuple[Program, tuple[Any, ...]]:
        b = Builder([("x", T(x, dtype))])
        op = ops.Conv((stride,) * 2, (pad,) * 4, (dilation,) * 2)
        y = b.op(op, b.input(0), b.const(numbers(1, dtype, *w)), b.const(numbers(2, dtype, w[0])))
        return b.finish([("y", b.op(ops.Relu(), y) if relu else y)]), (numbers(3, dtype, *x),)

    return make


def linear(rows: int, inputs: int, outputs: int) -> Make:
    def make(dtype: str) -> tuple[Program, tuple[Any, ...]]:
        b = Builder([("x", T((rows, inputs), dtype))])
        y = b.op(
            ops.Linear(), b.input(0), b.const(numbers(1, dtype, outputs, inputs)), b.const(numbers(2, dtype, outputs))
        )
        return b.finish([("y", y)]), (numbers(3, dtype, rows, inputs),)

    return make


def product(rows: int, inner: int, columns: int) -> Make:
    def make(dtype: str) -> tuple[Program, tuple[Any, ...]]:
        b = Builder([("a", T((2, rows, inner), dtype)), ("b", T((2, inner, columns), dtype))])
        y = b.op(ops.MatMul(), b.input(0), b.input(1))
        return b.finish([("y", y)]), (numbers(1, dtype, 2, rows, inner), numbers(2, dtype, 2, inner, columns))

    return make


CASES: dict[str, Make] = {
    "padded": conv((1, 3, 9, 13), (16, 3, 3, 3)),
    "lanes left over": conv((2, 4, 5, 11), (21, 4, 3, 3)),
    "strided": conv((1, 3, 11, 14), (9, 3, 3, 3), stride=2),
    "dilated, wide padding": conv((1, 2, 8, 9), (8, 2, 3, 3), pad=3, dilation=2),
    "no padding": conv((1, 5, 4, 7), (40, 5, 1, 1), pad=0, relu=False),
    "more padding than input": conv((1, 2, 2, 2), (8, 2, 3, 3), pad=2),
    "rows of a batch": linear(7, 20, 24),
    "one row": linear(1, 33, 70),
    "two factors that differ": product(5, 9, 19),
}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("case", CASES)
def test_tiles_have_the_bits_of_plain_loops(case: str, dtype: str) -> None:
    program, inputs = CASES[case](dtype)
    meaning = evaluate(program, inputs)
    graph = graph_of(program)
    wanted = run(graph, lambda form: isinstance(form, RegisterTile), inputs)
    device_runner.compare(wanted, meaning, 1e-5 if dtype == "f32" else 1e-12, f16_rtol=0)
    offered = {f.registers for k in proposed(graph) for f in k if isinstance(f, RegisterTile)}
    assert offered, "no tiles were offered"
    for tile in {
        min(offered, key=str),
        max(offered, key=lambda t: t.rows * t.vectors),
        max(offered, key=lambda t: t.lanes),
    }:
        prefer = lambda form, tile=tile: not (isinstance(form, RegisterTile) and form.registers == tile)  # noqa: E731
        for got, want in zip(run(graph, prefer, inputs), wanted, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=str(tile))


def proposed(graph: Any) -> list[list[Any]]:
    return [list(forms) for forms in CpuAdapter().offer(graph, PROFILE).forms]


def run(graph: Any, prefer: Callable[[Any], bool], inputs: tuple[Any, ...]) -> list[Any]:
    plan = device_runner.planned(
        graph, device_runner.cheapest(graph, CpuAdapter(), PROFILE, prefer), CpuAdapter(), PROFILE
    )
    with device_runner.loaded(graph, plan, device_runner.opened(PROFILE, "hw"), build=True) as device:
        return [y[0] for y in device.run([np.ascontiguousarray(x)[None] for x in inputs])[0]]


def test_sums_in_registers_are_what_runs() -> None:
    """The solver's choice stands in the source."""
    text = source_of(CASES["padded"]("f32")[0])
    rows, vectors = map(int, re.findall(r"f32x8 acc\w*\[(\d+)\]\[(\d+)\];", text)[0])
    assert rows > 1
    assert rows * vectors + vectors + 1 <= 16
    assert re.search(r"acc\w*\[r\]\[v\] \+= splat_f32x8\(.*\) \* \*\(const f32x8u \*\)&", text)


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.op(ops.MaxPool((2, 2), (1, 1), (0, 0, 0, 0), (1, 1)), x),
        lambda b, x: b.op(ops.ReduceSum((1,)), b.op(ops.Tanh(), x)),
    ],
    ids=["maxima", "a function inside"],
)
def test_what_is_no_arithmetic_on_neighbours_has_plain_loops(make: Any) -> None:
    b = Builder([("x", T((1, 8, 6, 6), "f32"))])
    forms = proposed(graph_of(b.finish([("y", make(b, b.input(0)))])))
    assert not any(isinstance(f, RegisterTile) for k in forms for f in k)
