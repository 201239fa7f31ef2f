"""A/B: the rate of false alarms, what is found, McNemar's test beside SciPy's, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy.stats import binomtest

from cuvil_hw import api
from cuvil_hw.cli.main import FAILED, USAGE, main
from cuvil_hw.entry.ab import accuracy_test, interleaved, latency_test

Array = np.ndarray[Any, Any]


def machine(draw: np.random.Generator, slowdown: float) -> tuple[Any, Any]:
    """Timers of two builds on a machine whose speed drifts, with noise that has a long tail."""
    state = {"drift": 0.0}

    def timer(factor: float) -> Any:
        def run(times: int) -> float:
            state["drift"] = 0.98 * state["drift"] + 0.01 * draw.normal()
            noise = 0.05 * draw.normal() + (0.5 if draw.random() < 0.02 else 0.0)
            return float(times * 1e-3 * factor * np.exp(state["drift"] + noise))

        return run

    return timer(1.0), timer(slowdown)


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_equal_builds_are_told_apart_at_the_stated_rate(alpha: float) -> None:
    draw = np.random.default_rng(1)
    alarms = 0
    for _ in range(200):
        times = interleaved(*machine(draw, 1.0), 60, draw)
        alarms += latency_test(*times, alpha, 0.0, draw).slower
    # Neither far more nor far less: a test that never says anything keeps any rate.
    assert binomtest(alarms, 200, alpha).pvalue > 0.001


def test_a_build_that_is_a_tenth_slower_is_found_and_what_would_be_found_is_true() -> None:
    draw = np.random.default_rng(2)
    tests = [latency_test(*interleaved(*machine(draw, 1.1), 60, draw), 0.05, 0.0, draw) for _ in range(100)]
    assert sum(t.slower for t in tests) >= 95
    assert np.mean([t.low <= 1.1 <= t.high for t in tests]) > 0.8  # of 90 %
    detectable = float(np.median([t.detectable for t in tests]))
    found = [latency_test(*interleaved(*machine(draw, detectable), 60, draw), 0.05, 0.0, draw) for _ in range(100)]
    assert 0.65 < np.mean([t.slower for t in found]) < 0.95  # 0.8 are promised
    within = [latency_test(*interleaved(*machine(draw, 1.02), 60, draw), 0.05, 0.1, draw) for _ in range(50)]
    assert not any(t.slower for t in within)  # 2 % where 10 % are tolerated


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (3, 1), (9, 1), (1, 9), (600, 500)])
def test_mcnemar_is_scipys_binomial_test(lost: int, won: int) -> None:
    both, draw = 200, np.random.default_rng(0)
    old = np.array([True] * (both + lost) + [False] * won)
    new = np.array([True] * both + [False] * lost + [True] * won)
    found = accuracy_test(old, new, 0.05, draw)
    wanted = binomtest(lost, lost + won, 0.5, "greater").pvalue if lost + won else 1.0
    assert found.p == pytest.approx(wanted)
    assert (found.lost, found.won, found.worse) == (lost, won, wanted < 0.05)
    assert found.low <= found.new - found.old <= found.high


def build(path: Path, weights: Array) -> str:
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
    held = numpy_helper.from_array(weights.astype(np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", kinds[:1], kinds[1:], [held])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    api.compile(model, "cpu").save(path)
    return str(path)


@pytest.mark.needs("gcc")
def test_the_command_says_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = np.arange(80) % 4
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float32)[labels])
    np.save(tmp_path / "y.npy", labels)
    old = build(tmp_path / "old.cuvil", np.eye(4))
    swapped = build(tmp_path / "bad.cuvil", np.eye(4)[[1, 0, 2, 3]])
    given = [
        "--data",
        str(tmp_path / "x.npy"),
        "--labels",
        str(tmp_path / "y.npy"),
        "--slower-by",
        "10",
        "--rounds",
        "10",
    ]
    assert main(["ab", old, old, *given, "--json"]) == 0
    same = json.loads(capsys.readouterr().out)
    assert (same["same"], same["samples"], same["regressed"]) == (80, 80, False)
    assert same["accuracy"]["p"] == 1.0
    assert same["latency"]["old_s"] > 0
    assert same["latency"]["alpha"] == 0.025
    assert main(["ab", old, swapped, *given]) == FAILED
    out = capsys.readouterr().out
    assert "40 lost, 0 won" in out
    assert "WORSE" in out
    assert "no slower" in out
    assert main(["ab", old, swapped, *given, "--alpha", "60%"]) == USAGE
