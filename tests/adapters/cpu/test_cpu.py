"""The CPU target below the pipeline: fused programs, compiled and run, against the NumPy meaning of their ops."""

from __future__ import annotations

import dataclasses
import platform
import re
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.adapters.cpu import device
from cuvil_hw.adapters.cpu.adapter import CpuAdapter
from cuvil_hw.contract.device import DeviceProgram, Port
from cuvil_hw.dtypes import int_range, to_numpy
from cuvil_hw.errors import ArtifactError, CuvilError, DeviceError, ToolNotFound
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType as T
from tests.support.cpu_runner import PROFILE, check, graph_of, loaded, plan_of, source_of
from tests.support.device_runner import opened

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]
Array = np.ndarray[Any, Any]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def floats(*shape: int, seed: int = 0) -> Array:
    return rng(seed).normal(size=shape).astype(np.float32)


def ints(lo: int, hi: int, *shape: int, dtype: Any = np.int8, seed: int = 0) -> Array:
    return rng(seed).integers(lo, hi, shape, dtype, endpoint=True)


def unary(op: ops.base.Op, x: Array, dtype: str) -> Program:
    b = Builder([("x", T(x.shape, dtype))])
    return b.finish([("y", b.op(op, b.input(0)))])


def binary(op: ops.base.Op, a: Array, c: Array, dtype: str) -> Program:
    b = Builder([("a", T(a.shape, dtype)), ("b", T(c.shape, dtype))])
    return b.finish([("y", b.op(op, b.input(0), b.input(1)))])


# -- layers ---------------------------------------------------------------------------------------------------

WINDOWS = [
    # x, w, strides, pads, dilations, groups
    ((1, 3, 9, 8), (10, 3, 3, 3), (1, 2), (1, 0, 1, 1), (1, 1), 1),
    ((2, 4, 7, 7), (6, 2, 3, 2), (2, 1), (0, 2, 1, 0), (2, 1), 2),
    ((1, 8, 6, 5), (8, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 8),
    ((1, 5, 4, 4), (70, 5, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 2, 11), (3, 2, 4), (3,), (2, 1), (2,), 1),
    ((1, 2, 4, 3, 5), (4, 2, 2, 2, 2), (1, 1, 2), (1, 0, 0, 0, 1, 1), (1, 1, 1), 1),
]


@pytest.mark.parametrize("lanes", [8, 64])
@pytest.mark.parametrize(("x", "w", "strides", "pads", "dilations", "groups"), WINDOWS)
def test_convolution(x: Any, w: Any, strides: Any, pads: Any, dilations: Any, groups: int, lanes: int) -> None:
    conv = ops.Conv(strides, pads, dilations, groups)
    b = Builder([("x", T(x, "f32"))])
    y = b.op(conv, b.input(0), b.const(floats(*w)), b.const(floats(w[0], seed=1)))
    check(b.finish([("y", b.op(ops.Relu(), y))]), floats(*x, seed=2), lanes=lanes)

    q = dataclasses.replace(conv, x_zp=-3, w_zp=tuple(range(w[0])), acc="i26")
    b = Builder([("x", T(x, "i8"))])
    acc = b.op(q, b.input(0), b.const(ints(-128, 127, *w)), b.const(ints(-9999, 9999, w[0], dtype=np.int32), "i26"))
    y = b.op(ops.Rescale(tuple(range(10**6, 10**6 + w[0])), (33,), "u8", output_zp=12), acc)
    check(b.finish([("y", y)]), ints(-128, 127, *x, seed=3), lanes=lanes)


def test_chain_with_pools_reads_permuted_temporaries() -> None:
    b = Builder([("x", T((1, 3, 12, 10), "f32"))])
    y = b.op(ops.Relu(), b.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1)), b.input(0), b.const(floats(9, 3, 3, 3))))
    z = b.op(ops.Conv((1, 1), (0, 0, 0, 0), (1, 1)), y, b.const(floats(9, 9, 1, 1, seed=1)))
    y = b.op(ops.Add(), y, z)
    y = b.op(ops.MaxPool((2, 3), (2, 2), (0, 1, 0, 1), (1, 1)), y)
    y = b.op(ops.AvgPool((2, 2), (2, 1), (1, 0, 0, 1), (1, 1)), y)
    y = b.op(ops.Reshape((1, 135)), y)
    y = b.op(ops.Linear(), y, b.const(floats(7, 135, seed=2)), b.const(floats(7, seed=3)))
    check(b.finish([("y", y)]), floats(1, 3, 12, 10, seed=4))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i8", "u8", "i32"])
def test_pools_and_padding_of_every_dtype(dtype: str) -> None:
    x = (floats(1, 3, 6, 7) * 20).astype(np.float64 if dtype == "u8" else to_numpy(dtype))
    x = np.abs(x).astype(np.uint8) if dtype == "u8" else x
    check(unary(ops.MaxPool((3, 2), (2, 2), (1, 1, 1, 0), (1, 1)), x, dtype), x)
    check(unary(ops.Pad((0, 0, 1, 2, 0, 1, 0, 3), 1.0, "constant"), x, dtype), x)


def test_transposed_reads_and_writes() -> None:
    x = floats(3, 4, 5)
    b = Builder([("x", T(x.shape, "f32"))])
    y = b.op(ops.Transpose((2, 0, 1)), b.op(ops.Exp(), b.input(0)))
    y = b.op(ops.ReduceSum((1,), True), y)
    check(b.finish([("y", y), ("x_too", b.input(0))]), x)


def test_matmul_softmax_and_arg() -> None:
    b = Builder([("a", T((2, 5, 6), "f32")), ("b", T((2, 6, 7), "f32"))])
    y = b.op(ops.MatMul(), b.input(0), b.input(1))
    outputs = [("y", y), ("m", b.op(ops.ArgMax(2, False, False), y)), ("n", b.op(ops.ArgMin(1, True, True), y))]
    check(b.finish(outputs), floats(2, 5, 6), floats(2, 6, 7, seed=1))


# -- scalars --------------------------------------------------------------------------------------------------

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 1e-45, 3.5, -2.5, 0.5, 1.5], np.float32)


@pytest.mark.parametrize(
    "op",
    [ops.Relu(), ops.Clamp(-1.0, 2.0), ops.Round(), ops.Floor(), ops.Sigmoid(), ops.Tanh(), ops.Abs(), ops.Sqrt(),
     ops.Neg(), ops.Sign(), ops.IsNan(), ops.Exp(), ops.Cast("i8"), ops.Cast("f16"), ops.Cast("u16"), ops.Cast("bool"),
     ops.HardSwish()],
    ids=lambda op: op.mnemonic + str(getattr(op, "dtype", "")),
)  # fmt: skip
def test_special_floats(op: ops.base.Op) -> None:
    check(unary(op, SPECIAL, "f32"), SPECIAL, rtol=1e-6)


@pytest.mark.parametrize(
    "op",
    [ops.Minimum(), ops.Maximum(), ops.Less(), ops.Equal(), ops.GreaterEqual(), ops.Div(), ops.Mul()],
    ids=lambda op: op.mnemonic,
)
def test_special_pairs(op: ops.base.Op) -> None:
    a, c = (x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL))
    check(binary(op, a, c, "f32"), a, c)


def test_reductions_propagate_nan_wherever_it_stands() -> None:
    x = np.stack([np.roll(np.array([np.nan, 1, 5, -2], np.float32), k) for k in range(4)])
    for op in (ops.ReduceMax((1,), False), ops.ReduceMin((0,), False), ops.ReduceSum((1,), True)):
        check(unary(op, x, "f32"), x)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "u16", "i32", "u32", "i64"])
def test_integers_wrap(dtype: str) -> None:
    container = to_numpy(dtype)
    info = np.iinfo(container)
    values = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 100, 3, 77], container)
    a, c = (x.ravel() for x in np.meshgrid(values, values))
    for op in (ops.Add(), ops.Sub(), ops.Mul(), ops.Maximum(), ops.Minimum(), ops.Less(), ops.BitwiseXor()):
        check(binary(op, a, c, dtype), a, c)
    overflow = (c == -1) & (a == info.min) if dtype.startswith("i") else False
    safe = (c != 0) & ~np.asarray(overflow, np.bool_)
    for op in (ops.Div(), ops.Mod(False)):
        check(binary(op, a[safe], c[safe], dtype), a[safe], c[safe])
    for to in ("i8", "u8", "i16", "i5", "u3", "i64", "f32", "bool"):
        check(unary(ops.Cast(to), values, dtype), values)


@pytest.mark.parametrize("dtype", ["u4", "i4", "u3", "i12", "u12", "i20", "u20"])
def test_odd_widths_keep_their_storage(dtype: str) -> None:
    """uN lies zero-extended in its container and iN sign-extended, in inputs, temporaries and outputs."""
    lo, hi = int_range(dtype)
    x = ints(lo, hi, 1, 4, 5, dtype=to_numpy(dtype))
    b = Builder([("x", T(x.shape, dtype))])
    y = b.op(ops.Transpose((0, 2, 1)), b.op(ops.Maximum(), b.input(0), b.op(ops.Transpose((0, 1, 2)), b.input(0))))
    check(b.finish([("y", y), ("z", b.op(ops.ReduceMax((1,), False), y))]), x)


def test_hundreds_of_parts_are_joined() -> None:
    """As many as a recurrent layer has steps: the choice between them isn't as deep as they are many."""
    x = np.arange(300, dtype=np.int32)
    b = Builder([("x", T(x.shape, "i32"))])
    parts = [b.op(ops.Slice((n,), (1,), (1,)), b.input(0)) for n in reversed(range(300))]
    with loaded(b.finish([("y", b.op(ops.Concat(0), *parts))])) as run:
        assert run.run([x[None]])[0][0].ravel().tolist() == x[::-1].tolist()


def test_quantize_table_dequantize() -> None:
    x = np.concatenate([SPECIAL, floats(500) * 40])
    b = Builder([("x", T(x.shape, "f32"))])
    q = b.op(ops.Quantize((0.25,), (3,), "u8"), b.input(0))
    table = b.op(ops.Lut(tuple(int(v) for v in rng().integers(-8, 8, 256)), "i4"), q)
    check(b.finish([("q", q), ("t", table), ("d", b.op(ops.Dequantize((0.5,), (-1,)), table))]), x)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    check(unary(ops.Exp(), x, "f32"), x)
    check(unary(ops.ReduceSum((0,), False), x, "f32"), x)


def test_scalars_and_constants_as_outputs() -> None:
    b = Builder([("x", T((), "f32"))])
    c = b.const(np.float32(2.5))
    check(b.finish([("y", b.op(ops.Mul(), b.input(0), c)), ("c", c)]), np.asarray(np.float32(3.0)))


def test_big_loops() -> None:
    x = floats(1, 16, 300, 301)
    b = Builder([("x", T(x.shape, "f32"))])
    y = b.op(ops.Conv((2, 2), (1, 1, 1, 1), (1, 1), groups=16), b.input(0), b.const(floats(16, 1, 3, 3)))
    check(b.finish([("y", y)]), x, rtol=1e-4)


# -- running --------------------------------------------------------------------------------------------------


def mlp() -> Program:
    b = Builder([("x", T((1, 40), "f32"))])
    h = b.op(ops.Linear(), b.input(0), b.const(floats(33, 40)), b.const(floats(33, seed=1)), loc="mlp.py:7")
    h = b.op(ops.Relu(), h)
    return b.finish([("y", b.op(ops.Linear(), h, b.const(floats(5, 33, seed=2)), loc="mlp.py:9"))])


def conv_rescale() -> Program:
    b = Builder([("image", T((1, 3, 8, 8), "i8"))], "conv_rescale")
    w, bias = b.const(ints(-128, 127, 16, 3, 3, 3)), b.const(ints(-999, 999, 16, dtype=np.int32), "i22")
    acc = b.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1), x_zp=-5, acc="i22"), b.input(0), w, bias, loc="net.py:12")
    return b.finish([("y", b.op(ops.Rescale((1518500250,), (40,), "i8", output_zp=-128), acc))])


@pytest.mark.parametrize("program", [mlp, conv_rescale])
def test_golden_text(program: Callable[[], Program], golden: Callable[[str, str], None]) -> None:
    # The record names this machine.
    text = re.sub(r'(cuvil_record\[\] = )"[0-9a-f]{64}"', r'\1"…"', source_of(program(), lanes=16))
    golden(f"cpu_{program.__name__}.c", text)


def test_batches_and_threads_give_equal_answers() -> None:
    x = floats(50, 1, 40, seed=5)
    with loaded(mlp()) as run:
        alone = np.concatenate([run.run([x[i : i + 1]])[0][0] for i in range(50)])
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda _: run.run([x])[0][0], range(12)))
    assert all(np.array_equal(r, alone) for r in results)
    assert alone.std() > 0


def test_the_same_plan_gives_the_same_library() -> None:
    plan = plan_of(graph_of(mlp()))
    made = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            made.append(plan.execute(Path(folder))["model.so"])
    assert made[0] == made[1]
    assert plan.digest() == plan_of(graph_of(mlp())).digest()
    assert b"cuvil_run" in made[0]


def test_warnings_free_c(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "m.c").write_text(source_of(conv_rescale()))
    march = PROFILE.setting("march", "")  # whose vectors it may have
    command = ["gcc", "-std=c99", f"-march={march}", "-Wall", "-Wextra", "-Werror", "-O1", "-c", "m.c"]
    subprocess.run(command, cwd=tmp_path, check=True)


def _described(info: dict[str, Any], folder: Path, constants: Any = None) -> DeviceProgram:
    ports = (Port("x", (1, 40), "f32"),), (Port("y", (1, 5), "f32"),)
    return DeviceProgram("mlp", folder, *ports, info, constants or {})


def test_what_cannot_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, hw = plan_of(graph_of(mlp())), opened(PROFILE, "hw")
    info = dict(plan.info)
    with pytest.raises(ArtifactError, match=r"constant [0-9a-f]+ is missing"):
        hw.load(_described(info, tmp_path))
    with pytest.raises(DeviceError, match=r"model.so can't be loaded"):
        hw.load(_described({**info, "constants": []}, tmp_path))
    info["constants"] = []
    with pytest.raises(DeviceError, match="is for riscv64, this machine is"):
        hw.load(_described({**info, "machine": "riscv64"}, tmp_path))
    monkeypatch.setattr(device, "cpu_flags", lambda: frozenset({"sse4_1", "fma"}))
    with pytest.raises(DeviceError, match=r"compiled for x86-64-v3, but this processor lacks .*avx2"):
        hw.load(_described({**info, "march": "x86-64-v3"}, tmp_path))
    foreign = load_profile("aarch64-linux-gnu" if platform.machine() == "x86_64" else "x86_64-linux-gnu")
    with pytest.raises(CuvilError, match=r"open it with interface 'sim' \(qemu\)"):
        opened(foreign, "hw")
    with pytest.raises(CuvilError, match="no interface 'rtl'; it has"):
        opened(PROFILE, "rtl")
    missing = dataclasses.replace(PROFILE, settings={**PROFILE.settings, "cc": "no-such-cc"})
    with pytest.raises(ToolNotFound, match="no-such-cc not found, needed to compile the generated C"):
        plan_of(graph_of(mlp()), profile=missing).execute(tmp_path)


def test_the_null_device_says_so_and_gives_zeros(tmp_path: Path) -> None:
    null = opened(PROFILE, "null")
    assert "zeros" in null.name
    (y,), seconds = null.load(_described({}, tmp_path)).run([np.ones((3, 1, 40), np.float32)])
    assert (y.shape, y.any(), seconds) == ((3, 1, 5), False, 0.0)


def test_a_kernel_named_like_a_keyword() -> None:
    graph = graph_of(mlp())
    kernels = tuple(dataclasses.replace(k, name=n) for k, n in zip(graph.kernels, ("for", "sinf"), strict=True))
    text = plan_of(dataclasses.replace(graph, kernels=kernels)).files["model.c"].decode()
    assert "\n  for_1(" in text
    assert "static void for_1(" in text


def test_more_elements_than_an_int_can_index_are_refused() -> None:
    big = T((1 << 16, 1 << 15, 2), "i8")
    reason = CpuAdapter().refuses(ops.Relu(), [big], [big], PROFILE)
    assert reason is not None
    assert "4,294,967,296 elements" in reason
    assert CpuAdapter().refuses(ops.Relu(), [T((4,), "i8")], [T((4,), "i8")], PROFILE) is None


@pytest.mark.parametrize("channels", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["i8", "i32", "i64"])
def test_sums_under_a_condition_of_few_neighbours(channels: int, dtype: str) -> None:
    """GCC 12.2 takes one term's condition for its neighbour's where it unrolls the channels before it vectorises."""
    builder = Builder([("x", T((1, channels, 33), dtype))])
    program = builder.finish([("y", builder.op(ops.CumSum(2), builder.input(0)))])
    x = np.arange(channels * 33).reshape(1, channels, 33) * 7 % 11 + 1
    check(program, x.astype(to_numpy(dtype)))
