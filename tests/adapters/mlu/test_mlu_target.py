"""The MLU target: fused programs, run as BANG C on the simulated cards, against the NumPy meaning of their ops."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw import dtypes, ops
from cuvil_hw.adapters.mlu.adapter import MluAdapter
from cuvil_hw.adapters.mlu.tile import strided
from cuvil_hw.api import choose, propose
from cuvil_hw.errors import CuvilError, DoesNotFit, Unsupported
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.passes import fuse
from cuvil_hw.target.profile import Profile, load_profile
from cuvil_hw.types import TensorType as T
from tests.support.device_runner import opened
from tests.support.fpga_networks import network
from tests.support.mlu_runner import CARDS, check, planned

pytestmark = [pytest.mark.needs("g++"), pytest.mark.must_run]
Array = np.ndarray[Any, Any]


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ints(lo: int, hi: int, *shape: int, dtype: Any = np.int8, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(lo, hi, shape, dtype, endpoint=True)


def unary(op: ops.base.Op, x: Array, dtype: str) -> Program:
    b = Builder([("x", T(x.shape, dtype))])
    return b.finish([("y", b.op(op, b.input(0)))])


def limited(card: str, nram: int) -> Profile:
    """The card with less NRAM, all of which may be used."""
    profile = load_profile(card)
    axes = tuple(dataclasses.replace(a, limit=nram, utilisation=1.0) if a.name == "nram" else a for a in profile.axes)
    return dataclasses.replace(profile, axes=axes)


def digits_cnn() -> Program:
    """Convolutions, pools and a dense layer on int8, with outputs that saturate."""
    b = Builder([("image", T((1, 1, 8, 8), "i8"))], "digits")
    one = (1, 1)
    w = b.const(ints(-128, 127, 6, 1, 3, 3))
    y = b.op(
        ops.Conv(one, (1, 1, 1, 1), one, x_zp=-128, acc="i32"),
        b.input(0),
        w,
        b.const(ints(-9999, 9999, 6, dtype=np.int32)),
    )
    y = b.op(ops.Rescale(tuple(range(10**6, 10**6 + 6)), (29,), "i8", output_zp=-128), y)
    y = b.op(ops.MaxPool((2, 2), (2, 2), (0, 0, 0, 0), one), y)
    y = b.op(ops.Conv(one, (1, 1, 1, 1), one, groups=2, x_zp=-128, acc="i32"), y, b.const(ints(-128, 127, 8, 3, 3, 3)))
    y = b.op(ops.Rescale((1518500250,), (41,), "i8", output_zp=3), y)
    y = b.op(ops.Linear(3, (0,), "i32"), b.op(ops.Reshape((1, 128)), y), b.const(ints(-128, 127, 10, 128)))
    return b.finish([("y", b.op(ops.Rescale((1 << 30,), (42,), "i8"), y)), ("acc", y)])


# -- the same bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("fill", ["random", "lowest", "highest"])
def test_digits(card: str, fill: str) -> None:
    x = {"random": ints(-128, 127, 1, 1, 8, 8), "lowest": np.full((1, 1, 8, 8), -128, np.int8)}
    check(digits_cnn(), x.get(fill, np.full((1, 1, 8, 8), 127, np.int8)), card=card)


@pytest.mark.parametrize(
    ("seed", "nram"), [(0, None), (1, None), (2, 4096), (3, 4096), (4, 1600), (6, 1600), (7, 1600)]
)
def test_random_networks_in_any_size_of_nram(seed: int, nram: int | None) -> None:
    card = CARDS[seed % 2]
    program, trace = network(seed, 3)
    rng = np.random.default_rng(seed)
    inputs = []
    for _, kind in program.inputs:
        lo, hi = dtypes.int_range(kind.dtype)
        drawn = rng.integers(lo, hi, kind.shape, np.int64, endpoint=True)
        inputs.append(drawn.astype(dtypes.to_numpy(kind.dtype)))
    try:
        check(program, *inputs, card=card if nram is None else limited(card, nram))
    except DoesNotFit:
        assert nram is not None, trace


@pytest.mark.parametrize("target", CARDS)
def test_kws_gives_what_the_processor_gives(models: Path, target: str) -> None:
    """The integers' bits; the softmax behind them is of floats, and the processor's exp is its own (1.1 ulp)."""
    mlu, cpu = (cuvil.compile(models / "kws_ref_model.onnx", t) for t in (target, "cpu"))
    x = (np.random.default_rng(0).normal(size=(6, *mlu.inputs[0].shape[1:])) * 50).astype(np.float32)
    with mlu, cpu:
        got, wanted = mlu(x), cpu(x)
        np.testing.assert_array_max_ulp(got, wanted, 4)
        assert wanted.std() > 0
        assert mlu(x[:0]).shape == wanted[:0].shape


@pytest.mark.parametrize("target", CARDS)
def test_fixed_point_mlp_gives_the_bits_of_the_processor(target: str) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
    x = torch.randn(32, 16) * 8
    mlu, cpu = (cuvil.compile(net, t, x[:1], x, precision="fixed<16,6>") for t in (target, "cpu"))
    with mlu, cpu:
        np.testing.assert_array_equal(mlu(x.numpy()), cpu(x.numpy()))


# -- floats -------------------------------------------------------------------------------------------------------

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 1e-45, 3.5, -2.5, 0.5, 1.5], np.float32)


@pytest.mark.parametrize("card", CARDS)
def test_float_layers(card: str) -> None:
    b = Builder([("x", T((1, 3, 9, 8), "f32"))])
    y = b.op(
        ops.Conv((1, 2), (1, 0, 1, 1), (1, 1)), b.input(0), b.const(floats(10, 3, 3, 3)), b.const(floats(10, seed=1))
    )
    y = b.op(ops.MaxPool((2, 2), (2, 2), (0, 0, 0, 0), (1, 1)), b.op(ops.Relu(), y))
    y = b.op(ops.Reshape((1, 80)), y)
    y = b.op(ops.Linear(), y, b.const(floats(7, 80, seed=2)), b.const(floats(7, seed=3)))
    check(b.finish([("y", y), ("n", b.op(ops.ArgMax(1, False, False), y))]), floats(1, 3, 9, 8, seed=4), card=card)


@pytest.mark.parametrize(
    "op",
    [ops.Relu(), ops.Sigmoid(), ops.Tanh(), ops.Exp(), ops.Round(), ops.Cast("i8"), ops.Cast("f16"), ops.HardSwish(),
     ops.IsNan()],
    ids=lambda op: op.mnemonic + str(getattr(op, "dtype", "")),
)  # fmt: skip
def test_special_floats(op: ops.base.Op) -> None:
    check(unary(op, SPECIAL, "f32"), SPECIAL, rtol=1e-6)


def test_f16_rounds_once() -> None:
    x = floats(4, 33).astype(np.float16)
    b = Builder([("x", T(x.shape, "f16"))])
    y = b.op(ops.Add(), b.op(ops.Mul(), b.input(0), b.input(0)), b.input(0))
    check(b.finish([("y", y), ("s", b.op(ops.ReduceSum((1,), True), y))]), x, card="mlu370-x4", rtol=0)


# -- shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "i24", "i32", "u32"])
def test_quantize_needs_no_double(dtype: str) -> None:
    lo, hi = dtypes.int_range(dtype)
    x = floats(2, 12, seed=3) * np.float32(hi) / 40
    x[0, :8] = np.inf, -np.inf, np.nan, 0.25, 0.75, -0.25, 3e38, -3e38
    b = Builder([("x", T(x.shape, "f32"))])
    op = ops.Quantize((0.5, 0.03), (lo // 3, hi // 5), dtype, axis=0)
    check(b.finish([("y", b.op(op, b.input(0)))]), x)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,), ()])
def test_empty_and_scalar_tensors(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 2.5, np.float32)
    check(unary(ops.Neg(), x, "f32"), x)
    if shape:
        check(unary(ops.ReduceSum((0,), False), x, "f32"), x)


@pytest.mark.parametrize("nram", [4096, 1024])
def test_reversed_padded_and_transposed_reads(nram: int) -> None:
    x = ints(-128, 127, 3, 7, 50)
    b = Builder([("x", T(x.shape, "i8"))])
    y = b.op(ops.Slice((2, 6, 1), (2, 4, 16), (-1, -2, 3)), b.input(0))
    z = b.op(ops.Transpose((2, 0, 1)), b.op(ops.Pad((0, 2, 1, 0, 0, 3), 5.0, "constant"), b.input(0)))
    w = b.op(ops.Pad((0, 3, 2, 0, 3, 2), 0.0, "reflect"), b.input(0))
    check(b.finish([("y", y), ("z", z), ("w", w)]), x, card=limited("mlu270", nram))


@pytest.mark.parametrize("rows", [20, 3000])
def test_gather_from_a_table_that_fits_and_one_that_does_not(rows: int) -> None:
    def program() -> Program:
        b = Builder([("at", T((9,), "i64"))])
        return b.finish([("y", b.op(ops.Gather(0), b.const(floats(rows, 40)), b.input(0)))])

    text = planned(program(), load_profile("mlu270"))[1].files["model.mlu"].decode()
    assert ("float c_tile" in text) == (rows == 20)
    check(program(), np.array([0, rows - 1, 5, -1, -rows, 7, 7, 19, 2]))


def test_boxes_as_strided_loops() -> None:
    assert strided((2, 3, 4), (2, 3, 4)) == [(24, 1, 1)]
    assert strided((2, 3, 4), (5, 3, 4)) == [(24, 1, 1)]
    assert strided((2, 2, 4), (5, 3, 4)) == [(2, 12, 8), (8, 1, 1)]
    assert strided((2, 2, 3), (5, 3, 4)) == [(2, 12, 6), (2, 4, 3), (3, 1, 1)]
    assert strided((5, 1, 4), (5, 3, 4)) == [(5, 12, 4), (4, 1, 1)]
    assert strided((4, 1), (4, 9)) == [(4, 9, 1)]
    assert strided((1, 1), (4, 9)) == []


# -- limits -------------------------------------------------------------------------------------------------------


def card_file(folder: Path, nram: int) -> Path:
    path = folder / f"card{nram}.yaml"
    path.write_text(
        f"schema: cuvil-profile/1\nname: small\nextends: mlu270\nresources:\n  nram: {{limit: {nram}}}\n",
        encoding="utf-8",
    )
    return path


def conv_of(channels: int) -> Program:
    b = Builder([("x", T((1, channels, 6, 6), "f32"))])
    w = b.const(floats(4, channels, 3, 3))
    return b.finish([("y", b.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1)), b.input(0), w, loc="net.py:3"))])


def test_less_nram_gives_smaller_tiles_and_then_none(tmp_path: Path) -> None:
    sizes = []
    for nram in (524288, 524288 // 2):
        profile = load_profile(card_file(tmp_path, nram))
        budget = profile.axis("nram").budget
        b = Builder([("x", T((1, 1 << 22), "f32"))])
        program = b.finish([("y", b.op(ops.Neg(), b.input(0)))])
        fuse.run(program)
        ((_, picked),) = choose(propose(kernel_graph(program), MluAdapter(), profile), profile).picked
        assert picked.estimate.use["nram"] <= budget
        sizes.append(picked.form.tile.size)
    assert sizes[0] > sizes[1] > 1
    with pytest.raises(
        DoesNotFit, match=r"needs [\d,]+ nram where 96 may be used \(75% of 128\), tightest at layer conv_0"
    ) as e:
        planned(conv_of(64), load_profile(card_file(tmp_path, 128)))
    assert (e.value.layer, e.value.axis, e.value.limit) == ("conv_0", "nram", 96)


@pytest.mark.parametrize(("nram", "left"), [(8192, ""), (4096, "const_"), (1024, "both")])
def test_operands_larger_than_nram_stay_in_gdram(nram: int, left: str) -> None:
    """The largest first, until the rest fits; the schedule says which."""
    profile = limited("mlu270", nram)
    graph = planned(conv_of(64), profile)[0]
    (described,) = [c.form.describe() for _, c in choose(propose(graph, MluAdapter(), profile), profile).picked]
    assert described.count("@gdram") == {"": 0, "const_": 1, "both": 2}[left]
    check(conv_of(64), floats(1, 64, 6, 6), card=profile)


def test_a_sum_to_one_number_longer_than_nram() -> None:
    b = Builder([("x", T((3000,), "f32"))])
    program = b.finish([("y", b.op(ops.ReduceSum((0,), False), b.input(0)))])
    check(program, floats(3000), card=limited("mlu370-x4", 2048))


def test_what_the_cores_cannot_do_is_refused() -> None:
    adapter, profile = MluAdapter(), load_profile("mlu270")
    big = T((1 << 16, 1 << 15, 2), "i8")
    assert "4,294,967,296 bytes" in str(adapter.refuses(ops.Relu(), [big], [big], profile))
    half = T((1 << 29,), "f32")
    assert "2,147,483,648 bytes" in str(adapter.refuses(ops.Relu(), [half], [half], profile))
    assert "no double" in str(adapter.refuses(ops.Relu(), [T((4,), "f64")], [T((4,), "f64")], profile))
    assert adapter.refuses(ops.Relu(), [T((4,), "f16")], [T((4,), "f16")], profile) is None
    b = Builder([("x", T(big.shape, "i8"))])
    with pytest.raises(Unsupported, match="4,294,967,296 bytes"):
        planned(b.finish([("y", b.op(ops.Neg(), b.input(0)))]), profile)


def test_interfaces() -> None:
    profile = load_profile("mlu270")
    assert "simulator" in opened(profile, "sim").name
    assert "null" in opened(profile, "null").interface
    with pytest.raises(CuvilError, match="no interface 'fpga'; it has hw, sim, null"):
        opened(profile, "fpga")


def test_golden_text(golden: Any) -> None:
    golden("mlu_digits.mlu", planned(digits_cnn(), load_profile("mlu270"))[1].files["model.mlu"].decode())
