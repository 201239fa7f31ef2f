"""Converters of local norms, Lp pools, transposed windows and Fourier transforms."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.node import Array, Converter, OnnxNode, Value
from cuvil_hw.frontend.onnx.shape import cut, pad_value
from cuvil_hw.frontend.onnx.window import whole_window, window


def power_mean(n: OnnxNode, x: Value, p: int, op: e.AvgPool) -> Value:
    """(Σ |x|^p)^(1/p) under windows; `op` sums."""
    magnitude = n.emit(e.Abs(), x)
    if p == 1:
        return n.emit(op, magnitude)
    if p == 2:
        return n.emit(e.Sqrt(), n.emit(op, n.emit(e.Mul(), x, x)))
    total = n.emit(op, n.emit(e.Pow(), magnitude, n.like(p, x)))
    return n.emit(e.Pow(), total, n.like(1 / p, total))


def lp_pool(n: OnnxNode, version: int) -> Value:
    x = n[0]
    if x.rank < 3:
        n.refuse(f"input {x.shape} has no spatial dimensions")
    win = window(n, x.shape[2:], n.ints("kernel_shape"))
    return power_mean(n, x, n.integer("p", 2), e.AvgPool(win.kernel, win.strides, win.pads, win.dilations, divisor=1))


def global_lp_pool(n: OnnxNode, version: int) -> Value:
    return power_mean(n, n[0], n.integer("p", 2), e.AvgPool(*whole_window(n), divisor=1))


def lp_normalization(n: OnnxNode, version: int) -> Value:
    """x divided by its norm along an axis; zero where that is zero."""
    x, p = n[0], n.integer("p", 2)
    axis = n.axis(n.integer("axis", -1), x.rank)
    if p not in (1, 2):
        n.refuse(f"p = {p}")
    terms = n.emit(e.Abs(), x) if p == 1 else n.emit(e.Mul(), x, x)
    norm = n.emit(e.ReduceSum((axis,), True), terms)
    norm = norm if p == 1 else n.emit(e.Sqrt(), norm)
    norm = n.emit(e.Where(), n.emit(e.Equal(), norm, n.like(0, norm)), n.like(1, norm), norm)
    return n.binary(e.Div(), x, norm)


def lrn(n: OnnxNode, version: int) -> Value:
    """x / (bias + alpha / size · Σ x²)^beta, the sum over `size` neighbouring channels."""
    x, size = n[0], n.integer("size", 1)
    if x.rank < 2 or size < 1:
        n.refuse(f"size {size} on {x.shape}")
    # What reaches beyond all channels counts as zeros.
    before, after = (min(reach, max(x.shape[1] - 1, 0)) for reach in ((size - 1) // 2, size // 2))
    rows = n.reshape(n.emit(e.Mul(), x, x), (x.shape[0], 1, x.shape[1], prod(x.shape[2:])))
    op = e.AvgPool((before + 1 + after, 1), (1, 1), (before, 0, after, 0), (1, 1), divisor=1)
    total = n.reshape(n.emit(op, rows), x.shape)
    scale = n.number("alpha", 1e-4) / size
    base = n.emit(e.Add(), n.emit(e.Mul(), total, n.like(scale, x)), n.like(n.number("bias", 1.0), x))
    return n.emit(e.Div(), x, n.emit(e.Pow(), base, n.like(n.number("beta", 0.75), x)))


def conv_transpose(n: OnnxNode, version: int) -> Value:
    x, w = n[0], n[1]
    rank = x.rank - 2
    if rank < 1 or w.rank != x.rank:
        n.refuse(f"x {x.shape} and w {w.shape} need the same rank ≥ 3")
    kernel = n.ints("kernel_shape", w.shape[2:])
    if kernel != w.shape[2:]:
        n.refuse(f"kernel_shape {kernel} contradicts the weight {w.shape}")
    strides, dilations = n.ints("strides", (1,) * rank), n.ints("dilations", (1,) * rank)
    extra, pads = n.ints("output_padding", (0,) * rank), n.ints("pads", (0,) * (2 * rank))
    auto, wanted = n.attr("auto_pad", "NOTSET"), n.ints("output_shape")
    if not len(strides) == len(dilations) == len(extra) == rank or len(pads) != 2 * rank:
        n.refuse(f"strides {strides}, dilations {dilations}, pads {pads} on {rank} dimensions")
    if auto.startswith("SAME") and not wanted:
        wanted = tuple(s * t for s, t in zip(x.shape[2:], strides, strict=True))
    if wanted:
        wanted = wanted[-rank:]
        full = [
            s * (size - 1) + o + d * (k - 1) + 1
            for size, s, o, d, k in zip(x.shape[2:], strides, extra, dilations, kernel, strict=True)
        ]
        total = [f - w for f, w in zip(full, wanted, strict=True)]
        # A result larger than everything that the kernel reaches has rows of zeros (or the bias) at its end.
        extra = tuple(o + max(0, -t) for o, t in zip(extra, total, strict=True))
        total = [max(0, t) for t in total]
        small = [t // 2 for t in total]
        large = [t - h for t, h in zip(total, small, strict=True)]
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    elif auto == "VALID":
        pads = (0,) * (2 * rank)
    elif auto != "NOTSET":
        n.refuse(f"auto_pad {auto!r}")
    op = e.ConvTranspose(strides, pads, dilations, extra, n.integer("group", 1))
    return n.emit(op, x, w, n[2]) if n.has(2) else n.emit(op, x, w)


def col2im(n: OnnxNode, version: int) -> Value:
    """The sum of overlapping blocks: a transposed convolution by unit kernels."""
    x = n[0]
    image, block = n.known_ints(1, "the image's shape"), n.known_ints(2, "the block's shape")
    rank = len(block)
    strides, dilations = n.ints("strides", (1,) * rank), n.ints("dilations", (1,) * rank)
    pads = n.ints("pads", (0,) * (2 * rank))
    n.affordable("its block", *block, most=1 << 12)
    if x.rank != 3 or len(image) != rank or min((*block, *strides, *dilations), default=1) < 1:
        n.refuse(f"{x.shape} as blocks {block} of an image {image}, strides {strides}, dilations {dilations}")
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank or x.shape[1] % prod(block):
        n.refuse(f"{x.shape} as blocks {block} of an image {image}")
    channels = x.shape[1] // prod(block)
    spans = [image[d] + pads[d] + pads[rank + d] - dilations[d] * (block[d] - 1) - 1 for d in range(rank)]
    counts = [span // s + 1 for span, s in zip(spans, strides, strict=True)]
    if prod(counts) != x.shape[2]:
        n.refuse(f"{x.shape[2]} blocks where the image has {counts}")
    extra = tuple(span % s for span, s in zip(spans, strides, strict=True))
    units = np.tile(np.eye(prod(block)).reshape(prod(block), 1, *block), (channels, *[1] * (rank + 1)))
    op = e.ConvTranspose(strides, pads, dilations, extra, channels)
    return n.emit(op, n.reshape(x, (*x.shape[:2], *counts)), n.const(units, x.dtype))


def dft(n: OnnxNode, version: int) -> Value:
    """By products with matrices of cosines and sines; the last dimension is (real) or (real, imaginary)."""
    x = n[0]
    inverse, onesided = bool(n.integer("inverse", 0)), bool(n.integer("onesided", 0))
    if version >= 20:
        axis = n.axis(int(n.known_scalar(2, "the axis")) if n.has(2) else -2, x.rank)
    else:
        axis = n.axis(n.integer("axis", 1), x.rank)
    if x.rank < 2 or axis == x.rank - 1 or x.shape[-1] not in (1, 2) or not dtypes.is_float(x.dtype):
        n.refuse(f"a transform along axis {axis} of {x.type}")
    given = int(n.known_scalar(1, "dft_length")) if n.has(1) else None
    length = given or (2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis])
    return transform(n, x, axis, length, inverse, onesided)


def transform(n: OnnxNode, x: Value, axis: int, length: int, inverse: bool, onesided: bool) -> Value:
    if length < 1 or (onesided and not inverse and x.shape[-1] == 2):
        n.refuse(f"length {length}, onesided {onesided} of a complex signal")
    half = length // 2 + 1
    taken = half if inverse and onesided else length
    n.affordable("its matrix", taken, half if onesided and not inverse else length)
    order = [*(d for d in range(x.rank - 1) if d != axis), axis, x.rank - 1]
    x = n.transpose(x, order)
    size = min(taken, x.shape[-2])
    x = cut(n, x, [0] * x.rank, [*x.shape[:-2], size, x.shape[-1]])
    x = pad_value(n, x, [0] * (2 * x.rank - 2) + [taken - size, 0])
    real, imaginary = (
        n.reshape(cut(n, x, [*[0] * (x.rank - 1), i], [*x.shape[:-1], 1]), x.shape[:-1]) if i < x.shape[-1] else None
        for i in (0, 1)
    )
    assert real is not None
    inputs = np.arange(taken)
    outputs = np.arange(half if onesided and not inverse else length)
    angle = (1 if inverse else -1) * 2 * np.pi * (np.outer(inputs, outputs) % length) / length
    # The half of a real signal's spectrum that isn't given is the conjugate of the other: counted twice.
    twice = np.where((inputs == 0) | (2 * inputs == length), 1.0, 2.0)[:, None] if inverse and onesided else 1.0
    factor = twice / length if inverse else 1.0

    def product(v: Value, matrix: Array) -> Value:
        flat = n.reshape(v, (prod(v.shape[:-1]), v.shape[-1]))
        y = n.emit(e.Linear(), flat, n.const((matrix * factor).T, v.dtype))
        return n.reshape(y, (*v.shape[:-1], len(outputs)))

    re, im = product(real, np.cos(angle)), product(real, np.sin(angle))
    if imaginary is not None:
        re = n.emit(e.Sub(), re, product(imaginary, np.sin(angle)))
        im = n.emit(e.Add(), im, product(imaginary, np.cos(angle)))
    parts = [n.reshape(v, (*v.shape, 1)) for v in ([re] if inverse and onesided else [re, im])]
    y = parts[0] if len(parts) == 1 else n.emit(e.Concat(x.rank - 1), *parts)
    return n.transpose(y, [order.index(d) for d in range(x.rank)])


def stft(n: OnnxNode, version: int) -> Value:
    """Frames of the signal, windowed, each transformed."""
    x, onesided = n[0], bool(n.integer("onesided", 1))
    step = int(n.known_scalar(1, "frame_step"))
    length = int(n.known_scalar(3, "frame_length")) if n.has(3) else n[2].shape[0]
    if x.rank == 2:
        x = n.reshape(x, (*x.shape, 1))
    if x.rank != 3 or step < 1 or not 0 < length <= x.shape[1]:
        n.refuse(f"frames of {length} every {step} of {x.shape}")
    count = (x.shape[1] - length) // step + 1
    n.affordable("its table of frames", count, length)
    at = np.arange(count)[:, None] * step + np.arange(length)
    frames = n.emit(e.Gather(1), x, n.const(at, "i64"))
    if n.has(2):
        frames = n.binary(e.Mul(), frames, n.reshape(n[2], (length, 1)))
    return transform(n, frames, 2, length, False, onesided)


SIGNAL: Mapping[str, Converter] = MappingProxyType(
    {
        "LpPool": lp_pool,
        "GlobalLpPool": global_lp_pool,
        "LpNormalization": lp_normalization,
        "LRN": lrn,
        "ConvTranspose": conv_transpose,
        "Col2Im": col2im,
        "DFT": dft,
        "STFT": stft,
    }
)
