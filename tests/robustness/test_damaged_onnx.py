"""ONNX files that ask for what can't be: each is a CuvilError that says where and why, in bounded time and memory."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import cuvil
from cuvil_hw.entry.check import check
from cuvil_hw.errors import CuvilError, Unsupported
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.program import evaluate
from tests.support.onnx_oracle import floats, graph_model, mnemonics, node_model
from tools import fuzz_harness
from tools.fuzz_onnx_models import LEAVES, TREE, model

CASES, SEED = 2000, 8


def test_mutated_files_give_a_program_or_a_cuvil_error(full: bool) -> None:
    """Each in a worker with a limit of time and memory; another exception, a signal or a case that hangs is listed.
    2,000 files with `--full`, else a tenth."""
    found = list(fuzz_harness.hunt("fuzz_onnx", SEED, range(CASES if full else CASES // 10)))
    assert not found, "\n".join(map(str, found))


def test_damaged_profiles_and_array_files(full: bool) -> None:
    found = list(fuzz_harness.hunt("fuzz_files", SEED, range(300 if full else 100)))
    assert not found, "\n".join(map(str, found))


def test_the_harness_finds_exceptions_signals_hangs_and_memory() -> None:
    found = {f.number: f.what for f in fuzz_harness.hunt("fuzz_selftest", 0, range(6), seconds=3)}
    assert found.keys() == {1, 2, 3, 4}
    assert "ZeroDivisionError" in found[1]
    assert "ended with -11" in found[2]
    assert "more than 3 s" in found[3]
    assert "MemoryError" in found[4]


# -- trees ------------------------------------------------------------------------------------------------------------


def forest(change: Mapping[str, Any] | None = None, leaves: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    columns: dict[str, Any] = {**TREE, **{f"target_{k}": v for k, v in {**LEAVES, **(leaves or {})}.items()}}
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], name="forest", domain="ai.onnx.ml",
        **{"n_targets": 2, **columns, **(change or {})},
    )  # fmt: skip
    return model([node], {"x": np.zeros((2, 3), np.float32)}, ["y"], {}, 13)


def swapped(values: list[Any], at: int, value: Any) -> list[Any]:
    return [value if i == at else v for i, v in enumerate(values)]


def test_the_forest_that_the_next_tests_damage_is_right() -> None:
    x = floats(2, 3)
    session = ort.InferenceSession(forest().SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(evaluate(load_onnx(forest()), [x])[0], session.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    ("change", "leaves", "message"),
    [
        # Node 3 loses its parent: it was a tree of its own, whose leaf counted.
        ({"nodes_truenodeids": swapped(TREE["nodes_truenodeids"], 1, 4)}, {}, r"nothing leads to the nodes \[0, 3\]"),
        ({"nodes_truenodeids": swapped(TREE["nodes_truenodeids"], 1, 0)}, {}, "own ancestor"),
        ({"nodes_truenodeids": swapped(TREE["nodes_truenodeids"], 0, 0)}, {}, "node 0 of tree 0 is its own child"),
        ({"nodes_featureids": swapped(TREE["nodes_featureids"], 0, -1)}, {}, "feature -1 of 3"),
        ({"nodes_featureids": swapped(TREE["nodes_featureids"], 0, 3)}, {}, "feature 3 of 3"),
        ({"nodes_modes": swapped(TREE["nodes_modes"], 0, b"\xff")}, {}, "mode"),
        ({"nodes_treeids": TREE["nodes_treeids"][:-1]}, {}, "columns of different lengths"),
        ({"nodes_values": TREE["nodes_values"][:-1]}, {}, "columns of different lengths"),
        ({"aggregate_function": "MEDIAN"}, {}, "aggregate_function 'MEDIAN'"),
        ({"n_targets": 0}, {}, "target [01] of 0"),
        ({"n_targets": 1 << 40}, {}, "elements, computed at import"),
        ({}, {"ids": [0, 1, 0, 1, -1]}, "target -1 of 2"),
        ({}, {"ids": [0, 1, 0, 1, 2]}, "target 2 of 2"),
        ({}, {"nodeids": [2, 3, 4, 1, 9]}, "no node 9 in tree 1"),
        ({}, {"ids": [0, 1, 0]}, "columns of different lengths"),
    ],
)
def test_damaged_trees_are_refused(change: Mapping[str, Any], leaves: Mapping[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        load_onnx(forest(change, leaves))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tree_roots", [-1], "root -1 of 3"),
        ("tree_roots", [3], "root 3 of 3"),
        ("nodes_truenodeids", [-1, 0, 2], "child -1 of node 0"),
        ("nodes_truenodeids", [1, 0, 3], "child 3 of node 2"),
        ("nodes_trueleafs", [7, 1, 1], "leaf: 7"),
        ("nodes_falseleafs", [0, 1, 1], "own ancestor|own child"),
        ("leaf_targetids", [0, 1, -1], "target -1 of 2"),
        ("aggregate_function", -1, "aggregate_function -1"),
        ("post_transform", -1, "post_transform -1"),
    ],
)
def test_damaged_ensembles_are_refused(name: str, value: Any, message: str) -> None:
    from tools.fuzz_onnx_models import ensemble

    damaged = ensemble()
    if name == "nodes_falseleafs":
        next(a for a in damaged.graph.node[0].attribute if a.name == "nodes_falsenodeids").ints[0] = 0
    attribute = next(a for a in damaged.graph.node[0].attribute if a.name == name)
    attribute.CopyFrom(helper.make_attribute(name, value))
    with pytest.raises(Unsupported, match=message):
        load_onnx(damaged)


def test_nodes_with_two_parents_are_no_damage() -> None:
    """Converters of set membership write such trees, and ONNX Runtime takes them."""
    shared = forest({"nodes_falsenodeids": swapped(TREE["nodes_falsenodeids"], 0, 3)}, {"nodeids": [3, 3, 4, 1, 2]})
    for a in shared.graph.node[0].attribute:  # node 2 goes
        if a.name.startswith("nodes_"):
            values = helper.get_attribute_value(a)
            kept = [v for i, v in enumerate(values) if i != 2]
            a.CopyFrom(helper.make_attribute(a.name, kept))
    x = floats(16, 3)
    shared.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 16
    session = ort.InferenceSession(shared.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(evaluate(load_onnx(shared), [x])[0], session.run(None, {"x": x})[0], rtol=1e-6)


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory() -> Iterator[None]:
    """1 GiB beyond what the process has: a model that takes more fails with MemoryError instead of filling the host."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


HUGE = 1 << 40


def known(op: str, *operands: Any, opset: int = 18, outs: int = 1, **attrs: Any) -> onnx.ModelProto:
    return node_model(op, operands, attrs, opset, set(range(len(operands))), outs)


def asked(op: str, *operands: Any, opset: int = 18, **attrs: Any) -> onnx.ModelProto:
    """The first operand is an input."""
    return node_model(op, operands, attrs, opset, set(range(1, len(operands))), 1)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


X = floats(1, 2, 6, 6)
SIZES: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "ConstantOfShape": lambda: known("ConstantOfShape", ints(HUGE)),
    "Range": lambda: known("Range", np.int64(0), np.int64(HUGE), np.int64(1)),
    "Range of floats": lambda: known("Range", np.float32(0), np.float32(np.inf), np.float32(1)),
    "OneHot": lambda: asked("OneHot", ints(1), np.int64(HUGE), floats(2)),
    "EyeLike": lambda: graph_model(
        [helper.make_node("ConstantOfShape", ["s"], ["z"]), helper.make_node("EyeLike", ["z"], ["y"])], {}, ["y"], 18,
        {"s": ints(1 << 16, 1 << 16)},
    ),
    "Pad": lambda: asked("Pad", X, ints(0, 0, 1 << 31, 0, 0, 0, 1 << 31, 0)),
    "Expand": lambda: known("Expand", floats(1), ints(HUGE)),
    "Tile": lambda: asked("Tile", X, ints(1, HUGE, 1, 1)),
    "Resize": lambda: asked("Resize", X, None, None, ints(1, 2, 1 << 28, 6), mode="linear"),
    "Resize by NaN": lambda: asked("Resize", X, None, np.float32([1, 1, np.nan, 1])),
    "Resize antialiased": lambda: asked("Resize", X, None, np.float32([1, 1, 1e-30, 1]), mode="linear", antialias=1),
    "MaxPool": lambda: asked("MaxPool", X, kernel_shape=[1 << 40, 1], pads=[1 << 39, 0, 1 << 39, 0]),
    "AveragePool": lambda: asked(
        "AveragePool", X, kernel_shape=[1 << 27, 1], pads=[1 << 26, 0, 1 << 26, 0], count_include_pad=1
    ),
    "pads of 2^24": lambda: asked("Conv", X, floats(3, 2, 3, 3), pads=[1 << 24, 0, 0, 0]),  # minutes on a fabric
    "MelWeightMatrix": lambda: known(
        "MelWeightMatrix", np.int64(1 << 24), np.int64(16), np.int64(8000), np.float32(0), np.float32(4000)
    ),
    "pads of 2^62": lambda: asked("Conv", X, floats(3, 2, 3, 3), pads=[1 << 62] * 4),
    "dilations of 2^62": lambda: asked("Conv", X, floats(3, 2, 3, 3), dilations=[1 << 62] * 2),
    "strides of 2^62": lambda: asked("ConvTranspose", X, floats(2, 2, 3, 3), strides=[1 << 62] * 2),
    "Col2Im": lambda: asked("Col2Im", floats(1, 4, 9), ints(4, 4), ints(2, 2), strides=[0, 1]),
    "Col2Im of a large block": lambda: asked("Col2Im", floats(1, 4, 9), ints(4, 4), ints(1 << 20, 1 << 20)),
    "TensorScatter": lambda: asked("TensorScatter", floats(1, 6, 4), floats(1, 2, 4), ints(0), opset=24, axis=9),
    "DFT": lambda: asked("DFT", floats(1, 8, 1), np.int64(1 << 40)),
    "HannWindow": lambda: known("HannWindow", np.int64(1 << 40)),
    "CenterCropPad": lambda: asked("CenterCropPad", X, ints(1, 2, 1 << 40, 6)),
    "batch of 2^31": lambda: node_model("Relu", [np.broadcast_to(np.float32(0), (1 << 31, 3))], {}, 18, set(), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.usefixtures("little_memory")
def test_sizes_are_refused_before_memory_is_taken(name: str) -> None:
    with pytest.raises(CuvilError, match=r"elements|GiB|×1 at|shape|Relu|opset|valid"):
        load_onnx(SIZES[name]())


def test_attributes_that_crash_the_shape_inference_of_onnx() -> None:
    """In a process of its own: at the commit before, a segmentation fault. A refused node was followed by inference."""
    code = (
        "import numpy as np, sys\nfrom tests.support.onnx_oracle import node_model\n"
        "from cuvil_hw.frontend.onnx import load_onnx\nfrom cuvil_hw.errors import Unsupported\n"
        "x, i = np.zeros((5, 4), np.float32), np.zeros((3, 1), np.int64)\n"
        "model = node_model('GatherND', [x, i], {}, 17, {1})\n"
        "model.graph.node[0].attribute.add(name='batch_dims', type=2, i=-3)\n"
        "try:\n    load_onnx(model)\nexcept Unsupported:\n    sys.exit(3)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(root)})  # fmt: skip
    assert done.returncode == 3


@pytest.mark.usefixtures("little_memory")
def test_what_is_too_large_to_be_folded_stays_an_op() -> None:
    nodes = [helper.make_node("Expand", ["a", "s"], ["w"]), helper.make_node("Relu", ["w"], ["y"])]
    wide = graph_model(nodes, {}, ["y"], 18, {"a": floats(1), "s": ints(1 << 31)})
    assert mnemonics(load_onnx(wide)) == ["broadcast_to", "relu"]


@pytest.mark.parametrize("op", ["Conv", "MatMulInteger", "Foo"])
def test_a_refused_node_whose_operands_have_types_that_it_cannot_take(op: str) -> None:
    """What ONNX's inference of the refused node raises is no finding of ours."""
    x, w = np.zeros((1, 2, 6, 6), np.int64), np.zeros((3, 2, 3, 3), np.float32)
    with pytest.raises(CuvilError):
        load_onnx(model([helper.make_node(op, ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": w}, 17))


@pytest.mark.parametrize("shape", [(), (3,)])
def test_sums_of_scalars_on_a_fabric(shape: tuple[int, ...]) -> None:
    """Their factors have no dimensions: what quantized DynamicQuantizeLinear, say, is made of."""
    x = np.zeros((2, 3), np.float32)
    dynamic = node_model("DynamicQuantizeLinear", [x if shape else x[0]], {}, 17, set(), 3)
    assert check(dynamic, "pynq-z2").targets[0].target == "pynq-z2"


def test_lrn_over_more_channels_than_there_are() -> None:
    """A window that reaches beyond all channels on both sides costs no more than one that covers them."""
    from tests.support.onnx_oracle import check as agrees

    for size in (5, 9, 100_001):
        agrees("LRN", floats(1, 3, 2, 2), size=size, alpha=0.5, beta=0.75, bias=1.0)


def test_check_survives_infinite_masks() -> None:
    from tools.fuzz_onnx_models import attention

    found = check(attention(), ["pynq-z2", "cpu"])
    assert len(found.targets) == 2
    assert not any("Error" in t.problem for t in found.targets)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1 << 62, -1, 0, 1 << 31])
def test_opsets_that_are_no_opsets(version: int) -> None:
    damaged = node_model("Relu", [floats(2)], {}, 13, set(), 1)
    damaged.opset_import[0].version = version
    with pytest.raises(CuvilError, match=f"opset {version}"):
        load_onnx(damaged)


def external(folder: Path, **fields: str) -> Path:
    """Add of an input and six external floats in w.bin, 0 to 5."""
    w = np.arange(6, dtype=np.float32)
    (folder / "w.bin").write_bytes(w.tobytes())
    made = node_model("Add", [floats(6), w], {}, 13, {1}, 1)
    weight = made.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": "0", "length": "24", **fields}.items():
        weight.external_data.add(key=key, value=value)
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize("field", ["offset", "length"])
@pytest.mark.parametrize("value", ["-1", "x", "1e3", "0x10", "\0", " 4", "٢", "9" * 19, "9" * 400])
def test_external_data_with_fields_that_are_no_numbers(tmp_path: Path, field: str, value: str) -> None:
    with pytest.raises(CuvilError, match=r"m\.onnx: weight 'x1'.*(expected a number of bytes|bytes in|ends at byte)"):
        load_onnx(external(tmp_path, **{field: value}))


@pytest.mark.parametrize("location", ["", "\0", "a\0b", "..", "a/../../w.bin", "/dev/zero", ".", "w.bin/x", "n" * 5000])
def test_external_data_in_places_that_are_none(tmp_path: Path, location: str) -> None:
    with pytest.raises(CuvilError, match=r"m\.onnx: weight 'x1'"):
        load_onnx(external(tmp_path, location=location))


def hub(folder: Path, *, model_is_a_link: bool = True) -> Path:
    """A model in the layout of a hub's cache: snapshots/REVISION/ links into blobs/."""
    home = folder / "models--owner--net"
    blobs, snapshot = home / "blobs", home / "snapshots" / "0123abcd" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    made = external(blobs)
    (blobs / "w.bin").rename(blobs / "f00d")
    made.rename(blobs / "beef")
    os.symlink("../../../blobs/f00d", snapshot / "w.bin")
    if model_is_a_link:
        os.symlink("../../../blobs/beef", snapshot / "m.onnx")
    else:
        (snapshot / "m.onnx").write_bytes((blobs / "beef").read_bytes())
    return snapshot / "m.onnx"


def test_external_data_in_a_hubs_cache(tmp_path: Path) -> None:
    path = hub(tmp_path)
    ort.InferenceSession(path, providers=["CPUExecutionProvider"])  # takes it, too
    found = evaluate(load_onnx(path), [np.zeros(6, np.float32)])[0]
    np.testing.assert_array_equal(found, np.arange(6, dtype=np.float32))


def test_links_out_of_the_folder_stay_refused(tmp_path: Path) -> None:
    with pytest.raises(CuvilError, match="copy that file here"):  # as ONNX Runtime
        load_onnx(hub(tmp_path, model_is_a_link=False))
    (tmp_path / "secret").write_bytes(bytes(24))
    inner = tmp_path / "inner"
    inner.mkdir()
    path = external(inner)
    (inner / "w.bin").unlink()
    os.symlink(tmp_path / "secret", inner / "w.bin")
    with pytest.raises(CuvilError, match="outside the model's folder"):
        load_onnx(path)
    os.symlink(path, tmp_path / "alias.onnx")  # a link to the model changes nothing
    with pytest.raises(CuvilError, match="which is not there"):
        load_onnx(tmp_path / "alias.onnx")


def test_a_model_reached_by_a_link_finds_its_weights(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path = external(tmp_path / "real")
    os.symlink(tmp_path / "real", tmp_path / "folder")
    for name in (path, tmp_path / "folder" / "m.onnx"):
        assert evaluate(load_onnx(name), [np.zeros(6, np.float32)])[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_shape_beyond_the_external_file_takes_no_memory(tmp_path: Path, little_memory: None) -> None:
    path = external(tmp_path, length="")
    damaged = onnx.load(path, load_external_data=False)
    damaged.graph.initializer[0].dims[:] = [24 << 30]  # 96 GiB
    path.write_bytes(damaged.SerializeToString())
    with pytest.raises(CuvilError, match="ends at byte"):
        load_onnx(path)


# -- what a caller gives ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1.5, 3), (True, 3), "", "13", ("1", "3"), (None, 3), 4, {0: 1}, ([1], 3)])
def test_shapes_are_whole_numbers(shape: Any) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    opened = graph_model([node], {"x": floats(1, 3)}, ["y"], 13)
    opened.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(CuvilError, match=re.escape("shapes['x'] is")):
        cuvil.compile(opened, "cpu", shapes={"x": shape})
    with pytest.raises(CuvilError, match="shapes is a str"):
        check(opened, "cpu", shapes="")  # type: ignore[arg-type]
    assert check(opened, "cpu", shapes={"x": (np.int64(2), 3)}).inputs[0][1].shape == (2, 3)


def test_a_target_alone_is_no_list_of_letters() -> None:
    relu = node_model("Relu", [floats(1, 3)], {}, 13, set(), 1)
    assert set(cuvil.compile_all(relu, "cpu")) == {"cpu"}
    assert [t.target for t in check(relu, "pynq-z2").targets] == ["pynq-z2"]
