"""Values that a model or a caller should not have: refused with a reason, or said plainly, and never made up."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.cli.main import main

DATA = np.random.default_rng(0).standard_normal((16, 5)).astype(np.float32)


def linear(weight: float = 0.5, bias: float = 0.0) -> nn.Module:
    layer = nn.Linear(5, 3)
    with torch.no_grad():
        layer.weight.fill_(0.25)[0, 0] = weight
        layer.bias.fill_(0.0)[0] = bias
    return layer.eval()


class Times(nn.Module):
    """A constant that is no weight of a layer."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * self.factor


def compiled(model: nn.Module, precision: Any = "fixed<12,4>", target: Any = "cpu", **more: Any) -> cuvil.Executable:
    return cuvil.compile(model, target, example_inputs=DATA[:1], precision=precision, **more)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (linear(math.nan), "holds NaN"),
        (linear(bias=math.nan), "holds NaN"),
        (linear(math.inf), "are infinite"),
        (linear(-math.inf), "are infinite"),
        (Times(math.nan), "holds NaN"),
    ],
    ids=["weight nan", "bias nan", "weight inf", "weight -inf", "factor nan"],
)
def test_constants_that_no_integer_stands_for_are_refused(model: nn.Module, reason: str) -> None:
    with pytest.raises(cuvil.CuvilError, match=reason):
        compiled(model)


def test_float_programs_keep_nan_and_infinite_weights() -> None:
    for value in (math.nan, math.inf):
        x = np.ones((1, 5), np.float32)
        got = compiled(linear(value), "float32")(x)
        assert np.array_equal(np.isfinite(got), [[False, True, True]])


def test_weights_beyond_a_fixed_grid_are_reported() -> None:
    notes = compiled(linear(200.0)).report.text()
    assert "fixed<12,4> holds [-8, 7.99609], but a weight of" in notes
    assert "is 200: it saturates" in notes
    assert "saturates" not in compiled(linear(7.9)).report.text()
    assert "is -9: it saturates" in compiled(linear(-9.0)).report.text()


def test_negative_variance_is_nan_without_a_warning() -> None:
    norm = nn.BatchNorm1d(5).eval()
    assert norm.running_var is not None
    norm.running_var[1] = -1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = compiled(norm, "float32")(DATA)
    assert np.array_equal(np.isnan(got), np.isnan(norm(torch.from_numpy(DATA)).detach().numpy()))
    assert np.isnan(got[:, 1]).all()
    assert np.isfinite(got[:, 0]).all()


def test_arguments_of_another_type() -> None:
    with pytest.raises(cuvil.CuvilError, match="precision is a int, expected text such as 'int8'"):
        compiled(linear(), 8)
    with pytest.raises(cuvil.ProfileError, match="is a int, expected the name of a target"):
        compiled(linear(), target=3)


def test_advice_is_given_once() -> None:
    with pytest.raises(cuvil.Unsupported) as caught:
        cuvil.compile(nn.Linear(5, 3).double(), "zynq", example_inputs=DATA[:1].astype("f8"), precision="float32")
    assert str(caught.value).count("convert the model to f32 first") == 1


BOARD = "schema: cuvil-profile/1\nname: b\nextends: pynq-z2\nsettings:\n  {}\n"


@pytest.mark.parametrize("bits", [0, -8, 7, 24, 2048])
def test_stream_widths_that_no_dma_has(tmp_path: Path, bits: int) -> None:
    board = tmp_path / "b.yaml"
    board.write_text(BOARD.format(f"axi_stream_bits: {bits}"))
    with pytest.raises(cuvil.ProfileError, match=rf"b\.yaml:5: settings\.axi_stream_bits: {bits} is not one of 8, 16"):
        compiled(linear(), target=board)


def test_check_finds_a_precision_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = tmp_path / "b.yaml"
    board.write_text(BOARD.format("precision: int99"))
    assert main(["targets", "check", str(board)]) == 1
    assert "b.yaml:5: settings.precision: unknown precision 'int99'" in capsys.readouterr().err


def test_without_a_command_there_is_help_and_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["targets"]):
        main(arguments)
        output = capsys.readouterr()
        assert "Usage: cuvil" in output.out
        assert "error" not in output.err
