"""Complex numbers as pairs, Fourier transforms among them, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
import torch.nn.functional as F  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402
from tests.support.torch_oracle import Call, check, rand  # noqa: E402

pytestmark = pytest.mark.must_run

W = torch.hann_window(16)
TURN = torch.polar(torch.ones(4, 3), torch.arange(12.0).reshape(4, 3))


def z(x: Any) -> Any:
    return torch.view_as_complex(x)


def both(x: Any) -> Any:
    return torch.view_as_real(x)


def assigned(to: Any, source: Any) -> Any:
    to = to.clone()
    to[0] = source
    return to


NUMBERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "rotary": (lambda x: both(z(x.reshape(2, 4, 3, 2)) * TURN).flatten(2), (2, 4, 6)),
    "abs": (lambda x: z(x).abs(), (9, 2)),
    "abs, large": (lambda x: z(x * 1e30).abs(), (9, 2)),
    "angle": (lambda x: z(x).angle(), (9, 2)),
    "angle of reals": (lambda x: (x.angle(), (x * 0).angle()), (9, 2)),
    "over": (lambda x: both(z(x) / (1 + 2j) + 1j), (3, 2)),
    "over another": (lambda x: both(1 / z(x) - z(x) / TURN[:3, 0]), (3, 2)),
    "product": (lambda x: both(z(x) @ z(x).conj().T), (3, 4, 2)),
    "einsum": (lambda x: both(torch.einsum("bi,io->bo", z(x), TURN.T)), (2, 3, 2)),
    "with real": (lambda x: both(x[..., 0] * z(x) + x[..., 1] - z(x)), (3, 4, 2)),
    "cat, sum": (lambda x: torch.cat([z(x), TURN[:3]]).sum(0).imag, (3, 3, 2)),
    "index": (lambda x: both(z(x)[:, torch.tensor([2, 0])].roll(1, 0)), (3, 4, 2)),
    "exp": (lambda x: both(torch.exp(z(x))), (2, 3, 2)),
    "parts": (lambda x: torch.complex(x, x * 2).pow(2).real, (2, 7)),
    "where": (lambda x: both(torch.where(x[..., 0] > 0, z(x), 2j)), (3, 4, 2)),
    "cat with real": (lambda x: both(torch.cat([z(x), x[..., 0]])), (3, 4, 2)),
    "stack with real": (lambda x: both(torch.stack([x[..., 1], z(x), torch.ones(3, 4)], 1)), (3, 4, 2)),
    "pad with a number": (lambda x: both(F.pad(z(x), (1, 1), value=1.0)), (3, 4, 2)),
    "real assigned": (lambda x: both(assigned(z(x), x[0, :, 0])), (3, 4, 2)),
    "real scattered": (lambda x: both(torch.slice_scatter(z(x), x[:2, :, 1], 0, 1, 3)), (3, 4, 2)),
    "real sum": (lambda x: both(x.sum(0, dtype=torch.complex64)), (3, 4)),
    "equal constants": (lambda x: x.round() == torch.tensor([1, 1j]), (40, 2)),
    "equal": (lambda x: z(x.round()) == 1j, (40, 2)),
}
TRANSFORMS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "rfft": (lambda x: both(torch.fft.rfft(x)), (2, 9)),
    "rfft, long": (lambda x: both(torch.fft.rfft(x)), (1, 1000)),
    "fft2": (lambda x: torch.fft.fft2(x).real, (2, 6, 10)),
    "fft, ortho, axis": (lambda x: torch.fft.fft(x, dim=1, norm="ortho").imag, (2, 6, 3)),
    "fft, padded": (lambda x: both(torch.fft.fft(x, n=12)), (2, 7)),
    "ifft": (lambda x: both(torch.fft.ifft(z(x))), (2, 7, 2)),
    "irfft, odd": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=9), (2, 9)),
    "irfft2": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 1j), (2, 6, 8)),
    "irfft, long, even": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 1j, n=600), (1, 600)),
    "irfft, long, odd": (lambda x: torch.fft.irfft(torch.fft.rfft(x), n=603), (1, 603)),
    "low modes": (lambda x: torch.fft.irfft(F.pad(torch.fft.rfft(x)[..., :4], (0, 7))), (2, 20)),
    "shifted": (lambda x: torch.fft.fftshift(torch.fft.fft(x)).abs(), (2, 7)),
    "stft": (lambda x: torch.stft(x, 16, 4, window=W, return_complex=True).abs(), (2, 64)),
    "stft, plain": (
        lambda x: both(torch.stft(x, 16, 5, 8, W[:8], False, normalized=True, onesided=False, return_complex=True)),
        (64,),
    ),
    "istft": (
        lambda x: torch.istft(torch.stft(x, 16, 4, window=W, return_complex=True) * 0.5, 16, 4, window=W, length=60),
        (2, 64),
    ),
    "istft, longer": (
        lambda x: torch.istft(
            torch.stft(x, 16, 8, window=W, return_complex=True, normalized=True), 16, 8, window=W, normalized=True
        ),
        (2, 64),
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    f, shape = NUMBERS[name]
    check(f, rand(*shape))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    f, shape = TRANSFORMS[name]
    x = rand(*shape)
    # Rounding errors of a transform are those of its size.
    check(lambda v: f(v) / x.numel() ** 0.5, x)


def test_double_precision_and_what_numpy_says() -> None:
    x = rand(3, 30, dtype=torch.float64)
    program = check(lambda v: both(torch.fft.fft(v)), x)
    assert program.outputs[0][1].dtype == "f64"
    want = np.fft.fft(x.numpy())
    np.testing.assert_allclose(both(torch.fft.fft(x)).numpy(), np.stack([want.real, want.imag], -1), atol=1e-12)


def test_a_compiled_spectrum(tmp_path: Any) -> None:
    x = rand(2, 64)
    module = Call(lambda v: torch.stft(v, 16, 4, window=W, return_complex=True).abs())
    with cuvil.compile(module, "cpu", example_inputs=x) as program:
        torch.testing.assert_close(program(x), module(x), rtol=1e-5, atol=1e-5)


def test_quotients_over_the_whole_range() -> None:
    """Squares of these parts overflow or vanish; zeros, infinities and NaN as in torch."""
    inf, nan = float("inf"), float("nan")
    pairs = [
        (1e20, 1e20), (1, 1e-25), (1e-30 + 2e-30j, 3e-30 - 1e-30j), (-2e30j, 1e25j), (1e38 + 1e38j, 1 - 1e-20j),
        (3 + 4j, 2e-38 - 3e19j), (0, 1j), (1, 0), (1 - 2j, complex(-0.0, -0.0)), (0, 0), (inf, 1 + 1j), (1 + 1j, inf),
        (1, complex(0, -inf)), (nan, 1), (1, nan), (2, complex(inf, inf)),
    ]  # fmt: skip
    a, b = (both(torch.tensor(v, dtype=torch.complex64)) for v in zip(*pairs, strict=True))
    program = load(Call(lambda x, y: (both(z(x) / z(y)), both(z(y).reciprocal()))), (a, b))
    quotient, reciprocal = evaluate(program, [a.numpy(), b.numpy()])
    np.testing.assert_allclose(quotient, both(z(a) / z(b)).numpy(), rtol=1e-6)
    np.testing.assert_allclose(reciprocal, both(z(b).reciprocal()).numpy(), rtol=1e-6)
    finite = slice(0, 7)
    exact = np.array([complex(x) / complex(y) for x, y in pairs[finite]])
    np.testing.assert_allclose(quotient[finite].astype(float), np.stack([exact.real, exact.imag], -1), 1e-6, 1e-37)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "constant", "circular"])
def test_short_time_transforms_pad_as_told(mode: str) -> None:
    stft = torch.ops.aten.stft.center
    check(lambda x: both(stft(x, 16, 4, None, W, True, mode, False, True, True)) / 8, rand(2, 64))


def test_complex_ports_are_refused_with_a_way_that_works() -> None:
    with pytest.raises(cuvil.Unsupported, match="view_as_real"):
        load(Call(lambda x: torch.fft.fft(x)), rand(4))
    with pytest.raises(cuvil.Unsupported, match="view_as_real"):
        load(Call(lambda x: x.abs()), TURN)
    with pytest.raises(cuvil.Unsupported, match="real and imaginary parts"):
        load(Call(lambda x: torch.acos(z(x)).real), rand(4, 2))
