"""Each family of PyTorch ops, imported and evaluated in NumPy, against torch eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
import torch.nn.functional as F  # noqa: E402

from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402
from tests.support.torch_oracle import Call, check, rand  # noqa: E402

SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.0, 30.0, -30.0, 1e-6])
EXTREME = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0])

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
    "clamp": lambda x: x.clamp(-1, 1.25),
    "clamp_min": lambda x: x.clamp(min=0.5),
    "clamp_max": lambda x: x.clamp(max=0.5),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 0.7),
    "celu": lambda x: F.elu(x),
    "selu": F.selu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, 2.0, 5.0),
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 3.0),
    "tanh": torch.tanh,
    "erf": torch.erf,
    "exp": lambda x: torch.exp(x / 4),
    "expm1": lambda x: torch.expm1(x / 4),
    "log": lambda x: torch.log(x.abs() + 0.1),
    "log1p": lambda x: torch.log1p(x.abs()),
    "log2": lambda x: torch.log2(x.abs() + 0.1),
    "log10": lambda x: torch.log10(x.abs() + 0.1),
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "reciprocal": lambda x: torch.reciprocal(x + 0.25),
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "sin": torch.sin,
    "cos": torch.cos,
    "square": torch.square,
    "cube": lambda x: x**3,
    "pow_half": lambda x: x.abs() ** 0.5,
    "pow_minus": lambda x: (x.abs() + 1) ** -1.5,
    "rpow": lambda x: 2.0 ** (x / 4),
    "glu": lambda x: F.glu(x, 0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_one_input_function(name: str) -> None:
    check(ACTIVATIONS[name], SPECIAL)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_float_types(dtype: Any) -> None:
    names = ["relu", "silu", "hardswish", "gelu", "round", "softplus", "sigmoid", "elu", "rsqrt", "log1p"]
    check(lambda x: [ACTIVATIONS[name](x) for name in names], rand(3, 5, dtype=dtype))


def test_nan_and_infinity() -> None:
    names = ["relu", "relu6", "clamp", "abs", "neg", "tanh", "sigmoid", "floor", "leaky_relu", "square", "exp", "sqrt"]
    check(lambda x: [ACTIVATIONS[name](x) for name in names], EXTREME)


def test_special_values_of_log1p_and_expm1() -> None:
    x = torch.tensor([0.0, 1e-10, -1e-10, 1e30, float("inf"), -1.0, float("nan"), -100.0, 100.0])
    check(lambda x: (torch.log1p(x), torch.expm1(x)), x)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "add_alpha": lambda a, b: torch.add(a, b, alpha=2),
    "sub": lambda a, b: a - b,
    "sub_alpha": lambda a, b: torch.sub(a, b, alpha=3),
    "rsub": lambda a, b: torch.rsub(a, b, alpha=2),
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floor_div": lambda a, b: a // b,
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "compare": lambda a, b: (a == b, a != b, a < b, a <= b, a > b, a >= b),
    "where": lambda a, b: torch.where(a > b, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.25) if a.is_floating_point() else a + b,
}
PAIRS = {
    "same": ((2, 3), (2, 3)),
    "row": ((2, 3), (3,)),
    "column": ((2, 1), (1, 3)),
    "scalar": ((2, 3), ()),
    "empty": ((0, 3), (1, 3)),
    "higher": ((3,), (2, 1, 3)),
}


@pytest.mark.parametrize("name", BINARY)
def test_two_operands_broadcast(name: str) -> None:
    """All pairs of shapes in one program."""
    inputs = [rand(*shape, seed=i) * 3 for pair in PAIRS.values() for i, shape in enumerate(pair)]
    check(lambda *xs: [BINARY[name](a, b) for a, b in zip(xs[::2], xs[1::2], strict=True)], *inputs)


@pytest.mark.parametrize("name", BINARY)
def test_integers(name: str) -> None:
    a = torch.tensor([7, -7, 7, -7, 0, 6, -6], dtype=torch.int32)
    b = torch.tensor([2, 2, -2, -2, 5, 3, -3], dtype=torch.int32)
    check(BINARY[name], a, b)


PROMOTED = [
    (torch.int64, torch.float32),
    (torch.int8, torch.int32),
    (torch.uint8, torch.int8),
    (torch.float16, torch.float32),
    (torch.bool, torch.float32),
    (torch.bool, torch.bool),
]


@pytest.mark.parametrize("name", ["add", "mul", "div", "compare", "where", "minimum"])
def test_type_promotion(name: str) -> None:
    values = torch.tensor([3, 0, 1, 1]), torch.tensor([1, 1, 2, 0])
    inputs = [v.to(t) for types in PROMOTED for v, t in zip(values, types, strict=True)]
    check(lambda *xs: [BINARY[name](a, b) for a, b in zip(xs[::2], xs[1::2], strict=True)], *inputs)


def test_python_numbers_promote_as_in_torch() -> None:
    i, x = torch.tensor([1, 2, 3]), rand(3)
    check(lambda i, x: (i + 1, i + 1.5, 2 * i, 1 - i, i / 2, i > 1.5, x + 1, 1 - x, 3.0 / x, x == 0, i**2), i, x)


def test_floor_division_where_the_quotient_rounds_up() -> None:
    a, b = torch.tensor([1.0, 0.5, 6.0, -1.0, 5.0]), torch.tensor([0.1, 0.1, 0.2, 0.1, 0.0])
    program = check(lambda a, b: a // b, a, b)
    assert evaluate(program, [a.numpy(), b.numpy()])[0].tolist()[:3] == [9.0, 4.0, 29.0]


def test_logic() -> None:
    def f(x: Any, y: Any, i: Any) -> Any:
        a, b = x > 0, y > 0
        return a & b, a | b, a ^ b, ~a, torch.logical_not(x), torch.logical_and(x, y), i & 6, i | 8, i ^ 3, ~i, a == b

    check(f, rand(8), rand(8, seed=1), torch.arange(8, dtype=torch.int32))


def test_nan_tests_and_masks() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    check(lambda x: (x.isnan(), x.isinf(), torch.isfinite(x), x.nan_to_num(0.5, 2.0, -2.0)), x)
    check(lambda x: (x.masked_fill(x > 0, -1), x.tril(), x.triu(1)), rand(3, 4))


def test_casts() -> None:
    x = torch.tensor([0.0, -1.75, 2.5, 100.0])
    check(lambda x: (x.half(), x.double(), x.int(), x.to(torch.int8), x.bool(), x.long().float(), x.bool().int()), x)


SHAPES: dict[str, Callable[[Any], Any]] = {
    "view": lambda x: x.view(2, -1),
    "reshape": lambda x: x.reshape(3, 2, 20),
    "reshape_of_transposed": lambda x: x.transpose(1, 3).reshape(2, -1),
    "flatten": lambda x: x.flatten(1, 2),
    "permute": lambda x: x.permute(0, 2, -1, 1),
    "t": lambda x: x[0, 0].t(),
    "squeeze": lambda x: x[:1].squeeze(0).unsqueeze(-1).squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(-2),
    "expand": lambda x: x[:, :1].expand(-1, 3, -1, -1),
    "repeat": lambda x: x[0, 0].repeat(2, 3, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "tile": lambda x: x.tile(2),
    "slice": lambda x: x[:, 1:, ::2, -3:],
    "slice_empty": lambda x: x[:, 5:],
    "select": lambda x: x[:, -1, :, 2],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "split": lambda x: x.split(2, dim=1),
    "split_sizes": lambda x: x.split([1, 3], dim=2),
    "chunk": lambda x: x.chunk(3, dim=-1),
    "unbind": lambda x: x.unbind(1),
    "cat": lambda x: torch.cat([x, x[:, :1] * 2, x], 1),
    "cat_empty": lambda x: torch.cat([torch.zeros(0), x], 1),
    "cat_types": lambda x: torch.cat([x, torch.ones(2, 1, 4, 5, dtype=torch.int64)], 1),
    "stack": lambda x: torch.stack([x, -x], dim=2),
    "flip": lambda x: x.flip(-1, 1),
    "roll": lambda x: (x.roll(1, 2), x.roll((-1, 2), (0, 3)), x.roll(3)),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=-1.5),
    "pad_negative": lambda x: F.pad(x, (-1, 2, 1, -1)),
    "pad_reflect": lambda x: F.pad(x, (2, 1, 1, 3), mode="reflect"),
    "pad_replicate": lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"),
    "pad_circular": lambda x: F.pad(x, (2, 1, 0, 3), mode="circular"),
    "pixel_shuffle": lambda x: F.pixel_unshuffle(F.pixel_shuffle(torch.cat([x, x[:, :1]], 1), 2), 2),
    "channel_shuffle": lambda x: F.channel_shuffle(torch.cat([x, x[:, :1]], 1), 2),
    "index_list": lambda x: x[:, [2, 0, -1]],
    "index_select": lambda x: x.index_select(3, torch.tensor([4, 0])),
    "meshgrid": lambda x: x + torch.meshgrid(torch.arange(4.0), torch.arange(5.0), indexing="ij")[0],
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "nearest_odd": lambda x: F.interpolate(x, size=(7, 3), mode="nearest"),
    "nearest_exact": lambda x: F.interpolate(x, size=(7, 3), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
    "bilinear_corners": lambda x: F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True),
    "einsum": lambda x: torch.einsum("nchw,nchv->ncwv", x, x),
    "constants": lambda x: x + torch.full((5,), 2.0) + torch.arange(5) + torch.eye(5)[0] + torch.linspace(0, 1, 5),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shape_op(name: str) -> None:
    check(SHAPES[name], rand(2, 3, 4, 5))


def test_shape_ops_of_channels_last() -> None:
    x = rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    names = ["reshape", "permute", "slice", "split", "pad", "stack", "flip", "expand", "unbind", "flatten"]
    check(lambda x: [SHAPES[name](x) for name in names], x)


def test_shape_ops_of_empty_tensors() -> None:
    check(lambda x: (x.reshape(4, 0, 2), x.permute(1, 2, 0), torch.cat([x, x]), x.sum(0), x + 1), torch.zeros(0, 2, 4))


def test_embedding() -> None:
    ids = torch.tensor([[1, 4], [0, 2]])
    check(lambda i, w: F.embedding(i, w), ids, w=rand(5, 3))


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True), x.sum(1, dtype=torch.float64)),
    "mean": lambda x: (x.mean(), x.mean(-1), x.mean((0, 2), keepdim=True)),
    "amax": lambda x: (x.amax(1), x.amin((0, 1)), x.amax((), keepdim=True), x.max(), x.min()),
    "max_dim": lambda x: (x.max(1), x.min(-1, keepdim=True)),
    "argmax": lambda x: (x.argmax(), x.argmax(1), x.argmin(-1, keepdim=True)),
    "prod": lambda x: (x.prod(), x.prod(1), x.prod(-1, keepdim=True)),
    "var": lambda x: (x.var(), x.var(1), x.var((0, 2), correction=0, keepdim=True), x.std(-1), torch.var_mean(x, 1)),
    "norm": lambda x: (x.norm(), x.norm(dim=1), torch.linalg.vector_norm(x, 1, -1), torch.linalg.vector_norm(x, 3)),
    "norm_inf": lambda x: (torch.linalg.vector_norm(x, float("inf"), 1), torch.linalg.vector_norm(x, 0, 1)),
    "normalize": lambda x: F.normalize(x, dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "any": lambda x: ((x > 1).any(), (x > 1).any(1), (x > -1).all(-1, keepdim=True), (x > -1).all()),
    "softmax": lambda x: (x.softmax(1), F.log_softmax(x, -1), x.softmax(0, dtype=torch.float64)),
    "softmin": lambda x: F.softmin(x, 1),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0), dim=1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str) -> None:
    check(lambda x, y: (REDUCTIONS[name](x), REDUCTIONS[name](y)), rand(2, 3, 4), rand(1, 5, 7))


def test_reductions_of_integers_and_scalars() -> None:
    i = torch.tensor([[3, 1, 3], [-5, 3, 2]], dtype=torch.int8)
    check(
        lambda i: (i.sum(), i.sum(1), i.amax(1), i.argmax(1), i.prod(), (i > 0).sum(0), i.any(1), i.float().mean()), i
    )
    check(lambda x: (x.sum(), x.mean(), x.amax(), x.softmax(0), x.argmax()), torch.tensor(2.5))


def test_nan_wins_reductions() -> None:
    x = torch.tensor([[1.0, float("nan"), 3.0], [float("nan"), 2.0, -1.0], [3.0, 3.0, 1.0]])
    check(lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.max(), x.max(1)), x)


def test_tensors_made_like_others() -> None:
    def f(x: Any) -> Any:
        made = torch.zeros_like(x), torch.full_like(x, 3, dtype=torch.int32), x.new_full((2,), 5), x.new_zeros(3) + x[0]
        filled = torch.empty(2, 3)
        filled[0], filled[1:] = x[0], x[1:] * 2
        return *made, filled, torch.empty_like(x).fill_(4)

    check(f, rand(2, 3))


def test_uninitialised_memory_is_zero_so_that_builds_are_alike() -> None:
    program = load(Call(lambda x: (torch.empty(64) + x, torch.empty_like(x))), rand(64))
    x = rand(64, seed=1).numpy()
    got = evaluate(program, [x])
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[1], np.zeros(64, np.float32))
