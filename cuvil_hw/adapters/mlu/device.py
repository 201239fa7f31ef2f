"""Devices of the MLU adapter: a card through the vendor's libraries, or the simulator behind the same calls."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from cuvil_hw.adapters.mlu.abi import ATTRIBUTE_NRAM_BYTES, GENERATIONS
from cuvil_hw.adapters.mlu.record import BufferRecord, MluRecord
from cuvil_hw.adapters.mlu.shim import LoadedModule, Runtime
from cuvil_hw.adapters.mlu.simulator import Chip, build_libraries, build_module, chip
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Array, Device, DeviceProgram, Loaded
from cuvil_hw.contract.loops import expanded
from cuvil_hw.contract.record import check_seal, read
from cuvil_hw.dtypes import to_numpy
from cuvil_hw.errors import CuvilError, DeviceError
from cuvil_hw.runtime.cache import cached_build
from cuvil_hw.runtime.forks import OneProcess, Turn
from cuvil_hw.runtime.null import NullDevice

MODEL = "model.mlu"
INTERFACES = ("hw", "sim", "null")
_card = OneProcess("the MLU card")
_CNCC = "install Cambricon's Neuware and put its bin folder on PATH"


def open_device(profile: Mapping[str, Any], interface: str) -> Device:
    """ "hw": a card; "sim": the simulator; "null". Raises CuvilError for another interface."""
    name = str(profile.get("name", "mlu"))
    if interface == "null":
        return NullDevice(name)
    if interface not in INTERFACES:
        raise CuvilError(f"{name} has no interface {interface!r}; it has {', '.join(INTERFACES)}")
    card = chip(profile)
    if card.cnrt not in GENERATIONS:
        raise CuvilError(f"{name}: setting cnrt is {card.cnrt}; known: {', '.join(map(str, GENERATIONS))}")
    return MluDevice(name, interface, card, str(profile.get("part", "")))


class MluDevice:
    """`load` compiles the program's BANG C: with cncc for a card, with g++ for the simulator."""

    def __init__(self, target: str, interface: str, card: Chip, part: str) -> None:
        self.interface = interface
        self.name = f"{target} simulator (emitted BANG C on the host)" if interface == "sim" else f"{target} (card)"
        self._card, self._part = card, part

    def usable(self) -> str | None:
        if self.interface == "sim":
            return None if shutil.which("g++") else "g++ is not on PATH; install it (Debian: apt-get install g++)"
        try:
            Runtime(GENERATIONS[self._card.cnrt])
        except CuvilError as e:
            return str(e)
        return None if shutil.which("cncc") else f"cncc is not on PATH; {_CNCC}"

    def load(self, program: DeviceProgram) -> Loaded:
        """Raises ToolNotFound (g++; or the vendor's libraries and compiler), BuildFailed, DeviceError."""
        source = (program.folder / MODEL).read_bytes()
        check_seal(source, program)
        record = read(MluRecord, program)
        symbols = [k.symbol for k in record.kernels]
        if self.interface == "sim":
            libraries = build_libraries(self._card)
            runtime = Runtime(GENERATIONS[self._card.cnrt], libraries)
            product = build_module(source, MODEL, symbols, self._card, libraries)
        else:
            _card.check()
            runtime = Runtime(GENERATIONS[self._card.cnrt])
            product = self._compile(source)
        return LoadedProgram(runtime, product, program, record, self._card, None if self.interface == "sim" else _card)

    def _compile(self, source: bytes) -> Path:
        """Options as in public build files of Cambricon's own kernels; never run here, there is no cncc to run."""
        arch = f"--bang-mlu-arch={self._part}"
        if GENERATIONS[self._card.cnrt].host_kernels:
            argvs = [("cncc", "-c", arch, "-O2", "-fPIC", MODEL, "-o", "model.o"),
                     ("g++", "-shared", "model.o", "-o", "model.so", "-lcnrt")]  # fmt: skip
            product = "model.so"
        else:
            argvs, product = (
                [("cncc", arch, "--bang-fatbin-only", "-O2", MODEL, "-o", "model.cnfatbin")],
                "model.cnfatbin",
            )
        commands = tuple(Command(argv, "compile BANG C", _CNCC) for argv in argvs)
        return cached_build(BuildPlan({MODEL: source}, commands, (product,))) / product


class LoadedProgram:
    """A program's kernels and buffers on a device. Samples run one after another; threads take turns."""

    def __init__(
        self,
        runtime: Runtime,
        product: Path,
        program: DeviceProgram,
        record: MluRecord,
        card: Chip,
        owner: OneProcess | None,
    ) -> None:
        self._runtime, self._program, self._record, self._owner = runtime, program, record, owner
        self._turn = Turn()
        self._closed = False
        self._memory: list[int] = []
        self._queue = 0
        self._kernels: LoadedModule | None = None
        self._context = runtime.do("open", ordinal=0)
        try:
            self._load(product, card)
        except BaseException:
            self.close()
            raise

    def _load(self, product: Path, card: Chip) -> None:
        runtime, record = self._runtime, self._record
        self._enter()
        if runtime.has("attribute"):
            has = runtime.do("attribute", number=ATTRIBUTE_NRAM_BYTES, ordinal=0)["value"] & 0xFFFFFFFF
            if has < card.nram_bytes:
                raise DeviceError(
                    f"{self._program.name}: was compiled for {card.nram_bytes:,} bytes of NRAM, this card has {has:,}; "
                    "set `nram` in the profile and compile it again"
                )
        if record.kernels:
            self._kernels = LoadedModule(runtime, product, [k.symbol for k in record.kernels])
        self._queue = runtime.do("make queue")["queue"]
        workspace = self._allocate(record.workspace_bytes)
        self._at = {n: self._place(b, workspace) for n, b in record.buffers.items()}

    def _enter(self) -> None:
        """Devices and contexts are current per thread. Raises DeviceError in a process forked from a card's."""
        if self._owner is not None:
            self._owner.enter()
        self._runtime.do("enter", **self._context)

    def _allocate(self, size: int) -> int:
        address = int(self._runtime.do("allocate", bytes=max(size, 1))["address"])
        self._memory.append(address)
        return address

    def _place(self, buffer: BufferRecord, workspace: int) -> int:
        if buffer.role == "view":
            return 0
        if buffer.at >= 0:
            return workspace + buffer.at
        address = self._allocate(buffer.bytes)
        if buffer.digest:
            self._upload(address, np.ascontiguousarray(self._program.constants[buffer.digest]))
        return address

    def _upload(self, address: int, array: Array) -> None:
        if array.nbytes:
            self._runtime.do("upload", device=address, host=array.ctypes.data, bytes=array.nbytes)

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        with self._turn.lock:
            if self._closed:
                raise DeviceError(f"{self._program.name}: is closed")
            self._enter()
            return self._run(inputs)

    def _run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        n = inputs[0].shape[0] if inputs else 1
        outputs = [np.empty((n, *p.shape), to_numpy(p.dtype)) for p in self._program.outputs]
        seconds = 0.0
        for sample in range(n):
            for port, array in zip(self._program.inputs, inputs, strict=True):
                self._upload(self._at[port.name], array[sample, ...])
            start = perf_counter()
            for number, places in expanded(self._record.loops, len(self._record.kernels)):
                assert self._kernels is not None
                kernel = self._record.kernels[number]
                pointers = [self._at[b] + start for b, start in (places.get(b, (b, 0)) for b in kernel.args)]
                self._kernels.launch(kernel.symbol, kernel.tasks, pointers, self._queue)
            self._runtime.do("wait", queue=self._queue)
            seconds += perf_counter() - start
            for port, array in zip(self._program.outputs, outputs, strict=True):
                here = array[sample]
                if here.nbytes:
                    address = array.ctypes.data + sample * here.nbytes
                    self._runtime.do("download", host=address, device=self._at[port.name], bytes=here.nbytes)
        return outputs, seconds

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        with self._turn.lock:
            if self._closed:
                return
            self._closed = True
            self._enter()
            for address in self._memory:
                self._runtime.do("free", address=address)
            if self._queue:
                self._runtime.do("destroy queue", queue=self._queue)
            if self._kernels is not None:
                self._kernels.close()
