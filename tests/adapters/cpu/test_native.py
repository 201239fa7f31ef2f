"""Programs as libraries for C: built by a plain compiler, run without Python and without an environment."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw import ops
from cuvil_hw.ir.program import Builder
from cuvil_hw.runtime.compilers import cpu_flags
from cuvil_hw.types import TensorType as T

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "native"
Array = np.ndarray[Any, Any]
# Of libm and of the two functions that compilers call by themselves.
ALLOWED = re.compile(
    r"(mem(cpy|set)|(exp|tanh|erf|expm1|log|log1p|pow|sqrt|floor|ceil|round|rint|nearbyint|fma[xn]?)f?)$"
)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5), nn.Softmax(1)
    return nn.Sequential(*layers).eval()


def images(n: int) -> Array:
    return np.random.default_rng(0).standard_normal((n, 3, 8, 8)).astype(np.float32)


def shell(*argv: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
    return done.stdout


def call(library: Path, inputs: Sequence[Array], outputs: Sequence[Array]) -> int:
    """`NAME_run` by ctypes, with an arena that is aligned badly."""
    name, loaded = library.stem, ctypes.CDLL(str(library))
    arena = ctypes.create_string_buffer(getattr(loaded, f"{name}_arena_bytes")() + 1)
    arrays = [(ctypes.c_void_p * max(len(xs), 1))(*(x.ctypes.data for x in xs)) for xs in (inputs, outputs)]
    code: int = getattr(loaded, f"{name}_run")(*arrays, ctypes.c_void_p(ctypes.addressof(arena) + 1))
    return code


def undefined(library: Path) -> set[str]:
    table = shell("nm", "-D", "--undefined-only", library.name, cwd=library.parent)
    return {line.split()[-1].partition("@")[0] for line in table.splitlines()}


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_example_runs_in_an_empty_environment(tmp_path: Path, precision: str) -> None:
    x = images(16)
    program = cuvil.compile(network(), "cpu", x[:1], x if precision == "int8" else None, precision)
    program.save(tmp_path / "model.so")
    shutil.copy(EXAMPLES / "example.c", tmp_path)
    shell("cc", "-Wall", "-Wextra", "-Werror", "example.c", "model.so", "-lm", "-o", "example", cwd=tmp_path)
    x[3].tofile(tmp_path / "x.bin")
    head, *values = shell("env", "-i", "./example", "x.bin", cwd=tmp_path).splitlines()
    assert head == "out0: f32, 20 bytes"
    np.testing.assert_allclose(np.array(values, np.float32), program(x[3:4])[0], rtol=1e-7)
    assert {s for s in undefined(tmp_path / "model.so") if not ALLOWED.match(s)} == set()
    made = np.empty((1, 5), np.float32)
    for sample in x:
        assert call(tmp_path / "model.so", [sample], [made]) == 0
        np.testing.assert_array_equal(made, program(sample[None]))


def test_the_other_examples(tmp_path: Path) -> None:
    x = images(1)
    program = cuvil.compile(network(), "cpu", x)
    program.save(tmp_path / "model.so")
    plain = shell("env", "-i", sys.executable, str(EXAMPLES / "example.py"), cwd=tmp_path)
    head, values = plain.splitlines()
    assert head == "out0: f32 1×5"
    np.testing.assert_allclose(np.array(values.split(), float), program(np.zeros_like(x))[0], rtol=1e-7)
    shutil.copy(EXAMPLES / "example.cpp", tmp_path)
    shell("c++", "-Wall", "-Wextra", "-Werror", "example.cpp", "model.so", "-lm", "-o", "example", cwd=tmp_path)
    lines = shell("env", "-i", "./example", cwd=tmp_path).split()
    np.testing.assert_allclose(np.array(lines, float), np.array(values.split(), float), rtol=1e-5)


def test_all_kinds_and_two_models_in_one_program(tmp_path: Path) -> None:
    x = images(1)
    program = cuvil.compile(network(), "cpu", x)
    for name in ("first.a", "second.c", "third.so"):
        program.save(tmp_path / name)
    body = "".join(
        f"  if ({n}_run(in, out, arena)) return 1;\n  fwrite(y, 1, sizeof y, stdout);\n"
        for n in ("first", "second", "third")
    )
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "first.h"\n#include "second.h"\n#include "third.h"\n'
        "int main(void) {\n  static float x[FIRST_INPUT_0_SIZE], y[SECOND_OUTPUT_0_SIZE];\n"
        "  static char arena[FIRST_ARENA_BYTES];\n  const void *in[] = {x};\n  void *out[] = {y};\n"
        f"  if (fread(x, 1, sizeof x, stdin) != sizeof x) return 2;\n{body}  return 0;\n}}\n"
    )
    exact = ("-std=c99", "-O2", "-ffp-contract=off", "-fwrapv", "-Wall", "-Wextra", "-Werror")
    shell("cc", *exact, "main.c", "second.c", "first.a", "third.so", "-lm", "-o", "main", cwd=tmp_path)
    done = subprocess.run(
        ["./main"], cwd=tmp_path, env={}, input=x.tobytes(), capture_output=True, timeout=60, check=True
    )
    wanted, (first, second, third) = program(x)[0], np.frombuffer(done.stdout, np.float32).reshape(3, 5)
    np.testing.assert_array_equal([first, third], [wanted, wanted])
    np.testing.assert_allclose(second, wanted, rtol=2e-6)  # the C file, compiled for any x86-64: without FMA


def test_state_is_handed_on_by_the_caller(tmp_path: Path) -> None:
    builder = Builder([("x", T((4,), "i32")), ("total", T((4,), "i32"))])
    total = builder.op(ops.Add(), builder.input(0), builder.input(1))
    program = cuvil.compile(
        builder.finish([("y", builder.op(ops.Neg(), total)), ("next", total)]), state={"total": "next"}
    )
    program.save(tmp_path / "sums.so")
    library = ctypes.CDLL(str(tmp_path / "sums.so"))
    library.sums_initial.restype = ctypes.c_void_p
    assert library.sums_initial(0) is None
    first = np.ctypeslib.as_array(ctypes.cast(library.sums_initial(1), ctypes.POINTER(ctypes.c_int32)), (4,))
    assert "as input 1 of the next call" in (tmp_path / "sums.h").read_text()
    states, y, x = [first.copy(), np.empty(4, np.int32)], np.empty(4, np.int32), np.arange(4, dtype=np.int32)
    for _ in range(3):
        assert call(tmp_path / "sums.so", [x, states[0]], [y, states[1]]) == 0
        np.testing.assert_array_equal(y, program(x))
        states.reverse()


def test_guards_and_indices_are_codes(tmp_path: Path) -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 3)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.table(rows)

    program = cuvil.compile(Rows().eval(), "cpu", torch.zeros(2, 4, dtype=torch.int64))
    program.save(tmp_path / "rows.so")
    rows, y = np.array([[0, 1, 2, 3], [6, 5, 4, 3]]), np.empty((2, 4, 3), np.float32)
    assert call(tmp_path / "rows.so", [rows], [y]) == 0
    np.testing.assert_array_equal(y, program(rows))
    rows[1, 2] = 7
    assert call(tmp_path / "rows.so", [rows], [y]) == 1
    library = ctypes.CDLL(str(tmp_path / "rows.so"))
    library.rows_error.restype = ctypes.c_char_p
    assert b"is an index from" in library.rows_error(1)

    builder = Builder([("x", T((), "f32"))])
    builder.guard(builder.op(ops.Less(), builder.input(0), builder.const(np.float32(3))), 'is "3" or more')
    cuvil.compile(builder.finish([("y", builder.op(ops.Neg(), builder.input(0)))])).save(tmp_path / "less.so")
    y = np.empty((), np.float32)
    assert call(tmp_path / "less.so", [np.array(2, np.float32)], [y]) == 0
    assert y == -2
    assert call(tmp_path / "less.so", [np.array(3, np.float32)], [y]) == 1
    library = ctypes.CDLL(str(tmp_path / "less.so"))
    library.less_error.restype = ctypes.c_char_p
    assert library.less_error(1) == b'is "3" or more'


def test_outputs_that_are_inputs_or_constants(tmp_path: Path) -> None:
    builder = Builder([("x", T((3,), "f32")), ("unused", T((2,), "i8"))])
    y = builder.op(ops.Neg(), builder.input(0))
    outputs = [
        ("same", builder.input(0)),
        ("fixed", builder.const(np.arange(4.0, dtype=np.float32))),
        ("y", y),
        ("z", y),
    ]
    program = cuvil.compile(builder.finish(outputs))
    program.save(tmp_path / "wires.so")
    given = [np.array([1, -2, 3], np.float32), np.zeros(2, np.int8)]
    made = [np.empty(n, np.float32) for n in (3, 4, 3, 3)]
    assert call(tmp_path / "wires.so", given, made) == 0
    for got, wanted in zip(made, program(*given), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_every_instruction_set(tmp_path: Path, precision: str) -> None:
    x = images(4)
    program = cuvil.compile(network(), "cpu", x[:1], x if precision == "int8" else None, precision)
    program.save(tmp_path / "model.so")
    library = ctypes.CDLL(str(tmp_path / "model.so"))
    library.model_level_name.restype = ctypes.c_char_p
    count = int(re.findall(r"MODEL_LEVELS (\d+)", (tmp_path / "model.h").read_text())[0])
    names = [library.model_level_name(n).decode() for n in range(count)]
    if platform.machine() == "x86_64":
        assert names == ["x86-64", "x86-64-v3", "x86-64-v4"]
        flags = cpu_flags()
        assert library.model_level() == sum({f} <= flags for f in ("avx2", "avx512bw"))
        code = shell("objdump", "-d", "--no-show-raw-insn", "model.so", cwd=tmp_path)
        assert "%ymm" in code
    made = np.empty((1, 5), np.float32)
    tried = [n for n in range(-1, count + 1) if library.model_select(n) == 0]
    assert tried == list(range(library.model_level() + 1))
    for level in tried:
        assert library.model_select(level) == 0
        assert library.model_level() == level
        for sample in x:
            assert call(tmp_path / "model.so", [sample], [made]) == 0
            if precision == "int8" or names[level] == program.artifact.manifest.profile["settings"]["march"]:
                np.testing.assert_array_equal(made, program(sample[None]), err_msg=names[level])
            # Fused or not, a sum of 128 products differs by few of its last bits.
            np.testing.assert_allclose(made, program(sample[None]), rtol=2e-6, err_msg=names[level])


OTHERS = {"aarch64-linux-gnu": "qemu-aarch64", "armv7-linux-gnueabihf": "qemu-arm", "riscv64-linux-gnu": "qemu-riscv64"}


@pytest.mark.needs("ziglang", *OTHERS.values())
@pytest.mark.parametrize("target", OTHERS)
def test_other_processors_in_an_emulator(target: str) -> None:
    x = images(4)
    for precision, data in (("float32", None), ("int8", x)):
        with cuvil.compile(network(), "cpu", x[:1], data, precision) as here:
            wanted = here(x)
        with cuvil.compile(network(), target, x[:1], data, precision, interface="sim") as there:
            got = there(x)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 if data is None else 1e-6)
    builder = Builder([("x", T((1, 3, 8, 8), "i8"))])
    weights = np.random.default_rng(1).integers(-128, 128, (8, 3, 3, 3), np.int8)
    sums = builder.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1), acc="i32"), builder.input(0), builder.const(weights))
    wide = builder.op(ops.Rescale((10**6,), (33,), "u8", output_zp=12), sums)
    program, x = builder.finish([("sums", sums), ("y", wide)]), (images(2) * 50).astype(np.int8)
    with cuvil.compile(program.clone()) as here, cuvil.compile(program, target, interface="sim") as there:
        for got, wanted in zip(there(x), here(x), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.needs("ziglang", "qemu-arm")
def test_a_library_for_another_processor(tmp_path: Path) -> None:
    x = images(1)
    program = cuvil.compile(network(), "armv7-linux-gnueabihf", x)
    program.save(tmp_path / "model.a")
    program.save(tmp_path / "model.so")
    machine = (tmp_path / "model.so").read_bytes()[18:20]
    assert machine == (40).to_bytes(2, "little")  # EM_ARM of the ELF specification
    zig = (
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        "arm-linux-musleabihf",
        "-mcpu=cortex_a9",
        "-static",
        "-O2",
    )
    shutil.copy(EXAMPLES / "example.c", tmp_path)
    shell(*zig, "example.c", "model.a", "-lm", "-o", "example", cwd=tmp_path)
    x.tofile(tmp_path / "x.bin")
    values = shell("env", "-i", shutil.which("qemu-arm") or "", "./example", "x.bin", cwd=tmp_path).splitlines()[1:]
    with cuvil.compile(network(), "cpu", x) as here:
        np.testing.assert_allclose(np.array(values, np.float32), here(x)[0], rtol=0, atol=1e-4)


def test_the_emulator_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = cuvil.compile(nn.Linear(4, 3).eval(), "cpu", np.zeros((1, 4), np.float32))
    monkeypatch.setitem(program.artifact.manifest.profile["settings"], "run", "no-such-emulator")
    with pytest.raises(cuvil.ToolNotFound, match="no-such-emulator not found, needed to run programs for"):
        cuvil.Executable(program.artifact, "sim").open()
    monkeypatch.setitem(program.artifact.manifest.profile["settings"], "run", "false")
    with pytest.raises(cuvil.DeviceError, match="the emulator ended with status 1"):
        cuvil.Executable(program.artifact, "sim")(np.zeros((1, 4), np.float32))


def test_what_cannot_be_a_library_says_why(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 3).eval(), np.zeros((1, 4), np.float32)
    program = cuvil.compile(model, "cpu", x)
    with pytest.raises(cuvil.CuvilError, match="can't name a library"):
        program.save(tmp_path / "a b.so")
    opened = cuvil.compile(model, "cpu", x, shapes={"input": (cuvil.Dim("n", 1, 4), 4)})
    with pytest.raises(cuvil.CuvilError, match=r"a library has one size: save one, program.at\(n=…\)"):
        opened.save(tmp_path / "model.so")
    other = cuvil.compile(model, "mlu270", x)
    with pytest.raises(cuvil.CuvilError, match="only programs for cpu targets can"):
        other.save(tmp_path / "model.so")
    with pytest.raises(cuvil.CuvilError, match="could not be written"):
        program.save(tmp_path / "missing" / "model.so")
    assert list(tmp_path.iterdir()) == []
