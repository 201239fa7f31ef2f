"""Small models made of PyTorch's own layers and functions, compiled by `cuvil.compile` and by `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tools.architecture_cases import Case, floats, ints, settled


class Function(nn.Module):
    """A function of tensors and of a layer that it is given."""

    def __init__(self, f: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.f, self.layers = f, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Any:
        return self.f(x, *self.layers)


class Queries(nn.Module):
    """DETR's decoder: learned queries look at each other, then at what an encoder gives."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(4, 16))
        self.layer = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), 1)

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.queries.expand(len(x), -1, -1), x)


class Rotary(nn.Module):
    """Positions as Llama's first code turns them: pairs of features are complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(8.0), 1.0 / 100 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Any:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turn).flatten(-2)


class Experts(nn.Module):
    """Each expert takes the tokens that are routed to it, by boolean masks, as most hand-written mixtures do."""

    def __init__(self, count: int = 4, top: int = 2) -> None:
        super().__init__()
        self.top, self.gate = top, nn.Linear(8, count)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(count))

    def forward(self, x: Tensor) -> Any:
        flat = x.reshape(-1, 8)
        weights, chosen = F.softmax(self.gate(flat), -1).topk(self.top)
        result = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == i)
            result.index_add_(0, token, expert(flat[token]) * weights[token, rank, None])
        return result.view_as(x)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 8, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Any:
        packed = pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


class Bag(nn.Module):
    """A recommender: bags of categories, pairwise products, a tower."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(60, 8, mode=m) for m in ("sum", "mean", "max"))
        self.top = nn.Linear(9, 1)

    def forward(self, x: Tensor) -> Any:
        pooled = torch.stack([bag(x) for bag in self.bags], 1)
        return self.top((pooled @ pooled.transpose(1, 2)).flatten(1))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        a = F.relu(self.down(x))
        b = F.relu(self.mid(F.max_pool2d(a, 2)))
        return self.out(torch.cat([self.up(b), a], 1))


class Recurrence(nn.Module):
    """A GRU encoder and a decoder that feeds its own output back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell, self.out = nn.GRU(6, 8), nn.GRUCell(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        _, h = self.encoder(x)
        h, y, steps = h[0], torch.zeros(x.shape[1], 4), []
        for _ in range(4):
            h = self.cell(y, h)
            y = self.out(h)
            steps.append(y)
        return torch.stack(steps)


def spectrogram(x: Tensor) -> Any:
    spectrum = torch.stft(x, 32, 8, window=torch.hann_window(32), return_complex=True)
    return spectrum.abs().pow(2).clamp(min=1e-6).log()


def denoised(x: Tensor) -> Any:
    window = torch.hann_window(32)
    spectrum = torch.stft(x, 32, 8, window=window, return_complex=True)
    return torch.istft(spectrum * torch.sigmoid(spectrum.abs()), 32, 8, window=window, length=x.shape[-1])


def spectral_convolution(x: Tensor, layer: nn.Module) -> Any:
    """A Fourier neural operator's layer: the lowest modes are mixed."""
    modes = torch.fft.rfft(x)
    low = torch.complex(layer(modes.real[..., :4]), layer(modes.imag[..., :4]))
    return torch.fft.irfft(F.pad(low, (0, modes.shape[-1] - 4)), n=x.shape[-1])


def attention(x: Tensor, layer: Any) -> Any:
    return layer(x, x, x)


def _mixer() -> nn.Module:
    tokens, channels = nn.Linear(9, 9), nn.Linear(8, 8)
    return Function(lambda x, t, c: x + c((x + t(x.mT).mT).tanh()), tokens, channels)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _upscaled() -> nn.Module:
    first, second = nn.Conv2d(1, 8, 5, padding=2), nn.Conv2d(8, 4, 3, padding=1)
    return nn.Sequential(first, nn.Tanh(), second, nn.PixelShuffle(2))


def _dilated() -> nn.Module:
    return nn.Sequential(*(nn.Conv1d(4, 4, 2, dilation=2**i) for i in range(4)), nn.Softplus())


def near_prototypes(x: Tensor) -> Any:
    return torch.cdist(x, torch.arange(24.0).sin().view(4, 6)).softmax(-1)


def _cases() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]]:
    heads = lambda: Function(attention, nn.MultiheadAttention(16, 2, dropout=0.1))  # noqa: E731
    return {
        "TransformerDecoder, learned queries": (Queries, lambda: floats(2, 6, 16)),
        "TransformerEncoder": (_encoder, lambda: floats(2, 6, 16)),
        "MultiheadAttention": (heads, lambda: floats(5, 2, 16)),
        "rotary positions, complex": (Rotary, lambda: floats(2, 8, 8)),
        "FNet mixing": (lambda: Function(lambda x: torch.fft.fft2(x).real), lambda: floats(2, 6, 10)),
        "Fourier neural operator": (lambda: Function(spectral_convolution, nn.Linear(4, 4)), lambda: floats(2, 3, 20)),
        "spectrogram": (lambda: Function(spectrogram), lambda: floats(2, 128)),
        "stft mask, istft": (lambda: Function(denoised), lambda: floats(1, 128)),
        "mixture of experts, masks": (Experts, lambda: floats(2, 5, 8)),
        "LSTM, packed": (Packed, lambda: floats(2, 5, 6)),
        "LSTM": (lambda: nn.LSTM(6, 8, 2, bidirectional=True, dropout=0.2), lambda: floats(5, 2, 6)),
        "GRU encoder, GRUCell decoder": (Recurrence, lambda: floats(5, 2, 6)),
        "DLRM, EmbeddingBag": (Bag, lambda: ints(3, 5)),
        "prototypes, cdist": (lambda: Function(near_prototypes), lambda: floats(5, 6)),
        "U-Net": (Unet, lambda: floats(1, 3, 16, 16)),
        "MLP mixer": (_mixer, lambda: floats(2, 9, 8)),
        "ESPCN": (_upscaled, lambda: floats(1, 1, 8, 8)),
        "WaveNet": (_dilated, lambda: floats(1, 4, 32)),
    }


def _both(name: str, model: Callable[[], nn.Module], x: Callable[[], Tensor]) -> list[Case]:
    def make() -> tuple[nn.Module, dict[str, Any]]:
        torch.manual_seed(0)
        built = model()
        parameter = "src" if isinstance(built, nn.TransformerEncoder) else "x"
        return settled(built), {"" if isinstance(built, nn.Sequential | nn.LSTM) else parameter: x()}

    # Without that setting Dynamo leaves recurrent layers to PyTorch.
    recurrent = any(word in name for word in ("LSTM", "GRU"))
    return [Case(name, route, make) for route in ("compile", "torch.compile" + recurrent * ", allow_rnn")]


LAYERS: tuple[Case, ...] = tuple(c for name, (m, x) in _cases().items() for c in _both(name, m, x))

__all__ = ["LAYERS"]
