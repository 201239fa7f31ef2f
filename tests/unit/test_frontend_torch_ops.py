"""Each family of PyTorch ops, imported and evaluated in NumPy, against torch eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402

TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.float64: (1e-12, 1e-12), torch.float16: (3e-3, 3e-3)}


class Call(nn.Module):
    """A function as a module; keyword tensors are parameters."""

    def __init__(self, f: Callable[..., Any], **parameters: Any) -> None:
        super().__init__()
        self.f = f
        for name, value in parameters.items():
            self.register_buffer(name, value)

    def forward(self, *args: Any) -> Any:
        return self.f(*args, **dict(self.named_buffers()))


class Twice(nn.Module):
    """One layer on two inputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, y: Any) -> Any:
        return self.layer(x), self.layer(y)


def leaves(value: Any) -> list[Any]:
    return [v for v in torch.utils._pytree.tree_leaves(value) if v is not None]


def check(f: Callable[..., Any], *inputs: Any, **parameters: Any) -> Any:
    """Import f, compare shapes, dtypes and values of all outputs with eager; returns the program."""
    module = f if isinstance(f, nn.Module) else Call(f, **parameters)
    program = load(module, inputs)
    module = module.eval()
    with torch.no_grad():
        want = leaves(module(*[x.clone() for x in inputs]))
    got = evaluate(program, [x.numpy() for x in inputs])
    assert len(got) == len(want)
    for g, w, (_, kind) in zip(got, want, program.outputs, strict=True):
        assert kind.shape == tuple(w.shape)
        assert g.shape == tuple(w.shape)
        assert g.dtype == w.numpy().dtype
        rtol, atol = TOLERANCE.get(w.dtype, (0, 0))
        np.testing.assert_allclose(g, w.numpy(), rtol=rtol, atol=atol)
    return program


def rand(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


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


CONVOLUTIONS = {
    "plain": (2, {"kernel_size": 3}),
    "strided": (2, {"kernel_size": 3, "stride": 2, "padding": 1}),
    "uneven": (2, {"kernel_size": (3, 2), "stride": (1, 2), "padding": (2, 1), "dilation": (2, 1)}),
    "grouped": (2, {"kernel_size": 3, "groups": 2, "padding": 1}),
    "depthwise": (2, {"kernel_size": 3, "groups": 4, "padding": 1, "stride": 2}),
    "pointwise": (2, {"kernel_size": 1, "bias": False}),
    "same": (2, {"kernel_size": 3, "padding": "same"}),
    "same_even": (2, {"kernel_size": (4, 2), "padding": "same", "dilation": (1, 3)}),
    "valid": (2, {"kernel_size": 2, "padding": "valid"}),
    "reflect": (2, {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"}),
    "circular": (2, {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}),
    "one_d": (1, {"kernel_size": 5, "stride": 3, "padding": 2, "groups": 2}),
    "one_d_same": (1, {"kernel_size": 4, "padding": "same"}),
    "three_d": (3, {"kernel_size": (2, 3, 1), "padding": (0, 1, 0), "stride": 2}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    torch.manual_seed(0)
    n, options = CONVOLUTIONS[name]
    layer = getattr(nn, f"Conv{n}d")(4, 4, **options)
    check(Twice(layer), rand(2, 4, *[9, 11, 5][:n]), rand(4, *[9, 11, 5][:n]))


def test_convolution_of_strided_tensors_and_weights() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    layer.weight.data = layer.weight.data.flip(-1)
    check(layer, rand(2, 3, 7, 6).to(memory_format=torch.channels_last))
    check(layer, rand(2, 6, 7, 3).permute(0, 3, 2, 1))
    check(layer, rand(0, 3, 7, 6))
    check(nn.Conv2d(1, 5, 1), rand(1, 1, 7, 5).to(memory_format=torch.channels_last))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
def test_linear(bias: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    program = check(nn.Linear(5, 4, bias=bias), rand(*shape))
    assert "level1.linear" in program.text()


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 5), (5, 2)),
        ((2, 3, 5), (2, 5, 4)),
        ((2, 1, 3, 5), (4, 5, 2)),
        ((5,), (5, 2)),
        ((3, 5), (5,)),
        ((5,), (5,)),
        ((2, 3, 5), (5,)),
    ],
)
def test_matmul(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = rand(*shapes[0]), rand(*shapes[1], seed=1)
    check(torch.matmul, a, b)
    check(lambda a, w: a @ w, a, w=b)


def test_matmul_forms() -> None:
    c, a, b = rand(2), rand(3, 5), rand(5, 2, seed=1)
    check(lambda c, a, b: (torch.addmm(c, a, b), torch.addmm(c, a, b, beta=0.5, alpha=2), torch.mm(a, b)), c, a, b)
    check(lambda a, w, c: torch.addmm(c, a, w), a, w=b, c=c)
    check(lambda a, b: torch.baddbmm(a.sum(), a[None], b[None]), a, b)
    check(lambda a, b: a @ b, torch.tensor([[1, -2], [3, 4]]), torch.tensor([[5, 6], [7, -8]]))


POOLS: dict[str, Any] = {
    "max": nn.MaxPool2d(2),
    "max_pad": nn.MaxPool2d(3, 2, padding=1),
    "max_ceil": nn.MaxPool2d(2, 2, ceil_mode=True),
    "max_ceil_pad": nn.MaxPool2d((3, 2), (2, 3), padding=1, ceil_mode=True),
    "max_dilated": nn.MaxPool2d(2, 1, dilation=(2, 3)),
    "avg": nn.AvgPool2d(2),
    "avg_pad": nn.AvgPool2d(3, 2, padding=1),
    "avg_exclude": nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
    "avg_ceil": nn.AvgPool2d(2, 2, padding=1, ceil_mode=True),
    "avg_ceil_exclude": nn.AvgPool2d(2, 2, padding=1, ceil_mode=True, count_include_pad=False),
    "avg_ceil_wide": nn.AvgPool2d(3, (3, 2), ceil_mode=True),
    "avg_divisor": nn.AvgPool2d(2, divisor_override=1),
    "avg_divisor_ceil": nn.AvgPool2d(2, 2, padding=1, ceil_mode=True, divisor_override=3),
    "k1_s2_ceil": nn.AvgPool2d(1, 2, ceil_mode=True),
    "adaptive": nn.AdaptiveAvgPool2d(1),
    "adaptive_odd": nn.AdaptiveAvgPool2d((3, 2)),
    "adaptive_keep": nn.AdaptiveAvgPool2d((None, 2)),
    "adaptive_larger": nn.AdaptiveAvgPool2d((12, 2)),
    "adaptive_max": nn.AdaptiveMaxPool2d((3, 2)),
    "lp": nn.LPPool2d(2, 2),
}


@pytest.mark.parametrize("name", POOLS)
def test_pool(name: str) -> None:
    check(lambda *xs: [POOLS[name](x) for x in xs], *[rand(2, 3, *size) - 1 for size in ((5, 5), (8, 6), (17, 4))])


def test_pools_of_other_ranks() -> None:
    x = rand(2, 3, 7) - 5
    check(lambda x: (F.max_pool1d(x, 3, 2, 1), F.avg_pool1d(x, 3, 2, 1, True), F.adaptive_avg_pool1d(x, 7)), x)
    check(
        lambda x: (F.max_pool3d(x, 2), F.avg_pool3d(x, 2, 1), F.adaptive_avg_pool3d(x, (1, 2, 1))), rand(1, 2, 4, 4, 3)
    )
    check(nn.MaxPool2d(2), rand(3, 5, 5))
    check(nn.MaxPool2d(2, padding=1), torch.full((1, 1, 4, 4), -1.0))
    check(nn.MaxPool2d(2), torch.tensor([[[[1.0, float("nan")], [3.0, 4.0]]]]))
    check(nn.AvgPool2d(2), rand(0, 3, 4, 4))


def norms() -> dict[str, tuple[Any, tuple[int, ...]]]:
    torch.manual_seed(0)
    found = {
        "batch1d": (nn.BatchNorm1d(3), (4, 3)),
        "batch1d_length": (nn.BatchNorm1d(3, eps=1e-3), (4, 3, 5)),
        "batch2d": (nn.BatchNorm2d(3), (2, 3, 4, 5)),
        "batch_plain": (nn.BatchNorm2d(3, affine=False), (2, 3, 4, 5)),
        "layer": (nn.LayerNorm(5), (2, 3, 5)),
        "layer_two": (nn.LayerNorm((3, 5)), (2, 3, 5)),
        "layer_plain": (nn.LayerNorm(5, elementwise_affine=False), (2, 3, 5)),
        "layer_no_bias": (nn.LayerNorm(5, bias=False), (2, 3, 5)),
        "group": (nn.GroupNorm(2, 4), (2, 4, 3, 5)),
        "group_plain": (nn.GroupNorm(2, 4, affine=False), (2, 4, 3)),
        "instance": (nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 5)),
        "instance_tracked": (nn.InstanceNorm1d(3, track_running_stats=True), (2, 3, 4)),
        "rms": (nn.RMSNorm(5), (2, 3, 5)),
        "local_response": (nn.LocalResponseNorm(2), (2, 3, 4, 4)),
    }
    for layer, _ in found.values():
        for name, value in [*layer.named_parameters(), *layer.named_buffers()]:
            if value is not None and value.is_floating_point():
                value.data = torch.rand_like(value) + (0.5 if name == "running_var" else 0)
    return found


@pytest.mark.parametrize("name", list(norms()))
def test_normalisation(name: str) -> None:
    layer, shape = norms()[name]
    check(layer, rand(*shape) * 2 + 1)


def test_prelu_and_dropout() -> None:
    check(nn.Sequential(nn.PReLU(3, 0.3), nn.Dropout(0.9), nn.PReLU(), nn.Dropout2d(0.5)), rand(2, 3, 4, 4))


def test_attention() -> None:
    q, k, v = rand(2, 4, 3, 8), rand(2, 4, 5, 8, seed=1), rand(2, 4, 5, 6, seed=2)
    mask = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), q, k, v)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3), q, k, v)
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, m=mask)
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, m=rand(3, 5))
    check(lambda x: torch.ops.aten._safe_softmax(x, 1), torch.tensor([[1.0, -torch.inf], [-torch.inf, -torch.inf]]))


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
