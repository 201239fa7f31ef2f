"""Real architectures in plain torch code, written from the papers, with random weights."""

from __future__ import annotations

import torch
from torch import nn

from .language import BertTiny, Gpt2Tiny, LstmTagger
from .mobile import EfficientNetB0, MobileNetV2, MobileNetV3Small
from .resnet import ResNet18
from .vision import ConvNeXtTiny, UNet, ViTTiny


def settled(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights that keep the size of activations, and norms that all do something; in eval mode."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, nn.Conv2d | nn.Linear | nn.ConvTranspose2d):
                weight = m.weight
                fan_in = weight[0].numel() if not isinstance(m, nn.ConvTranspose2d) else weight.shape[0]
                weight.normal_(0, (1.5 / fan_in) ** 0.5, generator=rng)
                if m.bias is not None:
                    m.bias.normal_(0, 0.1, generator=rng)
            elif isinstance(m, nn.BatchNorm2d | nn.LayerNorm):
                m.weight.uniform_(0.6, 1.4, generator=rng)
                m.bias.normal_(0, 0.2, generator=rng)
            if isinstance(m, nn.BatchNorm2d):
                assert m.running_mean is not None
                assert m.running_var is not None
                m.running_mean.normal_(0, 0.3, generator=rng)
                m.running_var.uniform_(0.5, 2, generator=rng)
    return model.eval()


__all__ = [
    "BertTiny",
    "ConvNeXtTiny",
    "EfficientNetB0",
    "Gpt2Tiny",
    "LstmTagger",
    "MobileNetV2",
    "MobileNetV3Small",
    "ResNet18",
    "UNet",
    "ViTTiny",
    "settled",
]
