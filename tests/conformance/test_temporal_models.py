"""Networks of 224² images that no board holds spatially: they become temporal, with the bits of the processor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from tests.support.zoo import settled
from tests.support.zoo.mobile import MobileNetV2
from tests.support.zoo.resnet import ResNet18

pytestmark = [pytest.mark.slow, pytest.mark.needs("g++", "cc", "ortools")]


@pytest.mark.share(target=3)
@pytest.mark.parametrize("target", ["pynq-z2", "kv260", "zcu104"])
@pytest.mark.parametrize("network", [ResNet18, MobileNetV2])
def test_a_large_network_runs_temporally(network: type[nn.Module], target: str) -> None:
    model = settled(network())
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    made = cuvil.compile_all(model, [target, "cpu"], x[:1], calibration=x, precision="int8")
    report = made[target].report
    assert report["style"] == "temporal"
    assert report["layers"][0]["schedule"].startswith("engine")
    on_engine = [layer for layer in report["layers"] if layer["schedule"].startswith("engine")]
    share = sum(layer["cycles"] for layer in on_engine) / report["latency"]["cycles"]
    assert share > 0.99  # the vector unit only rescales what the last pool gives
    assert np.array_equal(made[target](x[:1].numpy()), made["cpu"](x[:1].numpy()))
