"""Small networks, one for each thing that targets differ in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

Array = np.ndarray[Any, Any]
IMAGE = (1, 4, 8, 8)


@dataclass(frozen=True)
class Network:
    """`tag`: what it is about; `shape`: of its input; `exact`: devices must give the bits of the IR, else values within
    1e-5 of the largest."""

    tag: str
    what: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = IMAGE
    precision: str = "int8"
    exact: bool = True

    def module(self) -> nn.Module:
        torch.manual_seed(len(self.tag))
        return self.make().eval()

    def data(self) -> Array:
        """(16, *shape without the batch) f32, for calibration."""
        return np.random.default_rng(1).normal(size=(16, *self.shape[1:])).astype(np.float32)

    def inputs(self) -> Array:
        """(5, …) f32: far beyond the calibrated range at both ends, zeros, noise."""
        x = np.random.default_rng(2).normal(size=(5, *self.shape[1:])).astype(np.float32)
        if self.exact:
            x[0], x[1], x[2] = 1e4, -1e4, 0
        return x


class Of(nn.Module):
    """A function of modules."""

    def __init__(self, function: Callable[..., torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.parts)


def conv(out: int = 4, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(4, out, 3, **{"padding": 1, **options})


def gated(x: torch.Tensor, part: nn.Module, gate: nn.Module) -> torch.Tensor:
    y = part(x)
    return y * torch.sigmoid(gate(y.mean((2, 3), keepdim=True)))


NETWORKS = (
    Network("conv", "convolution, stride 2, pads, ReLU", lambda: nn.Sequential(conv(6, stride=2), nn.ReLU())),
    Network("conv, dilated, grouped", "dilation 2, 2 groups", lambda: conv(6, dilation=2, groups=2, padding=2)),
    Network(
        "depthwise", "depthwise and pointwise convolution", lambda: nn.Sequential(conv(groups=4), nn.Conv2d(4, 6, 1))
    ),
    Network("conv 1-D", "convolution over time", lambda: nn.Conv1d(3, 5, 3, stride=2), (1, 3, 12)),
    Network("conv transposed", "upsampling by 2", lambda: nn.ConvTranspose2d(4, 3, 2, stride=2)),
    Network("max pool", "windows that overlap, pads", lambda: nn.Sequential(conv(), nn.MaxPool2d(3, 2, 1))),
    Network(
        "average pool", "windows, then the whole image", lambda: nn.Sequential(nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1))
    ),
    Network(
        "linear", "two layers, ReLU between", lambda: nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)), (1, 9)
    ),
    Network("residual", "x + f(x), two scales", lambda: Of(lambda x, f: torch.relu(x + f(x)), conv())),
    Network("gate", "product with a sigmoid of the average", lambda: Of(gated, conv(), nn.Conv2d(4, 4, 1))),
    Network("concat", "two branches joined", lambda: Of(lambda x, f, g: torch.cat([f(x), g(x)], 1), conv(), conv(2))),
    Network("upsample", "nearest, then a convolution", lambda: nn.Sequential(nn.Upsample(scale_factor=2), conv(2))),
    Network(
        "views",
        "reshape, transpose, slice, pad",
        lambda: nn.Sequential(conv(8), nn.PixelShuffle(2), nn.ZeroPad2d((1, 0, 2, 0))),
    ),
    Network("lut", "SiLU and tanh as tables", lambda: nn.Sequential(conv(), nn.SiLU(), conv(), nn.Tanh())),
    Network("argmax", "the class as a number", lambda: Of(lambda x, f: f(x).argmax(1), nn.Linear(9, 7)), (1, 9)),
    Network(
        "int4", "weights and activations of 4 bits", lambda: nn.Sequential(conv(), nn.ReLU(), conv(3)), precision="int4"
    ),
    Network(
        "fixed<16,6>",
        "ap_fixed of HLS users",
        lambda: nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)),
        (1, 9),
        "fixed<16,6>",
    ),
    Network(
        "softmax last", "after integers", lambda: nn.Sequential(nn.Linear(9, 7), nn.Softmax(1)), (1, 9), exact=False
    ),
    Network(
        "float in the middle",
        "layer norm between int8 layers",
        lambda: nn.Sequential(nn.Linear(9, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
        (1, 9),
        exact=False,
    ),
    Network(
        "float",
        "float32 convolution, pool, linear",
        lambda: nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)),
        precision="float32",
        exact=False,
    ),
)
