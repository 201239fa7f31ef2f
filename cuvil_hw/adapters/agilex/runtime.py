"""Where Intel's FPGA emulator lies, and the process that runs it. Imports the base install only.

The emulator comes as Python packages without an .icd file, and finds its own libraries only through LD_LIBRARY_PATH;
both have to be set before a process starts. A kernel that waits for a channel sleeps, about 8 ms at a time, so that
true depths are slow; one kernel after another, with channels that hold a whole call, never waits.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cuvil_hw.adapters.agilex import worker
from cuvil_hw.adapters.agilex.worker import Message
from cuvil_hw.errors import DeviceError, ToolNotFound, pip_install
from cuvil_hw.runtime import forks
from cuvil_hw.runtime.compilers import cpu_flags
from cuvil_hw.runtime.scratch import Scratch

PYTHON_VARIABLE = "CUVIL_AGILEX_PYTHON"
EMULATOR = "libintelocl_emu.so"
MOST_WORKERS = 256  # threads that the emulator can have (its cl.fpga_emu.cfg); a kernel that waits keeps one
INSTALL = (
    f"{pip_install('agilex')} (pyopencl, and intel-opencl-fpga-emu-rt, intel-opencl-rt and intel-cmplr-lib-rt, "
    f"all 2025.0.5), or set {PYTHON_VARIABLE} to the python of an environment that has them"
)
POCL_INSTALL = "pip install 'pyopencl[pocl]'"
# More for the OpenCL compiler. "-cl-opt-disable" builds eight times as fast, for programs that run once.
BUILD_OPTIONS: tuple[str, ...] = ()
GRACE_S = 30.0
BUILD_S = 600.0


@dataclass(frozen=True, slots=True)
class Platform:
    """An OpenCL platform by its name. `ordered`: a kernel starts when the one before it has ended, and channels hold
    what one call needs; `buffers`: it has no channels."""

    name: str
    ordered: bool
    buffers: bool


EMULATION = Platform("FPGA Emulation", True, False)
EMULATION_DEPTH = Platform("FPGA Emulation", False, False)
POCL = Platform("Portable Computing Language", True, True)


def interpreter() -> Path:
    return Path(os.environ.get(PYTHON_VARIABLE) or sys.executable)


def _prefix() -> Path:
    chosen = os.environ.get(PYTHON_VARIABLE)
    return Path(chosen).absolute().parent.parent if chosen else Path(sys.prefix)


def missing(platform: Platform) -> ToolNotFound | None:
    """What isn't installed; None when all of it is there. Starts nothing."""
    purpose = "run OpenCL kernels"
    if not interpreter().is_file():
        return ToolNotFound(f"{interpreter()}", purpose, f"correct {PYTHON_VARIABLE}")
    packages = list(_prefix().glob("lib/python3*/site-packages"))
    if not any((p / "pyopencl").is_dir() for p in packages):
        return ToolNotFound("Python package pyopencl", purpose, POCL_INSTALL if platform.buffers else INSTALL)
    if platform.buffers:
        if not any((p / "pocl_binary_distribution").is_dir() for p in packages):
            return ToolNotFound("PoCL", purpose, POCL_INSTALL)
    elif not (_prefix() / "lib" / EMULATOR).is_file():
        return ToolNotFound(f"Intel's FPGA emulator ({EMULATOR})", purpose, INSTALL)
    return None


def _depths(platform: Platform, samples: int) -> tuple[str, ...]:
    return (f"-DCUVIL_DEPTH(depth,words)=((words)*{samples})",) if platform.ordered else ()


class Worker:
    """A process with one built program. Not for several threads at once."""

    def __init__(
        self, platform: Platform, source: bytes, kernels: Sequence[Mapping[str, Any]], streams: Any, samples: int
    ) -> None:
        """`samples`: the most of one call. Raises ToolNotFound when packages are missing, DeviceError when the source
        doesn't build."""
        absent = missing(platform)
        if absent is not None:
            raise absent
        self._folder = Scratch("cuvil-opencl-")
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self._process = self._start(platform, len(kernels))
        forks.watch(self)
        request = {
            "op": "build",
            "platform": platform.name,
            "options": [*_depths(platform, samples), *BUILD_OPTIONS],
            "ordered": platform.ordered,
            "kernels": list(kernels),
            "streams": streams,
            "buffers": platform.buffers,
        }
        try:
            answer, _ = self._ask(request, [source], BUILD_S)
        except BaseException:
            self.close()
            raise
        self.device = str(answer["device"])

    def _start(self, platform: Platform, kernels: int) -> subprocess.Popen[bytes]:
        folder, libraries = self._folder.path, _prefix() / "lib"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OCL_", "OPENCL_", "CL_", "PYTHON"))}
        # A kernel of the same name with other constants must never come out of pyopencl's cache.
        environment["PYOPENCL_NO_CACHE"] = "1"
        environment["POCL_CACHE_DIR"] = str(folder)
        if not platform.buffers:
            (folder / "emulator.icd").write_text(f"{libraries / EMULATOR}\n", encoding="utf-8")
            environment["CL_CONFIG_CHANNEL_DEPTH_EMULATION_MODE"] = "strict"
            if "avx2" in cpu_flags():
                # The emulator's compiler crashes on floor, ceil and round of floats where it doesn't know the processor
                # ("Unknown host CPU", AMD's family 26); told one, it takes that.
                environment["CL_CONFIG_CPU_TARGET_ARCH"] = "core-avx2"
            environment["OCL_ICD_VENDORS"] = str(folder)
            environment["LD_LIBRARY_PATH"] = str(libraries)
            environment["CL_CONFIG_CPU_TBB_NUM_WORKERS"] = str(min(MOST_WORKERS, kernels + 4))
        argv = [str(interpreter()), "-W", "ignore", "-P", str(Path(worker.__file__))]
        try:
            return subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment, cwd=folder
            )
        except OSError as e:
            self.close()
            raise DeviceError(f"{argv[0]} could not be started: {e}; set {PYTHON_VARIABLE} or unset it") from e

    def run(
        self, samples: int, inputs: Sequence[bytes], outputs: Sequence[int], wait_s: float
    ) -> tuple[list[bytes], float, list[int]]:
        """Bytes of the outputs, seconds, and the numbers of kernels that never ended (then the worker is of no more
        use). `outputs`: their sizes; `wait_s`: how long to wait when no kernel finishes."""
        request = {"op": "run", "samples": samples, "outputs": list(outputs), "wait_s": wait_s}
        answer, blobs = self._ask(request, inputs, None)
        return blobs, float(answer.get("seconds", 0.0)), list(answer.get("stalled", []))

    def _ask(self, message: Message, blobs: Sequence[bytes], limit_s: float | None) -> tuple[Message, list[bytes]]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        fd = process.stdout.fileno()
        deadline = None if limit_s is None else time.monotonic() + limit_s

        def read(count: int) -> bytes:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([fd], [], [], left)[0]:
                raise DeviceError(f"OpenCL worker: no answer within {limit_s:g} s")
            return worker.read_exactly(fd, count)

        try:
            worker.write_all(process.stdin.fileno(), worker.pack(message, blobs))
            answer, out = worker.unpack(read)
        except (BrokenPipeError, EOFError) as e:
            code = process.wait(GRACE_S)
            raise DeviceError(f"the OpenCL process ended with code {code}\n{self._tail()}") from e
        if "unknown target CPU" in str(answer.get("error", "")):
            raise ToolNotFound(
                "a PoCL that knows this processor", "run OpenCL kernels", "use interface 'sim', Intel's own emulator"
            )
        if "error" in answer:
            raise DeviceError(f"OpenCL: {answer['error']}\n{self._tail()}")
        return answer, out

    def _tail(self) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-20:])

    def close(self) -> None:
        """End the process, whatever it waits for. May be called twice."""
        process = getattr(self, "_process", None)
        if process is not None:
            process.kill()
            process.wait()
            self._shut_pipes(process)
        self._log.close()
        self._folder.remove()

    def after_fork(self) -> None:
        """The process serves the one that started it; only its pipes came along, and would keep it alive."""
        self._shut_pipes(self._process)
        self._process.returncode = 0  # it isn't a child of this process
        self._log.close()

    def _shut_pipes(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
