"""da4ml's designs of the int8 MLP of mlp_network.py as Verilog, for benchmarks/mlp_rtl.py.

    python benchmarks/peers/mlp_da4ml.py FOLDER

Needs an environment of its own with `pip install da4ml==0.6.0`. Every design takes a sample a cycle; they differ in how
many levels of adders stand between two registers. Each is run by da4ml itself on 200 samples before it is written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from da4ml.codegen.rtl import RTLModel
from da4ml.trace import FixedVariableArray, HWConfig, comb_trace
from mlp_network import SIZES, meaning, network, samples

CUTOFFS = (2, 4, 8)  # levels of adders a stage


def main() -> int:
    folder = Path(sys.argv[1])
    layers = network()
    shape = np.ones(SIZES[0], np.int8)
    x = FixedVariableArray.from_kif(shape, 7 * shape, 0 * shape, HWConfig(1, -1, -1))
    y = x
    for layer in layers:
        sums = y @ layer.weights.T.astype(np.float64) + layer.bias.astype(np.float64)
        signed = int(layer.lo < 0)
        y = sums.quantize(signed, 7 + layer.shift, -layer.shift, "SAT", "TRN") * 2.0**-layer.shift
    logic = comb_trace(x, y)
    given = samples(200)
    np.testing.assert_array_equal(logic.predict(given.astype(np.float64)), meaning(layers, given))
    for cutoff in CUTOFFS:
        name = f"da4ml_{cutoff}"
        model = RTLModel(logic, name, folder / name, latency_cutoff=cutoff)
        model.write()
        stages = len(model._pipe.solutions)
        found = {
            "tool": "da4ml 0.6.0",
            "point": f"a stage every {cutoff} adders",
            "top": name,
            "cycles": 1,
            "latency": stages,
            "files": sorted(str(p.relative_to(folder)) for p in (folder / name).rglob("*.v")),
            "ports": [("input", "", "clk"), ("input", "[127:0]", "model_inp"), ("output", "[39:0]", "model_out")],
        }
        (folder / f"{name}.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
