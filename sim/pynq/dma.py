"""AXI DMA 7.1 in direct register mode (PG021), as far as a driver can see it, around a design that is simulated.

One `Fabric` holds the DMAs of a board and what lies between them: words of input samples wait until every input has a
whole sample, the design's HLS simulator turns them into output samples, and a packet of them ends where one of the
first input ended, or with each sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

CONTROL, STATUS, ADDRESS, ADDRESS_HIGH, LENGTH = 0x00, 0x04, 0x18, 0x1C, 0x28
RUN, RESET = 0x1, 0x4
HALTED, IDLE, INTERNAL, DECODE, COMPLETE = 0x1, 0x2, 0x10, 0x40, 0x1000
MM2S, S2MM = "mm2s", "s2mm"

Samples = list[bytes]
Compute = Callable[[list[Samples]], list[Samples]]  # per input its samples → per output its samples


@dataclass
class Memory:
    """DDR at a physical address."""

    base: int
    data: np.ndarray

    def holds(self, address: int, size: int) -> bool:
        return self.base <= address and address + size <= self.base + self.data.size

    def read(self, address: int, size: int) -> bytes:
        at = address - self.base
        return self.data[at : at + size].tobytes()

    def write(self, address: int, content: bytes) -> None:
        at = address - self.base
        self.data[at : at + len(content)] = np.frombuffer(content, np.uint8)


@dataclass
class Stream:
    """A port of the design: bytes of one sample on the stream and of its array. `stop_after`: bytes after which the
    stream stands still, for a fault; `corrupt`: flips a bit of that many coming samples; `packet_bytes`: a packet ends
    after each so many bytes. `held`: bytes that came in, and whether each whole sample among them ended a packet;
    `results`: samples that go out, and whether each ends a packet."""

    sample_bytes: int
    payload_bytes: int
    stop_after: int | None = None
    corrupt: int = 0
    packet_bytes: int | None = None
    moved: int = 0
    held: bytearray = field(default_factory=bytearray)
    ends: deque[bool] = field(default_factory=deque)
    results: deque[tuple[bytes, bool]] = field(default_factory=deque)

    def arrive(self, content: bytes, last: bool) -> None:
        """Words of an input, the last one with `last` or not."""
        before = len(self.held) // self.sample_bytes
        self.held += content
        whole = len(self.held) // self.sample_bytes - before
        self.ends.extend([False] * whole)
        if last and whole:
            self.ends[-1] = True
        self.moved += len(content)


@dataclass
class Engine:
    """One channel of a DMA."""

    side: str
    stream: Stream
    memory: Memory
    address_bits: int
    control: int = 0
    status: int = HALTED
    address: int = 0
    length: int = 0
    busy: bool = False  # a transfer is under way
    left: int = 0  # its bytes that haven't moved
    looks: int = 0  # how often a transfer is seen busy before it moves
    wait: int = 0

    def read(self, offset: int) -> int:
        if offset == STATUS and self.wait:
            self.wait -= 1
        registers = {CONTROL: self.control, STATUS: self.status, LENGTH: self.length}
        return registers.get(offset, 0)

    def write(self, offset: int, value: int) -> None:
        if offset == CONTROL:
            if value & RESET:
                self.control, self.status, self.busy, self.left = 0, HALTED, False, 0
            elif value & RUN:
                self.control, self.status = value, self.status & ~HALTED
            else:
                self.control, self.status = value, self.status | HALTED
        elif offset == STATUS:
            self.status &= ~(value & COMPLETE)  # write one to clear
        elif offset == ADDRESS:
            self.address = self.address & ~0xFFFF_FFFF | value
        elif offset == ADDRESS_HIGH:
            self.address = (value << 32 | self.address & 0xFFFF_FFFF) & ((1 << self.address_bits) - 1)
        elif offset == LENGTH and self.control & RUN and not self.status & HALTED:
            self.begin(value)

    def begin(self, length: int) -> None:
        self.length = self.left = length
        self.busy = True
        self.wait = self.looks
        self.status &= ~IDLE
        if length == 0:
            self.fail(INTERNAL)
        elif not self.memory.holds(self.address, length):
            self.fail(DECODE)

    def fail(self, bits: int) -> None:
        self.status |= bits | HALTED
        self.busy, self.left = False, 0

    def finish(self, moved: int) -> None:
        self.length, self.busy, self.left = moved, False, 0
        self.status |= IDLE | COMPLETE

    def step(self) -> bool:
        """Move what can move; True when something did."""
        if not self.busy or self.wait or self.status & HALTED:
            return False
        return self._send() if self.side == MM2S else self._receive()

    def _send(self) -> bool:
        stream = self.stream
        room = self.left if stream.stop_after is None else min(self.left, stream.stop_after - stream.moved)
        # The core's own buffering: four samples ahead of what the design has taken.
        room = min(room, 4 * stream.sample_bytes - len(stream.held))
        if room <= 0:
            return False
        at = self.address + self.length - self.left
        self.left -= room
        stream.arrive(self.memory.read(at, room), last=self.left == 0)
        if self.left == 0:
            self.finish(self.length)
        return True

    def _receive(self) -> bool:
        stream = self.stream
        if not stream.results or (stream.stop_after is not None and stream.moved >= stream.stop_after):
            return False
        content, last = stream.results.popleft()
        if len(content) > self.left:
            self.fail(INTERNAL)
            return True
        filled = self.length - self.left
        self.memory.write(self.address + filled, content)
        self.left -= len(content)
        stream.moved += stream.sample_bytes
        if last:
            self.finish(filled + len(content))
        return True


@dataclass
class Fabric:
    """The engines of a board by the address of their first register, and the design between them. `packets`: it hands
    on where the packets of its first input end; else each sample is one."""

    engines: dict[int, Engine]
    inputs: list[Stream]
    outputs: list[Stream]
    compute: Compute
    running: bool
    packets: bool

    def settle(self) -> None:
        """Let everything move that can."""
        moved = True
        while moved:
            moved = self._compute()
            for engine in self.engines.values():
                moved |= engine.step()

    def _compute(self) -> bool:
        """Run the design on all whole samples. It accepts no more than four results that nobody has fetched."""
        ready = min(len(s.held) // s.sample_bytes for s in self.inputs)
        ready = min(ready, 4 - max(len(s.results) for s in self.outputs))
        if ready <= 0 or not self.running:
            return False
        ends = [self.inputs[0].ends.popleft() or not self.packets for _ in range(ready)]
        taken: list[Samples] = []
        for stream in self.inputs:
            size = stream.sample_bytes
            taken.append([bytes(stream.held[n * size :][: stream.payload_bytes]) for n in range(ready)])
            del stream.held[: ready * size]
        for stream, samples in zip(self.outputs, self.compute(taken), strict=True):
            for sample, last in zip(samples, ends, strict=True):
                if stream.corrupt:
                    stream.corrupt -= 1
                    sample = bytes([sample[0] ^ 1]) + sample[1:]
                if stream.packet_bytes is not None:
                    sample, last = sample.ljust(stream.packet_bytes, b"?")[: stream.packet_bytes], True
                elif last:  # a DMA writes the bytes that `keep` marks, which spares some in the last word of a packet
                    sample = sample[: stream.payload_bytes]
                stream.results.append((sample, last))
        return True
