"""Compiled designs: the same sources on Xilinx's types, equal bytes, damage refused, boards of other sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw import data, dtypes
from cuvil_hw.adapters.zynq.simbuild import build_simulation
from cuvil_hw.adapters.zynq.simulator import LoadedSimulation
from cuvil_hw.contract.device import DeviceProgram, Port
from cuvil_hw.errors import ArtifactError, DoesNotFit
from cuvil_hw.runtime.executable import Executable
from tests.support.xilinx import ap_types

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++")]

Array = np.ndarray
SOURCES = "sources/"


# ---- the same sources on ap_types -----------------------------------------------------------------------------------


def digits_cnn() -> Executable:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(),
        nn.Conv2d(8, 16, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    ).eval()  # fmt: skip
    x = np.random.default_rng(0).uniform(0, 1, (32, 1, 8, 8)).astype(np.float32)
    return cuvil.compile(model, "pynq-z2", example_inputs=torch.zeros(1, 1, 8, 8), calibration=x, precision="int8")


def jet_mlp() -> Executable:
    torch.manual_seed(1)
    sizes = [16, 64, 32, 32, 5]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers[:-1]).eval()
    x = np.random.default_rng(1).standard_normal((64, 16)).astype(np.float32)
    return cuvil.compile(model, "pynq-z2", example_inputs=torch.zeros(1, 16), calibration=x, precision="fixed<16,6>")


def device_inputs(ports: tuple[Port, ...], samples: int) -> list[Array]:
    """Integers over the whole range of each port; the first samples are its ends."""
    rng, stacks = np.random.default_rng(2), []
    for port in ports:
        low, high = dtypes.int_range(port.dtype)
        stack = rng.integers(low, high, (samples, *port.shape), endpoint=True)
        stack[0], stack[1] = low, high
        stacks.append(stack.astype(dtypes.to_numpy(port.dtype)))
    return stacks


def on(program: Executable, folder: Path, inputs: list[Array], headers: Path | None) -> list[Array]:
    """The design's own sources compiled against `headers`, run on `inputs`."""
    for name, text in program.artifact.files.items():
        if name.startswith(SOURCES + "src/"):
            path = folder / name.removeprefix(SOURCES)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
    manifest = program.artifact.manifest
    design = DeviceProgram(manifest.model, folder, manifest.device_inputs, manifest.device_outputs, manifest.info)
    return LoadedSimulation(build_simulation(design, ["-O1"], headers), design).run(inputs)[0]


@pytest.mark.slow
@pytest.mark.share(name=3)
@pytest.mark.parametrize("name", ["digits", "jets", "kws"])
def test_the_same_sources_give_the_same_bits_on_the_types_of_xilinx(models: Path, tmp_path: Path, name: str) -> None:
    headers = ap_types()
    make: dict[str, Callable[[], Executable]] = {
        "digits": digits_cnn,
        "jets": jet_mlp,
        "kws": lambda: cuvil.compile(models / "kws_ref_model.onnx", "pynq-z2"),
    }
    program = make[name]()
    inputs = device_inputs(program.artifact.manifest.device_inputs, {"digits": 12, "jets": 40, "kws": 4}[name])
    ours = on(program, tmp_path, inputs, None)
    theirs = on(program, tmp_path, inputs, headers)
    assert len(ours) == 1
    assert len(np.unique(ours[0])) > 3
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


# ---- artifacts ------------------------------------------------------------------------------------------------------


def test_two_builds_are_the_same_bytes_and_a_damaged_one_is_refused(models: Path, tmp_path: Path) -> None:
    model = models / "kws_ref_model.onnx"
    for name in ("a.cuvil", "b.cuvil"):
        cuvil.compile(model, "pynq-z2").save(tmp_path / name)
    first = (tmp_path / "a.cuvil").read_bytes()
    assert first == (tmp_path / "b.cuvil").read_bytes()
    rng = np.random.default_rng(0)
    for place in [0, len(first) - 1, *rng.integers(0, len(first), 40)]:
        damaged = bytearray(first)
        damaged[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "bad.cuvil").write_bytes(damaged)
        with pytest.raises(ArtifactError):
            cuvil.load(tmp_path / "bad.cuvil", interface="null")
    cuvil.load(tmp_path / "a.cuvil", interface="null").close()


# ---- boards of other sizes ------------------------------------------------------------------------------------------


def board(folder: Path, share: float) -> Path:
    """The PYNQ-Z2 with a share of its block memories, and only designs whose layers stream."""
    text = (data.folder("targets") / "pynq-z2.yaml").read_text()
    text = text.replace("name: pynq-z2", "name: smaller").replace("aliases: [zynq]", "aliases: []")
    pattern = r"(bram18: \{limit: )(\d+)"
    assert re.search(pattern, text)
    path = folder / "smaller.yaml"
    text = text.replace("settings:\n", "settings:\n  style: spatial\n")
    path.write_text(re.sub(pattern, lambda m: m[1] + str(int(int(m[2]) * share)), text))
    return path


def blocks(program: Executable) -> tuple[float, float]:
    """(used, budget) of block memories."""
    (total,) = [t for t in program.report["totals"] if t["axis"] == "bram18"]
    return total["used"], total["budget"]


@pytest.mark.slow
@pytest.mark.share(name=3)
@pytest.mark.parametrize(("name", "less"), [("ad_deep_autoencoder", 0.5), ("vww_mobilenet_v1", 0.75)])
def test_less_memory_changes_the_folding(models: Path, tmp_path: Path, name: str, less: float) -> None:
    whole, half = [cuvil.compile(models / f"{name}.onnx", board(tmp_path, share)) for share in (1, less)]
    used, budget = blocks(half)
    assert used <= budget < blocks(whole)[0], "the case must bind: the larger design would not fit"
    folding = [[layer["schedule"] for layer in p.report["layers"]] for p in (whole, half)]
    assert folding[0] != folding[1]
    assert half.report["bottleneck"]["cycles"] >= whole.report["bottleneck"]["cycles"]


@pytest.mark.slow
@pytest.mark.share(name=3)
@pytest.mark.parametrize("name", ["ad_deep_autoencoder", "ic_resnet", "vww_mobilenet_v1"])
def test_a_fiftieth_of_the_memory_is_refused(models: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(DoesNotFit) as error:
        cuvil.compile(models / f"{name}.onnx", board(tmp_path, 0.02))
    e = error.value
    assert (e.axis, e.target) == ("bram18", "smaller")
    assert e.need > e.limit == int(280 * 0.02 * 0.8)
    assert re.fullmatch(r"(conv|linear|sum_pool|rescale)_\d+", e.layer)
    nodes = {n.name or n.output[0] for n in onnx.load(models / f"{name}.onnx").graph.node}
    assert any(node and node in str(e) for node in nodes), str(e)
    assert e.layer in str(e)
    assert "pynq-z2" in e.nearest


@pytest.mark.slow
def test_a_model_that_lives_without_block_memory_still_fits(models: Path, tmp_path: Path) -> None:
    """The 22 k weights of kws go into LUTs instead."""
    program = cuvil.compile(models / "kws_ref_model.onnx", board(tmp_path, 0.02))
    used, budget = blocks(program)
    assert used <= budget
    schedules = " ".join(layer["schedule"] for layer in program.report["layers"])
    assert set(re.findall(r"w@(\w+)", schedules)) == {"lutram"}
