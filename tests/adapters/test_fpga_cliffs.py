"""What streams: a small change to a model must not make it a hundred times slower on a fabric."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.ir.program import evaluate, parse

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
    meaning = parse(program.ir, program.artifact.constants())  # type: ignore[arg-type]  # any mapping will do
    with program:
        got = program(data)
    wanted = np.concatenate([evaluate(meaning, [row[None]])[0] for row in data])
    np.testing.assert_array_equal(got, wanted)
