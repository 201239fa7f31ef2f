"""ONNX Loop and If whose conditions depend on run-time values, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("xdsl")
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from onnx import TensorProto as T  # noqa: E402
from onnx import helper as h  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw.errors import GuardError, Unsupported  # noqa: E402
from cuvil_hw.frontend.onnx import load_onnx  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402

info = h.make_tensor_value_info


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any]) -> Any:
    made = h.make_model(
        h.make_graph(nodes, "g", inputs, outputs, initializer=constants),
        opset_imports=[h.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(made)
    return made


def adding(trips: int | str | None, condition: str | None) -> Any:
    """v = v + x while the sum of v is below 10; trip count known, an input, or absent, as is the first condition."""
    body = h.make_graph(
        [
            h.make_node("Add", ["v_in", "x"], ["v"]),
            h.make_node("ReduceSum", ["v"], ["s"], keepdims=0),
            h.make_node("Less", ["s", "limit"], ["c"]),
        ],
        "body",
        [info("i", T.INT64, []), info("c_in", T.BOOL, []), info("v_in", T.FLOAT, [3])],
        [info("c", T.BOOL, []), info("v", T.FLOAT, [3])],
    )
    inputs, constants = [info("x", T.FLOAT, [3])], [h.make_tensor("limit", T.FLOAT, [], [10.0])]
    if trips == "M":
        inputs.append(info("M", T.INT64, []))
    elif trips is not None:
        constants.append(h.make_tensor("M", T.INT64, [], [trips]))
    if condition:
        inputs.append(info(condition, T.BOOL, []))
    nodes = [h.make_node("Loop", ["" if trips is None else "M", condition or "", "x"], ["y"], body=body)]
    return model(nodes, inputs, [info("y", T.FLOAT, [3])], constants)


KINDS = [(None, None), (5, None), ("M", None), ("M", "first"), (1 << 62, None), (4, "first")]


@pytest.mark.parametrize(("trips", "condition"), KINDS)
def test_loops_that_end_by_values(trips: int | str | None, condition: str | None) -> None:
    made = adding(trips, condition)
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    program = cuvil.compile(made, "cpu", max_trips=6)
    for x in ([1, 1, 1], [5, 5, 5], [0.6, 0.7, 0.8]):
        for count, first in ((0, True), (1, True), (3, False), (6, True), (60, True)):
            feed = {"x": np.array(x, np.float32), "M": np.array(count, np.int64), "first": np.array(first)}
            feed = {p.name: feed[p.name] for p in program.inputs}
            np.testing.assert_allclose(program(feed), session.run(None, feed)[0], rtol=1e-6)


@pytest.mark.parametrize(("trips", "condition"), [k for k in KINDS if not isinstance(k[0], int) or k[0] > 9])
def test_a_loop_that_has_not_ended_raises(trips: int | str | None, condition: str | None) -> None:
    with pytest.raises(Unsupported, match=r"known only at run time: give compile\(…, max_trips=N\)"):
        load_onnx(adding(trips, condition))
    program = cuvil.compile(adding(trips, condition), "cpu", max_trips=6)
    feed = {"x": np.zeros(3, np.float32), "M": np.array(7), "first": np.array(True)}
    with pytest.raises(GuardError, match=r'onnx node "y" \(Loop\) hadn\'t ended after 6 trips'):
        program({p.name: feed[p.name] for p in program.inputs})


def test_a_known_trip_count_needs_no_bound() -> None:
    assert load_onnx(adding(5, "first")).calling.guards == ()


def test_scan_outputs_of_unknown_length_are_refused() -> None:
    body = h.make_graph(
        [h.make_node("Identity", ["c_in"], ["c"]), h.make_node("Identity", ["i"], ["o"])],
        "body",
        [info("i", T.INT64, []), info("c_in", T.BOOL, [])],
        [info("c", T.BOOL, []), info("o", T.INT64, [])],
    )
    nodes = [h.make_node("Loop", ["M", ""], ["y"], body=body)]
    made = model(nodes, [info("M", T.INT64, [])], [info("y", T.INT64, [None])], [])
    with pytest.raises(Unsupported, match="length of its scan outputs depends on values"):
        load_onnx(made, max_trips=4)


def test_an_index_of_the_branch_not_taken_may_be_anything() -> None:
    branches = {
        "then_branch": h.make_graph([h.make_node("Gather", ["x", "i"], ["a"])], "then", [], [info("a", T.FLOAT, [])]),
        "else_branch": h.make_graph([h.make_node("Neg", ["one"], ["b"])], "else", [], [info("b", T.FLOAT, [])]),
    }
    nodes = [h.make_node("Less", ["i", "n"], ["c"]), h.make_node("If", ["c"], ["y"], **branches)]
    constants = [h.make_tensor("n", T.INT64, [], [3]), h.make_tensor("one", T.FLOAT, [], [1.0])]
    ends = [info("x", T.FLOAT, [3]), info("i", T.INT64, [])]
    program = load_onnx(model(nodes, ends, [info("y", T.FLOAT, [])], constants))
    x = np.array([5, 6, 7], np.float32)
    assert [evaluate(program, [x, np.array(i)])[0] for i in (2, 77)] == [7, -1]
