"""The simulated MLU: hand-written BANG C, right and wrong. Every fault is found, with kernel, line and rule."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw.adapters.mlu import shim
from cuvil_hw.adapters.mlu.abi import CNRT4, CNRT6
from cuvil_hw.adapters.mlu.device import MODEL, open_device
from cuvil_hw.adapters.mlu.shim import Runtime
from cuvil_hw.adapters.mlu.simulator import build_libraries, chip
from cuvil_hw.compile.pack import profile_data
from cuvil_hw.contract.device import DeviceProgram, Port
from cuvil_hw.errors import BuildFailed, DeviceError, ToolNotFound
from cuvil_hw.target.profile import load_profile
from tests.support.mlu_runner import CARDS

pytestmark = [pytest.mark.needs("g++"), pytest.mark.must_run]
X = np.arange(128, dtype=np.float32)


def run(
    body: str, card: str = "mlu270", tasks: int = 1, head: str = "", linkage: str = 'extern "C" '
) -> np.ndarray[Any, Any]:
    """`body`: of a kernel k(x, y) on 128 floats each; its first line is line 4."""
    text = f'#include "mlu.h"\n{head}\n{linkage}__mlu_entry__ void k(const float *x, float *y) {{\n{body}\n}}\n'
    info = {
        "kernels": [{"symbol": "k", "tasks": tasks, "args": ["x", "y"]}],
        "buffers": {"x": {"role": "input", "bytes": 512}, "y": {"role": "output", "bytes": 512}},
        "workspace_bytes": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MODEL).write_text(text)
        port = (128,), "f32"
        program = DeviceProgram("k", Path(folder), (Port("x", *port),), (Port("y", *port),), info)
        loaded = open_device(profile_data(load_profile(card)), "sim").load(program)
        try:
            return loaded.run([X[None]])[0][0][0]
        finally:
            loaded.close()


IN = "__nram__ __attribute__((aligned(128))) float a[128]; __memcpy(a, x, 512, GDRAM2NRAM);"
OUT = "__memcpy(y, a, 512, NRAM2GDRAM);"


@pytest.mark.parametrize("card", CARDS)
def test_right_kernels_run(card: str) -> None:
    assert np.array_equal(
        run(f"{IN}\n__bang_mul_scalar(a, a, 3.0f, 128); __bang_add(a, a, a, 128);\n{OUT}", card), X * 6
    )
    # taskId, and a strided copy: every task moves its quarter of each row of 64
    strided = (
        "__nram__ float t[32];\nconst float *from = x + taskId * 16;\n__memcpy(t, from, 64, GDRAM2NRAM, 64, 256, 1);\n"
    )
    back = "__memcpy(y + taskId * 16, t, 64, NRAM2GDRAM, 256, 64, 1);"
    assert np.array_equal(run(strided + back, card, tasks=4), X)


FAULTS = {
    "misaligned": ("{IN}\n__nram__ float b[128];\n__memcpy(b, a + 1, 256, NRAM2NRAM);", "model.mlu:6", "alignment"),
    "direction": ("{IN}\n__memcpy(y, a, 512, GDRAM2NRAM);", "model.mlu:5", "copy direction"),
    "wram source": ("__wram__ float w[64];\n__memcpy(w, x, 256, GDRAM2NRAM);", "model.mlu:5", "copy direction"),
    "wram address": ("__wram__ float w[64];\n__memcpy(w + 1, x, 64, GDRAM2WRAM);", "model.mlu:5", "alignment"),
    "unwritten copy": ("__nram__ float a[128];\n{OUT}", "model.mlu:5", "read before write"),
    "unwritten load": (
        "__nram__ float a[128];\n__memcpy(a, x, 256, GDRAM2NRAM);\nfloat s = 0;\n"
        "for (int i = 0; i < 65; ++i)\n  s += a[i];\n__memcpy(y, a, (int)s ? 256 : 4, NRAM2GDRAM);",
        "model.mlu:8", "read before write",
    ),
    "part of a copy": ("__nram__ float a[128];\n__memcpy(a, x, 256, GDRAM2NRAM);\n{OUT}", "model.mlu:6", "read before"),
    "past gdram": ("__nram__ float b[256];\n\n__memcpy(b, x, 516, GDRAM2NRAM);", "model.mlu:6", "out of bounds"),
    "gdram scalar": ("{IN}\nint n = (int)a[127] + 1;\ny[n] = 1.0f;", "model.mlu:6", "out of bounds"),
    "past an array": ("{IN}\n__nram__ float b[8];\n__memcpy(b, x, 64, GDRAM2NRAM);", "model.mlu:6", "out of bounds"),
    "index": ("{IN}\nint n = (int)a[127] + 1;\na[n] = 1.0f;", "model.mlu:6", "out of bounds"),
    "capacity": ("__nram__ float a[1 << 18]; __memcpy(a, x, 4, GDRAM2NRAM);", "model.mlu:3", "capacity.*1048576 bytes"),
    "segments": ("{IN}\n__memcpy(y, a, 4, NRAM2GDRAM, 4, 4, 70000);", "model.mlu:5", "copy segments"),
    "negative": ("{IN}\n__memcpy(y, a, -4, NRAM2GDRAM);", "model.mlu:5", "copy size"),
    "vector on gdram": ("{IN}\n__bang_add(y, a, a, 128);", "model.mlu:5", "vector operand"),
    "vector of none": ("{IN}\n__bang_add(a, a, a, 0);", "model.mlu:5", "vector size"),
}  # fmt: skip


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_kernel_line_and_rule(fault: str, card: str) -> None:
    body, line, rule = FAULTS[fault]
    with pytest.raises(DeviceError, match=rf"kernel k, {line}, task 0: {rule}"):
        run(body.replace("{IN}", IN).replace("{OUT}", OUT), card)


@pytest.mark.parametrize(
    ("body", "rule"),
    [("__bang_add(a, a, a, 100);", "vector size"), ("__bang_add(a + 4, a + 4, a + 4, 64);", "alignment")],
)
def test_vectors_have_stricter_rules_on_the_older_chip(body: str, rule: str) -> None:
    run(f"{IN}\n{body}\n{OUT}", "mlu370-x4")
    with pytest.raises(DeviceError, match=rf"kernel k, model.mlu:5, task 0: {rule}.*on this chip"):
        run(f"{IN}\n{body}\n{OUT}", "mlu270")


def test_every_task_begins_with_memory_that_nothing_has_written() -> None:
    body = f"__nram__ float a[128];\nif (taskId == 0) __memcpy(a, x, 512, GDRAM2NRAM);\n{OUT}"
    with pytest.raises(DeviceError, match=r"model.mlu:6, task 1: read before write: a\[byte 0 of 512\]"):
        run(body, tasks=2)


def test_what_is_not_simulated_does_not_compile() -> None:
    with pytest.raises(BuildFailed, match="__bang_active_exp"):
        run(f"{IN}\n__bang_active_exp(a, a, 128);\n{OUT}")


def test_the_calls_of_the_vendor_libraries_report_wrong_use() -> None:
    for card, abi in zip(CARDS, (CNRT4, CNRT6), strict=True):
        sizes = chip(profile_data(load_profile(card)))
        runtime = Runtime(abi, build_libraries(sizes))
        runtime.do("open", ordinal=0)
        with pytest.raises(DeviceError, match=r"there is one device"):
            runtime.do("open", ordinal=1)
        with pytest.raises(DeviceError, match=r"cnrtMalloc gave \d+ .*out of GDRAM"):
            runtime.do("allocate", bytes=sizes.gdram_bytes + 1)
        address = runtime.do("allocate", bytes=64)["address"]
        data = np.zeros(32, np.float32)
        with pytest.raises(DeviceError, match=r"128 bytes to outside every allocation"):
            runtime.do("upload", device=address, host=data.ctypes.data, bytes=128)
        with pytest.raises(DeviceError, match=r"copy of 4 bytes from outside"):
            runtime.do("download", device=data.ctypes.data, host=address, bytes=4)
        runtime.do("free", address=address)
        with pytest.raises(DeviceError, match="which is no allocation"):
            runtime.do("free", address=address)


def test_tables_are_told_apart_from_libraries_of_another_generation() -> None:
    folder = build_libraries(chip(profile_data(load_profile("mlu270"))))
    with pytest.raises(DeviceError, match=r"lack .*cnrtSetDevice.*not CNRT 6.x"):
        Runtime(CNRT6, folder)


@pytest.mark.parametrize("card", CARDS)
def test_missing_tools_are_named(card: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NEUWARE_HOME", raising=False)
    hw = open_device(profile_data(load_profile(card)), "hw")
    (tmp_path / MODEL).write_text("")
    info: dict[str, Any] = {"kernels": [], "buffers": {}, "workspace_bytes": 0}
    with pytest.raises(ToolNotFound, match=r"libcnrt.so not found, needed to run on an MLU.*NEUWARE_HOME"):
        hw.load(DeviceProgram("k", tmp_path, (), (), info))
    assert "libcnrt.so not found" in str(hw.usable())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolNotFound, match=r"g\+\+ not found, needed to simulate an MLU; install it"):
        open_device(profile_data(load_profile(card)), "sim").load(DeviceProgram("k", tmp_path, (), (), info))


def test_the_shim_imports_nothing_but_the_standard_library() -> None:
    assert not {"numpy", "xdsl"} & set(vars(shim))


def test_kernels_are_found_as_the_cards_loader_finds_them() -> None:
    """By the symbol of their entry: C++ gives another name to one that isn't extern "C"."""
    with pytest.raises(DeviceError, match=r'no kernel k in this module; is its entry extern "C"'):
        run(f"{IN}{OUT}", "mlu370-x4", linkage="")


def test_every_thread_chooses_its_device() -> None:
    """CNRT 4 has a current device per thread: a program that was loaded in one thread runs in another."""
    text = f'#include "mlu.h"\n\nextern "C" __mlu_entry__ void k(const float *x, float *y) {{\n{IN}{OUT}\n}}\n'
    info = {
        "kernels": [{"symbol": "k", "tasks": 1, "args": ["x", "y"]}],
        "buffers": {"x": {"role": "input", "bytes": 512}, "y": {"role": "output", "bytes": 512}},
        "workspace_bytes": 0,
    }
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        (Path(folder) / MODEL).write_text(text)
        program = DeviceProgram("k", Path(folder), (Port("x", (128,), "f32"),), (Port("y", (128,), "f32"),), info)
        loaded = open_device(profile_data(load_profile("mlu270")), "sim").load(program)
        np.testing.assert_array_equal(pool.submit(loaded.run, [X[None]]).result()[0][0][0], X)
        pool.submit(loaded.close).result()


def test_a_fat_binary_is_told_from_other_bytes() -> None:
    runtime = Runtime(CNRT6, build_libraries(chip(profile_data(load_profile("mlu370-x4")))))
    context = runtime.do("open", ordinal=0)
    runtime.do("enter", **context)
    with pytest.raises(DeviceError, match=r"cnModuleLoadFatBinary gave 100300 .*no fat binary"):
        runtime.do("load", image=np.zeros(64, np.uint8).ctypes.data)


def test_modules_loaded_one_after_another_are_not_taken_for_each_other() -> None:
    """A library that stayed loaded was found again under the number of its file."""
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def forward(self, t: Any) -> Any:
            return self.function(t)

    x = torch.randn(3, 6)
    for function in (lambda t: t + 1.5, torch.abs, lambda t: t.softmax(-1), lambda t: torch.tanh(t) * 2, torch.neg):
        with cuvil.compile(Model(function).eval(), "mlu370-x4", example_inputs=(x,)) as program:
            np.testing.assert_allclose(program(x.numpy()), function(x).numpy(), atol=1e-5)
