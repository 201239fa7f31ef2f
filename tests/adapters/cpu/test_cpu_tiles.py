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
    x: tuple[int, ...],
    w: tuple[int, ...],
    stride: int = 1,
    pad: int = 1,
    dilation: int = 1,
    relu: bool = True,
    view: Any = None,
) -> Make:
    """`view`: an op between the input, of shape `x`, and the convolution."""

    def make(dtype: str) -> tuple[Program, tuple[Any, ...]]:
        b = Builder([("x", T(x, dtype))])
        op = ops.Conv((stride,) * 2, (pad,) * 4, (dilation,) * 2)
        given = b.op(view, b.input(0)) if view is not None else b.input(0)
        y = b.op(op, given, b.const(numbers(1, dtype, *w)), b.const(numbers(2, dtype, w[0])))
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


def depthwise(channels: int, stride: int, pad: tuple[int, ...]) -> Make:
    def make(dtype: str) -> tuple[Program, tuple[Any, ...]]:
        b = Builder([("x", T((1, channels, 9, 12), dtype))])
        op = ops.Conv((stride,) * 2, pad, (1, 1), channels)
        y = b.op(op, b.input(0), b.const(numbers(1, dtype, channels, 1, 3, 3)), b.const(numbers(2, dtype, channels)))
        w, bias = b.const(numbers(4, dtype, 20, channels, 1, 1)), b.const(numbers(5, dtype, 20))
        y = b.op(ops.Conv((1, 1), (0,) * 4, (1, 1)), b.op(ops.Relu(), y), w, bias)
        return b.finish([("y", y)]), (numbers(3, dtype, 1, channels, 9, 12),)

    return make


def attention(places: int, width: int, heads: int) -> Make:
    """Scores of two linear layers' rows, and a third one's rows weighted by them: no factor has lanes side by side as
    its layer would write it."""

    def make(dtype: str) -> tuple[Program, tuple[Any, ...]]:
        b = Builder([("x", T((places, width), dtype))])
        size = width // heads

        def of_heads(seed: int) -> Any:
            y = b.op(
                ops.Linear(), b.input(0), b.const(numbers(seed, dtype, width, width)), b.const(numbers(0, dtype, width))
            )
            return b.op(ops.Transpose((1, 0, 2)), b.op(ops.Reshape((places, heads, size)), y))

        scores = b.op(ops.MatMul(), of_heads(1), b.op(ops.Transpose((0, 2, 1)), of_heads(2)))
        return b.finish([("y", b.op(ops.MatMul(), scores, of_heads(4)))]), (numbers(5, dtype, places, width) / width,)

    return make


CASES: dict[str, Make] = {
    "attention": attention(19, 32, 2),
    "channels alone": depthwise(16, 1, (1,) * 4),
    "channels alone, strided": depthwise(24, 2, (0, 0, 1, 1)),
    "channels alone, left over": depthwise(13, 2, (1,) * 4),
    "padded": conv((1, 3, 9, 13), (16, 3, 3, 3)),
    "lanes left over": conv((2, 4, 5, 11), (21, 4, 3, 3)),
    "strided": conv((1, 3, 11, 14), (9, 3, 3, 3), stride=2),
    "dilated, wide padding": conv((1, 2, 8, 9), (8, 2, 3, 3), pad=3, dilation=2),
    "behind a reshape": conv((2, 117), (16, 1, 3, 3), stride=2, view=ops.Reshape((2, 1, 9, 13))),
    "of a part": conv((1, 3, 9, 13), (16, 2, 3, 3), view=ops.Slice((0, 1, 2, 3), (1, 2, 7, 9), (1, 1, 1, 1))),
    "bands of rows": conv((1, 8, 60, 70), (8, 8, 3, 3)),
    "no padding": conv((1, 5, 4, 7), (40, 5, 1, 1), pad=0, relu=False),
    "more padding than input": conv((1, 2, 2, 2), (8, 2, 3, 3), pad=2),
    "rows of a batch": linear(7, 20, 24),
    "one row": linear(1, 33, 70),
    "two factors that differ": product(5, 9, 19),
}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("case", CASES)
def test_all_tiles_have_the_same_bits_near_the_meaning(case: str, dtype: str) -> None:
    program, inputs = CASES[case](dtype)
    meaning = evaluate(program, inputs)
    graph = graph_of(program)
    wanted = run(graph, lambda form: not isinstance(form, RegisterTile), inputs)
    for values in (wanted, run(graph, lambda form: isinstance(form, RegisterTile), inputs)):
        device_runner.compare(values, meaning, 1e-5 if dtype == "f32" else 1e-12, f16_rtol=0)
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
    assert "float stage[1][" in text
    loop = next(body for body in re.findall(r"for \(int c\w* = 0;.*?\n *}", text, re.DOTALL) if "fma" in body)
    sums = re.findall(r"(acc\w*) = fma_f32x8\(\w+, \w+, \1\);", loop)
    assert 2 < len(set(sums)) == len(sums) <= 12
    assert "if (" not in loop
    assert "?" not in loop


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


@pytest.mark.parametrize("x_type", ["i8", "u8"])
@pytest.mark.parametrize(
    ("x", "w", "stride", "pads"),
    [
        ((1, 3, 9, 13), (16, 3, 3, 3), 1, (1, 1, 1, 1)),
        ((2, 4, 6, 11), (21, 4, 1, 1), 1, (0, 0, 0, 0)),
        ((1, 5, 11, 14), (9, 5, 3, 3), 2, (0, 0, 1, 1)),
        ((1, 128, 30, 70), (8, 128, 3, 3), 1, (1, 1, 1, 1)),
        ((1, 1, 8, 8), (8, 1, 3, 3), 1, (1, 1, 1, 1)),
        ((490,), (16, 1, 10, 4), 2, (4, 1, 5, 1)),
    ],
    ids=["padded", "of a batch", "strided", "bands", "one channel", "behind a reshape"],
)
def test_bytes_are_added_up_by_pairs(x_type: str, x: Any, w: Any, stride: int, pads: Any) -> None:
    draw = np.random.default_rng(5)
    low = -128 if x_type == "i8" else 0
    given = draw.integers(low, low + 255, x, endpoint=True).astype({"i8": np.int8, "u8": np.uint8}[x_type])
    given.flat[:40] = low  # with the lowest weights: the largest products
    weights = draw.integers(-128, 127, w, endpoint=True).astype(np.int8)
    weights[0] = -128
    b = Builder([("x", T(x, x_type))])
    conv = ops.Conv((stride,) * 2, pads, (1, 1), x_zp=low + 255, acc="i27")
    bias = b.const(draw.integers(-(1 << 20), 1 << 20, w[0]).astype(np.int32), "i27")
    image = b.input(0) if len(x) == 4 else b.op(ops.Reshape((1, 1, 49, 10)), b.input(0))
    total = b.op(conv, image, b.const(weights), bias)
    many = tuple(int(m) for m in draw.integers(1 << 29, 1 << 31, w[0]))
    program = b.finish([("y", b.op(ops.Rescale(many, (46,), "i8", output_zp=-5), total)), ("sums", total)])
    graph = graph_of(program)
    assert any(isinstance(f, RegisterTile) and f.registers.pairs for k in proposed(graph) for f in k)
    for got, want in zip(
        run(graph, lambda f: not isinstance(f, RegisterTile), (given,)), evaluate(program, (given,)), strict=True
    ):
        np.testing.assert_array_equal(got, want)
