"""Runs a program for another kind of processor in qemu's user emulation: a static executable that reads inputs from a
pipe and writes outputs to another. Imports NumPy and the standard library only."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import IO

import numpy as np

from cuvil_hw.adapters.cpu.native import SOURCE, incbin, packed
from cuvil_hw.adapters.cpu.record import CpuRecord
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import check_seal, port_bytes
from cuvil_hw.dtypes import to_numpy
from cuvil_hw.errors import DeviceError, ToolNotFound
from cuvil_hw.runtime.cache import cached_build
from cuvil_hw.runtime.compilers import ARCHES, CCompiler

_MAIN, _PROGRAM = "main.c", "program"
_END_S = 5.0


def emulator_of(settings: Mapping[str, object], machine: str) -> tuple[str, ...]:
    """The command that runs code of a machine here."""
    own = next((a.emulator for a in ARCHES.values() if a.machine == machine), f"qemu-{machine}")
    return tuple(shlex.split(str(settings.get("run") or own)))


def missing(emulator: Sequence[str], machine: str) -> ToolNotFound | None:
    if not emulator or shutil.which(emulator[0]) is None:
        name = emulator[0] if emulator else "the emulator"
        return ToolNotFound(
            name, f"run programs for {machine}", "install it (Debian and Ubuntu: apt install qemu-user)"
        )
    return None


class Emulated:
    """One process of the emulator, which takes one call after another."""

    def __init__(
        self,
        program: DeviceProgram,
        record: CpuRecord,
        compiler: CCompiler,
        options: Sequence[str],
        emulator: Sequence[str],
    ) -> None:
        """Raises ToolNotFound, BuildFailed, DeviceError."""
        if (lacking := missing(emulator, record.machine)) is not None:
            raise lacking
        self._program, self._lock = program, Lock()
        folder = cached_build(_plan(program, record, compiler, options))
        # A file, not a pipe: nobody would read what a crash says.
        self._errors = (program.folder / "emulator.log").open("w+b")
        argv = (*emulator, str(folder / _PROGRAM))
        pipe = subprocess.PIPE
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=self._errors, start_new_session=True
            )
        except OSError as e:
            raise DeviceError(f"{program.name}: {argv[0]} could not be started: {e}") from e

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        n = inputs[0].shape[0] if inputs else 1
        outputs = [np.empty((n, *p.shape), to_numpy(p.dtype)) for p in self._program.outputs]
        start = time.perf_counter()
        with self._lock:
            process = self._process
            if process is None:
                raise DeviceError(f"{self._program.name}: is closed")
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                for sample in range(n):
                    process.stdin.write(b"".join((b"r", *(x[sample].tobytes() for x in inputs))))
                    process.stdin.flush()
                    for array in outputs:
                        array[sample] = self._read(process.stdout, array[sample])
            except OSError as e:
                raise self._ended() from e
        return outputs, time.perf_counter() - start

    def _read(self, pipe: IO[bytes], like: Array) -> Array:
        data = pipe.read(like.nbytes)
        if len(data) != like.nbytes:
            raise self._ended()
        return np.frombuffer(data, like.dtype).reshape(like.shape)

    def _ended(self) -> DeviceError:
        assert self._process is not None
        code = self._process.wait(_END_S)
        self._errors.seek(0)
        said = self._errors.read(2000).decode(errors="replace").strip()
        return DeviceError(f"{self._program.name}: the emulator ended with status {code}: {said or 'it said nothing'}")

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()  # its end: the program returns
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._errors.close()


def _plan(program: DeviceProgram, record: CpuRecord, compiler: CCompiler, options: Sequence[str]) -> BuildPlan:
    generated = (Path(program.folder) / SOURCE).read_bytes()
    check_seal(generated, program)
    blob, offsets = packed(record.arrays(program))
    ports = {"in": program.inputs, "out": program.outputs}
    memories = [
        f"static char {g}_{n}[{max(port_bytes(p), 1)}] LINE;" for g, of in ports.items() for n, p in enumerate(of)
    ]
    reads = [f"    if (fread(in_{n}, {port_bytes(p)}, 1, stdin) != 1) return 100;"
             for n, p in enumerate(program.inputs) if port_bytes(p)]  # fmt: skip
    writes = [f"    fwrite(out_{n}, 1, {port_bytes(p)}, stdout);" for n, p in enumerate(program.outputs)]
    lists = {g: ", ".join(f"{g}_{n}" for n in range(len(of))) or "NULL" for g, of in ports.items()}
    constants = ", ".join(f"data + {at}" for at in offsets) or "NULL"
    main = "\n".join(
        [
            "#include <stdio.h>", "#define LINE __attribute__((aligned(64)))",
            "int cuvil_run(const void *const *, void *const *, const void *const *, void *);",
            incbin("data"), *memories, f"static char workspace[{record.workspace_bytes + 1}] LINE;", "",
            "int main(void) {",
            f"  const void *const in[] = {{{lists['in']}}};",
            f"  void *const out[] = {{{lists['out']}}};",
            f"  const void *const constants[] = {{{constants}}};",
            "  while (getchar() != EOF) {", *reads,
            "    const int code = cuvil_run(in, out, constants, workspace);",
            "    if (code != 0) return code;", *writes, "    fflush(stdout);", "  }", "  return 0;", "}", "",
        ]
    )  # fmt: skip
    argv = (*compiler.static, *options, "-o", _PROGRAM, SOURCE, _MAIN, "-lm")
    command = Command(argv, "compile the generated C", compiler.remedy)
    return BuildPlan({SOURCE: generated, _MAIN: main.encode(), "constants.bin": blob}, (command,), (_PROGRAM,))
