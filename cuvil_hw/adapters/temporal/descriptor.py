"""What a pass of the engine is, as the hardware reads it from memory: a row of 32-bit numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np

from cuvil_hw.adapters.temporal.engine import TiledConvolution
from cuvil_hw.adapters.temporal.layer import Sum
from cuvil_hw.adapters.temporal.memory import pixel_words
from cuvil_hw.adapters.temporal.requantized import Requantized
from cuvil_hw.contract.device import Array

CONVOLVE, COMBINE, FIRST_LOOP = 0, 1, 2  # values of `unit`
KINDS = {"dense": 0, "depthwise": 1, "largest": 2}


@dataclass(frozen=True, slots=True)
class Pass:
    """Addresses and sizes are in words of eight bytes. The struct `pass` of the sources has the same fields; what they
    mean, hls/cuvil_engine.h says."""

    unit: int
    kind: int = 0
    source: int = 0
    second: int = -1
    target: int = 0
    table: int = 0
    table_words: int = 0
    parameters: int = 0
    weights: int = 0
    source_signed: int = 0
    second_signed: int = 0
    zero: int = 0
    fill: int = 0
    in_rows: int = 0
    in_cols: int = 0
    in_words: int = 0
    out_rows: int = 0
    out_cols: int = 0
    out_words: int = 0
    out_bytes: int = 1
    tile_rows: int = 1
    tile_cols: int = 1
    stride_y: int = 1
    stride_x: int = 1
    pad_y: int = 0
    pad_x: int = 0
    span_y: int = 1
    span_x: int = 1
    kernel_y: int = 1
    kernel_x: int = 1
    tap_y: int = 1
    tap_x: int = 0
    step_x: int = 0
    chunks: int = 0
    sum_chunks: int = 0
    same_blocks: int = 1
    next_chunks: int = 0
    depth: int = 0
    parts: int = 1
    blocks: int = 0
    lanes: int = 0
    block_words: int = 0
    step_words: int = 0
    even: int = 0
    out_zero: int = 0
    low: int = 0
    high: int = 0
    scale: int = 0
    scale_second: int = 0
    offset_low: int = 0
    offset_high: int = 0
    shift: int = 0

    def row(self, length: int, places: Sequence[int] = ()) -> Array:
        """`length` numbers: the fields, then addresses of a loop's buffers (bytes)."""
        numbers = [*astuple(self), *places]
        row = np.zeros(length, np.int64)
        row[: len(numbers)] = numbers
        return (row & 0xFFFFFFFF).astype("<u4")


NAMES = tuple(f.name for f in fields(Pass))


def row_length(most_places: int) -> int:
    """Numbers of a row: whole words."""
    return -(-(len(NAMES) + most_places) // 2) * 2


def struct_source(length: int) -> str:
    """The struct, and the function that reads row `n`."""
    listed = ", ".join(NAMES)
    rows = [f"    p.{name} = numbers[{i}];" for i, name in enumerate(NAMES)]
    return f"""#ifndef CUVIL_PASSES_H
#define CUVIL_PASSES_H

#include <ap_int.h>

namespace cuvil {{
namespace engine {{

// One row of the table of passes; places: byte addresses of what a loop nest reads and writes.
struct pass {{
    int {_wrapped(listed)};
    int places[{length - len(NAMES)} + 1];
}};

inline pass read_pass(const ap_uint<64>* memory, int n) {{
    CUVIL_NEXT_PASS
    int numbers[{length}];
    CUVIL_READ_BURST({length // 2})
    for (int i = 0; i < {length // 2}; ++i) {{
#pragma HLS PIPELINE II=2
        CUVIL_BEAT
        const ap_uint<64> data = memory[n * {length // 2} + i];
        numbers[2 * i] = int(ap_uint<32>(data).to_uint());
        numbers[2 * i + 1] = int(ap_uint<32>(data >> 32).to_uint());
    }}
    pass p;
{chr(10).join(rows)}
    for (int i = {len(NAMES)}; i < {length}; ++i) p.places[i - {len(NAMES)}] = numbers[i];
    return p;
}}

}}  // namespace engine
}}  // namespace cuvil

#endif
"""


def _wrapped(listed: str, width: int = 100) -> str:
    lines, line = [], ""
    for word in listed.split(" "):
        if len(line) + len(word) > width:
            lines.append(line.rstrip())
            line = ""
        line += f"{word} "
    return "\n        ".join([*lines, line.rstrip()])


def convolution_pass(made: TiledConvolution, **where: int) -> Pass:
    """A convolution; `where`: addresses."""
    layer = made.layer
    source = layer.kernel.operand(layer.source)
    r, c = layer.rows, layer.cols
    return Pass(
        CONVOLVE, KINDS[layer.kind], **where, **_finish(layer.finish),
        source_signed=signed(source.type.dtype), zero=layer.zero, fill=layer.fill,
        in_rows=r.size, in_cols=c.size, in_words=made.in_words,
        out_rows=r.out, out_cols=c.out, out_words=made.out_words,
        out_bytes=made.block_words * 8 // made.lanes, tile_rows=made.rows, tile_cols=made.cols,
        stride_y=r.stride, stride_x=c.stride, pad_y=r.pad, pad_x=c.pad, span_y=r.span, span_x=c.span,
        kernel_y=r.kernel, kernel_x=c.kernel, tap_y=r.dilation, tap_x=c.dilation * made.chunks,
        step_x=c.stride * made.chunks, chunks=made.chunks, sum_chunks=made.sum_chunks,
        same_blocks=made.same_blocks, next_chunks=made.next_chunks,
        depth=made.depth, parts=made.parts, blocks=made.blocks, lanes=made.lanes, block_words=made.block_words,
        step_words=0 if layer.weights is None else made.step_words,
    )  # fmt: skip


def sum_pass(layer: Sum, **where: int) -> Pass:
    """An elementwise sum; `where`: addresses."""
    f, kind = layer.finish, layer.kernel.type
    words = pixel_words(kind)
    pixels = kind.size // (kind.shape[1] if kind.rank > 2 else kind.shape[-1])
    signs = [signed(layer.kernel.operand(s).type.dtype) for s in layer.sources]
    factors = [int(n) for n in f.factors]
    offset = int(f.offset)
    return Pass(
        COMBINE, **where, **_finish(f), source_signed=signs[0], second_signed=signs[-1], out_words=words * pixels,
        scale=factors[0], scale_second=factors[1] if len(factors) > 1 else 0, offset_low=offset & 0xFFFFFFFF,
        offset_high=offset >> 32, shift=int(f.shift),
    )  # fmt: skip


def signed(dtype: str) -> int:
    return int(dtype.startswith("i"))


def _finish(f: Requantized) -> dict[str, int]:
    return {"even": int(f.even), "out_zero": f.zero, "low": f.low, "high": f.high, "table_words": 32 * bool(f.table)}


def table_bytes(f: Requantized) -> bytes:
    """The table by the low byte of its index."""
    return (np.asarray(f.table, np.int64) & 255).astype(np.uint8).tobytes()


def parameter_bytes(made: TiledConvolution) -> bytes:
    """Two words a channel, whole blocks: multiplier and shift; offset."""
    f, count = made.layer.finish, made.blocks * made.lanes
    channels = made.layer.channels_out
    columns = [np.zeros(count, np.int64) for _ in range(3)]
    for column, values in zip(columns, (f.factors[0], f.shift, f.offset), strict=True):
        column[:channels] = values
    scale = (columns[0] & 0xFFFFFFFF).astype("<u8") | (columns[1].astype("<u8") << np.uint64(32))
    return np.stack([scale, columns[2].astype("<u8")], axis=1).tobytes()


def table_of_passes(rows: Iterable[Array]) -> bytes:
    return b"".join(row.tobytes() for row in rows)
