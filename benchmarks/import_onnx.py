"""How long a large ONNX graph takes from file to kernels.

    python benchmarks/import_onnx.py [--nodes 1000] [--repeat 3] [--json FILE]

The graph is residual blocks of Conv, BatchNormalization, Relu, Mul, Add and shape arithmetic as exporters write it
(Shape, Gather, Concat, Reshape). Import checks it and converts it; passes fold, take batch norms into the
convolutions, decompose, fuse and make kernels. Times are of the processor (one thread), the best of `--repeat`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cuvil_hw.adapters.target_check import adapter_for
from cuvil_hw.api import fuse, import_model
from cuvil_hw.compile.collecting import collecting_later
from cuvil_hw.compile.numbers import simplify
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.target.profile import load_profile

CHANNELS, SIZE = 16, 8
LIMIT = 5.0  # seconds for a thousand nodes


def model(nodes: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    made: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {"zero": np.int64(0), "rest": np.int64([CHANNELS, SIZE, SIZE])}
    x = "x"
    while len(made) < nodes:
        n = f"n{len(made)}_"
        constants |= {
            f"{n}w": rng.normal(size=(CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 12,
            **{f"{n}p{i}": rng.uniform(0.5, 1.5, CHANNELS).astype(np.float32) for i in range(4)},
            f"{n}f": np.float32(0.5),
        }
        made += [
            helper.make_node("Conv", [x, f"{n}w"], [f"{n}c"], pads=[1] * 4),
            helper.make_node("BatchNormalization", [f"{n}c", *[f"{n}p{i}" for i in range(4)]], [f"{n}b"]),
            helper.make_node("Relu", [f"{n}b"], [f"{n}r"]),
            helper.make_node("Mul", [f"{n}r", f"{n}f"], [f"{n}m"]),
            helper.make_node("Shape", [f"{n}m"], [f"{n}s"]),
            helper.make_node("Gather", [f"{n}s", "zero"], [f"{n}g"]),
            helper.make_node("Unsqueeze", [f"{n}g", "axes"], [f"{n}u"]),
            helper.make_node("Concat", [f"{n}u", "rest"], [f"{n}t"], axis=0),
            helper.make_node("Reshape", [f"{n}m", f"{n}t"], [f"{n}v"]),
            helper.make_node("Add", [f"{n}v", x], [f"{n}a"]),
        ]
        x = f"{n}a"
    constants["axes"] = np.int64([0])
    shape = [1, CHANNELS, SIZE, SIZE]
    graph = helper.make_graph(
        made, "large", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@collecting_later()
def measured(path: Path) -> dict[str, float]:
    start = time.process_time()
    program = import_model(str(path), None, None, None)
    imported = time.process_time()
    simplify(program)
    run_pipeline(program, ["integerize", "accumulators"])
    kernels = fuse(program, adapter_for(load_profile("cpu"), None)).kernels
    return {"import": imported - start, "passes": time.process_time() - imported, "kernels": len(kernels)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.onnx"
        onnx.save(model(given.nodes), path)
        runs = [measured(path) for _ in range(given.repeat)]
    best = {key: min(run[key] for run in runs) for key in runs[0]}
    total, limit = best["import"] + best["passes"], LIMIT * given.nodes / 1000
    print(
        f"{given.nodes} nodes: import {best['import']:.2f} s, passes {best['passes']:.2f} s to {best['kernels']:.0f} "
        f"kernels; {total:.2f} s of at most {limit:.1f} s: {total / limit:.2f}×"
    )
    if given.json is not None:
        given.json.write_text(json.dumps({"nodes": given.nodes, **best}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
