"""Twenty small float networks, quantized by Cuvil and by ONNX Runtime on the same data, and how far each is then from
float.

All of them are seeded: weights as PyTorch initializes them, batch norms with the statistics of the calibration data,
inputs with structure (smooth images, slow sequences), so that ranges seen in calibration say something of the test
data.
"""

from __future__ import annotations

import io
import logging
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn
from torch.nn import functional as F

from cuvil_hw import api
from cuvil_hw.compile import numbers
from cuvil_hw.compile.precision import choose_precision
from cuvil_hw.ir.program import evaluate
from cuvil_hw.target.profile import load_profile

Array = np.ndarray[Any, Any]
IMAGE, SEQUENCE, ROW = (1, 3, 16, 16), (1, 12, 16), (1, 24)
CALIBRATION, TEST = 64, 64


class Of(nn.Module):
    """A function of modules."""

    def __init__(self, function: Callable[..., torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.parts)


class Attention(nn.Module):
    """Two heads over a sequence. `mask`: added to the scores above the diagonal."""

    def __init__(self, width: int = 16, mask: float | None = None) -> None:
        super().__init__()
        self.qkv, self.out, self.width = nn.Linear(width, 3 * width), nn.Linear(width, width), width
        self.mask = None if mask is None else torch.triu(torch.full((12, 12), mask), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, _ = x.shape
        parts = self.qkv(x).reshape(n, length, 3, 2, self.width // 2).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].transpose(-1, -2) / (self.width // 2) ** 0.5
        scores = scores if self.mask is None else scores + self.mask
        y = torch.softmax(scores, -1) @ parts[2]
        return self.out(y.transpose(1, 2).reshape(n, length, self.width))


class Recurrent(nn.Module):
    """The last step of an LSTM or GRU, and a linear layer."""

    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.head = cell(16, 20, batch_first=True), nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1])


def block(width_in: int, width: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width_in, width, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )


def separable(width_in: int, width: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        block(width_in, width_in, stride, width_in), nn.Conv2d(width_in, width, 1), nn.BatchNorm2d(width), nn.ReLU6()
    )


def head(width: int, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def encoder(width: int = 16) -> nn.Module:
    return Of(
        lambda x, a, n1, f, n2: n2(n1(x + a(x)) + f(n1(x + a(x)))),
        Attention(width),
        nn.LayerNorm(width),
        nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)),
        nn.LayerNorm(width),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)), ROW),
    "mlp, tanh": (lambda: nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 5)), ROW),
    "mlp, deep": (
        lambda: nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(24, 24), nn.LeakyReLU(0.1))], nn.Linear(24, 5)),
        ROW,
    ),
    "autoencoder": (
        lambda: nn.Sequential(
            nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 24)
        ),
        ROW,
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 36, 10),
        ),
        IMAGE,
    ),
    "cnn, batch norm": (lambda: nn.Sequential(block(3, 8), block(8, 16, 2), block(16, 16), head(16)), IMAGE),
    "cnn, average pools": (
        lambda: nn.Sequential(block(3, 8), nn.AvgPool2d(2), block(8, 16), nn.AvgPool2d(2), head(16)),
        IMAGE,
    ),
    "depthwise": (lambda: nn.Sequential(block(3, 8), separable(8, 16, 2), separable(16, 16), head(16)), IMAGE),
    "residual": (
        lambda: nn.Sequential(
            block(3, 8), *[Of(lambda x, f: torch.relu(x + f(x)), block(8, 8)) for _ in range(3)], head(8)
        ),
        IMAGE,
    ),
    "inverted residual": (
        lambda: nn.Sequential(
            block(3, 8),
            *[
                Of(
                    lambda x, a, b, c: x + c(b(a(x))),
                    nn.Sequential(nn.Conv2d(8, 24, 1), nn.ReLU6()),
                    block(24, 24, 1, 24),
                    nn.Conv2d(24, 8, 1),
                )
                for _ in range(2)
            ],
            head(8),
        ),
        IMAGE,
    ),
    "squeeze and excitation": (
        lambda: nn.Sequential(
            block(3, 8),
            Of(
                lambda x, s: x * s(x),
                nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Sigmoid()),
            ),
            head(8),
        ),
        IMAGE,
    ),
    "silu": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3), nn.SiLU(), head(8)), IMAGE),
    "concat": (
        lambda: Of(
            lambda x, a, b, h: h(torch.cat([a(x), b(x)], 1)),
            block(3, 6),
            nn.Sequential(nn.Conv2d(3, 6, 1), nn.Sigmoid()),
            head(12),
        ),
        IMAGE,
    ),
    "u-net": (
        lambda: Of(
            lambda x, a, b, c, d: d(torch.cat([a(x), F.interpolate(c(b(a(x))), scale_factor=2.0)], 1)),
            block(3, 8),
            block(8, 12, 2),
            block(12, 8),
            nn.Conv2d(16, 2, 3, padding=1),
        ),
        IMAGE,
    ),
    "conv 1-D": (
        lambda: Of(
            lambda x, f: f(x.transpose(1, 2)),
            nn.Sequential(nn.Conv1d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 8, 3, dilation=2)),
        ),
        SEQUENCE,
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), SEQUENCE),
    "gru": (lambda: Recurrent(nn.GRU), SEQUENCE),
    "attention": (Attention, SEQUENCE),
    "attention, causal": (lambda: Attention(mask=-1e9), SEQUENCE),
    "transformer": (encoder, SEQUENCE),
}


def data(shape: tuple[int, ...], count: int, seed: int) -> Array:
    """(count, *shape without the batch) f32: noise that varies slowly along the last two dimensions, each channel with
    an offset of its own."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, *shape[1:]))
    for axis in range(2, len(shape)):
        x = (x + np.roll(x, 1, axis) + np.roll(x, 2, axis)) / 3**0.5
    offset = np.random.default_rng(9).normal(size=(1, shape[1], *[1] * (len(shape) - 2)))
    return (x + offset).astype(np.float32)


@dataclass(frozen=True)
class Network:
    name: str
    model: onnx.ModelProto
    calibration: Array
    test: Array
    wanted: Array


def network(name: str) -> Network:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    calibration, test = data(shape, CALIBRATION, 1), data(shape, TEST, 2)
    module = make()
    with torch.no_grad():
        for _ in range(20):  # batch norms see data
            module.train()(torch.from_numpy(calibration))
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            (torch.zeros(shape),),
            buffer,
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            opset_version=17,
        )
    model = onnx.load_from_string(buffer.getvalue())
    return Network(name, model, calibration, test, _run(model, test))


def sqnr(wanted: Array, got: Array) -> float:
    """Signal to quantization noise in dB."""
    signal, noise = (np.square(a.astype(np.float64)).sum() for a in (wanted, wanted - got))
    return float(10 * np.log10(signal / noise)) if noise else float("inf")


def ours(net: Network) -> Array:
    """What the int8 program gives by its meaning; every target has these bits."""
    program = api.import_model(net.model, None, None, None)
    numbers.simplify(program)
    chosen = choose_precision(program, "int8", True, load_profile("cpu"))
    program = numbers.quantize(program, chosen, net.calibration)
    numbers.make_integer(program, chosen)
    return np.concatenate([evaluate(program, [x[None]])[0] for x in net.test])


def onnx_runtime(net: Network) -> Array:
    """What quantize_static with its defaults (QDQ, minimum and maximum, int8, one weight scale a tensor) gives."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.samples = iter(net.calibration)

        def get_next(self) -> dict[str, Array] | None:
            x = next(self.samples, None)
            return None if x is None else {"x": x[None]}

    with tempfile.TemporaryDirectory() as folder:
        source, made = (str(Path(folder) / name) for name in ("float.onnx", "int8.onnx"))
        onnx.save(net.model, source)
        level = logging.getLogger().level
        logging.getLogger().setLevel(logging.ERROR)
        try:
            quantize_static(source, made, Reader())
        finally:
            logging.getLogger().setLevel(level)
        return _run(onnx.load(made), net.test)


def _run(model: onnx.ModelProto, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in x])
