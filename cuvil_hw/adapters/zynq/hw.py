"""The device "hw": a bitstream on a Zynq board, driven through the `pynq` package.

Every port has an AXI DMA in simple mode (PG021). A sample goes in by one transfer per input and comes out by one per
output, because the design ends each sample with `last`, which ends an S2MM transfer. Two samples are under way at a
time, so that the fabric works while Python sets up the next transfer. Buffers are allocated once and used by all calls.

When nothing has moved for a while, the channel that everything waits for is named, with the DMA's status. The fabric is
then programmed afresh before the next run, since what a stopped design holds inside can't be known.
"""

from __future__ import annotations

import functools
import importlib
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.zynq import bitstreams, hwh
from cuvil_hw.adapters.zynq.hwh import Channel, Wiring
from cuvil_hw.adapters.zynq.ports import folder_digest, stream_ports
from cuvil_hw.adapters.zynq.record import ZynqRecord
from cuvil_hw.errors import DeviceError, ToolNotFound
from cuvil_hw.runtime.device import Array, DeviceProgram
from cuvil_hw.runtime.forks import OneProcess
from cuvil_hw.runtime.record import read
from cuvil_hw.runtime.scratch import Scratch

# Registers of one AXI DMA channel, from its own base, and bits of its status (PG021, direct register mode).
MM2S, S2MM = 0x00, 0x30
STATUS, LENGTH = 0x04, 0x28
HALTED, IDLE, COMPLETED = 0x0001, 0x0002, 0x1000
ERRORS = {
    0x0010: "internal error (a packet longer than its buffer, or length 0)",
    0x0020: "slave error (memory refused the access)",
    0x0040: "decode error (no memory at that address)",
}
START_AND_RESTART = 0x81  # AP_START and AUTO_RESTART of an HLS core's CTRL (UG1399)

STALL_S = 1.0
IN_FLIGHT = 2
# Slow designs: after this long without progress, let other threads run between two looks at the DMAs.
_PATIENCE_S = 2e-3
_NAP_S = 1e-4
_CHUNK_BYTES = 1 << 20
_CHUNK_SAMPLES = 256
_CACHE_LINE = 64
# Smaller buffers of some pynq versions lie beyond the reach of a 32-bit DMA on 64-bit boards.
_LEAST_BYTES = 8192

# One fabric: who programs it or runs on it holds this.
_fabric = threading.RLock()
_board = OneProcess("the board")


class Board:
    """A Zynq board that this process runs on. `stall_s`: longest time without progress before a run fails."""

    interface = "hw"

    def __init__(self, profile: Mapping[str, Any], stall_s: float = STALL_S) -> None:
        self.name = f"{profile.get('name', 'zynq')} (board)"
        self._part = str(profile.get("part", ""))
        self._clock_hz = float(profile.get("clock_hz", 0.0))
        self._stall_s = stall_s

    def usable(self) -> str | None:
        try:
            pynq = _pynq(self.name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pynq warns when it finds no board; that is the answer here
                devices = pynq.Device.devices
        except ToolNotFound as e:
            return str(e)
        return None if devices else "pynq finds no board; run on the board, as root and with its XRT environment"

    def load(self, program: DeviceProgram) -> LoadedBitstream:
        """Verify and program the registered bitstream of `program`.

        Raises ToolNotFound without pynq, DeviceError when no bitstream is registered, when one doesn't fit or was
        changed, or when the board refuses it."""
        pynq = _pynq(self.name)
        _board.enter()
        return LoadedBitstream(pynq, program, self._part, self._clock_hz, self._stall_s)


def _pynq(name: str) -> Any:
    try:
        module = importlib.import_module("pynq")
        importlib.import_module("pynq.lib.dma")
    except ImportError as e:
        raise ToolNotFound(
            "Python package pynq", f"drive {name}", f"on the board: pip install 'pynq>=3.1.2,<5' ({e})"
        ) from e
    return module


@dataclass
class _Lane:
    """A channel at work: its DMA, its rows (one a sample of a chunk), and how many transfers were started and done."""

    channel: Channel
    dma: Any
    rows: list[Any]
    plane: Array
    started: int = 0
    done: int = 0
    status: int = field(default=0, repr=False)

    @property
    def offset(self) -> int:
        return MM2S if self.channel.port.direction == "in" else S2MM

    def start(self) -> None:
        side = self.dma.sendchannel if self.channel.port.direction == "in" else self.dma.recvchannel
        try:
            side.transfer(self.rows[self.started])
        except (RuntimeError, ValueError) as e:
            raise DeviceError(f"{self} can't be started at sample {self.started}: {e}") from e
        self.started += 1

    def advance(self) -> bool:
        """Has the transfer that is under way ended? Raises DeviceError when it failed."""
        if self.done == self.started:
            return False
        self.status = int(self.dma.read(self.offset + STATUS))
        if self.status & (HALTED | sum(ERRORS)):
            raise DeviceError(f"{self} failed at sample {self.done}; {self.state()}")
        if not self.status & IDLE:
            return False
        if self.channel.port.direction == "out":
            self._received()
        self.done += 1
        return True

    def _received(self) -> None:
        port = self.channel.port
        moved = int(self.dma.read(self.offset + LENGTH))
        if moved not in (port.payload_bytes, port.sample_bytes):
            raise DeviceError(
                f"{self} ended sample {self.done} after {moved} bytes where it has {port.payload_bytes}: the bitstream "
                "sets `last` early; build it from this artifact's project"
            )
        self.rows[self.done].invalidate()

    def state(self) -> str:
        """Words that surely moved, and the status register, in words."""
        words = self.channel.port.words
        return f"{self.done * words} words ({self.done} samples of {words}) moved, status {decoded(self.status)}"

    def __str__(self) -> str:
        port = self.channel.port
        way = "input" if port.direction == "in" else "output"
        side = "MM2S" if port.direction == "in" else "S2MM"
        return f"{way} {port.name} (channel {side} of {self.channel.dma} at {self.channel.base:#010x})"


def decoded(status: int) -> str:
    """A channel's status register: its value and what the bits say."""
    said = [text for bit, text in ERRORS.items() if status & bit]
    said.insert(0, "halted" if status & HALTED else "idle" if status & IDLE else "busy")
    if status & COMPLETED:
        said.append("an earlier transfer completed")
    return f"{status:#010x} ({', '.join(said)})"


class LoadedBitstream:
    """One design on the fabric. Runs of several threads take turns; so do several designs, each programmed when it
    finds another one there."""

    def __init__(self, pynq: Any, program: DeviceProgram, part: str, clock_hz: float, stall_s: float) -> None:
        self._pynq, self._name, self._part, self._clock_hz = pynq, program.name, part, clock_hz
        self._stall_s = stall_s
        read(ZynqRecord, program)
        self._ports = stream_ports(program.info)
        self._design = folder_digest(program.folder, program.info)
        self._folder = Scratch("cuvil-bit-")
        self._overlay: Any = None
        self._lanes: tuple[list[_Lane], list[_Lane]] = ([], [])
        self._chunk = 0
        self._closed = False
        try:
            with _fabric:
                self._program()
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        outputs = [np.empty((len(inputs[0]), *p.shape), dtypes.to_numpy(p.dtype)) for p in self._ports[1]]
        seconds = 0.0
        _board.enter()
        with _fabric:
            if self._closed:
                raise DeviceError(f"{self._name}: is closed; load it again with cuvil.load")
            if self._overlay is None or not self._overlay.is_loaded():
                self._program()
            ins, outs = self._lanes
            try:
                for first in range(0, len(inputs[0]), self._chunk):
                    end = min(first + self._chunk, len(inputs[0]))
                    for lane, array in zip(ins, inputs, strict=True):
                        lane.channel.port.pack(array[first:end], lane.plane)
                    start = perf_counter()
                    self._move(end - first)
                    seconds += perf_counter() - start
                    for lane, result in zip(outs, outputs, strict=True):
                        result[first:end] = lane.channel.port.unpack(lane.plane[: end - first])
            except BaseException:
                self._overlay = None  # what the fabric holds now is unknown: program it before the next run
                raise
        return outputs, seconds

    def _move(self, samples: int) -> None:
        ins, outs = self._lanes
        for lane in (*ins, *outs):
            lane.started = lane.done = 0
        last_progress, late = monotonic(), False
        while any(lane.done < samples for lane in (*ins, *outs)):
            # Receiving first: it must be ready before its sample comes out.
            moved = False
            for lane in (*outs, *ins):
                moved |= lane.advance()
            finished = min(lane.done for lane in outs)
            for lane in (*outs, *ins):
                ahead = 1 if lane.channel.port.direction == "out" else IN_FLIGHT
                if lane.started == lane.done and lane.started < min(samples, finished + ahead):
                    lane.start()
                    moved = True
            now = monotonic()
            if moved:
                last_progress, late = now, False
            elif now - last_progress > self._stall_s:
                # One more look: this process itself may have been away for that long.
                if late:
                    raise self._stalled(samples)
                late = True
            elif now - last_progress > _PATIENCE_S:
                sleep(_NAP_S)

    def _stalled(self, samples: int) -> DeviceError:
        ins, outs = self._lanes
        finished = min(lane.done for lane in outs)
        waiting = [lane for lane in outs if lane.done == finished and lane.done < samples]
        # An output can only be awaited when every input of that sample went in.
        hungry = [lane for lane in ins if lane.done <= finished and lane.done < samples]
        guilty = hungry or waiting
        why = (
            "the design doesn't take the words: it stands still, or its input isn't connected"
            if hungry
            else "the design took the sample but its words don't come out, or end without `last`"
        )
        others = "".join(f"\n  {lane}: {lane.state()}" for lane in (*ins, *outs) if lane not in guilty)
        named = "; ".join(f"{lane}: {lane.state()}" for lane in guilty)
        return DeviceError(
            f"{self._name}: stalled for {self._stall_s:g} s at sample {finished} of {samples}: {named}; {why}. "
            f"The fabric is programmed again before the next run; if it stalls again, check the block design{others}"
        )

    def _program(self) -> None:
        """Put the verified bitstream on the fabric and connect its channels."""
        found = bitstreams.find(self._design, self._part)
        if found is None:
            raise DeviceError(
                f"{self._name}: no bitstream is registered for its design {self._design[:12]}… on {self._part}. Make "
                "one where Vivado is: `cuvil bitstreams project model.cuvil -o project`, then in project/ run "
                "`vitis_hls -f run_hls.tcl` and `vivado -mode batch -source shell.tcl`; then here `cuvil bitstreams "
                "add model.cuvil shell.bit`. docs/boards.md has the steps"
            )
        wiring = hwh.wire(hwh.read(found.hwh), *self._ports, self._part)
        # pynq, and the firmware loader below it, remember designs by file name: this name no other content has.
        path = self._folder.path / f"{found.stem}.bit"
        path.write_bytes(found.bit)
        path.with_suffix(".hwh").write_bytes(hwh.for_pynq(found.hwh, self._clock_hz))
        self._overlay = None
        try:
            overlay = self._pynq.Overlay(str(path))
        except Exception as e:  # pynq, its metadata and driver packages raise errors of many kinds, also plain ones
            raise DeviceError(
                f"{self._name}: the board refused the bitstream {found.entry.bit[:12]}…: {type(e).__name__}: {e}"
            ) from e
        self._lanes = self._connect(overlay, wiring)
        if wiring.started_by_register:
            _driver(overlay, wiring.core).write(0, START_AND_RESTART)
        self._overlay = overlay

    def _connect(self, overlay: Any, wiring: Wiring) -> tuple[list[_Lane], list[_Lane]]:
        channels = (*wiring.inputs, *wiring.outputs)
        old = {lane.channel.port.name: lane for lanes in self._lanes for lane in lanes}
        per_port = [max(1, _CHUNK_BYTES // _stride(c)) for c in channels]
        self._chunk = min(_CHUNK_SAMPLES, *per_port)
        lanes: tuple[list[_Lane], list[_Lane]] = ([], [])
        for channel in channels:
            dma = _driver(overlay, channel.dma)
            base = int(dma.mmio.base_addr)
            if base != channel.base:
                raise DeviceError(
                    f"{channel.dma}: pynq has it at {base:#x}, the .hwh at {channel.base:#x}; pynq holds metadata of "
                    "another bitstream, restart Python"
                )
            known = old.get(channel.port.name)
            if known is not None and known.channel == channel:
                rows, plane = known.rows, known.plane
            else:
                rows, plane = self._buffer(channel)
            lanes[0 if channel.port.direction == "in" else 1].append(_Lane(channel, dma, rows, plane))
        return lanes

    def _buffer(self, channel: Channel) -> tuple[list[Any], Array]:
        """One row a sample, within reach of the channel. Raises DeviceError when the board has none."""
        stride = _stride(channel)
        rows = max(self._chunk, -(-_LEAST_BYTES // stride))
        try:
            buffer = self._pynq.allocate((rows, stride), np.uint8)
        except (OSError, RuntimeError, MemoryError) as e:
            raise DeviceError(f"{channel.dma}: the board has no {rows * stride} bytes for a DMA buffer: {e}") from e
        low, high = channel.reach
        first = int(buffer.physical_address)
        if first < low or first + buffer.nbytes - 1 > high:
            raise DeviceError(
                f"{channel.dma}: its buffer was placed at {first:#x}, but it reaches {low:#x} to {high:#x} only; give "
                "the board's contiguous memory (cma=) a place below that in the boot arguments, or widen the DMA's "
                "addresses in the block design"
            )
        if first % channel.align:
            raise DeviceError(f"{channel.dma}: its buffer at {first:#x} isn't aligned to {channel.align} bytes")
        buffer[:] = 0
        buffer.flush()  # else these zeros could leave the cache later, over what a DMA has written
        size = channel.port.sample_bytes
        return [buffer[n, :size] for n in range(self._chunk)], buffer

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        """Free buffers and files. The fabric keeps its configuration."""
        with _fabric:
            self._closed, self._overlay, self._lanes = True, None, ([], [])
            self._folder.remove()


def _stride(channel: Channel) -> int:
    """Bytes from one sample's row to the next: rows share no cache line, and each starts aligned for the DMA."""
    line = max(_CACHE_LINE, channel.align)
    return -(-channel.port.sample_bytes // line) * line


def _driver(overlay: Any, path: str) -> Any:
    """pynq's driver of an instance, by its name with hierarchy."""
    return functools.reduce(getattr, path.split("/"), overlay)
