"""Functions of f32 that the generated code computes itself: how far they are from f64, and what they make of special
values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.ir.program import Builder
from cuvil_hw.types import TensorType as T
from tests.support.cpu_runner import loaded, source_of

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]
SPECIAL = [0.0, -0.0, 1e-42, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan, 88.72, 88.73, -103.9, -104.5]


@pytest.mark.parametrize(
    ("op", "meaning", "ulp"),
    [
        (ops.Exp(), math.exp, 1.1),
        (ops.Tanh(), math.tanh, 1.3),
        (ops.Erf(), math.erf, 1.2),
    ],
    ids=["exp", "tanh", "erf"],
)
def test_errors_are_within_what_the_documents_say(op: Any, meaning: Any, ulp: float) -> None:
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.uniform(-87, 88, 20000), draw.uniform(-2, 2, 20000), SPECIAL]).astype(np.float32)
    b = Builder([("x", T(x.shape, "f32"))])
    program = b.finish([("y", b.op(op, b.input(0)))])
    assert f"static inline __attribute__((always_inline)) float {op.mnemonic}_f32(" in source_of(program)
    with loaded(program) as run:
        y = run.run([x[None]])[0][0][0]
    limit = {math.exp: math.inf, math.tanh: 1.0, math.erf: 1.0}[meaning]
    wanted = np.array([limit if v > 700 else meaning(v) for v in x.astype(np.float64)])
    with np.errstate(over="ignore"):
        rounded = wanted.astype(np.float32)
    known = np.isfinite(rounded) & (np.abs(rounded) >= np.finfo(np.float32).tiny)
    steps = np.abs(y[known] - wanted[known]) / np.spacing(np.abs(rounded[known])).astype(np.float64)
    assert steps.max() <= ulp
    np.testing.assert_array_equal(y[~np.isfinite(rounded)], rounded[~np.isfinite(rounded)])
    small = np.isfinite(rounded) & ~known
    assert np.abs(y[small] - wanted[small]).max(initial=0.0) <= 2.0**-149 * 2
    np.testing.assert_array_equal(np.signbit(y[rounded == 0]), np.signbit(rounded[rounded == 0]))
