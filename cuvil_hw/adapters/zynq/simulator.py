"""The Zynq simulator: the emitted HLS C++, compiled by g++ for the host against `sim/hls` (fast integers with the bits
of ap_int). It proves what the design computes, nothing about initiation intervals, timing or resources."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from cuvil_hw.adapters.streaming.analysis.streamed import packed_for, unpacked
from cuvil_hw.adapters.temporal.record import is_temporal
from cuvil_hw.adapters.zynq import simbuild
from cuvil_hw.adapters.zynq.temporal_sim import TemporalSimulation
from cuvil_hw.contract.device import Array, DeviceProgram, Loaded
from cuvil_hw.errors import DeviceError
from cuvil_hw.runtime.background import Background
from cuvil_hw.runtime.forks import Turn
from cuvil_hw.runtime.scratch import Library

_PART_S = 0.05  # how long a call of the library takes, so that a run can be interrupted
# What a design runs on its quick library before the fast one is worth a compiler's time: most are run on a few samples
# and closed, and compiling takes seconds.
_PATIENCE_S = 0.5


class Simulator:
    """The emitted HLS C++, compiled by g++ for the host."""

    def __init__(self, target: str, *, counting: bool, flags: Sequence[str] = ()) -> None:
        self.interface = "sim"
        self.name = f"{target} simulator (emitted HLS C++ on host integers)"
        self._flags = (*flags, *(("-DCUVIL_SIM_COUNT",) if counting else ()))

    def usable(self) -> str | None:
        return None if shutil.which("g++") else "g++ is not on PATH; install it (Debian: apt-get install g++)"

    def load(self, program: DeviceProgram) -> Loaded:
        """Compile (once per content, then from the cache) and load. Raises ToolNotFound, BuildFailed.

        Without flags of its own a new design is first compiled for a quick start. Once it has run for a while, the fast
        library is made in the background; runs change over to it when it is there, or raise its BuildFailed. Both give
        the same bits."""
        if is_temporal(program):
            return TemporalSimulation(program, self._flags)
        sources = simbuild.read(program)
        if self._flags:
            return LoadedSimulation(simbuild.build(sources, self._flags), program)
        fast = simbuild.find(sources)
        if fast is not None:
            return LoadedSimulation(fast, program)
        quick = simbuild.build(sources, simbuild.QUICK)
        return LoadedSimulation(quick, program, lambda: simbuild.build(sources))


class LoadedSimulation:
    """One design, loaded into this process. Samples of one run go over all cores; runs of several threads take
    turns. `faster`: makes another library of the same design, which is taken when it is there."""

    def __init__(self, library: Path, program: DeviceProgram, faster: Callable[[], Path] | None = None) -> None:
        # A library of its own: counters and settings are global there.
        self._library = Library(library, program.name)
        self._program = program
        self._make_faster = faster
        self._faster: Background | None = None
        self._ran_s = 0.0
        self._part = 1  # samples that go into one call of the library
        self._turn = Turn()
        self._closed = False
        self._totals: dict[str, dict[str, int]] = {}

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        samples = int(inputs[0].shape[0])
        packed, results = packed_for(self._program, inputs)
        seconds = 0.0
        with self._turn.lock:
            self._check_open()
            done = 0
            while done < samples:
                count, took = self._run_part(packed, results, done, samples)
                done, seconds = done + count, seconds + took
        return unpacked(self._program, results), seconds

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"{self._program.name}: is closed; load it again")

    def _run_part(
        self, inputs: Sequence[Array], outputs: Sequence[Array], first: int, samples: int
    ) -> tuple[int, float]:
        """Run samples from `first` on, and return how many, as many as take a moment, so that Ctrl-C needs no longer,
        nor changing over to a faster library; and the seconds that the design itself ran."""
        made = self._faster.result() if self._faster is not None else None
        if made is not None:
            library, self._library, self._faster = self._library, Library(made, self._program.name), None
            library.close()
        count = min(self._part, samples - first)
        part = [a[first : first + count] for a in inputs]
        seconds = self._simulate(part, [a[first : first + count] for a in outputs], first)
        self._count()
        self._ran_s += seconds
        make = self._make_faster
        if make is not None and self._ran_s >= _PATIENCE_S:
            self._faster, self._make_faster = Background(make), None
        if count == self._part:  # steer by full parts only
            self._part = max(1, int(count * min(_PART_S / max(seconds, 1e-9), 8.0)))
        return count, seconds

    def _simulate(self, inputs: Sequence[Array], outputs: Sequence[Array], first: int = 0) -> float:
        """One call of the library; seconds. `first`: number of the first sample."""
        functions = self._library.functions
        start = perf_counter()
        functions.cuvil_sim_set_first(ctypes.c_long(first))
        functions.cuvil_sim_set_packets(ctypes.c_int(self._program.info.get("packets") is True))
        self._library.call(
            "cuvil_sim_run", _pointers(inputs), _pointers(outputs), _sizes(inputs), _sizes(outputs),
            ctypes.c_long(len(inputs[0])), failure=f"simulation of {self._program.name} failed",
        )  # fmt: skip
        return perf_counter() - start

    def stall(self, seed: int, percent: int) -> None:
        """Random back-pressure on every stream from now on (libraries built with -DCUVIL_SIM_BOUNDED)."""
        if self._library.functions.cuvil_sim_set_stalls(ctypes.c_ulong(seed), ctypes.c_int(percent)) != 0:
            raise DeviceError("this simulator was built without bounded streams")

    def _count(self) -> None:
        """Add what the last call of the library counted."""
        layers = self._program.info["layers"]
        low, high = (ctypes.c_long * len(layers))(), (ctypes.c_long * len(layers))()
        if self._library.functions.cuvil_sim_counters(low, high, len(layers)) == 0:
            return
        for n, layer in enumerate(layers):
            entry = self._totals.setdefault(layer, {"saturated_low": 0, "saturated_high": 0})
            entry["saturated_low"] += low[n]
            entry["saturated_high"] += high[n]

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {layer: dict(c) for layer, c in self._totals.items()}

    def close(self) -> None:
        """Stop what is still being built, and unload the library."""
        self._make_faster = None
        if self._faster is not None:
            self._faster.stop()
        with self._turn.lock:
            self._closed = True
            self._library.close()


def _pointers(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def _sizes(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_long * len(arrays))(*(a.nbytes // len(a) for a in arrays))
