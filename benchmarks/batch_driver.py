"""How fast the board's driver moves batches, apart from the fabric: through the simulated board (sim/pynq).

    .venv/bin/python -m cuvil_hw.cli compile kws.onnx --target pynq-z2 -o kws.cuvil    # where the compiler is
    .venv-pynq/bin/python benchmarks/batch_driver.py kws.cuvil [--samples 8192] [--runs 5]

The driver is the product's, over pynq's own classes; DMAs, memory and the fabric are simulated. The clock stands still
while the simulated fabric and its DMAs work (Fabric.settle), and what is left is the driver's: registers, copies into
and out of the DMA's buffers, cache flushes, waiting loops. "call" is the same for the whole call, with the processor's
own steps, such as quantizing floats. Figures are processor time of this machine, not of a board's Arm cores; the median
of the runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from pathlib import Path

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pynq complains once that this processor is no board's
    import pynq  # noqa: F401

import cuvil
from cuvil_hw import dtypes
from cuvil_hw.adapters.zynq.hw import LoadedBitstream
from cuvil_hw.runtime import artifact as container
from sim.pynq.dma import Fabric
from sim.pynq.setting import active, register


class Stopwatch:
    """Processor seconds inside of a method, over all calls."""

    def __init__(self, owner: type, name: str) -> None:
        self.seconds = 0.0
        inner = getattr(owner, name)

        def timed(*args: object, **named: object) -> object:
            start = time.process_time()
            try:
                return inner(*args, **named)
            finally:
                self.seconds += time.process_time() - start

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="a .cuvil file for a Zynq board, of the spatial style")
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    fabric, driver = Stopwatch(Fabric, "settle"), Stopwatch(LoadedBitstream, "run")
    rng = np.random.default_rng(0)
    with active() as board:
        register(board, container.read(given.program))
        with cuvil.load(given.program, "hw") as executable:
            inputs = [
                rng.normal(size=(given.samples, *p.shape[1:])).astype(dtypes.to_numpy(p.dtype))
                for p in executable.inputs
            ]
            rates: dict[str, list[float]] = {"driver": [], "call": []}
            executable.run(*[a[:1] for a in inputs])
            for _ in range(given.runs):
                fabric.seconds = driver.seconds = 0.0
                start = time.process_time()
                executable.run(*inputs)
                whole = time.process_time() - start
                rates["driver"].append(given.samples / (driver.seconds - fabric.seconds))
                rates["call"].append(given.samples / (whole - fabric.seconds))
    for name, found in rates.items():
        print(f"{name:>6}: {statistics.median(found):,.0f} samples/s")


if __name__ == "__main__":
    main()
