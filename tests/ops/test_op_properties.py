"""What an op says of itself is all that passes know: an op from outside joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest

from cuvil_hw import dtypes, ops
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.ops.base import Op, registry
from cuvil_hw.ops.interval import Interval
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.types import TensorType


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    known = dict(registry)
    yield
    for name in set(registry) - set(known):
        del registry[name]


def outsider(**changes: Any) -> type[Op]:
    """x & 3 on integers, an op that nothing in Cuvil knows."""

    @dataclass(frozen=True)
    class LowBits(Op):
        mnemonic = "low_bits"
        elementwise = True

        def infer(self, x: TensorType) -> TensorType:
            return x

        def evaluate(self, x: Any) -> Any:
            return x & 3

    for name, value in changes.items():
        setattr(LowBits, name, value)
    return LowBits


def summed(op: Op) -> Program:
    """A linear layer of 16 products by weights of 1 behind `op`."""
    b = Builder([("x", TensorType((1, 16), "i8"))])
    weights = b.const(np.ones((1, 16), np.int8))
    return b.finish([("y", b.op(ops.Linear(acc="i32"), b.op(op, b.input(0)), weights))])


def accumulator(program: Program) -> str:
    run_pipeline(program, ["accumulators"])
    return next(o.op.accumulator() for o in program.ops() if getattr(o, "op", None) and o.op.accumulator())


def test_the_range_of_an_op_narrows_the_sums_behind_it() -> None:
    def value_range(self: Op, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval:
        return Interval(0, 3)

    wide = accumulator(summed(outsider()()))
    del registry["low_bits"]
    narrow = accumulator(summed(outsider(value_range=value_range)()))
    assert (dtypes.int_range(wide)[1], dtypes.int_range(narrow)[1]) == (2047, 63)  # 16 · [-128, 127], 16 · [0, 3]


def test_an_op_that_is_the_identity_goes() -> None:
    def is_identity(self: Op, types: Sequence[TensorType], splat: Callable[[int], Any]) -> bool:
        return True

    program = summed(outsider(is_identity=is_identity)())
    run_pipeline(program, ["fold"])
    assert "low_bits" not in program.text()


# Ops whose result can be outside the range of their operands unless they say so: each with operands that show it.
RANGES: list[tuple[Op, list[tuple[int, int]], list[tuple[int, ...]]]] = [
    (ops.Relu(), [(-5, 7)], [(3,)]),
    (ops.Clamp(-2, 3), [(-5, 7)], [(3,)]),
    (ops.Pad((1, 1), -9.0), [(-5, 7)], [(3,)]),
    (ops.Pad((1, 1), 0.0, "edge"), [(2, 7)], [(3,)]),
    (ops.Concat(0), [(-5, 7), (20, 30)], [(3,), (2,)]),
    (ops.Maximum(), [(-5, 7), (0, 9)], [(3,), (3,)]),
    (ops.Minimum(), [(-5, 7), (0, 9)], [(3,), (3,)]),
    (ops.Cast("i16"), [(-5, 7)], [(3,)]),
    (ops.Cast("i4"), [(-5, 20)], [(3,)]),
    (ops.Rescale((3,), (2,), "i8", output_zp=4), [(-50, 70)], [(3,)]),
    (ops.Lut(tuple(range(127, -129, -1)), "i8"), [(-5, 7)], [(3,)]),
    (ops.Add("i12"), [(-5, 7), (3, 9)], [(3,), (3,)]),
    (ops.Sub("i12"), [(-5, 7), (3, 9)], [(3,), (3,)]),
    (ops.Mul("i12"), [(-5, 7), (-3, 9)], [(3,), (3,)]),
    (ops.ReduceSum((0,), False, "i12"), [(-5, 7)], [(3,)]),
    (ops.ReduceMax((0,), False), [(-5, 7)], [(3,)]),
    (ops.SumPool((2,), (1,), (0, 0), (1,), "i12", 3), [(-5, 7)], [(1, 1, 4)]),
    (ops.MaxPool((2,), (1,), (0, 0), (1,)), [(-5, 7)], [(1, 1, 4)]),
    (ops.Reshape((3, 1)), [(-5, 7)], [(3,)]),
]


@pytest.mark.parametrize(("op", "ranges", "shapes"), RANGES, ids=lambda v: repr(v) if isinstance(v, Op) else "")
def test_ranges_hold_every_value(op: Op, ranges: list[tuple[int, int]], shapes: list[tuple[int, ...]]) -> None:
    types = [TensorType(shape, "i8") for shape in shapes]
    found = op.value_range(types, [Interval(*r) for r in ranges])
    random = np.random.default_rng(0)
    seen = []
    for k in range(200):
        arrays = [
            random.integers(lo, hi + 1, shape).astype(np.int8) for (lo, hi), shape in zip(ranges, shapes, strict=True)
        ]
        if k < 4:  # the corners
            arrays = [
                np.full(shape, r[(k >> n) & 1], np.int8)
                for n, (r, shape) in enumerate(zip(ranges, shapes, strict=True))
            ]
        seen.append(np.asarray(op.evaluate(*arrays)))
    values = np.concatenate([v.reshape(-1) for v in seen])
    if found is None:
        assert isinstance(op, ops.Cast)
        return
    assert found.lo <= values.min() <= values.max() <= found.hi


def test_products_of_a_transposed_convolution_are_those_of_its_input() -> None:
    """The list of names once held a name that no op has, so these counted as no layer."""
    x, w = TensorType((1, 4, 5, 5), "f32"), TensorType((4, 3, 2, 2), "f32")
    op = ops.ConvTranspose((2, 2), (0, 0, 0, 0), (1, 1), (0, 0))
    size = op.infer(x, w).size
    assert op.count_products([x, w], size) == prod(x.shape) * 3 * 2 * 2


def test_evaluation_is_that_of_the_op() -> None:
    x = np.arange(-8, 8, dtype=np.int8).reshape(1, 16)
    np.testing.assert_array_equal(evaluate(summed(outsider()()), [x])[0], [[(x & 3).sum()]])
