"""How far int8 is from float: Cuvil's and ONNX Runtime's, on the same 20 networks and the same calibration data.

    python benchmarks/quantized_against_ort.py [--only lstm,gru] [--json FILE]

ONNX Runtime's is quantize_static with its defaults (QDQ, minimum and maximum, one weight scale a tensor). Both are
compared with the float model in ONNX Runtime on data that calibration did not see; figures are signal to noise ratios
in dB, larger is better. Status 1 when Cuvil's is the lower one anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cuvil_hw.report.text import table
from tests.support.quantized_networks import (
    CALIBRATION,
    NETWORKS,
    TEST,
    network,
    onnx_runtime,
    ours,
    sqnr,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of networks, a,b,c")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    args = parser.parse_args()
    names = [n for n in NETWORKS if not args.only or n in args.only.split(",")]
    found: dict[str, dict[str, float]] = {}
    for name in names:
        net = network(name)
        found[name] = {"cuvil": sqnr(net.wanted, ours(net)), "onnxruntime": sqnr(net.wanted, onnx_runtime(net))}
    rows = [[n, f"{f['cuvil']:.1f}", f"{f['onnxruntime']:.1f}", f"{f['cuvil'] - f['onnxruntime']:+.1f}"]
            for n, f in found.items()]  # fmt: skip
    print(f"int8 against float, dB; {CALIBRATION} samples of calibration, {TEST} of test data\n")
    print(table(("network", "Cuvil", "ONNX Runtime", "difference"), rows, (False, True, True, True)))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(f["cuvil"] >= f["onnxruntime"] for f in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
