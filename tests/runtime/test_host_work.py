"""Layers that land on the processor: named with the reason by report and check, and counted in the throughput."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.compile.partition import split
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Builder
from cuvil_hw.ops import Linear, TreeWalk
from cuvil_hw.runtime.host_work import HOSTS, RATES, HostOp, entries
from cuvil_hw.target.profile import builtin_profiles
from cuvil_hw.types import TensorType

pytestmark = pytest.mark.needs("ortools")


class Wide(nn.Module):
    """The fabric has no f64: `last` runs on the processor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 400).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)).double())


X = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)


def test_report_and_check_name_a_layer_on_the_processor_and_count_its_time() -> None:
    torch.manual_seed(0)
    model = Wide().eval()
    report = cuvil.compile(model, "pynq-z2", torch.zeros(1, 16), X, "int8").report
    (warning,) = [note for note in report["notes"] if "on the processor" in note]
    assert warning.startswith("warning: 1 layer on the processor, not on the device: linear ")
    assert "f64" in warning
    seconds = sum(step["seconds"] for step in report["host"])
    assert seconds >= 32 * 400 / RATES["arm"].products
    speed = report["throughput"]
    assert 1 / speed["inferences_per_s"] == pytest.approx(1 / speed["device_inferences_per_s"] + seconds)
    assert "processor" in speed["origin"]
    assert report["latency"]["seconds"] > seconds
    assert "the device alone" in report.text()
    assert "on the processor" in report.html()
    checked = cuvil.check(model, ["pynq-z2"], torch.zeros(1, 16), X, "int8")
    assert [w for t in checked.targets for w in t.warnings] == [warning.removeprefix("warning: ")]
    assert checked.warnings >= 1


def test_borders_without_layers_are_counted_and_are_no_warning() -> None:
    report = cuvil.compile(nn.Linear(16, 4).eval(), "pynq-z2", torch.zeros(1, 16), X, "int8").report
    assert not [note for note in report["notes"] if "processor" in note]
    assert [step["op"] for step in report["host"]] == ["quantize", "dequantize"]
    assert 0 < report["throughput"]["host_seconds"] < 1e-4


def test_work_of_trees_counts_every_tree_and_level() -> None:
    b = Builder([("x", TensorType((1, 4), "f32"))])
    nodes = [b.const(np.zeros(7, np.int64)) for _ in range(3)]
    walk = [nodes[0], b.const(np.zeros(7, np.float32)), *nodes[1:], b.const(np.zeros(7, np.bool_), "bool")]
    y = b.op(Linear(), b.input(0), b.const(np.ones((4, 4), np.float32)))
    leaves = b.op(TreeWalk(6), y, *walk, b.const(np.zeros(100, np.int64)), loc="forest")
    parts = split(b.finish([("y", leaves)]), lambda op, _, __: "no trees" if isinstance(op, TreeWalk) else None)
    (host,) = parts.host
    assert (host.op, host.loc, host.why, host.where) == ("tree_walk", "forest", "no trees", "after")
    assert host.products == 10 * 6 * 100
    assert host.seconds("arm") == pytest.approx(10 * host.seconds(""), rel=0.01)


def test_the_processor_of_every_board_is_known_and_named() -> None:
    step = HostOp("after", "linear", "", "", 10**6, 10**3, True)
    seconds = {}
    for host in ("", *HOSTS):
        (entry,) = entries([step], host)
        seconds[host] = entry["seconds"]
        assert RATES[host].core in entry["origin"]
    assert seconds[""] < seconds["aarch64"] < seconds["arm"]
    boards = {p.name: p.settings.get("host") for p in builtin_profiles() if p.adapter == "zynq"}
    assert boards.pop("u250") is None  # a card in a server, whose processor is the default
    assert set(boards.values()) <= set(HOSTS)
    assert boards["kv260"] == "aarch64"
    with pytest.raises(CuvilError, match="'riscv' is not one of arm, aarch64"):
        step.seconds("riscv")
