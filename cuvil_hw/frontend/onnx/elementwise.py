"""Converters of elementwise ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.extent import size
from cuvil_hw.frontend.onnx.node import DTYPES, Converter, OnnxNode, Value, element_name
from cuvil_hw.frontend.powers import fixed_power
from cuvil_hw.frontend.powers import power as integer_power
from cuvil_hw.ops.base import Op, ShapeError
from cuvil_hw.types import TensorType


def unary(op: Op) -> Converter:
    return lambda n, version: n.emit(op, n[0])


def binary(op: Op) -> Converter:
    return lambda n, version: n.binary(op, n[0], n[1])


def variadic(op: Op) -> Converter:
    """op(op(a, b), c)…, all operands broadcast first."""

    def convert(n: OnnxNode, version: int) -> Value:
        values = n.broadcast(*n.values)
        total = values[0]
        for v in values[1:]:
            total = n.emit(op, total, v)
        return total

    return convert


@dataclass(frozen=True)
class _Alpha:
    """An activation whose attributes are floats: field of the op ← attribute of the node, with ONNX's default."""

    op: Callable[..., Op]
    defaults: tuple[tuple[str, float], ...]

    def __call__(self, n: OnnxNode, version: int) -> Value:
        return n.emit(self.op(**{name: n.number(name, default) for name, default in self.defaults}), n[0])


def mean(n: OnnxNode, version: int) -> Value:
    total = variadic(e.Add())(n, version)
    assert isinstance(total, Value)
    return total if len(n.inputs) == 1 else n.emit(e.Div(), total, n.like(len(n.inputs), total))


def prelu(n: OnnxNode, version: int) -> Value:
    x, slope = n[0], n.expand(n[1], n[0].shape)
    return n.emit(e.Where(), n.emit(e.Less(), x, n.like(0, x)), n.emit(e.Mul(), x, slope), x)


def celu(n: OnnxNode, version: int) -> Value:
    # max(0, x) + min(0, α (exp(x/α) - 1)) is α · elu(x/α); x itself where x > 0, without the two roundings.
    x, alpha = n[0], n.number("alpha", 1.0)
    factor = n.like(alpha, x)
    low = n.emit(e.Mul(), n.emit(e.Elu(alpha=1.0), n.emit(e.Div(), x, factor)), factor)
    return n.emit(e.Where(), n.emit(e.Greater(), x, n.like(0, x)), x, low)


def thresholded_relu(n: OnnxNode, version: int) -> Value:
    x = n[0]
    return n.emit(e.Where(), n.emit(e.Greater(), x, n.like(n.number("alpha", 1.0), x)), x, n.like(0, x))


def shrink(n: OnnxNode, version: int) -> Value:
    x, lambd, bias = n[0], n.number("lambd", 0.5), n.number("bias", 0.0)
    shift = n.like(bias, x)
    high = n.emit(e.Where(), n.emit(e.Greater(), x, n.like(lambd, x)), n.emit(e.Sub(), x, shift), n.like(0, x))
    return n.emit(e.Where(), n.emit(e.Less(), x, n.like(-lambd, x)), n.emit(e.Add(), x, shift), high)


def softsign(n: OnnxNode, version: int) -> Value:
    x = n[0]
    return n.emit(e.Div(), x, n.emit(e.Add(), n.like(1, x), n.emit(e.Abs(), x)))


def swish(n: OnnxNode, version: int) -> Value:
    x, alpha = n[0], n.number("alpha", 1.0)
    if alpha == 1:
        return n.emit(e.Silu(), x)
    return n.emit(e.Mul(), x, n.emit(e.Sigmoid(), n.emit(e.Mul(), x, n.like(alpha, x))))


def gelu(n: OnnxNode, version: int) -> Value:
    return n.emit(e.Gelu(approximate=n.attr("approximate", "none")), n[0])


def relu(n: OnnxNode, version: int) -> Value:
    return n.emit(e.Relu(), n[0])


def is_inf(n: OnnxNode, version: int) -> Value:
    x = n[0]
    if n.integer("detect_positive", 1) and n.integer("detect_negative", 1):
        return n.emit(e.Equal(), n.emit(e.Abs(), x), n.like(np.inf, x))
    if n.integer("detect_positive", 1):
        return n.emit(e.Equal(), x, n.like(np.inf, x))
    if n.integer("detect_negative", 1):
        return n.emit(e.Equal(), x, n.like(-np.inf, x))
    return n.like(False, Value(x.type.with_dtype("bool")))


def clip(n: OnnxNode, version: int) -> Value:
    """min(max(x, lo), hi): where lo > hi everything becomes hi."""
    x = n[0]
    if version < 11:
        lowest, highest = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)
        return n.emit(e.Clamp(lo=n.number("min", lowest), hi=n.number("max", highest)), x)
    bounds = [n.get(1), n.get(2)]
    lo, hi = _bound(bounds[0], -np.inf), _bound(bounds[1], np.inf)
    if lo is not None and hi is not None:
        return n.emit(e.Relu() if (lo, hi) == (0, np.inf) else e.Clamp(lo=lo, hi=hi), x)
    for bound, op in zip(bounds, (e.Maximum(), e.Minimum()), strict=True):
        x = x if bound is None else n.binary(op, x, bound)
    return x


def _bound(bound: Value | None, absent: float) -> float | None:
    """A bound as a float attribute; None when it isn't known, or not exact as a float."""
    if bound is None:
        return absent
    if bound.array is None or bound.array.size != 1:
        return None
    value = (bound.array if bound.sizes is None else bound.sizes).item()
    size.pin((value,))
    exact = value == value and (isinstance(value, float) or abs(value) < 1 << 53)
    return float(value) if exact else None


def power(n: OnnxNode, version: int) -> Value:
    """The result has the base's type, whatever the exponent's. Integers to integer powers are exact modulo 2^width,
    where ONNX Runtime rounds to f64; to powers of floats, they go through f64."""
    base, exponent = n[0], n[1]
    if dtypes.is_float(base.dtype) or dtypes.is_float(exponent.dtype):
        work = base.dtype if dtypes.is_float(base.dtype) else "f64"
        return cast_to(n, n.binary(e.Pow(), cast_to(n, base, work), cast_to(n, exponent, work)), base.dtype)
    # As wide as the wider one; where an exponent is never negative, modulo 2^width is all that counts of a base.
    widths = [(dtypes.int_width(v.dtype) or (False, 0))[1] for v in (base, exponent)]
    work = f"{'u' if exponent.dtype[0] == 'u' else 'i'}{max(widths)}"
    x, by = n.broadcast(cast_to(n, base, work), cast_to(n, exponent, work))
    known = exponent.array
    if known is not None and known.size == 1 and known.item() >= 0:
        n.emitter.pin((exponent,))
        return cast_to(n, fixed_power(_Emits(n), x, int(known.item()), x.type), base.dtype)
    return cast_to(n, integer_power(_Emits(n), x, by, x.type), base.dtype)


@dataclass(frozen=True)
class _Emits:
    """A node's ops for what front ends share."""

    node: OnnxNode

    def op(self, op: Op, *values: Value) -> Value:
        return self.node.emit(op, *values)

    def splat(self, value: int, kind: TensorType) -> Value:
        return self.node.like(value, Value(kind))


def modulo(n: OnnxNode, version: int) -> Value:
    return n.binary(e.Mod(fmod=bool(n.integer("fmod", 0))), n[0], n[1])


def shift(n: OnnxNode, version: int) -> Value:
    return n.binary(e.ShiftLeft() if n.attr("direction") == "LEFT" else e.ShiftRight(), n[0], n[1])


def bit_cast(n: OnnxNode, version: int) -> Value:
    """The same bits as another type of the same width."""
    to = DTYPES.get(n.integer("to", 0), "")
    if to == n[0].dtype:
        return n[0]
    if n[0].dtype == "bool" and to in ("i8", "u8"):
        return cast_to(n, n[0], to)
    widths = [dtypes.int_width(d) for d in (n[0].dtype, to)] if to else [None]
    if None not in widths and len({w[1] for w in widths if w is not None}) == 1:
        return cast_to(n, n[0], to)  # of any width; it wraps
    try:
        return n.emit(e.Bitcast(to), n[0])
    except (ShapeError, ValueError):
        n.refuse(f"the bits of {n[0].dtype} as {to or element_name(n.integer('to', 0))}; only numbers of one width")


def where(n: OnnxNode, version: int) -> Value:
    return n.emit(e.Where(), *n.broadcast(n[0], n[1], n[2]))


def cast(n: OnnxNode, version: int) -> Value:
    to = n.integer("to", 0)
    if to not in DTYPES:
        n.refuse(f"casts to element type {element_name(to)}")
    return cast_to(n, n[0], DTYPES[to])


def cast_to(n: OnnxNode, x: Value, dtype: str) -> Value:
    if dtype in ("i2", "u2", "i4", "u4") and dtypes.is_float(x.dtype):
        x = n.emit(e.Cast("i32"), x)  # ONNX wraps floats into 2 and 4 bits; a direct cast saturates
    return x if x.dtype == dtype else n.emit(e.Cast(dtype), x)


def cast_like(n: OnnxNode, version: int) -> Value:
    return cast_to(n, n[0], n[1].dtype)


def identity(n: OnnxNode, version: int) -> Value:
    return n[0]


def dropout(n: OnnxNode, version: int) -> tuple[Value, ...]:
    """Inference: the input, and a mask of ones."""
    if version >= 12 and n.has(2) and bool(n.known(2, "training_mode").any()) and not _never_drops(n):
        n.refuse("training_mode is true; export the model in inference mode")
    if len(n.wanted) < 2:
        return (n[0],)
    kind = n[0].type.with_dtype("bool" if version >= 10 else n[0].dtype)
    return n[0], n.like(1, Value(kind))


def _never_drops(n: OnnxNode) -> bool:
    return n.has(1) and not n.known(1, "ratio").any()


ELEMENTWISE: Mapping[str, Converter] = MappingProxyType(
    {
        "Neg": unary(e.Neg()),
        "Abs": unary(e.Abs()),
        "Exp": unary(e.Exp()),
        "Log": unary(e.Log()),
        "Sqrt": unary(e.Sqrt()),
        "Reciprocal": unary(e.Reciprocal()),
        "Tanh": unary(e.Tanh()),
        "Sigmoid": unary(e.Sigmoid()),
        "Erf": unary(e.Erf()),
        "Sin": unary(e.Sin()),
        "Cos": unary(e.Cos()),
        "Tan": unary(e.Tan()),
        "Asin": unary(e.Asin()),
        "Acos": unary(e.Acos()),
        "Atan": unary(e.Atan()),
        "Sinh": unary(e.Sinh()),
        "Cosh": unary(e.Cosh()),
        "Asinh": unary(e.Asinh()),
        "Acosh": unary(e.Acosh()),
        "Atanh": unary(e.Atanh()),
        "Floor": unary(e.Floor()),
        "Ceil": unary(e.Ceil()),
        "Round": unary(e.Round()),
        "Sign": unary(e.Sign()),
        "IsNaN": unary(e.IsNan()),
        "IsInf": is_inf,
        "Not": unary(e.LogicalNot()),
        "BitwiseNot": unary(e.BitwiseNot()),
        "Relu": relu,
        "HardSwish": unary(e.HardSwish()),
        "Softplus": unary(e.Softplus()),
        "Mish": unary(e.Mish()),
        "LeakyRelu": _Alpha(e.LeakyRelu, (("alpha", 0.01),)),
        "Elu": _Alpha(e.Elu, (("alpha", 1.0),)),
        # Defaults of ONNX, in single precision.
        "Selu": _Alpha(e.Selu, (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))),
        "HardSigmoid": _Alpha(e.HardSigmoid, (("alpha", 0.2), ("beta", 0.5))),
        "Celu": celu,
        "Gelu": gelu,
        "PRelu": prelu,
        "Shrink": shrink,
        "Softsign": softsign,
        "Swish": swish,
        "ThresholdedRelu": thresholded_relu,
        "Clip": clip,
        "Add": binary(e.Add()),
        "Sub": binary(e.Sub()),
        "Mul": binary(e.Mul()),
        "Div": binary(e.Div()),
        "Pow": power,
        "Mod": modulo,
        "BitShift": shift,
        "BitCast": bit_cast,
        "Min": variadic(e.Minimum()),
        "Max": variadic(e.Maximum()),
        "Sum": variadic(e.Add()),
        "Mean": mean,
        "Equal": binary(e.Equal()),
        "Less": binary(e.Less()),
        "LessOrEqual": binary(e.LessEqual()),
        "Greater": binary(e.Greater()),
        "GreaterOrEqual": binary(e.GreaterEqual()),
        "And": binary(e.LogicalAnd()),
        "Or": binary(e.LogicalOr()),
        "Xor": binary(e.LogicalXor()),
        "BitwiseAnd": binary(e.BitwiseAnd()),
        "BitwiseOr": binary(e.BitwiseOr()),
        "BitwiseXor": binary(e.BitwiseXor()),
        "Where": where,
        "Cast": cast,
        "CastLike": cast_like,
        "Identity": identity,
        "Dropout": dropout,
    }
)
