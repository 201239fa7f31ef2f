"""Tables whose index is computed from the input, on the FPGA targets, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import cuvil

pytestmark = pytest.mark.needs("g++", "ortools", "torch")
torch = pytest.importorskip("torch")

TABLE = torch.arange(9.0) ** 1.5
ROWS = torch.arange(36.0).reshape(9, 4)


def places(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).clamp(0, 8).long()


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "element by element": lambda x: TABLE[places(x)],
    "rows": lambda x: ROWS[places(x)],
    "after a sum": lambda x: TABLE[places(x.sum(1))],
    "inside a sum": lambda x: (TABLE[places(x)] * x).sum(1),
    "before a layer": lambda x: TABLE[places(x)] @ ROWS[:6],
    "twice": lambda x: TABLE[places(x)] * TABLE[places(x.flip(1))],
    "the input itself": lambda x: torch.gather(x, 1, places(x).clamp(0, 5)),
}


class Module(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return CASES[self.name](x)


RUNS = [(name, "pynq-z2", "sim") for name in CASES] + [("twice", "agilex", "sim-sycl")]


@pytest.mark.parametrize(("name", "target", "interface"), RUNS)
def test_index_computed_on_the_device(name: str, target: str, interface: str) -> None:
    module = Module(name).eval()
    x = np.random.default_rng(0).normal(1, 1.5, (4, 6)).astype(np.float32)
    with cuvil.compile(module, target, x[:1], precision="float32", interface=interface) as program:
        got = np.asarray(program(x))
    np.testing.assert_allclose(got, module(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)
