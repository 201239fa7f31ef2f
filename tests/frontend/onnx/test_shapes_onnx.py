"""ONNX models with open shapes: proofs, counterexamples, results at many sizes, dispatch, artifacts, command line."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil
from cuvil_hw.errors import ArtifactError, CuvilError, DeviceError, InputError
from cuvil_hw.ir.program import parse
from cuvil_hw.runtime import artifact, dynamic
from cuvil_hw.runtime.dynamic import DynamicExecutable
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.split import parts

Nodes = list[onnx.NodeProto]


def model(nodes: Nodes, inputs: Mapping[str, Any], outputs: int, weights: Mapping[str, Any], **ints: str) -> Any:
    """A model whose dimensions given as text are open. Integer inputs are those named in `ints`."""
    kinds = {n: TensorProto.INT64 if n in ints else TensorProto.FLOAT for n in inputs}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, kinds[n], shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(f"y{i}" if i else "y", TensorProto.FLOAT, None) for i in range(outputs)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(","), output.split(","), name=f"{op.lower()}_{output}", **attributes)


def draw(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(np.float32)


def conv_net() -> Any:
    weights = {"w": draw(4, 3, 3, 3), "b": draw(4), "l": draw(16, 5), "shape": np.array([0, -1])}
    nodes = [
        node("Conv", "x,w,b", "c", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Reshape", "r,shape", "f"),
        node("MatMul", "f,l", "y"),
    ]
    return model(nodes, {"x": ["batch", 3, 4, 4]}, 1, weights)


def unet() -> Any:
    weights = {"w1": draw(4, 3, 3, 3), "w2": draw(4, 4, 3, 3), "w3": draw(2, 8, 1, 1), "half": np.float32([1, 1, 2, 2])}
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x,w1", "a", **same),
        node("MaxPool", "a", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p,w2", "b", **same),
        node("MaxPool", "b", "q", kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", "q,,half", "u", mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
        node("Add", "u,b", "v"),
        node("Resize", "v,,half", "t", mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
        node("Concat", "t,a", "k", axis=1),
        node("Conv", "k,w3", "y"),
    ]  # fmt: skip
    return model(nodes, {"x": ["n", 3, "h", "w"]}, 1, weights)


def attention() -> Any:
    """Embedding, a table of 32 positions cut to length, two heads of attention with S × S scores: as exporters write
    it, with shapes computed by ops."""
    weights = {
        "table": draw(20, 8), "places": draw(32, 8), "q": draw(8, 8), "k": draw(8, 8), "v": draw(8, 8), "o": draw(8, 3),
        "zero": np.array(0), "one": np.array(1), "two": np.array([2]), "rest": np.array([-1]), "eight": np.array([8]),
        "start": np.array([0]), "axis": np.array([0]), "scale": np.float32(0.5),
    }  # fmt: skip
    nodes = [
        node("Shape", "ids", "shape"),
        node("Gather", "shape,zero", "b0"),
        node("Gather", "shape,one", "s0"),
        node("Unsqueeze", "b0,axis", "b"),
        node("Unsqueeze", "s0,axis", "s"),
        node("Gather", "table,ids", "e"),
        node("Range", "zero,s0,one", "steps"),
        node("Gather", "places,steps", "p"),
        node("Add", "e,p", "x"),
        node("Concat", "b,s,two,rest", "heads", axis=0),
    ]
    for name in "qkv":
        nodes += [
            node("MatMul", f"x,{name}", f"{name}1"),
            node("Reshape", f"{name}1,heads", f"{name}2"),
            node("Transpose", f"{name}2", f"{name}3", perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", "q3,k3", "scores"),
        node("Mul", "scores,scale", "scaled"),
        node("Softmax", "scaled", "weights", axis=-1),
        node("MatMul", "weights,v3", "mixed"),
        node("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        node("Concat", "b,s,eight", "flat", axis=0),
        node("Reshape", "back,flat", "joined"),
        node("MatMul", "joined,o", "y"),
        node("ReduceMean", "joined", "y1", axes=[1], keepdims=0),
    ]
    return model(nodes, {"ids": ["batch", "length"]}, 2, weights, ids="i64")


def reference(net: Any, **inputs: Any) -> list[np.ndarray[Any, Any]]:
    return onnxruntime.InferenceSession(net.SerializeToString()).run(None, inputs)  # type: ignore[no-any-return]


def check(program: Any, net: Any, **inputs: Any) -> None:
    results = program.run(inputs).outputs
    for made, wanted in zip(results, reference(net, **inputs), strict=True):
        assert made.shape == wanted.shape
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def batched() -> DynamicExecutable:
    batch = cuvil.Dim("B", min=1, max=64, sizes=(1, 4))
    program = cuvil.compile(conv_net(), "cpu", shapes={"batch": batch})
    assert isinstance(program, DynamicExecutable)
    return program


@pytest.mark.parametrize("batch", [1, 3, 4, 64])
def test_every_batch_within_the_bounds(batched: DynamicExecutable, batch: int) -> None:
    check(batched, conv_net(), x=draw(batch, 3, 4, 4))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((0, 3, 4, 4), ["B = 0", "at least 1"]),
        ((65, 3, 4, 4), ["B = 65", "at most 64", "input 'x', dimension 0"]),
        ((2, 3, 4, 5), ["input 'x', dimension 3", "has 5, expected 4"]),
        ((3, 4, 4), ["input 'x'", "(B, 3, 4, 4)"]),
    ],
)
def test_sizes_outside_are_refused_at_the_call(batched: DynamicExecutable, shape: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        batched(draw(*shape))
    assert all(word in str(error.value) for word in words), error.value


def test_what_a_program_with_open_shapes_says_of_itself(batched: DynamicExecutable) -> None:
    assert [str(p) for p in (*batched.inputs, *batched.outputs)] == ["x: (B, 3, 4, 4) f32", "y: (B, 5) f32"]
    assert batched.proven
    assert {"B": 1} in batched.sizes
    assert {"B": 4} in batched.sizes
    report = batched.report
    assert report["open"]["outputs"] == ["y: (B, 5) f32"]
    assert "output y: (B, 5) f32" in report.text()
    assert 'shapes = ["(B, 4, 2, 2)"]' in batched.ir
    assert 'dims = ["1 <= B <= 64"]' in batched.ir
    parse(batched.ir)  # it is level1 text as any other
    assert any(name.startswith("B=4/") for name in batched.sources)
    with batched.at(B=4) as fixed:
        assert fixed.inputs[0].shape == (4, 3, 4, 4)
    with pytest.raises(InputError, match="B = 65"):
        batched.at(B=65)
    with pytest.raises(InputError, match="a size for each of B"):
        batched.at(N=3)


def test_unet_without_its_constraint_gets_a_counterexample() -> None:
    dims = {"n": cuvil.Dim("N", 1, 2), "h": cuvil.Dim("H", 4, 64), "w": 16}
    with pytest.raises(CuvilError) as error:
        cuvil.compile(unet(), "cpu", shapes=dims, constraints=["H % 2 == 0"])
    text = str(error.value)
    assert "H = 6" in text  # the smallest even size that isn't a multiple of 4
    assert "add_v" in text
    assert 'cuvil.Constraint("H % 4 == 0")' in text
    assert "4 ≤ H ≤ 64" in text


def test_unet_takes_every_height_and_width_that_keeps_it() -> None:
    h, w = cuvil.Dim("H", 4, 64), cuvil.Dim("W", 4, 64)
    rules = [cuvil.Constraint("H % 4 == 0"), "W % 4 == 0", "H <= 4*W"]
    program = cuvil.compile(unet(), "cpu", shapes={"x": (cuvil.Dim("N", 1, 2), 3, h, w)}, constraints=rules)
    assert isinstance(program, DynamicExecutable)
    assert program.proven
    assert str(program.outputs[0]) == "y: (N, 2, H, W) f32"
    for shape in ((1, 3, 4, 4), (2, 3, 64, 16), (1, 3, 12, 64)):
        check(program, unet(), x=draw(*shape))
    with pytest.raises(InputError, match=r"constraint H <= 4\*W does not hold for H = 64, W = 12"):
        program(draw(1, 3, 64, 12))
    with pytest.raises(InputError, match=r"constraint W % 4 == 0 does not hold for W = 14"):
        program(draw(1, 3, 16, 14))


def test_attention_over_any_length() -> None:
    dims = {"batch": cuvil.Dim("B", 1, 4), "length": cuvil.Dim("S", 1, 32)}
    program = cuvil.compile(attention(), "cpu", shapes=dims)
    assert isinstance(program, DynamicExecutable)
    assert [str(p) for p in program.outputs] == ["y: (B, S, 3) f32", "y1: (B, 8) f32"]
    assert program.proven
    for batch, length in ((1, 1), (4, 32), (3, 7)):
        check(program, attention(), ids=np.random.default_rng(0).integers(0, 20, (batch, length)))


def test_a_table_that_ends_is_found_before_a_call_needs_more() -> None:
    dims = {"batch": 1, "length": cuvil.Dim("S", 1, 100)}
    with pytest.raises(CuvilError, match=r"S = 100.*\n.*it takes S = 32, not 33"):
        cuvil.compile(attention(), "cpu", shapes=dims)


def test_contradictory_rules_are_refused_with_the_rules() -> None:
    shapes = {"batch": cuvil.Dim("B", 1, 4), "length": cuvil.Dim("S", 1, 32)}
    with pytest.raises(CuvilError, match=r"S > 10\*B.*contradict"):
        cuvil.compile(attention(), "cpu", shapes=shapes, constraints=["S > 10*B", "S < B"])
    with pytest.raises(CuvilError, match="shapes= names 'lenght'"):
        cuvil.compile(attention(), "cpu", shapes={"lenght": cuvil.Dim("S")})
    with pytest.raises(CuvilError, match="axis 1 is S, but the file fixes it to 3"):
        cuvil.compile(conv_net(), "cpu", shapes={"x": {0: 1, 1: cuvil.Dim("S")}})


def test_saved_and_loaded(batched: DynamicExecutable, tmp_path: Path) -> None:
    batched.save(tmp_path / "net.cuvil")
    loaded = cuvil.load(tmp_path / "net.cuvil")
    assert isinstance(loaded, DynamicExecutable)
    assert loaded.program == batched.program
    assert loaded.sizes == batched.sizes
    x = draw(4, 3, 4, 4)
    assert np.array_equal(loaded(x), batched(x))
    loaded.save(tmp_path / "again.cuvil")
    assert (tmp_path / "again.cuvil").read_bytes() == (tmp_path / "net.cuvil").read_bytes()
    data = bytearray((tmp_path / "net.cuvil").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.cuvil").write_bytes(data)
    with pytest.raises(ArtifactError):
        cuvil.load(tmp_path / "bad.cuvil")
    loaded.close()
    with pytest.raises(DeviceError, match="closed"):
        loaded(x)
    with pytest.raises(ArtifactError, match="open shapes"):
        Executable(artifact.read(tmp_path / "net.cuvil"))


def test_weights_are_stored_once(tmp_path: Path) -> None:
    big = model([node("MatMul", "x,w", "y")], {"x": ["n", 300]}, 1, {"w": draw(300, 300)})
    sizes = {}
    for listed in ((1,), (1, 2, 3, 4)):
        cuvil.compile(big, "cpu", shapes={"n": cuvil.Dim("N", 1, 8, sizes=listed)}).save(tmp_path / "net.cuvil")
        sizes[len(listed)] = (tmp_path / "net.cuvil").stat().st_size
    assert sizes[4] - sizes[1] < 300 * 300 * 4 / 2


def only_listed(net: Any, tmp_path: Path, **options: Any) -> DynamicExecutable:
    """As on a board: without the model, there is nothing to compile."""
    cuvil.compile(net, "cpu", **options).save(tmp_path / "net.cuvil")
    loaded = cuvil.load(tmp_path / "net.cuvil")
    assert isinstance(loaded, DynamicExecutable)
    return loaded


def test_without_the_model_a_batch_is_cut_and_padded_where_rows_stand_alone(tmp_path: Path) -> None:
    program = only_listed(conv_net(), tmp_path, shapes={"batch": cuvil.Dim("B", 1, 64, sizes=(2, 4))})
    assert program.batch == ("B",)
    for batch in (1, 2, 3, 4, 7, 64):
        check(program, conv_net(), x=draw(batch, 3, 4, 4))
    assert program.sizes == ({"B": 2}, {"B": 4})


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ReduceMean", "x", "m", axes=[0], keepdims=1), node("Sub", "x,m", "y")],
        [node("CumSum", "x,zero", "y")],
        [node("Softmax", "x", "y", axis=0)],
        [node("Shape", "x", "s"), node("Gather", "s,zero", "n"), node("Cast", "n", "f", to=TensorProto.FLOAT),
         node("Div", "x,f", "y")],
        [node("Slice", "x,minus,ends,axes,minus", "y")],
    ],
    ids=["mean", "sum", "softmax", "count", "reversed"],
)  # fmt: skip
def test_without_the_model_rows_that_touch_are_refused_not_padded(nodes: Nodes, tmp_path: Path) -> None:
    weights = {"zero": np.array(0), "minus": np.array([-1]), "ends": np.array([-9999]), "axes": np.array([0])}
    net = model(nodes, {"x": ["n", 3]}, 1, weights)
    program = only_listed(net, tmp_path, shapes={"n": cuvil.Dim("N", 1, 64, sizes=(2, 8))})
    assert program.batch == ()
    check(program, net, x=draw(8, 3))
    with pytest.raises(InputError, match="no program for N=3; nearest are N=2 or N=8"):
        program(draw(3, 3))


def test_parts_cover_every_row_once() -> None:
    for wanted in range(1, 40):
        for sizes in ((1,), (4,), (2, 8), (3, 5, 7)):
            cuts = parts(wanted, sizes)
            rows = [r for p in cuts for r in range(p.start, p.start + p.count)]
            assert rows == list(range(wanted))
            assert all(p.size in sizes and p.count <= p.size for p in cuts)


def test_a_size_is_compiled_once_however_many_wait_and_old_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "KEEP", 2)
    net = model([node("Mul", "x,x", "y")], {"x": ["n", 3]}, 1, {})
    program = cuvil.compile(net, "cpu", shapes={"n": cuvil.Dim("N", 1, 64, sizes=(1,))})
    assert isinstance(program, DynamicExecutable)
    compiled: list[int] = []
    inner = program._compiler
    assert inner is not None

    def counted(sizes: Mapping[str, int]) -> Any:
        compiled.append(sizes["N"])
        return inner(sizes)

    monkeypatch.setattr(program, "_compiler", counted)
    x, results = draw(5, 3), []
    threads = [threading.Thread(target=lambda: results.append(program(x))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled == [5]
    assert len(results) == 8
    assert all(np.array_equal(r, x * x) for r in results)
    for n in (6, 5, 7):
        program(draw(n, 3))
    assert compiled == [5, 6, 7]
    assert program.sizes == ({"N": 1}, {"N": 5}, {"N": 7})  # 6 was used longest ago; 1 is listed
    program(draw(6, 3))
    assert compiled == [5, 6, 7, 6]


def test_a_fabric_runs_what_was_compiled_ahead() -> None:
    data = draw(16, 3, 4, 4)
    open_ = {"batch": cuvil.Dim("B", 1, 8)}
    with pytest.raises(CuvilError, match="list sizes of B"):
        cuvil.compile(conv_net(), "pynq-z2", shapes=open_, calibration=data, interface="hw")


def test_quantized_sizes_share_one_calibration() -> None:
    data = draw(32, 3, 4, 4)
    dims = {"batch": cuvil.Dim("B", 1, 8, sizes=(1,))}
    program = cuvil.compile(conv_net(), "cpu", shapes=dims, calibration=data, precision="int8")
    x = data[:5]
    together, alone = program(x), np.concatenate([program(row[None]) for row in x])
    assert np.array_equal(together, alone)
    wanted = reference(conv_net(), x=x)[0]
    assert np.abs(together - wanted).max() < 0.05 * np.abs(wanted).max()
    with pytest.raises(InputError, match="don't fit"):
        cuvil.compile(conv_net(), "cpu", shapes=dims, calibration=draw(32, 3, 5, 4), precision="int8")


def test_state_and_several_targets_want_fixed_shapes() -> None:
    net = model([node("Add", "x,s", "y"), node("Identity", "y", "y1")], {"x": ["n", 3], "s": ["n", 3]}, 2, {})
    with pytest.raises(CuvilError, match="fixed shapes"):
        cuvil.compile(net, "cpu", shapes={"n": cuvil.Dim("N")}, state={"s": "y1"})
    with pytest.raises(CuvilError, match="fixed shapes"):
        cuvil.compile_all(net, ["cpu"], shapes={"n": cuvil.Dim("N")})


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from cuvil_hw.cli.main import main as command

    monkeypatch.chdir(tmp_path)
    onnx.save(unet(), "net.onnx")
    np.save("x.npy", draw(1, 3, 8, 12))
    options = ["-t", "cpu", "--shape", "x=1,3,H,W+4", "--dim", "H=4:16:8", "--dim", "W=4:16:8"]
    assert command(["compile", "net.onnx", *options]) != 0
    assert "the model doesn't take H = " in capsys.readouterr().err
    options += ["--constraint", "H % 4 == 0", "--constraint", "W % 4 == 0"]
    assert command(["compile", "net.onnx", *options, "--sources", "src"]) == 0
    assert "x: (1, 3, H, W + 4)" in capsys.readouterr().out
    assert (tmp_path / "src" / "H=8,W=8").is_dir()
    assert command(["run", "net.cuvil", "-i", "x.npy", "-o", "y.npy"]) == 0
    np.testing.assert_allclose(np.load("y.npy"), reference(unet(), x=np.load("x.npy"))[0], rtol=1e-4, atol=1e-5)
    for wrong in (["--dim", "H"], ["--dim", "H=8:4"], ["--shape", "x=1,3,Q,4"], ["--dim", "h=4:8", "--dim", "h=4:8"]):
        assert command(["compile", "net.onnx", "-t", "cpu", *wrong]) != 0
