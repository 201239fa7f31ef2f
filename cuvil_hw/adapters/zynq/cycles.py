"""The Zynq simulator with clocks: the emitted HLS C++ in time, if every loop keeps its initiation interval."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.streamed import packed_for
from cuvil_hw.adapters.temporal.record import want_spatial
from cuvil_hw.adapters.zynq import simbuild
from cuvil_hw.adapters.zynq.simulator import LoadedSimulation
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.timing import Ends, Raw, Timing, elapsed, measure
from cuvil_hw.errors import CuvilError

FLAGS = (*simbuild.BOUNDED, "-O1")  # -O2 takes half as long again to compile and saves a tenth of a run


class CycleSimulator:
    """See docs/simulators.md for what its figures mean."""

    interface = "sim-cycles"

    def __init__(self, target: str, clock_hz: float) -> None:
        self.name = f"{target} simulator with clocks (emitted HLS C++ on host integers)"
        self._clock_hz = clock_hz

    def usable(self) -> str | None:
        return None if shutil.which("g++") else "g++ is not on PATH; install it (Debian: apt-get install g++)"

    def load(self, program: DeviceProgram) -> LoadedCycles:
        """Compile (once per content, then from the cache) and load. Raises ToolNotFound, BuildFailed."""
        want_spatial(program, self.name)
        return LoadedCycles(simbuild.build_simulation(program, FLAGS), program, self._clock_hz)


class LoadedCycles(LoadedSimulation):
    """One design. All samples of a run go through it one after another, and its seconds are simulated."""

    def __init__(self, library: Path, program: DeviceProgram, clock_hz: float) -> None:
        super().__init__(library, program)
        self._clock_hz = clock_hz
        self._library.functions.cuvil_sim_timing.restype = ctypes.c_char_p
        inputs = {f"input {n}": p.name for n, p in enumerate(program.inputs)}
        outputs = {f"output {n}": p.name for n, p in enumerate(program.outputs)}
        self._ends = Ends(tuple(outputs), 1, inputs | outputs)

    def _run_part(
        self, inputs: Sequence[Array], outputs: Sequence[Array], first: int, samples: int
    ) -> tuple[int, float]:
        self._simulate(inputs, outputs)
        return samples, elapsed(self._raw(), self._ends) / self._clock_hz

    def timing(self, depths: Mapping[str, int]) -> Timing:
        with self._turn.lock:
            self._check_open()
            found = measure(lambda n: self._trial(n, depths), self._program.name, self._clock_hz, self._ends)
        check_depths(found, depths)
        return found

    def _trial(self, samples: int, depths: Mapping[str, int]) -> Raw:
        """What so many samples of zeros take: no value decides about time in an emitted design."""
        zeros = [np.zeros((samples, *p.shape), dtypes.to_numpy(p.dtype)) for p in self._program.inputs]
        set_depth = self._library.functions.cuvil_sim_set_depth
        for name, words in depths.items():
            set_depth(name.encode(), ctypes.c_long(words))
        try:
            self._simulate(*packed_for(self._program, zeros))
        finally:
            for name in depths:
                set_depth(name.encode(), ctypes.c_long(0))
        return self._raw()

    def _raw(self) -> Raw:
        found: Raw = json.loads(self._library.functions.cuvil_sim_timing())
        return found


def check_depths(found: Timing, depths: Mapping[str, int]) -> None:
    """Raises CuvilError for depths of streams that the design doesn't have."""
    names = [s.name for s in found.streams]
    for name in depths:
        if name not in names:
            raise CuvilError(f"{found.program} has no stream {name!r}; it has {', '.join(names)}")
