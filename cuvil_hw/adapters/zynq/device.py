"""Devices of the Zynq adapter: the board (hw.py), the simulator, which runs the emitted HLS C++ on the host, and null.

The simulator compiles the project's own sources against `sim/hls` (fast integers with the bits of ap_int). It proves
what the design computes. It proves nothing about initiation intervals, timing or resources.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from cuvil_hw import data, dtypes
from cuvil_hw.adapters.zynq.hw import Board
from cuvil_hw.build import BuildPlan, Command
from cuvil_hw.errors import CuvilError, DeviceError
from cuvil_hw.runtime.cache import cached_build
from cuvil_hw.runtime.device import Array, Device, DeviceProgram
from cuvil_hw.runtime.null import NullDevice

# -O3: the loops over lanes vectorise. No contraction: floats keep their bits. CUVIL_SIM_WRAPV: see ap_int.h.
FLAGS = ("-std=c++14", "-O3", "-ffp-contract=off", "-fwrapv", "-DCUVIL_SIM_WRAPV", "-fPIC", "-shared", "-pthread", "-w")
_ERROR_BYTES = 4096


def open_device(profile: Mapping[str, Any], interface: str) -> Device:
    """The device of a profile: "hw" (a board, through pynq), "sim" (fast), "sim-count" (also counts saturations) or
    "null". Raises CuvilError for others."""
    name = str(profile.get("name", "zynq"))
    match interface:
        case "sim":
            return Simulator(name, counting=False)
        case "sim-count":
            return Simulator(name, counting=True)
        case "null":
            return NullDevice(name)
        case "hw":
            return Board(profile)
    raise CuvilError(f"{name} has no interface {interface!r}; it has hw, sim, sim-count and null")


class Simulator:
    """The emitted HLS C++, compiled by g++ for the host."""

    def __init__(self, target: str, *, counting: bool, flags: Sequence[str] = ()) -> None:
        self.interface = "sim"
        self.name = f"{target} simulator (emitted HLS C++ on host integers)"
        self._flags = (*flags, *(("-DCUVIL_SIM_COUNT",) if counting else ()))

    def usable(self) -> str | None:
        return None if shutil.which("g++") else "g++ is not on PATH; install it (Debian: apt-get install g++)"

    def load(self, program: DeviceProgram) -> LoadedSimulation:
        """Compile (once per content, then from the cache) and load. Raises ToolNotFound, BuildFailed."""
        return LoadedSimulation(build_simulation(program, self._flags), program)


def build_simulation(program: DeviceProgram, flags: Sequence[str] = (), headers: Path | None = None) -> Path:
    """The shared library of a program's sources. `headers`: another folder with ap_int.h and hls_stream.h (Xilinx's
    own, say), used before sim/hls."""
    project = str(program.info["project"])
    inputs = len(program.inputs)
    files = {
        path.relative_to(program.folder).as_posix(): path.read_bytes()
        for path in sorted((program.folder / "src").iterdir())
        if path.is_file()
    }
    runner = (
        f'#include "src/{project}.h"\n#include <cuvil_sim.h>\n\nCUVIL_SIM_RUNNER({program.info["top"]}, {inputs})\n'
    )
    files["runner.cpp"] = runner.encode()
    sim = data.folder("sim")
    include = [sim / "hls"] if headers is None else [sim / "xilinx_compat", headers, sim / "hls"]
    sources = ("-Isrc", f"src/{project}.cpp", "runner.cpp", "-o", "design.so")
    argv = ("g++", *FLAGS, *host_flags(), *flags, *(f"-I{p}" for p in include), *sources)
    compile_ = Command(argv, "simulate an HLS design", "install it (Debian: apt-get install g++)")
    plan = BuildPlan(files, (compile_,), ("design.so",))
    return cached_build(plan, extra_key=_digest(include)) / "design.so"


@functools.cache
def host_flags() -> tuple[str, ...]:
    """g++ flags for the instructions of this host, as far as g++ knows them. No bit of a result depends on them.

    Vectors stay at 32 bytes: wider ones were slower for loops over a few lanes. Words of 32 bytes are copied by one
    move, since a wide load right after two narrow stores waits for both."""
    if platform.machine() != "x86_64" or shutil.which("g++") is None:
        return ()
    cpuinfo = Path("/proc/cpuinfo")
    has = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    if not {"avx2", "fma", "bmi2"} <= has:
        return ()
    flags = ["-march=x86-64-v3"]
    if {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"} <= has:
        flags = ["-march=x86-64-v4", "-mavx512vnni", "-mprefer-vector-width=256"]
    elif "avx_vnni" in has:
        flags.append("-mavxvnni")
    moves = ["-mmove-max=256", "-mstore-max=256"]  # since GCC 12
    return next((tuple(f) for f in ([*flags, *moves], flags, ["-march=haswell"]) if _accepted(f)), ())


def _accepted(flags: Sequence[str]) -> bool:
    """Does g++ know all of these?"""
    argv = ["g++", *flags, "-x", "c++", "-E", os.devnull]
    return subprocess.run(argv, capture_output=True, check=False, timeout=60).returncode == 0


def _digest(folders: Sequence[Path]) -> str:
    """Of all header texts: a changed header makes another simulator."""
    h = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.h")):
            h.update(path.name.encode() + b"\0" + path.read_bytes())
    return h.hexdigest()


class LoadedSimulation:
    """One design, loaded into this process. Samples of one run go over all cores; runs of several threads take
    turns."""

    def __init__(self, library: Path, program: DeviceProgram) -> None:
        self._lib = ctypes.CDLL(str(library))
        self._program = program
        self._orders = [tuple(p["order"]) for p in program.info["inputs"]]
        self._orders_out = [tuple(p["order"]) for p in program.info["outputs"]]
        self._lock = threading.Lock()
        self._totals: dict[str, dict[str, int]] = {}

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        outs = self._program.outputs
        samples = int(inputs[0].shape[0])
        packed = [
            np.ascontiguousarray(a.transpose(0, *(d + 1 for d in order)))
            for a, order in zip(inputs, self._orders, strict=True)
        ]
        streamed = [
            np.empty((samples, *(p.shape[d] for d in order)), dtypes.to_numpy(p.dtype))
            for p, order in zip(outs, self._orders_out, strict=True)
        ]
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        start = perf_counter()
        if samples:
            with self._lock:
                status = self._lib.cuvil_sim_run(
                    _pointers(packed), _pointers(streamed), _sizes(packed, samples), _sizes(streamed, samples),
                    ctypes.c_long(samples), error, ctypes.c_long(_ERROR_BYTES),
                )  # fmt: skip
                if status == 0:
                    self._count()
            if status != 0:
                text = error.value.decode(errors="replace")
                raise DeviceError(f"simulation of {self._program.name} failed: {text}")
        seconds = perf_counter() - start
        return [
            np.ascontiguousarray(a.transpose(0, *(d + 1 for d in np.argsort(order))))
            for a, order in zip(streamed, self._orders_out, strict=True)
        ], seconds

    def stall(self, seed: int, percent: int) -> None:
        """Random back-pressure on every stream from now on (libraries built with -DCUVIL_SIM_BOUNDED)."""
        if self._lib.cuvil_sim_set_stalls(ctypes.c_ulong(seed), ctypes.c_int(percent)) != 0:
            raise DeviceError("this simulator was built without bounded streams")

    def _count(self) -> None:
        layers = self._program.info["layers"]
        low, high = (ctypes.c_long * len(layers))(), (ctypes.c_long * len(layers))()
        if self._lib.cuvil_sim_counters(low, high, len(layers)) == 0:
            return
        for n, layer in enumerate(layers):
            entry = self._totals.setdefault(layer, {"saturated_low": 0, "saturated_high": 0})
            entry["saturated_low"] += low[n]
            entry["saturated_high"] += high[n]

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {layer: dict(c) for layer, c in self._totals.items()}

    def close(self) -> None:
        """Nothing to free: a library stays in its process."""


def _pointers(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def _sizes(arrays: Sequence[Array], samples: int) -> Any:
    return (ctypes.c_long * len(arrays))(*(a.nbytes // samples for a in arrays))
