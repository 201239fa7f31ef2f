"""What an MLU program's plan tells its device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuvil_hw.contract import loops
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.contract.loops import StepLoop
from cuvil_hw.contract.record import constant, identifier, port_bytes

MOST_TASKS = 1 << 16


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One launch. `tasks`: how many; `args`: names of buffers."""

    symbol: str
    tasks: int
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BufferRecord:
    """Memory on the device. `digest`: of a constant, else ""; `at`: its place in the workspace, in bytes, -1 where it
    has memory of its own.
    """

    role: str
    bytes: int
    digest: str = ""
    at: int = -1


@dataclass(frozen=True, slots=True)
class MluRecord:
    """What the device needs to know of a program beside its ports. `kernels`: in order; `buffers`: by name,
    those of ports by the ports' names; `loops`: around kernels.
    """

    kernels: tuple[KernelRecord, ...]
    buffers: Mapping[str, BufferRecord]
    workspace_bytes: int
    loops: tuple[StepLoop, ...] = ()

    def check(self, program: DeviceProgram) -> None:
        if self.workspace_bytes < 0:
            raise ValueError("workspace_bytes is negative")
        for port in (*program.inputs, *program.outputs):
            if port.name not in self.buffers or self.buffers[port.name].bytes != port_bytes(port):
                raise ValueError(f"there is no buffer of {port_bytes(port)} bytes for port {port.name}")
        for name, buffer in self.buffers.items():
            if buffer.bytes < 0 or (buffer.at + buffer.bytes > self.workspace_bytes and buffer.at >= 0):
                raise ValueError(f"buffer {name} lies outside the workspace")
            if buffer.digest:
                constant(program, buffer.digest, buffer.bytes)
        loops.check(self.loops, len(self.kernels), {name: b.bytes for name, b in self.buffers.items()})
        for kernel in self.kernels:
            identifier(kernel.symbol, "kernel")
            if not 1 <= kernel.tasks <= MOST_TASKS or not set(self.buffers).issuperset(kernel.args):
                raise ValueError(f"kernel {kernel.symbol} has {kernel.tasks} tasks, or arguments that aren't there")
