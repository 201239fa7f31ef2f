"""Sums of quantized tensors, and their products and sums with constants, before a quantize. Part of integerize.py.

before: %1 = add (mul (dequantize %a), %g), %b; %y = quantize %1           g, b per channel, of any sign
after:  %y = rescale %a {multiplier = […], offset = […]}

before: %1 = add (dequantize %a), (dequantize %b); %y = quantize %1
after:  %y = rescale (add (rescale %a {shift = 0}), (rescale %b {shift = 0})) {multiplier = 1, shift = S}

The whole sum is rounded once, in the mode of the quantize. Factors are approximated by multiples of 2^-S steps of the
result. This is exact if scales and constants are powers of two (always for fixed<W,I>); else the sum is off by less
than 2^-8 steps, mostly 2^-16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.activation import LeakyRelu
from cuvil_hw.ops.binary import Add, Div, Maximum, Mul, Sub
from cuvil_hw.ops.elementwise import Neg
from cuvil_hw.ops.integer import Quantize, Rescale
from cuvil_hw.ops.interval import Interval
from cuvil_hw.ops.rounding import TRANSLATES
from cuvil_hw.ops.shape import BroadcastTo
from cuvil_hw.passes.edit import Array, Inserter, insert, owner, producer, replace, static_array
from cuvil_hw.passes.quantize.arithmetic import MAX_ACCUMULATOR_BITS, MAX_SUM_BITS, accumulator
from cuvil_hw.passes.quantize.requantize import ChannelMap, Exact, allowed, exact, guard_bits, refused, requantize
from cuvil_hw.passes.real import Real, quantizer, real

MAX_OPS = 64  # of one sum
FRACTION = 16  # bits of a factor beyond those of the tensor that it multiplies
MAX_FRACTIONS = 4096  # different factors whose fractions are looked for


@dataclass(frozen=True)
class Term:
    """One term of the sum: (q - zero) · factor. factor and zero have the tensor's rank, with extents of 1 where they
    don't vary."""

    q: SSAValue
    factor: Array
    zero: Array
    bits: int

    @staticmethod
    def of(x: Real, factor: Array | float = 1.0) -> Term:
        rank = x.type.rank
        scale, zero = _spread(x.scale, rank, x.axis, np.float64), _spread(x.zero, rank, x.axis, np.int64)
        return Term(x.q, factor * scale, zero, x.bits)

    @property
    def interval(self) -> Interval:
        return Interval.of(level1.type_of(self.q).dtype)


def _spread(values: Sequence[float], rank: int, axis: int, dtype: type) -> Array:
    shape = [-1 if d == axis else 1 for d in range(rank)] if len(values) > 1 else [1] * rank
    return np.asarray(values, dtype).reshape(shape)


def combine(program: Program, operation: level1.TensorOp) -> bool:
    """quantize of a sum."""
    q = quantizer(operation)
    inner = owner(operation.operands[0]) if q is not None else None
    if q is None or not isinstance(inner, level1.TensorOp) or not inner.spec.is_linear:
        return False
    found = linear(program, operation.operands[0])
    if found is None:
        return False
    terms, constant = found
    put = insert(program, operation)
    result = rescaled(put, terms[0], constant, q) if len(terms) == 1 else summed(put, terms, constant, q)
    replace(operation, result)
    return True


def leaky(program: Program, operation: level1.TensorOp) -> bool:
    """quantize(leaky_relu(sum)) → maximum(quantize(sum), quantize(alpha · sum)): rounding keeps the order.

    Narrow tensors have a table instead."""
    q = quantizer(operation)
    inner = producer(operation.operands[0], "leaky_relu") if q is not None else None
    if q is None or inner is None or not isinstance(inner.op, LeakyRelu) or not 0 <= inner.op.alpha <= 1:
        return False
    x = inner.operands[0]
    if linear(program, x) is None:
        return False
    put = insert(program, operation)
    shape = level1.type_of(x).shape
    alpha = put.op(BroadcastTo(shape), put.const(np.full([1] * len(shape), inner.op.alpha, np.float32)))
    replace(operation, put.op(Maximum(), put.op(q, x), put.op(q, put.op(Mul(), x, alpha))))
    return True


def linear(program: Program, root: SSAValue) -> tuple[list[Term], Array] | None:
    """`root` as a sum of terms and a constant, if it is computed by + - · / from quantized tensors and constants; else
    None."""
    rank = level1.type_of(root).rank
    terms: dict[SSAValue, Term] = {}
    constant = np.zeros([1] * rank)
    todo = [(root, np.ones([1] * rank))]
    for _ in range(MAX_OPS):
        if not todo:
            break
        value, factor = todo.pop()
        x, fixed = real(value), small_array(program, value)
        if fixed is not None:
            constant = constant + factor * fixed
        elif x is not None:
            term, before = Term.of(x, factor), terms.get(x.q)
            if x.bits > MAX_ACCUMULATOR_BITS or (before is not None and not np.array_equal(before.zero, term.zero)):
                return None
            both = term if before is None else Term(x.q, before.factor + term.factor, term.zero, term.bits)
            terms[x.q] = both
        else:
            parts = operands(program, value, factor)
            if parts is None:
                return None
            todo += parts
    known = all(np.isfinite(a).all() for a in (constant, *(t.factor for t in terms.values())))
    return (list(terms.values()), constant) if terms and not todo and known else None


def operands(program: Program, value: SSAValue, factor: Array) -> list[tuple[SSAValue, Array]] | None:
    """The values whose sum is `factor` · value."""
    operation = owner(value)
    if not isinstance(operation, level1.TensorOp) or level1.type_of(value).dtype != "f32":
        return None
    match operation.op:
        case Add():
            return [(v, factor) for v in operation.operands]
        case Sub():
            return [(operation.operands[0], factor), (operation.operands[1], -factor)]
        case Neg():
            return [(operation.operands[0], -factor)]
        case Mul() | Div() as op:
            for x, c in (operation.operands, reversed(operation.operands)):
                fixed = small_array(program, c)
                if fixed is not None and (isinstance(op, Mul) or x is operation.operands[0]):
                    with np.errstate(all="ignore"):  # what isn't finite then is refused as a whole
                        return [(x, factor * fixed if isinstance(op, Mul) else factor / fixed)]
    return None


def small_array(program: Program, value: SSAValue) -> Array | None:
    """A constant in f64, of the rank of `value`; what was broadcast stays small."""
    spread = producer(value, "broadcast_to")
    array = static_array(program, spread.operands[0] if spread is not None else value)
    if array is None or array.dtype.kind != "f":
        return None
    return np.asarray(array, np.float64).reshape([1] * (level1.type_of(value).rank - array.ndim) + list(array.shape))


def varying(*arrays: Array) -> list[int]:
    """The dimensions along which any of `arrays` has more than one element."""
    return [d for d in range(arrays[0].ndim) if any(a.shape[d] > 1 for a in arrays)]


def grid(q: Quantize, constant: Array) -> tuple[Array, int]:
    """The constant in steps of the result, and what is added after rounding: the zero point, where that is the same."""
    zero = q.zero_point[0]
    steps = constant / q.scale[0]
    before = q.zero_first and q.rounding not in TRANSLATES and not (q.rounding == "half_even" and zero % 2 == 0)
    return (steps + zero, 0) if before else (steps, zero)


def rescaled(put: Inserter, x: Term, constant: Array, q: Quantize) -> SSAValue:
    """quantize(term + constant)"""
    offset, zero = grid(q, constant)
    ratio, loc = x.factor / q.scale[0], level1.loc_of(put.anchor)
    own = int(x.zero.flat[0])
    if x.zero.size > 1 and (x.zero != own).any():
        offset, own = offset - ratio * x.zero, 0
    axes = varying(ratio, offset)
    if len(axes) > 1:
        return summed(put, [x], constant, q)
    axis = axes[0] if axes else 0
    values = [tuple(float(v) for v in a.reshape(-1)) for a in (ratio, offset)]
    kind = level1.type_of(x.q)
    value = x.q
    for op in requantize(values[0], kind, q.dtype, own, zero, axis, loc, q.rounding, values[1]):
        value = put.op(op, value)
    return value


def summed(put: Inserter, terms: Sequence[Term], constant: Array, q: Quantize) -> SSAValue:
    """quantize(Σ terms + constant) on a grid of 2^-S steps of the result."""
    loc = level1.loc_of(put.anchor)
    span = max(abs(end - q.zero_point[0]) for end in dtypes.int_range(q.dtype)) + 1
    offset, zero = grid(q, constant)
    ratios = [t.factor / q.scale[0] for t in terms]
    if len(terms) == 1 and not offset.any():
        ratios = [np.clip(ratios[0], -span - 1, span + 1)]  # saturates as well
    reaches = [_reach(t) for t in terms]
    most = sum(reach * float(np.abs(r).max(initial=0.0)) for reach, r in zip(reaches, ratios, strict=True))
    offset = np.clip(offset, -most - span - 1, most + span + 1)
    most += float(np.abs(offset).max(initial=0.0))
    *numbers, added = _fractions([*ratios, offset])
    shift = max(0, min(sum(reaches).bit_length() + FRACTION, MAX_SUM_BITS - 2 - math.ceil(most).bit_length()))
    factors = [_integers(n, shift) for n in numbers]
    steps = _integers(added, shift)
    lost = sum(_lost(n, m, shift) * reach for n, m, reach in zip(numbers, factors, reaches, strict=True))
    error = lost + _lost(added, steps, shift)
    if error > allowed(span):
        reason = (
            f"a sum on steps of {q.scale[0]:.6g} reaches {most:.6g} of them: 64-bit arithmetic gives it within "
            f"{float(error):.2g} of a step only; use scales closer to each other"
        )
        raise refused(loc, reason)
    guard = _guard([*numbers, added], reaches, error, span, q.rounding, shift)
    for t, m in zip(terms, factors, strict=True):
        steps = steps - m * t.zero
    while shift > 0 and not guard and all((a % 2 == 0).all() for a in (*factors, steps)):
        factors, steps, shift = [m // 2 for m in factors], steps // 2, shift - 1
    return _emit(put, terms, factors, steps, Rescale((1,), (shift,), q.dtype, 0, zero, 0, q.rounding, (0,), guard))


def _reach(t: Term) -> int:
    zeros = [int(t.zero.min()), int(t.zero.max())]
    return max(abs(t.interval.lo), abs(t.interval.hi)) + max(map(abs, zeros))


def _fractions(arrays: Sequence[Array]) -> list[Array]:
    """Numbers as `Exact`s; those of arrays with very many are taken as they are."""
    found: list[Array] = []
    for array in arrays:
        values, where = np.unique(array, return_inverse=True)
        look = exact if values.size <= MAX_FRACTIONS else (lambda v: Exact(Fraction(v), False))
        table = np.empty(values.size, object)
        table[:] = [look(float(v)) for v in values]
        numbers = np.empty(array.shape, object)  # an array also where there are no dimensions
        numbers[...] = table[where.reshape(array.shape)]
        found.append(numbers)
    return found


def _integers(numbers: Array, shift: int) -> Array:
    flat = [round(n.value * (1 << shift)) for n in numbers.flat]
    return np.asarray(flat, np.int64).reshape(numbers.shape)


def _lost(numbers: Array, integers: Array, shift: int) -> Fraction:
    """The largest error of the integers."""
    unit = 1 << shift
    pairs = zip(numbers.flat, integers.flat, strict=True)
    return max((abs(Fraction(int(i), unit) - n.value) for n, i in pairs), default=Fraction(0))


def _guard(numbers: Sequence[Array], reaches: Sequence[int], error: Fraction, span: int, mode: str, shift: int) -> int:
    """As `guard_bits`, for the sum as if each factor were a channel of its own."""
    different = {n for array in numbers for n in array.flat}
    if not error or len(different) > MAX_FRACTIONS:
        return 0
    reach = Fraction(sum(reaches))
    channels = [ChannelMap(n.value, Fraction(0), reach, span, n.meant) for n in different]
    return guard_bits(channels, mode, error, shift)


def _emit(put: Inserter, terms: Sequence[Term], factors: Sequence[Array], steps: Array, last: Rescale) -> SSAValue:
    """Σ q · factor + steps, and the rescale of it."""
    loc = level1.loc_of(put.anchor)
    shape = level1.type_of(terms[0].q).shape
    rank = len(shape)
    alone = varying(steps) if steps.any() else []
    spans = [t.interval * _ends(m) for t, m in zip(terms, factors, strict=True)]
    bounds = Interval(0, 0)
    for part in spans:
        bounds = bounds + part.join(Interval(0, 0))
    if len(alone) > 1:
        bounds = bounds + _ends(steps).join(Interval(0, 0))
    dtype = accumulator(bounds.join(*spans, *(t.interval for t in terms)), loc, MAX_SUM_BITS)
    plain = len({level1.type_of(t.q).dtype for t in terms}) == 1 and all((m == 1).all() for m in factors)
    if plain and len(terms) <= 2 and len(alone) < 2:
        values = [t.q for t in terms]
    else:
        values = [_product(put, t, m, dtype) for t, m in zip(terms, factors, strict=True)]
    total = values[0]
    for value in values[1:]:
        total = put.op(Add(dtype), total, value)
    if len(alone) > 1:
        spread = put.const(steps, dtype)
        spread = spread if steps.shape == shape else put.op(BroadcastTo(shape), spread)
        total = put.op(Add(dtype), total, spread)
    axis = alone[0] if len(alone) == 1 else min(1, max(rank - 1, 0))
    offset = tuple(int(v) for v in steps.reshape(-1)) if len(alone) < 2 else (0,)
    offset = offset if any(offset) else (0,)
    op = Rescale(last.multiplier, last.shift, last.dtype, 0, last.output_zp, axis, last.rounding, offset, last.guard)
    return put.op(op, total)


def _ends(a: Array) -> Interval:
    return Interval(int(a.min()), int(a.max()))


def _product(put: Inserter, term: Term, factor: Array, dtype: str) -> SSAValue:
    """q · factor, exactly, as `dtype`."""
    axes = varying(factor)
    if len(axes) < 2:
        values = tuple(int(v) for v in factor.reshape(-1))
        return put.op(Rescale(values, (0,), dtype, axis=axes[0] if axes else 0), term.q)
    narrow = accumulator(_ends(factor).join(term.interval), level1.loc_of(put.anchor), MAX_SUM_BITS)
    x = put.op(Rescale((1,), (0,), narrow), term.q)
    shape = level1.type_of(term.q).shape
    c = put.const(factor, narrow)
    return put.op(Mul(dtype), x, c if factor.shape == shape else put.op(BroadcastTo(shape), c))
