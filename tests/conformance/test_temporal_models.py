"""Large networks in the temporal style, with the bits of the processor and the cycles of the simulation.

`make test` runs one classifier and one detector."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.target.profile import load_profile
from tests.support.zoo import settled
from tests.support.zoo.detectors import Rfb320, TinyYolo
from tests.support.zoo.mobile import MobileNetV2
from tests.support.zoo.resnet import ResNet18

pytestmark = [pytest.mark.slow, pytest.mark.needs("g++", "cc", "ortools")]


@pytest.mark.share(target=6)
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
    assert report["latency"]["cycles"] == pytest.approx(made[target].timing().cycles, rel=0.02)


@pytest.mark.share(target=6)
@pytest.mark.parametrize("target", ["pynq-z2", "kv260", "zcu104"])
@pytest.mark.parametrize(("network", "size"), [(TinyYolo, (416, 416)), (Rfb320, (240, 320))])
def test_detectors_run_temporally(network: type[nn.Module], size: tuple[int, int], target: str) -> None:
    """On large boards the small one is faster spatially; here all are temporal."""
    model = settled(network())
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    profile = load_profile(target)
    temporal = replace(profile, settings={**profile.settings, "style": "temporal"})
    made = cuvil.compile_all(model, [temporal, "cpu"], x[:1], calibration=x, precision="int8")
    report = made[target].report
    assert report["style"] == "temporal"
    assert all("bound by " in layer["schedule"] for layer in report["layers"])
    got, want = (made[t].run(x[:1].numpy()).outputs for t in (target, "cpu"))
    assert [np.array_equal(a, b) for a, b in zip(got, want, strict=True)] == [True] * len(want)
    assert report["latency"]["cycles"] == pytest.approx(made[target].timing().cycles, rel=0.02)
