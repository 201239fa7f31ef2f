"""Float models whole on every target, against ONNX Runtime and PyTorch; tools/float_models.py prints the table."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.adapters.cuda.measure import measure
from cuvil_hw.errors import DoesNotFit, ToolNotFound
from tools import float_models, same_bits
from tools.float_models import TOLERANCE, Case
from tools.same_bits import Device

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++", "ortools", "onnx", "torch")]
Array = np.ndarray[Any, Any]
# (target, interface): the emulator where it is installed
ZYNQ = ("zcu104", "sim")
SYCL = ("agilex-agfb027", "sim-sycl")
EMULATOR = ("agilex-agfb027", "sim")


def check(device: tuple[str, str], case: Case) -> None:
    target, interface = device
    program = cuvil.compile(case.model, target, case.example, precision="float32", interface=interface)
    assert all(s.op in ("reshape", "transpose", "broadcast_to") for s in program.artifact.manifest.prologue.steps)
    try:
        with program:
            got = np.asarray(program(case.x))
    except ToolNotFound as e:
        pytest.skip(str(e))
    assert float_models.error_of(got, case.wanted) <= TOLERANCE


SHARED = (
    ("mnist_conv", ZYNQ),
    ("mnist_conv", EMULATOR),
    ("kws_float", ZYNQ),
    ("kws_float", EMULATOR),
    ("espcn_float", ZYNQ),
    ("espcn_float", SYCL),
    pytest.param("ic_resnet_float", ZYNQ, marks=pytest.mark.slow),
)


@pytest.mark.share(name=2)
@pytest.mark.parametrize(("name", "device"), SHARED)
def test_shared_models(name: str, device: tuple[str, str], models: Path) -> None:
    check(device, float_models.shared(models / f"{name}.onnx"))


def test_a_float_model_that_is_too_large(models: Path) -> None:
    """A MobileNet whose weights alone take 7 Mbit in f32; the board has 5 Mbit of block memory."""
    with pytest.raises(DoesNotFit) as caught:
        cuvil.compile(str(models / "vww_96_float.onnx"), "pynq-z2", precision="float32", interface="null")
    assert caught.value.need > caught.value.limit


@pytest.mark.parametrize("device", [ZYNQ, SYCL])
def test_bert(device: tuple[str, str]) -> None:
    check(device, float_models.bert())


@pytest.mark.parametrize("device", [ZYNQ, SYCL])
def test_lstm(device: tuple[str, str]) -> None:
    check(device, float_models.lstm())


OTHERS = float_models.named("cpu,cuda,mlu270,mlu370", float_models.DEVICES)


@pytest.mark.share(name=2)
@pytest.mark.parametrize("name", ["bert", "lstm", *float_models.SHARED])
def test_every_other_target(name: str, models: Path) -> None:
    found = list(float_models.results(float_models.cases(models)[name](), OTHERS))
    assert len(found) == len(OTHERS)
    for device, result in zip(OTHERS, found, strict=True):
        assert result.error is not None, f"{device.column}: {result.why}"
        assert result.error <= TOLERANCE, device.column


@pytest.mark.needs("ptxas", "cuda", "sklearn")
@pytest.mark.share(name=4)
@pytest.mark.parametrize("name", ["bert", "lstm", *float_models.SHARED, "digits", "jets", "unet", *same_bits.MLPERF])
def test_cuda_kernels_compile_without_spills(name: str, models: Path) -> None:
    """Of the float models, and of those of `make same-bits`, each compiled for the architecture."""
    architectures = ("sm_75", "sm_80", "sm_90")
    targets = [f"cuda:{architecture}" for architecture in architectures]
    if name in ("bert", "lstm", *float_models.SHARED):
        case = float_models.cases(models)[name]()
        made = cuvil.compile_all(case.model, targets, case.example, precision="float32", interface="null")
    else:
        quantized = same_bits.cases(models, [name])[name]()
        made = cuvil.compile_all(quantized.model, targets, interface="null", **quantized.options)
    for architecture, program in zip(architectures, made.values(), strict=True):
        figures = measure(program.sources["model.cu"].encode(), architecture)
        assert len(figures) == len(program.artifact.manifest.info["launches"])
        assert [n for n, f in figures.items() if f.spill_bytes] == [], architecture


class Wide(nn.Module):
    """Sums far longer than what a core's memory holds: a linear layer, an attention, a mean and a norm."""

    def __init__(self, wide: int = 150_000) -> None:
        super().__init__()
        self.down = nn.Linear(wide, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        return torch.cat([self.down(centred), x.amax(1, keepdim=True), torch.logsumexp(x, 1, keepdim=True)], 1)


@pytest.mark.parametrize("device", OTHERS, ids=lambda d: d.column)
def test_sums_longer_than_the_memory_of_a_core(device: Device) -> None:
    torch.manual_seed(0)
    model = Wide().eval()
    x = np.random.default_rng(0).normal(size=(1, 150_000)).astype(np.float32)
    with torch.no_grad():
        wanted = model(torch.from_numpy(x)).numpy()
    (result,) = float_models.results(Case("wide", model, x, wanted, torch.from_numpy(x)), [device])
    assert result.error is not None, result.why
    assert result.error <= TOLERANCE


@pytest.mark.parametrize(
    ("got", "error"),
    [
        ([1.0, 2.0, -4.0], 0.0),
        ([1.0, 2.0, -4.1], 0.1 / 8),
        ([1.1, 2.0, -4.0], 0.1 / 5),
        ([1.0, 2.0, np.nan], np.inf),
        ([1.0, 2.0], np.inf),
    ],
)
def test_errors_are_measured(got: list[float], error: float) -> None:
    assert float_models.error_of(np.array(got), np.array([1.0, 2.0, -4.0])) == pytest.approx(error)
    assert float_models.error_of(np.array([np.inf, 1.0]), np.array([-np.inf, 1.0])) == np.inf


def test_the_table_has_errors_and_reasons(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong output, and a failure of a device, fail; a model that doesn't fit is in the table with its reason."""
    monkeypatch.setattr(float_models, "cases", lambda folder, only: {"lstm": float_models.lstm})
    assert float_models.main(["--devices", "cpu,pynq-z2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"lstm +\d\.\de-0[78] +DoesNotFit \(1\)", out)
    assert "(1) DoesNotFit: does not fit pynq-z2: needs 402 dsp" in out
    right = float_models.on_device

    def wrong(*arguments: Any) -> tuple[Array, str]:
        got, interface = right(*arguments)
        return got + np.float32(1e-3), interface

    monkeypatch.setattr(float_models, "on_device", wrong)
    assert float_models.main(["--devices", "cpu"]) == 1
    assert "WRONG" in capsys.readouterr().out

    def broken(*arguments: Any) -> tuple[Array, str]:
        raise cuvil.DeviceError("it hangs")

    monkeypatch.setattr(float_models, "on_device", broken)
    assert float_models.main(["--devices", "cpu"]) == 1


QUANTIZED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: nn.Sequential(nn.Linear(9, 8), nn.LayerNorm(8), nn.Linear(8, 3)), (9,)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3)), (2, 7, 7)),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_floats_between_integers_run_on_the_fabric(name: str) -> None:
    make, shape = QUANTIZED[name]
    torch.manual_seed(3)
    model = make().eval()
    x = np.random.default_rng(2).normal(size=(16, *shape)).astype(np.float32)
    program = cuvil.compile(model, "pynq-z2", x[:1], x, "int8")
    steps = program.artifact.manifest.prologue.steps, program.artifact.manifest.epilogue.steps
    assert [[s.op for s in side] for side in steps] == [["quantize"], ["dequantize"]]
    with program, torch.no_grad():
        wanted = model(torch.from_numpy(x)).numpy()
        assert np.abs(np.asarray(program(x)) - wanted).max() < 0.06 * np.abs(wanted).max()
