"""The interpreter of level2 runs what adapters lower: random graphs and the small networks, on every target.

It shares nothing with renderers and simulators. 500 graphs, on simulators too: python -m tests.support.level2_check.
Unless `--full` is given, each target takes a third of the small networks, other ones, and fewer graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw import api
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.annotations import Pipeline
from cuvil_hw.ir.program import Builder, evaluate, parse
from cuvil_hw.ops.cast import Cast
from cuvil_hw.runtime import executable
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType
from tests.support.flat_check import unflat
from tests.support.level2_check import TARGETS, TOGETHER, failures, lowered
from tests.support.level2_runner import Interpreted
from tests.support.small_networks import NETWORKS, Array, Network

pytestmark = [pytest.mark.must_run, pytest.mark.needs("cc", "ortools")]


def digits() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(),
        nn.Conv2d(8, 16, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


# The others are slow: importing and calibrating them for each target is.
QUICK = ("conv", "depthwise", "residual", "lut", "argmax", "float in the middle", "float", "digits")
MODELS = (*NETWORKS, Network("digits", "scans of digits: convolutions, pools, a classifier", digits, (1, 1, 8, 8)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["integers", "floats"])
def test_random_graphs(kind: str, target: str, full: bool) -> None:
    assert failures(range(TOGETHER if full else 8), kind, target, simulate=False) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_random_graphs_on_interpreter_and_simulator(target: str, full: bool) -> None:
    """Of integers all bits; floats as docs/numerics.md allows."""
    seeds = range(500, 510 if full else 505)
    assert failures(seeds, "integers", target, simulate=True) == []
    assert failures(seeds, "floats", target, simulate=True) == []


@contextmanager
def keeping_modules(target: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Interpreted]]:
    """What a target's adapter lowers meanwhile, interpreted."""
    kind, found = type(api.adapter_for(load_profile(target), None)), []
    lower = kind.lower

    def kept(self: Any, design: Any, profile: Any) -> Any:
        module = lower(self, design, profile)
        found.append(Interpreted(design.graph, module, profile))
        return module

    with monkeypatch.context() as patch:
        patch.setattr(kind, "lower", kept)
        yield found


@cache
def interpreted(network: Network, target: str) -> tuple[Artifact, Array] | CuvilError:
    """The program, and what it gives with the interpreter in the device's place; or why there is none."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            return _interpreted(network, target, monkeypatch)
        except CuvilError as e:
            return e


def _interpreted(network: Network, target: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Artifact, Array]:
    data = network.data() if network.precision.startswith("int") else None
    example = torch.zeros(network.shape)
    with keeping_modules(target, monkeypatch) as made:
        program = cuvil.compile(network.module(), target, example, data, network.precision)
    assert not unflat(made[-1].module), network.tag
    with monkeypatch.context() as patch:
        patch.setattr(executable, "load_on_device", lambda artifact, interface, options, folder: made[-1])
        with cuvil.Executable(program.artifact) as one:
            return program.artifact, one(network.inputs())


@pytest.mark.share(network=3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "network", [pytest.param(n, id=n.tag, marks=() if n.tag in QUICK else pytest.mark.slow) for n in MODELS]
)
def test_small_networks(network: Network, target: str) -> None:
    found = interpreted(network, target)
    if isinstance(found, CuvilError):
        pytest.skip(str(found).splitlines()[0])
    artifact, got = found
    store = ConstantStore()
    store._arrays.update(artifact.constants())
    meaning = parse(cuvil.Executable(artifact).ir, store)
    wanted = np.concatenate([evaluate(meaning, [sample[None]])[0] for sample in network.inputs()])
    agree(network, got, wanted)


@pytest.mark.slow
@pytest.mark.needs("g++")
@pytest.mark.share(tag=2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tag", ["conv", "residual", "lut", "float", "digits"])
def test_small_networks_on_interpreter_and_simulator(tag: str, target: str) -> None:
    network = next(n for n in MODELS if n.tag == tag)
    found = interpreted(network, target)
    assert not isinstance(found, CuvilError), found
    artifact, got = found
    with cuvil.Executable(artifact) as program:
        agree(network, got, program(network.inputs()))


def agree(network: Network, got: Array, wanted: Array) -> None:
    if network.exact:
        np.testing.assert_array_equal(got, wanted)
    else:
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * float(np.abs(wanted).max()))


def test_bfloat16_runs_as_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(9, 5).to(torch.bfloat16).eval(), torch.randn(2, 9).to(torch.bfloat16)
    with keeping_modules("cpu", monkeypatch) as made:
        program = cuvil.compile(model, "cpu", x[:1])
    with program:
        wanted = program(x)
    monkeypatch.setattr(executable, "load_on_device", lambda artifact, interface, options, folder: made[-1])
    with cuvil.Executable(program.artifact) as one:
        got = one(x)
    assert torch.equal(torch.as_tensor(got).view(torch.int16), torch.as_tensor(wanted).view(torch.int16))


def test_an_interpreter_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Interpreted.run

    def wrong(self: Interpreted, inputs: list[Array]) -> tuple[list[Array], float]:
        return [a ^ 1 if a.dtype == np.int8 else a for a in run(self, inputs)[0]], 0.0

    monkeypatch.setattr(Interpreted, "run", wrong)
    assert "the interpreter and their meaning differ" in failures(range(8), "integers", "cpu", simulate=False)[0]


def test_compile_refuses_a_module_that_is_not_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(api.adapter_for(load_profile("cpu"), None))
    lower = kind.lower

    def misspelt(self: Any, design: Any, profile: Any) -> Any:
        module = lower(self, design, profile)
        next(op for op in module.walk() if op.name == "scf.for").attributes["cuvil.pipelin"] = Pipeline(1)
        return module

    monkeypatch.setattr(kind, "lower", misspelt)
    with pytest.raises(CuvilError, match=r"level2: scf\.for of @linear.* there is no annotation cuvil\.pipelin;"):
        cuvil.compile(nn.Linear(9, 5), "cpu", torch.zeros(1, 9))


@pytest.mark.parametrize("target", TARGETS)
def test_the_sign_of_one_bit_is_the_same_for_interpreter_and_simulator(target: str) -> None:
    """i1 is 0 or -1, also as a float: languages have a truth value for it."""
    b = Builder([("x", TensorType((4,), "i1")), ("f", TensorType((4,), "f32"))])
    program = b.finish([("y", b.op(Cast("f32"), b.input(0))), ("z", b.op(Cast("i1"), b.input(1)))])
    inputs = [np.array([[0, -1, -1, 0]], np.int8), np.array([[-3, -0.5, 2, np.nan]], np.float32)]
    with lowered(program, target, 0, simulate=True) as (interpreted, loaded):
        assert loaded is not None
        for y, z in (interpreted.run(inputs)[0], loaded.run(inputs)[0]):
            assert y.tolist() == [[0, -1, -1, 0]]
            assert z.tolist() == [[-1, 0, 0, 0]]
