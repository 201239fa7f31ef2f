"""What must hold for every op on any operands: shape rule, meaning, loops and IR text agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import placeholder
from cuvil_hw.ir import level1, program
from cuvil_hw.ops import base
from cuvil_hw.ops.cast import Cast
from cuvil_hw.types import TensorType
from tests.support.expr_interpreter import run

Array = npt.NDArray[Any]
_through_text: set[tuple[str, ...]] = set()  # ops and dtypes of operands


class Builder(program.Builder):
    """A builder that decompositions can write to."""

    def type(self, value: Any) -> TensorType:
        return level1.type_of(value)


def typed(arrays: Sequence[Array], names: Sequence[str] | None = None) -> list[TensorType]:
    names = names or [dtypes.from_numpy(a.dtype) for a in arrays]
    return [TensorType(a.shape, n) for a, n in zip(arrays, names, strict=True)]


def check(op: base.Op, *arrays: Array, names: Sequence[str] | None = None, ulps: float = 8, atol: float = 0.0) -> Array:
    """The op's result on `arrays` (of dtypes `names`, when narrower than their containers), after these checks: results
    have the inferred shapes and containers; integers of loops and meaning are equal, floats within `ulps` units in the
    last place, or `atol`; the same comes out of the op's printed and parsed IR, once for each op and dtypes."""
    types = typed(arrays, names)
    want = base.infer(op, types)
    results = base.evaluate(op, arrays)
    for kind, result in zip(want, results, strict=True):
        assert result.shape == kind.shape
        assert result.dtype == dtypes.to_numpy(kind.dtype)
        if dtypes.is_int(kind.dtype) and result.size:
            lo, hi = dtypes.int_range(kind.dtype)
            assert lo <= result.min() <= result.max() <= hi
    if (key := (repr(op), *(t.dtype for t in types))) not in _through_text:  # other shapes print alike
        _through_text.add(key)
        through_text(op, types, arrays, results)
    if op.composite:
        loops = decomposed(op, types, arrays)
    else:
        tensors = base.compute(op, [placeholder(f"b{n}", t) for n, t in enumerate(types)])
        assert tuple(t.type for t in tensors) == want
        loops = [run(t, {f"b{n}": a for n, a in enumerate(arrays)}) for t in tensors]
    for result, loop in zip(results, loops, strict=True):
        close(loop, result, ulps, atol)
    return results[0]


def close(have: Array, want: Array, ulps: float = 8, atol: float = 0.0) -> None:
    assert have.dtype == want.dtype
    if want.dtype == dtypes.BF16:  # functions of f32, rounded: the next number at most
        np.testing.assert_allclose(dtypes.numbers(have), dtypes.numbers(want), rtol=2**-7, atol=atol, equal_nan=True)
    elif want.dtype.kind == "f":
        rtol = ulps * float(np.finfo(want.dtype).eps)
        np.testing.assert_allclose(have, want, rtol=rtol, atol=atol, equal_nan=True)
    else:
        np.testing.assert_array_equal(have, want)


def through_text(op: base.Op, types: Sequence[TensorType], arrays: Sequence[Array], results: Sequence[Array]) -> None:
    builder = Builder([(f"x{n}", t) for n, t in enumerate(types)])
    values = builder.ops(op, *[builder.input(n) for n in range(len(types))])
    built = builder.finish([(f"y{n}", v) for n, v in enumerate(values)])
    read = program.parse(built.text(), built.constants)
    assert read.text() == built.text()
    found = [o.op for o in read.ops() if isinstance(o, level1.TensorOp)]
    assert found == [op]
    for have, want in zip(program.evaluate(read, arrays), results, strict=True):
        np.testing.assert_array_equal(have, want)
    assert base.from_json(op.mnemonic, base.to_json(op)) == op


def decomposed(op: base.Op, types: Sequence[TensorType], arrays: Sequence[Array]) -> list[Array]:
    builder = Builder([(f"x{n}", t) for n, t in enumerate(types)])
    values = base.decompose(op, builder, [builder.input(n) for n in range(len(types))], Cast)
    built = builder.finish([(f"y{n}", v) for n, v in enumerate(values)])
    assert tuple(t for _, t in built.outputs) == base.infer(op, types)
    return program.evaluate(built, arrays)


def sample(rng: np.random.Generator, shape: Sequence[int], dtype: str, special: bool = False) -> Array:
    """Random values of `dtype`. Integers: the whole range, its ends often. Floats: about ±4, with NaN, infinities,
    signed zeros and ties when `special`."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtypes.is_float(dtype):
        x = dtypes.convert(np.asarray(rng.normal(size=shape) * 2), dtype)
        odd = dtypes.convert([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -3.0, 90.0, -90.0], dtype)
    else:
        lo, hi = dtypes.int_range(dtype)
        container = dtypes.to_numpy(dtype)
        x = np.asarray(rng.integers(lo, hi, shape, container.type, endpoint=True), container)
        near = [v for v in (lo, lo + 1, -1, 0, 1, 2, -3, 7, hi - 1, hi) if lo <= v <= hi]
        odd, special = np.asarray(near, container), True
    if special:
        x = np.where(rng.random(shape) < 0.4, rng.choice(odd, shape), x)
    return np.asarray(x, dtypes.to_numpy(dtype))
