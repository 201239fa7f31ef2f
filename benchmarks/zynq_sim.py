"""Simulating an FPGA design: Cuvil beside hls4ml, in one run, on the same network and samples.

    python benchmarks/zynq_sim.py [--hls4ml-python PATH] [--json FILE]

The network is an MLP 16-64-32-32-5 with ReLU at fixed<16,6> (ap_fixed<16,6>), which needs no calibration. Measured on
this machine, in turns, each tool in processes of its own:

- The time from the PyTorch module to the first simulated result. For Cuvil that is capture, quantization, choice of the
  folding for the board, code, report and artifact, and g++ at -O0; it leaves out the -O3 library, which is compiled in
  the background afterwards and shown as "fast library ready" (wall and processor time, all included), and what all
  designs share (the runner and a precompiled header), made by the first compilation after an installation and shown
  apart. Fresh processes start with an empty cache, so that figure holds both. For hls4ml it is conversion, writing the
  project, and g++ at its own settings. No design of either tool is ever built twice.
- Simulated samples per second over the whole call, conversion from and to floats included. Cuvil uses all cores.

hls4ml runs as its documentation shows: Vitis backend, reuse factor 1. Cuvil's designs are streaming dataflow designs,
so the peer is io_type="io_stream", and the goals are judged against it, on the wall and, for the first result, in
processor time. io_parallel, a fully unrolled design, is shown beside it. No accuracy is traded: all outputs are
compared with the float model.
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
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

PEERS = Path(__file__).resolve().parent / "peers"
ROOT = PEERS.parent.parent
LAYERS = (16, 64, 32, 32, 5)
TARGETS = ("pynq-z2",)
IO_TYPES = ("io_parallel", "io_stream")  # the last one is the peer that the goals are judged against
COMPILE_GOAL, SAMPLES_GOAL = 10.0, 100.0
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What one tool measured over all rounds.

    `fresh_s`: first compilation of a process, import of the library included; `loaded_s`: later ones, `loaded_cpu_s`
    their processor time; `samples_s`, `samples_cpu_s`: samples per second of each run, per second of processor time;
    `whole_s`, `whole_cpu_s`: as `loaded_s`, until nothing goes on in the background; `shared_s`: (wall, processor) of
    what all designs share, per process; `outputs`: (samples, classes)."""

    name: str
    version: str
    fresh_s: tuple[float, ...]
    loaded_s: tuple[float, ...]
    loaded_cpu_s: tuple[float, ...]
    samples_s: tuple[float, ...]
    samples_cpu_s: tuple[float, ...]
    outputs: Array
    whole_s: tuple[float, ...] = ()
    whole_cpu_s: tuple[float, ...] = ()
    shared_s: tuple[tuple[float, float], ...] = ()


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
        tuple(s for r in runs for s in r["samples_cpu_s"]),
        np.asarray(runs[-1]["outputs"]),
        tuple(s for r in runs for s in r.get("whole_s", ())),
        tuple(s for r in runs for s in r.get("whole_cpu_s", ())),
        tuple((wall, cpu) for wall, cpu in (r["shared_s"] for r in runs if "shared_s" in r)),
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


def compare(ours: Result, peer: Result) -> dict[str, float]:
    """Ratios (above 1: Cuvil is faster), of the best and of the median of each."""
    return {
        "compile_ratio": min(peer.loaded_s) / min(ours.loaded_s),
        "compile_ratio_median": median(peer.loaded_s) / median(ours.loaded_s),
        "compile_cpu_ratio": min(peer.loaded_cpu_s) / min(ours.loaded_cpu_s),
        "compile_cpu_ratio_median": median(peer.loaded_cpu_s) / median(ours.loaded_cpu_s),
        "whole_ratio": min(peer.loaded_s) / min(ours.whole_s),
        "whole_ratio_median": median(peer.loaded_s) / median(ours.whole_s),
        "fresh_ratio": min(peer.fresh_s) / min(ours.fresh_s),
        "fresh_ratio_median": median(peer.fresh_s) / median(ours.fresh_s),
        "samples_ratio": max(ours.samples_s) / max(peer.samples_s),
        "samples_ratio_median": median(ours.samples_s) / median(peer.samples_s),
        "samples_cpu_ratio": max(ours.samples_cpu_s) / max(peer.samples_cpu_s),
        "samples_cpu_ratio_median": median(ours.samples_cpu_s) / median(peer.samples_cpu_s),
    }


GOALS = {
    "compile_ratio": COMPILE_GOAL,
    "compile_cpu_ratio": COMPILE_GOAL,
    "samples_ratio": SAMPLES_GOAL,
}
NAMES = {
    "compile_ratio": "model to first result, wall",
    "compile_cpu_ratio": "… processor time",
    "whole_ratio": "… until the fast library is ready",
    "fresh_ratio": "… fresh process, empty cache",
    "samples_ratio": "samples/s, whole call",
    "samples_cpu_ratio": "… per second of processor time",
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
    """Print the tables; the same figures as data. `results`: Cuvil's, then the peers, the one to be judged by last."""
    ours, peers = [r for r in results if r.whole_s], [r for r in results if not r.whole_s]
    print(f"MLP {'-'.join(map(str, LAYERS))}, fixed<16,6>, {samples:,} samples; {machine()}\n")
    row = "{:<28}{:>20}{:>20}{:>20}{:>26}{:>30}"
    print(row.format("", "fresh process", "first result", "… processor", "samples/s", "off the float model"))
    print(row.format("", *["min / median"] * 3, "max / median", "rms / largest / same class"))
    found: dict[str, Any] = {"machine": machine(), "samples": samples, "tools": {}, "comparisons": {}}
    for r in results:
        a = agreement(r.outputs, wanted)
        cells = (
            *(f"{min(s):.2f} / {median(s):.2f} s" for s in (r.fresh_s, r.loaded_s, r.loaded_cpu_s)),
            f"{max(r.samples_s):,.0f} / {median(r.samples_s):,.0f}",
            f"{a['rms']:.4f} / {a['largest']:.4f} / {a['same_class']:.2%}",
        )
        print(row.format(f"{r.name} {r.version}", *cells))
        figures = {f.name: getattr(r, f.name) for f in fields(r) if f.name not in ("name", "outputs")}
        found["tools"][r.name] = figures | a
    for r in ours:
        print(
            f"\n{r.name}: fast library ready after {min(r.whole_s):.2f} / {median(r.whole_s):.2f} s, processor "
            f"{min(r.whole_cpu_s):.2f} / {median(r.whole_cpu_s):.2f} s, first result included; once per installation "
            f"{min(w for w, _ in r.shared_s):.2f} s, processor {min(c for _, c in r.shared_s):.2f} s"
        )
    for r in ours:
        for peer in peers:
            c = compare(r, peer)
            found["comparisons"][f"{r.name}, {peer.name}"] = c
            print(f"\n{r.name} beside {peer.name}")
            for key, what in NAMES.items():
                verdict = ""
                if peer is peers[-1] and key in GOALS:
                    verdict = f"goal {GOALS[key]:g}×  {'pass' if c[key] >= GOALS[key] else 'FAIL'}"
                print(f"  {what:<36}{c[key]:8.1f}×  (median {c[f'{key}_median']:.1f}×)   {verdict}".rstrip())
    found["passed"] = all(compare(r, peers[-1])[key] >= goal for r in ours for key, goal in GOALS.items())
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hls4ml-python", default=sys.executable, help="an interpreter that has hls4ml and torch")
    parser.add_argument("--target", action="append", help=f"board; repeatable (default: {', '.join(TARGETS)})")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=2, help="processes per tool; the tools take turns")
    parser.add_argument("--compiles", type=int, default=3, help="compilations in each process")
    parser.add_argument("--repeats", type=int, default=5, help="runs over all samples in each process")
    parser.add_argument("--json", type=Path, help="write the figures here")
    chosen = parser.parse_args(argv)
    targets = chosen.target or TARGETS
    arrays = data(chosen.samples)
    runs: dict[str, list[dict[str, Any]]] = {}
    repeats = ("--repeats", str(chosen.repeats), "--compiles", str(chosen.compiles))
    with tempfile.TemporaryDirectory(prefix="cuvil-bench-") as folder:
        weights = Path(folder) / "network.npz"
        np.savez(weights, **arrays)  # type: ignore[arg-type]
        for turn in range(chosen.rounds):
            for target in targets:
                print(f"round {turn + 1}: cuvil for {target} …", file=sys.stderr)
                found = drive(sys.executable, "cuvil_driver.py", weights, "--target", target, *repeats)
                runs.setdefault(f"cuvil {target}", []).append(found)
            for io_type in IO_TYPES:
                print(f"round {turn + 1}: hls4ml {io_type} …", file=sys.stderr)
                found = drive(chosen.hls4ml_python, "hls4ml_driver.py", weights, "--io-type", io_type, *repeats)
                runs.setdefault(f"hls4ml {io_type}", []).append(found)
    figures = show([collect(name, each) for name, each in runs.items()], of_float(arrays), chosen.samples)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0 if figures["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
