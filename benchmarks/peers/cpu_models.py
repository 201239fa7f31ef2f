"""The torch modules of benchmarks/cpu.py, with fixed weights, and the inputs of each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.zoo.language import BertTiny
from tests.support.zoo.mobile import MobileNetV2
from tests.support.zoo.resnet import ResNet18


def jet_mlp() -> nn.Module:
    """hls4ml's jet tagger: 16 features, 64, 32 and 32 neurons, 5 classes (arXiv 1804.06913)."""
    sizes = (16, 64, 32, 32)
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 5), nn.Softmax(-1))


class Lstm(nn.Module):
    """One layer of 64 over 32 steps of 32 features, and 10 classes of the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def fixed(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return make().eval()

    return made


MODULES: Mapping[str, Callable[[], nn.Module]] = {
    "jet_mlp": fixed(jet_mlp),
    "resnet18": fixed(ResNet18),
    "mobilenetv2": fixed(MobileNetV2),
    "bert_tiny": fixed(BertTiny),
    "lstm": fixed(Lstm),
}


def inputs_of(name: str) -> tuple[Any, ...]:
    draw = torch.Generator().manual_seed(1)
    match name:
        case "jet_mlp":
            return (torch.rand(1, 16, generator=draw),)
        case "resnet18" | "mobilenetv2":
            return (torch.rand(1, 3, 224, 224, generator=draw),)
        case "lstm":
            return (torch.rand(1, 32, 32, generator=draw),)
        case _:
            ids = torch.randint(1, 30522, (1, 128), generator=draw)
            return ids, torch.ones(1, 128, dtype=torch.int64), torch.zeros(1, 128, dtype=torch.int64)
