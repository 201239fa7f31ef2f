"""Trains a small CNN on scanned digits, compiles it for a Zynq board, runs every test image on the board's simulator.

    python examples/digits_zynq.py                                          # PYNQ-Z2, int8
    python examples/digits_zynq.py --precision "fixed<16,6>"
    python examples/digits_zynq.py --target cpu
    python examples/digits_zynq.py --target ulx3s-85f --interface rtl-serial    # an ECP5 board: with the bitstream

The data are the 1,797 scans of 8 × 8 pixels that come with scikit-learn. Ends with status 1 when the device's accuracy
is more than one point from that of the float model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import cuvil
from cuvil_hw.report import words
from cuvil_hw.report.report import add_accuracy, add_saturations

Array = np.ndarray[Any, Any]
SEED = 0
EPOCHS = 15
BATCH = 64
CALIBRATION_SAMPLES = 256
MOST_POINTS_LOST = 1.0
Progress = Callable[[str, int, int], None]


class DigitsNet(nn.Module):
    """Four convolutions (one depthwise, one in a residual block), two pools, one linear layer; 13 k weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(1, 16, 3)
        self.depthwise = conv(16, 16, 3, groups=16)
        self.pointwise = conv(16, 32, 1)
        self.residual = conv(32, 32, 3)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(32 * 2 * 2, 10)

    def forward(self, scan: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(scan))
        x = self.pointwise(self.depthwise(x))
        x = self.pool(x + self.residual(x))
        scores: torch.Tensor = self.head(x.flatten(1))
        return scores


def conv(channels_in: int, channels_out: int, kernel: int, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def digits() -> tuple[Array, Array, Array, Array]:
    """Train images, test images (N, 1, 8, 8) f32 in 0…1, and their labels: a fixed split, the classes in proportion."""
    scans, labels = load_digits(return_X_y=True)
    images = (scans / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    train, test, of_train, of_test = train_test_split(
        images, labels, test_size=0.25, random_state=SEED, stratify=labels
    )
    return train, test, of_train, of_test


def train(model: nn.Module, images: Array, labels: Array, progress: Progress) -> None:
    """Adam with one cycle of the learning rate; the same seed gives the same weights on the same machine."""
    inputs, wanted = torch.from_numpy(images), torch.from_numpy(labels)
    optimizer = torch.optim.Adam(model.parameters())
    steps = EPOCHS * -(-len(inputs) // BATCH)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    model.train()
    for epoch in range(EPOCHS):
        progress("train", epoch, EPOCHS)
        order = torch.randperm(len(inputs))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[chosen]), wanted[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
    model.eval()


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar where rich is installed and this is a terminal; else a line per step."""
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
    except ModuleNotFoundError:
        Console = None  # type: ignore[assignment,misc]
    if Console is None or not Console(stderr=True).is_terminal:
        seen: set[str] = set()

        def line(what: str, done: int, of: int) -> None:
            if what not in seen:
                seen.add(what)
                print(f"  {what} …", file=sys.stderr)

        yield line
        return
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)


def accuracy(scores: Array, labels: Array) -> float:
    return float((scores.argmax(axis=1) == labels).mean())


def write_sources(program: cuvil.Executable, folder: Path) -> Path:
    """Every generated file, below `folder`."""
    for name, text in program.sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="pynq-z2", help="a target's name or the path of a board's .yaml")
    parser.add_argument("--precision", default="int8", help="int8 (int2…int8), fixed<W,I>, or float32 where it runs")
    parser.add_argument(
        "--interface", help="what runs it, such as rtl-serial on ECP5 boards; else the target's simulator"
    )
    parser.add_argument("--out", type=Path, default=Path("build/digits_zynq"), help="folder for what is made")
    return parser.parse_args(argv)


def demo(target: str, precision: str, out: Path, interface: str | None = None) -> bool:
    """Everything, printed; whether the device is as accurate as it must be."""
    begun = time.perf_counter()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # layers this small lose more to threads than they gain; and sums keep one order
    train_images, test_images, train_labels, test_labels = digits()
    model = DigitsNet()
    with progress_bar() as progress:
        train(model, train_images, train_labels, progress)
        trained = time.perf_counter()
        program = cuvil.compile(
            model,
            target,
            example_inputs=torch.from_numpy(test_images[:1]),
            calibration=None if precision == "float32" else train_images[:CALIBRATION_SAMPLES],
            precision=precision,
            progress=progress,
        )
        compiled = time.perf_counter()
        out.mkdir(parents=True, exist_ok=True)
        artifact = out / "digits.cuvil"
        program.save(artifact)
        report = program.report
        zynq = report["target"]["adapter"] == "zynq"
        progress("run every test image on the device", 0, 1)
        # The simulator that also counts what saturates; other targets run on their own device.
        with cuvil.load(artifact, interface or ("sim-count" if zynq else None)) as device:
            loaded = time.perf_counter()
            run = device.run(test_images)
            ran = time.perf_counter()
    (scores,) = run.outputs
    with torch.no_grad():
        wanted = model(torch.from_numpy(test_images)).numpy()
    of_float, of_device = accuracy(wanted, test_labels), accuracy(scores, test_labels)
    same = float((scores.argmax(axis=1) == wanted.argmax(axis=1)).mean())

    command = f"python examples/digits_zynq.py --target {target} --precision '{precision}'"
    add_accuracy(report, "top-1 accuracy", of_float, of_device, len(test_labels), command)
    if run.counters:
        add_saturations(report, run.counters, run.samples, "simulated")
    sources = write_sources(program, out / ("hls" if zynq else "src"))
    page = out / "report.html"
    report.save_html(page)

    print(report.text())
    speed, latency = report["throughput"], report["latency"]
    over = [t["axis"] for t in report["totals"] if t["used"] > t["budget"]]
    how = interface or ("simulated" if zynq else "itself")
    where = f"{report['target']['name']} {how}"
    good = abs(of_float - of_device) * 100 <= MOST_POINTS_LOST
    print(f"accuracy     {of_float:.2%} torch float, {of_device:.2%} {where}; {len(test_labels)} test images")
    print(f"             {'within' if good else 'NOT within'} {MOST_POINTS_LOST:g} point; {same:.2%} equal predictions")
    print(f"resources    {'over budget: ' + ', '.join(over) if over else 'within the budget on every axis'} (analytic)")
    print(
        f"speed        {words.rate(speed['inferences_per_s'])} inferences/s, "
        f"latency {words.seconds(latency['seconds'])} at {report['clock_hz'] / 1e6:g} MHz ({speed['origin']})"
    )
    print(f"bottleneck   {report['bottleneck']['layer']}, {report['bottleneck']['cycles']:,} cycles")
    if run.counters:
        high = sum(layer["saturated_high"] for layer in run.counters.values())
        print(f"saturations  {high:,} values above the range; counts below it include what a ReLU cuts off")
    print(f"here         {run.samples} images in {words.seconds(ran - loaded)} on this computer")
    print(
        f"took         train {trained - begun:.1f} s, compile {compiled - trained:.1f} s, "
        f"build and load {loaded - compiled:.1f} s"
    )
    print(f"artifact     {artifact}\nsources      {sources}\nreport       {page}")
    return good and not over


def main(argv: list[str] | None = None) -> int:
    chosen = options(argv)
    try:
        return 0 if demo(chosen.target, chosen.precision, chosen.out, chosen.interface) else 1
    except cuvil.CuvilError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
