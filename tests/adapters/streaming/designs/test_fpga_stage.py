"""Which kernels stream and which are buffered, the geometry read off their accesses, and their foldings."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.ir import SSAValue

from cuvil_hw import dtypes, ops
from cuvil_hw.adapters.streaming.analysis import fold
from cuvil_hw.adapters.streaming.analysis.classify import classify
from cuvil_hw.adapters.streaming.analysis.ring import Ring
from cuvil_hw.adapters.streaming.analysis.stage import Stage, WindowDim, lane_chain
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.ir.program import Builder
from cuvil_hw.types import TensorType
from tests.support.fpga_runner import graph_of

Build = Callable[[Builder, SSAValue], SSAValue]


def stages(build: Build, shape: tuple[int, ...], dtype: str = "i8") -> list[Stage]:
    """Stages of a program with one input."""
    builder = Builder([("x0", TensorType(shape, dtype))])
    graph = graph_of(builder.finish([("y0", build(builder, builder.input(0)))]), narrow=False)
    return [classify(k, constants=graph.constants) for k in graph.kernels]


def only(build: Build, shape: tuple[int, ...], dtype: str = "i8") -> Stage:
    (stage,) = stages(build, shape, dtype)
    return stage


def weights(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.int64).astype(np.int8).reshape(shape)


def conv(
    w: tuple[int, ...], stride: int = 1, pads: tuple[int, ...] = (), dilation: int = 1, groups: int = 1, x_zp: int = 0,
    w_zp: tuple[int, ...] = (0,),
) -> Build:  # fmt: skip
    n = len(w) - 2
    op = ops.Conv((stride,) * n, pads or (0,) * (2 * n), (dilation,) * n, groups, x_zp, w_zp, "i32")
    return lambda b, x: b.op(op, x, b.const(weights(*w)))


def test_conv_2d() -> None:
    s = only(conv((5, 3, 3, 3), 2, (0, 1, 2, 1), x_zp=-7), (1, 3, 8, 9))
    assert (s.kind, s.channels_in, s.channels_out, s.tap_count, s.pixels) == ("dense", 3, 5, 9, 20)
    assert s.dims == (WindowDim(1, 1), WindowDim(8, 4, 3, 2, 1, 0), WindowDim(9, 5, 3, 2, 1, 1))
    assert [t and t.extent for t in s.taps] == [None, 3, 3]
    assert s.channel is not None
    assert s.channel.extent == 3
    assert s.pad_value == -7  # a cell outside then adds nothing
    assert s.reordered


def test_conv_1d_with_dilation() -> None:
    s = only(conv((4, 2, 3), 1, (2, 2), dilation=2), (1, 2, 11))
    assert (s.kind, s.dims[1]) == ("dense", WindowDim(11, 11, 3, 1, 2, 2))
    assert s.dims[1].span == 5
    assert Ring.of(s, 1).y == s.dims[1]  # the only dimension becomes the ring's rows


def test_stride_beyond_the_kernel() -> None:
    s = only(conv((2, 2, 1, 1), 2), (1, 2, 7, 7))
    assert s.dims[1:] == (WindowDim(7, 4, 1, 2, 1, 0),) * 2
    assert s.reordered  # pixels between are dropped


def test_pointwise_conv_needs_no_window() -> None:
    s = only(conv((4, 6, 1, 1)), (1, 6, 5, 5))
    assert (s.kind, s.reordered, s.pixels) == ("dense", False, 25)


def test_kernel_as_large_as_the_image_needs_no_window() -> None:
    s = only(conv((4, 6, 5, 3)), (1, 6, 5, 3))
    assert (s.kind, s.reordered, s.pixels, s.tap_count) == ("dense", False, 1, 15)


def test_kernel_over_whole_rows_needs_a_window_only_when_rows_overlap() -> None:
    assert not only(conv((2, 3, 1, 5)), (1, 3, 4, 5)).reordered  # each window is one row
    assert only(conv((2, 3, 2, 5)), (1, 3, 4, 5)).reordered


def test_one_channel_conv_is_dense() -> None:
    s = only(conv((4, 1, 3, 3)), (1, 1, 6, 6))
    assert (s.kind, s.channels_in, s.channels_out) == ("dense", 1, 4)


def test_depthwise_and_grouped_conv() -> None:
    s = only(conv((6, 1, 3, 3), 1, (1, 1, 1, 1), groups=6), (1, 6, 5, 5))
    assert (s.kind, s.channels_in, s.channels_out, s.channel) == ("depthwise", 6, 6, None)
    s = only(conv((6, 2, 3, 3), groups=3), (1, 6, 5, 5))
    assert (s.kind, s.groups, s.channels_in, s.channels_out, s.tap_count) == ("dense", 3, 2, 6, 9)
    s = only(conv((12, 1, 3, 3), groups=6), (1, 6, 5, 5))  # two outputs a channel
    assert (s.kind, s.groups, s.channels_in, s.channels_out) == ("dense", 6, 1, 12)


@pytest.mark.parametrize("dtype", ["i8", "u4", "i12"])
def test_padding_of_a_maximum_never_wins(dtype: str) -> None:
    s = only(lambda b, x: b.op(ops.MaxPool((2, 2), (2, 2), (0, 0, 1, 1), (1, 1)), x), (1, 3, 5, 5), dtype)
    assert (s.kind, s.pad_value) == ("depthwise", dtypes.int_range(dtype)[0])
    assert s.dims[1:] == (WindowDim(5, 3, 2, 2, 1, 0),) * 2


def test_padding_of_a_sum_is_the_zero_point() -> None:
    pool = ops.SumPool((3, 3), (1, 1), (1, 1, 1, 1), (1, 1), "i32", 11)
    s = only(lambda b, x: b.op(pool, x), (1, 3, 5, 5), "u8")
    assert (s.kind, s.pad_value) == ("depthwise", 11)


def test_global_pool_needs_no_window() -> None:
    s = only(lambda b, x: b.op(ops.SumPool((5, 4), (5, 4), (0,) * 4, (1, 1), "i32"), x), (1, 6, 5, 4))
    assert (s.kind, s.reordered, s.pixels, s.channels_out) == ("depthwise", False, 1, 6)
    r = only(lambda b, x: b.op(ops.ReduceMax((2, 3)), x), (1, 6, 5, 4))
    assert (r.kind, r.reordered) == ("depthwise", False)


def test_linear_behind_a_flatten_streams_in_the_order_of_the_producer() -> None:
    def build(b: Builder, x: SSAValue) -> SSAValue:
        flat = b.op(ops.Reshape((1, 30)), x)
        return b.op(ops.Linear(0, (0,), "i32"), flat, b.const(weights(4, 30)))

    s = only(build, (1, 5, 2, 3))
    assert (s.kind, s.channels_in, s.channels_out, s.tap_count, s.reordered) == ("dense", 5, 4, 6, False)
    assert [t and t.extent for t in s.taps] == [None, 2, 3]


def test_linear() -> None:
    s = only(lambda b, x: b.op(ops.Linear(0, (0,), "i32"), x, b.const(weights(4, 30))), (1, 30))
    assert (s.kind, s.channels_in, s.channels_out, s.pixels, s.tap_count) == ("dense", 30, 4, 1, 1)


def test_linear_on_every_position() -> None:
    s = only(lambda b, x: b.op(ops.Linear(0, (0,), "i32"), x, b.const(weights(4, 6))), (1, 7, 6))
    assert (s.kind, s.channels_in, s.channels_out, s.pixels, s.plain) == ("dense", 6, 4, 7, False)
    kernel = s.kernel
    features_last = classify(kernel, None, {kernel.sources[0]: (0, 1, 2)})
    assert (features_last.kind, features_last.plain, features_last.order) == ("dense", True, (0, 1, 2))


def test_residual_sum_is_a_map_of_two_streams() -> None:
    def build(b: Builder, x: SSAValue) -> SSAValue:
        y = b.op(ops.Rescale((1 << 20,), (24,), "i8"), conv((3, 3, 1, 1))(b, x))
        return b.op(ops.Add("i9"), x, y)

    first, second = stages(build, (1, 3, 4, 4))
    assert (first.kind, second.kind) == ("dense", "map")
    assert second.sources == ("x0", first.kernel.output)


def test_parameters_of_any_dimensions_stream() -> None:
    def channelwise(b: Builder, x: SSAValue) -> SSAValue:
        return b.op(ops.Mul("i16"), x, b.op(ops.BroadcastTo((1, 3, 4, 4)), b.const(weights(3, 1, 1))))

    def positionwise(b: Builder, x: SSAValue) -> SSAValue:
        return b.op(ops.Mul("i16"), x, b.const(weights(1, 3, 4, 4)))

    def tensorwise(b: Builder, x: SSAValue) -> SSAValue:
        return b.op(ops.Mul("i16"), x, b.op(ops.BroadcastTo((1, 3, 4, 4)), b.const(weights(1))))

    assert only(channelwise, (1, 3, 4, 4)).kind == "map"
    assert only(tensorwise, (1, 3, 4, 4)).kind == "map"
    everywhere = only(positionwise, (1, 3, 4, 4))
    assert (everywhere.kind, everywhere.channels_out, everywhere.pixels) == ("map", 48, 1)


def test_constants_may_follow_one_iterator_beside_the_channel() -> None:
    many = tuple(range(1, 5))
    row = only(lambda b, x: b.op(ops.Rescale(many, (4,), "i8", axis=3), x), (1, 3, 4, 4))
    assert (row.kind, [it.extent for it in row.rows], row.plain) == ("moved", [4], False)
    assert only(lambda b, x: b.op(ops.Rescale(many[:3], (4,), "i8"), x), (1, 3, 4, 4)).kind == "map"


@pytest.mark.parametrize(
    ("build", "order"),
    [
        (lambda b, x: b.op(ops.Pad((0, 0, 1, 0, 0, 0, 0, 1)), x), [None]),
        (lambda b, x: b.op(ops.Concat(1), x, x), [None, None]),
        (lambda b, x: b.op(ops.Concat(2), x, x), [None, None]),
        (lambda b, x: b.op(ops.Gather(2), x, b.const(np.array([2, 0]))), [[*range(12, 18), *range(6)]]),
    ],
    ids=["pad", "channels", "rows", "gather"],
)  # fmt: skip
def test_what_lies_elsewhere_is_moved(build: Build, order: list[list[int] | None]) -> None:
    stage = only(build, (1, 2, 3, 3))
    assert (stage.kind, stage.plain) == ("moved", False)
    assert [None if m.access is None else m.access.elements.tolist() for m in stage.moves] == order


@pytest.mark.parametrize("op", [ops.ArgMax(1), ops.Rank(1)], ids=["argmax", "rank"])
def test_what_no_table_says_is_buffered(op: ops.Op) -> None:
    assert {s.kind for s in stages(lambda b, x: b.op(op, x), (1, 2, 3, 3))} == {"buffered"}


def test_a_transpose_renames_the_dimensions_of_a_stream() -> None:
    view = only(lambda b, x: b.op(ops.Transpose((0, 1, 3, 2)), x), (1, 2, 3, 4))
    assert (view.kind, view.order, view.plain) == ("map", (0, 3, 2, 1), True)


def test_a_slice_is_a_part_of_a_stream() -> None:
    part = only(lambda b, x: b.op(ops.Slice((0, 0, 1, 0), (1, 2, 2, 3), (1, 1, 1, 1)), x), (1, 2, 4, 3))
    (walked,) = part.operands
    assert (part.kind, walked.sliced, walked.stored, walked.read) == ("map", True, False, 12)


def test_a_view_without_another_order_is_a_copy_that_streams() -> None:
    assert only(lambda b, x: x, (1, 2, 3, 3)).kind == "map"


def test_a_3d_window_is_brought_by_tables() -> None:
    padded = conv((2, 2, 3, 3, 3), 1, (1,) * 6)
    for stage in (only(conv((2, 2, 2, 2, 2)), (1, 2, 3, 3, 3)), only(padded, (1, 2, 1, 3, 3))):
        assert (stage.kind, stage.groups, len(stage.moves), stage.reordered) == ("dense", 1, 1, False)
    assert not only(conv((2, 2, 1, 2, 2)), (1, 2, 1, 3, 3)).moves


def test_streams_carry_channels_last() -> None:
    assert [physical(r) for r in range(5)] == [(), (0,), (0, 1), (0, 2, 1), (0, 2, 3, 1)]


# ---- lanes and foldings --------------------------------------------------------------------------------------------


@given(st.integers(1, 5000))
def test_lanes_divide_the_channels_and_one_another(extent: int) -> None:
    chain = lane_chain(extent)
    assert (chain[0], chain[-1]) == (1, extent)
    assert all(extent % n == 0 for n in chain)
    assert all(b % a == 0 and b > a for a, b in itertools.pairwise(chain))
    ratios = [b // a for a, b in itertools.pairwise(chain)]
    assert all(r < 4 or all(r % d for d in range(2, int(r**0.5) + 1)) for r in ratios)  # no coarser than needed


@pytest.mark.parametrize(("c", "o"), [(1, 1), (6, 8), (64, 100), (7, 96)])
def test_foldings_are_legal(c: int, o: int) -> None:
    s = only(conv((o, c, 3, 3), 1, (1, 1, 1, 1)), (1, c, 5, 5))
    options = list(fold.foldings(s, {}))
    assert len(options) == len(set(options))
    for folding in options:
        simd, pe = folding.lanes
        assert c % simd == 0
        assert o % pe == 0
        assert simd * 8 <= fold.MAX_WORD_BITS
        assert pe * 32 <= fold.MAX_WORD_BITS
        assert pe * folding.simd <= fold.MAX_MULTIPLIERS
        wired = folding.between * o == pe  # each weight is multiplied by one lane alone
        assert folding.memory in ([""] if wired else ["bram", "lutram"])
        assert folding.multiplier in ("dsp", "lut")
    assert {o.lanes for o in options} >= {(1, 1)}


def test_stages_without_weights_have_no_place_for_them() -> None:
    pool = only(lambda b, x: b.op(ops.MaxPool((2, 2), (2, 2), (0,) * 4, (1, 1)), x), (1, 6, 4, 4))
    assert {(s.lanes, s.memory, s.multiplier) for s in fold.foldings(pool, {})} == {((n, n), "", "") for n in (1, 2, 6)}
