"""`cuvil check`: shapes and broadcasts, precision hazards, coverage of targets, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cuvil
from cuvil_hw.cli.main import main
from cuvil_hw.errors import CuvilError

RNG = np.random.default_rng(3)


def model(nodes: list[Any], constants: dict[str, Any], x: tuple[Any, ...], y: tuple[Any, ...]) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x), ("y", y))]
    weights = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "m", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def dense(w: Any, b: Any, y: tuple[Any, ...] = (1, 3)) -> onnx.ModelProto:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1, name="dense")
    return model([node], {"w": np.asarray(w, np.float32), "b": np.asarray(b, np.float32)}, (1, 4), y)


def quantized(w: Any, w_scale: float, bias: Any) -> onnx.ModelProto:
    """x → QDQ → Gemm with int8 weights and a float bias → QDQ."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "z"], ["wd"]),
        helper.make_node("Gemm", ["xd", "wd", "b"], ["h"], transB=1, name="dense"),
        helper.make_node("QuantizeLinear", ["h", "s", "z"], ["hq"]),
        helper.make_node("DequantizeLinear", ["hq", "s", "z"], ["y"]),
    ]
    w = np.asarray(w, np.int8)
    constants = {"s": np.float32(0.05), "z": np.int8(0), "w": w, "ws": np.float32(w_scale)}
    return model(nodes, {**constants, "b": np.asarray(bias, np.float32)}, (1, w.shape[1]), (1, w.shape[0]))


def kinds(found: Any) -> list[tuple[str, str]]:
    return [(h.kind, h.severity) for h in found.hazards]


def test_nothing_wrong_with_a_sound_model() -> None:
    found = cuvil.check(dense(RNG.normal(size=(3, 4)), [0.1, 0.2, 0.3]), ["cpu", "pynq-z2"])
    assert (found.errors, found.warnings, found.refused, found.hazards) == (0, 0, (), ())
    cpu, zynq = found.targets
    assert (cpu.precision, cpu.device, cpu.fits) == ("float32", {"linear": 1}, True)
    assert zynq.precision == "int8"
    assert zynq.device["linear"] == 1
    assert set(zynq.processor) == {"quantize", "dequantize"}
    assert "assumed" in zynq.note


def test_a_bias_beyond_int32_is_found_without_data() -> None:
    """|b| / (s_x · s_w) > 2^31 for every input range under b · 127 · 255 / (w · 2^31)."""
    found = cuvil.check(dense(np.full((3, 4), 1e-7), [0, 100.0, 0]), ["cpu"])
    assert kinds(found) == [("int32 bias", "warning")]
    assert "channel 1 (1 of 3)" in found.hazards[0].what
    assert f"more than {100 * 127 * 255 / (np.float32(1e-7) * 2**31):.6g} (" in found.hazards[0].what
    assert "dense" in found.hazards[0].where


def test_calibration_tells_whether_the_bias_really_overflows() -> None:
    bad = dense(np.full((3, 4), 1e-4), [0, 100.0, 0])  # needs an input that spans 15
    wide, narrow = ([np.float32(k) * RNG.uniform(-1, 1, (100, 4)).astype(np.float32)] for k in (100, 1))
    assert kinds(cuvil.check(bad, ["cpu"], calibration=wide[0])) == []
    assert kinds(cuvil.check(bad, ["cpu"], calibration=narrow[0])) == [("int32 bias", "warning")]


def test_channels_without_weights_are_no_hazard() -> None:
    assert kinds(cuvil.check(dense(np.zeros((3, 4)), [1.0, 2.0, 3.0]), ["cpu"])) == []


def test_a_quantized_bias_beyond_int32() -> None:
    found = cuvil.check(quantized([[1, 2], [3, 4]], 1e-9, [0.2, 1.0]), ["cpu"])  # 0.2 / 5e-11 = 4e9
    assert kinds(found) == [("int32 bias", "warning")]
    assert "(2 of 2)" in found.hazards[0].what
    assert kinds(cuvil.check(quantized([[1, 2], [3, 4]], 1e-2, [0.2, 1.0]), ["cpu"])) == []


def test_a_bias_that_no_accumulator_holds_is_no_error() -> None:
    """It is added when the sums are rounded."""
    found = cuvil.check(quantized([[1, 2], [3, 4]], 1e-20, [1.0, 1.0]), ["cpu"])
    assert kinds(found) == [("int32 bias", "warning")]
    assert not found.errors


def test_quantized_sums_beyond_int32() -> None:
    n = 200_000  # 200,000 · 127 · 128 = 3.2e9
    found = cuvil.check(quantized(np.full((1, n), 127), 1e-3, [0.0]), ["cpu"])
    assert kinds(found) == [("int32 sum", "warning")]
    assert f"{n * 127 * 128:,}" in found.hazards[0].what


@pytest.mark.parametrize(
    ("constant", "text"),
    [(np.float32(1e5), "infinity"), (np.float32(1e-12), "become 0"), (np.float32(6e4), ""), (np.float32(1e-4), "")],
)
def test_fp16_range_of_constants(constant: Any, text: str) -> None:
    found = cuvil.check(model([helper.make_node("Add", ["x", "c"], ["y"])], {"c": constant}, (2,), (2,)), ["cpu"])
    assert [text in h.what for h in found.hazards if h.kind == "fp16 range"] == ([True] if text else [])


def test_fp16_range_of_activations_by_calibration() -> None:
    exp = model([helper.make_node("Exp", ["x"], ["y"], name="grow")], {}, (1, 2), (1, 2))
    found = cuvil.check(exp, ["cpu"], calibration=np.full((4, 2), 12, np.float32))  # e^12 = 162755
    assert kinds(found) == [("fp16 range", "warning")]
    assert "162755" in found.hazards[0].what


def test_nan_in_weights_is_an_error() -> None:
    found = cuvil.check(dense(np.full((3, 4), np.nan), [0, 0, 0]), ["cpu"])
    assert ("not finite", "error") in kinds(found)


def test_broadcasts_are_named() -> None:
    node = helper.make_node("Add", ["x", "c"], ["y"], name="shift")
    add = model([node], {"c": np.ones(3, np.float32)}, (2, 3), (2, 3))
    (layer,) = cuvil.check(add, ["cpu"]).broadcasts
    assert (layer.where, layer.inputs[0].shape, layer.outputs[0].shape) == ('onnx node "shift" (Add)', (3,), (2, 3))


def test_stale_shapes_are_told() -> None:
    found = cuvil.check(dense(np.ones((3, 4)), [0, 0, 0], y=(1, 7)), ["cpu"])
    assert found.stale == ("'y' is stated to be [1, 7], but is [1, 3]",)
    assert (found.errors, found.warnings) == (0, 1)


def test_what_no_target_runs_is_listed_whole() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"], name="where"),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Bernoulli", ["x"], ["r"], name="dice"),
        helper.make_node("Add", ["f", "r"], ["y"]),
    ]
    found = cuvil.check(model(nodes, {}, (2, 2), (2, 2)))
    assert {r.op for r in found.refused} == {"NonZero", "Bernoulli"}
    assert found.errors == 2


def test_too_large_for_a_board() -> None:
    found = cuvil.check(dense(RNG.normal(size=(4096, 4)), RNG.normal(size=4096), (1, 4096)), ["pynq-z2", "cpu"])
    zynq, cpu = found.targets
    assert cpu.ok
    assert zynq.fits in (True, False)
    assert zynq.fits is not False or "does not fit pynq-z2" in zynq.problem


def test_targets_that_nobody_named_do_not_fail_the_check() -> None:
    in_the_middle = model(
        [
            helper.make_node("Gemm", ["x", "w"], ["a"], transB=1),
            helper.make_node("Sin", ["a"], ["s"]),
            helper.make_node("Gemm", ["s", "w"], ["y"], transB=1),
        ],
        {"w": np.eye(4, dtype=np.float32)}, (1, 4), (1, 4),
    )  # fmt: skip
    assert cuvil.check(in_the_middle).errors == 0
    asked = cuvil.check(in_the_middle, ["pynq-z2"], precision="int9000")
    assert asked.errors == 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    onnx.save(dense(np.full((3, 4), 1e-7), [0, 100.0, 0]), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_exit_codes_and_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(file), "-t", "cpu"]) == 0
    assert "0 errors, 1 warning" in capsys.readouterr().out
    assert main(["check", str(file), "-t", "cpu", "--strict", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["errors"], found["warnings"]) == (0, 1)
    assert found["hazards"][0]["kind"] == "int32 bias"
    assert found["targets"][0]["ok"] is True
    assert main(["check", str(file), "-t", "cpu", "--precision", "fixed<16,6>", "--layers"]) == 0
    assert "linear" in capsys.readouterr().out
    assert main(["check", str(file.parent / "none.onnx")]) == 1
    assert main(["check", str(file), "-t", "nosuch"]) == 1


def test_not_a_model_is_an_error() -> None:
    with pytest.raises(CuvilError, match="can't load"):
        cuvil.check("model.txt")
