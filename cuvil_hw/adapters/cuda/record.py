"""What a CUDA program's plan tells its device. Sizes are bytes of one sample, or of the constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuvil_hw.adapters.cuda.arch import THREADS_PER_BLOCK
from cuvil_hw.contract import loops
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.contract.loops import StepLoop, writable
from cuvil_hw.contract.record import constant, identifier, port_bytes


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One kernel. Blocks for n samples: ceil(rows·(n if sampled) / tile) · times·(1 if sampled else n). The last of
    `buffers` is written. `cooperative`: the threads of a block meet."""

    symbol: str
    kernel: str
    buffers: tuple[str, ...]
    cooperative: bool
    threads: int
    rows: int
    tile: int
    times: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class CudaRecord:
    """What the device needs to know of a program beside its ports.

    Attributes:
        arch: such as "sm_90".
        launches: in order.
        temporaries: where each lies in the arena, in bytes.
        bytes: of every buffer.
        constants: digests by buffer.
        largest: elements of the largest buffer.
        loops: around launches; a program that has some runs one sample at a time, as views lie apart in each sample.
    """

    arch: str
    launches: tuple[LaunchRecord, ...]
    arena_bytes: int
    temporaries: Mapping[str, int]
    bytes: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, str]
    largest: int
    loops: tuple[StepLoop, ...] = ()

    def check(self, program: DeviceProgram) -> None:
        if min((self.arena_bytes, self.largest, *self.bytes.values()), default=0) < 0:
            raise ValueError("a size is negative")
        for name, digest in self.constants.items():
            constant(program, digest, self.bytes.get(name, -1))
        for names, ports in ((self.inputs, program.inputs), (self.outputs, program.outputs)):
            sizes = [port_bytes(p) for p in ports]
            if [self.bytes.get(n) for n in names] != sizes:
                raise ValueError(f"buffers {', '.join(names)} aren't those of ports with {sizes} bytes")
        for name, at in self.temporaries.items():
            if at < 0 or name not in self.bytes or at + self.bytes[name] > self.arena_bytes:
                raise ValueError(f"temporary {name} lies outside the arena")
        loops.check(self.loops, len(self.launches), self.bytes)
        bases = {base for loop in self.loops for base in loop.bases}
        written = {*self.outputs, *self.temporaries, *writable(self.loops, {*self.outputs, *self.temporaries})}
        known = {*written, *self.inputs, *self.constants, *(v for loop in self.loops for v in loop.views)}
        if not known.issuperset(bases):
            raise ValueError(f"buffer {min(bases - known)} of a loop isn't there")
        for launch in self.launches:
            identifier(launch.symbol, "kernel")
            if not launch.buffers or not known.issuperset(launch.buffers) or launch.buffers[-1] not in written:
                raise ValueError(f"kernel {launch.symbol} has buffers that aren't there, or writes one that it may not")
            if not 1 <= launch.threads <= THREADS_PER_BLOCK or launch.tile < 1 or min(launch.rows, launch.times) < 0:
                raise ValueError(f"kernel {launch.symbol} has no launch like that")
