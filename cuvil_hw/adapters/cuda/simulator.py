"""The simulator: emitted CUDA C++ compiled by g++ against sim/cuda and run on this processor.

Two builds. The fast one proves what the kernels compute. The checking one also finds accesses outside of buffers,
shared arrays and tables, divergent barriers and races: g++ -fsanitize=thread puts a call before every access, which
sim/cuda answers.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from cuvil_hw import data
from cuvil_hw.adapters.cuda.program import Launch
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Array
from cuvil_hw.errors import BuildFailed, DeviceError, ToolNotFound
from cuvil_hw.runtime.cache import cached_build
from cuvil_hw.runtime.compilers import EXACT
from cuvil_hw.runtime.forks import Turn
from cuvil_hw.runtime.scratch import Library

LIBRARY = "kernels.so"
_REMEDY = "install g++ (Debian and Ubuntu: apt install g++)"
_PURPOSE = "simulate CUDA kernels"
_BASE = ("-std=c++17", "-fPIC", *EXACT, "-fno-gnu-unique", "-w")
_FAST = ("-O2",)
# The order of definitions is kept, so that a strip which may not be touched lies between any two shared arrays.
_CHECK = ("-O1", "-g", "-DCUVIL_SIM_CHECK", "-fno-toplevel-reorder")
_PART_S = 0.1  # of one call, which nothing interrupts
# Address space between buffers of the checking build: an index that is far off still hits nothing.
_GAP_BYTES = 1 << 26
# Shared arrays are there once in a process.
_TURN = Turn()
_SHARED = re.compile(r"_ZZ(\d+)(\w+)")


def build_simulator(source: bytes, kernels: Sequence[str], *, checked: bool) -> Path:
    """The shared library of a source with these kernels. Raises ToolNotFound, BuildFailed."""
    source_text = '#include "model.cu"'
    if checked:  # the sanitizer doesn't look at what can't change; so tables seem to
        source_text = f"#define const __attribute__((used))\n{source_text}\n#undef const"
    runner = f"#include <cuvil_cuda_sim.h>\n{source_text}\n\n"
    runner += "".join(f"CUVIL_SIM_KERNEL({name})\n" for name in kernels)
    base, digest = _compiler(checked)
    watch = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0") if checked else ()
    commands = (
        Command((*base, *watch, "-c", "runner.cpp", "-o", "runner.o"), _PURPOSE, _REMEDY),
        Command(("g++", "-shared", "-o", LIBRARY, "runner.o", str(_runtime(checked))), _PURPOSE, _REMEDY),
    )
    files = {"model.cu": source, "runner.cpp": runner.encode()}
    return cached_build(BuildPlan(files, commands, (LIBRARY,)), extra_key=digest) / LIBRARY


def _runtime(checked: bool) -> Path:
    """What runs blocks and threads, as an object file: the same for all sources."""
    base, digest = _compiler(checked)
    source = data.folder("sim") / "cuda" / "cuvil_cuda_sim.cpp"
    command = Command((*base, "-c", str(source), "-o", "sim.o"), _PURPOSE, _REMEDY)
    return cached_build(BuildPlan({}, (command,), ("sim.o",)), extra_key=digest) / "sim.o"


def _compiler(checked: bool) -> tuple[tuple[str, ...], str]:
    """The compiler's command so far, and a digest of the files that it reads besides a source."""
    folder = data.folder("sim") / "cuda"
    digest = hashlib.sha256(b"\0".join(p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file())).hexdigest()
    return ("g++", *_BASE, *(_CHECK if checked else _FAST), f"-I{folder}"), digest


@dataclass(frozen=True, slots=True)
class Symbol:
    """A shared array or constant table of the library: where it lies from the library's start."""

    name: str
    offset: int
    size: int
    shared: bool


def symbols_of(library: Path) -> tuple[int, list[Symbol]]:
    """Offset of the launch function, and all arrays. Raises ToolNotFound, BuildFailed."""
    if shutil.which("nm") is None:
        raise ToolNotFound("nm", "find the arrays of a simulator", "install binutils")
    argv = ["nm", "-S", "--defined-only", str(library)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    if done.returncode != 0:
        raise BuildFailed(argv, done.returncode, done.stderr)
    found, launch = [], 0
    for line in done.stdout.splitlines():
        fields = line.split()
        if len(fields) != 4:
            continue
        offset, size, kind, name = int(fields[0], 16), int(fields[1], 16), fields[2], fields[3]
        if name == "cuvil_cuda_launch":
            launch = offset
        elif (local := _local(name)) is not None:
            if not local.startswith("cuvil_sim_redzone_") and kind in "bBdD":
                found.append(Symbol(local, offset, size, True))
        elif kind in "dD" and re.match(r"_ZL\d", name):
            found.append(Symbol(re.sub(r"^_ZL\d+", "", name), offset, size, False))
    return launch, found


def _local(name: str) -> str | None:
    """The name of an array that a kernel declares: `_ZZ6conv_0E9rows_tile`; other functions have parameters between."""
    match = _SHARED.match(name)
    if match is None:
        return None
    rest = match.group(2)[int(match.group(1)) :]
    tail = re.search(r"E(\d+)(\D\w*)$", rest)
    return tail.group(2)[: int(tail.group(1))] if tail else None


class SimulatedDriver:
    """The library as a device. Addresses are the host's."""

    def __init__(self, library: Path, *, checked: bool) -> None:
        self.isolated = checked
        # Where every access is watched, a launch has all samples, so that one which reaches into another's is found.
        self.part_s = None if checked else _PART_S
        self._library = Library(library, "the simulator of a CUDA program")
        self._lib = self._library.functions
        self._memory: dict[int, Any] = {}
        if checked:
            self._tell_symbols(*symbols_of(library))

    def _tell_symbols(self, launch: int, found: Sequence[Symbol]) -> None:
        address = ctypes.cast(self._lib.cuvil_cuda_launch, ctypes.c_void_p).value or 0
        base, n = address - launch, len(found)
        self._lib.cuvil_cuda_symbols(
            ctypes.c_long(n),
            (ctypes.c_size_t * n)(*(base + s.offset for s in found)),
            (ctypes.c_long * n)(*(s.size for s in found)),
            (ctypes.c_char_p * n)(*(s.name.encode() for s in found)),
            (ctypes.c_int * n)(*(s.shared for s in found)),
        )

    def allocate(self, size: int) -> int:
        if self.isolated:
            return self._between_gaps(size)
        block = np.empty(max(size, 1) + 256, np.uint8)
        address = -(-block.ctypes.data // 256) * 256
        self._memory[address] = block
        return address

    def _between_gaps(self, size: int) -> int:
        """Memory amid pages that are never touched."""
        try:
            area = mmap.mmap(-1, 2 * _GAP_BYTES + max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as e:
            what = f"simulator: no address space for a buffer of {size:,} bytes: {e}"
            raise DeviceError(f"{what}; run fewer samples") from e
        address = ctypes.addressof(ctypes.c_char.from_buffer(area)) + _GAP_BYTES
        self._memory[address] = area
        return address

    def free(self, address: int) -> None:
        self._memory.pop(address, None)

    def upload(self, address: int, array: Array) -> None:
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def download(self, array: Array, address: int) -> None:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def run(self, launches: Sequence[Launch]) -> float:
        with _TURN.lock:
            start = perf_counter()
            for launch in launches:
                self._launch(launch)
            return perf_counter() - start

    def _launch(self, launch: Launch) -> None:
        n = len(launch.buffers)
        pointers = [ctypes.c_void_p(address) for _, address, _ in launch.buffers]
        samples = ctypes.c_int(launch.samples)
        arguments = (ctypes.c_void_p * (n + 1))(*(ctypes.addressof(a) for a in (*pointers, samples)))
        self._library.call(
            "cuvil_cuda_launch", launch.symbol.encode(), ctypes.c_long(launch.blocks), ctypes.c_int(launch.threads),
            ctypes.c_int(launch.cooperative), arguments, ctypes.c_long(n),
            (ctypes.c_size_t * n)(*(address for _, address, _ in launch.buffers)),
            (ctypes.c_long * n)(*(size for _, _, size in launch.buffers)),
            (ctypes.c_int * n)(*(i == n - 1 for i in range(n))),
            (ctypes.c_char_p * n)(*(name.encode() for name, _, _ in launch.buffers)),
            failure=f"kernel {launch.kernel}",
        )  # fmt: skip

    def close(self) -> None:
        with _TURN.lock:
            self._memory.clear()
            self._library.close()
