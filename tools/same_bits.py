"""Compiles trained and small models for every device that can run here and compares all outputs, bit for bit.

    python tools/same_bits.py                                  # everything; what MLPerf Tiny needs is skipped if absent
    python tools/same_bits.py --only jets,unet --devices cpu,pynq-z2

The reference is the NumPy meaning of each artifact's own IR; devices must give its bits, and the IRs one another's.
Inputs go from border cases (the ends of the range and beyond, zeros, single elements, ties of rounding) to noise.
Prints one row a model, one column a device: `=`, how many values differ, or why it did not run. Status 1 when any
value differs or a device that can run fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import cuvil  # noqa: E402
from cuvil_hw.contract.constants import ConstantStore  # noqa: E402
from cuvil_hw.ir.program import Program, evaluate, parse  # noqa: E402
from cuvil_hw.report.text import table  # noqa: E402
from cuvil_hw.types import TensorType  # noqa: E402
from examples import digits_zynq  # noqa: E402

Array = np.ndarray[Any, Any]
T = TypeVar("T")
LEAST = 32
MLPERF = ("kws_ref_model", "ad_deep_autoencoder", "ic_resnet", "vww_mobilenet_v1")


@dataclass(frozen=True)
class Device:
    """`column`: in the table; `interfaces`: the first that can be opened here runs."""

    column: str
    target: str
    interfaces: tuple[str, ...]


DEVICES = (
    Device("cpu", "cpu", ("hw",)),
    Device("pynq-z2", "pynq-z2", ("sim",)),
    Device("agilex", "agilex", ("sim", "sim-sycl")),
    Device("cuda", "h100", ("sim",)),
    Device("mlu270", "mlu270", ("sim",)),
    Device("mlu370", "mlu370-x4", ("sim",)),
)


@dataclass(frozen=True)
class Case:
    """`options`: for cuvil.compile_all; `scale`: about what the largest usual input is."""

    name: str
    model: Any
    scale: float
    options: dict[str, Any] = field(default_factory=dict)


class UNet(nn.Module):
    """Two levels: convolutions, a pool, nearest upsampling, the skip connection concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.middle = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1), nn.ReLU()
        )
        self.up = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
        self.pool, self.upsample = nn.MaxPool2d(2), nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        skip = self.down(image)
        y: torch.Tensor = self.up(torch.cat([self.upsample(self.middle(self.pool(skip))), skip], 1))
        return y


def digits() -> Case:
    torch.manual_seed(digits_zynq.SEED)
    train, test, labels, _ = digits_zynq.digits()
    model = digits_zynq.DigitsNet()
    digits_zynq.train(model, train, labels, lambda *_: None)
    options = {"example_inputs": torch.from_numpy(test[:1]), "calibration": train[:128], "precision": "int8"}
    return Case("digits", model, 1.0, options)


def unet() -> Case:
    torch.manual_seed(4)
    data = np.random.default_rng(4).uniform(-1, 1, (64, 1, 16, 16)).astype(np.float32)
    options = {"example_inputs": torch.zeros(1, 1, 16, 16), "calibration": data, "precision": "int8"}
    return Case("unet", UNet().eval(), 1.0, options)


def jets() -> Case:
    torch.manual_seed(1)
    layers = [layer for a, b in pairwise([16, 64, 32, 32, 5]) for layer in (nn.Linear(a, b), nn.ReLU())]
    options = {"example_inputs": torch.zeros(1, 16), "precision": "fixed<16,6>"}
    return Case("jets", nn.Sequential(*layers[:-1]).eval(), 3.0, options)


def mlperf(path: Path) -> Case:
    """The model without a softmax at its end: floats are outside of what has the same bits everywhere."""
    import onnx

    model = onnx.load(path)
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        model.graph.output[0].name = last.input[0]
        model.graph.node.remove(last)
    constants = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    first = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in constants)
    return Case(path.stem, model, 127 * float(constants[first.input[1]]), {"name": path.stem})


def inputs(kind: TensorType, scale: float, samples: int) -> Array:
    """(samples, *shape without its batch) f32: border cases first, then noise of several sizes."""
    rng = np.random.default_rng(kind.size)
    x = np.empty((samples, *kind.shape[1:]), np.float32)
    flat = x.reshape(samples, -1)
    size = flat.shape[1]
    edges = [
        np.full(size, scale), np.full(size, -scale), np.zeros(size), np.full(size, 1e6 * scale),
        np.full(size, -1e6 * scale), np.linspace(-2 * scale, 2 * scale, size),
        np.where(np.arange(size) % 2, 9, -9) * scale, scale * (rng.integers(-128, 128, size) + 0.5) / 127,
    ]  # fmt: skip
    for row, edge in zip(flat, edges, strict=False):
        row[:] = edge
    for n in range(len(edges), samples):
        if n < len(edges) + 4:  # one element alone
            flat[n] = 0
            flat[n, rng.integers(size)] = rng.choice([-2, 2]) * scale
        else:
            flat[n] = rng.normal(rng.uniform(-1, 1) * scale / 2, scale * 2.0 ** rng.integers(-3, 3), size)
    return x


def meaning(executable: cuvil.Executable) -> Program:
    """The IR in an artifact, with its weights."""
    store = ConstantStore()
    for digest, array in executable.artifact.constants().items():
        store._arrays[digest] = array
    return parse(executable.ir, store)


def differing(a: Array, b: Array) -> int:
    """How many elements don't have the same bits."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    raw = [np.ascontiguousarray(x).view(np.uint8).reshape(x.size, x.itemsize) for x in (a, b)]
    return int((raw[0] != raw[1]).any(axis=1).sum())


def on_device(executable: cuvil.Executable, interfaces: Sequence[str], x: Array) -> tuple[Array, str]:
    """Outputs, and the interface that gave them. Raises ToolNotFound when none can be opened."""
    for n, interface in enumerate(interfaces):
        try:
            with cuvil.Executable(executable.artifact, interface) as device:
                return device(x), interface
        except cuvil.ToolNotFound:
            if n == len(interfaces) - 1:
                raise
    raise AssertionError("a device has at least one interface")


def brief(error: cuvil.CuvilError) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def compare(case: Case, devices: Sequence[Device], samples: int) -> Iterator[tuple[str, bool]]:
    """For the reference and each device what stands in the table, and whether that is good."""
    refused: dict[str, str] = {}

    def done(target: str, result: cuvil.Executable | cuvil.CuvilError) -> None:
        if isinstance(result, cuvil.CuvilError):
            refused[target] = brief(result)

    made = cuvil.compile_all(case.model, [d.target for d in devices], **case.options, done=done)
    programs = {target: meaning(e) for target, e in made.items()}
    wanted: Array | None = None
    for target, program in programs.items():
        # All compilations of one model say the same in level1, unless the target asks for another precision.
        if wanted is None:
            (kind,) = [t for _, t in program.inputs]
            x = inputs(kind, case.scale, samples)
            wanted = np.concatenate([evaluate(program, [sample[None]])[0] for sample in x])
            text = program.text()
        elif program.text() != text:
            refused[target] = "its IR is another than that of the first target"
            del made[target]
    if wanted is None:
        yield "; ".join(dict.fromkeys(refused.values())), False
        return
    yield f"{len(wanted)} samples, {len(np.unique(wanted)):,} distinct values", len(np.unique(wanted)) > 3
    for device in devices:
        start = time.perf_counter()
        executable = made.get(device.target)
        if executable is None:
            yield refused[device.target], False
            continue
        try:
            got, interface = on_device(executable, device.interfaces, x)
        except cuvil.ToolNotFound as e:
            yield f"not run: {e}", True
            continue
        except cuvil.CuvilError as e:
            yield brief(e), False
            continue
        wrong = differing(got, wanted)
        how = "" if interface == device.interfaces[0] else f" ({interface})"
        seconds = time.perf_counter() - start
        print(f"  {case.name} on {device.column}{how}: {seconds:.1f} s", file=sys.stderr, flush=True)
        yield f"={how}" if wrong == 0 else f"{wrong:,} of {wanted.size:,} differ{how}", wrong == 0


def cases(folder: Path, only: Sequence[str]) -> dict[str, Callable[[], Case]]:
    """What is to be compared, by name; says which models aren't there."""
    every: dict[str, Callable[[], Case]] = {"digits": digits, "jets": jets, "unet": unet}
    return chosen(every, MLPERF, mlperf, folder, only)


def chosen(
    made: dict[str, Callable[[], T]], files: Sequence[str], read: Callable[[Path], T], folder: Path, only: Sequence[str]
) -> dict[str, Callable[[], T]]:
    """`made` and those models of `files` that lie in `folder`; of them `only`, when that names any."""
    every = dict(made)
    for name in files:
        path = folder / f"{name}.onnx"
        if path.is_file():
            every[name] = lambda path=path: read(path)
        elif not only or name in only:
            print(f"{name}: skipped, there is no {path}; give the folder of the models with --models")
    unknown = set(only) - {*every, *files}
    if unknown:
        raise SystemExit(f"no model {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    return {name: make for name, make in every.items() if not only or name in only}


def named(columns: str, devices: Sequence[Device]) -> list[Device]:
    """The devices of these columns, with commas; all when none is named."""
    wanted = [name for name in columns.split(",") if name]
    unknown = set(wanted) - {d.column for d in devices}
    if unknown:
        raise SystemExit(f"no device {', '.join(sorted(unknown))}; there are {', '.join(d.column for d in devices)}")
    return [d for d in devices if not wanted or d.column in wanted]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "models", help="folder of .onnx files")
    parser.add_argument("--samples", type=int, default=LEAST, help="inputs of each model; 12 are border cases")
    parser.add_argument("--only", default="", help="names of models, with commas")
    parser.add_argument("--devices", default="", help="columns, with commas")
    chosen = parser.parse_args(argv)
    devices = named(chosen.devices, DEVICES)
    torch.set_num_threads(1)
    rows, good = [], True
    for name, make in cases(chosen.models, [n for n in chosen.only.split(",") if n]).items():
        results = list(compare(make(), devices, chosen.samples))
        good &= all(ok for _, ok in results)
        cells = [text for text, _ in results]
        rows.append([name, *cells, *[""] * (1 + len(devices) - len(cells))])
    heads = ["model", "reference", *[d.column for d in devices]]
    print(table(heads, rows, [False] * len(heads)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
