"""rule4ml's predictions for the held-out rows of benchmarks/cost_model.py, as CSV for its `--rule4ml`.

    PYTHONPATH=.:benchmarks python benchmarks/peers/rule4ml_predict.py -o rule4ml.csv

Needs an environment of its own with `pip install rule4ml torch-geometric` (0.2.0 was tried); the predictors come with
it. A row is a Keras model of one Dense layer; precision is ap_fixed<bits, bits/2>. The rows are for a U250; they
don't say which releases of hls4ml and Vitis made them, so these are assumed (--hls4ml, --vivado).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

import keras
from cost_model import DATA, FILE, QUANTITIES, rows
from rule4ml.models.wrappers import MultiModelWrapper

COLUMNS = {"dsp": "DSP", "bram18": "BRAM", "lut": "LUT", "ff": "FF"}


def dense(d_in: int, d_out: int) -> keras.Model:
    inputs = keras.layers.Input(shape=(d_in,))
    model = keras.Model(inputs, keras.layers.Dense(d_out)(inputs), name=f"dense_{d_in}_{d_out}")
    model.build((None, d_in))
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--board", default="alveo-u250")
    parser.add_argument("--hls4ml", default="0.8.1", help="its release, as rule4ml knows it")
    parser.add_argument("--vivado", default="2023.1", help="the tool's, as rule4ml knows it")
    parser.add_argument("--every", type=int, default=1, help="only one in so many pairs of width and reuse factor")
    chosen = parser.parse_args()
    estimator = MultiModelWrapper()
    estimator.load_default_models()
    shapes = defaultdict(set)
    for row in rows(DATA / FILE):
        if row.held_out:
            shapes[row.bits, row.rf].add((row.d_in, row.d_out))
    with chosen.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["d_in", "d_out", "prec", "rf", *QUANTITIES])
        for (bits, rf), some in sorted(shapes.items())[:: chosen.every]:
            model = {"strategy": "resource", "precision": f"ap_fixed<{bits}, {bits // 2}>", "reuse_factor": rf}
            config = {"board": chosen.board, "model": model}
            found = estimator.predict(
                [dense(*shape) for shape in sorted(some)],
                hls_configs=config,
                hls4ml_versions=chosen.hls4ml,
                vivado_versions=chosen.vivado,
            )
            means = found.groupby("Model")[list(COLUMNS.values())].mean()
            for d_in, d_out in sorted(some):
                figures = means.loc[f"dense_{d_in}_{d_out}"]
                writer.writerow([d_in, d_out, bits, rf, *(figures[COLUMNS[q]] for q in QUANTITIES)])
            print(f"{bits} bits, reuse {rf}: {len(some)} layers", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
