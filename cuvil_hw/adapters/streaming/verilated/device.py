"""The device "rtl": a design's SystemVerilog in Verilator, clock by clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.streamed import packed_for, room_for, take_words, unpacked, words_of
from cuvil_hw.adapters.streaming.verilated import build
from cuvil_hw.adapters.streaming.verilated.model import Model
from cuvil_hw.adapters.streaming.verilated.record import FOLDER, RtlRecord, read
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.timing import RTL, Ends, Raw, Timing, measure
from cuvil_hw.errors import CuvilError, DeviceError
from cuvil_hw.runtime.forks import Turn

ORIGIN = "measured (SystemVerilog in Verilator)"
OPTIONS = ("trace", "stalls", "seed")


class RtlSimulator:
    """Options: `trace`, a file for waves (.fst or .vcd); `stalls`, percent of cycles in which each port of the design
    holds words back at random; `seed`, of these."""

    interface = RTL

    def __init__(self, target: str, clock_hz: float) -> None:
        self.name = f"{target} simulator of SystemVerilog (Verilator)"
        self._clock_hz = clock_hz
        self._trace, self._stalls, self._seed = "", 0, 0

    def configure(self, options: Mapping[str, Any]) -> None:
        """See contract/device.py."""
        for name in options:
            if name not in OPTIONS:
                raise CuvilError(f"interface {RTL!r} has no option {name!r}; it has {', '.join(OPTIONS)}")
        self._trace = str(options.get("trace", ""))
        if self._trace and Path(self._trace).suffix not in build.TRACES:
            raise CuvilError(f"trace {self._trace}: waves are written as .fst or .vcd; choose a name that ends so")
        self._stalls, self._seed = (int(options.get(name, 0)) for name in ("stalls", "seed"))
        if not 0 <= self._stalls < 100 or self._seed < 0:
            raise CuvilError("stalls is a percentage from 0 to 99, seed a number from 0 on")

    def usable(self) -> str | None:
        error = build.missing()
        return None if error is None else str(error)

    def load(self, program: DeviceProgram) -> LoadedRtl:
        """Compile (once per content, then from the cache) and load. Raises ToolNotFound, BuildFailed, and CuvilError
        for a design that has no SystemVerilog."""
        record, module = read(program)
        library = build.build(module, Path(self._trace).suffix)
        trace = str(Path(self._trace).absolute()) if self._trace else ""
        model = Model(library, program.name, program.folder / FOLDER, record.watched(), trace)
        return LoadedRtl(model, program, record, self._clock_hz, self._seed, self._stalls)


class LoadedRtl:
    """One design. All samples of a run go through it one after another, from a reset on; seconds are cycles of the
    profile's clock. Runs of several threads take turns."""

    def __init__(
        self, model: Model, program: DeviceProgram, record: RtlRecord, clock_hz: float, seed: int, stalls: int
    ) -> None:
        self._model, self._program, self._record, self._clock_hz = model, program, record, clock_hz
        self._held_back = seed, stalls
        self._turn = Turn()
        self._closed = False

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        with self._turn.lock:
            results, cycles = self._simulate(inputs, *self._held_back)
        return results, cycles / self._clock_hz

    def _simulate(self, inputs: Sequence[Array], seed: int, stalls: int) -> tuple[list[Array], int]:
        if self._closed:
            raise DeviceError(f"{self._program.name}: is closed; load it again")
        samples = len(inputs[0])
        packed, results = packed_for(self._program, inputs)
        size = self._record.axis_bits // 8
        given, taken = [words_of(a, size) for a in packed], [room_for(a, size) for a in results]
        self._model.restart(seed, stalls)
        cycles = self._model.run(given, taken, samples, self._record.packets)
        for words, result in zip(taken, results, strict=True):
            take_words(words, result)
        return unpacked(self._program, results), cycles

    def timing(self, depths: Mapping[str, int]) -> Timing:
        """See contract/timing.py. No value decides about time in a streaming design, so zeros run."""
        known = {c.name for c in self._record.channels}
        for name in depths:
            if name not in known:
                raise CuvilError(f"{self._program.name} has no stream {name!r}; it has {', '.join(sorted(known))}")
        ports = {f"input_{n}": p.name for n, p in enumerate(self._program.inputs)}
        outputs = {f"output_{n}": p.name for n, p in enumerate(self._program.outputs)}

        def trial(samples: int) -> Raw:
            # More follow, so that the last ones that are counted have others behind them.
            many = samples + max(8, samples // 2)
            self._simulate([np.zeros((many, *p.shape), dtypes.to_numpy(p.dtype)) for p in self._program.inputs], 0, 0)
            return _cut(self._model.timing(), samples)

        with self._turn.lock:
            for name, words in depths.items():
                self._model.limit(name, words)
            try:
                ends = Ends(tuple(outputs), 0, ports | outputs)
                found = measure(trial, self._program.name, self._clock_hz, ends)
            finally:
                for name in depths:
                    self._model.limit(name, 0)
        for s in found.streams:
            if depths.get(s.name, s.depth) > s.depth:
                have = f"{s.depth} words in its SystemVerilog, which a simulation only makes smaller"
                raise CuvilError(f"{self._program.name}: stream {s.name} holds {have}; ask for at most as many")
        return replace(found, origin=ORIGIN)

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        with self._turn.lock:
            self._closed = True
            self._model.close()


def _cut(raw: Raw, samples: int) -> Raw:
    """The rows of the first samples."""
    rows = {"samples", "reads", "writes"}
    return {
        kind: [{k: v[:samples] if k in rows else v for k, v in item.items()} for item in items]
        for kind, items in raw.items()
    }
