"""torch.nn.functional.interpolate: every mode, corners, sizes, factors and antialiasing, against eager and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
import torch.nn.functional as F  # noqa: E402

from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402
from tests.support.torch_oracle import Call, check, rand  # noqa: E402

pytestmark = pytest.mark.must_run

SHAPES = {1: (2, 3, 9), 2: (2, 3, 7, 5), 3: (1, 2, 5, 4, 3)}
SIZES: list[dict[str, Any]] = [
    {"size": 4}, {"size": 11}, {"scale_factor": 2.0}, {"scale_factor": 0.5}, {"scale_factor": 1.7},
    {"scale_factor": 0.6, "recompute_scale_factor": True},
]  # fmt: skip
PLAIN = [
    (mode, n, corners)
    for mode, ranks, ends in (
        ("nearest", (1, 2, 3), (None,)), ("nearest-exact", (1, 2, 3), (None,)), ("area", (1, 2, 3), (None,)),
        ("linear", (1,), (False, True)), ("bilinear", (2,), (False, True)), ("trilinear", (3,), (False, True)),
        ("bicubic", (2,), (False, True)),
    )
    for n in ranks
    for corners in ends
]  # fmt: skip


@pytest.mark.parametrize(("mode", "n", "corners"), PLAIN)
def test_every_mode(mode: str, n: int, corners: bool | None) -> None:
    for size in SIZES:
        check(lambda x, s=size: F.interpolate(x, mode=mode, align_corners=corners, **s), rand(*SHAPES[n]))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
def test_antialiased(mode: str, corners: bool) -> None:
    sizes: list[dict[str, Any]] = [*SIZES, {"size": (2, 9)}, {"size": (7, 2)}, {"scale_factor": (0.3, 1.9)}]
    for size in sizes:
        for dtype in (torch.float32, torch.float64):
            x = rand(2, 3, 7, 5, dtype=dtype)
            check(lambda x, s=size: F.interpolate(x, mode=mode, align_corners=corners, antialias=True, **s), x)


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"), reason="a newer PyTorch has this mode")
def test_lanczos() -> None:
    for size in SIZES:
        for dtype in (torch.float32, torch.float64):
            x = rand(2, 3, 7, 5, dtype=dtype)
            check(lambda x, s=size: F.interpolate(x, mode="lanczos", antialias=True, **s), x)


def triangle(n: int, out: int) -> Any:
    """(out, n) weights of the bilinear filter, widened when it shrinks, as Pillow has it."""
    scale = n / out
    wide = max(scale, 1.0)
    centers = (np.arange(out) + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs((np.arange(n) + 0.5)[None] - centers[:, None]) / wide)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize(("shape", "size"), [((4, 4), (2, 2)), ((9, 6), (4, 2)), ((8, 1), (3, 1)), ((1, 8), (1, 3))])
def test_antialiased_by_hand(shape: tuple[int, int], size: tuple[int, int]) -> None:
    """Of images one element wide, too, where PyTorch's own kernel (2.13) is wrong."""
    x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(1, 1, *shape)
    program = load(Call(lambda v: F.interpolate(v, size=size, mode="bilinear", antialias=True)), torch.from_numpy(x))
    want = triangle(shape[0], size[0]) @ x[0, 0].astype(np.float64) @ triangle(shape[1], size[1]).T
    np.testing.assert_allclose(evaluate(program, [x])[0][0, 0], want, rtol=1e-6)
    if shape == (4, 4):
        np.testing.assert_allclose(want.ravel(), [3.571, 5.143, 9.857, 11.429], atol=1e-3)


def test_half_precision_and_layouts() -> None:
    x = rand(1, 3, 6, 8, dtype=torch.float16)
    check(lambda v: F.interpolate(v, size=(3, 5), mode="bilinear"), x)
    x = rand(1, 3, 6, 8).to(memory_format=torch.channels_last)
    check(lambda v: F.interpolate(v, size=(3, 5), mode="bicubic", antialias=True), x)
