"""Real architectures (tests/support/zoo) on the CPU target against eager PyTorch, within the bound that
docs/numerics.md states for whole networks. Compile times are printed: pytest -rP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
from torch import nn  # noqa: E402

import cuvil  # noqa: E402
from tests.support import zoo  # noqa: E402

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]

# docs/numerics.md: of the largest value of an output, for networks in f32.
BOUND = 1e-5
RNG = torch.Generator().manual_seed(7)


def image(size: int, n: int = 1) -> Any:
    return torch.rand(n, 3, size, size, generator=RNG)


def words(count: int, *shape: int) -> Any:
    return torch.randint(1, count, shape, generator=RNG)


MASK = torch.tensor([[1] * 16, [1] * 9 + [0] * 7])

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], int]] = {
    # name: class, inputs, parameters as the paper or its reference code counts them (0: sizes are our own)
    "ResNet-18": (zoo.ResNet18, (image(64),), 11_689_512),
    "MobileNetV2": (zoo.MobileNetV2, (image(64),), 3_504_872),
    "MobileNetV3-Small": (zoo.MobileNetV3Small, (image(64),), 2_542_856),
    "EfficientNet-B0": (zoo.EfficientNetB0, (image(64),), 5_288_548),
    "ViT-Tiny": (lambda: zoo.ViTTiny(64), (image(64),), 0),
    "ConvNeXt-T": (zoo.ConvNeXtTiny, (image(32),), 28_589_128),
    "U-Net": (zoo.UNet, (image(32, 2),), 0),
    "BERT-Tiny": (zoo.BertTiny, (words(30522, 2, 16), MASK, words(2, 2, 16) % 2), 4_385_920),
    "GPT-2": (zoo.Gpt2Tiny, (words(5000, 2, 16),), 0),
    "LSTM tagger": (zoo.LstmTagger, (words(1000, 2, 10),), 0),
}


@pytest.mark.share(name=2)
@pytest.mark.parametrize("name", list(MODELS))
def test_model(name: str, record_property: Callable[[str, object], None]) -> None:
    build, inputs, parameters = MODELS[name]
    torch.manual_seed(0)
    model = zoo.settled(build())
    count = sum(p.numel() for p in model.parameters())
    if parameters:
        assert count == parameters
    start = time.perf_counter()
    program = cuvil.compile(model, "cpu", example_inputs=inputs)
    seconds = time.perf_counter() - start
    record_property("compile_seconds", seconds)
    others = tuple(x if x is MASK else x.flip(-1) for x in inputs)
    for given in (inputs, others):
        with torch.no_grad():
            want = model(*given)
        got = program(*given)
        pairs = list(zip(got, want, strict=True)) if isinstance(want, tuple) else [(got, want)]
        for g, w in pairs:
            largest = float(w.abs().max())
            assert 0.05 < float(w.std()) < 100  # the network neither dies out nor blows up
            assert g.shape == w.shape
            error = float((g - w).abs().max()) / largest
            print(f"{name}: {count:,} parameters, compiled in {seconds:.1f} s, error {error:.1e} of {largest:.3g}")
            assert error <= BOUND


def test_inputs_matter() -> None:
    """What the mask hides changes nothing, what it shows does: the comparison above isn't of constants."""
    ids, mask = words(30522, 2, 16), MASK
    model = zoo.settled(zoo.BertTiny())
    program = cuvil.compile(model, "cpu", example_inputs=(ids, mask, ids % 2))
    changed = ids.clone()
    changed[1, 12] = 5
    first, second = program(ids, mask, ids % 2)[1], program(changed, mask, ids % 2)[1]
    assert torch.equal(first, second)
    changed[1, 2] = 6
    assert not torch.equal(first, program(changed, mask, ids % 2)[1])
