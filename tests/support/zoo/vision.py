"""ViT-Tiny (Dosovitskiy et al. 2020, arXiv 2010.11929; the tiny size of Touvron et al. 2020, arXiv 2012.12877),
ConvNeXt-T (Liu et al. 2022, arXiv 2201.03545, section 2) and U-Net (Ronneberger et al. 2015, arXiv 1505.04597)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """x + attention of the normed x, then x + MLP of the normed x."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ViTTiny(nn.Module):
    def __init__(self, size: int, classes: int = 1000, patch: int = 16, width: int = 192, depth: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.5)
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.5)
        self.blocks = nn.Sequential(*(Block(width, 3) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    """x + scale · MLP of the normed depthwise 7×7 convolution, channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXtTiny(nn.Module):
    WIDTHS, DEPTHS = (96, 192, 384, 768), (3, 3, 9, 3)

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, eps=1e-6)]
        inputs = 96
        for width, depth in zip(self.WIDTHS, self.DEPTHS, strict=True):
            if width != inputs:
                layers += [ChannelNorm(inputs, eps=1e-6), nn.Conv2d(inputs, width, 2, 2)]
            layers += [NextBlock(width) for _ in range(depth)]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(inputs, eps=1e-6)
        self.head = nn.Linear(inputs, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.features(image).mean([-2, -1])))


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for source in (inputs, outputs):
        layers += [nn.Conv2d(source, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Two convolutions a level, max pools down, transposed convolutions up, a concatenation across each level."""

    def __init__(self, classes: int = 3, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip((3, *widths), widths, strict=False))
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(double_conv(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x, across = image, []
        for i, level in enumerate(self.down):
            x = level(F.max_pool2d(x, 2) if i else x)
            across.append(x)
        for grow, level, skip in zip(self.grow, self.up, across[-2::-1], strict=True):
            x = level(torch.cat([skip, grow(x)], 1))
        return self.head(x)
