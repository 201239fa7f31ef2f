"""The emitted SYCL source on the host: compiled by g++ against sim/sycl, called through a C function."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

from cuvil_hw import data, dtypes
from cuvil_hw.adapters.agilex.record import AgilexRecord
from cuvil_hw.adapters.streaming.analysis.streamed import packed_for, unpacked
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import check_seal, read
from cuvil_hw.errors import DeviceError
from cuvil_hw.runtime.cache import cached_build
from cuvil_hw.runtime.compilers import EXACT
from cuvil_hw.runtime.forks import Turn
from cuvil_hw.runtime.scratch import Library

_QUIET = ("-Wno-attributes", "-Wno-unknown-pragmas")
# Without unique symbols each library has pipes of its own.
FLAGS = ("-std=c++17", "-O2", *EXACT, "-fPIC", "-shared", "-fno-gnu-unique", *_QUIET)
_ERROR_BYTES = 1024
MOST_SAMPLES = 64


class SyclSimulator:
    """Kernels run one after another in the order in which they are submitted; pipes hold all that is written."""

    interface = "sim-sycl"

    def __init__(self, target: str) -> None:
        self.name = f"{target} simulator (emitted SYCL on the host)"

    def usable(self) -> str | None:
        return None if shutil.which("g++") else "g++ is not on PATH; install it (Debian: apt-get install g++)"

    def load(self, program: DeviceProgram) -> LoadedSycl:
        """Compile (once per content, then from the cache) and load. Raises ToolNotFound, BuildFailed."""
        return LoadedSycl(build(program), program)


def build(program: DeviceProgram) -> Path:
    """The shared library of a program's SYCL source."""
    record = read(AgilexRecord, program)
    project, top = record.project, record.top
    count = len(program.inputs) + len(program.outputs)
    kinds = [p.dtype for p in (*program.inputs, *program.outputs)]
    args = [
        f"static_cast<{'const ' if n < len(program.inputs) else ''}{_container(kinds[n])} *>(ports[{n}])"
        for n in range(count)
    ]
    source = (program.folder / "src" / f"{project}.sycl.cpp").read_bytes()
    check_seal(source, program)
    runner = (
        f'#include "{project}.sycl.cpp"\n#include <cuvil_sycl_runner.h>\n\n'
        f"CUVIL_SYCL_RUNNER({top}(queue, samples, {', '.join(args)}))\n"
    )
    files = {f"{project}.sycl.cpp": source, "runner.cpp": runner.encode()}
    include = data.folder("sim") / "sycl"
    argv = ("g++", *FLAGS, "-I.", f"-I{include}", "runner.cpp", "-o", "design.so")
    command = Command(argv, "compile SYCL for the host", "install it (Debian: apt-get install g++)")
    digest = hashlib.sha256()
    for path in sorted(include.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    plan = BuildPlan(files, (command,), ("design.so",))
    return cached_build(plan, extra_key=digest.hexdigest()) / "design.so"


def _container(dtype: str) -> str:
    """The C++ type in which an element crosses a port."""
    return "float" if dtype == "f32" else f"std::int{8 * dtypes.to_numpy(dtype).itemsize}_t"


class LoadedSycl:
    """One design, loaded into this process; runs of several threads take turns."""

    def __init__(self, library: Path, program: DeviceProgram) -> None:
        self._library = Library(library, program.name)
        self._program = program
        self._closed = False
        self._turn = Turn()

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        samples = int(inputs[0].shape[0])
        packed, results = packed_for(self._program, inputs)
        with self._turn.lock:
            if self._closed:
                raise DeviceError(f"{self._program.name}: is closed; load it again")
            start = perf_counter()
            for at in range(0, samples, MOST_SAMPLES):
                self._call([a[at : at + MOST_SAMPLES] for a in (*packed, *results)])
            seconds = perf_counter() - start
        return unpacked(results), seconds

    def _call(self, arrays: Sequence[Array]) -> None:
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        run = self._library.functions.cuvil_sycl_run
        if run(pointers, ctypes.c_int(len(arrays[0])), error, ctypes.c_long(_ERROR_BYTES)) != 0:
            text = error.value.decode(errors="replace")
            raise DeviceError(f"simulation of {self._program.name} failed: {text}")

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        with self._turn.lock:
            self._closed = True
            self._library.close()
