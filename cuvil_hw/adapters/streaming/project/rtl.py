"""The SystemVerilog of a project: what is emitted, and what its simulator and `cuvil synth` need to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xdsl.dialects import func
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.rtl.delays import Delays
from cuvil_hw.adapters.streaming.rtl.emit import emit
from cuvil_hw.adapters.streaming.rtl.scalars import NotHardware
from cuvil_hw.adapters.streaming.rtl.top import port_names
from cuvil_hw.adapters.streaming.verilated.build import library_files
from cuvil_hw.adapters.streaming.verilated.record import FILE, FOLDER, ChannelRecord, RtlRecord
from cuvil_hw.contract import canonical
from cuvil_hw.contract.record import info_of
from cuvil_hw.ir.annotations import Name, Role, text_of
from cuvil_hw.ir.legal import functions
from cuvil_hw.ir.level2 import AxisReadOp, AxisWriteOp, StreamOp, StreamReadOp, StreamWriteOp

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def rtl_files(
    module: ModuleOp, constants: Mapping[str, Any], name: str, axis_bits: int, delays: Delays, *, required: bool
) -> dict[str, bytes]:
    """The files below rtl/ of a module of `dataflow.lower`. `delays`: with the clock that its stages are for. Where it
    can't be hardware yet, one that says why, or if `required` NotHardware."""
    try:
        emitted = emit(module, constants, name, delays)
    except NotHardware as e:
        if required:
            raise
        return {FILE: canonical.dump(info_of(RtlRecord(refused=str(e))))}
    record = _record(module, f"{name}_top", axis_bits)
    files = {f"{FOLDER}/{file}": text.encode() for file, text in emitted.items()}
    files |= {f"{FOLDER}/{file}": text for file, text in library_files().items()}
    return {**files, FILE: canonical.dump(info_of(record))}


def _record(module: ModuleOp, top_name: str, axis_bits: int) -> RtlRecord:
    top = next(f for f in functions(module) if text_of(f, Role) == "dataflow")
    called = {f.sym_name.data: f for f in functions(module)}
    ends: dict[SSAValue, list[str]] = {}
    words: dict[SSAValue, int] = {}
    ports: dict[SSAValue, str] = dict(zip(top.body.block.args, port_names(top), strict=True))
    inputs: list[str] = []
    outputs: list[str] = []
    outside: list[ChannelRecord] = []
    packets = False

    def joined(stream: SSAValue, process: str, reads: bool) -> None:
        ends.setdefault(stream, ["", ""])[reads] = process

    for op in top.body.block.ops:
        if isinstance(op, StreamOp):
            words[op.output] = op.words.value.data if op.words is not None else 1
        elif isinstance(op, AxisReadOp | AxisWriteOp):
            reads = isinstance(op, AxisReadOp)
            name = ports[op.port]
            process, listed = (f"read_{name}", inputs) if reads else (f"write_{name}", outputs)
            outer = f"{'input' if reads else 'output'}_{len(listed)}"
            each = _port_words(op, axis_bits)
            writer, reader = (outer, process) if reads else (process, outer)
            outside.append(ChannelRecord(outer, writer, reader, each))
            listed.append(name)
            for stream in (op.stream, *([op.ends] if op.ends is not None else [])):
                joined(stream, process, not reads)
            packets = packets or op.ends is not None
        elif isinstance(op, func.CallOp):
            symbol = op.callee.root_reference.data
            for arg, stream in zip(called[symbol].body.block.args, op.arguments, strict=True):
                for use in arg.uses:
                    if isinstance(use.operation, StreamReadOp | StreamWriteOp):
                        joined(stream, symbol, isinstance(use.operation, StreamReadOp))
    channels = []
    for stream, count in words.items():
        assert isinstance(stream.owner, StreamOp)
        writer, reader = ends[stream]
        channels.append(ChannelRecord(text_of(stream.owner, Name), writer, reader, count))
    return RtlRecord(top_name, axis_bits, tuple(inputs), tuple(outputs), (*outside, *channels), packets)


def _port_words(op: AxisReadOp | AxisWriteOp, axis_bits: int) -> int:
    """Words of one sample."""
    container = 8 * dtypes.to_numpy(op.dtype.data).itemsize
    return -(-int(op.count.value.data) // (axis_bits // container))
