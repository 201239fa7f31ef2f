"""Runs Yosys over a design's SystemVerilog and counts, for each instance in its top module, what it is mapped to.

The boundaries of these instances are kept, so that every layer has its own count; within one, all is one piece. Nothing
is placed or routed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cuvil_hw import data
from cuvil_hw.contract import programs
from cuvil_hw.contract.build import write_files
from cuvil_hw.errors import BuildFailed, CuvilError, ToolNotFound, pip_install

# Products that a design wants in logic become adders before Yosys gives what multiplies to multiplier blocks.
PRODUCTS = "products.v"
_MARKED = "t:$mul a:use_dsp=no %i"
PRODUCTS_IN_LOGIC = f"proc; wreduce {_MARKED}; techmap -map {PRODUCTS} {_MARKED}; alumacc {_MARKED}; maccmap t:$macc"
_PURPOSE = "synthesise a design's SystemVerilog"
_REMEDY = f"install it (Debian: apt-get install yosys; or {pip_install('ecp5')})"
PROGRAMS = ("yosys", f"{programs.WHEELS}yosys")  # native, else the one of the Python package
_PASSES = 60  # of the outer script; for a bar, which may end early
_PASS = re.compile(r"^\d+\.\d+\. Executing (\w+)")
_MODULE = re.compile(r"^=== (.*) ===$")
_CELL = re.compile(r"^ +(\S+) +(\d+)$")  # Yosys 0.23
_CELL_LATER = re.compile(r"^ +(\d+) +(?:\S+ +)?(\S+)$")
Use = Mapping[str, float]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Flow:
    """`command`: what maps a family, without the top module; modules that don't ask to be kept are dissolved. `costs`:
    axes and amounts by type of cell; cells that cost nothing on any axis have an empty row."""

    command: str
    costs: Mapping[str, Use]


@dataclass(frozen=True, slots=True)
class Synthesised:
    """`instances`: use by instance of the top module; `rest`: of the top module itself; `unknown`: types of cells that
    the flow has no cost for, and how many there are."""

    origin: str
    instances: Mapping[str, Use]
    rest: Use
    unknown: Mapping[str, int]


def synthesise(files: Mapping[str, bytes], top: str, flow: Flow, progress: Progress = lambda *_: None) -> Synthesised:
    """Count the design `top` of these files. `progress`: gets what runs, and how many of how many passes are done.
    Raises ToolNotFound, BuildFailed."""
    program = next(filter(None, map(programs.find, PROGRAMS)), None)
    if program is None:
        raise ToolNotFound("yosys", _PURPOSE, _REMEDY)
    sources = " ".join(sorted(name for name in files if name.endswith((".sv", ".v"))))
    read = f"read_verilog -sv -defer {sources}; hierarchy -check -top {top}"
    with tempfile.TemporaryDirectory(prefix="cuvil-synth-") as folder:
        place = Path(folder)
        write_files(place, {**files, PRODUCTS: (data.folder("rtl") / "synthesis" / PRODUCTS).read_bytes()})
        _run(program, f"{read}; json -o top.json {top}", place, lambda *_: None)
        cells = json.loads((place / "top.json").read_text(encoding="utf-8"))["modules"][top]["cells"]
        kinds = {name: str(cell["type"]) for name, cell in cells.items()}
        keep = "".join(f"setattr -mod -set keep_hierarchy 1 {kind}; " for kind in sorted(set(kinds.values())))
        script = f"{read}; {keep}{PRODUCTS_IN_LOGIC}; {flow.command} -top {top}; tee -q -o stat.txt stat"
        _run(program, script, place, progress)
        modules = _modules((place / "stat.txt").read_text(encoding="utf-8"))
    unknown: dict[str, int] = {}

    def use(module: str) -> Use:
        total: dict[str, float] = {}
        for cell, count in modules.get(module, {}).items():
            if cell in modules:
                continue
            if cell not in flow.costs:
                unknown[cell] = unknown.get(cell, 0) + count
            for axis, amount in flow.costs.get(cell, {}).items():
                total[axis] = total.get(axis, 0.0) + amount * count
        return total

    instances = {name: use(kind) for name, kind in kinds.items()}
    return Synthesised(f"{_version(program)} {flow.command}", instances, use(top), unknown)


def _modules(text: str) -> dict[str, dict[str, int]]:
    """Cells by type, of each module of a `stat`."""
    found: dict[str, dict[str, int]] = {}
    cells: dict[str, int] = {}
    for line in text.splitlines():
        if head := _MODULE.match(line):
            cells = found.setdefault(head[1], {})
        elif match := _CELL.match(line):
            cells[match[1]] = int(match[2])
        elif match := _CELL_LATER.match(line):
            cells[match[2]] = int(match[1])
    found.pop("design hierarchy", None)
    if not found:
        raise CuvilError("yosys: its `stat` has no modules; this version of yosys is not understood")
    return found


def _version(program: str) -> str:
    text = subprocess.run([program, "-V"], capture_output=True, text=True, check=False, timeout=60).stdout
    return "yosys " + [*text.split(), "", "unknown"][1]


def _run(program: str, script: str, folder: Path, progress: Progress) -> None:
    """Raises BuildFailed with the end of what Yosys said."""
    argv = [program, "-p", script]
    process = subprocess.Popen(
        argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", env={**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}, start_new_session=True,
    )  # fmt: skip
    tail: list[str] = []
    done = 0
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                tail = [*tail[-30:], line]
                if match := _PASS.match(line):
                    done += 1
                    progress(match[1].lower(), min(done, _PASSES - 1), _PASSES)
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if code != 0:
        raise BuildFailed(tuple(argv), code, "".join(tail))
    progress("done", _PASSES, _PASSES)
