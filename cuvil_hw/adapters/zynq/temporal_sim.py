"""Simulates designs of the temporal style: their HLS C++, compiled for the host, on one memory as the board has it;
with clocks, too."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.temporal import clocks
from cuvil_hw.adapters.temporal.image import WORD_BYTES, placed, room_bytes, taken
from cuvil_hw.adapters.temporal.record import TemporalRecord
from cuvil_hw.adapters.zynq.simbuild import BOUNDED, FLAGS, folder_digest, host_flags, include_folders, with_clocks
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import read
from cuvil_hw.contract.timing import Raw, Timing
from cuvil_hw.errors import ArtifactError, CuvilError, DeviceError
from cuvil_hw.runtime.cache import cached_build
from cuvil_hw.runtime.forks import Turn
from cuvil_hw.runtime.scratch import Library

_LIBRARY = "design.so"
# Loop nests see the one memory as elements of several types.
_ALIASED = ("-fno-strict-aliasing",)


def build(
    program: DeviceProgram, record: TemporalRecord, flags: Sequence[str] = (), headers: Path | None = None
) -> Path:
    """The shared library of a program's sources. `headers`: another folder with ap_int.h (Xilinx's own, say), used
    before sim/hls. Raises ToolNotFound, BuildFailed."""
    include = include_folders("hls", "dataflow", headers=headers)
    timed = with_clocks if BOUNDED[0] in flags else bytes
    files = {
        path.relative_to(program.folder).as_posix(): timed(path.read_bytes())
        for path in sorted((program.folder / "src").iterdir())
        if path.suffix in (".h", ".cpp")
    }
    text = (
        f'#include "src/{record.project}.cpp"\n#include <cuvil_sim_memory.h>\nCUVIL_SIM_MEMORY_DESIGN({record.top})\n'
    )
    found = (*(f"-I{folder}" for folder in include), "-Isrc")
    argv = ("g++", *FLAGS, *_ALIASED, *host_flags(), *flags, *found, "design.cpp", "-o", _LIBRARY)
    command = Command(argv, "simulate an HLS design", "install it (Debian: apt-get install g++)")
    plan = BuildPlan({**files, "design.cpp": text.encode()}, (command,), (_LIBRARY,))
    return cached_build(plan, folder_digest(include)) / _LIBRARY


class TemporalSimulation:
    """One design, loaded into this process, with its memory. Runs of several threads take turns."""

    def __init__(self, program: DeviceProgram, flags: Sequence[str] = (), headers: Path | None = None) -> None:
        """Raises ArtifactError, ToolNotFound, BuildFailed, DeviceError."""
        self._record = read(TemporalRecord, program)
        self._program = program
        try:
            self._memory = np.require(self._record.image(program), requirements=["A", "W"])
        except ValueError as e:
            raise ArtifactError(f"{program.name}: {e}; compile the model again") from e
        self._library = Library(build(program, self._record, flags, headers), program.name)
        self._turn = Turn()
        self._closed = False

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        count = len(inputs[0]) if inputs else 1
        results: list[list[Array]] = [[] for _ in self._program.outputs]
        seconds = 0.0
        for n in range(count):
            with self._turn.lock:
                if self._closed:
                    raise DeviceError(f"{self._program.name}: is closed; load it again")
                seconds += self._one([stack[n] for stack in inputs], results, n)
        return [np.stack(samples) for samples in results], seconds

    def _one(self, sample: Sequence[Array], results: Sequence[list[Array]], number: int) -> float:
        record, program = self._record, self._program
        for at, port, array in zip(record.inputs_at, program.inputs, sample, strict=True):
            raw = placed(array, port)
            self._memory[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
        failure = f"simulation of {program.name} failed: sample {number}"
        start = perf_counter()
        self._library.call("cuvil_sim_memory_run", ctypes.c_void_p(self._memory.ctypes.data), failure=failure)
        seconds = perf_counter() - start
        for at, port, made in zip(record.outputs_at, program.outputs, results, strict=True):
            made.append(taken(self._memory[at : at + room_bytes(port)].tobytes(), port))
        return seconds

    def run_at(self, memory: Array) -> None:
        """One sample on a board's own memory (uint8), which holds the image and its inputs. Raises DeviceError."""
        failure = f"simulation of {self._program.name} failed"
        self._library.call("cuvil_sim_memory_run", ctypes.c_void_p(memory.ctypes.data), failure=failure)

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        with self._turn.lock:
            self._closed = True
            self._library.close()


_FRACTION = 1024  # the simulated memory counts such parts of a cycle


class TemporalCycles(TemporalSimulation):
    """With clocks: the seconds of a run are simulated. See docs/simulators.md for what its figures mean."""

    def __init__(self, program: DeviceProgram, clock_hz: float, flags: Sequence[str] = ()) -> None:
        """Raises as TemporalSimulation."""
        super().__init__(program, (*BOUNDED, *flags))
        self._clock_hz = clock_hz
        functions, record = self._library.functions, self._record
        functions.cuvil_sim_passes.restype = ctypes.c_char_p
        word_time = round(_FRACTION * WORD_BYTES / record.bytes_per_cycle)
        functions.cuvil_sim_set_memory(ctypes.c_long(record.latency_cycles), ctypes.c_long(word_time))

    def _one(self, sample: Sequence[Array], results: Sequence[list[Array]], number: int) -> float:
        super()._one(sample, results, number)
        return clocks.cycles(self._found()) / self._clock_hz

    def _found(self) -> Raw:
        found: Raw = json.loads(self._library.functions.cuvil_sim_passes())
        return found

    def timing(self, depths: Mapping[str, int]) -> Timing:
        """One sample of zeros: no value decides about time. Raises CuvilError for `depths`: FIFOs of the engine are the
        same for all layers, and fixed."""
        if depths:
            raise CuvilError(f"{self._program.name}: the FIFOs of the temporal style's engine have fixed depths")
        self.run([np.zeros((1, *p.shape), dtypes.to_numpy(p.dtype)) for p in self._program.inputs])
        return clocks.timing(self._found(), self._record.layers, self._program.name, self._clock_hz)
