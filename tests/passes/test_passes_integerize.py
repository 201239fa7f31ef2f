"""Quantized programs as integer programs: real models against ONNX Runtime and an integer oracle; traps; exact
widths."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil_hw import dtypes, ops
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.passes import edit
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.types import TensorType

STEPS = ["fold", "matmul", "batch-norm", "integerize", "accumulators", "dce"]


def kinds(program: Program) -> Counter[str]:
    return Counter(edit.mnemonic(o) for o in program.ops() if edit.mnemonic(o))


def floats(program: Program) -> list[str]:
    """Ops that read or give floats, in order."""
    from cuvil_hw.ir.level1 import type_of

    found = [o for o in program.ops() if edit.mnemonic(o)]
    return [
        edit.mnemonic(o) for o in found if any(dtypes.is_float(type_of(v).dtype) for v in (*o.operands, *o.results))
    ]


class Oracle:
    """A QDQ graph in int64 and exact real scales, rounding once, half to even: written against the ONNX text, not
    against Cuvil.

    A value is (integers, scale, zero point) once quantized; convolutions run as float64 in torch, where integers are
    exact."""

    def __init__(self, model) -> None:
        from onnx import numpy_helper

        self.graph = model.graph
        self.constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}

    def run(self, x: np.ndarray) -> np.ndarray:
        import torch
        from onnx.helper import get_attribute_value

        known: dict = dict(self.constants)
        name = next(i.name for i in self.graph.input if i.name not in self.constants)
        known[name] = x
        for node in self.graph.node:
            a = {at.name: get_attribute_value(at) for at in node.attribute}
            v = [known[i] if i else None for i in node.input]
            if node.op_type == "QuantizeLinear":
                value = self.quantize(v[0], float(v[1]), int(v[2]))
            elif node.op_type == "DequantizeLinear":
                value = (v[0].astype(np.int64) - _along(v[2], v[0]), np.float64(np.asarray(v[1])))
            elif node.op_type in ("Conv", "Gemm"):
                value = self.layer(torch, node.op_type, a, *v)
            elif node.op_type == "AveragePool":
                q, scale = v[0]
                k = a["kernel_shape"]
                value = (
                    torch.nn.functional.avg_pool2d(torch.tensor(q, dtype=torch.float64), k, a["strides"]).numpy(),
                    scale,
                )
            elif node.op_type == "Add":
                value = (v[0][0] * v[0][1] + v[1][0] * v[1][1], np.float64(1))
            elif node.op_type == "Reshape":
                value = (v[0][0].reshape(v[1]), v[0][1]) if isinstance(v[0], tuple) else v[0].reshape(v[1])
            elif node.op_type == "Transpose":
                value = (
                    (v[0][0].transpose(a["perm"]), v[0][1]) if isinstance(v[0], tuple) else v[0].transpose(a["perm"])
                )
            else:
                raise AssertionError(node.op_type)
            known[node.output[0]] = value
        return known[self.graph.output[0].name]

    @staticmethod
    def quantize(x, scale: float, zero: int) -> np.ndarray:
        if isinstance(x, tuple):
            ratio = np.asarray(x[1]) / scale
            shape = [1, -1] + [1] * (x[0].ndim - 2) if ratio.ndim else []
            q = np.rint(x[0] * ratio.reshape(shape)) + zero
        else:
            q = np.rint(np.float32(x) / np.float32(scale)) + zero  # the input: half to even, in f32 as ONNX has it
        return np.clip(q, -128, 127).astype(np.int64)

    @staticmethod
    def layer(torch, kind: str, a: dict, x, w, b):
        tensors = [torch.tensor(t, dtype=torch.float64) for t in (x[0], w[0], b[0])]
        np.testing.assert_allclose(b[1], x[1] * w[1], rtol=1e-5)  # the bias lies on the grid of the sums
        if kind == "Gemm":
            assert a["transB"]
            y = torch.nn.functional.linear(*tensors)
        else:
            pads = a.get("pads", [0, 0, 0, 0])
            padded = torch.nn.functional.pad(tensors[0], (pads[1], pads[3], pads[0], pads[2]))
            y = torch.nn.functional.conv2d(padded, *tensors[1:], stride=a["strides"], groups=a["group"])
        return y.numpy(), x[1] * w[1]


def _along(zero: np.ndarray, q: np.ndarray) -> np.ndarray:
    z = np.asarray(zero, np.int64)
    return z.reshape([-1, *[1] * (q.ndim - 1)]) if z.ndim else z


def truncated(path: Path):
    """The model up to its last QuantizeLinear, whose integers are the output."""
    import onnx

    model = onnx.load(path)
    nodes = list(model.graph.node)
    last = max(i for i, n in enumerate(nodes) if n.op_type == "QuantizeLinear")
    del model.graph.node[last + 1 :]
    del model.graph.output[1:]
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info(nodes[last].output[0], onnx.TensorProto.INT8, None)
    )
    return model


# (model, spread of random inputs, inputs)
REAL = [("kws_ref_model", 50, 2), ("ad_deep_autoencoder", 30, 6), ("ic_resnet", 60, 2), ("vww_mobilenet_v1", 1, 1)]


@pytest.mark.parametrize(("name", "spread", "count"), REAL)
def test_real_qdq_models_are_integer_and_exact(models: Path, name: str, spread: float, count: int) -> None:
    """Bit for bit the oracle; one step at most from ONNX Runtime, which rounds through f32 at every layer."""
    ort = pytest.importorskip("onnxruntime")
    from cuvil_hw.frontend.onnx import load_onnx

    model = truncated(models / f"{name}.onnx")
    program = load_onnx(model)
    run_pipeline(program, STEPS)
    assert floats(program) == ["quantize"]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3  # not a word about initializers that the shortened model doesn't use
    session = ort.InferenceSession(model.SerializeToString(), options)
    rng, oracle = np.random.default_rng(1), Oracle(model)
    for _ in range(count):
        x = (rng.normal(size=program.inputs[0][1].shape) * spread).astype(np.float32)
        got = evaluate(program, [x])[0].astype(np.int64)
        np.testing.assert_array_equal(got, oracle.run(x))
        runtime = session.run(None, {session.get_inputs()[0].name: x})[0].astype(np.int64)
        assert np.abs(got - runtime).max() <= 1


def qdq(b: Builder, x, scale: float, zero: int, dtype: str = "i8"):
    return b.op(ops.Dequantize((scale,), (zero,)), b.op(ops.Quantize((scale,), (zero,), dtype), x))


def quantized_input(shape: tuple[int, ...], scale: float, zero: int, dtype: str = "i8") -> tuple[Builder, object]:
    b = Builder([("x", TensorType(shape, dtype))])
    return b, b.op(ops.Dequantize((scale,), (zero,)), b.input(0))


@st.composite
def networks(draw: st.DrawFn) -> tuple[Program, np.ndarray]:
    """i8 → layer → activation → pool or sum → i8, with odd shapes and every kind of parameter."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups = draw(st.sampled_from([1, 2]))
    c, o = 2 * draw(st.integers(1, 2)), 2 * draw(st.integers(1, 3))
    h, k, stride, pad = (
        draw(st.integers(4, 7)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
        draw(st.integers(0, 1)),
    )
    b, x = quantized_input((1, c, h, h + 1), float(rng.uniform(0.01, 0.1)), int(rng.integers(-20, 20)))
    w_scale = tuple(float(s) for s in rng.uniform(0.005, 0.05, o)) if draw(st.booleans()) else (0.02,)
    w_zero = tuple(int(z) for z in rng.integers(-9, 9, o)) if draw(st.booleans()) and len(w_scale) > 1 else (0,)
    weights = rng.integers(-128, 128, (o, c // groups, k, k)).astype(np.int8)
    w = b.op(ops.Dequantize(w_scale, w_zero if len(w_zero) > 1 else w_zero * len(w_scale), 0), b.const(weights))
    bias = [b.const(rng.normal(size=o).astype(np.float32))] if draw(st.booleans()) else []
    y = b.op(ops.Conv((stride, stride), (pad,) * 4, (1, 1), groups, 0), x, w, *bias)
    match draw(st.sampled_from(["none", "relu", "clamp"])):
        case "relu":
            y = b.op(ops.Relu(), y)
        case "clamp":
            y = b.op(ops.Clamp(-0.5, 1.5), y)
    s1, z1 = float(rng.uniform(0.02, 0.1)), int(rng.integers(-128, 100))
    y = qdq(b, y, s1, z1)
    size = evaluate_shape(y)
    match draw(st.sampled_from(["none", "max", "avg", "mean", "add", "mul", "sigmoid", "silu", "concat", "pad"])):
        case "max" if min(size[2:]) >= 2:
            y = b.op(ops.MaxPool((2, 2), (1, 1), (1, 0, 0, 1), (1, 1)), y)
        case "avg" if min(size[2:]) >= 2:
            y = b.op(ops.AvgPool((2, 2), (2, 1), (0,) * 4, (1, 1)), y)
        case "mean":
            y = b.op(ops.ReduceMean((2, 3), True), y)
        case "add":
            y = b.op(ops.Add(), y, b.op(ops.Sigmoid(), y) if draw(st.booleans()) else qdq(b, y, 0.05, 3))
        case "mul":
            y = b.op(ops.Mul(), y, qdq(b, y, 0.11, -5))
        case "sigmoid":
            y = b.op(ops.Sigmoid(), y)
        case "silu":
            y = b.op(ops.Mul(), y, b.op(ops.Sigmoid(), y))
        case "concat":
            y = b.op(ops.Concat(1), y, qdq(b, b.op(ops.Neg(), y), 0.07, 1))
        case "pad":
            y = b.op(ops.Pad((0, 0, 1, 0, 0, 0, 0, 2), 0.3), y)
    y = b.op(ops.Quantize((float(rng.uniform(0.02, 0.1)),), (int(rng.integers(-50, 50)),), "i8"), y)
    x0 = rng.integers(-128, 128, (1, c, h, h + 1)).astype(np.int8)
    return b.finish([("y", y)]), x0


def evaluate_shape(value) -> tuple[int, ...]:
    from cuvil_hw.ir.level1 import type_of

    return type_of(value).shape


@settings(max_examples=60, deadline=None, derandomize=True)
@given(networks())
def test_random_networks_stay_within_one_step_of_the_float_reference(case: tuple[Program, np.ndarray]) -> None:
    program, x = case
    want = evaluate(program, [x])[0].astype(int)
    run_pipeline(program, STEPS)
    assert floats(program) == []
    got = evaluate(program, [x])[0].astype(int)
    assert np.abs(got - want).max(initial=0) <= 1


def test_max_pool_keeps_negative_borders() -> None:
    b, x = quantized_input((1, 1, 2, 2), 1.0, 0)
    y = b.op(ops.MaxPool((2, 2), (1, 1), (1, 1, 1, 1), (1, 1)), x)
    p = b.finish([("y", b.op(ops.Quantize((1.0,), (0,), "i8"), y))])
    run_pipeline(p, STEPS)
    assert kinds(p) == {"max_pool": 1}
    np.testing.assert_array_equal(evaluate(p, [np.full((1, 1, 2, 2), -1, np.int8)])[0], -np.ones((1, 1, 3, 3)))


def test_weight_zero_points_may_differ_by_channel() -> None:
    b, x = quantized_input((1, 2, 1, 1), 1.0, 0, "u8")
    w = np.uint8([[130, 120], [128, 1], [255, 130]]).reshape(3, 2, 1, 1)
    dq = b.op(ops.Dequantize((1.0,) * 3, (128, 121, 130), 0), b.const(w))
    y = b.op(ops.Conv((1, 1), (0,) * 4, (1, 1)), x, dq)
    p = b.finish([("y", b.op(ops.Quantize((1.0,), (0,), "i32"), y))])
    run_pipeline(p, STEPS)
    x0 = np.uint8([7, 200]).reshape(1, 2, 1, 1)
    want = [(2 * 7 - 8 * 200), (7 * 7 - 120 * 200), (125 * 7 + 0)]
    np.testing.assert_array_equal(evaluate(p, [x0])[0].ravel(), want)


@pytest.mark.parametrize("relu", [True, False])
def test_a_bias_between_the_steps_of_coarse_sums_counts(relu: bool) -> None:
    """Two-bit weights and inputs of scale 1: rounding the bias to a whole number would move every result."""
    b, x = quantized_input((1, 6), 1.0, 0, "i2")
    rng = np.random.default_rng(0)
    w, bias = rng.integers(-1, 2, (40, 6)), rng.uniform(-1, 1, 40).astype(np.float32)
    dq = b.op(ops.Dequantize((1.0, *[0.7] * 39), (0,), 0), b.const(w.astype(np.int8), "i2"))
    y = b.op(ops.Linear(), x, dq, b.const(bias))
    y = b.op(ops.Relu(), y) if relu else y
    p = b.finish([("y", b.op(ops.Quantize((1 / 16,), (0,), "i8"), y))])
    x0 = np.int8([[1, -2, 0, 1, -1, 1]])
    want = evaluate(p, [x0])[0]
    run_pipeline(p, STEPS)
    assert floats(p) == []
    np.testing.assert_array_equal(evaluate(p, [x0])[0], want)


def test_a_bias_without_a_quantizer_after_it_stays_exact() -> None:
    b, x = quantized_input((1, 2), 1.0, 0, "i2")
    dq = b.op(ops.Dequantize((1.0,), (0,), 0), b.const(np.int8([[1, -1]]), "i2"))
    p = b.finish([("y", b.op(ops.Linear(), x, dq, b.const(np.float32([0.3]))))])
    run_pipeline(p, STEPS)
    np.testing.assert_allclose(evaluate(p, [np.int8([[1, 0]])])[0], [[1.3]], atol=2**-16)


@pytest.mark.parametrize(("bias", "want"), [(100.0, 100), (1e8, 127), (-1e30, -128)])
def test_a_huge_bias_does_not_widen_the_sums(bias: float, want: int) -> None:
    """1e11 steps and more of the sums' scale."""
    b, x = quantized_input((1, 1), 1e-4, 0)
    w = b.op(ops.Dequantize((1e-5,), (0,), 0), b.const(np.int8([[3]])))
    y = b.op(ops.Linear(), x, w, b.const(np.float32([bias])))
    p = b.finish([("y", b.op(ops.Quantize((1.0,), (0,), "i8"), y))])
    run_pipeline(p, STEPS)
    assert floats(p) == []
    assert next(o.op.acc for o in p.ops() if edit.mnemonic(o) == "linear") == "i10"
    np.testing.assert_array_equal(evaluate(p, [np.int8([[5]])])[0], [[want]])


def test_saturating_pairs_of_products_are_exact() -> None:
    b, x = quantized_input((1, 8), 1.0, 0, "u8")
    w = b.op(ops.Dequantize((1.0,), (0,), 0), b.const(np.full((1, 8), 127, np.int8)))
    p = b.finish([("y", b.op(ops.Quantize((1.0,), (0,), "i32"), b.op(ops.Linear(), x, w)))])
    run_pipeline(p, STEPS)
    assert evaluate(p, [np.full((1, 8), 255, np.uint8)])[0].item() == 259_080


def test_a_table_has_the_bits_of_the_float_reference() -> None:
    b, x = quantized_input((256,), 0.05, -10)
    hard = b.op(ops.Mul(), x, b.op(ops.Sigmoid(), x))
    p = b.finish([("y", b.op(ops.Quantize((0.03,), (-120,), "i8"), hard))])
    x0 = np.arange(-128, 128).astype(np.int8)
    want = evaluate(p, [x0])[0]
    run_pipeline(p, STEPS)
    assert kinds(p) == {"lut": 1}
    np.testing.assert_array_equal(evaluate(p, [x0])[0], want)


@pytest.mark.parametrize(
    ("op", "indices"),
    [(ops.GatherElements(1), [[3, 0, -1]]), (ops.GatherND(), [[0, -2], [0, 1]]), (ops.Gather(1), [2, 2, 0])],
)
def test_choices_by_index_are_made_among_integers(op: ops.Op, indices: list) -> None:
    b = Builder([("x", TensorType((1, 4), "i8")), ("i", TensorType(np.shape(indices), "i64"))])
    x = b.op(ops.Dequantize((0.5,), (3,)), b.input(0))
    p = b.finish([("y", b.op(ops.Quantize((0.5,), (3,), "i8"), b.op(op, x, b.input(1))))])
    given = [np.int8([[-128, -3, 3, 127]]), np.int64(indices)]
    want = evaluate(p, given)[0]
    run_pipeline(p, STEPS)
    assert kinds(p) == {op.mnemonic: 1}
    np.testing.assert_array_equal(evaluate(p, given)[0], want)


def test_relu_costs_nothing_where_the_output_type_ends_at_zero() -> None:
    b, x = quantized_input((1, 4), 0.1, 0)
    w = b.op(ops.Dequantize((0.1,), (0,), 0), b.const(np.arange(8, dtype=np.int8).reshape(2, 4) - 4))
    y = b.op(ops.Relu(), b.op(ops.Linear(), x, w))
    p = b.finish([("y", b.op(ops.Quantize((0.05,), (-128,), "i8"), y))])
    run_pipeline(p, STEPS)
    assert kinds(p) == {"linear": 1, "rescale": 1}


def test_sums_of_power_of_two_scales_are_exact() -> None:
    b = Builder([("a", TensorType((4,), "i16")), ("b", TensorType((4,), "i16"))])
    reals = [b.op(ops.Dequantize((s,), (0,)), b.input(i)) for i, s in enumerate((2.0**-10, 2.0**-8))]
    p = b.finish([("y", b.op(ops.Quantize((2.0**-10,), (0,), "i16"), b.op(ops.Add(), *reals)))])
    run_pipeline(p, STEPS)
    x = [np.int16([1, 32767, -32768, -5]), np.int16([1, 32767, -32768, 2])]
    np.testing.assert_array_equal(evaluate(p, x)[0], [5, 32767, -32768, 3])


def test_an_unquantized_op_stays_float_between_explicit_borders() -> None:
    b, x = quantized_input((1, 4), 0.1, 0)
    y = b.op(ops.Softmax(1), x)
    p = b.finish([("y", b.op(ops.Quantize((1 / 256,), (-128,), "i8"), y))])
    run_pipeline(p, STEPS)
    assert kinds(p) == {"dequantize": 1, "softmax": 1, "quantize": 1}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(2, 8), st.integers(2, 8), st.integers(1, 40), st.booleans())
def test_accumulators_are_tight_and_never_overflow(seed: int, xbits: int, wbits: int, terms: int, signed: bool) -> None:
    rng = np.random.default_rng(seed)
    dtype = f"{'i' if signed else 'u'}{xbits}"
    lo, hi = dtypes.int_range(dtype)
    zero = int(rng.integers(lo, hi + 1))
    weights = rng.integers(-(1 << wbits - 1), 1 << wbits - 1, (3, terms))
    b = Builder([("x", TensorType((1, terms), dtype))])
    y = b.op(ops.Linear(zero, (0,), "i40"), b.input(0), b.const(weights, f"i{wbits}"))
    p = b.finish([("y", b.op(ops.Cast("i64"), y))])
    run_pipeline(p, ["accumulators"])
    layer = next(o for o in p.ops() if edit.mnemonic(o) == "linear")
    acc = layer.op.acc
    sums = []
    for row in weights:
        for up in (True, False):
            x = np.where((row > 0) == up, hi, lo)[None].astype(dtypes.to_numpy(dtype))
            sums += evaluate(p, [x])[0].ravel().tolist()  # raises OverflowError if the accumulator is too narrow
            products = (x.astype(int) - zero) * row
            assert dtypes.int_range(acc)[0] <= np.cumsum(products).min()
            assert np.cumsum(products).max() <= dtypes.int_range(acc)[1]
    operands = [lo, hi, zero, lo - zero, hi - zero, int(weights.min()), int(weights.max())]
    assert acc == dtypes.smallest_int(min(*sums, *operands, 0), max(*sums, *operands, 0))


def test_a_clamp_before_the_layer_narrows_its_accumulator() -> None:
    def build(bound: float) -> str:
        b = Builder([("x", TensorType((1, 64), "i8"))])
        x = b.op(ops.Clamp(0, bound), b.input(0))
        y = b.op(ops.Linear(0, (0,), "i32"), x, b.const(np.full((2, 64), 3, np.int8)))
        p = b.finish([("y", b.op(ops.Rescale((1 << 30,), (34,), "i8"), y))])
        run_pipeline(p, ["accumulators"])
        return next(o.op.acc for o in p.ops() if edit.mnemonic(o) == "linear")

    assert build(10) == "i12"  # 64 · 3 · 10 = 1920 < 2^11
    assert build(127) == "i16"


def test_an_accumulator_too_wide_is_refused_by_name() -> None:
    b = Builder([("x", TensorType((1, 4), "i24"))])
    y = b.op(ops.Linear(0, (0,), "i64"), b.input(0), b.const(np.full((1, 4), 1 << 26), "i32"), loc="model.py:7")
    p = b.finish([("y", b.op(ops.Dequantize((0.5,), (0,)), y))])
    with pytest.raises(CuvilError, match=r"model\.py:7.*accumulator of 52 bits"):
        run_pipeline(p, ["accumulators"])


@pytest.mark.parametrize("alpha", [0.0, 0.125, 0.1, 1.0, -0.5, 3.0])
def test_a_leaky_relu_of_wide_sums_is_a_maximum_of_integers(alpha: float) -> None:
    b, x = quantized_input((1, 64), 0.5, 0, "i16")
    w = b.op(ops.Dequantize((0.25, 0.03125), (0,), 0), b.const(np.arange(128).reshape(2, 64) - 60, "i8"))
    y = b.op(ops.LeakyRelu(alpha), b.op(ops.Linear(), x, w, b.const(np.float32([10.5, -3]))))
    p = b.finish([("y", b.op(ops.Quantize((64.0,), (5,), "i16"), y))])
    x0 = np.random.default_rng(0).integers(-99, 99, (1, 64)).astype(np.int16)
    sums = (x0 * 0.5) @ ((np.arange(128).reshape(2, 64) - 60).T * [0.25, 0.03125]) + [10.5, -3]
    run_pipeline(p, STEPS)
    assert (floats(p) == []) == (0 <= alpha <= 1)
    for sign in (1, -1):
        want = sums if sign == 1 else 2 * np.array([10.5, -3]) - sums
        want = np.rint(np.where(want < 0, want * np.float32(alpha), want) / 64) + 5
        np.testing.assert_array_equal(evaluate(p, [sign * x0])[0], want)
