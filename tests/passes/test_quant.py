"""Schemes, calibration statistics and post-training quantization."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cuvil_hw import dtypes, ops
from cuvil_hw.errors import CuvilError, InputError
from cuvil_hw.ir.level1 import type_of
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.passes import edit
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.passes.quantize.calibrate import Statistics, collect
from cuvil_hw.passes.quantize.ptq import quantize
from cuvil_hw.target.schemes import Fixed, Int8, NarrowFloat, parse_precision
from cuvil_hw.types import TensorType

RNG = np.random.default_rng(0)


def test_precisions_by_name() -> None:
    assert parse_precision("int8") == Int8()
    assert parse_precision(" INT4 ") == Int8(4)
    assert parse_precision("fixed<16,6>") == Fixed(16, 6)
    assert parse_precision("ap_fixed<18, 8>") == Fixed(18, 8)
    assert parse_precision("float32") is None
    assert parse_precision("float16") == parse_precision("f16") == NarrowFloat("f16", "float16")
    assert parse_precision("BF16") == NarrowFloat("bf16", "bfloat16")
    for wrong in ("int9", "fixed<16>", "fixed<99,6>", "float8", ""):
        with pytest.raises(CuvilError):
            parse_precision(wrong)


@pytest.mark.parametrize(("lo", "hi"), [(0, 6), (-1.7, 3.3), (-5, -1), (2, 9), (0, 0), (-1e-3, 1e4)])
def test_zero_is_exact_and_the_range_is_covered(lo: float, hi: float) -> None:
    grid = Int8().activation(lo, hi)
    q = ops.Quantize((grid.scale,), (grid.zero,), grid.dtype)
    dq = ops.Dequantize((grid.scale,), (grid.zero,))
    values = np.float32([lo, 0, hi])
    back = dq.evaluate(q.evaluate(values))
    assert back[1] == 0
    np.testing.assert_allclose(back, values, atol=grid.scale * 0.51 + 1e-6)


def test_fixed_is_a_power_of_two_grid_that_saturates() -> None:
    grid = Fixed(16, 6).activation(-100, 100)
    assert (grid.scale, grid.zero, grid.dtype) == (2.0**-10, 0, "i16")
    q = ops.Quantize((grid.scale,), (0,), grid.dtype)
    np.testing.assert_array_equal(q.evaluate(np.float32([1, 31.9999, 40, -40])), [1024, 32767, 32767, -32768])


def linear(shape: tuple[int, ...] = (1, 4), layers: int = 1) -> Program:
    b = Builder([("x", TensorType(shape, "f32"))])
    w = b.const(np.arange(12, dtype=np.float32).reshape(3, 4) / 10)
    y = b.op(ops.Relu(), b.op(ops.Linear(), b.input(0), w, loc="fc"))
    for _ in range(layers - 1):
        y = b.op(ops.Linear(), y, b.const(np.float32([[1, -2, 3]])), loc="fc2")
    return b.finish([("y", y)])


def test_statistics_hold_what_was_seen_and_survive_a_file(tmp_path: Path) -> None:
    program = linear()
    data = RNG.normal(size=(50, 4)).astype(np.float32)
    stats = collect(program, data)
    assert stats.samples == 50
    assert (stats.ranges[0].lo, stats.ranges[0].hi) == (data.min(), data.max())
    assert sum(stats.ranges[0].counts) == data.size
    stats.save(tmp_path / "s.json")
    assert Statistics.load(tmp_path / "s.json") == stats
    (tmp_path / "s.json").write_text("[]")
    with pytest.raises(CuvilError, match="not saved calibration"):
        Statistics.load(tmp_path / "s.json")


def test_percentile_ignores_a_lone_outlier() -> None:
    data = RNG.normal(size=(500, 4)).astype(np.float32)
    data[0, 0] = 100
    seen = collect(linear(), data).ranges[0]
    assert seen.clipped("minmax", 8) == (data.min(), 100)
    assert 2.5 < seen.clipped("percentile", 8)[1] < 8


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_mse_clips_where_the_error_of_the_data_itself_is_smallest(bits: int) -> None:
    data = RNG.laplace(size=(500, 4)).astype(np.float32)
    seen = collect(linear(), data).ranges[0]

    def error(clip: float) -> float:
        step = clip / (2 ** (bits - 1) - 1)
        return float(np.mean((np.clip(np.rint(data / step) * step, -clip, clip) - data) ** 2))

    chosen = max(map(abs, seen.clipped("mse", bits)))
    assert error(chosen) <= 1.02 * min(error(c) for c in np.linspace(0.3, seen.absmax, 400))
    assert error(chosen) <= error(seen.absmax)


@pytest.mark.parametrize(
    "samples",
    [
        np.ones((7, 4), np.float32),
        np.ones((7, 1, 4), np.float64),
        [np.ones((1, 4), np.float32)] * 7,
        [(np.ones((1, 4), np.float32), 3)] * 7,  # labels after the input
        ((np.ones((4,), np.float32),) for _ in range(7)),
    ],
)
def test_samples_come_in_many_shapes(samples: object) -> None:
    assert collect(linear(), samples).samples == 7


def test_samples_come_from_torch_data_loaders() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.ones(10, 4), torch.zeros(10))
    assert collect(linear(), torch.utils.data.DataLoader(data, batch_size=4)).samples == 10


def test_several_inputs_take_one_array_each() -> None:
    b = Builder([("a", TensorType((1, 2), "f32")), ("b", TensorType((1, 2), "f32"))])
    program = b.finish([("y", b.op(ops.Add(), b.input(0), b.input(1)))])
    stats = collect(program, (np.ones((5, 2), np.float32), np.full((5, 2), 2, np.float32)))
    assert stats.samples == 5
    assert stats.ranges[2].hi == 3
    with pytest.raises(InputError, match="tuple of arrays"):
        collect(program, np.ones((5, 2), np.float32))
    with pytest.raises(InputError, match="equally many"):
        collect(program, (np.ones((5, 2), np.float32), np.ones((4, 2), np.float32)))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "empty"),
        (None, "empty"),
        (np.ones((3, 5), np.float32), r"input x: shape \(3, 5\)"),
        (np.float32([[1, np.nan, 0, 0]]), "input x holds NaN"),
        (np.float32([[1, np.inf, 0, 0]]), "input x holds NaN or infinity"),
        (np.array([["a"] * 4]), "dtype <U1"),
        (7, "neither an array nor an iterable"),
        (["words"], "a sample is str"),
    ],
)
def test_bad_calibration_data_is_named(samples: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        collect(linear(), samples)


def test_statistics_of_another_program_are_refused() -> None:
    stats = collect(linear(), np.ones((1, 4), np.float32))
    b = Builder([("x", TensorType((1, 4), "f32"))])
    other = b.finish([("y", b.op(ops.Relu(), b.input(0)))])
    with pytest.raises(CuvilError, match="another program"):
        quantize(other, stats, Int8())


def kinds(program: Program) -> Counter[str]:
    return Counter(edit.mnemonic(o) for o in program.ops() if edit.mnemonic(o))


def test_a_layer_and_its_relu_share_one_range_and_the_program_stays_as_it_was() -> None:
    program = linear(layers=2)
    before = program.text()
    q = quantize(program, collect(program, RNG.normal(size=(20, 4))), Int8())
    assert kinds(q) == {"quantize": 2, "dequantize": 4, "linear": 2, "relu": 1}
    assert program.text() == before
    run_pipeline(q, ["integerize", "accumulators"])
    assert kinds(q) == {"quantize": 1, "linear": 2, "rescale": 1, "dequantize": 1}


def test_the_sums_of_a_last_layer_are_not_narrowed() -> None:
    program = linear()
    q = quantize(program, collect(program, np.float32([[3, -2, 1, 0]])), Int8())
    run_pipeline(q, ["integerize", "accumulators"])
    assert kinds(q) == {"quantize": 1, "linear": 1, "clamp": 1, "dequantize": 1}
    (layer,) = (o for o in q.ops() if edit.mnemonic(o) == "linear")
    x = np.float32([[0.5, -1, 0.2, 2]])
    (first,) = (edit.spec(o) for o in q.ops() if edit.mnemonic(o) == "quantize")
    assert isinstance(first, ops.Quantize)
    scale, zero = first.scale[0], first.zero_point[0]
    w = np.arange(12).reshape(3, 4) / 10
    steps = np.abs(w).max(axis=1) / 127
    sums = (np.rint(x / scale) @ np.rint(w / steps[:, None]).T) * scale * steps  # in float64, nothing rounded after
    np.testing.assert_allclose(evaluate(q, [x])[0], np.maximum(sums, 0), rtol=1e-6)
    assert type_of(layer.results[0]).dtype != "i8"
    assert zero != 0


def test_a_bias_too_large_for_its_grid_makes_the_weight_scale_larger() -> None:
    b = Builder([("x", TensorType((1, 2), "f32"))])
    w = b.const(np.float32([[1e-5, 2e-5], [1, 1]]))
    program = b.finish([("y", b.op(ops.Linear(), b.input(0), w, b.const(np.float32([100, 0.5])), loc="fc"))])
    data = RNG.normal(size=(20, 2)).astype(np.float32) * 1e-3
    q = quantize(program, collect(program, data), Int8())
    run_pipeline(q, ["integerize", "accumulators"])
    acc = next(o.op.acc for o in q.ops() if edit.mnemonic(o) == "linear")
    assert dtypes.int_width(acc)[1] <= 32
    x = data[:1]
    np.testing.assert_allclose(evaluate(q, [x])[0], evaluate(program, [x])[0], atol=0.5)


def test_fixed_point_is_the_arithmetic_of_ap_fixed() -> None:
    """Inputs, weights and outputs on the grid 2^-10, sums exact, one rounding (half up) and saturation at the end."""
    program = linear((1, 4))
    data = RNG.uniform(-8, 8, size=(20, 4)).astype(np.float32)
    q = quantize(program, collect(program, data), Fixed(16, 6))
    run_pipeline(q, ["integerize", "accumulators"])
    w = np.rint(np.arange(12).reshape(3, 4) / np.float32(10) * 1024).astype(np.int64)
    for x in data:
        xq = np.clip(np.rint(x * 1024), -32768, 32767).astype(np.int64)
        y = np.maximum(np.clip((w @ xq + 512) >> 10, -32768, 32767), 0)
        np.testing.assert_array_equal(evaluate(q, [x[None]])[0], y[None] / np.float32(1024))


def test_wide_activations_index_tables_with_twelve_bits() -> None:
    b = Builder([("x", TensorType((1, 64), "f32"))])
    program = b.finish([("y", b.op(ops.Sigmoid(), b.input(0)))])
    data = RNG.uniform(-6, 6, size=(20, 64)).astype(np.float32)
    q = quantize(program, collect(program, data), Fixed(16, 6))
    run_pipeline(q, ["integerize"])
    assert kinds(q) == {"quantize": 1, "lut": 1, "dequantize": 1}
    np.testing.assert_allclose(evaluate(q, [data[:1]])[0], 1 / (1 + np.exp(-data[:1])), atol=2**-9)


def test_a_cone_of_elementwise_ops_is_one_table() -> None:
    b = Builder([("x", TensorType((1, 64), "f32"))])
    x = b.input(0)
    spread = lambda v: b.op(ops.BroadcastTo((1, 64)), b.const(np.float32(v)))  # noqa: E731
    gate = b.op(ops.Clamp(0, 6), b.op(ops.Add(), x, spread(3)))
    program = b.finish([("y", b.op(ops.Div(), b.op(ops.Mul(), x, gate), spread(6)))])
    data = RNG.uniform(-5, 5, size=(20, 64)).astype(np.float32)
    q = quantize(program, collect(program, data), Int8())
    assert kinds(q)["quantize"] == 2
    run_pipeline(q, ["integerize"])
    assert kinds(q) == {"quantize": 1, "lut": 1, "dequantize": 1}


@pytest.fixture(scope="module")
def digits():
    """A small CNN trained on scikit-learn's digits; images to calibrate and to test, labels, accuracy of floats."""
    torch = pytest.importorskip("torch")
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    torch.manual_seed(0)
    n = torch.nn
    model = n.Sequential(
        n.Conv2d(1, 8, 3, padding=1), n.BatchNorm2d(8), n.ReLU(), n.MaxPool2d(2),
        n.Conv2d(8, 16, 3, padding=1), n.Hardswish(), n.AvgPool2d(2), n.Flatten(), n.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        n.functional.cross_entropy(model(torch.tensor(images[:1200])), torch.tensor(labels[:1200])).backward()
        optimizer.step()
    w = {k: v.numpy() for k, v in model.eval().state_dict().items()}
    b = Builder([("x", TensorType((1, 1, 8, 8), "f32"))])
    c = {k: b.const(v) for k, v in w.items() if v.ndim}
    conv = ops.Conv((1, 1), (1, 1, 1, 1), (1, 1))
    y = b.op(conv, b.input(0), c["0.weight"], c["0.bias"])
    y = b.op(ops.BatchNorm(1e-5), y, c["1.weight"], c["1.bias"], c["1.running_mean"], c["1.running_var"])
    y = b.op(ops.MaxPool((2, 2), (2, 2), (0,) * 4, (1, 1)), b.op(ops.Relu(), y))
    y = b.op(ops.HardSwish(), b.op(conv, y, c["4.weight"], c["4.bias"]))
    y = b.op(ops.Reshape((1, 64)), b.op(ops.AvgPool((2, 2), (2, 2), (0,) * 4, (1, 1)), y))
    y = b.op(ops.Softmax(1), b.op(ops.Linear(), y, c["8.weight"], c["8.bias"]))
    program = b.finish([("y", y)])
    run_pipeline(program, ["fold", "matmul", "batch-norm"])
    test = images[1200:1500], labels[1200:1500]
    return program, images[:100], *test, accuracy(program, *test)


def accuracy(program: Program, images: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean([evaluate(program, [x[None]])[0].argmax() == y for x, y in zip(images, labels, strict=True)]))


@pytest.mark.parametrize("precision", ["int8", "fixed<16,6>", "mse", "percentile", "per-tensor"])
def test_quantized_digits_keep_their_accuracy(digits, precision: str) -> None:
    program, seen, images, labels, wanted = digits
    choices = {
        "mse": Int8(ranges="mse"),
        "percentile": Int8(ranges="percentile"),
        "per-tensor": Int8(per_channel=False),
    }
    scheme = choices.get(precision) or parse_precision(precision)
    q = quantize(program, collect(program, seen), scheme)
    run_pipeline(q, ["integerize", "accumulators"])
    names = [edit.mnemonic(o) for o in q.ops() if edit.mnemonic(o)]
    is_float = [
        any(dtypes.is_float(type_of(v).dtype) for v in (*o.operands, *o.results)) for o in q.ops() if edit.mnemonic(o)
    ]
    assert [n for n, f in zip(names, is_float, strict=True) if f] == ["quantize", "dequantize", "softmax"]
    assert accuracy(q, images, labels) >= wanted - 0.01


def test_branches_skips_and_concatenations_become_integer() -> None:
    conv = ops.Conv((1, 1), (1, 1, 1, 1), (1, 1))
    b = Builder([("x", TensorType((1, 3, 8, 8), "f32"))])
    weights = lambda *s: b.const(RNG.normal(size=s).astype(np.float32) / 5)  # noqa: E731
    stem = b.op(ops.Relu(), b.op(conv, b.input(0), weights(4, 3, 3, 3), weights(4)))
    left = b.op(ops.MaxPool((2, 2), (2, 2), (0,) * 4, (1, 1)), stem)
    right = b.op(
        ops.AvgPool((2, 2), (2, 2), (0,) * 4, (1, 1)), b.op(ops.Add(), stem, b.op(conv, stem, weights(4, 4, 3, 3)))
    )
    gated = b.op(ops.Mul(), right, b.op(ops.Sigmoid(), left))
    joined = b.op(ops.Concat(1), left, gated)
    y = b.op(ops.ReduceMean((2, 3)), b.op(conv, joined, weights(6, 8, 3, 3)))
    program = b.finish([("y", y)])
    data = RNG.uniform(0, 1, size=(8, 1, 3, 8, 8)).astype(np.float32)
    stats = collect(program, data)
    for scheme, tolerance in ((Int8(), 0.05), (Fixed(16, 6), 0.01)):
        q = quantize(program, stats, scheme)
        reference = [evaluate(q, [x])[0] for x in data]
        run_pipeline(q, ["integerize", "accumulators"])
        names = [edit.mnemonic(o) for o in q.ops() if edit.mnemonic(o)]
        is_float = [any(dtypes.is_float(type_of(v).dtype) for v in o.operands) for o in q.ops() if edit.mnemonic(o)]
        assert [n for n, f in zip(names, is_float, strict=True) if f] == ["quantize"]
        for x, expected in zip(data, reference, strict=True):
            got = evaluate(q, [x])[0]
            step = stats.ranges[max(stats.ranges)].absmax / 100 if isinstance(scheme, Int8) else 2.0**-9
            assert np.abs(got - expected).max() <= 2 * step
            np.testing.assert_allclose(got, evaluate(program, [x])[0], atol=tolerance)
        run_pipeline(q, ["fuse"])
        assert "mul" not in [edit.mnemonic(o) for o in q.ops()]


def test_a_deep_cone_of_elementwise_ops_is_one_table() -> None:
    b = Builder([("x", TensorType((1, 6), "f32"))])
    y = b.input(0)
    for step in range(400):
        y = b.op((ops.Tanh(), ops.Exp(), ops.Neg(), ops.Sigmoid())[step % 4], y)
    program = b.finish([("y", y)])
    data = RNG.normal(size=(4, 1, 6)).astype(np.float32)
    q = quantize(program, collect(program, data), Int8())
    reference = [evaluate(q, [x])[0] for x in data]
    run_pipeline(q, ["integerize"])
    assert [edit.mnemonic(o) for o in q.ops() if edit.mnemonic(o)] == ["quantize", "lut", "dequantize"]
    for x, expected in zip(data, reference, strict=True):
        np.testing.assert_array_equal(evaluate(q, [x])[0], expected)
