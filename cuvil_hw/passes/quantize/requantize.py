"""Parameters of `rescale` from real numbers: y = round(x · ratio + offset) in integers, with a bounded error.

Scales are f32 numbers, so their ratio has a relative error of about 2^-24, and ties of the exact ratio aren't ties of
the stored one. A number very near to a fraction with a small denominator is therefore replaced by that fraction: x ·
0.3 then has the same ties as in f32. The remaining error of the fixed-point multiplier is at most `allowed` for every
input that doesn't saturate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from cuvil_hw import dtypes
from cuvil_hw.errors import Refusal, Unsupported
from cuvil_hw.ops.base import ShapeError
from cuvil_hw.ops.integer import Rescale
from cuvil_hw.ops.rounding import NEAREST
from cuvil_hw.types import TensorType

ERROR = Fraction(1, 1 << 8)  # steps of the result, of up to 16 bits; of wider ones FINE of their range, as in f32
FINE = Fraction(1, 1 << 24)
NOISE = Fraction(3, 1 << 24)  # relative: three scales, each rounded to f32
# Of the fractions that a mantissa is taken for: small ones, and those of decimals. They cover one number in 1,500; all
# denominators up to 1,024 would cover one in ten, and ratios of trained scales would lose their last bits for nothing.
SMALL_DENOMINATOR = 64
DECIMAL_DENOMINATORS = (125, 625)
DYADIC_BITS = 16  # a mantissa of so few bits is meant as it is
MULTIPLIER_BITS = 31
DEAD = Fraction(1, 1 << 12)  # steps that a channel can make at most and be taken for constant


@dataclass(frozen=True)
class Exact:
    """A real number as a fraction. `meant`: the fraction that scales were rounded from, not just the bits of the
    scales."""

    value: Fraction
    meant: bool


def exact(number: float) -> Exact:
    """The fraction that a finite `number` stands for."""
    mantissa, exponent = math.frexp(number)
    if math.ldexp(mantissa, DYADIC_BITS).is_integer():
        return Exact(Fraction(number), True)
    found = Fraction(mantissa)
    decimals = (Fraction(round(found * d), d) for d in DECIMAL_DENOMINATORS)
    for near in (found.limit_denominator(SMALL_DENOMINATOR), *decimals):
        if abs(near - found) <= NOISE * abs(found):
            return Exact(near * Fraction(2) ** exponent, True)
    return Exact(Fraction(number), False)


def requantize(
    ratios: Sequence[float],
    kind: TensorType,
    dtype: str,
    input_zp: int = 0,
    output_zp: int = 0,
    axis: int = 1,
    layer: str = "",
    rounding: str = "half_even",
    offsets: Sequence[float] = (0.0,),
) -> tuple[Rescale, ...]:
    """Rescales, applied one after another (mostly one), that convert a `kind` tensor to `dtype`: saturate(round((x -
    input_zp) · ratio + offset) + output_zp).

    Ratios and offsets are one each, or one per channel along `axis`; finite, of any sign. One shift serves all channels
    if that is precise enough, else each channel has its own. If a sum is too wide for a precise multiplier, it first
    loses bits that can't matter. Common factors of two are removed from all parameters, which changes no result and
    turns powers of two into plain shifts. Raises Unsupported, naming `layer`, if nothing is precise enough.
    """
    for number in (*ratios, *offsets):
        if not math.isfinite(number):
            reason = f"scale ratio or offset {number} is not a finite number; check the scales of the model"
            raise refused(layer, reason)
    count = max(len(ratios), len(offsets))
    low, high = (end - input_zp for end in dtypes.int_range(kind.dtype))
    known = [[exact(n) for n in v] * (count if len(v) == 1 else 1) for v in (ratios, offsets)]
    span = max(abs(end - output_zp) for end in dtypes.int_range(dtype)) + 1
    reach = max(abs(low), abs(high))
    dead = DEAD if rounding in NEAREST else Fraction(0)
    channels = [ChannelMap.of(r, o, reach, span, dead) for r, o in zip(*known, strict=True)]
    plain = Rescale((0,), (1,), dtype, input_zp, output_zp, axis, rounding)
    if rounding == "sign":
        signs = [c.threshold(reach) for c in channels]
        return (_packed(plain, [m for m, _ in signs], [0] * count, [o for _, o in signs]),)
    if rounding in NEAREST and all(not c.offset and reach * abs(c.ratio) < Fraction(1, 2) for c in channels):
        return (plain,)
    found = _precise(channels, plain, kind)
    if found is not None:
        return (found,)
    for first in _narrower(channels, kind, input_zp):
        less = kind.with_dtype(first.dtype)
        shift = first.shift[0]
        reach = max(abs(end) for end in dtypes.int_range(less.dtype))
        scaled = [replace(c, ratio=c.ratio * (1 << shift), reach=Fraction(reach)) for c in channels]
        lost = max(abs(c.ratio) for c in scaled) / 2 if shift else Fraction(0)
        found = _precise(scaled, replace(plain, input_zp=0), less, lost)
        if found is not None:
            return first, found
    worst = max(abs(float(c.ratio)) for c in channels)
    reason = (
        f"scale ratio {worst:.6g} from {kind.dtype} to {dtype} needs more than 64-bit arithmetic to be right to "
        f"{float(allowed(span)):.2g} of a step; use coarser scales"
    )
    raise refused(layer, reason)


def allowed(span: int) -> Fraction:
    """The largest permitted error, in steps of a result that ranges over ±span."""
    return max(ERROR, span * FINE)


def refused(layer: str, reason: str) -> Unsupported:
    return Unsupported([Refusal("rescale", reason, 1, (layer,) if layer else ())])


@dataclass(frozen=True)
class ChannelMap:
    """x · ratio + offset for |x| ≤ reach; beyond ±span it saturates. `meant`: as of Exact, of both."""

    ratio: Fraction
    offset: Fraction
    reach: Fraction
    span: int
    meant: bool

    @staticmethod
    def of(ratio: Exact, offset: Exact, reach: int, span: int, dead: Fraction) -> ChannelMap:
        """With numbers no larger than matter: of whole x ≠ 0 a large ratio saturates, as does an offset that no x
        brings back. A ratio that gives `dead` steps at most is 0."""
        r, o = ratio.value, offset.value
        if abs(r) * reach <= dead:
            o = max(min(o, Fraction(span + 2)), Fraction(-span - 2))
            return ChannelMap(Fraction(0), o, Fraction(reach), span, offset.meant)
        most = span + 1 + reach * abs(r)
        o = max(min(o, most), -most)
        largest = span + abs(o) + 1
        return ChannelMap(max(min(r, largest), -largest), o, Fraction(reach), span, ratio.meant and offset.meant)

    @property
    def relevant(self) -> Fraction:
        """The largest |x| whose result doesn't saturate for sure, and depends on x."""
        if not self.ratio:
            return Fraction(0)
        return min(self.reach, Fraction(math.floor((self.span + abs(self.offset)) / abs(self.ratio))))

    def error(self, multiplier: int, shift: int, offset: int) -> Fraction:
        """An upper bound of the error that the parameters cause, in steps of the result."""
        unit = 1 << shift
        return abs(Fraction(multiplier, unit) - self.ratio) * self.relevant + abs(Fraction(offset, unit) - self.offset)

    def threshold(self, reach: int) -> tuple[int, int]:
        """(±1 or 0, offset) whose sum with x has the sign of x · ratio + offset, zero counted as positive."""
        if not self.ratio:
            return 0, 0 if self.offset >= 0 else -1
        if self.ratio > 0:
            return 1, -max(min(math.ceil(-self.offset / self.ratio), reach + 1), -reach - 1)
        return -1, max(min(math.floor(self.offset / -self.ratio), reach + 1), -reach - 1)

    def shift(self) -> int:
        """The largest shift for which the multiplier has at most MULTIPLIER_BITS bits."""
        size = abs(self.ratio)
        if not size:
            return MULTIPLIER_BITS
        exponent = size.numerator.bit_length() - size.denominator.bit_length()  # 2^(exponent-1) < size < 2^(exponent+1)
        shift = MULTIPLIER_BITS - exponent
        while size * Fraction(2) ** shift >= (1 << MULTIPLIER_BITS) - Fraction(1, 2):
            shift -= 1
        return shift

    def parameters(self, shift: int, directed: bool) -> tuple[int, int]:
        """Multiplier and offset for a shift. `directed`: the least difference from a whole number counts."""
        m = round(self.ratio * (1 << shift))
        if directed and not m and self.ratio:
            m = 1 if self.ratio > 0 else -1
        return m, round(self.offset * (1 << shift))


def _precise(
    channels: Sequence[ChannelMap], plain: Rescale, kind: TensorType, before: Fraction = Fraction(0)
) -> Rescale | None:
    """A rescale by the channels' parameters that is precise enough; None where there is none. `before`: the error that
    x has already."""
    own = [max(0, min(62, c.shift())) for c in channels]
    one_shift = [[shift] * len(channels) for shift in range(min(own), -1, -1)]
    each_its_own = [[max(1, s - less) for s in own] for less in range(MULTIPLIER_BITS)] if len(set(own)) > 1 else []
    for candidates in (one_shift, each_its_own):
        for shifts in candidates:
            made = _made(channels, plain, shifts)
            try:
                made.infer(kind)
            except ShapeError:
                continue
            worst = max(c.error(*p) for c, p in zip(channels, _spread(made, len(channels)), strict=True)) + before
            if worst > allowed(channels[0].span) - DEAD:
                break  # with smaller shifts it only grows
            return replace(made, guard=guard_bits(channels, made.rounding, worst, min(made.shift)))
    return None


def _made(channels: Sequence[ChannelMap], plain: Rescale, shifts: Sequence[int]) -> Rescale:
    directed = plain.rounding not in NEAREST
    pairs = [c.parameters(s, directed) for c, s in zip(channels, shifts, strict=True)]
    if len(set(shifts)) > 1:
        triples = [_reduced(m, s, o, 1) for (m, o), s in zip(pairs, shifts, strict=True)]
        return _packed(plain, *(list(v) for v in zip(*triples, strict=True)))
    shift = shifts[0]
    while shift > 0 and all(m % 2 == 0 and o % 2 == 0 for m, o in pairs):
        pairs, shift = [(m // 2, o // 2) for m, o in pairs], shift - 1
    return _packed(plain, [m for m, _ in pairs], [shift] * len(pairs), [o for _, o in pairs])


def _reduced(m: int, shift: int, offset: int, least: int) -> tuple[int, int, int]:
    while shift > least and m % 2 == 0 and offset % 2 == 0:
        m, shift, offset = m // 2, shift - 1, offset // 2
    return m, shift, offset


def _packed(plain: Rescale, multipliers: list[int], shifts: list[int], offsets: list[int]) -> Rescale:
    """Equal parameters of all channels once."""
    m, s, o = (tuple(v[:1]) if len(set(v)) == 1 else tuple(v) for v in (multipliers, shifts, offsets))
    return replace(plain, multiplier=m, shift=s, offset=o)


def _spread(op: Rescale, count: int) -> list[tuple[int, int, int]]:
    return op.channels * count if len(op.channels) == 1 else op.channels


def guard_bits(channels: Sequence[ChannelMap], rounding: str, error: Fraction, shift: int) -> int:
    """Fractional bits after which values as far as `error` from a tie (or from a whole number, for directed modes) are
    on it, and no others; 0 where the scales mean no fractions, or no value comes there."""
    if not error or not all(c.meant for c in channels) or not any(_arrives(c, rounding) for c in channels):
        return 0
    apart = math.lcm(*(n.denominator for c in channels for n in (c.ratio, c.offset)))
    room = (error.denominator // error.numerator).bit_length() - 2  # error < 2^-(room+1)
    return max(0, min((2 * apart - 1).bit_length(), room, shift - 1))


def _arrives(c: ChannelMap, rounding: str) -> bool:
    """Whether some x ≠ 0 gives a tie, or a whole number where the mode is a directed one."""
    if c.offset:
        return (c.ratio.denominator * c.offset.denominator) % 2 == 0 or rounding not in NEAREST
    apart = Fraction(c.ratio.denominator)
    if rounding in NEAREST:
        return apart % 2 == 0 and apart / 2 <= c.relevant
    return apart <= c.relevant


def _narrower(channels: Sequence[ChannelMap], kind: TensorType, input_zp: int) -> Iterator[Rescale]:
    """Ways to drop bits of wide sums: high ones that saturate anyway, low ones far below a step. Narrowest last."""
    relevant = max(c.relevant for c in channels)
    step = max(abs(c.ratio) for c in channels)
    for shift in range(63):
        if shift and step * (1 << shift) / 2 > allowed(channels[0].span) / 2:
            return
        bits = min((int(relevant) >> shift).bit_length() + 2, 62)
        op = Rescale((1,), (shift,), f"i{bits}", input_zp, 0, rounding="half_up")
        try:
            op.infer(kind)
        except ShapeError:
            continue
        yield op
