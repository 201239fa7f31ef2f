"""The device "hw": a bitstream on a Zynq board, driven through the `pynq` package.

Every port has an AXI DMA in simple mode (PG021). A batch goes in by one transfer per input and comes out by one per
output: MM2S ends its packet with `last`, which the design hands on to the same sample of its outputs, and that ends the
S2MM transfer. (A design whose record doesn't say so ends every sample with `last`; its batches are of one.) Buffers are
allocated once and used by all calls.

In simple mode a DMA doesn't tell how far a transfer has come. When a batch takes far longer than it should, the fabric
is programmed again and a single sample tried, which tells whose words don't move. What a stopped design holds inside
can't be known, so the fabric is programmed afresh before the next run.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.temporal.record import is_temporal
from cuvil_hw.adapters.zynq import hwh, overlay
from cuvil_hw.adapters.zynq.hwh import Channel, Wiring
from cuvil_hw.adapters.zynq.on_fabric import SLACK, OnFabric
from cuvil_hw.adapters.zynq.overlay import BOARD
from cuvil_hw.adapters.zynq.ports import stream_ports
from cuvil_hw.adapters.zynq.record import ZynqRecord
from cuvil_hw.adapters.zynq.temporal_hw import LoadedTemporal
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import read
from cuvil_hw.errors import DeviceError, ToolNotFound

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
# A batch: at most so many bytes a port and samples, and so long by the design's own figures, of which a run may take a
# multiple besides STALL_S.
_CHUNK_BYTES = 1 << 20
_CHUNK_SAMPLES = 8192
_CHUNK_S = 0.1
_MOST_S = 60.0  # whatever an artifact says of itself
# Smaller buffers of some pynq versions lie beyond the reach of a 32-bit DMA on 64-bit boards.
_LEAST_BYTES = 8192


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

    def load(self, program: DeviceProgram) -> LoadedBitstream | LoadedTemporal:
        """Verify and program the registered bitstream of `program`.

        Raises ToolNotFound without pynq, DeviceError when no bitstream is registered, when one doesn't fit or was
        changed, or when the board refuses it."""
        pynq = _pynq(self.name)
        BOARD.enter()
        if is_temporal(program):
            return LoadedTemporal(pynq, program, self._part, self._clock_hz, self._stall_s)
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
    """A channel at work: its DMA, its buffer (a row a sample, one behind the other as on the stream), and the transfer
    that is under way."""

    channel: Channel
    dma: Any
    buffer: Any
    samples: int = 0
    done: bool = True
    status: int = field(default=0, repr=False)

    @property
    def offset(self) -> int:
        return MM2S if self.channel.port.direction == "in" else S2MM

    def start(self, samples: int) -> None:
        """Begin to move the first rows of the buffer."""
        self.samples, self.done = samples, False
        side = self.dma.sendchannel if self.channel.port.direction == "in" else self.dma.recvchannel
        try:
            side.transfer(self.buffer[:samples])
        except (RuntimeError, ValueError) as e:
            raise DeviceError(f"{self} can't be started: {e}") from e

    def look(self) -> None:
        """Take note when the transfer has ended. Raises DeviceError when it failed."""
        self.status = int(self.dma.read(self.offset + STATUS))
        if self.status & (HALTED | sum(ERRORS)):
            raise DeviceError(f"{self} failed in a batch of {self.samples}; {self.state()}")
        if self.status & IDLE:
            if self.channel.port.direction == "out":
                self._received()
            self.done = True

    def _received(self) -> None:
        port, moved = self.channel.port, int(self.dma.read(self.offset + LENGTH))
        whole = self.samples * port.sample_bytes
        if moved not in (whole, whole - port.sample_bytes + port.payload_bytes):
            raise DeviceError(
                f"{self} ended after {moved} bytes where a batch of {self.samples} has {whole}: the bitstream sets "
                "`last` early; build it from this artifact's project"
            )
        self.buffer[: self.samples].invalidate()

    def state(self) -> str:
        """How much is to be moved, whether it is, and the status register in words."""
        words, end = self.channel.port.words, "done" if self.done else "not done"
        return f"{self.samples * words} words ({self.samples} × {words}) {end}, status {decoded(self.status)}"

    def __str__(self) -> str:
        port = self.channel.port
        way = "input" if port.direction == "in" else "output"
        side = "MM2S" if port.direction == "in" else "S2MM"
        return f"{way} {port.name} (channel {side} of {self.channel.dma} at {self.channel.base:#010x})"


class _Stalled(DeviceError):
    """Nothing came to its end in time."""


def decoded(status: int) -> str:
    """A channel's status register: its value and what the bits say."""
    said = [text for bit, text in ERRORS.items() if status & bit]
    said.insert(0, "halted" if status & HALTED else "idle" if status & IDLE else "busy")
    if status & COMPLETED:
        said.append("an earlier transfer completed")
    return f"{status:#010x} ({', '.join(said)})"


class LoadedBitstream(OnFabric[Wiring]):
    """A design with AXI4-Stream ports behind DMAs."""

    def __init__(self, pynq: Any, program: DeviceProgram, part: str, clock_hz: float, stall_s: float) -> None:
        read(ZynqRecord, program)
        super().__init__(pynq, program, part, clock_hz, stall_s)
        self._ports = stream_ports(program.info)
        self._packets = program.info.get("packets") is True
        self._sample_s = float(program.info.get("cycles", 0)) / clock_hz if clock_hz > 0 else 0.0
        self._lanes: tuple[list[_Lane], list[_Lane]] = ([], [])
        self._chunk = 0
        self._begin()

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        outputs = [np.empty((len(inputs[0]), *p.shape), dtypes.to_numpy(p.dtype)) for p in self._ports[1]]
        seconds = 0.0
        with self._running():
            for first in range(0, len(inputs[0]), self._chunk):
                end = min(first + self._chunk, len(inputs[0]))
                try:
                    seconds += self._batch([a[first:end] for a in inputs], [a[first:end] for a in outputs])
                except _Stalled as e:
                    found = self._alone([a[first : first + 1] for a in inputs]) if end - first > 1 else ""
                    where = f"{self._name}: in samples {first} to {end - 1} of {len(inputs[0])}: "
                    raise DeviceError(f"{where}{e}{found}") from None
        return outputs, seconds

    def _batch(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> float:
        """Samples in and out by one transfer a port; seconds that the transfers took."""
        ins, outs = self._lanes
        samples = len(inputs[0])
        for lane, array in zip(ins, inputs, strict=True):
            lane.channel.port.pack(array, lane.buffer)
        start = perf_counter()
        self._move(samples)
        seconds = perf_counter() - start
        for lane, result in zip(outs, outputs, strict=True):
            result[...] = lane.channel.port.unpack(lane.buffer[:samples])
        return seconds

    def _move(self, samples: int) -> None:
        ins, outs = self._lanes
        # Receiving first: it must be ready before the first sample comes out.
        for lane in (*outs, *ins):
            lane.start(samples)
        limit = self._stall_s + min(SLACK * samples * self._sample_s, _MOST_S)
        self._await(self._all_done, limit, lambda: self._stalled(limit))

    def _all_done(self) -> bool:
        ins, outs = self._lanes
        for lane in (*outs, *ins):
            if not lane.done:
                lane.look()
        return all(lane.done for lane in (*outs, *ins))

    def _stalled(self, limit: float) -> _Stalled:
        ins, outs = self._lanes
        hungry = [lane for lane in ins if not lane.done]
        waiting = [lane for lane in outs if not lane.done]
        # An output can only be awaited when every input went in.
        guilty = hungry or waiting
        why = (
            "the design doesn't take the words: it stands still, its output isn't taken, or its input isn't connected"
            if hungry
            else "the design took the samples but their words don't come out, or end without `last`"
        )
        others = "".join(f"\n  {lane}: {lane.state()}" for lane in (*ins, *outs) if lane not in guilty)
        named = "; ".join(f"{lane}: {lane.state()}" for lane in guilty)
        return _Stalled(f"stalled for {limit:.3g} s: {named}; {why}{others}")

    def _alone(self, inputs: Sequence[Array]) -> str:
        """After a stall: what a single sample does, which waits for nothing behind it."""
        try:
            self._put()
            self._batch(inputs, [np.empty((1, *p.shape), dtypes.to_numpy(p.dtype)) for p in self._ports[1]])
        except DeviceError as e:
            return f"\nThe first of them alone, after programming again: {e}"
        return (
            "\nThe first of them alone passes after programming again. If that repeats itself, a later sample stops "
            "the design: check its FIFO depths, and the block design"
        )

    def _wired(self, hardware: hwh.Hardware) -> Wiring:
        return hwh.wire(hardware, *self._ports, self._part)

    def _connect(self, made: Any, wiring: Wiring) -> None:
        self._lanes = self._lanes_of(made, wiring)
        if wiring.started_by_register:
            functools.reduce(getattr, wiring.core.split("/"), made).write(0, START_AND_RESTART)

    def _lanes_of(self, made: Any, wiring: Wiring) -> tuple[list[_Lane], list[_Lane]]:
        channels = (*wiring.inputs, *wiring.outputs)
        old = {lane.channel.port.name: lane for lanes in self._lanes for lane in lanes}
        self._chunk = self._most_samples(channels)
        lanes: tuple[list[_Lane], list[_Lane]] = ([], [])
        for channel in channels:
            dma = overlay.driver(made, channel.dma, channel.base)
            known = old.get(channel.port.name)
            same = known is not None and known.channel == channel
            buffer = known.buffer if same and known is not None else self._buffer(channel)
            lanes[0 if channel.port.direction == "in" else 1].append(_Lane(channel, dma, buffer))
        return lanes

    def _most_samples(self, channels: Sequence[Channel]) -> int:
        """Of one batch: that its buffers hold, its DMAs move at once, and its design computes in a short time."""
        if not self._packets:
            return 1
        by_port = [min(_CHUNK_BYTES, c.most_bytes) // c.port.sample_bytes for c in channels]
        by_time = [int(_CHUNK_S / self._sample_s)] if self._sample_s > 0 else []
        return max(1, min(_CHUNK_SAMPLES, *by_port, *by_time))

    def _buffer(self, channel: Channel) -> Any:
        """Rows of one sample each, within reach of the channel. Raises DeviceError when the board has none."""
        size = channel.port.sample_bytes
        rows = max(self._chunk, -(-_LEAST_BYTES // size))
        try:
            buffer = self._pynq.allocate((rows, size), np.uint8)
        except (OSError, RuntimeError, MemoryError) as e:
            raise DeviceError(f"{channel.dma}: the board has no {rows * size} bytes for a DMA buffer: {e}") from e
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
        return buffer

    def _release(self) -> None:
        self._lanes = ([], [])
