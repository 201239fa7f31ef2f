"""Converters of weights packed into few bits, with a scale per block: MatMulNBits, GatherBlockQuantized.

They are unpacked at import, as floats: level1 has scales per tensor or per channel, not per block.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import Array, Converter, OnnxNode, Value


def unpacked(packed: Array, bits: int) -> Array:
    """(…, bytes) → (…, bytes · 8 / bits), the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed.astype(np.uint8)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


def width(n: OnnxNode) -> int:
    bits = n.integer("bits", 4)
    if bits not in (2, 4, 8):
        n.refuse(f"weights of {bits} bits; 2, 4 and 8 are supported")
    return bits


def matmul_nbits(n: OnnxNode, version: int) -> Value:
    """x (…, K) · Wᵀ + bias, W (N, K) from blocks along K. Zero points: packed as the weights are, or floats; absent:
    the middle of the range."""
    x, bits = n[0], width(n)
    features, columns, block = (n.integer(a, 0) for a in ("K", "N", "block_size"))
    if min(features, columns, block) < 1 or block * bits % 8 or x.shape[-1:] != (features,):
        n.refuse(f"K {features}, N {columns}, blocks of {block} on {x.shape}")
    if n.integer("weight_prepacked", 0):
        n.refuse("weights prepacked for one of ONNX Runtime's devices")
    blocks = -(-features // block)
    packed, scales = n.known(1, "the weights"), n.known(2, "scales").astype(np.float32)
    if packed.size != columns * blocks * block * bits // 8 or scales.size != columns * blocks:
        n.refuse(f"weights {packed.shape} and scales {scales.shape} for {columns} × {blocks} blocks of {block}")
    q = unpacked(packed.reshape(columns, blocks, -1), bits).astype(np.float32)
    zero: Array = np.full((columns, blocks), 1 << (bits - 1), np.float32)
    if n.has(3):
        given = n.known(3, "zero points")
        if not dtypes.is_float(n[3].dtype):
            given = unpacked(given.reshape(columns, -1), bits)
        if given.size < columns * blocks:
            n.refuse(f"zero points {n[3].shape} for {columns} × {blocks} blocks")
        zero = given.reshape(columns, -1)[:, :blocks].astype(np.float32)
    scales, at = scales.reshape(columns, blocks), np.arange(features) // block
    if n.has(4):
        at = n.known(4, "the groups of features").reshape(-1)[:features].astype(np.int64)
        if at.size != features or at.min() < 0 or at.max() >= blocks:
            n.refuse(f"groups {n[4].shape} that aren't one of {blocks} for each of {features} features")
    w = (q.reshape(columns, -1)[:, :features] - zero[:, at]) * scales[:, at]
    operands = [x, n.const(w.astype(dtypes.to_numpy(x.dtype)), x.dtype)]
    operands += [cast_to(n, n[5], x.dtype)] if n.has(5) else []
    return n.emit(e.Linear(), *operands)


def gather_block_quantized(n: OnnxNode, version: int) -> Value:
    """Rows of a table that is quantized in blocks along one axis."""
    data, scales = n.known(0, "the table"), n.known(2, "scales")
    gather, axis = (n.axis(n.integer(a, d), data.ndim) for a, d in (("gather_axis", 0), ("quantize_axis", 1)))
    block, packed = n.integer("block_size", 128), n[0].dtype == "u8"
    if block < 1:
        n.refuse(f"blocks of {block}")
    q = unpacked(data, width(n)) if packed else data
    zero: Array = np.zeros((), np.float32)
    if packed and not n.has(3):
        zero = np.full((), 1 << (width(n) - 1), np.float32)
    elif n.has(3):
        zero = n.known(3, "zero points")
        zero = unpacked(zero, width(n))[..., : scales.shape[-1]] if packed else zero
    want = tuple(-(-s // block) if d == axis else s for d, s in enumerate(q.shape))
    if scales.shape != want or zero.shape not in ((), want):
        n.refuse(f"scales {scales.shape} and zero points {zero.shape} of a table {q.shape} in blocks of {block}")

    def spread(p: Array) -> Array:
        return p if not p.ndim else np.take(p, np.arange(q.shape[axis]) // block, axis)

    table = (q.astype(np.float32) - spread(zero.astype(np.float32))) * spread(scales.astype(np.float32))
    return n.emit(e.Gather(gather), n.const(table.astype(scales.dtype), n[2].dtype), n[1])


NBITS: Mapping[str, Converter] = MappingProxyType(
    {"MatMulNBits": matmul_nbits, "GatherBlockQuantized": gather_block_quantized}
)
