"""What the plan of a temporal design tells its device: one memory that holds everything, and how it is filled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from cuvil_hw.adapters.streaming.project.record import DesignRecord, check_source
from cuvil_hw.adapters.temporal.image import packed_weights, room_bytes
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import check_seal

TABLE = "passes.bin"


def is_temporal(program: DeviceProgram) -> bool:
    """Whether a program for an FPGA has the temporal style."""
    return "memory_bytes" in program.info


@dataclass(frozen=True, slots=True)
class Factors:
    """Weights of a pass at byte `at`: the constant `digest` ("": ones) with its dimensions in `order`, as (outputs,
    taps, inputs), less `zero`, packed as image.packed_weights says."""

    at: int
    digest: str
    order: tuple[int, ...]
    outputs: int
    taps: int
    inputs: int
    zero: int
    kind: str
    lanes: int
    chunk: int

    def bytes(self, program: DeviceProgram) -> bytes:
        """Raises ValueError when the constant isn't what the record says."""
        shape = (self.outputs, self.taps, self.inputs)
        if not self.digest:
            return packed_weights(np.ones(shape, np.int8), self.kind, self.lanes, self.chunk)
        array = _constant(program, self.digest)
        if sorted(self.order) != list(range(array.ndim)) or array.size != np.prod(shape):
            raise ValueError(f"constant {self.digest} isn't {shape}")
        plain = array.transpose(self.order).reshape(shape).astype(np.int64) - self.zero
        return packed_weights(plain.astype(np.int8), self.kind, self.lanes, self.chunk)


@dataclass(frozen=True, slots=True)
class Plain:
    """The constant `digest` at byte `at`, in its own order."""

    at: int
    digest: str


@dataclass(frozen=True, slots=True)
class TemporalRecord(DesignRecord):
    """`memory_bytes`: of all; `table_sha256`: of passes.bin, which lies at its start; `inputs_at`, `outputs_at`: bytes
    of the ports; `cycles`: of a sample, analytic; `latency_cycles`, `bytes_per_cycle`: of the board's memory;
    `masters`: the AXI masters, each of which gets the memory's address."""

    memory_bytes: int
    table_sha256: str
    factors: tuple[Factors, ...]
    plain: tuple[Plain, ...]
    inputs_at: tuple[int, ...]
    outputs_at: tuple[int, ...]
    cycles: int = 0
    latency_cycles: int = 0
    bytes_per_cycle: float = 0.0
    masters: tuple[str, ...] = ()

    def check(self, program: DeviceProgram) -> None:
        DesignRecord.check(self, program)
        if self.latency_cycles < 0 or not self.bytes_per_cycle > 0:
            raise ValueError("its memory moves no bytes")
        source = program.folder / "src" / f"{self.project}.cpp"
        check_source(source, self.top)
        check_seal(source.read_bytes(), program)
        table = program.folder / "src" / TABLE
        if not table.is_file() or hashlib.sha256(table.read_bytes()).hexdigest() != self.table_sha256:
            raise ValueError(f"{TABLE} isn't the one that the record was made with")
        for places, ports in ((self.inputs_at, program.inputs), (self.outputs_at, program.outputs)):
            if len(places) != len(ports):
                raise ValueError(f"it has {len(places)} places for {len(ports)} ports")
            for at, port in zip(places, ports, strict=True):
                self._inside(at, room_bytes(port))

    def _inside(self, at: int, size: int) -> None:
        if at < 0 or at % 8 or at + size > self.memory_bytes:
            raise ValueError(f"{size} bytes at {at} leave the {self.memory_bytes} bytes of memory")

    def image(self, program: DeviceProgram) -> Array:
        """The memory before a run (uint8). Raises ValueError."""
        memory = np.zeros(self.memory_bytes, np.uint8)
        table = (program.folder / "src" / TABLE).read_bytes()
        for at, data in (
            (0, table),
            *((f.at, f.bytes(program)) for f in self.factors),
            *((p.at, np.ascontiguousarray(_constant(program, p.digest)).tobytes()) for p in self.plain),
        ):
            self._inside(at, len(data))
            memory[at : at + len(data)] = np.frombuffer(data, np.uint8)
        return memory


def _constant(program: DeviceProgram, digest: str) -> Array:
    array = program.constants.get(digest)
    if array is None:
        raise ValueError(f"constant {digest[:80]} is missing")
    return array
