"""Not a fuzzer: one case of everything that fuzz_harness.py must notice, and two that it must not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cuvil_hw.errors import CuvilError


def case(seed: int, n: int) -> bytes:
    return bytes([n])


def check(data: bytes, folder: Path) -> None:
    match data[0]:
        case 1:
            1 / 0  # noqa: B018
        case 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        case 3:
            while True:
                pass
        case 4:
            bytearray(1 << 36)
        case 5:
            raise CuvilError("as it should be")
