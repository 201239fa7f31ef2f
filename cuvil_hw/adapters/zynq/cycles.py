"""The Zynq simulator with clocks: the emitted HLS C++ in time, if every loop keeps its initiation interval."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from cuvil_hw.adapters.streaming.clocks import Clocks
from cuvil_hw.adapters.temporal.record import is_temporal
from cuvil_hw.adapters.zynq import simbuild
from cuvil_hw.adapters.zynq.simulator import LoadedSimulation
from cuvil_hw.adapters.zynq.temporal_sim import TemporalCycles
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.timing import Ends, Timing

FLAGS = (*simbuild.BOUNDED, "-O1")  # -O2 takes half as long again to compile and saves a tenth of a run


class CycleSimulator:
    """See docs/simulators.md for what its figures mean."""

    interface = "sim-cycles"

    def __init__(self, target: str, clock_hz: float) -> None:
        self.name = f"{target} simulator with clocks (emitted HLS C++ on host integers)"
        self._clock_hz = clock_hz

    def usable(self) -> str | None:
        return None if shutil.which("g++") else "g++ is not on PATH; install it (Debian: apt-get install g++)"

    def load(self, program: DeviceProgram) -> LoadedCycles | TemporalCycles:
        """Compile (once per content, then from the cache) and load. Raises ToolNotFound, BuildFailed."""
        if is_temporal(program):
            return TemporalCycles(program, self._clock_hz)
        return LoadedCycles(simbuild.build_simulation(program, FLAGS), program, self._clock_hz)


class LoadedCycles(LoadedSimulation):
    """One design. All samples of a run go through it one after another, and its seconds are simulated."""

    def __init__(self, library: Path, program: DeviceProgram, clock_hz: float) -> None:
        super().__init__(library, program)
        inputs = {f"input {n}": p.name for n, p in enumerate(program.inputs)}
        outputs = {f"output {n}": p.name for n, p in enumerate(program.outputs)}
        ends = Ends(tuple(outputs), 1, inputs | outputs)
        self._clocks = Clocks(self._library.functions, program, clock_hz, ends)

    def _run_part(
        self, inputs: Sequence[Array], outputs: Sequence[Array], first: int, samples: int
    ) -> tuple[int, float]:
        self._simulate(inputs, outputs)
        return samples, self._clocks.seconds()

    def timing(self, depths: Mapping[str, int]) -> Timing:
        with self._turn.lock:
            self._check_open()
            return self._clocks.timing(self._simulate, depths)
