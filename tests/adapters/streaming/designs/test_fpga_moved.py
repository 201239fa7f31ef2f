"""Networks whose layers read elements from elsewhere: skips and concatenation, resizes, shuffles, groups, gates.

None may fill a buffer; the simulator of the emitted sources gives the meaning's bits in the cycles of the report.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import cuvil
from cuvil_hw.compile.golden import meaning as meaning_of
from cuvil_hw.ir.program import evaluate
from cuvil_hw.runtime.executable import Executable


def conv(c: int, o: int, k: int = 3, **more: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c, o, k, padding=k // 2, **more), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.down, self.deep, self.up, self.last = conv(3, 8), conv(8, 16), conv(24, 8), nn.Conv2d(8, 2, 1)
        self.transposed = nn.ConvTranspose2d(16, 16, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        y = self.deep(functional.max_pool2d(skip, 2))
        if self.mode == "transposed":
            y = self.transposed(y)
        else:
            y = functional.interpolate(y, scale_factor=2, mode=self.mode)
        out: torch.Tensor = self.last(self.up(torch.cat([y, skip], 1)))
        return out


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise, self.project = (
            nn.Conv2d(3, 24, 1),
            nn.Conv2d(24, 24, 3, 1, 1, groups=24),
            conv(24, 8, 1),
        )
        self.squeeze, self.excite, self.head = conv(24, 6, 1), nn.Conv2d(6, 24, 1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.silu(self.depthwise(functional.silu(self.expand(x))))
        y = y * torch.sigmoid(self.excite(self.squeeze(functional.adaptive_avg_pool2d(y, 1))))
        out: torch.Tensor = self.head(self.project(y).mean((2, 3)))
        return out


class Shuffle(nn.Module):
    """Channels split, shuffled and joined; groups of 4 and of 1 with two outputs a channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.grouped = conv(3, 16, stride=2), conv(8, 8), conv(16, 32, groups=4)
        self.twice, self.head = conv(32, 64, groups=32, stride=2), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.stem(x).chunk(2, 1)
        y = torch.cat([a, self.branch(b)], 1)
        n, c, h, w = y.shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        out: torch.Tensor = self.head(self.twice(self.grouped(y)).mean((2, 3)))
        return out


def super_resolution() -> nn.Module:
    return nn.Sequential(conv(1, 8), nn.ConvTranspose2d(8, 1, 4, 2, 1))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "nearest": (lambda: UNet("nearest"), (3, 12, 12)),
    "bilinear": (lambda: UNet("bilinear"), (3, 12, 12)),
    "transposed": (lambda: UNet("transposed"), (3, 12, 12)),
    "squeeze_excite": (SqueezeExcite, (3, 12, 12)),
    "shuffle": (Shuffle, (3, 12, 12)),
    "super_resolution": (super_resolution, (1, 12, 12)),
}


def compiled(name: str, target: str) -> tuple[cuvil.Executable, np.ndarray]:
    torch.manual_seed(0)
    make, shape = CASES[name]
    data = torch.randn(4, *shape).numpy()
    return cuvil.compile(make().eval(), target, data[:1], data, "int8", name="net"), data


@pytest.mark.parametrize("name", CASES)
def test_no_layer_fills_a_buffer(name: str) -> None:
    report = compiled(name, "agilex-agfb014")[0].report
    assert not [layer["name"] for layer in report["layers"] if "buffered" in layer["schedule"]]


@pytest.mark.needs("g++")
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_meaning_and_cycles_those_of_the_report(name: str) -> None:
    program, data = compiled(name, "zcu104")
    meaning = meaning_of(program.artifact)
    with Executable(program.artifact, "sim-cycles") as timed:
        got, found = timed(data), timed.timing()
    wanted = np.concatenate([evaluate(meaning, [row[None]])[0] for row in data])
    np.testing.assert_array_equal(got, wanted)
    assert found.cycles == pytest.approx(program.report["timing"]["interval"], rel=0.02)
    assert not [layer["name"] for layer in program.report["layers"] if "buffered" in layer["schedule"]]
