"""The emitted SYCL source on the host: compiled by g++ against sim/sycl, called through a C function."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

from cuvil_hw import data, dtypes
from cuvil_hw.adapters.agilex.record import AgilexRecord
from cuvil_hw.adapters.streaming.analysis.streamed import packed_for, unpacked
from cuvil_hw.adapters.streaming.clocks import Clocks
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import check_seal, read
from cuvil_hw.contract.timing import Ends, Timing
from cuvil_hw.errors import DeviceError
from cuvil_hw.runtime.cache import cached_build
from cuvil_hw.runtime.compilers import EXACT
from cuvil_hw.runtime.forks import Turn
from cuvil_hw.runtime.scratch import Library

_QUIET = ("-Wno-attributes", "-Wno-unknown-pragmas")
# Without unique symbols each library has pipes of its own.
FLAGS = ("-std=c++17", "-O2", *EXACT, "-fPIC", "-shared", "-fno-gnu-unique", *_QUIET)
CLOCKS = ("-DCUVIL_SIM_BOUNDED", "-O1")
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


class SyclCycleSimulator(SyclSimulator):
    """Kernels run side by side, with clocks, over pipes of their true capacity; see docs/simulators.md."""

    interface = "sim-cycles"

    def __init__(self, target: str, clock_hz: float) -> None:
        self.name = f"{target} simulator with clocks (emitted SYCL on the host)"
        self._clock_hz = clock_hz

    def load(self, program: DeviceProgram) -> LoadedSyclCycles:
        return LoadedSyclCycles(build(program, clocks=True), program, self._clock_hz)


_PIPELINED = re.compile(rb"\[\[intel::initiation_interval\((\d+)\)\]\]\s*(?:\[\[[^\]]*\]\]\s*)*for \([^{}]*\) \{")
_SAMPLES = re.compile(rb"for \(int (\w+) = 0; \1 < samples\w*; \+\+\1\) \{")


def with_clocks(text: bytes) -> bytes:
    """A source in which each pipelined loop advances its kernel's clock by its interval, at the start of an iteration,
    and loops over samples say when one begins. Every line stays in its place."""
    text = _PIPELINED.sub(lambda m: m[0] + b" ::cuvil::sim::tick(" + m[1] + b");", text)
    return _SAMPLES.sub(lambda m: m[0] + b" ::cuvil::sim::next_sample();", text)


def build(program: DeviceProgram, clocks: bool = False) -> Path:
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
    if clocks:
        source = with_clocks(source)
    runner = (
        f'#include "{project}.sycl.cpp"\n#include <cuvil_sycl_runner.h>\n\n'
        f"CUVIL_SYCL_RUNNER({top}(queue, samples, {', '.join(args)}))\n"
    )
    files = {f"{project}.sycl.cpp": source, "runner.cpp": runner.encode()}
    include = [data.folder("sim") / "sycl", data.folder("sim") / "dataflow"]
    flags = (*FLAGS, *(CLOCKS if clocks else ()), "-I.", *(f"-I{folder}" for folder in include))
    argv = ("g++", *flags, "runner.cpp", "-o", "design.so")
    command = Command(argv, "compile SYCL for the host", "install it (Debian: apt-get install g++)")
    digest = hashlib.sha256()
    for path in sorted(p for folder in include for p in folder.rglob("*")):
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
            self._check_open()
            seconds = sum(
                self._timed([a[at : at + MOST_SAMPLES] for a in (*packed, *results)])
                for at in range(0, samples, MOST_SAMPLES)
            )
        return unpacked(self._program, results), seconds

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"{self._program.name}: is closed; load it again")

    def _timed(self, arrays: Sequence[Array]) -> float:
        """One call; its seconds."""
        start = perf_counter()
        self._call(arrays)
        return perf_counter() - start

    def _call(self, arrays: Sequence[Array]) -> None:
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        failure = f"simulation of {self._program.name} failed"
        self._library.call("cuvil_sycl_run", pointers, ctypes.c_int(len(arrays[0])), failure=failure)

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        with self._turn.lock:
            self._closed = True
            self._library.close()


class LoadedSyclCycles(LoadedSycl):
    """Samples of a run go through the design one after another, and its seconds are simulated."""

    def __init__(self, library: Path, program: DeviceProgram, clock_hz: float) -> None:
        super().__init__(library, program)
        ports = len(program.inputs)
        writers = tuple(k.name for k in read(AgilexRecord, program).kernels if k.port >= ports)
        self._clocks = Clocks(self._library.functions, program, clock_hz, Ends(writers))

    def _timed(self, arrays: Sequence[Array]) -> float:
        self._call(arrays)
        return self._clocks.seconds()

    def timing(self, depths: Mapping[str, int]) -> Timing:
        with self._turn.lock:
            self._check_open()
            return self._clocks.timing(lambda inputs, outputs: self._call([*inputs, *outputs]), depths)
