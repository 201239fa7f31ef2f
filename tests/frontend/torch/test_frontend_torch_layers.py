"""Layers of PyTorch, imported and evaluated in NumPy, against torch eager."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from tests.support.torch_oracle import Twice, check, rand  # noqa: E402

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
