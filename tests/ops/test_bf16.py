"""bfloat16: every one of its 65,536 numbers against PyTorch, and what NumPy can't do with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuvil_hw import dtypes, ops  # noqa: E402
from cuvil_hw.ops import base  # noqa: E402
from cuvil_hw.ops.base import Op  # noqa: E402

ALL = np.arange(1 << 16, dtype=np.uint16).view(dtypes.BF16)


def tensor(array: Any) -> Any:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def same(have: Any, want: Any) -> Any:
    """Elementwise; the signs of zeros count."""
    a, b = dtypes.numbers(have), want.float().numpy()
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))


# Exact in every arithmetic, or rounded from a function of f32 that libraries have to much less than a step of bf16.
FUNCTIONS: list[tuple[Op, Callable[..., Any]]] = [
    (ops.Neg(), torch.neg), (ops.Abs(), torch.abs), (ops.Sqrt(), torch.sqrt), (ops.Reciprocal(), torch.reciprocal),
    (ops.Floor(), torch.floor), (ops.Ceil(), torch.ceil), (ops.Round(), torch.round), (ops.Exp(), torch.exp),
    (ops.Log(), torch.log), (ops.Tanh(), torch.tanh), (ops.Erf(), torch.erf), (ops.Sin(), torch.sin),
    (ops.Cos(), torch.cos), (ops.Tan(), torch.tan), (ops.Atan(), torch.atan), (ops.Sigmoid(), torch.sigmoid),
]  # fmt: skip


@pytest.mark.parametrize(("op", "oracle"), FUNCTIONS, ids=[str(op) for op, _ in FUNCTIONS])
def test_functions_of_every_number(op: Op, oracle: Callable[..., Any]) -> None:
    """Against f64, rounded, and against eager's bf16, whose own erf is wrong near zero. One in a thousand may be the
    next number: what f32 rounds to the other side of a tie; or more where f32 itself underflows."""
    (have,) = base.evaluate(op, [ALL])
    wanted = [oracle(tensor(ALL).double()).bfloat16()]
    for want in wanted if isinstance(op, ops.Erf) else [*wanted, oracle(tensor(ALL))]:
        equal = same(have, want)
        assert equal.mean() > 0.999
        far = np.abs(dtypes.numbers(have)) > 2.0**-120
        off = np.abs(have.view(np.int16).astype(int) - want.view(torch.int16).numpy())[~equal & far]
        assert off.max(initial=0) <= 1


BINARY: list[tuple[Op, Callable[..., Any]]] = [
    (ops.Add(), torch.add), (ops.Sub(), torch.sub), (ops.Mul(), torch.mul), (ops.Div(), torch.div),
]  # fmt: skip


@pytest.mark.parametrize(("op", "oracle"), BINARY, ids=[str(op) for op, _ in BINARY])
def test_arithmetic_of_every_number_with_some(op: Op, oracle: Callable[..., Any]) -> None:
    """A step up and down, infinities, NaN, subnormal numbers, the largest ones and both zeros on the other side."""
    bits = [0x3F81, 0xBF7F, 0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 0x0080, 0x4049]
    for other in np.asarray(bits, np.uint16).view(dtypes.BF16):
        b = np.broadcast_to(other, ALL.shape).copy()
        for x, y in ((ALL, b), (b, ALL)):
            (have,) = base.evaluate(op, [x, y])
            assert same(have, oracle(tensor(x), tensor(y))).all()


def test_conversion_of_floats() -> None:
    """Every bf16, what lies halfway to its neighbour, and both neighbours of that in f32."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    x = (
        np.concatenate([high | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
        .astype(np.uint32)
        .view(np.float32)
    )
    assert same(dtypes.convert(x, "bf16"), torch.from_numpy(x).bfloat16()).all()
    assert same(base.evaluate(ops.Cast("bf16"), [x])[0], torch.from_numpy(x).bfloat16()).all()
    wide = np.asarray([1e300, -1e300, 1e-300, 1 + 2.0**-8, 3.3895e38, 3.4e38])
    assert same(dtypes.convert(wide, "bf16"), torch.from_numpy(wide).bfloat16()).all()


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64", "i8", "u8", "i16", "i32", "i64", "u64", "bool"])
def test_casts_from_every_number(dtype: str) -> None:
    (have,) = base.evaluate(ops.Cast(dtype), [ALL])
    x = tensor(ALL).double().numpy()
    with np.errstate(all="ignore"):
        if dtype == "bool":
            np.testing.assert_array_equal(have, x != 0)
        elif dtypes.is_float(dtype):
            np.testing.assert_array_equal(have, x.astype(dtypes.to_numpy(dtype)))
        else:
            lo, hi = dtypes.int_range(dtype)
            want = [0 if v != v else lo if v <= lo else hi if v >= hi else int(v) for v in x.tolist()]
            assert have.tolist() == want


def test_what_moves_elements_keeps_their_bits() -> None:
    x = ALL.reshape(256, 256)
    for op, want in (
        (ops.Transpose((1, 0)), x.T),
        (ops.Reshape((65536,)), ALL),
        (ops.Slice((0, 3), (4, 2), (1, 1)), x[:4, 3:5]),
    ):
        (have,) = base.evaluate(op, [x])
        assert have.dtype == dtypes.BF16
        np.testing.assert_array_equal(have.view(np.uint16), np.ascontiguousarray(want).view(np.uint16))
    (chosen,) = base.evaluate(ops.Where(), [x.view(np.uint16) % 2 == 0, x, x.T.copy()])
    assert chosen.dtype == dtypes.BF16


def test_numpy_never_computes_with_its_bits() -> None:
    for f in (np.add, np.maximum, np.less):
        with pytest.raises(TypeError):
            f(ALL[:4], ALL[:4])
    for f in (np.exp, np.isnan, np.sum):
        with pytest.raises(TypeError):
            f(ALL[:4])


def test_the_record() -> None:
    assert dtypes.record("bf16").work == "f32"
    assert dtypes.from_numpy(dtypes.to_numpy("bf16")) == "bf16"
    assert dtypes.is_float("bf16")
    assert dtypes.to_numpy("bf16").itemsize == 2
