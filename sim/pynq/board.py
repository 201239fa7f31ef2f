"""A Zynq board as the `pynq` package sees one: its device class over memory, clocks and DMAs that are simulated.

Product code runs on it unchanged; only `pynq.Device.active_device` has to be set to it. What "is in" a bitstream is
found by the SHA-256 of its bytes in `designs`, so that a file that was overwritten is another design, as on a board.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pynq.buffer import PynqBuffer
from pynq.pl_server.device import Device
from pynqmetadata.frontends import Metadata
from pynqmetadata.views.runtime import RuntimeMetadataParser

from cuvil_hw.adapters.zynq import hwh
from cuvil_hw.adapters.zynq.ports import StreamPort
from cuvil_hw.adapters.zynq.temporal_sim import TemporalSimulation
from cuvil_hw.contract.device import Loaded
from sim.pynq.dma import MM2S, S2MM, Engine, Fabric, Memory, Samples, Stream

SLCR, CRL_APB, CRF_APB = 0xF800_0000, 0xFF5E_0000, 0xFD1A_0000
CHANNEL_BYTES = 0x30
CORE_BYTES, CORE_START, CORE_DONE, CORE_IDLE = 0x1000, 1, 2, 4


@dataclass
class Design:
    """What a bitstream does: a loaded simulator of a design, and its ports. `seconds`: that it ran, in its own time."""

    simulator: Loaded
    inputs: tuple[StreamPort, ...]
    outputs: tuple[StreamPort, ...]
    part: str
    packets: bool = True
    seconds: float = 0.0

    def compute(self, samples: list[Samples]) -> list[Samples]:
        """Bytes of samples in, bytes of samples out, by the simulator."""
        arrays = []
        for port, raw in zip(self.inputs, samples, strict=True):
            rows = np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), port.payload_bytes)
            arrays.append(port.unpack(rows))
        results, seconds = self.simulator.run(arrays)
        self.seconds += seconds
        out = []
        for port, array in zip(self.outputs, results, strict=True):
            rows = np.zeros((len(array), port.sample_bytes), np.uint8)
            port.pack(array, rows)
            out.append([bytes(row) for row in rows])
        return out


@dataclass
class MasterDesign:
    """A design that reads and writes the board's memory itself: the compiled HLS C++ on it, its AXI masters, and how
    many bytes it works on."""

    simulator: TemporalSimulation
    masters: tuple[str, ...]
    memory_bytes: int
    part: str


class Core:
    """The control registers of a MasterDesign (UG1399): written 1, it runs once; done until that was read. `stands`: it
    never ends."""

    def __init__(self, design: MasterDesign, wiring: hwh.MasterWiring, memory: Memory, stands: bool) -> None:
        self._design, self._wiring, self._memory, self._stands = design, wiring, memory, stands
        self._registers: dict[int, int] = {}
        self._status = CORE_IDLE

    def read(self, offset: int) -> int:
        if offset != 0:
            return self._registers.get(offset, 0)
        status = self._status
        if not self._stands:
            self._status = CORE_IDLE
        return status

    def write(self, offset: int, value: int) -> None:
        self._registers[offset] = value
        if offset == 0 and value & 1:
            self._status = CORE_START
            if not self._stands:
                self._run()
                self._status = CORE_DONE | CORE_IDLE

    def _run(self) -> None:
        """Each master reads and writes at its own address; a design has one memory, so they agree."""
        words = self._wiring.addresses
        found = {
            sum(self._registers.get(at, 0) << 32 * n for n, at in enumerate(words[m])) for m in self._design.masters
        }
        size = self._design.memory_bytes
        if len(found) != 1 or not self._memory.holds(min(found), size):
            raise RuntimeError(f"the masters' addresses {sorted(map(hex, found))} aren't one place of {size} bytes")
        at = min(found) - self._memory.base
        self._design.simulator.run_at(self._memory.data[at : at + size])


@dataclass
class Faults:
    """What goes wrong on the fabric that is programmed next, by port. `stands`: a core with masters never ends;
    `stop_words`: the stream of a port stands still
    after that many words; `corrupt`: that many samples of an output come with a wrong bit; `packet_bytes`: `last` comes
    after that many bytes of an output; `looks`: how often every transfer is seen busy before it moves."""

    stop_words: dict[str, int] = field(default_factory=dict)
    corrupt: dict[str, int] = field(default_factory=dict)
    packet_bytes: dict[str, int] = field(default_factory=dict)
    looks: int = 0
    stands: bool = False


class SimulatedBoard(Device):
    """See the module. `memory_at`: physical address of the memory that buffers come from."""

    _probe_priority_ = 7_201

    @classmethod
    def _probe_(cls) -> list[Device]:
        return []  # only there when somebody makes one

    def __init__(self, arch: str = "armv7l", memory_at: int = 0x1000_0000, memory_bytes: int = 64 << 20) -> None:
        super().__init__("cuvil-simulated")
        self.name = "cuvil-simulated"
        self.arch = arch
        self.capabilities = {"REGISTER_RW": True}
        self.timestamp = ""
        self.bitfile_name = ""
        self.designs: dict[str, Design | MasterDesign] = {}
        self.faults = Faults()
        self.programmed: list[str] = []  # SHA-256 of each bitstream, in order
        self.transfers = 0
        self.memory = Memory(memory_at, np.zeros(memory_bytes, np.uint8))
        self.cached = np.zeros(memory_bytes, np.uint8)  # the same memory as the processor sees it
        self._free = memory_at
        self._plain: dict[int, int] = _clock_registers(arch)
        self._fabric: Fabric | None = None
        self._core: int | None = None
        self._masters: tuple[int, Core] | None = None
        self._lock = threading.RLock()

    def get_bitfile_metadata(self, bitfile_name: str, partial: bool = False) -> Any:
        parser = RuntimeMetadataParser(Metadata(input=str(Path(bitfile_name).with_suffix(".hwh"))))
        parser.refresh_hierarchy_dict()
        return parser

    def gen_cache(self, bitstream: Any, parser: Any = None) -> None:
        """Nothing is cached: metadata is read anew for each bitstream."""

    def download(self, bitstream: Any, parser: Any = None) -> None:
        content = Path(bitstream.bitfile_name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self.designs:
            raise RuntimeError(f"the configuration logic refuses this bitstream ({digest[:12]})")
        design = self.designs[digest]
        text = Path(bitstream.bitfile_name).with_suffix(".hwh").read_bytes()
        with self._lock:
            self._configure(design, hwh.read(text))
            self.programmed.append(digest)
        super().post_download(bitstream, parser, self.name)

    def _configure(self, design: Design | MasterDesign, hardware: hwh.Hardware) -> None:
        self._fabric = self._core = self._masters = None
        if isinstance(design, MasterDesign):
            masters = hwh.wire_masters(hardware, design.masters, design.part)
            self._masters = masters.base, Core(design, masters, self.memory, self.faults.stands)
            return
        wiring = hwh.wire(hardware, design.inputs, design.outputs, design.part)
        engines: dict[int, Engine] = {}
        streams: dict[str, Stream] = {}
        for channel in (*wiring.inputs, *wiring.outputs):
            port = channel.port
            stop = self.faults.stop_words.get(port.name)
            stream = Stream(
                port.sample_bytes, port.payload_bytes, None if stop is None else stop * port.bits // 8,
                self.faults.corrupt.get(port.name, 0), self.faults.packet_bytes.get(port.name),
            )  # fmt: skip
            streams[port.name] = stream
            side, at = (MM2S, 0) if port.direction == "in" else (S2MM, CHANNEL_BYTES)
            bits = int(channel.reach[1]).bit_length()
            engines[channel.base + at] = Engine(side, stream, self.memory, bits, looks=self.faults.looks)
        self._fabric = Fabric(
            engines,
            [streams[p.name] for p in design.inputs],
            [streams[p.name] for p in design.outputs],
            design.compute,
            running=not wiring.started_by_register,
            packets=design.packets,
        )
        cores = [r.base for r in hardware.regions if r.instance == wiring.core and r.kind == "REGISTER"]
        self._core = cores[0] if cores else None

    def read_registers(self, address: int, length: int) -> bytes:
        with self._lock:
            return b"".join(struct.pack("<I", self._read(address + n)) for n in range(0, length, 4))[:length]

    def write_registers(self, address: int, data: bytes) -> None:
        with self._lock:
            for n in range(0, len(data), 4):
                self._write(address + n, int.from_bytes(bytes(data[n : n + 4]), "little"))

    def _engine(self, address: int) -> tuple[Engine, int] | None:
        for base, engine in self._fabric.engines.items() if self._fabric is not None else ():
            if base <= address < base + CHANNEL_BYTES:
                return engine, address - base
        return None

    def _read(self, address: int) -> int:
        if self._masters is not None and 0 <= address - self._masters[0] < CORE_BYTES:
            return self._masters[1].read(address - self._masters[0])
        found = self._engine(address)
        if found is not None:
            assert self._fabric is not None
            self._fabric.settle()
            return found[0].read(found[1])
        return self._plain.get(address, 0)

    def _write(self, address: int, value: int) -> None:
        if self._masters is not None and 0 <= address - self._masters[0] < CORE_BYTES:
            self._masters[1].write(address - self._masters[0], value)
            return
        found = self._engine(address)
        if found is None:
            self._plain[address] = value
            if self._fabric is not None and address == self._core:
                self._fabric.running = bool(value & 1)
            return
        engine, offset = found
        self.transfers += offset == 0x28
        engine.write(offset, value)

    def allocate(self, shape: tuple[int, ...], dtype: Any, **_: Any) -> PynqBuffer:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        address = -(-self._free // 4096) * 4096
        if not self.memory.holds(address, size):
            raise MemoryError(f"no {size} bytes of contiguous memory are left")
        self._free = address + size
        at = address - self.memory.base
        view = self.cached[at : at + size]
        return PynqBuffer(shape, dtype, buffer=view, device=self, device_address=address, coherent=False)

    def flush(self, bo: Any, offset: int, address: int, size: int) -> None:
        """What the processor wrote reaches memory by this only."""
        at = address - self.cached.ctypes.data
        self.memory.data[at : at + size] = self.cached[at : at + size]

    def invalidate(self, bo: Any, offset: int, address: int, size: int) -> None:
        """What a DMA wrote reaches the processor by this only."""
        at = address - self.cached.ctypes.data
        self.cached[at : at + size] = self.memory.data[at : at + size]


def _clock_registers(arch: str) -> dict[int, int]:
    """Registers that pynq's clock code reads before it sets dividers, at values as after reset of a running board:
    PLLs of 20 × 50 MHz (a PYNQ-Z2's oscillator) or 45 × 33.3 MHz, every fabric clock from them (UG585, UG1087)."""
    if arch == "armv7l":
        pll = 20 << 12
        clocks = {SLCR + at: pll for at in (0x100, 0x104, 0x108)}
        return clocks | {SLCR + 0x170 + 0x10 * n: 10 << 8 | 1 << 20 for n in range(4)}
    pll = 45 << 8
    clocks = {base + at: pll for base in (CRL_APB, CRF_APB) for at in (0x20, 0x2C, 0x30, 0x38)}
    return clocks | {CRL_APB + 0xC0 + 4 * n: 1 << 24 | 10 << 8 | 1 << 16 for n in range(4)}


def bit_file(content: bytes, part: str, design: str, user_id: int = 0xFFFF_FFFF) -> bytes:
    """A .bit with a valid header around `content`, as write_bitstream lays it out."""

    def text(tag: int, value: str) -> bytes:
        raw = value.encode() + b"\0"
        return bytes([tag]) + struct.pack(">H", len(raw)) + raw

    named = f"{design};UserID={user_id:#010X};Version=2022.1"
    short = part.removeprefix("xc").replace("-", "")
    head = struct.pack(">H", 9) + b"\x0f\xf0\x0f\xf0\x0f\xf0\x0f\xf0\x00" + struct.pack(">H", 1)
    fields = text(0x61, named) + text(0x62, short) + text(0x63, "2026/01/01") + text(0x64, "00:00:00")
    return head + fields + b"\x65" + struct.pack(">I", len(content)) + content
