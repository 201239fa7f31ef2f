"""State between calls, guards, and inputs written back: on every target, through the artifact, from several threads."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("xdsl")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw.compile import numbers  # noqa: E402
from cuvil_hw.contract.calling import Calling, KeptState  # noqa: E402
from cuvil_hw.errors import ArtifactError, CuvilError, GuardError, InputError  # noqa: E402
from cuvil_hw.frontend.shared.state import keep_state  # noqa: E402
from cuvil_hw.ir.program import Builder, Program, evaluate  # noqa: E402
from cuvil_hw.ops import Add, Gather, Less, Where  # noqa: E402
from cuvil_hw.passes.quantize.calibrate import collect  # noqa: E402
from cuvil_hw.runtime.executable import Executable  # noqa: E402
from cuvil_hw.types import TensorType  # noqa: E402

TARGETS = ("cpu", "pynq-z2", "mlu370-x4")


def running_sum(dtype: int = TensorProto.INT32) -> Any:
    """y = 2·total, total = total + x."""
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["x", "total"], ["next"]), helper.make_node("Add", ["next", "next"], ["y"])]
    ends = [info(name, dtype, [1, 3]) for name in ("x", "total", "y", "next")]
    graph = helper.make_graph(nodes, "sums", ends[:2], ends[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("target", TARGETS)
def test_state_goes_from_call_to_call_on_every_target(target: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0).integers(-99, 99, (4, 1, 3)).astype(np.int32)
    with cuvil.compile(running_sum(), target, state={"total": "next"}) as program:
        assert [p.name for p in program.inputs] == ["x"]
        assert [p.name for p in program.outputs] == ["y"]
        for i, x in enumerate(draw):
            assert np.array_equal(program(x), 2 * draw[: i + 1].sum(0))
        assert np.array_equal(program.state["total"], draw.sum(0))
        program.reset()
        assert np.array_equal(program(draw[0]), 2 * draw[0])
        assert program.report["state"] == [{"name": "total", "type": "1x3xi32"}]
        assert "kept between calls: total (1x3xi32)" in program.report.text()
        program.save(tmp_path / "p.cuvil")
    with cuvil.load(tmp_path / "p.cuvil") as loaded:  # starts anew
        assert np.array_equal(loaded(draw[1]), 2 * draw[1])


def test_a_call_that_raises_leaves_the_state_and_reset_is_per_executable() -> None:
    program = cuvil.compile(running_sum(), "cpu", state={"total": "next"})
    one = np.ones((1, 3), np.int32)
    program(one)
    with pytest.raises(InputError, match="shape"):
        program(np.ones((2, 3), np.int32))  # several samples would need a state each
    assert np.array_equal(program.state["total"], one)
    program.state["total"][...] = 7  # a copy
    other = Executable(program.artifact)
    assert np.array_equal(other(one), 2 * one)
    assert np.array_equal(program(one), 4 * one)


def test_threads_share_one_state() -> None:
    program = cuvil.compile(running_sum(), "cpu", state={"total": "next"})
    one, seen = np.ones((1, 3), np.int32), []

    def work() -> None:
        seen.extend(int(program(one)[0, 0]) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(seen) == [2 * i for i in range(1, 201)]  # no call lost, none counted twice


def test_calibration_follows_the_state() -> None:
    program = keep_state(_imported(running_sum(TensorProto.FLOAT)), {"total": "next"})
    ranges = collect(program, np.ones((5, 1, 3), np.float32)).ranges
    assert [(r.lo, r.hi) for r in ranges.values()] == [(1, 1), (0, 4), (1, 5), (2, 10)]


def _imported(model: Any) -> Program:
    from cuvil_hw.frontend.onnx import load_onnx

    return load_onnx(model)


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ({"sum": "next"}, "no input 'sum'; it has x, total"),
        ({"total": "nxt"}, "no output 'nxt'; it has y, next"),
        ({"total": "next", "x": "next"}, "paired with two inputs"),
        ({"total": "next", "x": "y"}, "every output is state"),
    ],
)
def test_wrong_pairs_are_refused(pairs: dict[str, str], why: str) -> None:
    with pytest.raises(CuvilError, match=why):
        cuvil.compile(running_sum(), "cpu", state=pairs)


def test_a_pair_of_different_types_is_refused() -> None:
    builder = Builder([("x", TensorType((2,), "i32")), ("s", TensorType((1,), "i32"))])
    program = builder.finish([("y", builder.input(0)), ("z", builder.input(0))])
    with pytest.raises(CuvilError, match="different types: 1xi32 and 2xi32"):
        keep_state(program, {"s": "y"})


def test_an_artifact_whose_state_has_no_initial_value_is_refused() -> None:
    artifact = cuvil.compile(running_sum(), "cpu", state={"total": "next"}).artifact
    for calling in (Calling((KeptState("total", "next", "0" * 32),)), Calling((KeptState("total", "gone"),))):
        with pytest.raises(ArtifactError, match=r"initial value|no output"):
            Executable(replace(artifact, manifest=replace(artifact.manifest, calling=calling)))


def guarded(indexed: bool = True) -> Program:
    """y = table[i], or i + 10, where `ask`, and then i < 4 must hold; else -1."""
    builder = Builder([("i", TensorType((), "i64")), ("ask", TensorType((), "bool"))])
    i, ask = builder.input(0), builder.input(1)
    table = builder.const(np.arange(10, 14, dtype=np.int64))
    with builder.when(ask):
        builder.guard(builder.op(Less(), i, builder.const(np.int64(4))), "i must be less than 4")
        found = builder.op(Gather(0), table, i) if indexed else builder.op(Add(), i, builder.const(np.int64(10)))
    return builder.finish([("y", builder.op(Where(), ask, found, builder.const(np.int64(-1))))])


def test_guards_count_only_where_their_condition_holds() -> None:
    program = guarded()
    assert [g.message for g in program.calling.guards] == ["i must be less than 4"]
    for i, ask, want in ((2, True, (12, True)), (9, False, (-1, True))):  # 9 would be an index outside
        assert tuple(v.item() for v in evaluate(program, [np.int64(i), np.bool_(ask)])) == want


@pytest.mark.parametrize("target", TARGETS)
def test_a_false_guard_raises_and_the_next_call_works(target: str, tmp_path: Path) -> None:
    program = cuvil.compile(guarded(indexed=target != "pynq-z2"), target)
    program.save(tmp_path / "g.cuvil")
    for executable in (program, cuvil.load(tmp_path / "g.cuvil")):
        assert [p.name for p in executable.outputs] == ["y"]
        assert executable(np.int64(3), True) == 13
        with pytest.raises(GuardError, match="i must be less than 4"):
            executable(np.int64(4), True)
        assert executable(np.int64(4), False) == -1


def test_guards_of_one_message_become_one_output() -> None:
    builder = Builder([("a", TensorType((), "bool")), ("b", TensorType((), "bool"))])
    builder.guard(builder.input(0), "both")
    builder.guard(builder.input(1), "both")
    program = builder.finish([("guard0", builder.input(0))])
    assert [name for name, _ in program.outputs] == ["guard0", "guard1"]
    runs = [evaluate(program, [np.bool_(a), np.bool_(b)])[1].item() for a in (0, 1) for b in (0, 1)]
    assert runs == [False, False, False, True]
    with pytest.raises(CuvilError, match="bool of shape"):
        Builder([("x", TensorType((2,), "bool"))]).guard(builder.const(np.zeros(2, bool)), "")


def test_simplifying_keeps_what_happens_around_calls() -> None:
    program = guarded()
    numbers.simplify(program)
    assert program.clone().calling == program.calling
    assert program.calling.guards[0].output in dict(program.outputs)


def test_state_and_bounds_from_the_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from cuvil_hw.cli.app import app

    onnx.save(running_sum(), tmp_path / "sums.onnx")
    options = ["-t", "cpu", "-o", str(tmp_path / "sums.cuvil"), "--max-trips", "3"]
    done = CliRunner().invoke(app, ["compile", str(tmp_path / "sums.onnx"), *options, "--state", "total=next"])
    assert done.exit_code == 0, done.output
    assert "kept between calls: total" in done.output
    wrong = CliRunner().invoke(app, ["compile", str(tmp_path / "sums.onnx"), *options, "--state", "total"])
    assert wrong.exit_code == 2
    assert "expected input=output" in wrong.output
