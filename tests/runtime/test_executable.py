"""Calling a program: what it accepts, what it refuses, and that the numbers don't depend on how it is called."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuvil
from cuvil_hw import dtypes
from cuvil_hw.contract import registry
from cuvil_hw.contract.device import Array, DeviceProgram, Port
from cuvil_hw.errors import ArtifactError, DeviceError, InputError
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.integer import Dequantize, Quantize
from cuvil_hw.ops.nn import Linear
from cuvil_hw.ops.pool import MaxPool
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.artifact import Artifact, assemble
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.host import HostProgram, HostStep, sample_wise
from cuvil_hw.runtime.load import load
from cuvil_hw.runtime.manifest import Manifest
from cuvil_hw.types import TensorType
from tests.support.plug_ins import announce


@dataclass
class Toy:
    """A device whose program is "each output = sum of all inputs in i64, cast": enough to follow every element."""

    profile: Mapping[str, Any]
    interface: str
    name: str = "toy"
    calls: list[int] = field(default_factory=list)
    closed: int = 0
    folder: Path | None = None
    broken: bool = False

    def load(self, program: DeviceProgram) -> Toy:
        self.program, self.folder = program, program.folder
        assert (program.folder / "top.cpp").read_bytes() == b"int x;"
        assert program.folder.stat().st_mode & 0o077 == 0
        return self

    def usable(self) -> str | None:
        return None

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        n = inputs[0].shape[0]
        self.calls.append(n)
        for array, port in zip(inputs, self.program.inputs, strict=True):
            assert array.shape == (n, *port.shape)
            assert array.dtype == dtypes.to_numpy(port.dtype)
            assert array.flags.c_contiguous
            assert array.dtype.isnative
        total = sum(a.astype(np.float64) for a in inputs)
        out = [np.array(total, dtypes.to_numpy(p.dtype)) for p in self.program.outputs]
        return ([o[:, :0] for o in out] if self.broken else out), 0.25

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {"layer": {"samples": sum(self.calls)}}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Toy]]:
    """Devices opened through a plug-in of another package, as one installed from outside."""
    opened: list[Toy] = []
    module = SimpleNamespace(
        open_device=lambda profile, interface: opened.append(Toy(profile, interface)) or opened[-1]
    )
    monkeypatch.setitem(sys.modules, "toy_plugin", module)  # type: ignore[arg-type]
    announce(monkeypatch, ("toy", "toy_plugin:open_device", "toy-package"))
    return opened


def program(
    inputs: tuple[Port, ...] = (Port("x", (1, 3), "f32"),),
    outputs: tuple[Port, ...] = (Port("y", (1, 3), "f32"),),
    constants: Mapping[str, Array] | None = None,
    **changes: Any,
) -> Artifact:
    names = tuple(p.name for p in inputs), tuple(p.name for p in outputs)
    parts: dict[str, Any] = {
        "device_inputs": inputs,
        "device_outputs": outputs,
        "prologue": HostProgram((), names[0], names[0]),
        "epilogue": HostProgram((), names[1], names[1]),
        "interface": "sim",
    }
    manifest = Manifest("m", "toy", {"clock_hz": 1.0}, inputs, outputs, **(parts | changes))
    report, sources = {"cycles": 7}, {"top.cpp": b"int x;", "blob": b"\0\xff"}
    return assemble(
        manifest, level1="module {}", report=report, constants=constants or {}, sources=sources, products={"p": b"1"}
    )


def quantized() -> Artifact:
    """f32 → quantize | device | dequantize → f32."""
    before = HostStep.of(Quantize((0.5,), (3,), "i8"), ["x"], ["q"])
    after = HostStep.of(Dequantize((0.5,), (3,)), ["r"], ["y"])
    return program(
        device_inputs=(Port("q", (1, 3), "i8"),),
        device_outputs=(Port("r", (1, 3), "i8"),),
        prologue=HostProgram((before,), ("x",), ("q",)),
        epilogue=HostProgram((after,), ("r",), ("y",)),
    )


def test_save_load_call(tmp_path: Path, toys: list[Toy]) -> None:
    path = tmp_path / "m.cuvil"
    Executable(quantized()).save(path)
    assert toys == []
    with cuvil.load(path) as exe:
        assert toys[0].interface == "sim"
        assert toys[0].profile == {"clock_hz": 1.0}
        x = np.array([[0.24, -1.0, 99.0]], np.float32)
        y = exe(x)
        assert (y.dtype, y.tolist()) == (np.float32, [[0.0, -1.0, 62.0]])
        run = exe.run(x=x)
        assert (run.samples, run.device_seconds, run.counters) == (1, 0.25, {"layer": {"samples": 2}})
        assert (exe.report, exe.ir, exe.sources) == ({"cycles": 7}, "module {}", {"top.cpp": "int x;"})
        assert (exe.name, [p.name for p in exe.inputs], [p.name for p in exe.outputs]) == ("m", ["x"], ["y"])
        folder = toys[0].folder
        assert folder is not None
        assert folder.is_dir()
    assert toys[0].closed == 1
    assert not folder.exists()
    exe.close()
    with pytest.raises(DeviceError, match="closed"):
        exe(x)
    with load(path, "null"):
        assert toys[1].interface == "null"


def test_collected_without_close(toys: list[Toy]) -> None:
    exe = Executable(program())
    exe.open()
    del exe
    gc.collect()
    assert toys[0].closed == 1
    assert toys[0].folder is not None
    assert not toys[0].folder.exists()


def test_damaged_file_is_refused_before_a_device_is_opened(tmp_path: Path, toys: list[Toy]) -> None:
    data = bytearray(container.to_bytes(program()))
    data[len(data) // 2] ^= 1
    (tmp_path / "x.cuvil").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"x\.cuvil: damaged"):
        load(tmp_path / "x.cuvil")
    assert toys == []


@given(n=st.integers(0, 9), data=st.data())
def test_a_batch_gives_what_each_sample_gives(n: int, data: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        opened: list[Toy] = []
        patch.setattr(
            registry, "open_device", lambda name, profile, kind: opened.append(Toy(profile, kind)) or opened[-1]
        )
        exe = Executable(quantized())
        flat = data.draw(st.lists(st.floats(-100, 100, width=32), min_size=3 * n, max_size=3 * n))
        x = np.array(flat, np.float32).reshape(n, 3)
        whole = exe(x)
        assert whole.shape == (n, 3)
        for i in range(n):
            assert (exe(x[i : i + 1]) == whole[i : i + 1]).all()
        exe.close()


def test_batches_of_changing_size_and_empty(toys: list[Toy]) -> None:
    exe = Executable(program())
    for n in (10, 2, 10, 0, 1):
        x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
        assert (exe(x) == x).all()
    assert toys[0].calls == [10, 2, 10, 1]


@pytest.mark.parametrize(
    ("inputs", "outputs", "shapes"),
    [
        ((Port("x", (2, 3), "f32"),), (Port("y", (2, 3), "f32"),), [(4, 3)]),
        ((Port("x", (1, 3), "f32"),), (Port("y", (3,), "f32"),), [(4, 3)]),
        ((Port("x", (1, 3), "f32"),), (Port("y", (1, 3), "f32"),), [(1, 4)]),
        ((Port("x", (1, 3), "f32"),), (Port("y", (1, 3), "f32"),), [(3,)]),
        ((Port("x", (), "f32"),), (Port("y", (), "f32"),), [(1,)]),
        ((Port("x", (1, 3), "f32"), Port("z", (1, 3), "f32")), (Port("y", (1, 3), "f32"),), [(4, 3), (2, 3)]),
        ((Port("x", (1, 3), "f32"), Port("z", (1, 3), "f32")), (Port("y", (1, 3), "f32"),), [(4, 3), (1, 3)]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    toys: list[Toy], inputs: tuple[Port, ...], outputs: tuple[Port, ...], shapes: list[tuple[int, ...]]
) -> None:
    with pytest.raises(InputError, match=r"shape|samples"):
        Executable(program(inputs, outputs))(*(np.zeros(s, np.float32) for s in shapes))
    assert toys == []


def test_any_layout_gives_the_same_numbers(toys: list[Toy]) -> None:
    port = Port("x", (1, 2, 3, 4), "f32"), Port("y", (1, 2, 3, 4), "f32")
    exe = Executable(program(port[:1], port[1:]))
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    channels_last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    flipped = x[:, ::-1, :, ::-1].copy()[:, ::-1, :, ::-1]
    strided = np.repeat(x, 2, axis=3)[..., ::2]
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    frozen = x.copy()
    frozen.flags.writeable = False
    for variant in (np.asfortranarray(x), channels_last, flipped, strided, odd, frozen, x.astype(">f4"), x.tolist()):
        y = exe(variant)
        assert (y == x).all()
        assert y.flags.writeable
        assert not np.may_share_memory(y, x)


def test_results_are_fresh_even_when_nothing_was_done(toys: list[Toy]) -> None:
    """The model hands its input, a constant and one result twice straight to its outputs."""
    outs = tuple(Port(n, (1, 3), "f32") for n in ("a", "b", "c", "d"))
    artifact = program(
        outputs=outs,
        device_outputs=(Port("r", (1, 3), "f32"),),
        epilogue=HostProgram((), ("r",), ("x", "k", "r", "r")),
        constants={"k": np.full((1, 3), 5, np.float32)},
    )
    exe = Executable(artifact)
    x = np.ones((2, 3), np.float32)
    results = exe(x)
    for result, value in zip(results, (1, 5, 1, 1), strict=True):
        assert result.tolist() == [[value] * 3] * 2
        result[:] = -1
        assert x.tolist() == [[1] * 3] * 2
    assert exe(x)[1].tolist() == [[5] * 3] * 2


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("f32", np.float64([[0.1, 2, 3]]), [[np.float32(0.1), 2, 3]]),
        ("f32", np.float16([[0.5, 2, 3]]), [[0.5, 2, 3]]),
        ("f32", [[1, 2, 1 << 24]], [[1, 2, 1 << 24]]),
        ("i8", [[1, -128, 127]], [[1, -128, 127]]),
        ("i32", np.uint16([[65535, 0, 1]]), [[65535, 0, 1]]),
        ("i4", np.int8([[-8, 7, 0]]), [[-8, 7, 0]]),
        ("bool", [[1, 0, 1]], [[True, False, True]]),
        ("f32", np.float64([[np.inf, -np.inf, 1]]), [[np.inf, -np.inf, 1]]),
    ],
)
def test_lossless_conversions(toys: list[Toy], dtype: str, value: Any, expected: Any) -> None:
    y = Executable(program((Port("x", (1, 3), dtype),), (Port("y", (1, 3), dtype),)))(value)
    assert y.dtype == dtypes.to_numpy(dtype)
    assert y.tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("i8", np.float32([[1, 2, 3]])),
        ("i8", np.int64([[1, 2, 3]])),
        ("i8", [[1.0, 2.0, 3.0]]),
        ("i8", [[1, 2, 128]]),
        ("u8", [[1, 2, -1]]),
        ("i64", [[1, 2, 1 << 63]]),
        ("i64", [[1 << 63] * 3]),
        ("i4", np.int8([[-8, 8, 0]])),
        ("f32", np.int64([[1, 2, 3]])),
        ("f32", [[1, 2, (1 << 24) + 1]]),
        ("f64", [[1, 2, (1 << 53) + 1]]),
        ("f32", np.float64([[1e300, 0, 0]])),
        ("f16", np.float32([[1, 2, 3]])),
        ("bool", [[1, 0, 2]]),
        ("f32", np.array([["a", "b", "c"]])),
        ("f32", np.complex64([[1, 2, 3]])),
        ("f32", [[1, 2], [3]]),
        ("f32", None),
        ("f32", np.ma.masked_array([[1.0, 2, 3]], mask=[[0, 1, 0]])),
    ],
)
def test_lossy_conversions_are_refused(toys: list[Toy], dtype: str, value: Any) -> None:
    with pytest.raises(InputError, match="input 'x'"):
        Executable(program((Port("x", (1, 3), dtype),), (Port("y", (1, 3), dtype),)))(value)


def test_inputs_by_name(toys: list[Toy]) -> None:
    ports = Port("a:0", (1, 2), "f32"), Port("self", (1, 2), "f32")
    exe = Executable(program(ports, (Port("y", (1, 2), "f32"),)))
    a, b = np.float32([[1, 2]]), np.float32([[10, 20]])
    for call in (
        lambda: exe(a, b),
        lambda: exe(a, self=b),
        lambda: exe({"self": b, "a:0": a}),
        lambda: exe(**{"a:0": a}, self=b),
    ):
        assert call().tolist() == [[11, 22]]
    with pytest.raises(InputError, match="'self' is missing; the inputs are: a:0, self"):
        exe(a)
    with pytest.raises(InputError, match="no input 'c'"):
        exe(a, b, c=b)
    with pytest.raises(InputError, match="by position and by name"):
        exe(a, b, self=b)
    with pytest.raises(InputError, match="3 inputs given"):
        exe(a, b, b)


def test_torch_in_torch_out(toys: list[Toy]) -> None:
    torch = pytest.importorskip("torch")
    port = Port("x", (1, 2, 3, 4), "f32"), Port("y", (1, 2, 3, 4), "f32")
    exe = Executable(program(port[:1], port[1:]))
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    for variant in (x, x.clone().requires_grad_(), x.to(memory_format=torch.channels_last), x.double(), x.bfloat16()):
        y = exe(variant)
        assert isinstance(y, torch.Tensor)
        assert not y.requires_grad
        assert torch.equal(y, x)
    assert torch.equal(exe(x.repeat(3, 1, 1, 1)), x.repeat(3, 1, 1, 1))
    with pytest.raises(InputError, match="input 'x'"):
        exe(x.to_sparse())
    with pytest.raises(InputError, match="input 'x'"):
        exe(x.to("meta"))
    with pytest.raises(InputError, match="expected f32"):
        exe(x.long())


def test_threads_and_close(toys: list[Toy]) -> None:
    exe = Executable(quantized())
    wrong: list[Any] = []

    def work(seed: int) -> None:
        x = np.float32(np.random.default_rng(seed).integers(-20, 20, (7, 3)))
        for _ in range(30):
            if not (exe(x) == x).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    exe.close()
    assert wrong == []
    assert len(toys) == 1
    assert toys[0].closed == 1


def test_close_waits_for_a_running_call(toys: list[Toy]) -> None:
    exe = Executable(program())
    exe.open()
    entered, go, order = threading.Event(), threading.Event(), []
    run = toys[0].run

    def slow(inputs: Sequence[Array]) -> tuple[list[Array], float]:
        entered.set()
        assert go.wait(10)
        order.append("ran")
        return run(inputs)

    toys[0].run = slow  # type: ignore[method-assign]
    caller = threading.Thread(target=exe, args=(np.zeros((1, 3), np.float32),))
    caller.start()
    assert entered.wait(10)
    closer = threading.Thread(target=lambda: (exe.close(), order.append("closed")))
    closer.start()
    closer.join(0.1)
    assert toys[0].closed == 0
    go.set()
    caller.join(10)
    closer.join(10)
    assert order == ["ran", "closed"]


def test_a_device_that_gives_a_wrong_shape(toys: list[Toy]) -> None:
    exe = Executable(program())
    exe.open()
    toys[0].broken = True
    with pytest.raises(DeviceError, match="'y'"):
        exe(np.zeros((1, 3), np.float32))


def test_artifact_for_another_machine(toys: list[Toy]) -> None:
    foreign = program(abi={"machine": "vax", "system": "vms"})
    with pytest.raises(ArtifactError, match="was compiled for machine vax"):
        Executable(foreign, "hw").open()
    Executable(foreign, "sim").open()


def test_host_programs_that_do_not_fit() -> None:
    step = HostStep.of(Quantize((0.5,), (3,), "i8"), ["x"], ["q"])

    def check(match: str, *steps: HostStep, gives: str = "q", dtype: str = "i8") -> None:
        prologue = HostProgram(steps, ("x",), (gives,))
        with pytest.raises(ArtifactError, match=match):
            Executable(program(device_inputs=(Port("q", (1, 3), dtype),), prologue=prologue))

    check("unknown op", replace(step, op="nonsense"))
    check("has no attribute", replace(step, attrs={**step.attrs, "extra": 1}))
    check("wrong attributes", replace(step, attrs={}))
    check("reads 'z'", replace(step, inputs=("z",)))
    check("defines 'x' again", replace(step, outputs=("x",)))
    check("has 1 result", replace(step, outputs=("q", "r")))
    check("'nothing'", step, gives="nothing")
    check("hands on", step, dtype="i16")


@pytest.mark.parametrize(
    ("op", "shapes", "expected"),
    [
        (Quantize((0.5,), (3,), "i8"), [(1, 3)], True),
        (Quantize((0.5, 0.25, 1.0), (0,), "i8", axis=1), [(1, 3)], True),
        (Quantize((0.5,), (3,), "i8"), [(2, 3)], False),
        (Quantize((0.5,), (3,), "i8"), [()], False),
        (Quantize((0.5,), (3,), "i8", axis=0), [(1, 3)], True),
        (Linear(), [(1, 3), (1, 3)], False),
        (MaxPool((2,), (1,), (0, 0), (1,)), [(1, 2, 3)], False),
    ],
)
def test_ops_that_act_on_each_sample_alone(op: Op, shapes: list[tuple[int, ...]], expected: bool) -> None:
    assert sample_wise(op, [TensorType(s, "f32") for s in shapes]) is expected


def test_ops_that_mix_samples_run_one_sample_at_a_time(toys: list[Toy]) -> None:
    """A host step that needs its whole shape: linear with a constant weight, evaluated per sample."""
    weight = np.float32([[1, 2, 3], [4, 5, 6]])
    step = HostStep.of(Linear(), ["r", "w"], ["y"])
    out = Port("y", (1, 2), "f32")
    exe = Executable(
        program(
            outputs=(out,),
            device_outputs=(Port("r", (1, 3), "f32"),),
            epilogue=HostProgram((step,), ("r",), ("y",)),
            constants={"w": weight},
        )
    )
    x = np.float32([[1, 0, 0], [0, 1, 0], [1, 1, 1]])
    assert exe(x).tolist() == (x @ weight.T).tolist()
