"""Floats of 16 bits instead of f32: the pass against the same ops on rounded numbers in f64, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("xdsl")

from cuvil_hw import dtypes, ops
from cuvil_hw.adapters.target_check import adapter_for
from cuvil_hw.compile.numbers import quantize
from cuvil_hw.compile.precision import check_narrow, choose_precision
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.ops.base import Array
from cuvil_hw.passes.pipeline import NarrowFloats, run_passes
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType

RNG = np.random.default_rng(3)
X, W = RNG.standard_normal((3, 4)).astype(np.float32), RNG.standard_normal((5, 4)).astype(np.float32)
STEP = {"f16": 2.0**-10, "bf16": 2.0**-7}
NAMES = {"f16": "float16", "bf16": "bfloat16"}


def rounded(array: Array, dtype: str) -> Array:
    return np.asarray(dtypes.numbers(dtypes.convert(array, dtype)), np.float64)


def mlp() -> Program:
    """Two results, one of which isn't a float."""
    b = Builder([("x", TensorType(X.shape, "f32"))])
    y = b.op(ops.Linear(), b.input(0), b.const(W))
    return b.finish([("y", b.op(ops.Relu(), y)), ("best", b.op(ops.ArgMax(1), y))])


def kinds(program: Program) -> list[tuple[str, str]]:
    found = [o for o in program.block.ops if isinstance(o, level1.TensorOp)]
    return [(o.spec.mnemonic, level1.type_of(o.results[0]).dtype) for o in found]


@pytest.mark.parametrize("dtype", STEP)
def test_weights_and_results_are_narrow_and_ports_are_not(dtype: str) -> None:
    given = mlp()
    profile = load_profile("cpu")
    program = quantize(given, choose_precision(given, NAMES[dtype], False, profile), None)
    assert [k.dtype for _, k in (*program.inputs, *program.outputs)] == ["f32", "f32", "i64"]
    wanted = [("cast", dtype), ("linear", dtype), ("relu", dtype), ("arg_max", "i64"), ("cast", "f32")]
    assert kinds(program) == wanted
    assert "f32" in str(given.block.first_op.results[0].type)  # the program that was given stays
    y, best = evaluate(program, [X])
    exact = rounded(X, dtype) @ rounded(W, dtype).T
    np.testing.assert_allclose(y, np.maximum(exact, 0), rtol=STEP[dtype], atol=STEP[dtype] * np.abs(exact).max())
    assert (best.reshape(-1) == exact.argmax(1)).all()
    assert (np.asarray(y, np.float64) == rounded(y, dtype)).all()  # every result is one of the narrow type


def test_what_takes_f32_only_stays_in_f32() -> None:
    b = Builder([("x", TensorType((4,), "f32"))])
    bits = b.op(ops.Bitcast("i32"), b.op(ops.Neg(), b.input(0)))
    program = b.finish([("bits", bits), ("back", b.op(ops.Bitcast("f32"), bits))])
    run_passes(program, [NarrowFloats("f16")])
    found = [("cast", "f16"), ("neg", "f16"), ("cast", "f32"), ("bitcast", "i32"), ("bitcast", "f32")]
    assert kinds(program)[:5] == found
    x = np.float32([1, -2.5, 0.1, 3])
    got, back = evaluate(program, [x])
    want = -x.astype(np.float16).astype(np.float32)
    assert (got == want.view(np.int32)).all()
    assert (back == want).all()


def test_a_constant_that_becomes_infinite_is_named() -> None:
    b = Builder([("x", TensorType((2,), "f32"))])
    mask = b.const(np.float32([1, -1e38]), loc="layer.mask")
    program = b.finish([("y", b.op(ops.Add(), b.input(0), mask, loc="layer.add"))])
    for dtype, count in (("bf16", 0), ("f16", 1)):
        narrow = program.clone()
        run_passes(narrow, [NarrowFloats(dtype)])
        assert len(narrow.notes["precision"]) == count
        assert all("f16 doesn't hold the constant -1e+38 at layer.add" in n for n in narrow.notes["precision"])


def test_a_program_without_f32_is_refused() -> None:
    b = Builder([("x", TensorType((2,), "f64"))])
    program = b.finish([("y", b.op(ops.Neg(), b.input(0)))])
    with pytest.raises(CuvilError, match="turns f32 into f16, but model computes in f64"):
        choose_precision(program, "float16", False, load_profile("cpu"))
    with pytest.raises(CuvilError, match="float16 quantizes nothing; leave calibration out"):
        choose_precision(mlp(), "float16", True, load_profile("cpu"))
    with pytest.raises(CuvilError, match="to is f16 or bf16, not f64"):
        run_passes(mlp(), [NarrowFloats("f64")])


@pytest.mark.parametrize("target", ["pynq-z2", "agilex-agfb014"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_fabrics_refuse_it_with_a_reason(target: str, name: str) -> None:
    profile = load_profile(target)
    chosen = choose_precision(mlp(), name, False, profile)
    said = f"precision {name} can't be had on {target}: .*f32 only; use precision='float32'"
    with pytest.raises(CuvilError, match=said):
        check_narrow(chosen, adapter_for(profile, None), profile)
