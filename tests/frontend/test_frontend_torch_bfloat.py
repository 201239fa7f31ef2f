"""bfloat16 inside a model whose inputs and outputs have other types, against eager, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")

import cuvil  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402
from tests.support.torch_oracle import Call, rand  # noqa: E402

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]

SLOPES = torch.tensor([0.7, 0.33, 0.123])


def alibi(mask: Any) -> Any:
    """As Falcon has it."""
    steps = ((mask.cumsum(-1) - 1) * mask)[:, None, :]
    return (SLOPES[..., None].bfloat16() * steps).reshape(-1, 1, mask.shape[-1]).float()


def mixed(x: Any) -> Any:
    y = x.bfloat16()
    z = (y * 3 + y.exp()).transpose(0, 1)
    return z.float(), (z > y.T), torch.cat([z, y.T]).sum(0).to(torch.float32)


def numbers() -> Any:
    """Every pattern of the upper half of a float with ties and what is beside them; subnormal ones left out."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = np.concatenate([high | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).astype(np.uint32)
    x = bits.view(np.float32)
    return torch.from_numpy(x[~(np.abs(x) < 2.0**-126)])


def same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(got, want.numpy())


def test_rounding_by_the_meaning_and_compiled() -> None:
    x, module = numbers(), Call(lambda v: v.bfloat16().float())
    same(evaluate(load(module, x), [x.numpy()])[0], module(x))
    with cuvil.compile(module, "cpu", example_inputs=x) as program:
        same(program(x.numpy()), module(x))


@pytest.mark.parametrize(("f", "x"), [(alibi, torch.tensor([[1] * 300, [1] * 150 + [0] * 150])), (mixed, rand(7, 7))])
def test_inside_a_model(f: Any, x: Any) -> None:
    want = f(x)
    got = evaluate(load(Call(f), x), [x.numpy()])
    for g, w in zip(got, want if isinstance(want, tuple) else [want], strict=True):
        same(g, w)


def test_ports_are_refused() -> None:
    for f, x in ((lambda v: v.bfloat16(), rand(3)), (lambda v: v.float(), rand(3).bfloat16())):
        with pytest.raises(cuvil.Unsupported, match="bfloat16 is not supported"):
            load(Call(f), x)
