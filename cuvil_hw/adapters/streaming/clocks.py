"""What simulators with clocks have in common, whatever language their design is in. Needs NumPy only."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.streamed import packed_for
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.timing import Ends, Raw, Timing, elapsed, measure
from cuvil_hw.errors import CuvilError


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks in a library that was built with CUVIL_SIM_BOUNDED (sim/dataflow/cuvil_sim_controls.h). `ends`: where
    its results end."""

    library: ctypes.CDLL
    program: DeviceProgram
    clock_hz: float
    ends: Ends

    def seconds(self) -> float:
        """Of the last run, until the last word of its last result."""
        return elapsed(self._found(), self.ends) / self.clock_hz

    def timing(
        self, simulate: Callable[[Sequence[Array], Sequence[Array]], object], depths: Mapping[str, int]
    ) -> Timing:
        """Simulate zeros until the steady state: no value decides about time in an emitted design. `simulate`: runs
        packed inputs, with room for outputs. See Timed."""

        def trial(samples: int) -> Raw:
            zeros = [np.zeros((samples, *p.shape), dtypes.to_numpy(p.dtype)) for p in self.program.inputs]
            simulate(*packed_for(self.program, zeros))
            return self._found()

        for name, words in depths.items():
            self._set_depth(name, words)
        try:
            found = measure(trial, self.program.name, self.clock_hz, self.ends)
        finally:
            for name in depths:
                self._set_depth(name, 0)
        names = [s.name for s in found.streams]
        for name in depths:
            if name not in names:
                raise CuvilError(f"{self.program.name} has no stream {name!r}; it has {', '.join(names)}")
        return found

    def _set_depth(self, name: str, words: int) -> None:
        self.library.cuvil_sim_set_depth(name.encode(), ctypes.c_long(words))

    def _found(self) -> Raw:
        read = self.library.cuvil_sim_timing
        read.restype = ctypes.c_char_p
        found: Raw = json.loads(read())
        return found
