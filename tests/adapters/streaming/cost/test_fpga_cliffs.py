"""What streams: a small change to a model must not make it a hundred times slower on a fabric."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.adapters.streaming.analysis.cost import steps
from cuvil_hw.adapters.streaming.analysis.fold import Folding
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.compile.golden import meaning as meaning_of
from cuvil_hw.ir.program import evaluate
from cuvil_hw.runtime.executable import Executable
from tests.support import fpga_runner

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "elu": nn.ELU,
}


def net(activation: Callable[[], nn.Module]) -> tuple[nn.Module, np.ndarray]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), activation(), nn.Conv2d(8, 4, 3, stride=2, padding=1), activation()]
    head = [nn.Flatten(), nn.Linear(64, 6), activation(), nn.Linear(6, 3)]
    return nn.Sequential(*layers, *head).eval(), torch.randn(8, 3, 8, 8).numpy()


def compiled(activation: Callable[[], nn.Module], target: str) -> tuple[cuvil.Executable, np.ndarray]:
    model, data = net(activation)
    return cuvil.compile(model, target, data[:1], data, "int8", name="net"), data


@pytest.fixture(scope="module", params=["pynq-z2", "agilex-agfb014"])
def relu(request: pytest.FixtureRequest) -> tuple[str, int]:
    """A target, and the cycles of the slowest layer where the activation is ReLU."""
    report = compiled(nn.ReLU, request.param)[0].report
    return request.param, max(layer["cycles"] for layer in report["layers"])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_by_table_stream_behind_their_layer(name: str, relu: tuple[str, int]) -> None:
    target, cycles = relu
    report = compiled(ACTIVATIONS[name], target)[0].report
    assert not [layer["name"] for layer in report["layers"] if "buffered" in layer["schedule"]]
    assert max(layer["cycles"] for layer in report["layers"]) <= 1.05 * cycles


@pytest.mark.needs("g++")
@pytest.mark.parametrize("name", ["leaky_relu", "gelu"])
def test_tables_behind_sums_have_the_bits_of_the_meaning(name: str) -> None:
    program, data = compiled(ACTIVATIONS[name], "pynq-z2")
    meaning = meaning_of(program.artifact)
    with program:
        got = program(data)
    wanted = np.concatenate([evaluate(meaning, [row[None]])[0] for row in data])
    np.testing.assert_array_equal(got, wanted)


class Attention(nn.Module):
    """A block of a vision transformer."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(features), nn.LayerNorm(features)
        self.qkv, self.join = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.wide, self.narrow = nn.Linear(features, 2 * features), nn.Linear(2 * features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, places, features = x.shape
        split = self.qkv(self.before(x)).reshape(n, places, 3, self.heads, features // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * (features // self.heads) ** -0.5).softmax(-1)
        x = x + self.join((weights @ v).transpose(1, 2).reshape(n, places, features))
        return x + self.narrow(nn.functional.gelu(self.wide(self.after(x))))


class Mixer(nn.Module):
    """A block of an MLP-mixer: a linear layer across positions, then one across features."""

    def __init__(self, places: int, features: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(features), nn.LayerNorm(features)
        self.places = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.features = nn.Sequential(nn.Linear(features, 2 * features), nn.GELU(), nn.Linear(2 * features, features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.places(self.before(x).transpose(1, 2)).transpose(1, 2)
        return x + self.features(self.after(x))


BLOCKS: dict[str, Callable[[], nn.Module]] = {"attention": lambda: Attention(32, 2), "mixer": lambda: Mixer(16, 32)}


def block(name: str, target: str) -> tuple[cuvil.Executable, np.ndarray]:
    torch.manual_seed(0)
    model, data = BLOCKS[name]().eval(), torch.randn(6, 16, 32).numpy()
    return cuvil.compile(model, target, data[:1], data, "int8", name=name), data


def slowest_buffered(program: cuvil.Executable) -> int:
    """Cycles of the slowest layer if each filled memories and then computed an element a cycle."""
    meaning = meaning_of(program.artifact)
    kernels = fpga_runner.graph_of(meaning).kernels
    return max(steps(Folding(Stage(k, "buffered", k.sources, 1, 1))) for k in kernels)


@pytest.mark.must_run
@pytest.mark.needs("g++")
@pytest.mark.parametrize(("name", "target"), [("attention", "zcu104"), ("mixer", "pynq-z2")])
def test_blocks_of_transformers_stream(name: str, target: str) -> None:
    """Products of two tensors, softmax, layer norm and linear layers along any dimension."""
    program, data = block(name, target)
    report = program.report
    assert not [layer["name"] for layer in report["layers"] if "buffered" in layer["schedule"]]
    printed = report["timing"]["interval"]
    assert printed <= slowest_buffered(program) / 10
    meaning = meaning_of(program.artifact)
    wanted = np.concatenate([evaluate(meaning, [row[None]])[0] for row in data])
    with program, Executable(program.artifact, "sim-cycles") as clocked:
        np.testing.assert_array_equal(program(data), wanted)
        assert clocked.timing().cycles == pytest.approx(printed, rel=0.02)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_transformers_stream_on_agilex(name: str) -> None:
    report = block(name, "agilex-agfb014")[0].report
    assert not [layer["name"] for layer in report["layers"] if "buffered" in layer["schedule"]]
