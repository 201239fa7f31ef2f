"""PT2E graphs, as torchao's convert_pt2e leaves them, against PyTorch's reference and integers in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
from torch import nn  # noqa: E402
from torch.ao.quantization.fx import _decomposed  # noqa: E402, F401  (registers the operators)

import cuvil  # noqa: E402
from cuvil_hw.errors import Unsupported  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402

q = torch.ops.quantized_decomposed
# scale, zero point, lowest, highest, dtype
X = (0.05, 131, 0, 255, torch.uint8)
H = (0.1, 0, 0, 255, torch.uint8)
Y = (0.5, -3, -128, 127, torch.int8)


def through(x: Any, grid: tuple[Any, ...]) -> Any:
    return q.dequantize_per_tensor(q.quantize_per_tensor(x, *grid), *grid)


class Quantized(nn.Module):
    """conv (per channel) → relu → max pool → linear (per channel), activations per tensor; integers come out."""

    def __init__(self, bits: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.low, self.high = -(1 << (bits - 1)) + 1, (1 << (bits - 1)) - 1  # narrow range
        for name, shape in (("conv", (4, 2, 3, 3)), ("linear", (5, 16))):
            self.register_buffer(f"{name}_w", torch.randint(self.low, self.high + 1, shape, dtype=torch.int8))
            self.register_buffer(f"{name}_s", (torch.rand(shape[0]) + 0.5) / self.high)
            self.register_buffer(f"{name}_z", torch.zeros(shape[0], dtype=torch.int64))
            self.register_buffer(f"{name}_b", torch.randn(shape[0]) * 0.1)

    def weight(self, name: str) -> Any:
        parts = (getattr(self, f"{name}_{p}") for p in "wsz")
        return q.dequantize_per_channel(*parts, 0, self.low, self.high, torch.int8)

    def forward(self, x: Any) -> Any:
        x = nn.functional.conv2d(through(x, X), self.weight("conv"), self.conv_b, padding=1).relu()
        x = nn.functional.max_pool2d(through(x, H), 2)
        x = nn.functional.linear(through(x.flatten(1), H), self.weight("linear"), self.linear_b)
        return q.quantize_per_tensor(x, *Y)


def integers(m: Quantized, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The network in NumPy: exact integer sums, each scaled and rounded once."""

    def rounded(v: Any, grid: tuple[Any, ...]) -> Any:
        return np.clip(np.rint(v) + grid[1], grid[2], grid[3]).astype(np.int64)

    w, s, b = (getattr(m, f"conv_{p}").numpy().astype(np.float64) for p in "wsb")
    a = rounded(x.astype(np.float32) / np.float32(X[0]), X) - X[1]
    a = np.pad(a, [(0, 0), (0, 0), (1, 1), (1, 1)])
    view = np.lib.stride_tricks.sliding_window_view(a, (3, 3), axis=(2, 3))
    sums = np.einsum("nchwij,ocij->nohw", view, w.astype(np.int64))
    real = sums * (X[0] * s)[:, None, None] + b[:, None, None]
    a = rounded(np.maximum(real, 0) / H[0], H) - H[1]
    a = a.reshape(*a.shape[:2], a.shape[2] // 2, 2, a.shape[3] // 2, 2).max((3, 5)).reshape(len(a), -1)
    w, s, b = (getattr(m, f"linear_{p}").numpy().astype(np.float64) for p in "wsb")
    return rounded((a @ w.astype(np.int64).T * (H[0] * s) + b) / Y[0], Y)


@pytest.mark.parametrize(("bits", "targets"), [(8, ("cpu", "pynq-z2")), (4, ("cpu", "mlu370-x4"))])
def test_a_quantized_network_is_integer_on_every_target(bits: int, targets: tuple[str, ...]) -> None:
    model = Quantized(bits)
    x = torch.randn((6, 2, 4, 4), generator=torch.Generator().manual_seed(1)) * 2
    results = {}
    for target in targets:
        program = cuvil.compile(model, target, example_inputs=x[:1])
        text = program.ir
        assert "level1.rescale" in text
        assert text.count("level1.quantize") == 1  # at the border
        assert "level1.dequantize" not in text
        results[target] = program(x.numpy())
        assert results[target].dtype == np.int8
    assert all(np.array_equal(r, results["cpu"]) for r in results.values())
    for want in (integers(model, x.numpy()), model(x).numpy()):
        difference = np.abs(results["cpu"].astype(int) - want)
        assert difference.max() <= 1
        assert (difference == 0).mean() > 0.9
    assert len(np.unique(results["cpu"])) > 8


def reference(module: nn.Module, x: Any) -> Any:
    return evaluate(load(module, x), [x.numpy()])[0]


class Through(nn.Module):
    def __init__(self, *grid: Any) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, x: Any) -> Any:
        return q.quantize_per_tensor(x, *self.grid)


@pytest.mark.parametrize(
    ("grid", "dtype"),
    [
        ((0.25, 3, 0, 255, torch.uint8), "u8"),
        ((0.25, 0, -127, 127, torch.int8), "i8"),
        ((0.25, 2, 0, 15, torch.uint8), "u4"),
        ((0.5, -1, -8, 7, torch.int8), "i4"),
        ((0.25, 0, -30000, 30000, torch.int16), "i16"),
        ((2.0**-20, 0, -(1 << 31), (1 << 31) - 1, torch.int32), "i32"),
    ],
)
def test_ranges_of_integers(grid: tuple[Any, ...], dtype: str) -> None:
    x = torch.linspace(-60, 60, 97)
    assert load(Through(*grid), x).outputs[0][1].dtype == dtype
    np.testing.assert_array_equal(reference(Through(*grid), x), Through(*grid)(x).numpy())


def test_channels_along_any_axis_and_tensors_as_parameters() -> None:
    class Channels(nn.Module):
        def forward(self, x: Any) -> Any:
            scales, zeros = torch.tensor([0.5, 0.25, 0.125]), torch.tensor([1, 0, -2])
            a = q.quantize_per_channel(x, scales, zeros, -1, -128, 127, torch.int8)
            a = q.dequantize_per_channel(a, scales, zeros, -1, -128, 127, torch.int8)
            one = (torch.tensor(0.5), torch.tensor(4), 0, 255, torch.uint8)
            return q.dequantize_per_tensor.tensor(q.quantize_per_tensor.tensor(a, *one), *one)

    x = torch.linspace(-20, 20, 60).reshape(4, 5, 3)
    np.testing.assert_array_equal(reference(Channels(), x), Channels()(x).numpy())


def test_dynamic_quantization_is_refused() -> None:
    class Dynamic(nn.Module):
        def forward(self, x: Any) -> Any:
            scale, zero = q.choose_qparams.tensor(x, 0, 255, 1e-6, torch.uint8)
            return q.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)

    with pytest.raises(Unsupported) as caught:
        load(Dynamic(), torch.ones(3))
    assert "choose_qparams" in str(caught.value)


class Ties(nn.Module):
    """Means, halves and sums on grids that are powers of two: a quarter of the numbers lie between two integers."""

    def forward(self, x: Any, y: Any) -> Any:
        grid = (0.5, 3, -128, 127, torch.int8)
        x, y = through(x, grid), through(y, grid)
        parts = nn.functional.avg_pool2d(x, 2), x * 0.25, (x - y) / 2, (x * y).relu(), nn.functional.leaky_relu(x, 0.25)
        coarse = (4.0, 3, -128, 127, torch.int8)
        return tuple(q.quantize_per_tensor(p, *(coarse if i == 3 else grid)) for i, p in enumerate(parts))


def test_ties_go_to_even_as_in_torch() -> None:
    rng = np.random.default_rng(3)
    x, y = (np.float32(rng.integers(-40, 40, (1, 2, 6, 6)) / 2) for _ in range(2))
    with torch.no_grad():
        want = Ties()(torch.from_numpy(x), torch.from_numpy(y))
    with cuvil.compile(Ties(), "cpu", (x, y)) as program:
        for got, right in zip(program(x, y), want, strict=True):
            np.testing.assert_array_equal(got, right.numpy())
