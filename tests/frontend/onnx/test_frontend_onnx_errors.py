"""What the ONNX front end refuses, and what it says; shapes; files that are wrong; weights in other files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cuvil_hw.errors import CuvilError, Unsupported
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.types import TensorType
from tests.support.onnx_oracle import agree, floats, graph_model, mnemonics, node_model, run


def test_all_refusals_at_once_with_counts_and_places() -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["a"], name="first"),
        helper.make_node("Det", ["a"], ["b"], name="det"),
        helper.make_node("Multinomial", ["b"], ["n"], name="dice", sample_size=2),
        helper.make_node("Cast", ["n"], ["c"], name="to float", to=TensorProto.FLOAT),
        helper.make_node("RandomNormalLike", ["c"], ["d"]),
        helper.make_node("Add", ["d", "b"], ["y"]),
    ]
    model = graph_model(nodes, {"x": floats(1, 2, 8, 8)}, ["y"], 13)
    with pytest.raises(Unsupported) as error:
        load_onnx(model)
    found = {r.op: (r.count, r.where) for r in error.value.refusals}
    assert found == {"RandomNormalLike": (2, ("first", "d")), "Det": (1, ("det",)), "Multinomial": (1, ("dice",))}
    assert "Multinomial ×1 at dice: random numbers are not supported" in str(error.value)


def test_operators_that_onnx_does_not_have_are_all_listed() -> None:
    """onnx.checker would stop at the first."""
    inner = helper.make_tensor_value_info("o", TensorProto.FLOAT, [2])
    branches = [helper.make_graph([helper.make_node(op, ["x"], ["o"], name="in")], "b", [], [inner]) for op in
                ("Foo", "Relu")]  # fmt: skip
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], name="f1"),
        helper.make_node("Bar", ["a"], ["b"], name="b1"),
        helper.make_node("Gelu", ["x"], ["g"], name="new"),
        helper.make_node("Foo", ["b"], ["f"], name="f2"),
        helper.make_node("If", ["c"], ["i"], name="if", then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Sum", ["f", "g", "i"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [x, c], [y])
    with pytest.raises(Unsupported) as error:
        load_onnx(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]))
    found = {r.op: (r.where, r.reason) for r in error.value.refusals}
    assert found == {
        "Foo": (("f1", "f2"), "ONNX has no such operator"),
        "Bar": (("b1",), "ONNX has no such operator"),
        "Gelu": (("new",), "opset 13 doesn't have it; ONNX has it since opset 20"),
        "If": (("if",), "inside it, Foo: ONNX has no such operator; its condition is known only at run time: an input "
               "made constant (constants=) may decide it"),
    }  # fmt: skip


def test_unknown_domain_and_control_flow() -> None:
    branches = []
    for inputs in (["x"], ["x", "x"]):
        out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [3 * len(inputs)])
        branches.append(helper.make_graph([helper.make_node("Concat", inputs, ["o"], axis=0)], "b", [], [out]))
    nodes = [
        helper.make_node("If", ["c"], ["i"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Gizmo", ["i"], ["y"], domain="acme"),
    ]
    model = graph_model(nodes, {"x": floats(3), "c": np.array(True)}, ["y"], 13, domain="acme")
    with pytest.raises(Unsupported, match="known only at run time, and its branches give 3xf32 and 6xf32") as error:
        load_onnx(model)
    assert {r.op for r in error.value.refusals} == {"If", "acme.Gizmo"}
    assert "domain 'acme'" in str(error.value)


@pytest.mark.parametrize("taken", [True, False])
def test_a_known_condition_chooses_its_branch(taken: bool) -> None:
    """Exporters leave such Ifs behind: whether to squeeze an axis whose extent is known."""
    branches = []
    for op in ("Neg", "Abs"):
        out = helper.make_tensor_value_info(op, TensorProto.FLOAT, [3])
        branches.append(helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [out]))
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Equal", ["s", "three"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    model = graph_model(nodes, {"x": floats(3)}, ["y"], 13, {"three": np.array([3 if taken else 4])})
    assert mnemonics(agree(model, {"x": floats(3)})) == ["neg" if taken else "abs"]


def test_unused_nodes_are_not_refused() -> None:
    nodes = [helper.make_node("Hardmax", ["x"], ["z"]), helper.make_node("Relu", ["x"], ["y"])]
    assert mnemonics(load_onnx(graph_model(nodes, {"x": floats(2, 3)}, ["y"], 13))) == ["relu"]


def test_targets_known_only_at_run_time() -> None:
    with pytest.raises(Unsupported, match="Reshape ×1 at the_node: the target shape's values must be constant"):
        load_onnx(node_model("Reshape", [floats(2, 3), np.array([6])], {}, 13, set(), 1))


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT8E4M3FN, TensorProto.STRING])
def test_element_types_of_inputs(dtype: int) -> None:
    x = helper.make_tensor_value_info("x", dtype, [2])
    y = helper.make_tensor_value_info("y", dtype, [2])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    with pytest.raises(Unsupported, match=f"element type {TensorProto.DataType.Name(dtype)}"):
        load_onnx(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))


def symbolic(*dims: int | str | None, op: str = "Relu") -> onnx.ModelProto:
    x, z = (helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n in "xz")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Add", ["x", "z"], ["y"])], "g", [x, z], [y])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def test_a_leading_symbolic_dimension_is_assumed_to_be_one() -> None:
    program = load_onnx(symbolic("batch", 3))
    assert program.inputs == (("x", TensorType((1, 3), "f32")), ("z", TensorType((1, 3), "f32")))
    assert program.notes["assumed"] == ("input 'x': dimension 0 (batch) = 1",)
    assert "assumed" not in load_onnx(symbolic(2, 3)).notes


def test_shapes_bind_names_for_all_inputs() -> None:
    program = load_onnx(symbolic("batch", "length"), shapes={"x": (4, 7)})
    assert [t.shape for _, t in program.inputs] == [(4, 7), (4, 7)]
    assert "assumed" not in program.notes


def test_names_that_are_no_names_bind_nothing() -> None:
    program = load_onnx(symbolic("?", "?"), shapes={"x": (4, 7), "z": (1, 7)})
    assert [t.shape for _, t in program.inputs] == [(4, 7), (1, 7)]
    with pytest.raises(CuvilError, match=r"'z' dimension 1 \(unnamed\)"):
        load_onnx(symbolic("-1", "None"), shapes={"x": (4, 7)})


def test_inputs_made_constant() -> None:
    program = load_onnx(symbolic("batch", 3), constants={"z": [[1, 2, 3.5]]})
    assert program.inputs == (("x", TensorType((1, 3), "f32")),)
    np.testing.assert_array_equal(run(program, {"x": floats(1, 3)})[0], floats(1, 3) + np.float32([1, 2, 3.5]))


def test_a_constant_input_decides_an_if() -> None:
    branches = []
    for inputs in (["x"], ["x", "x"]):
        out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [3 * len(inputs)])
        branches.append(helper.make_graph([helper.make_node("Concat", inputs, ["o"], axis=0)], "b", [], [out]))
    nodes = [
        helper.make_node("Equal", ["rate", "wanted"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    model = graph_model(nodes, {"x": floats(3), "rate": np.int64(0)}, ["y"], 13, {"wanted": np.int64(16000)})
    for rate, size in ((16000, 3), (8000, 6)):
        program = load_onnx(model, constants={"rate": rate})
        assert mnemonics(program).count("where") == 0
        assert run(program, {"x": floats(3)})[0].shape == (size,)


@pytest.mark.parametrize(
    ("shapes", "constants", "message"),
    [
        ({}, {"w": 1.0}, "constants= names 'w'; the inputs are 'x', 'z'"),
        ({}, {"z": 1.0}, r"the shape of constants\['z'\] = \(\): the input has 2 dimensions"),
        ({"x": (4, 3)}, {"z": np.zeros((5, 3))}, "dimension 'n' is already 4"),
        ({"z": (4, 3)}, {"z": np.zeros((4, 3))}, "'z' is in shapes= and in constants="),
        ({}, {"z": [["a", "b", "c"]]}, "is not numbers"),
    ],
)
def test_constants_that_do_not_fit_their_input(
    shapes: dict[str, tuple[int, ...]], constants: dict[str, object], message: str
) -> None:
    with pytest.raises(CuvilError, match=message):
        load_onnx(symbolic("n", 3), shapes=shapes, constants=constants)


@pytest.mark.parametrize(("dtype", "value"), [(np.int8, 128), (np.int8, 0.5), (np.uint8, -1), (np.bool_, 2)])
def test_constants_are_values_of_the_inputs_type(dtype: type, value: float) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    model = graph_model([node], {"x": np.zeros(2, dtype)}, ["y"], 13)
    assert run(load_onnx(model, constants={"x": [1, 0]}), {})[0].tolist() == [1, 0]
    with pytest.raises(CuvilError, match=r"constants\['x'\] has values that .*, its type, doesn't have"):
        load_onnx(model, constants={"x": [value, 0]})


@pytest.mark.parametrize(
    ("dims", "shapes", "message"),
    [
        (("batch", "length"), {}, r"'x' dimension 1 \(length\).*pass shapes="),
        ((2, None), {}, r"'x' dimension 1 \(unnamed\).*pass shapes="),
        ((2, "n"), {"w": (2, 3)}, "shapes= names 'w'; the inputs are 'x', 'z'"),
        ((2, "n"), {"x": (2,)}, r"has 2 dimensions: \(2, n\)"),
        (("n", 2), {"x": (3, 3)}, r"the model fixes it to \(n, 2\)"),
        ((2, "n"), {"x": (2, 3), "z": (2, 4)}, "dimension 'n' is already 3"),
        ((2, "n"), {"x": (2, -3)}, "can't be negative"),
    ],
)
def test_unknown_and_contradictory_shapes(
    dims: tuple[int | str | None, ...], shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(CuvilError, match=message):
        load_onnx(symbolic(*dims), shapes=shapes)


def test_inputs_without_any_shape() -> None:
    model = symbolic(2, 3)
    for i in model.graph.input:
        i.type.tensor_type.ClearField("shape")
    with pytest.raises(CuvilError, match=r"'x' \(no shape at all\)"):
        load_onnx(model)
    assert load_onnx(model, shapes={"x": (5,), "z": (2, 5)}).outputs[0][1].shape == (2, 5)


def test_wrong_files(tmp_path: Path) -> None:
    good = node_model("Relu", [floats(100)], {}, 13, set(), 1).SerializeToString()
    cases = {
        "garbage.onnx": (b"\x89PNG\r\n\x1a\n" + bytes(range(200)), "not an ONNX model"),
        "truncated.onnx": (good[: len(good) // 2], "not an ONNX model|not a valid ONNX model"),
        "empty.onnx": (b"", "not an ONNX model"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CuvilError, match=message) as error:
            load_onnx(tmp_path / name)
        assert name in str(error.value)
    with pytest.raises(CuvilError, match=r"missing\.onnx: no such file"):
        load_onnx(tmp_path / "missing.onnx")
    with pytest.raises(CuvilError, match="not a file"):
        load_onnx(str(tmp_path))
    with pytest.raises(CuvilError, match="not int"):
        load_onnx(3)  # type: ignore[arg-type]


def test_names_that_are_not_text(tmp_path: Path) -> None:
    data = node_model("Relu", [floats(2)], {}, 13, set(), 1).SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data.replace(b"the_node", b"the_\xff\xfeod"))
    with pytest.raises(CuvilError, match=r"m\.onnx: .*(UTF-8|damaged|not an ONNX)"):
        load_onnx(tmp_path / "m.onnx")


def test_every_truncation_of_a_file_is_an_error_or_a_valid_model(tmp_path: Path) -> None:
    w = floats(2, 3)
    good = node_model("Gemm", [floats(1, 3), w], {"transB": 1}, 13, {1}, 1).SerializeToString()
    for end in range(0, len(good), 3):
        (tmp_path / "m.onnx").write_bytes(good[:end])
        with pytest.raises(CuvilError):
            load_onnx(tmp_path / "m.onnx")


def test_checker_messages() -> None:
    model = node_model("Relu", [floats(2)], {}, 13, set(), 1)
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(CuvilError, match=r"not a valid ONNX model: .*nowhere"):
        load_onnx(model)


def test_models_older_than_opset_7_are_converted() -> None:
    """Then broadcasting was an attribute."""
    shapes = {"x": [3, 3, 3], "b": [3], "y": [3, 3, 3]}
    x, b, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    given = {"x": floats(3, 3, 3), "b": floats(3, seed=1)}
    for axis in (0, 1):
        node = helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=axis)
        model = helper.make_model(helper.make_graph([node], "g", [x, b], [y]), ir_version=3)
        model.opset_import[0].version = 6
        if axis:
            with pytest.raises(CuvilError, match="Add at y broadcasts from axis 1"):
                load_onnx(model)
        else:
            np.testing.assert_array_equal(run(load_onnx(model), given)[0], given["x"] + given["b"][:, None, None])


def external_model(folder: Path, location: str) -> Path:
    w = np.arange(6, dtype=np.float32)
    (folder / "w.bin").write_bytes(w.tobytes())
    tensor = numpy_helper.from_array(w, "x1")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "24")):
        tensor.external_data.add(key=key, value=value)
    model = node_model("Add", [floats(6), w], {}, 13, {1}, 1)
    model.graph.initializer[0].CopyFrom(tensor)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def test_external_weights_are_read(tmp_path: Path) -> None:
    program = load_onnx(external_model(tmp_path, "w.bin"))
    np.testing.assert_array_equal(run(program, {"x0": np.zeros(6, np.float32)})[0], np.arange(6, dtype=np.float32))


def test_external_weights_stay_in_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret").write_bytes(bytes(24))
    os.symlink(tmp_path / "secret", inner / "link")
    for location in ("../secret", str(tmp_path / "secret"), "link"):
        with pytest.raises(CuvilError, match="outside the model's folder"):
            load_onnx(external_model(inner, location))
    with pytest.raises(CuvilError, match="which is not there"):
        load_onnx(external_model(inner, "gone.bin"))
    path = external_model(inner, "w.bin")
    (inner / "w.bin").write_bytes(bytes(20))
    with pytest.raises(CuvilError, match=r"ends at byte 24 of 'w\.bin', which has 20"):
        load_onnx(path)
    with pytest.raises(CuvilError, match="lie in other files"):
        load_onnx(onnx.load(path, load_external_data=False))


def test_local_functions_are_inlined() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    add = helper.make_node("Add", ["a", "a"], ["b"])
    twice = helper.make_function("mine", "Twice", ["a"], ["b"], [add], opsets[:1])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Twice", ["x"], ["y"], domain="mine")], "g", [x], [y])
    model = helper.make_model(graph, functions=[twice], ir_version=8, opset_imports=opsets)
    np.testing.assert_array_equal(run(load_onnx(model), {"x": np.ones(3, np.float32)})[0], np.full(3, 2, np.float32))


def test_constants_are_shared_and_outputs_may_be_inputs() -> None:
    nodes = [helper.make_node("Add", ["x", "c"], ["a"]), helper.make_node("Mul", ["a", "c"], ["y"])]
    program = load_onnx(graph_model(nodes, {"x": floats(3)}, ["y", "x", "c"], 13, {"c": floats(3, seed=1)}))
    assert len(program.constants) == 1
    assert [n for n, _ in program.outputs] == ["y", "x", "c"]
