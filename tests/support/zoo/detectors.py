"""Detectors in the shape of tiny-YOLO v3 (416²) and of RFB-320 (240 × 320): random weights, as the zoo's others."""

from __future__ import annotations

import torch
from torch import nn


def _conv(ins: int, outs: int, kernel: int, stride: int = 1, dilation: int = 1, groups: int = 1) -> nn.Sequential:
    pad = dilation * (kernel // 2)
    conv = nn.Conv2d(ins, outs, kernel, stride, pad, dilation, groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs), nn.LeakyReLU(0.1) if groups == 1 and kernel > 1 else nn.ReLU())


class TinyYolo(nn.Module):
    """Two heads of 255 channels, 13² and 26²; the second reads an upsampled map beside an early one."""

    def __init__(self) -> None:
        super().__init__()
        widths, layers, ins = (16, 32, 64, 128, 256), [], 3
        for width in widths:
            layers += [_conv(ins, width, 3), nn.MaxPool2d(2)]
            ins = width
        self.early, self.pool = nn.Sequential(*layers[:-1]), layers[-1]
        same = (nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(2, 1))
        self.late = nn.Sequential(_conv(256, 512, 3), *same, _conv(512, 1024, 3), _conv(1024, 256, 1))
        self.coarse = nn.Sequential(_conv(256, 512, 3), nn.Conv2d(512, 255, 1))
        self.up = nn.Sequential(_conv(256, 128, 1), nn.Upsample(scale_factor=2))
        self.fine = nn.Sequential(_conv(384, 256, 3), nn.Conv2d(256, 255, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        early = self.early(x)
        late = self.late(self.pool(early))
        return self.coarse(late), self.fine(torch.cat([self.up(late), early], 1))


class _Separable(nn.Sequential):
    def __init__(self, ins: int, outs: int, stride: int = 1) -> None:
        super().__init__(_conv(ins, ins, 3, stride, groups=ins), _conv(ins, outs, 1))


class _Branches(nn.Module):
    """Three branches of dilated convolutions side by side, joined by a convolution, beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        n = channels // 8
        self.branches = nn.ModuleList(
            nn.Sequential(_conv(channels, n, 1), _conv(n, 2 * n, 3), _conv(2 * n, 2 * n, 3, 1, d)) for d in (2, 3, 5)
        )
        self.join, self.short = nn.Conv2d(6 * n, channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = self.join(torch.cat([branch(x) for branch in self.branches], 1))
        return torch.relu(joined + self.short(x))


class Rfb320(nn.Module):
    """Scores and boxes at four sizes of maps, from 30×40 on."""

    def __init__(self) -> None:
        super().__init__()
        s = _Separable
        first = (_conv(3, 16, 3, 2), s(16, 32), s(32, 32, 2), s(32, 32), s(32, 64, 2), s(64, 64), _Branches(64))
        self.stages = nn.ModuleList(
            [
                nn.Sequential(*first),
                nn.Sequential(s(64, 128, 2), s(128, 128), s(128, 128)),
                nn.Sequential(s(128, 256, 2), s(256, 256)),
                nn.Sequential(_conv(256, 64, 1), s(64, 256, 2)),
            ]
        )
        ends = ((64, 3), (128, 2), (256, 2), (256, 3))
        self.heads = nn.ModuleList(nn.Sequential(_conv(c, c, 3, groups=c), nn.Conv2d(c, 6 * n, 1)) for c, n in ends)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            found.append(head(x))
        return tuple(found)
