"""Convolution, dense layers, pools: loops against meaning on random windows, meaning against torch and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from cuvil_hw import ops
from cuvil_hw.ops import base
from cuvil_hw.ops.base import Op, ShapeError
from tests.support.op_checks import Array, check, close, sample, typed

F = torch.nn.functional
FLOATS = ("f16", "f32", "f64")
ATOL = {"f16": 3e-2, "f32": 1e-5, "f64": 1e-13}
many = settings(max_examples=40, deadline=None)


@st.composite
def windows(draw: st.DrawFn, rank: int) -> dict[str, tuple[int, ...]]:
    """Kernel, strides, pads and dilations, and an input extent that they fit."""
    small = lambda lo, hi: tuple(draw(st.integers(lo, hi)) for _ in range(rank))  # noqa: E731
    kernel, strides, dilations = small(1, 3), small(1, 3), small(1, 2)
    pads = small(0, 2) + small(0, 2)
    least = [d * (k - 1) + 1 - pads[i] - pads[rank + i] for i, (k, d) in enumerate(zip(kernel, dilations, strict=True))]
    spatial = tuple(max(n, 1) + draw(st.integers(0, 2)) for n in least)
    return {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations, "spatial": spatial}


def padded(x: Array, pads: Sequence[int], value: float) -> torch.Tensor:
    """torch takes symmetric pads only."""
    rank = len(pads) // 2
    return F.pad(
        torch.from_numpy(x), [p for d in reversed(range(rank)) for p in (pads[d], pads[rank + d])], value=value
    )


@many
@given(st.data())
def test_conv_of_floats(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    w = data.draw(windows(rank))
    groups, per_group, out = (data.draw(st.integers(lo, hi)) for lo, hi in ((1, 3), (1, 2), (0, 2)))
    n = data.draw(st.integers(0, 2))
    dtype = data.draw(st.sampled_from(FLOATS))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = sample(rng, (n, groups * per_group, *w["spatial"]), dtype)
    k, b = sample(rng, (groups * out, per_group, *w["kernel"]), dtype), sample(rng, (groups * out,), dtype)
    op = ops.Conv(w["strides"], w["pads"], w["dilations"], groups)
    bias = [b] if data.draw(st.booleans()) else []
    have = check(op, x, k, *bias, ulps=64, atol=ATOL[dtype])
    if have.size:
        conv = F.conv1d if rank == 1 else F.conv2d
        wide = [torch.from_numpy(a).double() for a in (k, *bias)]
        want = conv(
            padded(x, w["pads"], 0).double(), *wide, stride=w["strides"], dilation=w["dilations"], groups=groups
        )
        close(have, want.numpy().astype(x.dtype), 8, ATOL[dtype] / 3)


@many
@given(st.data())
def test_conv_of_integers(data: st.DataObject) -> None:
    w = data.draw(windows(2))
    groups, per_group, out = (data.draw(st.integers(1, 2)) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from(["u8", "i8", "i4", "u1"]))
    x = sample(rng, (1, groups * per_group, *w["spatial"]), dtype)
    k, b = (
        sample(rng, (groups * out, per_group, *w["kernel"]), "i8"),
        sample(rng, (groups * out,), "i12").astype(np.int32),
    )
    x_zp = data.draw(st.integers(-8, 7))
    w_zp = tuple(int(v) for v in rng.integers(-128, 128, groups * out)) if data.draw(st.booleans()) else (5,)
    op = ops.Conv(w["strides"], w["pads"], w["dilations"], groups, x_zp, w_zp, "i24")
    have = check(op, x, k, b, names=[dtype, "i8", "i24"])
    centred = torch.from_numpy(k.astype(np.float64) - np.asarray(w_zp).reshape(-1, 1, 1, 1))
    rest = {"stride": w["strides"], "dilation": w["dilations"], "groups": groups}
    want = F.conv2d(padded(x.astype(np.float64) - x_zp, w["pads"], 0), centred, torch.from_numpy(b).double(), **rest)
    np.testing.assert_array_equal(have, want.numpy().astype(np.int32))


def test_conv_padding_adds_nothing_to_infinite_weights() -> None:
    x, k = np.float32([[[1, 2]]]), np.float32([[[np.inf, 1, np.nan]]])
    have = check(ops.Conv((1,), (1, 1), (1,)), x, k)
    assert np.isnan(have[0, 0, 0])
    assert have[0, 0, 1] == np.inf


def test_depthwise_and_large_f16_sums() -> None:
    """256 groups (shrunk); and products that leave f16's range half-way but not at the end."""
    rng = np.random.default_rng(1)
    x, k = sample(rng, (1, 16, 7, 7), "f32"), sample(rng, (16, 1, 3, 3), "f32")
    have = check(ops.Conv((2, 2), (1, 1, 1, 1), (1, 1), 16), x, k, atol=1e-5)
    close(have, F.conv2d(torch.from_numpy(x), torch.from_numpy(k), stride=2, padding=1, groups=16).numpy(), 8, 1e-5)
    x, w = np.float16([[300, 300, 300]]), np.float16([[300, 300, -300]])
    assert check(ops.Linear(), x, w, np.float16([-30000])).item() == 60000


def test_wrong_accumulator_width_is_an_error() -> None:
    with pytest.raises(OverflowError, match=r"linear: accumulator i8 overflows: \[16129, 16129\]"):
        base.evaluate(ops.Linear(acc="i8"), [np.int8([[127]]), np.int8([[127]])])


@many
@given(st.data())
def test_linear(data: st.DataObject) -> None:
    lead = data.draw(st.lists(st.integers(0, 3), max_size=2))
    k, o = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from((*FLOATS, "u8", "i3")))
    if dtype in FLOATS:
        x, w, b = sample(rng, (*lead, k), dtype), sample(rng, (o, k), dtype), sample(rng, (o,), dtype)
        have = check(ops.Linear(), x, w, b, ulps=64, atol=ATOL[dtype])
        want = x.astype(np.float64) @ w.astype(np.float64).T + b.astype(np.float64)
        close(have, want.astype(x.dtype), 8, ATOL[dtype] / 3)
    else:
        x, w, b = sample(rng, (*lead, k), dtype), sample(rng, (o, k), "i8"), sample(rng, (o,), "i12").astype(np.int32)
        zeros = tuple(int(v) for v in rng.integers(-128, 128, o)) if o else (0,)
        have = check(ops.Linear(3, zeros, "i20"), x, w, b, names=[dtype, "i8", "i20"])
        want = (x.astype(object) - 3) @ (w.astype(object) - np.asarray(zeros, object)[: max(o, 1), None][:o]).T + b
        np.testing.assert_array_equal(have, want)


def test_weight_zero_points_may_differ_by_channel() -> None:
    w = np.uint8([130, 120, 131]).reshape(3, 1, 1, 1)
    op = ops.Conv((1, 1), (0, 0, 0, 0), (1, 1), 1, 0, (128, 121, 130), "i20")
    assert check(op, np.uint8([[[[10]]]]), w).reshape(-1).tolist() == [20, -10, 10]


def all_touch(**w: tuple[int, ...]) -> bool:
    """Whether every window of an all-ones input sees some of it: a convolution with ones, by torch."""
    x = padded(np.ones((1, 1, *w["spatial"])), w["pads"], 0)
    conv = F.conv1d if len(w["spatial"]) == 1 else F.conv2d
    return bool(conv(x, torch.ones(1, 1, *w["kernel"]).double(), None, w["strides"], 0, w["dilations"]).min() > 0)


@many
@given(st.data())
def test_pools(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    w = data.draw(windows(rank))
    dtype = data.draw(st.sampled_from((*FLOATS, "i8", "i5")))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = sample(rng, (data.draw(st.integers(0, 2)), 2, *w["spatial"]), dtype, special=data.draw(st.booleans()))
    shape = (w["kernel"], w["strides"], w["pads"], w["dilations"])
    if dtype not in FLOATS:
        check(ops.SumPool(*shape, "i12", data.draw(st.integers(-8, 7))), x, names=[dtype])
    if not all_touch(**w):
        with pytest.raises(ShapeError, match="max_pool: a window covers only padding along spatial dimension"):
            base.infer(ops.MaxPool(*shape), typed([x], [dtype]))
        return
    have = check(ops.MaxPool(*shape), x, names=[dtype])
    if x.size:
        low = -np.inf if dtype in FLOATS else np.iinfo(x.dtype).min
        pool = F.max_pool1d if rank == 1 else F.max_pool2d
        if dtype in FLOATS:
            want = pool(padded(x, w["pads"], low).double(), w["kernel"], w["strides"], 0, w["dilations"])
            np.testing.assert_array_equal(have, want.numpy().astype(x.dtype))
    if dtype in FLOATS:
        counted = data.draw(st.booleans())
        divisor = data.draw(st.sampled_from([0, 0, 1, 5]))
        check(ops.AvgPool(*shape, counted, (), divisor), x, ulps=16, atol=ATOL[dtype] / 3)


def average(x: Array, **attrs: Any) -> Array:
    """ONNX AveragePool by its reference."""
    names = {"kernel_shape": attrs.pop("kernel"), **attrs}
    node = helper.make_node("AveragePool", ["x"], ["y"], **names)
    kinds = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in "xy"]
    graph = helper.make_graph([node], "g", kinds[:1], kinds[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return np.asarray(ReferenceEvaluator(model).run(None, {"x": x})[0])


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("pads", [(0, 0, 1, 1), (1, 0, 0, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_average_pool_divisors(counted: bool, pads: tuple[int, ...], dilation: int) -> None:
    x = sample(np.random.default_rng(3), (1, 2, 6, 5), "f32")
    op = ops.AvgPool((2, 3), (2, 1), pads, (dilation, 1), counted)
    want = average(x, kernel=[2, 3], strides=[2, 1], pads=pads, dilations=[dilation, 1], count_include_pad=int(counted))
    close(check(op, x, atol=1e-6), want, 8, 1e-6)


def test_average_pool_counts_end_pads_but_not_those_of_ceil_mode() -> None:
    one = np.ones((1, 1, 2, 2), np.float32)
    op = ops.AvgPool((2, 2), (1, 1), (0, 0, 1, 1), (1, 1), True)
    assert check(op, one).reshape(-1).tolist() == [1, 0.5, 0.5, 0.25]
    x = sample(np.random.default_rng(4), (1, 1, 6), "f32")
    want = F.avg_pool1d(torch.from_numpy(x), 3, 2, 1, ceil_mode=True, count_include_pad=True).numpy()
    close(check(ops.AvgPool((3,), (2,), (1, 2), (1,), True, (1,)), x), want)


def test_average_pool_divisor_override() -> None:
    x = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    want = F.avg_pool2d(torch.from_numpy(x), 2, divisor_override=1).item()
    assert check(ops.AvgPool((2, 2), (1, 1), (0,) * 4, (1, 1), False, (), 1), x).item() == want == 10


def test_average_pool_ceil_mode_windows_start_inside() -> None:
    x = sample(np.random.default_rng(5), (1, 1, 17, 17), "f32")
    want = F.avg_pool2d(torch.from_numpy(x), 2, 2, 1, ceil_mode=True).numpy()
    assert want.shape[-1] == 9
    have = check(ops.AvgPool((2, 2), (2, 2), (1, 1, 0, 0), (1, 1), True), x, atol=1e-6)
    close(have, want, 8, 1e-6)


def test_max_pool_same_padding_never_wins() -> None:
    x = -(sample(np.random.default_rng(6), (1, 1, 5, 5), "f32") ** 2) - 1
    have = check(ops.MaxPool((2, 2), (2, 2), (0, 0, 1, 1), (1, 1)), x)
    assert have.shape == (1, 1, 3, 3)
    close(have, F.max_pool2d(torch.from_numpy(x), 2, 2, ceil_mode=True).numpy())
    for dtype in (np.float32, np.int8):
        assert (check(ops.MaxPool((2, 2), (1, 1), (1,) * 4, (1, 1)), np.full((1, 1, 2, 2), -1, dtype)) == -1).all()


def test_nan_wins_in_max_pool() -> None:
    x = np.float32([[[np.nan, 1, 2, np.nan, 5, 4]]])
    have = check(ops.MaxPool((2,), (2,), (0, 0), (1,)), x)[0, 0]
    assert np.isnan(have[:2]).all()
    assert have[2] == 5


def test_quantized_conv_against_onnx_runtime() -> None:
    """ConvInteger with per-tensor zero points; small values, so that no vector unit of the peer saturates."""
    rng = np.random.default_rng(7)
    x, k = rng.integers(0, 100, (1, 2, 5, 5)).astype(np.uint8), rng.integers(-60, 60, (3, 2, 3, 3)).astype(np.int8)
    node = helper.make_node("ConvInteger", ["x", "w", "xz"], ["y"], pads=[1, 1, 0, 0], strides=[2, 1])
    kinds = {"x": onnx.TensorProto.UINT8, "w": onnx.TensorProto.INT8, "xz": onnx.TensorProto.UINT8}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, t, None) for n, t in kinds.items()],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x, "w": k, "xz": np.array(9, np.uint8)})
    np.testing.assert_array_equal(check(ops.Conv((2, 1), (1, 1, 0, 0), (1, 1), 1, 9, (0,), "i32"), x, k), want)


X, W = np.zeros((1, 2, 4, 4), np.float32), np.zeros((3, 2, 3, 3), np.float32)
WINDOW = ((1, 1), (0, 0, 0, 0), (1, 1))


@pytest.mark.parametrize(
    ("op", "arrays", "says"),
    [
        (ops.Conv(*WINDOW), (X, W[:, :1]), "conv: x has 2 channels, w wants 1"),
        (ops.Conv(*WINDOW, 2), (X, W[:, :1]), "conv: 3 output channels in 2 groups"),
        (ops.Conv((1, 1), (0, 0), (1, 1)), (X, W), "conv: attributes don't fit 2 spatial dims"),
        (ops.Conv((0, 1), (0,) * 4, (1, 1)), (X, W), "conv: kernel, strides and dilations must be positive"),
        (ops.Conv((1, 1), (-1, 0, 0, 0), (1, 1)), (X, W), "conv: negative pads: use slice"),
        (
            ops.Conv((1, 1), (0,) * 4, (2, 2)),
            (X, W),
            "conv: window 3 (dilation 2) is larger than the padded extent 4",
        ),
        (
            ops.MaxPool((2, 2), (2, 2), (0, 0, 0, 2), (1, 1)),
            (X,),
            "max_pool: a window covers only padding along spatial dimension 1; make the pads smaller",
        ),
        (
            ops.AvgPool((1, 1), (1, 1), (1, 0, 0, 0), (1, 1)),
            (X,),
            "avg_pool: a window covers only padding along spatial dimension 0; make the pads smaller",
        ),
        (ops.Linear(), (X, W[0, 0]), "linear: x 1x2x4x4xf32 doesn't fit w 3x3xf32"),
        (ops.Linear(acc="i32"), (W, W[0, 0]), "linear: integer form on 3x2x3x3xf32 and 3x3xf32"),
    ],
)
def test_refusals_say_what_is_wrong(op: Op, arrays: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ShapeError) as caught:
        base.infer(op, typed(arrays))
    assert str(caught.value) == says
