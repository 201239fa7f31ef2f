"""The top module: processes joined by FIFOs, AXI4-Stream ends at its ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdsl.dialects import func, hw, seq
from xdsl.dialects.builtin import FlatSymbolRefAttr, IntegerType, i1
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.rtl.netlist import Netlist
from cuvil_hw.adapters.streaming.rtl.scalars import NotHardware
from cuvil_hw.ir.annotations import Args, Fifo, Name, noted, text_of
from cuvil_hw.ir.hardware import AxisInOp, AxisOutOp, FifoOp
from cuvil_hw.ir.level2 import AxisReadOp, AxisType, AxisWriteOp, StreamOp, StreamType
from cuvil_hw.render.c.names import Names


def port_names(top: func.FuncOp) -> list[str]:
    """What the ports are called: s_axis_<name> for an input, m_axis_<name> for an output; in the order of arguments."""
    names, said = Names(frozenset()), noted(top, Args)
    given = said.data if said is not None else [arg.name_hint or "port" for arg in top.body.block.args]
    return [names.new(name) for name in given]


def join(
    top: func.FuncOp, name: str, processes: Mapping[str, hw.HWModuleOp], functions: Mapping[str, func.FuncOp],
    depths: Mapping[StreamOp, int],
) -> hw.HWModuleOp:  # fmt: skip
    """The module `name` for a function of role "dataflow". `processes`, `functions`: of each symbol that it calls;
    `depths`: of streams, in words. Raises NotHardware."""
    return _Top(top, processes, functions, depths).made(name)


class _Top:
    def __init__(
        self, top: func.FuncOp, processes: Mapping[str, hw.HWModuleOp], functions: Mapping[str, func.FuncOp],
        depths: Mapping[StreamOp, int],
    ) -> None:  # fmt: skip
        self.top, self.processes, self.functions = top, processes, functions
        self.names: dict[SSAValue, str] = dict(zip(top.body.block.args, port_names(top), strict=True))
        inputs: list[tuple[str, Any]] = [("clk", seq.clock), ("rst", i1)]
        for op in top.body.block.ops:
            if isinstance(op, AxisReadOp):
                port = f"s_axis_{self.names[op.port]}"
                bits = _axis(op.port)
                inputs += [(f"{port}_tdata", IntegerType(bits)), (f"{port}_tvalid", i1), (f"{port}_tlast", i1)]
                inputs += [(f"{port}_tkeep", IntegerType(bits // 8))]
            elif isinstance(op, AxisWriteOp):
                inputs.append((f"m_axis_{self.names[op.port]}_tready", i1))
        self.w = w = Netlist(inputs)
        self.clock = [w.ports["clk"], w.ports["rst"]]
        self.low = w.const(0, 1)
        self.fifos: dict[SSAValue, FifoOp] = {}
        for op in top.body.block.ops:
            if isinstance(op, StreamOp):
                word = w.const(0, _width(op.output))
                label = f"fifo_{text_of(op, Name)}"
                fifo = FifoOp(label, [*self.clock, word, self.low, self.low], depths[op], text_of(op, Fifo))
                w.put(fifo)
                self.fifos[op.output] = fifo
        self.outputs: dict[str, SSAValue] = {}

    def made(self, name: str) -> hw.HWModuleOp:
        for op in self.top.body.block.ops:
            if isinstance(op, AxisReadOp):
                self._read(op)
            elif isinstance(op, AxisWriteOp):
                self._write(op)
            elif isinstance(op, func.CallOp):
                self._call(op)
        return self.w.module(name, self.outputs)

    def _gives(self, stream: SSAValue, data: SSAValue, valid: SSAValue) -> None:
        fifo = self.fifos[stream]
        fifo.operands[2], fifo.operands[3] = data, valid

    def _takes(self, stream: SSAValue, ready: SSAValue) -> None:
        self.fifos[stream].operands[4] = ready

    def _read(self, op: AxisReadOp) -> None:
        w, name = self.w, self.names[op.port]
        port, fifo = f"s_axis_{name}", self.fifos[op.stream]
        given = [w.ports[f"{port}_{end}"] for end in ("tdata", "tvalid", "tlast", "tkeep")]
        flags = self.fifos[op.ends].in_ready if op.ends is not None else self.low
        lanes, bits = _word(op.stream)
        made = AxisInOp(
            f"read_{name}", [*self.clock, *given, fifo.in_ready, flags], bits, _container(op), lanes,
            op.count.value.data, op.ends is not None,
        )  # fmt: skip
        w.put(made)
        self.outputs[f"{port}_tready"] = made.tready
        self._gives(op.stream, made.out_data, made.out_valid)
        if op.ends is not None:
            self._gives(op.ends, made.ends_data, made.ends_valid)

    def _write(self, op: AxisWriteOp) -> None:
        w, name = self.w, self.names[op.port]
        port, fifo = f"m_axis_{name}", self.fifos[op.stream]
        ends = self.fifos[op.ends] if op.ends is not None else None
        flags = [ends.out_data, ends.out_valid] if ends is not None else [self.low, self.low]
        lanes, bits = _word(op.stream)
        width = dtypes.int_width(op.dtype.data)
        made = AxisOutOp(
            f"write_{name}", [*self.clock, fifo.out_data, fifo.out_valid, *flags, w.ports[f"{port}_tready"]],
            _axis(op.port), bits, _container(op), lanes, op.count.value.data, ends is not None,
            width is not None and width[0],
        )  # fmt: skip
        w.put(made)
        for end in ("tdata", "tvalid", "tlast", "tkeep"):
            self.outputs[f"{port}_{end}"] = getattr(made, end)
        self._takes(op.stream, made.in_ready)
        if op.ends is not None:
            self._takes(op.ends, made.ends_ready)

    def _call(self, op: func.CallOp) -> None:
        symbol = op.callee.root_reference.data
        process = self.processes[symbol]
        inputs: list[tuple[str, SSAValue]] = []
        outputs = []
        streams = {}
        for arg, stream in zip(self.functions[symbol].body.block.args, op.arguments, strict=True):
            streams[arg.name_hint or f"p{arg.index}"] = stream
        for port in process.module_type.ports:
            name = port.port_name.data
            channel, _, end = name.rpartition("_")
            if port.dir.data == hw.Direction.OUTPUT:
                outputs.append((name, port.type))
            elif name in ("clk", "rst"):
                inputs.append((name, self.w.ports[name]))
            else:
                fifo = self.fifos[streams[channel]]
                inputs.append((name, {"data": fifo.out_data, "valid": fifo.out_valid, "ready": fifo.in_ready}[end]))
        label = process.sym_name.data
        made = hw.InstanceOp(label, FlatSymbolRefAttr(label), inputs, outputs)
        self.w.put(made)
        results = {name: value for (name, _), value in zip(outputs, made.results, strict=True)}
        for channel, stream in streams.items():
            if f"{channel}_data" in results:
                self._gives(stream, results[f"{channel}_data"], results[f"{channel}_valid"])
            elif f"{channel}_ready" in results:
                self._takes(stream, results[f"{channel}_ready"])


def _axis(port: SSAValue) -> int:
    assert isinstance(port.type, AxisType)
    return int(port.type.bits.data)


def _word(stream: SSAValue) -> tuple[int, int]:
    """(lanes, bits of one)."""
    kind = stream.type
    assert isinstance(kind, StreamType)
    if not isinstance(kind.element, IntegerType):
        raise NotHardware(f"rtl: {stream.name_hint or 'a stream'} carries {kind.element}; hardware carries integers")
    return kind.lanes.data, kind.element.width.data


def _width(stream: SSAValue) -> int:
    lanes, bits = _word(stream)
    return lanes * bits


def _container(op: AxisReadOp | AxisWriteOp) -> int:
    return 8 * int(dtypes.to_numpy(op.dtype.data).itemsize)
