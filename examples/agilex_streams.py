"""A small int8 network as OpenCL C and SYCL for an Intel Agilex: kernels that stream to one another.

python examples/agilex_streams.py                          # the SYCL source, on a small header and g++
python examples/agilex_streams.py --interface sim          # the OpenCL source, on Intel's FPGA emulator
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import cuvil

LEAST_DB = 25.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interface", default="sim-sycl", choices=("sim-sycl", "sim"))
    parser.add_argument("--out", type=Path, default=Path("build/agilex_streams"))
    chosen = parser.parse_args(argv)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
    jets = np.random.default_rng(0).standard_normal((256, 16)).astype(np.float32)  # use real ones here
    with torch.no_grad():
        wanted = model(torch.from_numpy(jets)).numpy()

    with cuvil.compile(model, "agilex", jets[:1], jets, "int8", interface=chosen.interface) as program:
        scores = program(jets)
    for name, text in program.sources.items():
        path = chosen.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    report = program.report
    for total in report["totals"]:
        print(f"{total['axis']:8} {total['used']:10,.0f} of {total['limit']:10,.0f} ({total['origin']})")
    speed = report["throughput"]
    print(f"{speed['inferences_per_s']:,.0f} inferences/s ({speed['origin']})")
    decibels = 10 * np.log10((wanted**2).sum() / ((scores - wanted) ** 2).sum())
    print(f"{decibels:.1f} dB against PyTorch on {program.interface}")
    print(f"sources in {chosen.out}: {', '.join(program.sources)}")
    return 0 if decibels >= LEAST_DB else 1


if __name__ == "__main__":
    sys.exit(main())
