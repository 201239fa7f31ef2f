"""Runs Cuvil's simulator on a network of linear and ReLU layers; the twin of hls4ml_driver.py, same files, same rules.

    python cuvil_driver.py WEIGHTS.npz RESULT.json --repeats N

WEIGHTS.npz holds w0, b0, w1, b1 … (PyTorch's layout) and x (N, features). Each compilation is timed from the PyTorch
module to the first simulated result, with weights of its own; the first one includes the import of the library and
starts with an empty cache. Later ones find in the cache what designs share, and nothing else. What goes on in the
background afterwards is timed too. Then runs of all samples, repeatedly.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from network import clocks, mlp


def measure(weights: Any, target: str, precision: str, compiles: int, repeats: int) -> dict[str, Any]:
    x = weights["x"]
    first: list[tuple[float, float]] = []
    whole: list[tuple[float, float]] = []
    for variant in reversed(range(compiles)):
        model = mlp(weights, variant)
        start = clocks()
        import cuvil
        from cuvil_hw.adapters.zynq import device

        device._PATIENCE_S = 0.0  # the fast library is measured, too, so it is begun at once

        program = cuvil.compile(model, target, example_inputs=x[:1], precision=precision)
        program(x[:1])
        first.append(since(start))
        from cuvil_hw.runtime.background import wait_for_all

        wait_for_all()
        whole.append(since(start))
    rates, cpu_rates = [], []
    for _ in range(repeats):
        start = clocks()
        run = program.run(x)
        wall, cpu = since(start)
        rates.append(len(x) / wall)
        cpu_rates.append(len(x) / cpu)
    return {
        "version": cuvil.__version__,
        "fresh_s": first[0][0],
        "loaded_s": [wall for wall, _ in first[1:]],
        "loaded_cpu_s": [cpu for _, cpu in first[1:]],
        "whole_s": [wall for wall, _ in whole[1:]],
        "whole_cpu_s": [cpu for _, cpu in whole[1:]],
        "shared_s": shared(program.sources["src/cuvil_hls.h"]),
        "samples_s": rates,
        "samples_cpu_s": cpu_rates,
        "outputs": np.asarray(run.outputs[0]).reshape(len(x), -1).tolist(),
    }


def since(start: tuple[float, float]) -> tuple[float, float]:
    """Seconds on the wall and of processors."""
    now = clocks()
    return now[0] - start[0], now[1] - start[1]


def shared(header: str) -> tuple[float, float]:
    """What the first design after an installation pays for all others: seconds on the wall and of processors."""
    from cuvil_hw.adapters.zynq import simbuild

    with tempfile.TemporaryDirectory(prefix="cuvil-bench-") as cache:
        os.environ["CUVIL_CACHE"] = cache
        start = clocks()
        simbuild.prepare(header.encode(), simbuild.QUICK)
        return since(start)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--target", default="pynq-z2")
    parser.add_argument("--precision", default="fixed<16,6>")
    parser.add_argument("--compiles", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with (
        np.load(options.weights, allow_pickle=False) as weights,
        tempfile.TemporaryDirectory(prefix="cuvil-bench-") as cache,
    ):
        os.environ["CUVIL_CACHE"] = cache
        result = measure(weights, options.target, options.precision, options.compiles, options.repeats)
    options.result.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
