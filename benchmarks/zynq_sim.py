"""Simulating an FPGA design: Cuvil beside hls4ml, in one run, on the same network and samples.

    python benchmarks/zynq_sim.py [--hls4ml-python PATH] [--json FILE]

The network is an MLP 16-64-32-32-5 with ReLU at fixed<16,6> (ap_fixed<16,6>). Measured on this machine, in turns, each
tool in processes of its own: the time from the PyTorch module to the first simulated result, and simulated samples per
second over the whole call (conversion from and to floats included). hls4ml runs as its documentation shows: Vitis
backend, io_parallel, reuse factor 1, which is a fully unrolled design; Cuvil folds the design into the board's budget.
No accuracy is traded: both outputs are compared with the float model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

PEERS = Path(__file__).resolve().parent / "peers"
ROOT = PEERS.parent.parent
LAYERS = (16, 64, 32, 32, 5)
TARGETS = ("pynq-z2",)
COMPILE_GOAL, SAMPLES_GOAL = 10.0, 100.0
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What one tool measured over all rounds.

    `fresh_s`: first compilation of a process, import of the library included; `loaded_s`: later ones, `loaded_cpu_s`
    their processor time; `samples_s`: samples per second of each run; `outputs`: (samples, classes)."""

    name: str
    version: str
    fresh_s: tuple[float, ...]
    loaded_s: tuple[float, ...]
    loaded_cpu_s: tuple[float, ...]
    samples_s: tuple[float, ...]
    outputs: Array


def data(samples: int) -> dict[str, Array]:
    """Weights as PyTorch initialises them (uniform within 1/√inputs), samples of a standard normal distribution."""
    draw = np.random.default_rng(0)
    arrays = {"x": draw.standard_normal((samples, LAYERS[0])).astype(np.float32)}
    for n, (inputs, outputs) in enumerate(pairwise(LAYERS)):
        bound = inputs**-0.5
        arrays[f"w{n}"] = draw.uniform(-bound, bound, (outputs, inputs)).astype(np.float32)
        arrays[f"b{n}"] = draw.uniform(-bound, bound, outputs).astype(np.float32)
    return arrays


def of_float(arrays: Mapping[str, Array]) -> Array:
    """The network in f64."""
    y = arrays["x"].astype(np.float64)
    for n in range(len(LAYERS) - 1):
        y = y @ arrays[f"w{n}"].T.astype(np.float64) + arrays[f"b{n}"]
        if n + 2 < len(LAYERS):
            y = np.maximum(y, 0)
    return y


def drive(python: str, script: str, weights: Path, *arguments: str) -> dict[str, Any]:
    """One process; its result. Raises SystemExit with the end of its output when it fails."""
    result = weights.with_suffix(".json")
    command = [python, str(PEERS / script), str(weights), str(result), *arguments]
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def collect(name: str, runs: Sequence[Mapping[str, Any]]) -> Result:
    return Result(
        name,
        runs[0]["version"],
        tuple(r["fresh_s"] for r in runs),
        tuple(s for r in runs for s in r["loaded_s"]),
        tuple(s for r in runs for s in r["loaded_cpu_s"]),
        tuple(s for r in runs for s in r["samples_s"]),
        np.asarray(runs[-1]["outputs"]),
    )


def machine() -> str:
    """What it ran on, as the system tells it."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} CPUs{load}; {system}"


def compare(ours: Result, peer: Result) -> dict[str, Any]:
    """Ratios (above 1: Cuvil is faster), of the best and of the median of each."""
    return {
        "compile_ratio": min(peer.loaded_s) / min(ours.loaded_s),
        "compile_cpu_ratio": min(peer.loaded_cpu_s) / min(ours.loaded_cpu_s),
        "compile_ratio_median": median(peer.loaded_s) / median(ours.loaded_s),
        "fresh_ratio": min(peer.fresh_s) / min(ours.fresh_s),
        "samples_ratio": max(ours.samples_s) / max(peer.samples_s),
        "samples_ratio_median": median(ours.samples_s) / median(peer.samples_s),
    }


def agreement(outputs: Array, wanted: Array) -> dict[str, float]:
    """How close to the float model: root of the mean square of the difference, largest one, share of equal classes."""
    off = np.abs(outputs - wanted)
    return {
        "rms": float(np.sqrt((off**2).mean())),
        "largest": float(off.max()),
        "same_class": float((outputs.argmax(axis=1) == wanted.argmax(axis=1)).mean()),
    }


def show(results: Sequence[Result], wanted: Array, samples: int) -> dict[str, Any]:
    """Print the tables; the same figures as data."""
    peer = results[-1]
    print(f"MLP {'-'.join(map(str, LAYERS))}, fixed<16,6>, {samples:,} samples; {machine()}\n")
    head = ("", "fresh process", "library loaded", "samples/s", "off the float model")
    print("{:<26}{:>22}{:>22}{:>26}{:>40}".format(*head))
    print(
        "{:<26}{:>22}{:>22}{:>26}{:>40}".format("", *["min / median"] * 2, "max / median", "rms / largest / same class")
    )
    found: dict[str, Any] = {"machine": machine(), "samples": samples, "tools": {}, "comparisons": {}}
    for r in results:
        a = agreement(r.outputs, wanted)
        cells = (
            f"{min(r.fresh_s):.2f} / {median(r.fresh_s):.2f} s",
            f"{min(r.loaded_s):.2f} / {median(r.loaded_s):.2f} s",
            f"{max(r.samples_s):,.0f} / {median(r.samples_s):,.0f}",
            f"{a['rms']:.4f} / {a['largest']:.4f} / {a['same_class']:.2%}",
        )
        print("{:<26}{:>22}{:>22}{:>26}{:>40}".format(f"{r.name} {r.version}", *cells))
        found["tools"][r.name] = {
            "version": r.version,
            "fresh_s": r.fresh_s,
            "loaded_s": r.loaded_s,
            "loaded_cpu_s": r.loaded_cpu_s,
            "samples_s": r.samples_s,
            **a,
        }
    print()
    for r in results[:-1]:
        c = compare(r, peer)
        found["comparisons"][r.name] = c
        for what, ratio, middle, goal in (
            ("compile to first result", c["compile_ratio"], c["compile_ratio_median"], COMPILE_GOAL),
            ("simulated samples/s", c["samples_ratio"], c["samples_ratio_median"], SAMPLES_GOAL),
        ):
            verdict = "pass" if ratio >= goal else "FAIL"
            print(f"{r.name:<18} {what:<24} {ratio:7.1f}×  (median {middle:.1f}×)   goal {goal:g}×   {verdict}")
        print(
            f"{r.name:<18} {'… in processor time':<24} {c['compile_cpu_ratio']:7.1f}×  (a busy machine changes it less)"
        )
        print(f"{r.name:<18} {'… in a fresh process':<24} {c['fresh_ratio']:7.1f}×  (import of the library included)")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hls4ml-python", default=sys.executable, help="an interpreter that has hls4ml and torch")
    parser.add_argument("--target", action="append", help=f"board; repeatable (default: {', '.join(TARGETS)})")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=2, help="processes per tool; the tools take turns")
    parser.add_argument("--repeats", type=int, default=5, help="runs over all samples in each process")
    parser.add_argument("--json", type=Path, help="write the figures here")
    chosen = parser.parse_args(argv)
    targets = chosen.target or TARGETS
    arrays = data(chosen.samples)
    runs: dict[str, list[dict[str, Any]]] = {}
    repeats = ("--repeats", str(chosen.repeats))
    with tempfile.TemporaryDirectory(prefix="cuvil-bench-") as folder:
        weights = Path(folder) / "network.npz"
        np.savez(weights, **arrays)  # type: ignore[arg-type]
        for turn in range(chosen.rounds):
            for target in targets:
                print(f"round {turn + 1}: cuvil for {target} …", file=sys.stderr)
                found = drive(sys.executable, "cuvil_driver.py", weights, "--target", target, *repeats)
                runs.setdefault(f"cuvil {target}", []).append(found)
            print(f"round {turn + 1}: hls4ml …", file=sys.stderr)
            runs.setdefault("hls4ml", []).append(drive(chosen.hls4ml_python, "hls4ml_driver.py", weights, *repeats))
    figures = show([collect(name, each) for name, each in runs.items()], of_float(arrays), chosen.samples)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    passed = all(
        c["compile_ratio"] >= COMPILE_GOAL and c["samples_ratio"] >= SAMPLES_GOAL
        for c in figures["comparisons"].values()
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
