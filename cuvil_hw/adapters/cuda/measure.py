"""What NVIDIA's own tools say of emitted kernels, with no GPU at hand: NVRTC compiles, ptxas reports."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from cuvil_hw.adapters.cuda.nvrtc import compile_source
from cuvil_hw.errors import BuildFailed, ToolNotFound
from cuvil_hw.runtime.scratch import Scratch

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one kernel: registers of a thread, shared memory of a block, bytes of a thread that were spilled (stores plus
    loads), stack frame of a thread."""

    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int


def measure(source: bytes, architecture: str) -> dict[str, Figures]:
    """Figures by kernel symbol. Raises ToolNotFound without NVRTC or ptxas, BuildFailed when one of them fails."""
    ptx = compile_source(source, architecture, machine_code=False)
    if shutil.which("ptxas") is None:
        raise ToolNotFound(
            "ptxas", "measure registers and spills of CUDA kernels",
            "install the CUDA toolkit (or pip install nvidia-cuda-nvcc) and put ptxas on PATH",
        )  # fmt: skip
    scratch = Scratch("cuvil-ptxas-")
    try:
        (scratch.path / "model.ptx").write_bytes(ptx.rstrip(b"\0"))
        argv = ["ptxas", f"-arch={architecture}", "-v", "model.ptx", "-o", "model.cubin"]
        done = subprocess.run(
            argv, cwd=scratch.path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )  # fmt: skip
    finally:
        scratch.remove()
    if done.returncode != 0:
        raise BuildFailed(argv, done.returncode, done.stderr)
    return parse(done.stderr)


def parse(text: str) -> dict[str, Figures]:
    """The report of `ptxas -v`."""
    result: dict[str, Figures] = {}
    name, found = "", {"stack": 0, "spills": 0}
    for line in text.splitlines():
        if entry := _ENTRY.search(line):
            name, found = entry.group(1), {"stack": 0, "spills": 0}
        if spills := _SPILLS.search(line):
            stack, stores, loads = map(int, spills.groups())
            found = {"stack": stack, "spills": stores + loads}
        if name and (used := _USED.search(line)):
            shared = _SHARED.search(line)
            result[name] = Figures(
                int(used.group(1)), int(shared.group(1)) if shared else 0, found["spills"], found["stack"]
            )
            name = ""
    return result


def problems(figures: Mapping[str, Figures]) -> list[str]:
    """Warnings about kernels whose registers spill to memory."""
    return [f"{name} spills {f.spill_bytes} bytes a thread" for name, f in figures.items() if f.spill_bytes]
