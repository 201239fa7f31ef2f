"""Small PyTorch networks as ONNX files, and what ONNX Runtime's quantizer makes of them."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn
from torch.nn import functional as F

Arrays = dict[str, np.ndarray]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 32), nn.Linear(32, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.c(torch.sigmoid(self.b(F.leaky_relu(self.a(x), 0.1)))), -1)


class Cnn(nn.Module):
    """Residuals, pads of a value, concatenation, pools, a product of two branches."""

    def __init__(self, fill: float = 0.25) -> None:
        super().__init__()
        self.fill = fill
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.c, self.d, self.f = nn.Conv2d(8, 8, 3, stride=2), nn.Conv2d(16, 8, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(F.pad(x, (1, 0, 0, 1), value=self.fill)))
        x = F.pad(torch.relu(self.norm(self.b(x)) + x), (0, 1, 0, 1), value=0.0)
        y = F.hardtanh(self.c(x), 0, 6)
        x = torch.cat([F.avg_pool2d(x, 2)[..., : y.shape[2], : y.shape[3]], y], 1)
        x = F.max_pool2d(self.d(x), 2)
        return self.f((x * torch.sigmoid(x)).mean((2, 3)))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True, bidirectional=True)
        self.f = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.lstm(x)[0][:, -1])


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, steps, width = x.shape
        q, k, v = (
            f(x).view(n, steps, self.heads, width // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5 + mask, -1)
        x = self.first(x + self.o((weights @ v).transpose(1, 2).reshape(n, steps, width)))
        return self.second(x + self.narrow(F.gelu(self.wide(x))))


class Bert(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30, width), nn.Parameter(torch.randn(1, 6, width))
        self.norm, self.c = nn.LayerNorm(width), nn.Linear(width, 2)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places)
        for block in self.blocks:
            x = block(x, (1.0 - mask[:, None, None, :].float()) * -10000.0)
        return self.c(torch.tanh(x[:, 0]))


class Inverted(nn.Module):
    """A block of MobileNetV2."""

    def __init__(self, i: int, o: int, stride: int, factor: int) -> None:
        super().__init__()
        h = i * factor
        self.skip = stride == 1 and i == o
        self.body = nn.Sequential(
            nn.Conv2d(i, h, 1, bias=False), nn.BatchNorm2d(h), nn.ReLU6(),
            nn.Conv2d(h, h, 3, stride, 1, groups=h, bias=False), nn.BatchNorm2d(h), nn.ReLU6(),
            nn.Conv2d(h, o, 1, bias=False), nn.BatchNorm2d(o),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.skip else self.body(x)


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), Inverted(8, 8, 1, 2),
            Inverted(8, 16, 2, 3), Inverted(16, 16, 1, 3), nn.Conv2d(16, 32, 1), nn.ReLU6(),
        )  # fmt: skip
        self.f = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.body(x).mean((2, 3)))


def image(size: int) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: {"x0": rng.normal(size=(1, 3, size, size)).astype(np.float32)}


def words(rng: np.random.Generator) -> Arrays:
    mask = np.ones((1, 6), np.int64)
    mask[0, rng.integers(3, 7) :] = 0
    return {"x0": rng.integers(0, 30, (1, 6)), "x1": mask}


# By name: the network, and one sample of its inputs.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[np.random.Generator], Arrays]]] = {
    "mlp": (Mlp, lambda rng: {"x0": rng.normal(size=(4, 12)).astype(np.float32)}),
    "cnn": (Cnn, image(12)),
    "lstm": (Lstm, lambda rng: {"x0": rng.normal(size=(2, 5, 6)).astype(np.float32)}),
    "bert": (Bert, words),
    "mobilenet": (MobileNet, image(24)),
}


class Reader(CalibrationDataReader):
    def __init__(self, name: str) -> None:
        rng = np.random.default_rng(1)
        self.samples = iter([NETWORKS[name][1](rng) for _ in range(12)])

    def get_next(self) -> Arrays | None:
        return next(self.samples, None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """ONNX Runtime's quantizer prints, logs and warns."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def exported(name: str, folder: Path) -> Path:
    """The float model, prepared for quantization as ONNX Runtime advises."""
    torch.manual_seed(0)
    network, sample = NETWORKS[name]
    model = network().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
    given = sample(np.random.default_rng(0))
    with quiet():
        torch.onnx.export(
            model, tuple(torch.from_numpy(v) for v in given.values()), str(folder / f"{name}.onnx"),
            opset_version=17, dynamo=False, input_names=list(given), output_names=["y"],
        )  # fmt: skip
        quant_pre_process(folder / f"{name}.onnx", folder / f"{name}_ready.onnx", skip_symbolic_shape=True)
    return folder / f"{name}_ready.onnx"


I8, U8, I16, U16, I4 = (QuantType[f"Q{t}"] for t in ("Int8", "UInt8", "Int16", "UInt16", "Int4"))


def statics(form: QuantFormat) -> dict[str, dict[str, Any]]:
    """Arguments of `quantize_static`."""
    made = {}
    for activation, weight in ((U8, I8), (I8, I8), (U8, U8)):
        for symmetric in (False, True):
            made[f"{activation.name}-{weight.name}-{symmetric}"] = {
                "activation_type": activation, "weight_type": weight, "per_channel": symmetric == (weight == U8),
                "reduce_range": not symmetric, "extra_options": {"ActivationSymmetric": symmetric},
            }  # fmt: skip
    if form == QuantFormat.QDQ:
        for activation, weight in ((U16, I8), (I16, I8), (I16, I16), (U8, I4), (U16, U16)):
            made[f"{activation.name}-{weight.name}"] = {"activation_type": activation, "weight_type": weight}
        for option in ("DedicatedQDQPair", "QDQKeepRemovableActivations", "AddQDQPairToWeight"):
            made[option] = {"extra_options": {option: True}}
        made["float bias"] = {"activation_type": I16, "weight_type": I8, "extra_options": {"QuantizeBias": False}}
    return {k: {"quant_format": form, **v} for k, v in made.items()}


def dynamics() -> dict[str, dict[str, Any]]:
    """Arguments of `quantize_dynamic`."""
    return {
        f"{weight.name}-{each}-{reduced}": {"weight_type": weight, "per_channel": each, "reduce_range": reduced}
        for weight in (I8, U8) for each in (False, True) for reduced in (False, True)
    }  # fmt: skip


def quantized(name: str, source: Path, arguments: dict[str, Any]) -> Path:
    to = source.with_name(f"{name}_quantized.onnx")
    with quiet():
        if "quant_format" in arguments:
            quantize_static(source, to, Reader(name), **arguments)
        else:
            quantize_dynamic(source, to, **arguments)
    return to


def results(model: Path, samples: list[Arrays]) -> list[np.ndarray]:
    """The first output for each sample, without fusions, which round in other places."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return [session.run(None, sample)[0] for sample in samples]
