"""Runs Cuvil's simulator on a network of linear and ReLU layers; the twin of hls4ml_driver.py, same files, same rules.

    python cuvil_driver.py WEIGHTS.npz RESULT.json --repeats N

WEIGHTS.npz holds w0, b0, w1, b1 … (PyTorch's layout) and x (N, features). Each compilation is timed from the PyTorch
module to the first simulated result, in an empty cache and with weights of its own; the first one includes the import
of the library. Then runs of all samples, repeatedly.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from network import clocks, mlp


def measure(weights: Any, target: str, precision: str, compiles: int, repeats: int) -> dict[str, Any]:
    x = weights["x"]
    seconds, cpu_seconds = [], []
    for variant in reversed(range(compiles)):
        model = mlp(weights, variant)
        with tempfile.TemporaryDirectory(prefix="cuvil-bench-") as cache:
            os.environ["CUVIL_CACHE"] = cache
            start, cpu_start = clocks()
            import cuvil

            program = cuvil.compile(model, target, example_inputs=x[:1], calibration=x[:256], precision=precision)
            program(x[:1])
            end, cpu_end = clocks()
            seconds.append(end - start)
            cpu_seconds.append(cpu_end - cpu_start)
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        run = program.run(x)
        rates.append(len(x) / (time.perf_counter() - start))
    return {
        "version": cuvil.__version__,
        "fresh_s": seconds[0],
        "loaded_s": seconds[1:],
        "loaded_cpu_s": cpu_seconds[1:],
        "samples_s": rates,
        "outputs": np.asarray(run.outputs[0]).reshape(len(x), -1).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--target", default="pynq-z2")
    parser.add_argument("--precision", default="fixed<16,6>")
    parser.add_argument("--compiles", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with np.load(options.weights, allow_pickle=False) as weights:
        result = measure(weights, options.target, options.precision, options.compiles, options.repeats)
    options.result.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
