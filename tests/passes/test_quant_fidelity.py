"""Quantization that can't be right is said: noise in the report, doubtful calibration data, evaluation."""

from __future__ import annotations

from copy import copy, deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.errors import InputError
from cuvil_hw.runtime.evaluation import Noise, ranked
from tests.support.quantized_networks import sqnr

pytestmark = pytest.mark.needs("gcc", "ortools")
RNG = np.random.default_rng(3)
X = RNG.uniform(0, 1, (48, 1, 8, 8)).astype(np.float32)


def network(norm: bool = False) -> nn.Module:
    return deepcopy(trained(norm))


@cache
def trained(norm: bool) -> nn.Module:
    torch.manual_seed(1)
    first = [nn.Conv2d(1, 4, 3, padding=1), *([nn.BatchNorm2d(4)] if norm else []), nn.ReLU(), nn.MaxPool2d(2)]
    module = nn.Sequential(*first, nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 5))
    with torch.no_grad():
        for _ in range(50):
            module.train()(torch.from_numpy(X))
    return module.eval()


def compile_on(calibration: Any, precision: str = "int8", norm: bool = False) -> cuvil.Executable:
    made = cuvil.compile(network(norm), "cpu", torch.zeros(1, 1, 8, 8), calibration, precision)
    assert isinstance(made, cuvil.Executable)
    return made


@cache
def compiled(factor: float = 1.0, precision: str = "int8", norm: bool = False) -> cuvil.Executable:
    return compile_on((factor * X).astype(np.float32), precision, norm)


def warnings(program: cuvil.Executable) -> list[str]:
    return [note for note in program.report["notes"] if note.startswith("warning")]


def wanted(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return np.asarray(network().double()(torch.from_numpy(x).double()).numpy())


def test_the_reports_noise_is_that_of_the_device_against_pytorch() -> None:
    program = compiled()
    found = program.report["quantization"]
    assert found["samples"] == len(X)
    (output,) = found["outputs"]
    assert output["sqnr_db"] == pytest.approx(sqnr(wanted(X), program(X)), abs=0.05)
    assert output["sqnr_db"] > 30
    assert output["same_largest"] == (program(X).argmax(1) == wanted(X).argmax(1)).mean()
    assert [e["op"] for e in found["layers"]] == ["input", "max_pool", "relu"]
    assert all(e["sqnr_db"] > 30 for e in found["layers"])
    assert warnings(program) == []
    for shown in (program.report.text(), program.report.html()):
        assert f"{output['sqnr_db']:.1f} dB" in shown


def test_too_few_bits_are_a_warning_with_figures_and_layers() -> None:
    program = compiled(precision="int2")
    report = program.report
    (note,) = warnings(program)
    decibels = report["quantization"]["outputs"][0]["sqnr_db"]
    assert decibels == pytest.approx(sqnr(wanted(X), compiled(precision="int2")(X)), abs=0.05)
    assert decibels < 20
    assert note.startswith(f"warning: int2: output out0 has {decibels:.1f} dB")
    assert "max_pool" in note or "relu" in note
    assert note in report.text()


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("factor", [255.0, 0.01])
def test_data_of_another_scale_is_a_warning(factor: float, norm: bool) -> None:
    (note,) = warnings(compiled(factor, norm=norm))
    assert "another scale than the training data" in note
    assert warnings(compiled(norm=norm)) == []


@pytest.mark.parametrize("data", [0 * X, 0 * X + 3])
def test_constant_data_is_refused(data: Any) -> None:
    with pytest.raises(InputError, match=r"constant: .* in all elements of 48"):
        compile_on(data)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.bool_])
def test_integers_for_floats_are_refused(dtype: Any) -> None:
    pixels = (255 * X).astype(dtype)
    with pytest.raises(InputError, match="scale it as in training"):
        compile_on(pixels)
    program = compiled()
    for given in (pixels, torch.from_numpy(pixels)):
        with pytest.raises(InputError, match="scale it as in training"):
            program(given)


def test_a_layer_that_calibration_never_woke_is_named() -> None:
    module = network()
    with torch.no_grad():
        module[4].bias.fill_(-100.0)
    (note,) = warnings(cuvil.compile(module, "cpu", torch.zeros(1, 1, 8, 8), X, "int8"))
    assert "always 0 in calibration" in note
    assert "relu" in note


def test_evaluate_counts_what_labels_and_floats_say(tmp_path: Any) -> None:
    program, floats = compiled(), wanted(X)
    labels = floats.argmax(1)
    labels[:10] = (labels[:10] + 1) % 5
    found = program.evaluate(X, labels, top=(1, 2))
    got = program(X)
    assert found.samples == len(X)
    assert found.accuracy == found.top[1] == (got.argmax(1) == labels).mean() < 1
    assert found.top[2] == np.mean([label in np.argsort(-row)[:2] for row, label in zip(got, labels, strict=True)])
    assert found.float_accuracy == (floats.argmax(1) == labels).mean()
    assert found.sqnr_db["out0"] == pytest.approx(sqnr(floats, got), abs=0.05)
    assert not found.warnings
    program.save(tmp_path / "net.cuvil")
    loaded = cuvil.load(tmp_path / "net.cuvil")
    assert loaded.evaluate(X, labels).sqnr_db == {}  # an artifact has no float model
    given = loaded.evaluate(X, reference=lambda x: network()(torch.from_numpy(x)).detach())
    assert given.sqnr_db == pytest.approx(found.sqnr_db, abs=0.05)
    assert given.accuracy is None
    with pytest.raises(InputError, match="labels"):
        program.evaluate(X, labels[:5])
    with pytest.raises(InputError, match="shape"):
        program.evaluate(X[:, :, :4])


@pytest.mark.parametrize(("factor", "what"), [(0.01, "saturate"), (255.0, "less than 4 bits")])
def test_evaluate_names_inputs_of_another_scale_than_in_calibration(factor: float, what: str) -> None:
    warnings = compiled(factor).evaluate(X).warnings
    assert any(what in w for w in warnings)
    assert any("signal to noise" in w for w in warnings)


class Doubling(nn.Module):
    """Writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.mul_(2))


def test_evaluate_leaves_data_that_the_model_writes_into() -> None:
    x = RNG.normal(size=(32, 4)).astype(np.float32)
    model, kept = Doubling().eval(), x.copy()

    def floats(a: np.ndarray[Any, Any]) -> torch.Tensor:
        return model(torch.from_numpy(a)).detach()

    program = cuvil.compile(model, "cpu", torch.zeros(1, 4), x.copy(), "int8")
    assert isinstance(program, cuvil.Executable)
    by_itself = program.evaluate(x).sqnr_db["out0"]
    assert by_itself is not None
    assert by_itself > 30
    assert program.evaluate(x, reference=floats).sqnr_db["out0"] == pytest.approx(by_itself, abs=0.05)
    assert np.array_equal(x, kept)
    x.flags.writeable = False
    assert program.evaluate(x).sqnr_db["out0"] == by_itself
    assert copy(program).evaluate(x).sqnr_db["out0"] == by_itself


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (np.zeros((47, 5)), r"float64 \(47, 5\), expected numbers \(48, 1, 5\), a row for each of 48 samples"),
        (np.zeros((49, 5)), "a row for each of 48 samples"),
        (np.zeros((5, 48)), "a row for each of 48 samples"),
        ((np.zeros((48, 5)), np.zeros((48, 5))), "has 2 outputs; the program has 1: out0"),
        (np.full((48, 5), "a"), "expected numbers"),
        (lambda x: [x, x], "has 2 outputs"),
        (lambda x: np.zeros(4), r"\(4,\), expected numbers \(1, 5\)"),
        (lambda x: [[0.0] * 5, [0.0]], "has 2 outputs"),
        (lambda x: ([[0.0], [0.0, 1.0]],), "is no array"),
    ],
)
def test_a_reference_that_does_not_fit_is_refused(reference: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        compiled().evaluate(X, reference=reference)


def test_what_is_not_a_number_is_no_right_answer() -> None:
    scores = np.array([[np.nan] * 3, [5, np.nan, 0], [5, 1, 0], [np.inf, 1, 0]], np.float32)
    assert ranked(scores, np.zeros(4, int), (1, 2)) == {1: 0.5, 2: 0.5}
    total = Noise()
    total.add(scores[2], scores[1])
    assert (total.decibels, total.same_largest) == (-99.0, 0.0)
    total = Noise()
    total.add(scores[3], scores[3])
    assert (total.decibels, total.same_largest) == (None, 1.0)
