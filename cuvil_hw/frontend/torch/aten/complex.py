"""Complex numbers as pairs of real tensors: ATen converters of what models do with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from xdsl.ir import SSAValue

from cuvil_hw import ops as ew
from cuvil_hw.frontend.shared.refusals import Refused
from cuvil_hw.frontend.torch.aten.elementwise import apply
from cuvil_hw.frontend.torch.aten.emitter import TABLE, AtenEmitter, Value, dtype_name, extents_of
from cuvil_hw.frontend.torch.aten.math import atan2, hypot
from cuvil_hw.frontend.torch.aten.nn import matmul
from cuvil_hw.frontend.torch.aten.shape import joined, part
from cuvil_hw.types import TensorType

PARTS = {torch.complex32: "f16", torch.complex64: "f32", torch.complex128: "f64"}


@dataclass(frozen=True, eq=False)
class Pair:
    """The real and the imaginary parts, of one type."""

    re: Value
    im: Value


F = TypeVar("F", bound=Callable[..., Any])
Operand = Any  # a Pair, a Value (a constant may be complex) or a Python number
COMPLEX: dict[str, Callable[..., Any]] = {}
# What is done to the one part as to the other.
PARTWISE = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "reshape.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.default",
        "squeeze.dim", "squeeze.dims", "flatten.using_ints", "unflatten.int", "permute.default", "transpose.int",
        "t.default", "expand.default", "repeat.default", "slice.Tensor", "narrow.default", "select.int",
        "split.Tensor", "split_with_sizes.default", "chunk.default", "unbind.int", "cat.default", "stack.default",
        "flip.default", "roll.default", "pad.default", "constant_pad_nd.default", "clone.default", "alias.default",
        "detach.default", "lift_fresh_copy.default", "index.Tensor", "index_select.default", "gather.default",
        "neg.default", "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "diagonal.default", "tril.default",
        "triu.default", "slice_scatter.default", "select_scatter.default", "cumsum.default",
    )
)  # fmt: skip
# Which arguments of those are numbers, that have an imaginary part, beside the first; the others are indices and sizes.
_NUMBERS = {
    "aten.slice_scatter.default": 1,
    "aten.select_scatter.default": 1,
    "aten.constant_pad_nd.default": 2,
    "aten.pad.default": 3,
}


def is_complex(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(is_complex, value))
    return isinstance(value, Pair) or (isinstance(value, torch.Tensor) and value.dtype in PARTS)


def held_types(value: Any) -> tuple[TensorType, ...]:
    """Types of a node's tensor results, as they are held: complex numbers as two parts. Raises Refused."""
    found = []
    for fake in value if isinstance(value, list | tuple) else [value]:
        if isinstance(fake, torch.Tensor):
            found.append(TensorType(extents_of(fake), PARTS.get(fake.dtype) or dtype_name(fake.dtype)))
    return tuple(found)


def convert(e: AtenEmitter, label: str, args: Sequence[Any]) -> Any:
    """The result of an operator that takes or gives complex numbers. Raises Refused."""
    if label in COMPLEX:
        return COMPLEX[label](e, *args)
    if label not in PARTWISE:
        raise Refused("has no form for complex numbers; write it with their real and imaginary parts")
    numbers = (0, _NUMBERS.get(label))
    re, im = (TABLE[label](e, *(_side(e, a, i) if at in numbers else a for at, a in enumerate(args))) for i in (0, 1))
    if isinstance(re, list | tuple):
        assert isinstance(im, list | tuple)
        return [Pair(a, b) for a, b in zip(re, im, strict=True) if a is not None and b is not None]
    assert isinstance(re, Value)
    assert isinstance(im, Value)
    return Pair(re, im)


def _side(e: AtenEmitter, value: Any, side: int) -> Any:
    """One part of an operand, or of each in a list: the imaginary part of a real one is 0."""
    if isinstance(value, list | tuple):
        return [_side(e, v, side) for v in value]
    if value is None:
        return None
    if isinstance(value, int | float | complex):
        return complex(value).imag if side else complex(value).real
    both = pair(e, value)
    return both.im if side else both.re


def pair(e: AtenEmitter, value: Operand) -> Pair:
    """Any operand as a pair of real and imaginary part; a real one has zeros as the second."""
    if isinstance(value, Pair):
        return value
    if isinstance(value, torch.Tensor) and value.dtype in PARTS:
        value = value.resolve_conj()
        return Pair(value.real.contiguous(), value.imag.contiguous())
    if isinstance(value, torch.Tensor | SSAValue):
        re = e.cast(value, e.out.dtype)
        return Pair(re, e.splat(0, e.type(re)))
    number, kind = complex(value), TensorType((), e.out.dtype)
    return Pair(e.splat(number.real, kind), e.splat(number.imag, kind))


def enter(*targets: str) -> Callable[[F], F]:
    """Enter a converter (e, *args), whose arguments and result may be pairs."""

    def entered(f: F) -> F:
        for target in targets:
            COMPLEX[f"aten.{target}" if "." in target else f"aten.{target}.default"] = f
        return f

    return entered


def _add(e: AtenEmitter, a: Value, b: Value) -> Value:
    return apply(e, ew.Add(), a, b, e.out.dtype)


def _sub(e: AtenEmitter, a: Value, b: Value) -> Value:
    return apply(e, ew.Sub(), a, b, e.out.dtype)


def _mul(e: AtenEmitter, a: Value | float, b: Value | float) -> Value:
    return apply(e, ew.Mul(), a, b, e.out.dtype)


@enter("view_as_complex")
def view_as_complex(e: AtenEmitter, x: Value) -> Pair:
    last = len(e.shape(x)) - 1
    re, im = (e.reshape(part(e, x, last, i, 1), e.shape(x)[:-1]) for i in (0, 1))
    return Pair(re, im)


@enter("view_as_real", "view_as_real_copy")
def view_as_real(e: AtenEmitter, z: Operand) -> Value:
    z = pair(e, z)
    shape = e.shape(z.re)
    return joined(e, [e.reshape(v, (*shape, 1)) for v in (z.re, z.im)], len(shape))


@enter("real")
def real(e: AtenEmitter, z: Operand) -> Value:
    return pair(e, z).re


@enter("imag")
def imag(e: AtenEmitter, z: Operand) -> Value:
    return pair(e, z).im


@enter("complex")
def from_parts(e: AtenEmitter, re: Value, im: Value) -> Pair:
    return Pair(e.operand(re, e.out), e.operand(im, e.out))


@enter("polar")
def polar(e: AtenEmitter, size: Value, angle: Value) -> Pair:
    cos, sin = (e.op(op, angle) for op in (ew.Cos(), ew.Sin()))
    return Pair(_mul(e, size, cos), _mul(e, size, sin))


@enter("_conj", "_conj_physical", "conj_physical", "conj", "_conj_copy")
def conj(e: AtenEmitter, z: Operand) -> Pair:
    z = pair(e, z)
    return Pair(z.re, e.op(ew.Neg(), z.im))


@enter("resolve_conj", "resolve_neg")
def same(e: AtenEmitter, z: Operand) -> Pair:
    return pair(e, z)


@enter("copy")
def copy(e: AtenEmitter, x: Operand, source: Operand, *_: Any) -> Any:
    """The source in x's place: its real part alone where x is real."""
    source = pair(e, source)
    re, im = (e.operand(v, e.out) for v in (source.re, source.im))
    return Pair(re, im) if is_complex(x) else re


@enter("_to_copy")
def to_copy(e: AtenEmitter, z: Operand, dtype: torch.dtype | None, *_: Any) -> Any:
    z = pair(e, z)
    re, im = (e.cast(v, e.out.dtype) for v in (z.re, z.im))
    return re if dtype is not None and dtype not in PARTS else Pair(re, im)


def _enter_sum(target: str, op: Callable[..., Value]) -> None:
    @enter(f"{target}.Tensor", f"{target}.Scalar")
    def convert_sum(e: AtenEmitter, a: Operand, b: Operand, alpha: float) -> Pair:
        a, b = pair(e, a), pair(e, b)
        if alpha != 1:
            b = times(e, b, alpha)
        return Pair(op(e, a.re, b.re), op(e, a.im, b.im))


_enter_sum("add", _add)
_enter_sum("sub", _sub)
_enter_sum("rsub", lambda e, a, b: _sub(e, b, a))


@enter("mul.Tensor", "mul.Scalar")
def times(e: AtenEmitter, a: Operand, b: Operand) -> Pair:
    """Parts are scaled where one factor is real."""
    for z, factor in ((a, b), (b, a)):
        if not is_complex(factor) and not isinstance(factor, complex):
            z = pair(e, z)
            return Pair(_mul(e, z.re, factor), _mul(e, z.im, factor))
    a, b = pair(e, a), pair(e, b)
    re = _sub(e, _mul(e, a.re, b.re), _mul(e, a.im, b.im))
    return Pair(re, _add(e, _mul(e, a.re, b.im), _mul(e, a.im, b.re)))


@enter("div.Tensor", "div.Scalar")
def over(e: AtenEmitter, a: Operand, b: Operand) -> Pair:
    """By the ratio of the parts of b, the smaller to the larger (Smith's method): squares would overflow."""
    a = pair(e, a)
    if not is_complex(b) and not isinstance(b, complex):
        return Pair(*(apply(e, ew.Div(), v, b, e.out.dtype) for v in (a.re, a.im)))
    b = pair(e, b)
    c, d = (e.cast(v, e.out.dtype) for v in (b.re, b.im))
    zero = e.splat(0, e.type(c))
    turned = e.op(ew.Less(), e.op(ew.Abs(), c), e.op(ew.Abs(), d))
    large, small = e.op(ew.Where(), turned, d, c), e.op(ew.Where(), turned, c, d)
    nothing = e.op(ew.Equal(), large, zero)
    ratio = e.op(ew.Where(), nothing, zero, e.op(ew.Div(), small, large))
    size = e.op(ew.Where(), nothing, zero, e.op(ew.Add(), large, e.op(ew.Mul(), small, ratio)))
    x, y = (e.operand(v, e.out) for v in (a.re, a.im))
    wide = e.broadcast(turned, e.out.shape)
    p, q = e.op(ew.Where(), wide, y, x), e.op(ew.Where(), wide, x, y)
    re = _add(e, p, _mul(e, q, ratio))
    im = _sub(e, q, _mul(e, p, ratio))
    signed = e.op(ew.Where(), turned, e.op(ew.Neg(), size), size)
    return Pair(apply(e, ew.Div(), re, size, e.out.dtype), apply(e, ew.Div(), im, signed, e.out.dtype))


@enter("reciprocal")
def reciprocal(e: AtenEmitter, z: Operand) -> Pair:
    return over(e, 1.0, z)


@enter("abs")
def magnitude(e: AtenEmitter, z: Operand) -> Value:
    z = pair(e, z)
    return hypot(e, z.re, z.im)


@enter("angle")
def angle(e: AtenEmitter, z: Operand) -> Value:
    if not is_complex(z):  # 0 or π, and NaN where x is; 0 for -0, other than atan2
        x = e.cast(z, e.out.dtype)
        turned = e.op(ew.Where(), e.op(ew.Less(), x, e.splat(0, e.out)), e.splat(math.pi, e.out), e.splat(0, e.out))
        return e.op(ew.Where(), e.op(ew.IsNan(), x), x, turned)
    z = pair(e, z)
    return atan2(e, z.im, z.re)


@enter("exp")
def exponential(e: AtenEmitter, z: Operand) -> Pair:
    z = pair(e, z)
    return polar(e, e.op(ew.Exp(), z.re), z.im)


@enter("pow.Tensor_Scalar")
def power(e: AtenEmitter, z: Operand, exponent: float) -> Pair:
    if exponent not in (1, 2, 3):
        e.refuse(f"a complex number to the power of {exponent}; 1, 2 and 3 are supported")
    result = z = pair(e, z)
    for _ in range(int(exponent) - 1):
        result = times(e, result, z)
    return result


@enter("mm", "bmm", "matmul")
def product(e: AtenEmitter, a: Operand, b: Operand) -> Pair:
    real_a, real_b = not is_complex(a), not is_complex(b)
    a, b = (pair(e, v) for v in (a, b))
    re = matmul(e, a.re, b.re)
    if real_a or real_b:
        return Pair(re, matmul(e, a.re, b.im) if real_a else matmul(e, a.im, b.re))
    im = e.op(ew.Add(), matmul(e, a.re, b.im), matmul(e, a.im, b.re))
    return Pair(e.op(ew.Sub(), re, matmul(e, a.im, b.im)), im)


@enter("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(e: AtenEmitter, condition: Value, a: Operand, b: Operand) -> Pair:
    a, b = pair(e, a), pair(e, b)
    chosen = e.operand(condition, TensorType(e.out.shape, "bool"))
    re, im = (
        e.op(ew.Where(), chosen, e.operand(x, e.out), e.operand(y, e.out)) for x, y in ((a.re, b.re), (a.im, b.im))
    )
    return Pair(re, im)


@enter("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(e: AtenEmitter, z: Operand, mask: Value, value: Operand) -> Pair:
    return where(e, mask, value, z)


@enter("eq.Tensor", "eq.Scalar")
def equal(e: AtenEmitter, a: Operand, b: Operand) -> Value:
    held = [e.type(v.re).dtype if isinstance(v, Pair) else PARTS[v.dtype] for v in (a, b) if is_complex(v)]
    dtype = "f64" if "f64" in held else held[0]
    out, e.results = e.out, (TensorType(e.out.shape, dtype),)
    a, b = pair(e, a), pair(e, b)
    re, im = (apply(e, ew.Equal(), x, y, dtype) for x, y in ((a.re, b.re), (a.im, b.im)))
    e.results = (out,)
    return e.op(ew.LogicalAnd(), re, im)


__all__ = ["COMPLEX", "PARTS", "Pair", "convert", "enter", "held_types", "is_complex", "pair"]
