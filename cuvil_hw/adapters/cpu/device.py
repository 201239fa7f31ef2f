"""Runs a compiled shared library in this process. Imports NumPy and the standard library only."""

from __future__ import annotations

import _ctypes
import ctypes
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from cuvil_hw.adapters.cpu.build import options
from cuvil_hw.adapters.cpu.emulated import Emulated, emulator_of, missing
from cuvil_hw.adapters.cpu.native import plan
from cuvil_hw.adapters.cpu.record import CpuRecord
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Array, DeviceProgram, Loaded
from cuvil_hw.contract.native import Native
from cuvil_hw.contract.record import check_seal, read
from cuvil_hw.dtypes import to_numpy
from cuvil_hw.errors import CuvilError, DeviceError
from cuvil_hw.runtime.compilers import CCompiler, cpu_flags
from cuvil_hw.runtime.null import NullLoaded
from cuvil_hw.runtime.scratch import load_library
from cuvil_hw.runtime.shim import address, direct

ABI_VERSION = 1
LIBRARY = "model.so"
INTERFACES = ("hw", "sim", "null")
_ALIGN = 64
# /proc/cpuinfo's names of what a program compiled for a level of the x86-64 psABI may use beyond the baseline.
_LEVEL_2 = ("cx16", "popcnt", "sse4_1", "sse4_2", "ssse3")
_LEVEL_3 = (*_LEVEL_2, "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_LEVEL_4 = (*_LEVEL_3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
CPU_FLAGS: Mapping[str, tuple[str, ...]] = {"x86-64-v2": _LEVEL_2, "x86-64-v3": _LEVEL_3, "x86-64-v4": _LEVEL_4}


def open_device(profile: Mapping[str, Any], interface: str) -> CpuDevice:
    """ "hw": this processor; "sim": one that qemu emulates; "null": computes nothing. Raises CuvilError for another
    interface, or for "hw" of another machine."""
    if interface not in INTERFACES:
        raise CuvilError(f"a CPU target has no interface {interface!r}; it has {', '.join(INTERFACES)}")
    settings = profile.get("settings", {})
    compiler = CCompiler.chosen(settings)
    machine = machine_of(compiler)
    if interface == "hw" and machine != platform.machine():
        raise CuvilError(_foreign(str(profile.get("name", "this target")), machine))
    emulator = emulator_of(settings, machine)
    names = {"hw": f"cpu ({machine})", "sim": f"cpu ({machine}, {' '.join(emulator)})", "null": "null (returns zeros)"}
    return CpuDevice(names[interface], interface, compiler, settings, emulator)


def machine_of(compiler: CCompiler) -> str:
    """The machine that a compiler compiles for, as the platform module names it."""
    return compiler.machine or platform.machine()


def _foreign(what: str, machine: str) -> str:
    return (
        f"{what} is for {machine}, this machine is {platform.machine()}; run it there, "
        "open it with interface 'sim' (qemu), or with 'null'"
    )


@dataclass(slots=True)
class CpuDevice:
    """`compiler`, `settings`: for code that isn't for this process: for libraries, and for the emulator."""

    name: str
    interface: str
    compiler: CCompiler
    settings: Mapping[str, Any]
    emulator: tuple[str, ...]

    def load(self, program: DeviceProgram) -> Loaded:
        """Raises DeviceError when this processor lacks instructions that the program uses or the library can't be
        loaded, ArtifactError when the program's parts don't go together."""
        if self.interface == "null":
            return NullLoaded(program)
        record = read(CpuRecord, program)
        if self.interface == "sim":
            return Emulated(program, record, self.compiler, options(self.compiler, self.settings), self.emulator)
        if record.machine != platform.machine():
            raise DeviceError(_foreign(program.name, record.machine))
        lacking = [f for f in CPU_FLAGS.get(record.march, ()) if f not in cpu_flags()]
        if lacking:
            raise DeviceError(
                f"{program.name}: was compiled for {record.march}, but this processor lacks {', '.join(lacking)}; "
                "compile it with a profile whose `march` this processor has"
            )
        return _Library(program, record.arrays(program), record.workspace_bytes)

    def native(self, program: DeviceProgram, native: Native) -> BuildPlan:
        return plan(program, native, self.compiler, lambda march: options(self.compiler, self.settings, march))

    def usable(self) -> str | None:
        lacking = missing(self.emulator, machine_of(self.compiler)) if self.interface == "sim" else None
        return str(lacking) if lacking is not None else None


class _Library:
    """The loaded library and the memory that its calls work in, one piece for each call that runs at a time."""

    def __init__(self, program: DeviceProgram, constants: Sequence[Array], workspace_bytes: int) -> None:
        path = program.folder / LIBRARY
        if path.is_file():
            check_seal(path.read_bytes(), program)
        library = load_library(path, program.name)
        try:
            abi, self._run = library.cuvil_abi_version, library.cuvil_run
        except AttributeError as e:
            raise DeviceError(f"{program.name}: {path} can't be loaded: {e}; compile the model again") from e
        if abi() != ABI_VERSION:
            raise DeviceError(
                f"{program.name}: its library has ABI version {abi()}, this version of cuvil-hw has {ABI_VERSION}; "
                "compile the model again"
            )
        pointers = ctypes.POINTER(ctypes.c_void_p)
        self._run.argtypes = [pointers, pointers, pointers, ctypes.c_void_p]
        self._run.restype = ctypes.c_int
        self._handle: int | None = library._handle
        self._program = program
        self._constants = list(constants)
        self._pointers = (ctypes.c_void_p * len(constants))(*[c.ctypes.data for c in constants])
        self._bytes = workspace_bytes
        self._free: list[Array] = []
        self._lock = Lock()
        kept = (self._pointers, self._constants)
        at = ctypes.addressof(self._pointers)
        self.direct = direct(address(self._run), at, workspace_bytes, program.inputs, program.outputs, kept)

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        if self._handle is None:
            raise DeviceError(f"{self._program.name}: is closed")
        n = inputs[0].shape[0] if inputs else 1
        outputs = [np.empty((n, *p.shape), to_numpy(p.dtype)) for p in self._program.outputs]
        begin = [a.ctypes.data for a in inputs], [a.ctypes.data for a in outputs]
        step = [a.nbytes // max(n, 1) for a in inputs], [a.nbytes // max(n, 1) for a in outputs]
        given, made = (ctypes.c_void_p * len(inputs))(), (ctypes.c_void_p * len(outputs))()
        with self._lock:
            workspace = self._free.pop() if self._free else None
        if workspace is None:
            workspace = self._workspace()
        scratch = -(-workspace.ctypes.data // _ALIGN) * _ALIGN
        start = time.perf_counter()
        for sample in range(n):
            given[:] = [at + sample * size for at, size in zip(begin[0], step[0], strict=True)]
            made[:] = [at + sample * size for at, size in zip(begin[1], step[1], strict=True)]
            code = self._run(given, made, self._pointers, scratch)
            if code != 0:
                raise DeviceError(f"{self._program.name}: sample {sample} failed with code {code}")
        seconds = time.perf_counter() - start
        with self._lock:
            self._free.append(workspace)
        return outputs, seconds

    def _workspace(self) -> Array:
        try:
            return np.empty(self._bytes + _ALIGN, np.uint8)
        except MemoryError as e:
            raise DeviceError(f"{self._program.name}: no {self._bytes:,} bytes of memory for a call") from e

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        handle, self._handle = self._handle, None
        while self.direct is not None and self.direct.close():
            time.sleep(0.001)
        if handle is not None:
            _ctypes.dlclose(handle)
