"""Makes the artifacts of the board tests, and what they must compute. Runs where the compiler is installed; the board
tests run where only numpy, pyyaml and pynq are. Usage: compile_models.py FOLDER [MODELS]: without the folder of shared
models, all but the artifact of kws."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import cuvil
from cuvil_hw import api
from cuvil_hw.compile.golden import meaning as meaning_of
from cuvil_hw.ir.program import Program, evaluate
from cuvil_hw.ops import base
from cuvil_hw.target.profile import load_profile
from tests.support.meaning_cases import everything


class TwoPorts(torch.nn.Module):
    """Two inputs, two outputs, sizes that fill no whole stream word."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 5, 3, padding=1)
        self.dense = torch.nn.Linear(7, 3)

    def forward(self, image: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(self.conv(image)), self.dense(row)


class Keywords(torch.nn.Sequential):
    """A keyword spotter of separable convolutions on 49 frames of 10 coefficients; its weights are random."""

    def __init__(self, channels: int = 8, words: int = 12) -> None:
        norm, relu = torch.nn.BatchNorm2d, torch.nn.ReLU
        first = torch.nn.Conv2d(1, channels, (10, 4), stride=2, padding=(5, 1))
        depthwise = torch.nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        pointwise = torch.nn.Conv2d(channels, channels, 1)
        separable = (depthwise, norm(channels), relu(), pointwise, norm(channels), relu())
        ends = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(channels, words))
        super().__init__(first, norm(channels), relu(), *separable, *ends, torch.nn.Softmax(1))


class Digits(torch.nn.Sequential):
    """Images of 8×8 pixels."""

    def __init__(self) -> None:
        relu = torch.nn.ReLU
        first, second = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Conv2d(4, 8, 3, padding=1)
        ends = (torch.nn.Flatten(), torch.nn.Linear(32, 10))
        super().__init__(first, relu(), torch.nn.MaxPool2d(2), second, relu(), torch.nn.MaxPool2d(2), *ends)


def main(folder: Path, models: Path | None) -> None:
    draw = np.random.default_rng(5)
    if models is not None:
        kws = models / "kws_ref_model.onnx"
        executable = cuvil.compile(kws, "pynq-z2")
        executable.save(folder / "kws.cuvil")
        x = (draw.normal(size=(64, 490)) * 40).astype(np.float32)
        program = api.import_model(kws, None, None, None)
        y = np.concatenate([evaluate(program, [row[None]])[0] for row in x])
        np.savez(folder / "kws.npz", x0=x, y0=y)

    # What every op gives on the NumPy that everything else is tested with.
    results = [base.evaluate(c.op, c.arrays) for c in everything()]
    np.savez(folder / "ops.npz", **{f"{n}_{k}": a for n, found in enumerate(results) for k, a in enumerate(found)})

    torch.manual_seed(3)
    words = Keywords().eval()
    sounds = draw.normal(size=(32, 1, 49, 10)).astype(np.float32)
    for target in ("pynq-z2", "cpu"):
        executable = cuvil.compile(words, target, sounds[:1], sounds, "int8", name="keywords")
        executable.save(folder / f"keywords-{target}.cuvil")
        program = level1(executable)
        y = np.concatenate([evaluate(program, [row[None]])[0] for row in sounds])
        np.savez(folder / f"keywords-{target}.npz", x0=sounds, y0=y)

    profile = load_profile("pynq-z2")
    core = replace(profile, settings={**profile.settings, "flow": "rtl"})
    images = draw.normal(size=(12, 1, 8, 8)).astype(np.float32)
    executable = cuvil.compile(Digits().eval(), core, images[:1], images, "int8", name="digits")
    executable.save(folder / "digits-rtl.cuvil")
    program = level1(executable)
    y = np.concatenate([evaluate(program, [row[None]])[0] for row in images])
    np.savez(folder / "digits-rtl.npz", x0=images, y0=y)

    temporal = replace(profile, settings={**profile.settings, "style": "temporal"})
    executable = cuvil.compile(words, temporal, sounds[:1], sounds, "int8", name="keywords")
    executable.save(folder / "temporal-pynq-z2.cuvil")
    program = level1(executable)
    y = np.concatenate([evaluate(program, [row[None]])[0] for row in sounds])
    np.savez(folder / "temporal-pynq-z2.npz", x0=sounds, y0=y)

    shapes = ((1, 3, 5, 5), (1, 7))
    inputs = tuple(draw.normal(size=(32, *s[1:])).astype(np.float32) for s in shapes)
    example = tuple(torch.zeros(s) for s in shapes)
    for target in ("pynq-z2", "kv260"):
        executable = cuvil.compile(TwoPorts().eval(), target, example, inputs, "int8", name="two_ports")
        executable.save(folder / f"two_ports-{target}.cuvil")
        program = level1(executable)
        outputs = [evaluate(program, [a[n : n + 1] * 3 for a in inputs]) for n in range(32)]
        expected = [np.concatenate(o) for o in zip(*outputs, strict=True)]
        np.savez(
            folder / f"two_ports-{target}.npz",
            **{f"x{n}": a * 3 for n, a in enumerate(inputs)},
            **{f"y{n}": a for n, a in enumerate(expected)},
        )


def level1(executable: cuvil.Executable) -> Program:
    """The quantized program of an artifact, by its text and constants: what its bits are defined by."""
    return meaning_of(executable.artifact)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
