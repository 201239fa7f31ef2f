"""An LSTM that keeps its state from call to call, as BANG C for a Cambricon MLU, over a simulated driver.

python examples/mlu_bang.py
python examples/mlu_bang.py --target mlu270
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch
from torch import nn

import cuvil

STEPS = 20
LARGEST_DIFFERENCE = 1e-5


class Tracker(nn.Module):
    """One step of an LSTM; its state lives in buffers, which the compiled program keeps, too."""

    hidden: torch.Tensor
    cell: torch.Tensor

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.step, self.head = nn.LSTMCell(4, size), nn.Linear(size, 2)
        self.register_buffer("hidden", torch.zeros(1, size))
        self.register_buffer("cell", torch.zeros(1, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, cell = self.step(x, (self.hidden, self.cell))
        self.hidden.copy_(hidden)
        self.cell.copy_(cell)
        position: torch.Tensor = self.head(hidden)
        return position


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="mlu370-x4", help="mlu370-x4 or mlu270")
    target = parser.parse_args(argv).target

    torch.manual_seed(0)
    model = Tracker().eval()
    samples = np.random.default_rng(0).standard_normal((STEPS, 1, 4)).astype(np.float32)
    difference = 0.0
    with torch.no_grad(), cuvil.compile(model, target, samples[0], interface="sim") as program:
        for sample in samples:
            wanted = model(torch.from_numpy(sample)).numpy()
            difference = max(difference, float(np.abs(program(sample) - wanted).max()))
    print(f"kept between calls: {', '.join(program.state)}")
    print(f"sources: {', '.join(program.sources)}")
    print(f"largest difference to PyTorch over {STEPS} calls: {difference:.2g}")
    return 0 if difference <= LARGEST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
