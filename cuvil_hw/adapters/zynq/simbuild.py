"""Libraries of the Zynq simulator: a design's HLS C++ compiled by g++ against sim/hls, as little of it as possible.

What no design changes is made once per compiler, flags and headers: the runner's object, and the precompiled header
that every design includes first. A design then is one translation unit. All go through the cache.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cuvil_hw import data
from cuvil_hw.adapters.zynq.record import ZynqRecord
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.contract.record import read as read_record
from cuvil_hw.errors import BuildFailed
from cuvil_hw.runtime.cache import cached, cached_build, entry_path
from cuvil_hw.runtime.compilers import EXACT, cpu_flags

# -O3: the loops over lanes vectorise. No contraction: floats keep their bits. CUVIL_SIM_WRAPV: see ap_int.h. Without
# unique symbols each library keeps its own counters.
FLAGS = (
    "-std=c++14", "-O3", *EXACT, "-DCUVIL_SIM_WRAPV", "-fPIC", "-shared", "-pthread", "-w",
    "-fno-gnu-unique",
)  # fmt: skip
BOUNDED = ("-DCUVIL_SIM_BOUNDED",)  # true FIFO depths, and time
QUICK = ("-O0",)  # the shortest way to a first result; -O1 takes half as long again to compile
LIBRARY = "design.so"
_HEADER = "cuvil_hls.h"
_RUNNER = "runner.o"
_REMEDY = "install it (Debian: apt-get install g++)"
_log = logging.getLogger("cuvil.build")
_verified: set[Path] = set()
_PIPELINE = re.compile(
    rb"^([ \t]*)#[ \t]*pragma[ \t]+HLS[ \t]+pipeline\b(?:[^\n]*?\bII[ \t]*=[ \t]*(\d+))?[^\n]*$", re.I | re.M
)


@dataclass(frozen=True, slots=True)
class Sources:
    """A design's own text. `files`: by path below the project; `inputs`: how many of top's parameters are inputs."""

    files: Mapping[str, bytes]
    project: str
    top: str
    inputs: int


def read(program: DeviceProgram) -> Sources:
    """The sources in a program's folder, which may be removed afterwards. Raises ArtifactError when its record doesn't
    fit."""
    record = read_record(ZynqRecord, program)
    files = {
        path.relative_to(program.folder).as_posix(): path.read_bytes()
        for path in sorted((program.folder / "src").iterdir())
        if path.is_file()
    }
    return Sources(files, record.project, record.top, len(program.inputs))


def build_simulation(program: DeviceProgram, flags: Sequence[str] = (), headers: Path | None = None) -> Path:
    """The shared library of a program's sources. `flags`: after FLAGS; `headers`: another folder with ap_int.h and
    hls_stream.h (Xilinx's own, say), used before sim/hls. Raises ToolNotFound, BuildFailed."""
    return build(read(program), flags, headers)


def find(sources: Sources, flags: Sequence[str] = ()) -> Path | None:
    """The library that `build` would return without compiling anything; None if there is none."""
    tools = _Tools.of(sources, flags, None)
    entry = cached(_design(sources, tools), tools.headers)
    return None if entry is None else entry / LIBRARY


def build(sources: Sources, flags: Sequence[str] = (), headers: Path | None = None) -> Path:
    """As `build_simulation`, from sources that were read before."""
    sources = _timed(sources, flags)
    tools = _Tools.of(sources, flags, headers)
    plan = _design(sources, tools)
    entry = cached(plan, tools.headers)
    if entry is None:
        tools.make()
        entry = cached_build(plan, tools.headers)
    return entry / LIBRARY


def _timed(sources: Sources, flags: Sequence[str]) -> Sources:
    if BOUNDED[0] not in flags:
        return sources
    return replace(sources, files={path: with_clocks(text) for path, text in sources.files.items()})


def prepare(header: bytes, flags: Sequence[str] = ()) -> None:
    """Make what all designs with this text of cuvil_hls.h share, as their first build would."""
    _Tools.of(Sources({f"src/{_HEADER}": header}, "", "", 0), flags, None).make()


def with_clocks(text: bytes) -> bytes:
    """A source in which each pipelined loop advances its process's clock by its interval, at the start of an iteration:
    `#pragma HLS pipeline II=k` becomes a statement, on the same line."""
    return _PIPELINE.sub(lambda m: m[1] + b"::cuvil::sim::tick(" + (m[2] or b"1") + b");", text)


@dataclass(frozen=True, slots=True)
class _Tools:
    """`compiler`: g++ with all flags but the files; `headers`: digest of what is on its include path."""

    compiler: tuple[str, ...]
    headers: str
    runner: BuildPlan
    header: BuildPlan

    @classmethod
    def of(cls, sources: Sources, flags: Sequence[str], headers: Path | None) -> _Tools:
        include = include_folders("hls", "dataflow", headers=headers)
        given = [f for f in (*FLAGS, *host_flags(), *flags) if f != "-shared"]
        compiler = ("g++", *given, *(f"-I{p}" for p in include))
        # The runner is the same beside quick designs.
        for_runner = tuple(f for f in compiler if f not in QUICK)
        runner = Command((*for_runner, "-c", "runner.cpp", "-o", _RUNNER), "compile the simulator's runner", _REMEDY)
        header = Command(
            (*compiler, "-x", "c++-header", _HEADER, "-o", f"{_HEADER}.gch"), "precompile headers", _REMEDY
        )
        return cls(
            compiler,
            folder_digest(include),
            BuildPlan({"runner.cpp": b"#include <cuvil_sim.h>\n"}, (runner,), (_RUNNER,)),
            BuildPlan({_HEADER: sources.files[f"src/{_HEADER}"]}, (header,), (_HEADER, f"{_HEADER}.gch")),
        )

    def make(self) -> None:
        """The runner, and the precompiled header. Without the latter g++ reads the header's text: slower, same bits."""
        self._once(self.runner)
        try:
            self._once(self.header)
        except BuildFailed as e:
            _log.debug("no precompiled header: %s", e)

    def _once(self, plan: BuildPlan) -> None:
        # A precompiled header has 17 MB: one check per process is enough.
        folder = entry_path(plan, self.headers)
        if folder not in _verified or not all((folder / name).is_file() for name in plan.products):
            _verified.add(cached_build(plan, self.headers))


def _design(sources: Sources, tools: _Tools) -> BuildPlan:
    # g++ takes a precompiled header only if its include comes first; src/ has the same text.
    text = (
        f'#include "{_HEADER}"\n#include "src/{sources.project}.cpp"\n'
        f"#include <cuvil_sim_design.h>\nCUVIL_SIM_DESIGN({sources.top}, {sources.inputs})\n"
    )
    folder = entry_path(tools.header, tools.headers)
    runner = entry_path(tools.runner, tools.headers) / _RUNNER
    argv = (*tools.compiler, f"-I{folder}", "-Isrc", "-shared", "design.cpp", str(runner), "-o", LIBRARY)
    command = Command(argv, "simulate an HLS design", _REMEDY)
    return BuildPlan({**sources.files, "design.cpp": text.encode()}, (command,), (LIBRARY,))


@functools.cache
def host_flags() -> tuple[str, ...]:
    """g++ flags for the instructions of this host, as far as g++ knows them. No bit of a result depends on them.

    Vectors stay at 32 bytes: wider ones were slower for loops over a few lanes. Words of 32 bytes are copied by one
    move, since a wide load right after two narrow stores waits for both."""
    if platform.machine() != "x86_64" or shutil.which("g++") is None:
        return ()
    has = cpu_flags()
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


def include_folders(*names: str, headers: Path | None) -> list[Path]:
    """Folders of sim/ as an include path; where `headers` are Xilinx's own, they and what they lack come first."""
    sim = data.folder("sim")
    own = [sim / name for name in names]
    return own if headers is None else [sim / "xilinx_compat", headers, *own]


def folder_digest(folders: Sequence[Path]) -> str:
    """Of all header texts: a changed header makes another simulator."""
    h = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.h")):
            h.update(path.name.encode() + b"\0" + path.read_bytes())
    return h.hexdigest()
