"""Devices of the Agilex adapter: Intel's FPGA emulator, PoCL, SYCL on the host, and the null device.

They prove what the kernels compute, and with true channel depths that these suffice for what was run. They prove
nothing about initiation intervals, clocks or resources.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.agilex.record import AgilexRecord
from cuvil_hw.adapters.agilex.runtime import EMULATION, EMULATION_DEPTH, POCL, Platform, Worker, missing
from cuvil_hw.adapters.agilex.sycl import SyclCycleSimulator, SyclSimulator
from cuvil_hw.adapters.streaming.analysis.streamed import packed_for, unpacked
from cuvil_hw.adapters.streaming.verilated.device import RtlSimulator
from cuvil_hw.contract.device import Array, Device, DeviceProgram
from cuvil_hw.contract.record import check_seal, info_of, read
from cuvil_hw.errors import CuvilError, DeviceError, ToolNotFound
from cuvil_hw.runtime import forks
from cuvil_hw.runtime.null import NullDevice

INTERFACES = ("hw", "sim", "sim-depth", "sim-pocl", "sim-sycl", "sim-cycles", "rtl", "null")
CHUNK_BYTES = 1 << 22  # of ports and streams in one call
MOST_SAMPLES = 64


def open_device(profile: Mapping[str, Any], interface: str) -> Device:
    """The device of a profile: "sim" (Intel's FPGA emulator, channels deep enough to run fast), "sim-depth" (the same
    with the depths of the source; slow), "sim-pocl" (PoCL, streams as buffers), "sim-sycl" (the SYCL source, by g++),
    "sim-cycles" (that, with clocks), "rtl" (its SystemVerilog) or "null". Raises CuvilError for others, ToolNotFound
    for "hw", which needs a card
    and its vendor's tools."""
    name = str(profile.get("name", "agilex"))
    wait_s = float(profile.get("settings", {}).get("stall_s", 60))
    match interface:
        case "sim":
            return OpenClDevice(f"{name} on Intel's FPGA emulator", interface, EMULATION, wait_s)
        case "sim-depth":
            return OpenClDevice(f"{name} on Intel's FPGA emulator, true depths", interface, EMULATION_DEPTH, wait_s)
        case "sim-pocl":
            return OpenClDevice(f"{name} on PoCL", interface, POCL, wait_s)
        case "sim-sycl":
            return SyclSimulator(name)
        case "sim-cycles":
            return SyclCycleSimulator(name, float(profile["clock_hz"]))
        case "rtl":
            return RtlSimulator(name, float(profile["clock_hz"]))
        case "null":
            return NullDevice(name)
        case "hw":
            raise ToolNotFound(
                f"board driver for {name}", "run on a card", "it comes with a later version; use interface='sim'"
            )
    raise CuvilError(f"{name} has no interface {interface!r}; it has {', '.join(INTERFACES)}")


class OpenClDevice:
    """An OpenCL platform, in a process of its own for each program. `wait_s`: after how long without any kernel
    finishing the first sample counts as stalled."""

    def __init__(self, name: str, interface: str, platform: Platform, wait_s: float) -> None:
        self.name = name
        self.interface = interface
        self._platform = platform
        self._wait_s = wait_s

    def usable(self) -> str | None:
        absent = missing(self._platform)
        return None if absent is None else str(absent)

    def load(self, program: DeviceProgram) -> LoadedKernels:
        """Start a process and build the source. Raises ToolNotFound, DeviceError."""
        return LoadedKernels(program, self._platform, self._wait_s)


class LoadedKernels:
    """A design on an OpenCL device. Runs of several threads take turns; a process that stalled is replaced."""

    def __init__(self, program: DeviceProgram, platform: Platform, wait_s: float) -> None:
        self._program, self._platform, self._wait_s = program, platform, wait_s
        self._record = read(AgilexRecord, program)
        self._closed = False
        self._worker: Worker | None = self._start()
        self.after_fork(self._worker)
        forks.watch(self)

    def after_fork(self, worker: Worker | None = None) -> None:
        """A forked process starts a worker of its own with its next run: the other one serves its parent."""
        self._lock, self._worker = threading.Lock(), worker

    def _start(self) -> Worker:
        info = info_of(self._record)
        suffix = "_buffers" if self._platform.buffers else ""
        source = (self._program.folder / "src" / f"{self._record.project}{suffix}.cl").read_bytes()
        check_seal(source, self._program)
        return Worker(self._platform, source, info["kernels"], info["streams"], self._chunk())

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        samples = int(inputs[0].shape[0])
        packed, results = packed_for(self._program, inputs)
        total, each, at = 0.0, 0.0, 0
        with self._lock:
            if self._closed:
                raise DeviceError(f"{self._program.name}: is closed; load it again")
            while at < samples:
                # The first sample alone shows how long one takes, so that a stall is told from a long run.
                count = 1 if at == 0 else min(samples - at, self._chunk())
                limit = max(self._wait_s, 20 * each * count)
                outputs, seconds = self._call([a[at : at + count] for a in packed], count, limit)
                each = each or seconds
                for result, data in zip(results, outputs, strict=True):
                    result[at : at + count] = np.frombuffer(data, result.dtype).reshape(count, *result.shape[1:])
                total, at = total + seconds, at + count
        return unpacked(self._program, results), total

    def _chunk(self) -> int:
        crossing = sum(s.words * s.bytes for s in self._record.streams.values())
        return max(1, min(MOST_SAMPLES, CHUNK_BYTES // max(1, crossing)))

    def _call(self, inputs: Sequence[Array], count: int, wait_s: float) -> tuple[list[bytes], float]:
        if self._worker is None:
            self._worker = self._start()
        sizes = [count * prod(p.shape) * dtypes.to_numpy(p.dtype).itemsize for p in self._program.outputs]
        try:
            outputs, seconds, stalled = self._worker.run(count, [a.tobytes() for a in inputs], sizes, wait_s)
        except BaseException:  # an answer that was not read would be taken for the next one
            self._end()
            raise
        if stalled:
            self._end()
            raise DeviceError(_stall(self._program.name, self._record, stalled, wait_s))
        return outputs, seconds

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        self._closed = True
        self._end()

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def _stall(program: str, record: AgilexRecord, stalled: Sequence[int], wait_s: float) -> str:
    """Which channels the unfinished kernels wait for: full ones that nobody reads any more come first."""
    waiting = [record.kernels[n] for n in stalled]
    reads = {c for k in waiting for c in k.reads}
    writes = {c for k in waiting for c in k.writes}
    depth = {c: stream.depth for c, stream in record.streams.items()}
    full = [f"{c} (depth {depth[c]}) is full and nothing reads it" for c in sorted(writes - reads)]
    empty = [f"{c} is empty and nothing writes it" for c in sorted(reads - writes)]
    both = [f"{c} (depth {depth[c]})" for c in sorted(reads & writes)]
    about = "; ".join([*full, *empty]) or f"they wait for each other over {', '.join(both)}"
    names = ", ".join(k.name for k in waiting)
    return (
        f"{program} stalled: for {wait_s:g} s none of the kernels {names} finished; {about}. "
        "A channel is too shallow, or a kernel that feeds or drains it is missing"
    )
