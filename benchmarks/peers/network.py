"""What both drivers share: the network, made from the same stored weights, and the clocks."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn


def mlp(weights: Any, variant: int = 0) -> nn.Sequential:
    """Linear layers with ReLU between them: w0, b0, w1, b1 …, weights (out, in). Variants differ in every weight, so
    that nothing made for one of them serves another."""
    layers: list[nn.Module] = []
    count = sum(name.startswith("w") for name in weights.files)
    for n in range(count):
        w, b = (weights[f"{kind}{n}"] * (1 - variant / 64) for kind in "wb")
        linear = nn.Linear(w.shape[1], w.shape[0])
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(w))
            linear.bias.copy_(torch.from_numpy(b))
        layers += [linear, nn.ReLU()] if n + 1 < count else [linear]
    return nn.Sequential(*layers).eval()


def clocks() -> tuple[float, float]:
    """Seconds: on the wall, and of processors, child processes included."""
    used = os.times()  # in steps of 10 ms, unlike process_time
    return time.perf_counter(), time.process_time() + used.children_user + used.children_system
