"""A program as a library for C (contract/native.py). Imports NumPy and the standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from cuvil_hw.adapters.cpu.native_c import ALIGN, Places, header, identifier, source
from cuvil_hw.adapters.cpu.record import CpuRecord
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.native import Native
from cuvil_hw.contract.record import check_seal, read
from cuvil_hw.dtypes import to_numpy
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime.compilers import CCompiler
from cuvil_hw.version import VERSION

SOURCE = "model.c"
_BLOB = "constants.bin"
_LONGEST = 100  # characters of a library's name
# No symbol but memcpy, memset and those of libm may be left: no start files, and nothing that a distribution's
# compiler adds of its own.
ALONE = ("-nostartfiles", "-fno-stack-protector", "-U_FORTIFY_SOURCE")


def plan(program: DeviceProgram, native: Native, compiler: CCompiler, options: tuple[str, ...]) -> BuildPlan:
    """`options`: those that the program's own library is compiled with. Raises CuvilError, ArtifactError."""
    if not re.fullmatch(r"[A-Za-z0-9._+-]+", native.stem) or len(native.stem) > _LONGEST or native.stem[0] == "-":
        raise CuvilError(
            f"{native.stem!r} can't name a library: its symbols start with it, so use letters, digits and '_', at "
            f"most {_LONGEST}"
        )
    record = read(CpuRecord, program)
    generated = (program.folder / SOURCE).read_bytes()
    check_seal(generated, program)
    blob, places = _constants(program, native, record)
    name, stem = identifier(native.stem), native.stem
    about = (
        f"{name}: a model as a library, made by cuvil-hw {VERSION} for {record.machine}"
        + (f" ({record.march})." if record.march else "."),
        f"Constants: {len(blob):,} bytes; scratch memory of a call: {places.arena(native):,} bytes.",
    )
    renamed = {f"cuvil_{word}": f"{name}_{word}" for word in ("abi_version", "record")} | {
        "cuvil_run": f"{name}_kernels"
    }
    top = header(native, places, about)
    if native.kind == "c":
        text = "\n".join(
            [
                "// Compile with -std=c99 -ffp-contract=off -fwrapv: without these, results may differ.",
                '#pragma GCC diagnostic ignored "-Wpsabi"',
                *(f"#define {old} {new}" for old, new in renamed.items()),
                generated.decode(),
                source(native, places, _array(f"{name}_data", blob)),
            ]
        )
        return BuildPlan({f"{stem}.c": text.encode(), f"{stem}.h": top.encode()}, (), (f"{stem}.c", f"{stem}.h"))
    api = source(native, places, incbin(f"{name}_data"))
    files = {SOURCE: generated, "api.c": api.encode(), f"{stem}.h": top.encode(), _BLOB: blob}
    defines = tuple(f"-D{old}={new}" for old, new in renamed.items())
    common = (*options, *ALONE[1:], "-fPIC", "-fvisibility=hidden", *defines)
    purpose = "compile the generated C"
    library = f"{stem}.{native.kind}"
    if native.kind == "so":
        # Looked for beside the program that was linked with it, whatever the environment says.
        link = ("-shared", ALONE[0], "-Wl,--build-id=none", f"-Wl,-soname,$ORIGIN/{library}", "-Wl,--as-needed", "-s")
        argv = (*compiler.command, *common, *link, "-o", library, SOURCE, "api.c", "-lm")
        commands: tuple[Command, ...] = (Command(argv, purpose, compiler.remedy),)
    else:
        objects = ("model.o", "api.o")
        commands = tuple(
            Command((*compiler.command, *common, "-c", "-o", o, o.replace(".o", ".c")), purpose, compiler.remedy)
            for o in objects
        )
        archiver = (*compiler.archiver, "rcsD", library, *objects)
        commands += (Command(archiver, "make a static library", compiler.remedy),)
    return BuildPlan(files, commands, (library, f"{stem}.h"))


def _constants(program: DeviceProgram, native: Native, record: CpuRecord) -> tuple[bytes, Places]:
    """All constants in one piece, each aligned, and where they lie."""
    own = record.arrays(program)
    more = {w.constant: native.constants[w.constant] for w in (*native.given, *native.made) if w.constant}
    for state in native.calling.states:
        port = next(p for p in native.inputs if p.name == state.input)
        zeros = np.zeros(prod(port.shape), to_numpy(port.dtype))
        more[state.input] = native.constants[state.initial] if state.initial else zeros
    blob, offsets = packed([*own, *more.values()])
    return blob, Places(record.workspace_bytes, offsets[: len(own)], dict(zip(more, offsets[len(own) :], strict=True)))


def packed(arrays: Sequence[Array]) -> tuple[bytes, tuple[int, ...]]:
    """Arrays one after another, each aligned, and where they begin."""
    pieces, offsets, end = [], [], 0
    for array in arrays:
        at = -(-end // ALIGN) * ALIGN
        pieces += [bytes(at - end), np.ascontiguousarray(array).tobytes()]
        offsets.append(at)
        end = at + array.nbytes
    return b"".join(pieces) or bytes(ALIGN), tuple(offsets)


def incbin(name: str) -> str:
    """The constants as a file that the assembler reads; written as numbers they would take minutes to compile."""
    lines = (".section .rodata", f".balign {ALIGN}", f".global {name}", f".hidden {name}", f"{name}:",
             f'.incbin \\"{_BLOB}\\"', ".byte 0", ".text")  # fmt: skip
    text = "".join(f'  "{line}\\n"\n' for line in lines)
    return f'__asm__(\n{text});\nextern const char {name}[] __attribute__((visibility("hidden")));'


def _array(name: str, data: bytes) -> str:
    """The constants as numbers."""
    rows = (", ".join(map(str, data[i : i + 24])) for i in range(0, len(data), 24))
    kind = (
        f"static const union {{ unsigned char bytes[{len(data)}]; double aligned; }} __attribute__((aligned({ALIGN})))"
    )
    return (
        f"{kind} {name}_bytes = {{{{\n"
        + ",\n".join(rows)
        + f"\n}}}};\n#define {name} ((const char *){name}_bytes.bytes)"
    )
