"""A program as a library for C (contract/native.py). Imports NumPy and the standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from cuvil_hw.adapters.cpu.levels import levels_of, probe
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


def plan(
    program: DeviceProgram, native: Native, compiler: CCompiler, options: Callable[[str], tuple[str, ...]]
) -> BuildPlan:
    """`options`: those that the program's own library is compiled with, by instruction set. Raises CuvilError,
    ArtifactError."""
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
    levels = levels_of(record.machine, record.march) if native.kind != "c" else ("",)
    about = (
        f"{name}: a model as a library, made by cuvil-hw {VERSION} for {record.machine}"
        + (f" ({', '.join(levels)})." if any(levels) else "."),
        f"Constants: {len(blob):,} bytes; scratch memory of a call: {places.arena(native):,} bytes.",
    )
    top = header(native, places, levels, about)
    if native.kind == "c":
        text = "\n".join(
            [
                "// Compile with -std=c99 -ffp-contract=off -fwrapv: without these, results may differ.",
                '#pragma GCC diagnostic ignored "-Wpsabi"',
                '#pragma GCC diagnostic ignored "-Wparentheses"',
                *(f"#define {old} {new}" for old, new in _renamed(name, 0).items()),
                generated.decode(),
                source(native, places, _array(f"{name}_data", blob), levels, probe(record.machine, levels)),
            ]
        )
        return BuildPlan({f"{stem}.c": text.encode(), f"{stem}.h": top.encode()}, (), (f"{stem}.c", f"{stem}.h"))
    api = source(native, places, incbin(f"{name}_data"), levels, probe(record.machine, levels))
    files = {SOURCE: generated, "api.c": api.encode(), f"{stem}.h": top.encode(), _BLOB: blob}
    library, objects = f"{stem}.{native.kind}", ["api.o"]
    common = (*ALONE[1:], "-fPIC", "-fvisibility=hidden", "-c")

    def compiled(march: str, *more: str) -> Command:
        argv = (*compiler.command, *options(march), *common, *more)
        return Command(argv, "compile the generated C", compiler.remedy)

    commands = [compiled(levels[0], "-o", "api.o", "api.c")]
    for number, march in enumerate(levels):
        objects.append(f"level{number}.o")
        defines = (f"-D{old}={new}" for old, new in _renamed(name, number).items())
        commands.append(compiled(march, *defines, "-o", objects[-1], SOURCE))
    if native.kind == "so":
        # Looked for beside the program that was linked with it, whatever the environment says.
        link = ("-shared", ALONE[0], "-Wl,--build-id=none", f"-Wl,-soname,$ORIGIN/{library}", "-Wl,--as-needed", "-s")
        argv = (*compiler.command, *link, "-o", library, *objects, "-lm")
        commands.append(Command(argv, "link the library", compiler.remedy))
    else:
        archiver = (*compiler.archiver, "rcsD", library, *objects)
        commands.append(Command(archiver, "make a static library", compiler.remedy))
    return BuildPlan(files, tuple(commands), (library, f"{stem}.h"))


def _renamed(name: str, level: int) -> dict[str, str]:
    """What the generated code's symbols are called in a library, by level."""
    words = {"abi_version": "abi_version", "record": "record", "run": "kernels"}
    return {f"cuvil_{old}": f"{name}_{new}_{level}" for old, new in words.items()}


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
