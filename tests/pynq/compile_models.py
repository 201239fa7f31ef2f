"""Makes the artifacts of the board tests, and what they must compute. Runs where the compiler is installed; the board
tests run where only numpy, pyyaml and pynq are. Usage: compile_models.py FOLDER MODELS"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import cuvil
from cuvil_hw import api
from cuvil_hw.ir.program import Program, evaluate, parse


class TwoPorts(torch.nn.Module):
    """Two inputs, two outputs, sizes that fill no whole stream word."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 5, 3, padding=1)
        self.dense = torch.nn.Linear(7, 3)

    def forward(self, image: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(self.conv(image)), self.dense(row)


def main(folder: Path, models: Path) -> None:
    draw = np.random.default_rng(5)
    kws = models / "kws_ref_model.onnx"
    executable = cuvil.compile(kws, "pynq-z2")
    executable.save(folder / "kws.cuvil")
    x = (draw.normal(size=(64, 490)) * 40).astype(np.float32)
    program = api.import_model(kws, None, None, None)
    y = np.concatenate([evaluate(program, [row[None]])[0] for row in x])
    np.savez(folder / "kws.npz", x0=x, y0=y)

    torch.manual_seed(3)
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
    return parse(executable.ir, executable.artifact.constants())  # type: ignore[arg-type]  # any mapping will do


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
