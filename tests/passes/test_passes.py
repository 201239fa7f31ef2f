"""Passes on float programs: folding, batch norm, matmul, dead code, decomposition, fusion, and the pipeline's own
errors."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.passes import batch_norm, constant_folding, dce, decompose, edit, fuse, matmul
from cuvil_hw.passes.pipeline import PASSES, ProgramPass, observed, parse_passes, run_pipeline
from cuvil_hw.types import TensorType

RNG = np.random.default_rng(0)
CONV = ops.Conv((1, 1), (1, 1, 1, 1), (1, 1))


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def builder(*shape: int, dtype: str = "f32") -> Builder:
    return Builder([("x", TensorType(shape, dtype))])


def kinds(program: Program) -> Counter[str]:
    return Counter(edit.mnemonic(o) for o in program.ops() if edit.mnemonic(o))


def grouped(program: Program) -> list[tuple[str, list[str]]]:
    """(label, ops inside) of each group."""
    groups = [o for o in program.ops() if isinstance(o, level1.GroupOp)]
    return [(g.label.data, [edit.mnemonic(o) for o in g.body.block.ops if edit.mnemonic(o)]) for g in groups]


def test_folding_computes_constants_and_drops_no_ops() -> None:
    b = builder(2, 3)
    w = f32(3, 4)
    zero = b.op(ops.BroadcastTo((2, 3)), b.const(np.zeros((3,), np.float32)))
    x = b.op(ops.Sub(), b.input(0), zero)
    x = b.op(ops.Reshape((2, 3)), b.op(ops.Reshape((6,)), x))
    x = b.op(ops.Transpose((1, 0)), b.op(ops.Transpose((1, 0)), x))
    doubled = b.op(ops.Add(), b.const(w), b.const(w))
    p = b.finish([("y", b.op(ops.Linear(), x, b.op(ops.Transpose((1, 0)), doubled)))])
    x0 = f32(2, 3)
    want = x0 @ (2 * w)
    constant_folding.run(p)
    assert kinds(p) == {"linear": 1}
    np.testing.assert_allclose(evaluate(p, [x0])[0], want, rtol=1e-6)


def test_a_broadcast_bias_stays_small() -> None:
    b = builder(1, 8, 64, 64)
    bias = b.op(ops.BroadcastTo((1, 8, 64, 64)), b.const(f32(8, 1, 1)))
    p = b.finish([("y", b.op(ops.Add(), b.input(0), bias))])
    constant_folding.run(p)
    assert kinds(p) == {"broadcast_to": 1, "add": 1}
    assert max(a.size for a in p.constants.values()) == 8


def test_dequantized_weights_are_kept_unless_asked() -> None:
    def make() -> Program:
        b = builder(1, 4)
        w = b.op(ops.Dequantize((0.5,), (0,), 0), b.const(np.ones((2, 4), np.int8)))
        return b.finish([("y", b.op(ops.Linear(), b.input(0), w))])

    kept, folded = make(), make()
    constant_folding.run(kept)
    constant_folding.fold(folded, dequantize=True)
    assert kinds(kept)["dequantize"] == 1
    assert kinds(folded)["dequantize"] == 0
    x = f32(1, 4)
    np.testing.assert_array_equal(evaluate(kept, [x])[0], evaluate(folded, [x])[0])


@pytest.mark.parametrize("axis_first", [True, False])
def test_adding_zero_folds_from_the_right_only(axis_first: bool) -> None:
    b = builder(2)
    zero = b.const(np.zeros(2, np.float32))
    operands = (b.input(0), zero) if axis_first else (zero, b.input(0))
    p = b.finish([("y", b.op(ops.Sub(), *operands))])
    constant_folding.run(p)
    np.testing.assert_array_equal(evaluate(p, [np.float32([1, 2])])[0], [1, 2] if axis_first else [-1, -2])


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_sign_of_zero_survives_adding_zero(zero: float) -> None:
    for op in (ops.Add(), ops.Sub()):
        b = builder(3)
        p = b.finish([("y", b.op(op, b.input(0), b.const(np.full(3, zero, np.float32))))])
        x = np.float32([-0.0, 0.0, 1.0])
        want = x + np.float32(zero) if isinstance(op, ops.Add) else x - np.float32(zero)
        constant_folding.run(p)
        assert evaluate(p, [x])[0].tobytes() == want.tobytes()


def test_batch_norm_goes_into_the_convolution_as_torch_computes_it() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    conv, norm = torch.nn.Conv2d(3, 5, 3, padding=1, groups=1), torch.nn.BatchNorm2d(5)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    model = torch.nn.Sequential(conv, norm).eval()
    b = builder(1, 3, 6, 6)
    g = {n: b.const(t.detach().numpy()) for n, t in model.state_dict().items() if t.ndim}
    y = b.op(CONV, b.input(0), g["0.weight"], g["0.bias"])
    y = b.op(ops.BatchNorm(norm.eps), y, g["1.weight"], g["1.bias"], g["1.running_mean"], g["1.running_var"])
    p = b.finish([("y", y)])
    batch_norm.run(p)
    assert kinds(p) == {"conv": 1}
    x = f32(1, 3, 6, 6)
    np.testing.assert_allclose(evaluate(p, [x])[0], model(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_factor_goes_into_the_scales_of_dequantized_weights_and_its_sign_into_their_integers() -> None:
    b = builder(1, 3, 4, 4)
    stored = np.int8(RNG.integers(-128, 128, (4, 3, 3, 3)))
    stored[1, 0, 0, 0] = -128  # has no opposite of 8 bits
    w = b.op(ops.Dequantize((0.5, 0.25, 1e-30, 0.125), (0,), 0), b.const(stored))
    y = b.op(CONV, b.input(0), w)
    params = [np.float32([2, -3, 1e-30, 0]), f32(4), f32(4), np.float32([1, 4, 1, 1])]
    p = b.finish([("y", b.op(ops.BatchNorm(1e-5), y, *[b.const(v) for v in params]))])
    x = f32(1, 3, 4, 4)
    want = evaluate(p, [x])[0]
    run_pipeline(p, ["batch-norm"])
    assert kinds(p) == {"dequantize": 1, "conv": 1}
    (conv,) = [o for o in p.ops() if edit.mnemonic(o) == "conv"]
    weights = edit.producer(conv.operands[1], "dequantize")
    assert weights is not None
    assert level1.type_of(weights.operands[0]).dtype == "i9"
    assert max(weights.op.scale) < 2  # type: ignore[attr-defined]
    np.testing.assert_allclose(evaluate(p, [x])[0], want, rtol=1e-5, atol=1e-5)


def test_batch_norm_after_a_shared_convolution_leaves_it_alone() -> None:
    b = builder(1, 3, 4, 4)
    y = b.op(CONV, b.input(0), b.const(f32(2, 3, 3, 3)))
    z = b.op(ops.BatchNorm(), y, *(b.const(np.float32([1, 2])) for _ in range(4)))
    p = b.finish([("y", y), ("z", z)])
    x = f32(1, 3, 4, 4)
    want = evaluate(p, [x])
    batch_norm.run(p)
    assert kinds(p) == {"conv": 1, "mul": 1, "add": 1, "broadcast_to": 2}
    for got, expected in zip(evaluate(p, [x]), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_bias_added_after_matmul_becomes_the_bias_of_a_linear() -> None:
    b = builder(2, 4)
    w, c = f32(4, 3), f32(3)
    y = b.op(ops.Add(), b.op(ops.MatMul(), b.input(0), b.const(w)), b.op(ops.BroadcastTo((2, 3)), b.const(c)))
    p = b.finish([("y", y)])
    matmul.run(p)
    batch_norm.run(p)
    assert kinds(p) == {"linear": 1}
    x = f32(2, 4)
    np.testing.assert_allclose(evaluate(p, [x])[0], x @ w + c, rtol=1e-5, atol=1e-6)


def test_a_constant_that_varies_over_space_is_no_bias() -> None:
    b = builder(1, 2, 4, 4)
    y = b.op(CONV, b.input(0), b.const(f32(2, 2, 3, 3)))
    p = b.finish([("y", b.op(ops.Add(), y, b.const(f32(1, 2, 4, 4))))])
    batch_norm.run(p)
    assert kinds(p)["add"] == 1


def test_dead_code_goes() -> None:
    b = builder(4)
    b.op(ops.Exp(), b.op(ops.Relu(), b.input(0)))
    p = b.finish([("y", b.op(ops.Neg(), b.input(0)))])
    dce.run(p)
    assert kinds(p) == {"neg": 1}


def test_softmax_decomposes_only_where_wanted() -> None:
    b = builder(2, 5)
    p = b.finish([("y", b.op(ops.Softmax(1), b.input(0)))])
    x = f32(2, 5)
    want = evaluate(p, [x])[0]
    decompose.run(p, lambda op, inputs, outputs: op.mnemonic == "layer_norm")
    assert kinds(p) == {"softmax": 1}
    decompose.run(p)
    assert "softmax" not in kinds(p)
    np.testing.assert_allclose(evaluate(p, [x])[0], want, rtol=1e-6)


def residual() -> Program:
    """conv → rescale → rescale (wider) → add ← rescale ← x; add → rescale → clamp."""
    b = builder(1, 2, 4, 4, dtype="i8")
    w = b.const(RNG.integers(-9, 9, (2, 2, 3, 3)), "i8")
    y = b.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1), acc="i20"), b.input(0), w)
    narrow = b.op(ops.Rescale((1 << 20,), (25,), "i8"), y)
    wide = [b.op(ops.Rescale((1 << 12,), (4,), "i24"), v) for v in (narrow, b.input(0))]
    total = b.op(ops.Rescale((1 << 20,), (28,), "i8"), b.op(ops.Add("i25"), *wide))
    return b.finish([("y", b.op(ops.Clamp(-100, 100), total))])


def test_fusion_cuts_a_residual_block_where_the_tensor_is_narrow() -> None:
    p = residual()
    x = RNG.integers(-128, 127, (1, 2, 4, 4)).astype(np.int8)
    want = evaluate(p, [x])[0]
    run_pipeline(p, ["fuse"])
    inside = [sorted(names) for _, names in grouped(p)]
    assert inside == [["conv", "rescale"], ["add", "clamp", "rescale", "rescale", "rescale"]]
    np.testing.assert_array_equal(evaluate(p, [x])[0], want)


def test_fusion_takes_the_skip_connection_into_the_epilogue_when_asked() -> None:
    p = residual()
    fuse.run(p, residual_epilogue=True)
    p.verify()
    assert len(grouped(p)) == 1


def test_fusion_invariants_on_a_branching_network() -> None:
    b = builder(1, 2, 6, 6)
    a = b.op(ops.Relu(), b.op(CONV, b.input(0), b.const(f32(4, 2, 3, 3)), b.const(f32(4))))
    left = b.op(ops.Tanh(), a)
    right = b.op(ops.Sigmoid(), b.op(CONV, a, b.const(f32(4, 4, 3, 3))))
    joined = b.op(ops.Mul(), left, right)
    padded = b.op(ops.Pad((0, 0, 1, 1, 0, 0, 1, 1)), joined)
    pooled = b.op(ops.MaxPool((2, 2), (2, 2), (0, 0, 0, 0), (1, 1)), padded)
    flat = b.op(ops.Reshape((1, 64)), pooled)
    y = b.op(ops.Linear(), flat, b.const(f32(3, 64)))
    p = b.finish([("y", y), ("a", a)])
    x = f32(1, 2, 6, 6)
    want = evaluate(p, [x])
    before = kinds(p)
    run_pipeline(p, ["fuse"])
    groups = grouped(p)
    assert kinds(p) == {}  # nothing computed outside a group
    assert sum((Counter(names) for _, names in groups), Counter()) == before
    reducing = {"conv", "linear", "max_pool"}
    assert all(sum(n in reducing for n in names) <= 1 for _, names in groups)
    labels = [label for label, _ in groups]
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch(r"[A-Za-z_]\w*", label) for label in labels)
    assert ["pad", "max_pool"] in [names for _, names in groups]
    for got, expected in zip(evaluate(p, [x]), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_long_chain_becomes_several_kernels() -> None:
    b = builder(1, 4)
    y = b.input(0)
    for _ in range(200):
        y = b.op(ops.Sin(), y)
    for _ in range(100):
        y = b.op(ops.Transpose((1, 0)), y)
    p = b.finish([("y", y)])
    x = f32(1, 4)
    want = evaluate(p, [x])[0]
    fuse.run(p)
    p.verify()
    sizes = [len(names) for _, names in grouped(p)]
    assert sum(sizes) == 300
    assert max(sizes) == fuse.MAX_OPS
    np.testing.assert_array_equal(evaluate(p, [x])[0], want)
    assert len(kernel_graph(p).kernels) == len(sizes)  # every expression is shallow enough to be walked


def test_views_stay_apart_without_prologues() -> None:
    b = builder(1, 2, 2, 2)
    y = b.op(ops.Linear(), b.op(ops.Reshape((1, 8)), b.input(0)), b.const(f32(3, 8)))
    p = b.finish([("y", y)])
    fuse.run(p, prologue_views=False)
    p.verify()
    assert [names for _, names in grouped(p)] == [["reshape"], ["linear"]]


def test_pipeline_names_an_unknown_pass_and_one_that_breaks_the_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> Program:
        b = builder(4)
        return b.finish([("y", b.op(ops.Relu(), b.input(0)))])

    with pytest.raises(CuvilError, match="unknown pass 'vectorise'"):
        run_pipeline(program(), ["vectorise"])

    class Spoil(ProgramPass):
        name = "spoil"

        def run(self, program: Program) -> None:
            relu = next(iter(program.block.ops))
            relu.operands[0] = edit.insert(program, relu).const(np.zeros((2,), np.float32))

    monkeypatch.setattr("cuvil_hw.passes.pipeline.PASSES", {**PASSES, "spoil": Spoil})
    with pytest.raises(CuvilError, match="pass spoil left invalid IR"):
        run_pipeline(program(), ["spoil"])
    with pytest.raises(CuvilError, match="pass spoil or dce left invalid IR; dump=folder"):
        run_pipeline(program(), ["spoil", "dce"])
    with observed(lambda what, module: None), pytest.raises(CuvilError, match="pass spoil left invalid IR"):
        run_pipeline(program(), ["spoil", "dce"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fold{deqantize=true}", "deqantize"),
        ("fold{dequantize=3}", "dequantize"),
        ("fold{", "write them as in"),
        ("fuse alone", "write them as in"),
    ],
)
def test_options_that_a_pass_does_not_have_are_errors(text: str, said: str) -> None:
    with pytest.raises(CuvilError, match=r"passes .*write them as in") as error:
        parse_passes(text)
    assert said in str(error.value)


def test_options_come_from_text_and_go_back_to_it() -> None:
    apart, folded = parse_passes("fuse{alone=true},fold{dequantize=true}")
    assert (str(apart.spec()), str(folded.spec())) == ("fuse{alone=true}", "fold{dequantize=true}")
    b = builder(4)
    p = b.finish([("y", b.op(ops.Relu(), b.op(ops.Neg(), b.input(0))))])
    run_pipeline(p, "fuse{alone=true}")
    assert [names for _, names in grouped(p)] == [["neg"], ["relu"]]
