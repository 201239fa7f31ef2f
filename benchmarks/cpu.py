"""How long a call takes on this processor, batch 1, beside ONNX Runtime, OpenVINO, torch eager and torch.compile.

    python benchmarks/cpu.py [--only jet_mlp,resnet18] [--threads 1] [--rounds 3] [--seconds 0.3] [--json FILE]

Every runtime is a process of its own; they are timed one after another, round after round, so that what else the
machine does meets all of them. A figure is the best round's microseconds, from NumPy arrays to NumPy arrays (torch:
from tensor to tensor). `best peer / ours` above 1 means that ours is faster. Files are models of shared/models; the
others are torch modules with fixed weights, which ONNX Runtime and OpenVINO get exported. OpenVINO runs in the
environment whose Python is given by --openvino, as it isn't a dependency; a runtime that can't run a model has no
figure.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from peers.cpu_models import MODULES, inputs_of  # noqa: E402

from cuvil_hw.report.text import table  # noqa: E402

FILES = {
    "ad": "ad_float",
    "kws": "kws_float",
    "ic_resnet": "ic_resnet_float",
    "vww": "vww_96_float",
    "ad_int8": "ad_deep_autoencoder",
    "kws_int8": "kws_ref_model",
    "ic_resnet_int8": "ic_resnet",
    "vww_int8": "vww_mobilenet_v1",
    "mnist_conv": "mnist_conv",
    "espcn": "espcn_float",
}
OURS = "cuvil"
PEERS = ("onnxruntime", "openvino", "torch_eager", "torch_compile")
Figures = dict[str, Any]


def file_inputs(model: Path) -> dict[str, Any]:
    """Numbers between 0 and 1 for every input, its open sizes 1."""
    import onnx

    graph = onnx.load(model).graph
    draw = np.random.default_rng(0)
    known = {t.name for t in graph.initializer}
    made = {}
    for value in graph.input:
        if value.name not in known:
            kind = value.type.tensor_type
            shape = [max(d.dim_value, 1) for d in kind.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            numbers = draw.random(shape) if np.issubdtype(dtype, np.floating) else draw.integers(0, 100, shape)
            made[value.name] = numbers.astype(dtype)
    return made


def export(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    import torch

    model, inputs = folder / f"{name}.onnx", inputs_of(name)
    names = [f"x{n}" for n in range(len(inputs))]
    torch.onnx.export(MODULES[name](), inputs, str(model), input_names=names, dynamo=True, verbose=False)
    return model, dict(zip(names, (x.numpy() for x in inputs), strict=True))


class Worker:
    """A runtime's process."""

    def __init__(self, python: str, runtime: str, threads: int) -> None:
        command = [python, str(ROOT / "benchmarks/peers/cpu_worker.py"), runtime, str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
                                         env=environment(threads))  # fmt: skip

    def ask(self, **what: Any) -> Mapping[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        answer: Mapping[str, Any] = json.loads(self._process.stdout.readline() or '{"error": "ended"}')
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def environment(threads: int) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}


@contextmanager
def workers(pythons: Mapping[str, str], threads: int) -> Iterator[dict[str, Worker]]:
    with ExitStack() as stack:
        made = {}
        for runtime, python in pythons.items():
            made[runtime] = Worker(python, runtime, threads)
            stack.callback(made[runtime].close)
        yield made


def measure(
    running: Mapping[str, Worker], models: Mapping[str, tuple[Path, Path]], rounds: int, seconds: float
) -> dict[str, Figures]:
    """By model: microseconds by runtime, seconds until the first answer, the ratio to the best peer."""
    found: dict[str, Figures] = {m: {"us": {}, "first_answer_s": {}} for m in models}
    for name, (model, inputs) in models.items():
        for runtime, worker in running.items():
            answer = worker.ask(load=name, model=str(model), inputs=str(inputs))
            if "error" in answer:
                found[name].setdefault("errors", {})[runtime] = answer["error"]
            else:
                found[name]["first_answer_s"][runtime] = answer["compile_s"]
    for _ in range(rounds):
        for name, figures in found.items():
            for runtime in figures["first_answer_s"]:
                answer = running[runtime].ask(time=name, seconds=seconds)
                if "us" in answer:
                    figures["us"][runtime] = min(answer["us"], figures["us"].get(runtime, math.inf))
    for figures in found.values():
        peers = {r: t for r, t in figures["us"].items() if r != OURS}
        if peers and OURS in figures["us"]:
            figures["best_peer"] = min(peers, key=peers.__getitem__)
            figures["ratio"] = peers[figures["best_peer"]] / figures["us"][OURS]
    return found


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def show(found: Mapping[str, Figures], runtimes: Sequence[str], threads: int) -> None:
    rows = []
    for name, figures in found.items():
        times = [f"{figures['us'][r]:,.1f}" if r in figures["us"] else "-" for r in runtimes]
        rows.append([name, *times, f"{figures['ratio']:.2f}" if "ratio" in figures else "-"])
    print(f"\n{threads} thread{'s' if threads > 1 else ''}, microseconds a call")
    columns = ["model", *runtimes, "best peer / ours"]
    print(table(columns, rows, [False, *[True] * (len(columns) - 1)]))
    for name, figures in found.items():
        for runtime, error in figures.get("errors", {}).items():
            if "KeyError" not in error:
                print(f"{name}: {runtime}: {error[:200]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of models, a,b,c")
    parser.add_argument("--peers", default=",".join(PEERS), help="runtimes to run beside, a,b,c")
    parser.add_argument("--threads", default="1", help="how many each runtime may use, a,b,c")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each runtime and model in a round")
    parser.add_argument("--openvino", default="", metavar="PYTHON", help="the Python of an environment with openvino")
    parser.add_argument("--models", type=Path, default=ROOT / "shared/models", help="the folder of the ONNX files")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    args = parser.parse_args()
    only = [n for n in args.only.split(",") if n]
    names = [n for n in (*FILES, *MODULES) if not only or n in only]
    pythons = dict.fromkeys((OURS, *args.peers.split(",")), sys.executable)
    if args.openvino:
        pythons["openvino"] = args.openvino
    elif importlib.util.find_spec("openvino") is None:
        pythons.pop("openvino", None)
        print("without OpenVINO: name the Python of an environment that has it with --openvino")
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="cuvil-bench-") as temporary:
        folder, models = Path(temporary), {}
        for name in names:
            model = args.models / f"{FILES[name]}.onnx" if name in FILES else folder / f"{name}.onnx"
            if name in FILES and not model.is_file():
                print(f"without {name}: there is no {model}")
                continue
            inputs = file_inputs(model) if name in FILES else export(name, folder)[1]
            np.savez(folder / f"{name}.npz", **inputs)
            models[name] = model, folder / f"{name}.npz"
        for threads in map(int, args.threads.split(",")):
            with workers(pythons, threads) as running:
                found = measure(running, models, args.rounds, args.seconds)
            show(found, list(pythons), threads)
            ratios = [f["ratio"] for f in found.values() if "ratio" in f]
            mean = geometric_mean(ratios) if ratios else math.nan
            print(f"geometric mean of best peer / ours: {mean:.3f}")
            figures[f"{threads}_threads"] = {"models": found, "geometric_mean": mean}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
