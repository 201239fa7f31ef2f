"""Float models whole on the streaming FPGA targets, against ONNX Runtime and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import cuvil
from cuvil_hw.errors import DoesNotFit, ToolNotFound

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++", "ortools", "onnx", "torch")]
Array = np.ndarray[Any, Any]
TOLERANCE = 1e-5  # docs/numerics.md
# (target, interface): the emulator where it is installed
ZYNQ = ("zcu104", "sim")
SYCL = ("agilex-agfb027", "sim-sycl")
EMULATOR = ("agilex-agfb027", "sim")


def check(device: tuple[str, str], model: Any, inputs: list[Array], wanted: Array, example: Any = None) -> None:
    target, interface = device
    program = cuvil.compile(model, target, example, precision="float32", interface=interface)
    assert all(s.op in ("reshape", "transpose") for s in program.artifact.manifest.prologue.steps)
    try:
        with program:
            got = np.asarray(program(*inputs))
    except ToolNotFound as e:
        pytest.skip(str(e))
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE * np.abs(wanted).max())


def run_onnx(model: str | bytes, inputs: list[Array], batch: int) -> Array:
    """The first output, sample by sample of `batch` rows."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    parts = [[a[n : n + batch] for a in inputs] for n in range(0, len(inputs[0]), batch)]
    return np.concatenate([session.run(None, dict(zip(names, part, strict=True)))[0] for part in parts])


SHARED = (
    ("mnist_conv", ZYNQ),
    ("mnist_conv", EMULATOR),
    ("kws_float", ZYNQ),
    ("kws_float", EMULATOR),
    ("espcn_float", ZYNQ),
    ("espcn_float", SYCL),
    pytest.param("ic_resnet_float", ZYNQ, marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("name", "device"), SHARED)
def test_shared_models(name: str, device: tuple[str, str], models: Path) -> None:
    path = str(models / f"{name}.onnx")
    shape = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs()[0].shape
    x = np.random.default_rng(0).normal(size=(2, *shape[1:])).astype(np.float32)
    check(device, path, [x], run_onnx(path, [x], 1))


def test_a_float_model_that_is_too_large(models: Path) -> None:
    """A MobileNet whose weights alone take 7 Mbit in f32; the board has 5 Mbit of block memory."""
    with pytest.raises(DoesNotFit) as caught:
        cuvil.compile(str(models / "vww_96_float.onnx"), "pynq-z2", precision="float32", interface="null")
    assert caught.value.need > caught.value.limit


class Bert(nn.Module):
    """Two layers of self-attention over 16 tokens, 32 wide."""

    def __init__(self, wide: int = 32, heads: int = 2, layers: int = 2, tokens: int = 16, words: int = 50) -> None:
        super().__init__()
        self.heads = heads
        self.word, self.place, self.norm = nn.Embedding(words, wide), nn.Embedding(tokens, wide), nn.LayerNorm(wide)
        sizes = {"q": wide, "k": wide, "v": wide, "out": wide, "up": 2 * wide}
        self.layers = nn.ModuleList()
        for _ in range(layers):
            parts: dict[str, nn.Module] = {name: nn.Linear(wide, size) for name, size in sizes.items()}
            parts |= {"down": nn.Linear(2 * wide, wide), "first": nn.LayerNorm(wide), "second": nn.LayerNorm(wide)}
            self.layers.append(nn.ModuleDict(parts))
        self.head = nn.Linear(wide, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        b, t = words.shape
        x = self.norm(self.word(words) + self.place(torch.arange(t)))
        for layer in self.layers:
            q, k, v = (layer[n](x).reshape(b, t, self.heads, -1).transpose(1, 2) for n in ("q", "k", "v"))
            mixed = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
            x = layer["first"](x + layer["out"](mixed.transpose(1, 2).reshape(b, t, -1)))
            x = layer["second"](x + layer["down"](nn.functional.gelu(layer["up"](x))))
        return self.head(x[:, 0])


@pytest.mark.parametrize("device", [ZYNQ, SYCL])
def test_bert(device: tuple[str, str]) -> None:
    torch.manual_seed(0)
    model = Bert().eval()
    words = np.random.default_rng(0).integers(0, 50, (2, 16))
    with torch.no_grad():
        wanted = model(torch.from_numpy(words)).numpy()
    check(device, model, [words], wanted, torch.zeros(1, 16, dtype=torch.long))


def lstm(hidden: int = 8, wide: int = 5, steps: int = 6) -> bytes:
    rng = np.random.default_rng(0)
    weights = {"W": (1, 4 * hidden, wide), "R": (1, 4 * hidden, hidden), "B": (1, 8 * hidden)}
    tensors = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32) * 0.4, n) for n, s in weights.items()]
    node = helper.make_node("LSTM", ["x", *weights], ["", "last"], hidden_size=hidden)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [steps, 1, wide])
    last = helper.make_tensor_value_info("last", onnx.TensorProto.FLOAT, [1, 1, hidden])
    graph = helper.make_graph([node], "lstm", [x], [last], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("device", [ZYNQ, SYCL])
def test_lstm(device: tuple[str, str]) -> None:
    model = lstm()
    x = np.random.default_rng(1).normal(size=(6, 1, 5)).astype(np.float32)
    check(device, onnx.load_from_string(model), [x], run_onnx(model, [x], 6))


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
