"""The QONNX dialect against the `qonnx` package: its operators one by one on random data, and whole trained models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import cuvil
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.program import evaluate

pytestmark = [pytest.mark.must_run, pytest.mark.needs("qonnx")]

Array = np.ndarray[Any, Any]
MODELS = ["tfc_2w2a_qonnx", "espcn_qonnx"]
MODES = ("ROUND", "HALF_EVEN", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN")
DOMAIN = "qonnx.custom_op.general"


def node_model(op: str, x: Array, operands: Mapping[str, Any], version: int, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x", *operands], ["y"], "the_node", domain=DOMAIN, **attributes)
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, x.shape) for name in ("x", "y")]
    constants = [numpy_helper.from_array(np.asarray(a, np.float32), name) for name, a in operands.items()]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def theirs(model: onnx.ModelProto, x: Array) -> Array:
    """By the package's own implementation of the operator."""
    from qonnx.custom_op.registry import getCustomOp

    (node,) = model.graph.node
    context = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer} | {"x": x}
    version = next(o.version for o in model.opset_import if o.domain == DOMAIN)
    with np.errstate(over="ignore"):
        getCustomOp(node, onnx_opset_version=version).execute_node(context, model.graph)
    return np.asarray(context["y"], np.float32)


def check(model: onnx.ModelProto, x: Array, about: str) -> None:
    (got,) = evaluate(load_onnx(model), [x])
    np.testing.assert_array_equal(got, theirs(model, x), err_msg=about)


def data(rng: np.random.Generator, shape: tuple[int, ...], step: float, levels: float) -> Array:
    """Values about the range of a quantizer: exact ties, the floats beside them, far outside, both zeros."""
    ties = (rng.integers(-int(levels) - 3, int(levels) + 4, shape) + 0.5) * step
    noise = rng.normal(size=shape) * levels * step
    x = np.where(rng.random(shape) < 0.4, ties, noise).astype(np.float32)
    x = np.where(rng.random(shape) < 0.2, np.nextafter(x, np.float32(rng.choice([-1e9, 1e9]))), x)
    rare = rng.choice(np.float32([np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30]), shape)
    return np.where(rng.random(shape) < 0.05, rare, x).astype(np.float32)


def scales(rng: np.random.Generator, channels: int) -> Array:
    """One, or one per channel; powers of two half of the time, so that ties are exact."""
    shape = () if rng.random() < 0.5 else (1, channels, 1)
    exact = np.exp2(rng.integers(-6, 3, shape))
    return np.asarray(exact if rng.random() < 0.5 else exact * rng.uniform(0.6, 1.4, shape), np.float32)


@pytest.mark.parametrize("seed", range(300))
def test_quant(seed: int) -> None:
    """Widths from 1 to 32, signed or not, narrow or not, all rounding modes, whole and other zero points."""
    rng = np.random.default_rng(seed)
    bits = int(rng.choice([1, 2, 3, 4, 8, int(rng.integers(1, 33))]))
    signed, narrow, mode = int(rng.integers(2)), int(rng.integers(2)), str(rng.choice([*MODES, *MODES[:1] * 6]))
    scale = scales(rng, 3)
    zeros = [0.0, 0.0, 1.0, float(rng.integers(-9, 10)), 0.25, rng.integers(-5, 6, (1, 3, 1))]
    zero = zeros[int(rng.integers(len(zeros)))]
    x = data(rng, (2, 3, 60), float(scale.reshape(-1)[0]), min(2.0**bits, 1e6))
    operands = {"scale": scale, "zero": zero, "bits": bits}
    op = str(rng.choice(["Quant", "IntQuant"]))
    model = node_model(op, x, operands, 1, signed=signed, narrow=narrow, rounding_mode=mode)
    check(model, x, f"seed {seed}: {bits} bits, signed {signed}, narrow {narrow}, {mode}, zero {zero}")


@pytest.mark.parametrize("seed", range(40))
def test_bipolar_quant(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scale = scales(rng, 3)
    x = data(rng, (2, 3, 20), 0.5, 3)
    check(node_model("BipolarQuant", x, {"scale": scale}, 1), x, f"seed {seed}")


@pytest.mark.parametrize("seed", range(120))
def test_trunc(seed: int) -> None:
    """Both versions: by the difference of widths, and by an output scale."""
    rng = np.random.default_rng(seed)
    scale, taken = scales(rng, 3), int(rng.integers(3, 17))
    kept, mode = int(rng.integers(1, taken + 1)), str(rng.choice(MODES))
    zero = float(rng.choice([0, 0, 3, -8]))
    x = ((rng.integers(-(2**taken), 2**taken, (2, 3, 60)) - zero) * scale).astype(np.float32)
    operands = {"scale": scale, "zero": zero, "taken": taken}
    if seed % 2:
        model = node_model("Trunc", x, {**operands, "kept": kept}, 1, rounding_mode=mode)
    else:
        to = (scale * np.exp2(taken - kept)).astype(np.float32)
        signed, narrow = int(rng.integers(2)), int(rng.integers(2))
        operands |= {"to": to, "kept": kept}
        model = node_model("Trunc", x, operands, 2, rounding_mode=mode, signed=signed, narrow=narrow)
    check(model, x, f"seed {seed}: {taken} → {kept} bits, {mode}, zero {zero}")


@pytest.mark.parametrize("seed", range(60))
def test_multi_threshold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = str(rng.choice(["", "NC", "NCW", "NWC", "NCHW", "NHWC"]))
    rank = len(layout) or int(rng.integers(2, 5))
    shape = tuple(int(n) for n in rng.integers(1, 6, rank))
    axis = layout.index("C") if layout else {2: 1, 3: 2, 4: 1}[rank]
    x = rng.integers(-8, 9, shape).astype(np.float32)
    rows = shape[axis] if rng.random() < 0.7 else 1
    thresholds = np.sort(rng.integers(-9, 10, (rows, int(rng.integers(1, 8)))), axis=1).astype(np.float32)
    scale, bias = float(rng.choice([1, 0.5, 0.3])), float(rng.choice([0, -1, 0.7]))
    attributes = {"data_layout": layout} if layout else {}
    model = node_model("MultiThreshold", x, {"t": thresholds}, 1, out_dtype="UINT4", out_scale=scale, out_bias=bias,
                       **attributes)  # fmt: skip
    check(model, x, f"seed {seed}: {layout} {shape}")


@pytest.mark.parametrize(
    ("operands", "attributes", "why"),
    [
        ({"scale": 0.5, "zero": 0, "bits": 2.5}, {}, "a width of 2.5 bits"),
        ({"scale": 0.5, "zero": 0, "bits": 33}, {}, "a width of 33.0 bits"),
        ({"scale": 0.5, "zero": 0, "bits": 0}, {}, "a width of 0.0 bits"),
        ({"scale": -0.5, "zero": 0, "bits": 4}, {}, "scales must be positive"),
        ({"scale": math.nan, "zero": 0, "bits": 4}, {}, "scales must be positive"),
        ({"scale": 0.5, "zero": 0.5, "bits": 4}, {"rounding_mode": "SIDEWAYS"}, "rounding mode 'SIDEWAYS'"),
    ],
)
def test_what_no_integer_can_hold_is_refused(operands: dict[str, float], attributes: Any, why: str) -> None:
    x = np.zeros((1, 2), np.float32)
    with pytest.raises(cuvil.Unsupported, match=why):
        load_onnx(node_model("Quant", x, operands, 1, **attributes))


# ---- whole models ---------------------------------------------------------------------------------------------------


def executed(path: Path, x: Array) -> Array:
    """Each sample by the package, which runs other operators on ONNX Runtime."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.util.cleanup import cleanup_model

    model = cleanup_model(ModelWrapper(str(path)))
    name = model.graph.input[0].name
    return np.stack([next(iter(execute_onnx(model, {name: sample}).values())) for sample in x])


def images(count: int, shape: tuple[int, ...]) -> Array:
    """(count, *shape) in steps of 1/255: noise, blobs, black, white."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[: shape[-2], : shape[-1]] / max(shape[-2:])
    x = rng.integers(0, 256, (count, *shape))
    for n in range(2, count, 2):
        (r, c), size = rng.uniform(0.2, 0.8, 2), rng.uniform(0.02, 0.3)
        x[n] = 255 * np.exp(-((rows - r) ** 2 + (columns - c) ** 2) / size**2)
    x[0], x[1] = 0, 255
    return (x / 255).astype(np.float32)


def on_reference(path: Path, x: Array) -> Array:
    program = load_onnx(path)
    return np.stack([evaluate(program, [sample])[0] for sample in x])


@pytest.mark.slow
@pytest.mark.needs("cc")
def test_a_two_bit_network_on_images_gives_what_the_package_gives(models: Path) -> None:
    """Its integers are equal: one other activation would move a result by 0.1 and more. Results are floats."""
    path = models / "tfc_2w2a_qonnx.onnx"
    x = images(60, (1, 1, 28, 28))
    want = executed(path, x)
    np.testing.assert_array_equal(on_reference(path, x), want)
    for target in ("cpu", "pynq-z2"):
        with cuvil.compile(path, target) as program:
            assert program.report["precision"] != "float32"
            got = np.stack([program(sample) for sample in x])
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6, err_msg=target)


@pytest.mark.slow
@pytest.mark.needs("cc")
def test_a_four_bit_network_on_images_gives_what_the_package_gives(models: Path) -> None:
    """Its first layer sums floats, whose order ONNX Runtime chooses: of the results, in steps of 1/255, one in
    a thousand may be one step off."""
    path = models / "espcn_qonnx.onnx"
    x = images(4, (1, 3, 128, 128))
    want = executed(path, x)
    with cuvil.compile(path, "cpu") as program:
        found = [on_reference(path, x), np.stack([program(sample) for sample in x])]
    for got in found:
        steps = np.abs(np.rint((got - want) * 255))
        assert steps.max() <= 1
        assert (steps > 0).mean() < 1e-3
