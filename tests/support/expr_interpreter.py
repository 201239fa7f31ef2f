"""Runs scalar expressions one element at a time, on Python integers and NumPy scalars: an oracle for the loops of ops.

It is strict where targets may not be: operand dtypes must agree, loads must lie inside their buffer, and what C leaves
undefined (division by zero, lowest / -1, a table index out of range) fails.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import (
    COMPARISONS,
    Apply,
    Const,
    Expr,
    Iter,
    Load,
    Lookup,
    Reduce,
    Select,
    State,
    Tensor,
    bounds,
    parallel,
)

Array = npt.NDArray[Any]


def run(tensor: Tensor, buffers: Mapping[str, Array]) -> Array:
    """All elements of `tensor`; `buffers`: the arrays behind its loads."""
    iters = [parallel(f"i{d}", extent) for d, extent in enumerate(tensor.shape)]
    body = tensor[tuple(iters)]
    assert body.dtype == tensor.dtype, f"body has dtype {body.dtype}, its type says {tensor.dtype}"
    out = np.empty(tensor.shape, np.float32 if tensor.dtype == "bf16" else dtypes.to_numpy(tensor.dtype))
    limits: dict[int, tuple[int, int]] = {}
    with np.errstate(all="ignore"):
        for point in itertools.product(*map(range, tensor.shape)):
            out[point] = _Scope(dict(zip(iters, point, strict=True)), buffers, (), limits).value(body)
    return dtypes.convert(out, tensor.dtype)


class _Scope:
    """Values of iterators and running values of a Reduce. A node has one value in it, as one node may be an operand of
    many. `limits`: bounds of index arithmetic, in any scope; nodes are known by identity."""

    def __init__(
        self,
        env: Mapping[Iter, int],
        buffers: Mapping[str, Array],
        states: tuple[Any, ...],
        limits: dict[int, tuple[int, int]],
    ) -> None:
        self.env, self.buffers, self.states, self.limits = env, buffers, states, limits
        self._known: dict[int, Any] = {}

    def value(self, e: Expr) -> Any:
        """The value of `e`: int for integers and "index", bool, or a NumPy float."""
        if id(e) not in self._known:
            self._known[id(e)] = self._value(e)
        return self._known[id(e)]

    def _value(self, e: Expr) -> Any:
        match e:
            case Const():
                return number(e.value, e.dtype)
            case Iter():
                return self.env[e]
            case Load():
                at = tuple(self.value(i) for i in e.index)
                array = self.buffers[e.buffer]
                assert len(at) == array.ndim
                inside = all(0 <= p < n for p, n in zip(at, array.shape, strict=True))
                assert inside, f"load outside {array.shape}: {at}"
                assert dtypes.to_numpy(e.dtype) == array.dtype
                array = dtypes.numbers(array)
                return number(array[at].item() if array.dtype.kind != "f" else array[at], e.dtype)
            case Lookup():
                i = self.value(e.index)
                assert 0 <= i < len(e.values), f"table index {i} of {len(e.values)}"
                return number(e.values[i], e.dtype)
            case State():
                assert e.dtype != "index"
                return self.states[e.k]
            case Select():
                assert e.cond.dtype == "bool"
                return self.value(e.then) if self.value(e.cond) else self.value(e.other)
            case Reduce():
                return self._reduced(e)
            case Apply(op="cast"):
                return converted(self.value(e.args[0]), e.args[0].dtype, e.dtype)
            case Apply(op="bitcast"):
                held = np.asarray(self.value(e.args[0]), dtypes.to_numpy(e.args[0].dtype))
                return number(held.view(dtypes.to_numpy(e.dtype))[()], e.dtype)
            case Apply(op="saturate"):
                lo, hi = dtypes.int_range(e.dtype)
                assert dtypes.is_int(e.args[0].dtype)
                return min(max(self.value(e.args[0]), lo), hi)
            case Apply():
                return self._applied(e)
        raise AssertionError(f"no rule for {type(e).__name__}")

    def _reduced(self, e: Reduce) -> Any:
        assert not self.states, "nested reductions"
        state = tuple(self.value(i) for i in e.init)
        for point in itertools.product(*(range(i.extent) for i in e.iters)):
            step = _Scope({**self.env, **dict(zip(e.iters, point, strict=True))}, self.buffers, state, self.limits)
            state = tuple(step.value(u) for u in e.update)
        return state[e.result]

    def _applied(self, e: Apply) -> Any:
        first = e.args[0].dtype
        assert all(a.dtype == first for a in e.args), f"{e.op} of {[a.dtype for a in e.args]}"
        if e.op not in COMPARISONS and e.op not in ("isnan", "isinf"):
            assert e.dtype == first, f"{e.op} of {first} gives {e.dtype}"
        result = apply(e.op, first, *[self.value(a) for a in e.args])
        if e.dtype == "index":
            if id(e) not in self.limits:
                self.limits[id(e)] = bounds(e)
            lo, hi = self.limits[id(e)]
            assert lo <= result <= hi, f"index {result} is outside its bounds [{lo}, {hi}]"
        return result


def rounded(v: Any, dtype: str) -> Any:
    """A number in a float dtype; one of bf16 as the f32 that it is."""
    if dtype != "bf16":
        return dtypes.to_numpy(dtype).type(v)
    single = float(np.float32(v))
    if single == 0 or not math.isfinite(single):
        return np.float32(single)
    step = 2.0 ** max(math.frexp(single)[1] - 8, -133)  # 8 significant bits, or a multiple of the least number
    return np.float32(round(single / step) * step)


def number(v: Any, dtype: str) -> Any:
    if dtypes.is_float(dtype):
        return rounded(v, dtype)
    if dtype == "bool":
        return bool(v)
    if dtype != "index":
        lo, hi = dtypes.int_range(dtype)
        assert lo <= v <= hi, f"{v} isn't a value of {dtype}"
    return int(v)


def wrapped(v: int, dtype: str) -> int:
    if dtype == "index":
        return v
    lo, hi = dtypes.int_range(dtype)
    return (v - lo) % (hi - lo + 1) + lo


def converted(v: Any, source: str, target: str) -> Any:
    if dtypes.is_float(target):
        if isinstance(v, bool | int):
            v = np.uint64(v) if v > np.iinfo(np.int64).max else np.int64(v)
        return rounded(v, target)
    assert target != "bool" or source == "bool", "a cast to bool must be a comparison"
    if not dtypes.is_float(source):
        return wrapped(int(v), target)
    if math.isnan(v):
        return 0
    lo, hi = dtypes.int_range(target)
    return (lo if v < 0 else hi) if math.isinf(v) else min(max(int(v), lo), hi)


COMPARE = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
LOGIC = {"and": lambda a, b: a and b, "or": lambda a, b: a or b, "xor": lambda a, b: a != b, "not": lambda a: not a}
FLOAT = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rem": np.fmod,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sqrt": np.sqrt,
}
LIBRARY = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "erf": math.erf,
    "pow": lambda a, b: np.power(a.reshape(1), b.reshape(1))[0],
}


def truncated(a: int, b: int, dtype: str) -> int:
    assert b != 0, "integer division by zero"
    q = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    assert wrapped(q, dtype) == q, "integer division overflows"
    return q


def apply(op: str, dtype: str, *args: Any) -> Any:
    """One operation on values of `dtype`. Library functions: correctly rounded, from f64."""
    if op in COMPARE:
        return bool(COMPARE[op](*args))
    if dtype == "bool":
        return bool(LOGIC[op](*args))
    if dtypes.is_float(dtype):
        if op in LIBRARY:
            assert dtype != "f16", f"{op} of f16 must go through f32"
            return rounded(LIBRARY[op](*[np.float64(a) for a in args]), dtype)
        result = FLOAT[op](*args)
        return bool(result) if op in ("isnan", "isinf") else result
    a, b = args if len(args) == 2 else (args[0], 0)
    match op:
        case "add":
            v = a + b
        case "sub":
            v = a - b
        case "mul":
            v = a * b
        case "div":
            v = truncated(a, b, dtype)
        case "rem":
            v = a - b * truncated(a, b, dtype)
        case "floordiv":
            v = a // b
        case "mod":
            v = a % b
        case "min":
            v = min(a, b)
        case "max":
            v = max(a, b)
        case "and":
            v = a & b
        case "or":
            v = a | b
        case "xor":
            v = a ^ b
        case "not":
            v = ~a
        case "shl":
            v = a << b
        case "shr":
            v = a >> b
        case "neg":
            v = -a
        case _:
            raise AssertionError(f"no rule for {op} on {dtype}")
    return wrapped(v, dtype)
