"""A small transformer block as CUDA C++: its kernels, and their results on the simulator or on a GPU.

python examples/cuda_kernels.py                    # the same CUDA C++ on this processor
python examples/cuda_kernels.py --interface hw     # on the NVIDIA GPU that is here
"""

from __future__ import annotations

import argparse
import re
import sys

import numpy as np
import torch
from torch import nn

import cuvil

LARGEST_DIFFERENCE = 1e-4


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="h100", help="a100, h100, h200, orin or cuda:sm_XX")
    parser.add_argument("--interface", default="sim", choices=("sim", "sim-check", "hw"))
    chosen = parser.parse_args(argv)

    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).eval()
    words = np.random.default_rng(0).standard_normal((4, 12, 32)).astype(np.float32)
    with torch.no_grad():
        wanted = model(torch.from_numpy(words)).numpy()

    with cuvil.compile(model, chosen.target, words[:1], interface=chosen.interface) as program:
        run = program.run(words)
        report = program.report
    (source,) = (text for name, text in program.sources.items() if name.endswith(".cu"))
    kernels = re.findall(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", source)
    print(f"{len(kernels)} kernels of {len(report['layers'])} layers: {', '.join(kernels)}")
    difference = float(np.abs(run.outputs[0] - wanted).max())
    print(f"largest difference to PyTorch {difference:.2g}; {run.samples} samples on {program.interface}")
    if chosen.interface == "hw":
        print(f"{1e6 * run.device_seconds / run.samples:.0f} µs a sample (measured)")
    return 0 if difference <= LARGEST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
