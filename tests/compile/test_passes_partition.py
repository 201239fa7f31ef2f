"""Cutting a program between the processor and a target that takes integers only."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil_hw import dtypes, ops
from cuvil_hw.compile.partition import Partition, split
from cuvil_hw.errors import Unsupported
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.runtime.host import prepare
from cuvil_hw.types import TensorType


def refuses(op: ops.Op, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> str | None:
    bad = [t for t in (*inputs, *outputs) if dtypes.is_float(t.dtype)]
    return f"{bad[0].dtype} is not for this fabric" if bad else None


def run(parts: Partition, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Prologue, core and epilogue one after the other, for one sample."""
    names = parts.prologue.inputs
    types = {n: TensorType(x.shape, dtypes.from_numpy(x.dtype)) for n, x in zip(names, inputs, strict=True)}
    before = prepare(parts.prologue, types, parts.constants)
    values = before.run({n: x[None] for n, x in zip(names, inputs, strict=True)}, 1)
    core = evaluate(parts.core, [v[0] for v in before.pick(values, 1)])
    outputs = [t for _, t in parts.core.outputs]
    known = {n: t for n, t in before.types.items() if n not in parts.constants}
    after = prepare(
        parts.epilogue, {**known, **dict(zip(parts.epilogue.inputs, outputs, strict=True))}, parts.constants
    )
    values |= {n: v[None] for n, v in zip(parts.epilogue.inputs, core, strict=True)}
    return [v[0] for v in after.pick(after.run(values, 1), 1)]


def model() -> Program:
    b = Builder([("image", TensorType((1, 4, 2), "f32")), ("mask", TensorType((1, 3), "f32"))])
    x = b.op(ops.Quantize((0.1,), (0,), "i8"), b.op(ops.Reshape((1, 8)), b.input(0)))
    y = b.op(ops.Linear(0, (0,), "i20"), x, b.const(np.arange(24).reshape(3, 8) - 9, "i8"))
    y = b.op(ops.Rescale((1 << 20,), (24,), "i8"), y)
    z = b.op(ops.Softmax(1), b.op(ops.Add(), b.op(ops.Dequantize((0.3,), (0,)), y), b.input(1)))
    scaled = b.op(ops.Mul(), z, b.const(np.float32([[1, 2, 3]])))
    return b.finish([("probabilities", scaled), ("logits", y)])


def test_float_borders_go_to_the_processor() -> None:
    program = model()
    text = program.text()
    parts = split(program, refuses)
    assert [s.op for s in parts.prologue.steps] == ["reshape", "quantize"]
    assert [s.op for s in parts.epilogue.steps] == ["dequantize", "add", "softmax", "mul"]
    assert [o.name.rsplit(".")[-1] for o in parts.core.ops()] == ["const", "linear", "rescale", "return"]
    assert parts.epilogue.outputs == ("probabilities", "logits")
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=t.shape).astype(np.float32) for _, t in program.inputs]
    for got, want in zip(run(parts, inputs), evaluate(program, inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    assert program.text() == text


def test_a_program_that_the_target_takes_whole_has_empty_borders() -> None:
    b = Builder([("x", TensorType((4,), "i8"))])
    program = b.finish([("y", b.op(ops.Clamp(0, 9), b.input(0)))])
    parts = split(program, refuses)
    assert parts.prologue.steps == parts.epilogue.steps == ()
    x = np.int8([-1, 0, 5, 99])
    np.testing.assert_array_equal(run(parts, [x])[0], [0, 0, 5, 9])


def test_every_refused_op_in_the_middle_is_listed_with_advice() -> None:
    b = Builder([("x", TensorType((4,), "i8"))])
    x = b.input(0)
    for i in range(2):
        real = b.op(ops.Tanh(), b.op(ops.Dequantize((0.1,), (0,)), b.op(ops.Clamp(0, 9), x)), loc=f"model.py:{i}")
        x = b.op(ops.Quantize((0.1,), (0,), "i8"), real)
    program = b.finish([("y", b.op(ops.Clamp(0, 5), x))])
    with pytest.raises(Unsupported, match=r"tanh ×2 at model\.py:0, model\.py:1: f32 .*quantize the model") as caught:
        split(program, refuses, "zynq")
    assert {r.op for r in caught.value.refusals} == {"dequantize", "tanh", "quantize"}


def test_a_float_program_is_refused_whole() -> None:
    b = Builder([("x", TensorType((1, 4), "f32"))])
    program = b.finish([("y", b.op(ops.Linear(), b.input(0), b.const(np.ones((2, 4), np.float32)), loc="fc"))])
    with pytest.raises(Unsupported, match=r"linear ×1 at fc"):
        split(program, refuses)
