"""The host's end of a board's serial line: requests and answers of rtl/cuvil_serial.sv, which describes them.

The board answers each request once it is whole; a request without a whole answer is sent again, and the board knows by
its number that it has done it already. So a line that loses or changes bytes costs time and nothing else.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cuvil_hw.errors import DeviceError

MOST = 255  # bytes of a payload
ATTEMPTS = 20  # of one request, before the board counts as gone
PATIENCE = 10_000  # requests in a row that move no byte, before the design counts as stuck
_TAKEN, _NO_PORT = 1, 4
_REQUEST, _ANSWER = 0xC5, 0x5C


class Line(Protocol):
    """What a link needs of a serial port (pyserial's Serial has it)."""

    def write(self, data: bytes, /) -> object: ...

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; fewer when no more came in time."""

    def reset_input_buffer(self) -> object:
        """Forget what came and wasn't read."""


@dataclass(frozen=True, slots=True)
class Reply:
    flags: int
    payload: bytes


class SerialLink:
    """One board. Not safe for several threads at once. `retries`: requests that were sent more than once."""

    def __init__(self, line: Line, name: str) -> None:
        self._line, self._name = line, name
        self._number = 0
        self.retries = 0

    def reset(self) -> bytes:
        """Resets the design; the eight bytes by which it is known. Raises DeviceError when no board answers."""
        self._number = 0
        return self._ask(0, 0, b"").payload

    def transfer(self, given: Sequence[bytes], sizes: Sequence[int]) -> list[bytes]:
        """Feeds all bytes of each input, and takes as many of each output as `sizes` says. Raises DeviceError when the
        board doesn't answer, has no such port, or nothing moves any more."""
        at = [0] * len(given)
        found = [bytearray() for _ in sizes]
        quiet = 0
        while quiet < PATIENCE:
            unread = [n for n, size in enumerate(sizes) if len(found[n]) < size]
            unsent = [n for n, data in enumerate(given) if at[n] < len(data)]
            if not unread and not unsent:
                return [bytes(f) for f in found]
            moved = 0
            # Each round asks for each output and offers to each input, so that none waits for another.
            for k in range(max(len(unread), len(unsent))):
                source = unsent[k % len(unsent)] if unsent else 0
                target = unread[k % len(unread)] if unread else 0
                offered = given[source][at[source] : at[source] + MOST] if unsent else b""
                answer = self._next(source, target, offered)
                if answer.flags & _TAKEN:
                    at[source] += len(offered)
                    moved += len(offered)
                found[target] += answer.payload
                moved += len(answer.payload)
            quiet = 0 if moved else quiet + 1
        done = ", ".join(
            f"output {n}: {len(f)} of {size} bytes" for n, (f, size) in enumerate(zip(found, sizes, strict=True))
        )
        raise DeviceError(f"{self._name}: the design is stuck, nothing moved in {PATIENCE:,} requests ({done})")

    def _next(self, source: int, target: int, payload: bytes) -> Reply:
        self._number = self._number % 255 + 1  # 0 resets
        answer = self._ask(source, target, payload)
        if answer.flags & _NO_PORT:
            raise DeviceError(f"{self._name}: the design on the board has no input {source} or no output {target}")
        return answer

    def _ask(self, source: int, target: int, payload: bytes) -> Reply:
        body = bytes((self._number, source << 4 | target, len(payload))) + payload
        request = bytes((_REQUEST,)) + body + _crc(body)
        for attempt in range(ATTEMPTS):
            if attempt or not self._number:
                self._line.reset_input_buffer()
            self.retries += attempt > 0
            self._line.write(request)
            answer = self._answer()
            if answer is not None:
                return answer
        raise DeviceError(
            f"{self._name}: no answer to {ATTEMPTS} requests; is the bitstream loaded, is it the right port, does "
            "the line run at the design's baud rate?"
        )

    def _answer(self) -> Reply | None:
        """None where none came, or not whole, or to another request."""
        start = self._line.read(1)
        while start and start[0] != _ANSWER:
            start = self._line.read(1)
        head = self._line.read(3) if start else b""
        if len(head) != 3:
            return None
        rest = self._line.read(head[2] + 2)
        body, crc = head + rest[:-2], rest[-2:]
        if len(rest) != head[2] + 2 or crc != _crc(body) or head[0] != self._number:
            return None
        return Reply(head[1], body[3:])


def _crc(data: bytes) -> bytes:
    """CRC-16 with polynomial 0x1021 and initial value 0xFFFF (ITU-T V.41's, with ones at the start)."""
    return binascii.crc_hqx(data, 0xFFFF).to_bytes(2, "big")
