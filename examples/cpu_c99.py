"""A small convolutional network as C99, in floats and in int8: how near to PyTorch, how fast, how large.

python examples/cpu_c99.py                              # this kind of processor
python examples/cpu_c99.py --target aarch64-linux-gnu   # with a cross compiler, and qemu-aarch64 to run it
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import cuvil

LEAST_DB = {"float32": 100.0, "int8": 30.0}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("build/cpu_c99"))
    chosen = parser.parse_args(argv)
    chosen.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(1024, 10))
    images = np.random.default_rng(0).standard_normal((64, 3, 32, 32)).astype(np.float32)  # use real ones here
    with torch.no_grad():
        wanted = model(torch.from_numpy(images)).numpy()

    good = True
    for precision, least in LEAST_DB.items():
        calibration = images if precision == "int8" else None
        with cuvil.compile(model.eval(), chosen.target, images[:1], calibration, precision) as program:
            run = program.run(images)
        path = chosen.out / f"net.{precision}.cuvil"
        program.save(path)  # cuvil.load(path) needs neither PyTorch nor the compiler
        decibels = 10 * np.log10((wanted**2).sum() / ((run.outputs[0] - wanted) ** 2).sum())
        microseconds = 1e6 * run.device_seconds / run.samples
        print(f"{precision:8} {decibels:6.1f} dB against PyTorch, {microseconds:.0f} µs a sample (measured)")
        print(f"         {path}, {path.stat().st_size:,} bytes; sources: {', '.join(program.sources)}")
        good &= bool(decibels >= least)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
