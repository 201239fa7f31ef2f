"""compile(): the whole way of a model, its choices of precision, its errors, and that it gives the same bytes again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw import api, dtypes, ops
from cuvil_hw.adapters import registry
from cuvil_hw.adapters.base import Offer
from cuvil_hw.adapters.cpu.adapter import CpuAdapter
from cuvil_hw.adapters.cpu.form import LoopNest
from cuvil_hw.compile.golden import SAMPLES, golden
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.errors import CuvilError, DoesNotFit, InputError, ProfileError, ToolNotFound, Unsupported
from cuvil_hw.ir.program import Builder, Program, evaluate, parse
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType

ROOT = Path(__file__).resolve().parents[2]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return torch.softmax(self.head(y.flatten(1)), 1)


X = torch.randn(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
DATA = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def on_zynq() -> Executable:
    return cuvil.compile(Net(), "pynq-z2", X, DATA)


@pytest.fixture(scope="module")
def on_cpu() -> Executable:
    return cuvil.compile(Net(), "cpu", X)


def meaning(executable: Executable, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the artifact's own IR and weights say in NumPy, sample by sample."""
    store = ConstantStore()
    for digest, array in executable.artifact.constants().items():
        store._arrays[digest] = array
    program = parse(executable.ir, store)
    return np.concatenate([evaluate(program, [x[i : i + 1]])[0] for i in range(len(x))])


@pytest.mark.needs("gcc")
def test_float_on_the_processor(on_cpu: Executable) -> None:
    with torch.no_grad():
        wanted = Net().eval()(DATA)
    got = on_cpu(DATA)
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(on_cpu(DATA.numpy()), got.numpy())
    assert on_cpu.report["precision"] == "float32"
    assert (on_cpu.interface, on_cpu.name) == ("hw", "Net")
    assert "model.c" in on_cpu.sources


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("precision", ["int8", "int5", "fixed<12,4>"])
def test_integers_on_the_processor_are_those_of_the_ir(precision: str) -> None:
    executable = cuvil.compile(Net(), "cpu", X, DATA, precision)
    np.testing.assert_allclose(executable(DATA.numpy()), meaning(executable, DATA.numpy()), rtol=1e-6)
    assert "dequantize" in executable.ir
    assert executable.report["precision"] == precision


@pytest.mark.must_run
@pytest.mark.needs("g++")
def test_simulated_fpga_gives_the_bits_of_the_ir(on_zynq: Executable) -> None:
    """From torch through quantization, HLS C++ and the simulator, softmax on the processor included."""
    assert on_zynq.interface == "sim"
    np.testing.assert_array_equal(on_zynq(DATA.numpy()), meaning(on_zynq, DATA.numpy()))
    with torch.no_grad():
        wanted = Net().eval()(DATA)
    assert (on_zynq(DATA) - wanted).abs().max() < 0.05


def test_the_report_of_a_design(on_zynq: Executable) -> None:
    report = on_zynq.report
    board = {"part": "xc7z020clg400-1", "board": "tul.com.tw:pynq-z2:part0:1.0"}
    assert report["target"] == {"name": "pynq-z2", "adapter": "zynq", **board}
    assert (report["precision"], report["style"], report["clock_hz"]) == ("int8", "spatial", 1e8)
    fused = ["+".join(layer["ops"]) for layer in report["layers"]]
    assert fused == ["conv+rescale", "max_pool", "reshape+linear"]
    assert all(layer["loc"].startswith("test_api.py:") for layer in report["layers"])
    for total in report["totals"]:
        assert 0 <= total["used"] <= total["budget"] <= total["limit"]
        assert total["used"] >= sum(layer["use"].get(total["axis"], 0.0) for layer in report["layers"])
    host = [f"{h['where']} {h['op']}" for h in report["host"]]
    assert host == ["before quantize", "after dequantize", "after softmax"]
    assert "Inferences per second" in report.html()
    shown = on_zynq._repr_html_()
    assert "&lt;Executable " in shown
    assert shown.endswith(report._repr_html_())


def test_saved_and_loaded_it_is_the_same(on_cpu: Executable, tmp_path: Path) -> None:
    on_cpu.save(tmp_path / "net.cuvil")
    with cuvil.load(tmp_path / "net.cuvil") as loaded:
        torch.testing.assert_close(loaded(DATA), on_cpu(DATA), rtol=0, atol=0)
        assert loaded.report == on_cpu.report
        assert (loaded.ir, loaded.sources) == (on_cpu.ir, on_cpu.sources)


def test_another_process_gives_the_same_bytes(on_zynq: Executable, tmp_path: Path) -> None:
    """Hash seeds, dictionary orders and paths leave no trace in an artifact."""
    on_zynq.save(tmp_path / "here.cuvil")
    code = (
        "import sys, cuvil; sys.path.insert(0, sys.argv[1]); from test_api import DATA, Net, X; "
        "cuvil.compile(Net(), 'pynq-z2', X, DATA).save(sys.argv[2])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path / "there.cuvil")]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    assert (tmp_path / "here.cuvil").read_bytes() == (tmp_path / "there.cuvil").read_bytes()
    assert str(ROOT).encode() not in (tmp_path / "here.cuvil").read_bytes()


def test_every_step_is_announced_once() -> None:
    seen: list[tuple[str, int, int]] = []
    cuvil.compile(Net(), "pynq-z2", X, DATA, interface="null", progress=lambda *step: seen.append(step))
    assert seen == [(name, i, len(api.STEPS)) for i, name in enumerate(api.STEPS)]


def test_the_null_device_and_a_name(tmp_path: Path) -> None:
    executable = cuvil.compile(Net(), "pynq-z2", X, DATA, name="édge net", interface="null")
    assert (executable.interface, executable.name) == ("null", "édge net")
    assert executable(X).shape == (1, 3)
    executable.save(tmp_path / "x.cuvil")
    assert cuvil.load(tmp_path / "x.cuvil").interface == "null"


@pytest.mark.parametrize(
    ("target", "calibration", "precision", "said"),
    [
        ("pynq-z2", None, None, r"Net is a float model and pynq-z2 is made for integers.*calibration=….*100 samples"),
        ("cpu", None, "int8", r"precision int8 was asked for.*calibration=…"),
        ("cpu", DATA, None, r"calibration was given, but Net stays float32.*precision='int8'"),
        ("pynq-z2", DATA, "float32", r"float32 quantizes nothing"),
        ("cpu", DATA, "int9", r"unknown precision 'int9'"),
    ],
)
def test_precision_is_never_guessed(target: str, calibration: Any, precision: str | None, said: str) -> None:
    with pytest.raises(CuvilError, match=said):
        cuvil.compile(Net(), target, X, calibration, precision)


def test_floats_that_the_fabric_refuses_are_all_listed() -> None:
    with pytest.raises(Unsupported, match="f64") as caught:
        cuvil.compile(Net().double(), "pynq-z2", X.double(), precision="float32")
    assert {r.op for r in caught.value.refusals} >= {"conv", "max_pool", "linear"}


@pytest.fixture(scope="module")
def qdq(models: Path) -> str:
    return str(models / "kws_ref_model.onnx")


def test_a_quantized_model_is_taken_as_it_is(qdq: str) -> None:
    executable = cuvil.compile(qdq, "pynq-z2", interface="null")
    assert executable.report["precision"] == "int8"
    assert cuvil.compile(qdq, "pynq-z2", precision="int8", interface="null").report == executable.report


@pytest.mark.parametrize("precision", ["float32", "int4", "fixed<8,4>"])
def test_a_quantized_model_has_its_precision(qdq: str, precision: str) -> None:
    with pytest.raises(CuvilError, match=rf"is quantized already \(i8.*precision {precision} can't be had"):
        cuvil.compile(qdq, "pynq-z2", precision=precision)


def test_calibration_by_name_or_as_statistics() -> None:
    first = cuvil.compile(Net(), "pynq-z2", X, {"x": DATA.numpy()}, interface="null")
    assert first.ir == cuvil.compile(Net(), "pynq-z2", X, DATA, interface="null").ir
    with pytest.raises(InputError, match="calibration names image; the inputs of Net are x"):
        cuvil.compile(Net(), "pynq-z2", X, {"image": DATA.numpy()})


def board(tmp_path: Path, resources: str) -> Path:
    path = tmp_path / "small.yaml"
    head = "schema: cuvil-profile/1\nname: small\nextends: pynq-z2\nresources:\n"
    path.write_text(head + resources, encoding="utf-8")
    return path


def test_what_does_not_fit_names_layer_axis_and_a_board(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit) as caught:
        cuvil.compile(Net(), board(tmp_path, "  lut: {limit: 900}\n"), X, DATA)
    error = caught.value
    assert (error.axis, error.limit, error.target) == ("lut", 630.0, "small")
    assert error.need > 630
    assert error.layer in ("conv_0", "max_pool_1", "linear_2")
    assert "test_api.py:" in error.nearest
    assert "it fits pynq-z2, the smallest of the built-in targets that are large enough" in error.nearest
    assert "the constants are 0.0" in error.besides
    assert "Mbit, the memories on the chip 5.16 Mbit" in error.besides


def test_a_smaller_board_gets_a_smaller_design(tmp_path: Path) -> None:
    def lut(target: str | Path) -> tuple[float, float]:
        report = cuvil.compile(Net(), target, X, DATA, interface="null").report
        return report["totals"][0]["used"], report["bottleneck"]["cycles"]

    (much, fast), (little, slow) = lut("pynq-z2"), lut(board(tmp_path, "  lut: {limit: 2350}\n"))
    assert little <= 1645 < much
    assert slow > fast


def test_wrong_targets_and_models(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="did you mean pynq-z2"):
        cuvil.compile(Net(), "pynq-z", X)
    with pytest.raises(ProfileError, match=r"nowhere\.yaml"):
        cuvil.compile(Net(), tmp_path / "nowhere.yaml", X)
    with pytest.raises(CuvilError, match="no plug-in 'none'"):
        cuvil.compile(Net(), replace(load_profile("cpu"), adapter="none"), X)
    with pytest.raises(CuvilError, match="example inputs are needed"):
        cuvil.compile(Net(), "cpu")
    with pytest.raises(CuvilError, match="can't load a int"):
        cuvil.compile(3, "cpu")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = load_profile("cpu")
    with pytest.raises(ToolNotFound, match="no-such-gcc not found, needed to compile the generated C"):
        cuvil.compile(Net(), replace(profile, settings={**profile.settings, "cc": "no-such-gcc"}), X)


class Unpriced(LoopNest):
    """Has no cost for pools."""

    def estimate(self, profile: Any) -> Estimate:
        if "max_pool" in self.kernel.ops:
            raise CuvilError("no cost model for pools")
        return super().estimate(profile)


class Picky(CpuAdapter):
    def offer(self, graph: Any, profile: Any) -> Offer:
        return Offer([[Unpriced(k, "", 1, {}, {})] for k in graph.kernels])


class Lazy(CpuAdapter):
    def offer(self, graph: Any, profile: Any) -> Offer:
        return Offer([() for _ in graph.kernels])


def test_errors_of_an_adapter_name_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load_adapter", lambda name: Picky())
    with pytest.raises(CuvilError, match="no cost model") as caught:
        cuvil.compile(Net(), "cpu", X)
    assert caught.value.__notes__[0].startswith("at layer max_pool_1 (test_api.py:")
    monkeypatch.setattr(registry, "load_adapter", lambda name: Lazy())
    with pytest.raises(CuvilError, match="adapter cpu has no form for layer conv_0"):
        cuvil.compile(Net(), "cpu", X)


@pytest.mark.parametrize("package", ["xdsl", "ortools"])
def test_the_base_install_says_what_compiling_needs(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ToolNotFound, match=r"Python package .*pip install .*\[compiler\]"),
        api.needs_compiler("compile a model"),
    ):
        raise ModuleNotFoundError(f"No module named '{package}'", name=f"{package}.ir")
    with pytest.raises(ModuleNotFoundError, match=r"cuvil_hw\.nope"), api.needs_compiler("compile a model"):
        raise ModuleNotFoundError("No module named 'cuvil_hw.nope'", name="cuvil_hw.nope")


def table(dtype: str) -> Program:
    b = Builder([("i", TensorType((3,), dtype))])
    return b.finish([("y", b.op(ops.Gather(0), b.const(np.arange(5, dtype=np.int8)), b.input(0)))])


def integers(kinds: Sequence[str]) -> Program:
    b = Builder([(f"x{n}", TensorType((1, 50), kind)) for n, kind in enumerate(kinds)])
    return b.finish([(f"y{n}", b.op(ops.Reshape((50,)), b.input(n))) for n in range(len(kinds))])


def test_golden_vectors_cover_each_range_and_match() -> None:
    kinds = ("i8", "u8", "i4", "i32", "i64", "u64", "bool")
    drawn = golden(integers(kinds))
    for kind, x, y in zip(kinds, drawn.inputs, drawn.outputs, strict=True):
        np.testing.assert_array_equal(x.reshape(y.shape), y)
        assert x.shape == (SAMPLES, 1, 50)
        low, high = dtypes.int_range(kind)
        assert low <= x.min() < (low + high) / 2 < x.max() <= high
    again = golden(integers(kinds))
    assert all((a == b).all() for a, b in zip(drawn.inputs, again.inputs, strict=True))


def test_golden_vectors_of_indices_and_floats() -> None:
    indices = golden(table("i8"))
    assert not indices.inputs[0].any()
    assert not indices.outputs[0].any()
    drawn = golden(integers(["f32"]))
    assert 0.5 < drawn.inputs[0].std() < 2
    np.testing.assert_array_equal(drawn.inputs[0].reshape(SAMPLES, 50), drawn.outputs[0])


@pytest.mark.needs("g++")
def test_a_model_of_integers_alone_needs_no_precision(tmp_path: Path) -> None:
    import onnx
    from onnx import helper

    nodes = [helper.make_node("Max", ["a", "b"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.INT32, [1, 6]) for n in ("a", "b", "y")]
    graph = helper.make_graph(nodes, "ints", ports[:2], ports[2:])
    path = tmp_path / "ints.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    a, b = np.int32([[1, -2, 3, 2**30, -7, 0]]), np.int32([[0, 5, 3, 1, -9, -1]])
    executable = cuvil.compile(path, "pynq-z2")
    assert executable.report["precision"] == "integers"
    np.testing.assert_array_equal(executable(a, b), np.maximum(a, b) + b)


@pytest.mark.parametrize("target", ["cpu", "pynq-z2"])
def test_a_model_with_nothing_to_quantize_is_not_compiled_as_floats(target: str) -> None:
    with pytest.raises(CuvilError, match=r"precision int8 was asked for, but nothing in the model can be quantized"):
        cuvil.compile(nn.ReLU(), target, X, DATA, precision="int8")
