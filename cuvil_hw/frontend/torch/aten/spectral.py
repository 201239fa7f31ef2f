"""ATen converters of Fourier transforms: products with matrices of cosines and sines, long ones in two steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.complex import Operand, Pair, enter, is_complex, pair, view_as_real
from cuvil_hw.frontend.torch.aten.emitter import DTYPES, AtenEmitter, Value, axis_of
from cuvil_hw.frontend.torch.aten.shape import joined, pad, part, permuted
from cuvil_hw.ops.nn import Linear
from cuvil_hw.ops.shape import Gather

DIRECT = 256  # up to this length one matrix is taken, beyond it two of the factors'
LARGEST = 4096  # of a prime factor, whose matrix is stored


def _matrix(e: AtenEmitter, angles: torch.Tensor, factor: torch.Tensor | float = 1.0) -> tuple[Value, Value]:
    """(cosines, sines) · factor, rounded once to the type of the node."""
    dtype = next(t for t, name in DTYPES.items() if name == e.out.dtype)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def _angles(length: int, rows: int, columns: int, sign: int) -> torch.Tensor:
    """(rows, columns) of ±2π·row·column / length, exact before the last rounding."""
    cells = torch.outer(torch.arange(rows), torch.arange(columns)) % length
    return cells.double() * (sign * 2 * math.pi / length)


def _product(e: AtenEmitter, x: Value, matrix: Value) -> Value:
    """x (…, n) @ matrix (n, m), as one linear layer."""
    assert isinstance(matrix, torch.Tensor)
    shape = e.shape(x)
    y = e.op(Linear(), e.reshape(x, (math.prod(shape[:-1]), shape[-1])), matrix.T.contiguous())
    return e.reshape(y, (*shape[:-1], matrix.shape[1]))


def _along_last(e: AtenEmitter, re: Value, im: Value | None, count: int, sign: int) -> Pair:
    """The first `count` terms Σ_j x_j · exp(±2πi·j·k / n) along the last axis; without `im` of real numbers."""
    n = e.shape(re)[-1]
    if n > DIRECT and (split := _factor(n)):
        return _in_two_steps(e, re, im, split, count, sign)
    if n > LARGEST:
        e.refuse(f"a Fourier transform of length {n:,}, which has a prime factor above {LARGEST:,}; pad the signal")
    cos, sin = _matrix(e, _angles(n, n, count, sign))
    y, z = _product(e, re, cos), _product(e, re, sin)
    if im is not None:
        y = e.op(ew.Sub(), y, _product(e, im, sin))
        z = e.op(ew.Add(), z, _product(e, im, cos))
    return Pair(y, z)


def _factor(n: int) -> int:
    """The largest factor up to √n; 0 for primes."""
    return next((f for f in range(math.isqrt(n), 1, -1) if n % f == 0), 0)


def _in_two_steps(e: AtenEmitter, re: Value, im: Value | None, a: int, count: int, sign: int) -> Pair:
    """Cooley and Tukey: j = j1·b + j2, k = k1 + a·k2; a transforms of length a, a turn by j2·k1, b of length b."""
    *lead, n = e.shape(re)
    b = n // a
    order = [*range(len(lead)), len(lead) + 1, len(lead)]

    def turned(v: Value) -> Value:
        return permuted(e, v, order)

    rows = [None if v is None else turned(e.reshape(v, (*lead, a, b))) for v in (re, im)]  # (…, j2, j1)
    assert rows[0] is not None
    first = _along_last(e, rows[0], rows[1], a, sign)  # (…, j2, k1)
    cos, sin = _matrix(e, _angles(n, b, a, sign))
    shape = e.shape(first.re)
    cos, sin = e.broadcast(cos, shape), e.broadcast(sin, shape)
    y = e.op(ew.Sub(), e.op(ew.Mul(), first.re, cos), e.op(ew.Mul(), first.im, sin))
    z = e.op(ew.Add(), e.op(ew.Mul(), first.re, sin), e.op(ew.Mul(), first.im, cos))
    second = _along_last(e, turned(y), turned(z), b, sign)  # (…, k1, k2)
    parts = [e.reshape(turned(v), (*lead, n)) for v in (second.re, second.im)]
    return Pair(*(part(e, v, len(lead), 0, count) for v in parts))


def _to_last(e: AtenEmitter, x: Value, axis: int) -> tuple[Value, list[int]]:
    """The axis moved to the end, and the permutation that moves it back."""
    rank = len(e.shape(x))
    order = [d for d in range(rank) if d != axis] + [axis]
    return permuted(e, x, order), [order.index(d) for d in range(rank)]


def _along(e: AtenEmitter, z: Pair, axis: int, sign: int, real: bool = False, count: int | None = None) -> Pair:
    re, back = _to_last(e, z.re, axis)
    im = None if real else _to_last(e, z.im, axis)[0]
    y = _along_last(e, re, im, e.shape(re)[-1] if count is None else count, sign)
    return Pair(permuted(e, y.re, back), permuted(e, y.im, back))


def _norm(normalization: int, lengths: Sequence[int]) -> float:
    """PyTorch's fft_norm_mode: none, by the root of the size, by the size."""
    size = math.prod(lengths)
    return (1.0, 1 / math.sqrt(size), 1 / size)[normalization]


def _scaled(e: AtenEmitter, v: Value, factor: float) -> Value:
    return v if factor == 1 else e.op(ew.Mul(), v, e.splat(factor, e.type(v)))


def _transformed(
    e: AtenEmitter, z: Pair, dims: Sequence[int], normalization: int, sign: int, count: int | None
) -> Pair:
    """Along all of `dims`; with a `count`, of real numbers, that many terms along the last of them."""
    shape = e.shape(z.re)
    axes = [axis_of(d, len(shape)) for d in dims]
    factor = _norm(normalization, [shape[a] for a in axes])
    if count is not None:
        z = _along(e, z, axes.pop(), sign, real=True, count=count)
    for axis in axes:
        z = _along(e, z, axis, sign)
    return Pair(_scaled(e, z.re, factor), _scaled(e, z.im, factor))


@enter("_fft_r2c")
def real_to_complex(e: AtenEmitter, x: Value, dims: Sequence[int], normalization: int, onesided: bool) -> Pair:
    x = e.cast(x, e.out.dtype)
    n = e.shape(x)[dims[-1]]
    return _transformed(e, Pair(x, x), dims, normalization, -1, n // 2 + 1 if onesided else n)


@enter("_fft_c2c")
def complex_to_complex(e: AtenEmitter, z: Operand, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    return _transformed(e, pair(e, z), dims, normalization, -1 if forward else 1, None)


@enter("_fft_c2r")
def complex_to_real(e: AtenEmitter, z: Operand, dims: Sequence[int], normalization: int, length: int) -> Value:
    z = pair(e, z)
    shape = e.shape(z.re)
    axes = [axis_of(d, len(shape)) for d in dims]
    for axis in axes[:-1]:
        z = _along(e, z, axis, 1)
    factor = _norm(normalization, [*(shape[a] for a in axes[:-1]), length])
    re, back = _to_last(e, z.re, axes[-1])
    y = _real_along_last(e, Pair(re, _to_last(e, z.im, axes[-1])[0]), length)
    return permuted(e, _scaled(e, y, factor), back)


def _real_along_last(e: AtenEmitter, z: Pair, length: int) -> Value:
    """The real signal of `length` whose spectrum's first half is z: the other half is its conjugate."""
    rank, half = len(e.shape(z.re)), length // 2 + 1
    z = Pair(*(part(e, v, rank - 1, 0, half) for v in (z.re, z.im)))
    if length > DIRECT:
        mirror = torch.arange((length - 1) // 2, 0, -1)
        re, im = (e.op(Gather(rank - 1), v, mirror) for v in (z.re, z.im))
        whole = Pair(joined(e, [z.re, re], rank - 1), joined(e, [z.im, e.op(ew.Neg(), im)], rank - 1))
        edges = torch.zeros(length, dtype=torch.bool)  # whose imaginary parts don't count
        edges[0] = edges[length // 2] = True
        edges[length // 2] &= length % 2 == 0
        zero = e.splat(0, e.type(whole.im))
        im = e.op(ew.Where(), e.broadcast(edges, e.shape(whole.im)), zero, whole.im)
        return _along_last(e, whole.re, im, length, 1).re
    k = torch.arange(half)
    twice = torch.where((k == 0) | (2 * k == length), 1.0, 2.0)[:, None]
    cos, sin = _matrix(e, _angles(length, half, length, 1), twice)
    return e.op(ew.Sub(), _product(e, z.re, cos), _product(e, z.im, sin))


def _window(e: AtenEmitter, window: Value | None, length: int, size: int) -> Value | None:
    """Padded to the length of a transform on both sides."""
    if window is None and length == size:
        return None
    window = torch.ones(length) if window is None else window
    left = (size - length) // 2
    pads = (left, size - length - left)
    if isinstance(window, torch.Tensor):
        return e.cast(torch.nn.functional.pad(window, pads), e.out.dtype)
    return e.op(ew.Pad(pads, 0.0, "constant"), e.cast(window, e.out.dtype))


@enter("stft")
def stft(
    e: AtenEmitter,
    x: Value,
    size: int,
    hop: int | None,
    length: int | None,
    window: Value | None,
    normalized: bool,
    onesided: bool | None,
    return_complex: bool | None,
    align_to_window: bool | None = None,
) -> Pair | Value:
    """x (…, n) → (…, frequencies, frames), and (…, 2) behind it without `return_complex`."""
    if is_complex(x) or is_complex(window):
        e.refuse("a short-time transform of complex numbers")
    if align_to_window:
        e.refuse("align_to_window")
    hop = size // 4 if hop is None else hop
    shape = e.shape(x)
    count = e.out.shape[-1 if return_complex else -2]
    at = torch.arange(count)[:, None] * hop + torch.arange(size)
    frames: Value = e.op(Gather(len(shape) - 1), x, at)
    weights = _window(e, window, size if length is None else length, size)
    if weights is not None:
        frames = e.op(ew.Mul(), frames, e.broadcast(weights, e.shape(frames)))
    z = _along_last(e, frames, None, size // 2 + 1 if onesided is None or onesided else size, -1)
    rank = len(shape) + 1
    order = [*range(rank - 2), rank - 1, rank - 2]
    factor = 1 / math.sqrt(size) if normalized else 1.0
    y = Pair(*(permuted(e, _scaled(e, v, factor), order) for v in (z.re, z.im)))
    return y if return_complex else view_as_real(e, y)


@enter("stft.center")
def stft_center(
    e: AtenEmitter,
    x: Value,
    size: int,
    hop: int | None,
    length: int | None,
    window: Value | None,
    center: bool,
    mode: str,
    normalized: bool,
    *rest: bool | None,
) -> Pair | Value:
    if center:
        x = pad(e, x, (size // 2, size // 2), mode, 0.0)
    return stft(e, x, size, hop, length, window, normalized, *rest)


@enter("istft")
def istft(
    e: AtenEmitter,
    z: Operand,
    size: int,
    hop: int | None,
    length: int | None,
    window: Value | None,
    center: bool,
    normalized: bool,
    onesided: bool | None,
    wanted: int | None,
    return_complex: bool,
) -> Value:
    """(…, frequencies, frames) → (…, n): frames added where they overlap, over the windows' squares."""
    if return_complex or onesided is False:
        e.refuse("an inverse short-time transform to complex numbers")
    if window is not None and not isinstance(window, torch.Tensor):
        e.refuse("an inverse short-time transform with a window that is computed")
    z, hop = pair(e, z), size // 4 if hop is None else hop
    rank = len(e.shape(z.re))
    order = [*range(rank - 2), rank - 1, rank - 2]
    frames = _real_along_last(e, Pair(permuted(e, z.re, order), permuted(e, z.im, order)), size)
    frames = _scaled(e, frames, 1 / math.sqrt(size) if normalized else 1 / size)
    weights = _window(e, window, size if length is None else length, size)
    weights = torch.ones(size) if weights is None else weights
    frames = e.op(ew.Mul(), frames, e.broadcast(e.cast(weights, e.out.dtype), e.shape(frames)))
    total = _overlapped(e, frames, hop)
    count, start = e.shape(frames)[-2], size // 2 if center else 0
    assert isinstance(weights, torch.Tensor)
    squares = torch.zeros(size + hop * (count - 1), dtype=torch.float64)
    for i in range(count):
        squares[i * hop : i * hop + size] += weights.double() ** 2
    n = e.out.shape[-1]
    kept = squares[start : start + n]
    if bool((kept.abs() < 1e-11).any()):
        e.refuse("the windows' squares add up to zero somewhere; choose another window or hop")
    total = part(e, total, len(e.shape(total)) - 1, start, min(n, len(kept)))
    factor = (1 / kept).to(next(t for t, name in DTYPES.items() if name == e.out.dtype))
    y: Value = e.op(ew.Mul(), total, e.broadcast(factor, e.shape(total)))
    if len(kept) < n:  # a length beyond the last frame
        y = e.op(ew.Pad((*[0] * (len(e.shape(y)) * 2 - 1), n - len(kept)), 0.0, "constant"), y)
    return y


def _overlapped(e: AtenEmitter, frames: Value, hop: int) -> Value:
    """(…, count, size) → (…, size + hop·(count - 1)): frame i is added at i·hop."""
    *lead, count, size = e.shape(frames)
    pieces = -(-size // hop)
    rank = len(lead) + 2

    def padded(v: Value, axis: int, before: int, after: int) -> Value:
        begins, ends = [0] * rank, [0] * rank
        begins[axis], ends[axis] = before, after
        return e.op(ew.Pad((*begins, *ends), 0.0, "constant"), v) if before or after else v

    frames = padded(frames, rank - 1, 0, pieces * hop - size)
    total: Value | None = None
    for j in range(pieces):
        block = padded(part(e, frames, rank - 1, j * hop, hop), rank - 2, j, pieces - 1 - j)
        total = block if total is None else e.op(ew.Add(), total, block)
    assert total is not None
    flat = e.reshape(total, (*lead, (count + pieces - 1) * hop))
    return part(e, flat, rank - 2, 0, size + hop * (count - 1))


__all__ = ["DIRECT"]
