"""A CUDA program in memory: buffers, batches and launches, the same over a GPU and over the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cuvil_hw.adapters.cuda.record import CudaRecord, LaunchRecord
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.loops import Place, expanded
from cuvil_hw.contract.record import read
from cuvil_hw.dtypes import to_numpy
from cuvil_hw.errors import DeviceError
from cuvil_hw.runtime.forks import Turn

# Numbers of elements are ints in the kernels, and count all samples of a launch.
MAX_ELEMENTS = 1 << 30
# Threads are numbered by ints too, and a thread adds the number of all threads to that of its last element.
MAX_THREADS = 1 << 30
# Samples of one launch are limited so that what they need together stays below this.
BATCH_BYTES = 1 << 30
_FIRST = 4


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel on `buffers` (name, address, bytes; the last one is written) and `samples`."""

    symbol: str
    kernel: str
    blocks: int
    threads: int
    buffers: tuple[tuple[str, int, int], ...]
    samples: int
    cooperative: bool


class Driver(Protocol):
    """Memory and launches of one device.

    Attributes:
        isolated: it wants every buffer in an allocation of its own.
        part_s: how long a run may take, in seconds, as far as samples can be divided, since nothing interrupts it;
            None: it doesn't matter.
    """

    isolated: bool

    @property
    def part_s(self) -> float | None: ...

    def allocate(self, size: int) -> int:
        """Take `size` bytes of the device's memory; returns the address. Raises DeviceError."""

    def free(self, address: int) -> None: ...

    def upload(self, address: int, array: Array) -> None: ...

    def download(self, array: Array, address: int) -> None: ...

    def run(self, launches: Sequence[Launch]) -> float:
        """Run in order; seconds. Raises DeviceError."""

    def close(self) -> None: ...


class CudaProgram:
    """A loaded program. Calls from several threads take turns."""

    def __init__(self, program: DeviceProgram, driver: Driver) -> None:
        """Raises ArtifactError when the program's parts don't go together, DeviceError when memory runs out."""
        self._program, self._driver = program, driver
        self._turn, self._closed = Turn(), False
        self._capacity = 0
        self._steered = _FIRST  # samples of a run where its time matters
        self._addresses: dict[str, int] = {}
        self._owned: list[int] = []
        self._constants: dict[str, int] = {}
        try:
            self._record = read(CudaRecord, program)
            for name, digest in self._record.constants.items():
                self._constants[name] = self._constant(digest)
        except BaseException:
            self.close()
            raise

    def _constant(self, digest: str) -> int:
        array = np.ascontiguousarray(self._program.constants[digest])
        address = self._driver.allocate(array.nbytes)
        self._driver.upload(address, array)
        return address

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        """As Loaded.run. More samples than fit one launch go in several."""
        samples = int(inputs[0].shape[0]) if inputs else 1
        outputs = [np.empty((samples, *p.shape), to_numpy(p.dtype)) for p in self._program.outputs]
        seconds = 0.0
        with self._turn.lock:
            if self._closed:
                raise DeviceError(f"{self._program.name}: is closed")
            most, first = self._most(), 0
            while first < samples:
                count = min(most, samples - first, self._steered if self._driver.part_s is not None else samples)
                part = slice(first, first + count)
                first += count
                spent = self._part([a[part] for a in inputs], [a[part] for a in outputs], count)
                seconds += spent
                if self._driver.part_s is not None and count == self._steered:
                    self._steered = max(1, int(count * min(self._driver.part_s / max(spent, 1e-9), 8.0)))
        return outputs, seconds

    def _most(self) -> int:
        """Samples that one launch may take."""
        record = self._record
        if record.loops:
            return 1
        each = record.arena_bytes + sum(record.bytes[n] for n in (*record.inputs, *record.outputs))
        return max(1, min(MAX_ELEMENTS // max(record.largest, 1), BATCH_BYTES // max(each, 1)))

    def _part(self, inputs: Sequence[Array], outputs: Sequence[Array], samples: int) -> float:
        self._room(samples)
        for name, array in zip(self._record.inputs, inputs, strict=True):
            self._driver.upload(self._addresses[name], np.ascontiguousarray(array))
        entries = self._record.launches
        runs = expanded(self._record.loops, len(entries))
        made = (self._launch(entries[n], samples, places) for n, places in runs)
        launches = [launch for launch in made if launch is not None]
        seconds = self._driver.run(launches)
        for name, array in zip(self._record.outputs, outputs, strict=True):
            self._driver.download(array, self._addresses[name])
        return seconds

    def _launch(self, entry: LaunchRecord, samples: int, places: Mapping[str, Place]) -> Launch | None:
        if entry.sampled:
            blocks = -(-entry.rows * samples // entry.tile) * entry.times
        else:
            blocks = -(-entry.rows // entry.tile) * entry.times * samples
        if blocks == 0:
            return None
        buffers = tuple((n, self._address(n, places), self._size(n, samples)) for n in entry.buffers)
        # Kernels loop over what a grid can't hold.
        blocks = min(blocks, MAX_THREADS // entry.threads)
        return Launch(entry.symbol, entry.kernel, blocks, entry.threads, buffers, samples, entry.cooperative)

    def _address(self, name: str, places: Mapping[str, Place]) -> int:
        base, start = places.get(name, (name, 0))
        return start + (self._constants[base] if base in self._constants else self._addresses[base])

    def _size(self, name: str, samples: int) -> int:
        return self._record.bytes[name] * (1 if name in self._constants else samples)

    def _room(self, samples: int) -> None:
        """Memory for that many samples at once; exactly that many where buffers are watched."""
        if samples == self._capacity or (samples < self._capacity and not self._driver.isolated):
            return
        self._release()
        for name in (*self._record.inputs, *self._record.outputs):
            self._addresses[name] = self._own(self._size(name, samples))
        temporaries = self._record.temporaries
        if self._driver.isolated:
            self._addresses.update({n: self._own(self._size(n, samples)) for n in temporaries})
        elif temporaries:
            arena = self._own(self._record.arena_bytes * samples)
            self._addresses.update({n: arena + offset * samples for n, offset in temporaries.items()})
        self._capacity = samples

    def _own(self, size: int) -> int:
        address = self._driver.allocate(size)
        self._owned.append(address)
        return address

    def _release(self) -> None:
        for address in self._owned:
            self._driver.free(address)
        self._owned, self._addresses, self._capacity = [], {}, 0

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        with self._turn.lock:
            if self._closed:
                return
            self._closed = True
            self._release()
            for address in self._constants.values():
                self._driver.free(address)
            self._constants = {}
            self._driver.close()
