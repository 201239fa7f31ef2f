"""Mobile networks of inverted residual blocks: MobileNetV2 (Sandler et al. 2018, arXiv 1801.04381, table 2),
MobileNetV3-Small (Howard et al. 2019, arXiv 1905.02244, table 2), EfficientNet-B0 (Tan and Le 2019, arXiv 1905.11946,
table 1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Activation = Callable[[], nn.Module]


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int, groups: int, act: Activation | None) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([act()] if act is not None else []))


class SqueezeExcite(nn.Module):
    """Channels scaled by gates computed from their means."""

    def __init__(self, channels: int, hidden: int, act: Activation, gate: Activation) -> None:
        super().__init__()
        self.gates = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, hidden, 1), act(), nn.Conv2d(hidden, channels, 1), gate()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gates(x)


class InvertedResidual(nn.Module):
    """1×1 widening, depthwise convolution, optional squeeze-and-excitation, 1×1 narrowing without activation."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        kernel: int,
        stride: int,
        act: Activation,
        excite: nn.Module | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_bn(inputs, hidden, 1, 1, 1, act)] if hidden != inputs else []
        layers.append(conv_bn(hidden, hidden, kernel, stride, hidden, act))
        if excite is not None:
            layers.append(excite)
        layers.append(conv_bn(hidden, outputs, 1, 1, 1, None))
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNetV2(nn.Module):
    # expansion, channels, blocks, stride of the first
    ROWS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_bn(3, 32, 3, 2, 1, nn.ReLU6)]
        inputs = 32
        for expansion, channels, blocks, first in self.ROWS:
            for i in range(blocks):
                layers.append(
                    InvertedResidual(inputs, inputs * expansion, channels, 3, first if i == 0 else 1, nn.ReLU6)
                )
                inputs = channels
        self.features = nn.Sequential(*layers, conv_bn(inputs, 1280, 1, 1, 1, nn.ReLU6))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.adaptive_avg_pool2d(self.features(image), 1).flatten(1))


class MobileNetV3Small(nn.Module):
    # kernel, hidden, channels, squeeze-and-excitation, hard swish, stride
    ROWS = (
        (3, 16, 16, True, False, 2),
        (3, 72, 24, False, False, 2),
        (3, 88, 24, False, False, 1),
        (5, 96, 40, True, True, 2),
        (5, 240, 40, True, True, 1),
        (5, 240, 40, True, True, 1),
        (5, 120, 48, True, True, 1),
        (5, 144, 48, True, True, 1),
        (5, 288, 96, True, True, 2),
        (5, 576, 96, True, True, 1),
        (5, 576, 96, True, True, 1),
    )

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_bn(3, 16, 3, 2, 1, nn.Hardswish)]
        inputs = 16
        for kernel, hidden, channels, excites, swish, stride in self.ROWS:
            squeezed = max(8, (hidden // 4 + 4) // 8 * 8)
            excite = SqueezeExcite(hidden, squeezed, nn.ReLU, nn.Hardsigmoid) if excites else None
            act = nn.Hardswish if swish else nn.ReLU
            layers.append(InvertedResidual(inputs, hidden, channels, kernel, stride, act, excite))
            inputs = channels
        self.features = nn.Sequential(*layers, conv_bn(inputs, 576, 1, 1, 1, nn.Hardswish))
        self.head = nn.Sequential(nn.Linear(576, 1024), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1024, classes))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.adaptive_avg_pool2d(self.features(image), 1).flatten(1))


class EfficientNetB0(nn.Module):
    # expansion, kernel, channels, blocks, stride of the first
    ROWS = (
        (1, 3, 16, 1, 1),
        (6, 3, 24, 2, 2),
        (6, 5, 40, 2, 2),
        (6, 3, 80, 3, 2),
        (6, 5, 112, 3, 1),
        (6, 5, 192, 4, 2),
        (6, 3, 320, 1, 1),
    )

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_bn(3, 32, 3, 2, 1, nn.SiLU)]
        inputs = 32
        for expansion, kernel, channels, blocks, first in self.ROWS:
            for i in range(blocks):
                hidden, stride = inputs * expansion, first if i == 0 else 1
                excite = SqueezeExcite(hidden, inputs // 4, nn.SiLU, nn.Sigmoid)
                layers.append(InvertedResidual(inputs, hidden, channels, kernel, stride, nn.SiLU, excite))
                inputs = channels
        self.features = nn.Sequential(*layers, conv_bn(inputs, 1280, 1, 1, 1, nn.SiLU))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(image).mean((2, 3)))
