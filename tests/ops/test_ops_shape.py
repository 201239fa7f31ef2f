"""Ops that move elements: loops against meaning on random shapes, meaning against torch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil_hw import ops
from cuvil_hw.ops import base
from cuvil_hw.ops.base import Op, ShapeError
from tests.support.op_checks import Array, check, sample, typed

extents = st.lists(st.integers(0, 4), max_size=4)
dtypes = st.sampled_from(["f32", "i8", "i5", "bool"])
many = settings(max_examples=30, deadline=None)


@st.composite
def operands(draw: st.DrawFn, shapes: st.SearchStrategy[list[int]] = extents) -> tuple[Array, str]:
    dtype = draw(dtypes)
    return sample(np.random.default_rng(draw(st.integers(0, 99))), draw(shapes), dtype, special=True), dtype


@many
@given(operands(), st.data())
def test_reshape(operand: tuple[Array, str], data: st.DataObject) -> None:
    x, dtype = operand
    cuts = [[*x.shape, 1], [1, *x.shape], [x.size], [x.size, 1, 1]]
    cuts += [[d, x.size // d] for d in range(1, 13) if x.size % d == 0]
    shape = tuple(data.draw(st.sampled_from(cuts)))
    assert same(check(ops.Reshape(shape), x, names=[dtype]), x.reshape(shape))


def same(have: Array, want: Array) -> bool:
    return have.shape == want.shape and have.dtype == want.dtype and have.tobytes() == want.tobytes()


@many
@given(operands(), st.data())
def test_transpose(operand: tuple[Array, str], data: st.DataObject) -> None:
    x, dtype = operand
    perm = tuple(data.draw(st.permutations(range(x.ndim))))
    assert same(check(ops.Transpose(perm), x, names=[dtype]), torch.from_numpy(x).permute(perm).numpy())


@many
@given(operands(st.lists(st.integers(1, 6), min_size=1, max_size=3)), st.data())
def test_slice(operand: tuple[Array, str], data: st.DataObject) -> None:
    x, dtype = operand
    starts, sizes, steps, cuts = [], [], [], []
    for n in x.shape:
        step = data.draw(st.sampled_from([1, 2, 3, -1, -2, -5]))
        start = data.draw(st.integers(0, n - 1))
        taken = list(range(start, n, step) if step > 0 else range(start, -1, step))
        size = data.draw(st.integers(0, len(taken)))
        starts, sizes, steps = [*starts, start], [*sizes, size], [*steps, step]
        cuts.append(taken[:size])
    want = x[np.ix_(*[np.asarray(c, np.int64) for c in cuts])]
    assert same(check(ops.Slice(tuple(starts), tuple(sizes), tuple(steps)), x, names=[dtype]), want)


@many
@given(operands(st.lists(st.integers(1, 4), min_size=1, max_size=3)), st.data())
def test_pad(operand: tuple[Array, str], data: st.DataObject) -> None:
    x, dtype = operand
    mode = data.draw(st.sampled_from(["constant", "reflect", "edge"]))
    most = [min(3, n - 1) if mode == "reflect" else 3 for n in x.shape]
    pads = [data.draw(st.integers(0, m)) for m in most + most]
    value = data.draw(st.sampled_from([0.0, 1.0])) if dtype != "f32" else data.draw(st.sampled_from([0.25, -np.inf]))
    have = check(ops.Pad(tuple(pads), value, mode), x, names=[dtype])
    names = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}
    if mode == "constant":
        widths = [w for d in reversed(range(x.ndim)) for w in (pads[d], pads[x.ndim + d])]
        assert same(have, torch.nn.functional.pad(torch.from_numpy(x), widths, value=value).numpy())
    elif x.ndim == 1 and x.dtype == np.float32:
        want = torch.nn.functional.pad(torch.from_numpy(x)[None, None], pads, mode=names[mode])
        assert same(have, want[0, 0].numpy())


def test_pad_of_nothing_and_of_scalars() -> None:
    assert check(ops.Pad((1, 2), 7.0), np.zeros((0,), np.int8)).tolist() == [7, 7, 7]
    assert check(ops.Pad(()), np.float32(3).reshape(())).item() == 3
    assert check(ops.Pad((0, 0), mode="edge"), np.zeros((0,), np.int8)).size == 0


@many
@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(1, 4), st.data())
def test_concat(shape: list[int], count: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    dtype = data.draw(dtypes)
    xs = []
    for n in range(count):
        own = [*shape[:axis], data.draw(st.integers(0, 3)), *shape[axis + 1 :]]
        xs.append(sample(np.random.default_rng(n), own, dtype, special=True))
    have = check(ops.Concat(axis), *xs, names=[dtype] * count)
    assert same(have, torch.cat([torch.from_numpy(x) for x in xs], axis).numpy())


@many
@given(operands(st.lists(st.integers(0, 3), max_size=3)), st.data())
def test_broadcast_to(operand: tuple[Array, str], data: st.DataObject) -> None:
    x, dtype = operand
    lead = data.draw(st.lists(st.integers(0, 2), max_size=2))
    shape = (*lead, *[data.draw(st.integers(0, 3)) if e == 1 else e for e in x.shape])
    assert same(check(ops.BroadcastTo(shape), x, names=[dtype]), torch.from_numpy(x).expand(shape).numpy())


@many
@given(operands(st.lists(st.integers(1, 4), min_size=1, max_size=3)), st.data())
def test_gather(operand: tuple[Array, str], data: st.DataObject) -> None:
    x, dtype = operand
    axis = data.draw(st.integers(0, x.ndim - 1))
    kind = data.draw(st.sampled_from(["i8", "i64", "u8"]))
    n = x.shape[axis]
    shape = data.draw(st.lists(st.integers(0, 3), max_size=2))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    container = {"i8": np.int8, "i64": np.int64, "u8": np.uint8}[kind]
    indices = np.asarray(rng.integers(0 if kind == "u8" else -n, n, shape), container)
    have = check(ops.Gather(axis), x, indices, names=[dtype, kind])
    flat = torch.from_numpy(indices.astype(np.int64).reshape(-1) % n)
    want = torch.index_select(torch.from_numpy(x), axis, flat).numpy()
    assert same(have, want.reshape((*x.shape[:axis], *shape, *x.shape[axis + 1 :])))


@pytest.mark.parametrize("bad", [3, -4, 2**40])
def test_gather_refuses_indices_outside(bad: int) -> None:
    with pytest.raises(ShapeError, match=rf"gather: index {bad} is outside \[-3, 3\) of axis 0"):
        base.evaluate(ops.Gather(0), [np.zeros(3, np.float32), np.int64([0, bad])])


X = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("op", "arrays", "says"),
    [
        (ops.Reshape((4,)), (X,), "reshape: 2x3xf32 has 6 elements, shape (4,) has 4"),
        (ops.Reshape((-1, 6)), (X,), "reshape: negative extent in (-1, 6)"),
        (ops.Transpose((0, 0)), (X,), "transpose: perm (0, 0) isn't a permutation of the 2 dimensions of 2x3xf32"),
        (ops.Slice((0, 1), (2, 3), (1, 1)), (X,), "slice: dimension 1: elements 1…3 of 3"),
        (ops.Slice((0, 0), (2, 2), (1, -1)), (X,), "slice: dimension 1: elements 0…-1 of 3"),
        (ops.Slice((0, 0), (2, 2), (1, 0)), (X,), "slice: dimension 1: step 0 or negative size"),
        (ops.Pad((0, 1)), (X,), "pad: 2 pads for 2 dimensions; needs begin and end of each"),
        (ops.Pad((0, 0, 0, -1)), (X,), "pad: negative pads: use slice"),
        (ops.Pad((0, 0, 2, 0), mode="reflect"), (X,), "pad: dimension 0: reflects at most 1 elements, not 2"),
        (ops.Pad((0, 0), 0.5), (np.int8([1]),), "pad: value 0.5 isn't one of i8"),
        (ops.Pad((0, 0), 200.0), (np.int8([1]),), "pad: value 200.0 isn't one of i8"),
        (ops.Pad((1, 0), mode="edge"), (np.int8([]),), "pad: dimension 0 is empty: it has no edge"),
        (ops.Concat(1), (X, X[:1]), "concat: 2x3xf32 and 1x3xf32 differ outside axis 1"),
        (ops.Concat(2), (X,), "concat: axis 2 is outside rank 2"),
        (ops.Concat(0), (), "concat: needs at least one operand"),
        (ops.BroadcastTo((3, 3)), (X,), "broadcast_to: 2x3xf32 doesn't broadcast to (3, 3)"),
        (ops.BroadcastTo((3,)), (X,), "broadcast_to: 2x3xf32 doesn't broadcast to (3,)"),
        (ops.Gather(0), (X, X), "gather: indices must be integers, not f32"),
        (ops.Gather(0), (X[:0], np.int8([0])), "gather: axis 0 of 0x3xf32 is empty"),
    ],
)
def test_refusals_say_what_is_wrong(op: Op, arrays: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ShapeError) as caught:
        base.infer(op, typed(arrays))
    assert str(caught.value) == says
