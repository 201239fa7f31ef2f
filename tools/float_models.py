"""Runs float models on every device that can run here and prints how far they are from ONNX Runtime and PyTorch.

    python tools/float_models.py                            # everything; .onnx files that aren't there are left out
    python tools/float_models.py --only bert,lstm --devices cpu,cuda

Prints one row a model, one column a device: the largest |y - r| / (|r| + largest |r|) of the outputs, at most
TOLERANCE (docs/numerics.md), or a number of the reasons below the table. Status 1 when an output is farther off, or a
device fails otherwise than by DoesNotFit or Unsupported.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import cuvil  # noqa: E402
from cuvil_hw.report.text import table  # noqa: E402
from tools import same_bits  # noqa: E402
from tools.same_bits import Array, Device, chosen, named, on_device  # noqa: E402

TOLERANCE = 1e-5
ZCU104 = Device("zcu104", "zcu104", ("sim",))
DEVICES = (*same_bits.DEVICES[:2], ZCU104, *same_bits.DEVICES[2:])
SHARED = ("kws_float", "ic_resnet_float", "mnist_conv", "espcn_float")


@dataclass(frozen=True)
class Case:
    """`wanted`: what ONNX Runtime or PyTorch gives for `x`; `example`: for cuvil.compile."""

    name: str
    model: Any
    x: Array
    wanted: Array
    example: Any = None


@dataclass(frozen=True)
class Result:
    """`error`: see the head of this file, None when it did not run; `why`: then the reason, else the interface."""

    error: float | None
    why: str
    good: bool


class Bert(nn.Module):
    """Two layers of self-attention over 16 tokens, 32 wide."""

    def __init__(self, wide: int = 32, heads: int = 2, layers: int = 2, tokens: int = 16, words: int = 50) -> None:
        super().__init__()
        self.heads = heads
        self.word, self.place, self.norm = nn.Embedding(words, wide), nn.Embedding(tokens, wide), nn.LayerNorm(wide)
        sizes = {"q": wide, "k": wide, "v": wide, "out": wide, "up": 2 * wide}
        self.layers = nn.ModuleList()
        for _ in range(layers):
            parts: dict[str, nn.Module] = {name: nn.Linear(wide, size) for name, size in sizes.items()}
            parts |= {"down": nn.Linear(2 * wide, wide), "first": nn.LayerNorm(wide), "second": nn.LayerNorm(wide)}
            self.layers.append(nn.ModuleDict(parts))
        self.head = nn.Linear(wide, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        b, t = words.shape
        x = self.norm(self.word(words) + self.place(torch.arange(t)))
        for layer in self.layers:
            q, k, v = (layer[n](x).reshape(b, t, self.heads, -1).transpose(1, 2) for n in ("q", "k", "v"))
            mixed = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
            x = layer["first"](x + layer["out"](mixed.transpose(1, 2).reshape(b, t, -1)))
            x = layer["second"](x + layer["down"](nn.functional.gelu(layer["up"](x))))
        y: torch.Tensor = self.head(x[:, 0])
        return y


def bert() -> Case:
    torch.manual_seed(0)
    model = Bert().eval()
    words = np.random.default_rng(0).integers(0, 50, (2, 16))
    with torch.no_grad():
        wanted = model(torch.from_numpy(words)).numpy()
    return Case("bert", model, words, wanted, torch.zeros(1, 16, dtype=torch.long))


def lstm(hidden: int = 8, wide: int = 5, steps: int = 6) -> Case:
    rng = np.random.default_rng(0)
    weights = {"W": (1, 4 * hidden, wide), "R": (1, 4 * hidden, hidden), "B": (1, 8 * hidden)}
    tensors = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32) * 0.4, n) for n, s in weights.items()]
    node = helper.make_node("LSTM", ["x", *weights], ["", "last"], hidden_size=hidden)
    kind = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [steps, 1, wide])
    last = helper.make_tensor_value_info("last", onnx.TensorProto.FLOAT, [1, 1, hidden])
    graph = helper.make_graph([node], "lstm", [kind], [last], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    x = np.random.default_rng(1).normal(size=(steps, 1, wide)).astype(np.float32)
    return Case("lstm", model, x, run_onnx(model.SerializeToString(), x, steps))


def shared(path: Path) -> Case:
    """A model of two samples with noise as input."""
    shape = _session(str(path)).get_inputs()[0].shape
    x = np.random.default_rng(0).normal(size=(2, *shape[1:])).astype(np.float32)
    return Case(path.stem, str(path), x, run_onnx(str(path), x, 1))


def _session(model: str | bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def run_onnx(model: str | bytes, x: Array, batch: int) -> Array:
    """The first output, `batch` rows at a time."""
    session = _session(model)
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: x[n : n + batch]})[0] for n in range(0, len(x), batch)])


def error_of(got: Array, wanted: Array) -> float:
    """The largest |y - r| / (|r| + largest |r|); infinite where NaN, infinities or the shape differ."""
    if got.shape != wanted.shape or not np.array_equal(np.isfinite(got), np.isfinite(wanted)):
        return float("inf")
    finite = np.isfinite(wanted)
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        return float("inf")
    r, y = wanted[finite].astype(np.float64), got[finite].astype(np.float64)
    largest = np.abs(r).max(initial=0.0)
    if largest == 0:
        return 0.0 if not y.any() else float("inf")
    return float((np.abs(y - r) / (np.abs(r) + largest)).max())


def results(case: Case, devices: Sequence[Device]) -> Iterator[Result]:
    """One for each device."""
    made: dict[str, cuvil.Executable | cuvil.CuvilError] = {}
    targets = [d.target for d in devices]
    cuvil.compile_all(case.model, targets, case.example, precision="float32", done=made.__setitem__)
    for device in devices:
        start, program = time.perf_counter(), made[device.target]
        try:
            if isinstance(program, cuvil.CuvilError):
                raise program
            got, interface = on_device(program, device.interfaces, case.x)
        except (cuvil.ToolNotFound, cuvil.DoesNotFit, cuvil.Unsupported) as e:
            yield Result(None, f"{type(e).__name__}: {e}", True)
            continue
        except cuvil.CuvilError as e:
            yield Result(None, f"{type(e).__name__}: {e}", False)
            continue
        print(f"  {case.name} on {device.column}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        error = error_of(np.asarray(got), case.wanted)
        yield Result(error, "" if interface == device.interfaces[0] else interface, error <= TOLERANCE)


def cases(folder: Path, only: Sequence[str] = ()) -> dict[str, Callable[[], Case]]:
    """What is to be run, by name; says which models aren't there."""
    every: dict[str, Callable[[], Case]] = {"bert": bert, "lstm": lstm}
    return chosen(every, SHARED, shared, folder, only)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "models", help="folder of .onnx files")
    parser.add_argument("--only", default="", help="names of models, with commas")
    parser.add_argument("--devices", default="", help="columns, with commas")
    chosen = parser.parse_args(argv)
    devices = named(chosen.devices, DEVICES)
    torch.set_num_threads(1)
    rows, reasons, good = [], dict[str, int](), True
    for name, make in cases(chosen.models, [n for n in chosen.only.split(",") if n]).items():
        cells = []
        for result in results(make(), devices):
            good &= result.good
            if result.error is None:
                number = reasons.setdefault(result.why, len(reasons) + 1)
                cells.append(f"{result.why.partition(':')[0]} ({number})")
            else:
                how = f" ({result.why})" if result.why else ""
                cells.append(f"{result.error:.1e}{how}{'' if result.good else ' WRONG'}")
        rows.append([name, *cells])
    heads = ["model", *[d.column for d in devices]]
    print(table(heads, rows, [False] * len(heads)))
    print(f"largest |y - r| / (|r| + largest |r|); at most {TOLERANCE:g} is right")
    for why, number in reasons.items():
        print(f"({number}) {why}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
