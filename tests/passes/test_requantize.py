"""Rescale parameters from real numbers: exact fractions say how far off they may be, decimals where ties are."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil_hw import dtypes, ops
from cuvil_hw.errors import Unsupported
from cuvil_hw.passes.quantize.requantize import requantize
from cuvil_hw.types import TensorType
from tests.ops.test_ops_integer import exactly


def chain(found: tuple[ops.Rescale, ...], x: np.ndarray) -> np.ndarray:
    for op in found:
        x = op.evaluate(x)
    return x


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-(2.0**20), 2.0**20), min_size=1, max_size=4),
    st.floats(-300, 300),
    st.integers(8, 47),
    st.lists(st.integers(-(2**46), 2**46), min_size=4, max_size=4),
    st.sampled_from(["i8", "u8", "i16"]),
    st.integers(0, 127),
)
def test_rescale_parameters_round_as_exact_arithmetic(
    ratios: list[float], offset: float, bits: int, values: list[int], dtype: str, zp: int
) -> None:
    """Whatever the ratios of other channels: within 2^-8 of a step, and what f32 scales are off by themselves."""
    lo, hi = dtypes.int_range(f"i{bits}")
    found = requantize(ratios, TensorType((1, len(ratios), 4), f"i{bits}"), dtype, 0, zp, 1, offsets=[offset])
    x = np.clip(np.tile(values, (1, len(ratios), 1)), lo, hi)
    got = chain(found, x)
    low, high = dtypes.int_range(dtype)
    for c, ratio in enumerate(ratios):
        for j in range(4):
            exact = Fraction(int(x[0, c, j])) * Fraction(ratio) + Fraction(offset) + zp
            noise = (abs(exact - Fraction(offset)) + abs(Fraction(offset))) * 3 / (1 << 24)
            error = Fraction(1, 2) + Fraction(1, 1 << 8) + noise
            assert min(max(exact - error, low), high) <= int(got[0, c, j]) <= min(max(exact + error, low), high)


@pytest.mark.parametrize("mode", ["half_even", "half_up", "half_away", "half_zero", "floor", "ceil", "to_zero", "away"])
@pytest.mark.parametrize(("to", "scale"), [(0.1, 0.03), (0.05, 0.1 / 6), (0.3, 0.1), (0.1, 0.3), (0.02, 0.01 * 0.003)])
def test_scales_that_mean_fractions_have_their_ties(mode: str, to: float, scale: float) -> None:
    """Scales of a few decimals, rounded to f32 as in every model: as exact arithmetic on the decimals."""
    f32 = [float(np.float32(v)) for v in (scale, to)]
    found = requantize([f32[0] / f32[1]], TensorType((1,), "i20"), "i8", rounding=mode)
    ratio = (Fraction(scale) / Fraction(to)).limit_denominator(10_000)
    x = np.arange(-1200, 1200, dtype=np.int32)
    want = [min(max(exactly(int(v) * ratio, mode), -128), 127) for v in x]
    assert chain(found, x).tolist() == want


def test_powers_of_two_are_plain_shifts() -> None:
    (op,) = requantize([2.0**-10], TensorType((4,), "i44"), "i16")
    assert (op.multiplier, op.shift, op.guard) == ((1,), (10,), 0)
    values = np.int64([512, 511, -512, -513, 1536, -1536])
    np.testing.assert_array_equal(op.evaluate(values), [0, 0, 0, -1, 2, -2])  # ties to even


def test_absurd_ratios_saturate_vanish_or_are_refused() -> None:
    (op,) = requantize([2.0**31, -1e30], TensorType((2, 2), "i8"), "i8")
    assert op.evaluate(np.int8([[1, 1], [-1, 0]])).tolist() == [[127, -128], [-128, 0]]
    with pytest.raises(Unsupported, match=r"fc1.*finite"):
        requantize([float("nan")], TensorType((4,), "i8"), "i8", layer="fc1")
    (op,) = requantize([1e-30], TensorType((4,), "i32"), "i8", output_zp=3)
    assert op.evaluate(np.int32([2**31 - 1])) == 3
    (op,) = requantize([1e-30], TensorType((4,), "i32"), "i8", rounding="ceil")
    assert op.evaluate(np.int32([1, 0, -1])).tolist() == [1, 0, 0]
