"""A design is no wider than its ports can feed, says so, and a wider port changes it."""

from __future__ import annotations

from pathlib import Path

import pytest

import cuvil
from cuvil_hw.runtime.executable import Executable

pytestmark = [pytest.mark.must_run, pytest.mark.needs("torch", "ortools")]

CHANNELS, SIDE = 64, 8


def pointwise(folder: Path, bits: int) -> Executable:
    """A 1×1 convolution to four channels on ports of so many bits."""
    import torch

    torch.manual_seed(1)
    board = folder / f"ports{bits}.yaml"
    settings = f"settings: {{axi_stream_bits: {bits}, style: spatial}}"
    board.write_text(f"schema: cuvil-profile/1\nname: ports{bits}\nextends: pynq-z2\n{settings}\n")
    model = torch.nn.Conv2d(CHANNELS, 4, 1).eval()
    example = torch.randn(1, CHANNELS, SIDE, SIDE)
    return cuvil.compile(model, str(board), example_inputs=example, precision="int8", calibration=[(example,)])


def test_layers_are_as_fast_as_their_ports(tmp_path: Path) -> None:
    narrow, wide = (pointwise(tmp_path, bits) for bits in (32, 64))
    used = []
    for program, bits in ((narrow, 32), (wide, 64)):
        words = CHANNELS * SIDE * SIDE * 8 // bits
        (layer,) = program.report["layers"]
        timing = program.report["timing"]
        assert words <= timing["interval"] <= 1.01 * words
        assert any(name.startswith("read_") for name in program.report["bottleneck"]["processes"])
        assert layer["cycles"] <= words, "the layer keeps up with its port"
        assert layer["cycles"] > words / 2, "and isn't twice as wide as it"
        used.append(layer["use"]["dsp"] + layer["use"]["lut"])
    assert used[0] < used[1]
