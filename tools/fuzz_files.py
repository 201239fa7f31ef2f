"""Damaged profiles (YAML) and array files (.npy, .npz), by their bytes and by what stands in them."""

from __future__ import annotations

import io
import random
from functools import cache
from pathlib import Path

import numpy as np

from cuvil_hw.data import folder

WORDS = (
    '!!int ""', '!!float "x"', "!!binary x", "!!timestamp 2020", "&a [*a]", "*a", "[[", "{a: {b: {c: 1}}}", "1e999",
    "-1", "0", ".nan", ".inf", "null", "~", "9" * 400, "'\\x1b[31m'", '"\\e[31m"', '"\\0"', "? x", "", "[]", "true",
    "!!python/object:os.system x", "cpu", "p.yaml", "../p.yaml", "/dev/zero", "é", "0x10", "1:2:3", "|\n  text\n",
    ">\n", "- 1", "%TAG ! x", "---",
)  # fmt: skip


@cache
def _profiles() -> tuple[bytes, ...]:
    return tuple(p.read_bytes() for p in sorted(folder("targets").glob("*.yaml")))


@cache
def _arrays() -> tuple[bytes, ...]:
    found = []
    for array in (np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros(3, np.int8), np.ones((2, 2), np.bool_)):
        for save in (np.save, np.savez, np.savez_compressed):
            stream = io.BytesIO()
            save(stream, array)
            found.append(stream.getvalue())
    return tuple(found)


def case(seed: int, n: int) -> bytes:
    """The first byte says what it is: P for a profile, A for arrays."""
    draw = random.Random(f"{seed}:{n}")
    if n % 2:
        return b"A" + _bytes_changed(draw, draw.choice(_arrays()))
    lines = draw.choice(_profiles()).decode().splitlines()
    if not seed and not n:
        return b"P" + "\n".join(lines).encode()
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(lines))
        key, colon, _ = lines[at].partition(":")
        match draw.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, draw.choice(lines or [""]))
            case 2:
                lines[at] = "  " * draw.randrange(3) + lines[at].strip()
            case _:
                lines[at] = f"{key}: {draw.choice(WORDS)}" if colon else draw.choice(WORDS)
        lines = lines or [""]
    data = "\n".join(lines).encode()
    return b"P" + (_bytes_changed(draw, data) if draw.random() < 0.3 else data)


def _bytes_changed(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed[draw.randrange(len(changed))] = draw.choice((0, 255, 127, 128, 10, 39, draw.randrange(256)))
    return bytes(changed[: draw.randrange(len(changed))] if draw.random() < 0.2 else changed)


def check(data: bytes, folder: Path) -> None:
    from cuvil_hw.adapters.target_check import adapter_for, check_file
    from cuvil_hw.cli.output import read_arrays

    if data[:1] == b"P":
        path = folder / "p.yaml"
        path.write_bytes(data[1:])
        profile = check_file(path)
        profile.digest()
        adapter_for(profile, None)
    else:
        path = folder / ("a.npz" if data[1:3] == b"PK" else "a.npy")
        path.write_bytes(data[1:])
        read_arrays(path)
