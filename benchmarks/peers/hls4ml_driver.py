"""Runs hls4ml on a network of linear and ReLU layers and writes what it measured as JSON; started by ../zynq_sim.py.

    python hls4ml_driver.py WEIGHTS.npz RESULT.json --io-type io_stream --repeats N

WEIGHTS.npz holds w0, b0, w1, b1 … (PyTorch's layout) and x (N, features). Needs hls4ml and torch. Each
conversion and compilation is timed from the PyTorch module to the first simulated result, in an empty folder and with
weights of its own; the first one includes the import of the library. Then predictions of all samples, repeatedly.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from network import clocks, mlp


def measure(weights: Any, precision: str, backend: str, io_type: str, compiles: int, repeats: int) -> dict[str, Any]:
    x = np.ascontiguousarray(weights["x"])
    seconds, cpu_seconds, rates, cpu_rates = [], [], [], []
    for variant in reversed(range(compiles)):
        model = mlp(weights, variant)
        with tempfile.TemporaryDirectory(prefix="hls4ml-bench-") as folder:
            start, cpu_start = clocks()
            import hls4ml

            config = hls4ml.utils.config_from_pytorch_model(
                model, input_shape=(x.shape[1],), granularity="model", backend=backend, default_precision=precision
            )
            hls = hls4ml.converters.convert_from_pytorch_model(
                model, output_dir=folder, hls_config=config, backend=backend, io_type=io_type
            )
            hls.compile()
            hls.predict(x[:1])
            end, cpu_end = clocks()
            seconds.append(end - start)
            cpu_seconds.append(cpu_end - cpu_start)
    for _ in range(repeats):
        start, cpu_start = clocks()
        y = hls.predict(x)
        end, cpu_end = clocks()
        rates.append(len(x) / (end - start))
        cpu_rates.append(len(x) / (cpu_end - cpu_start))
    return {
        "version": hls4ml.__version__,
        "fresh_s": seconds[0],
        "loaded_s": seconds[1:],
        "loaded_cpu_s": cpu_seconds[1:],
        "samples_s": rates,
        "samples_cpu_s": cpu_rates,
        "outputs": np.asarray(y).reshape(len(x), -1).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--precision", default="ap_fixed<16,6>")
    parser.add_argument("--backend", default="Vitis")
    parser.add_argument("--io-type", default="io_stream")
    parser.add_argument("--compiles", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with np.load(options.weights, allow_pickle=False) as weights, contextlib.redirect_stdout(sys.stderr):
        result = measure(
            weights, options.precision, options.backend, options.io_type, options.compiles, options.repeats
        )
    options.result.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
