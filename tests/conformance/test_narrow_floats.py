"""Networks in bf16 and f16 on every target that has them: against the same numbers in f64, and against eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")

import cuvil  # noqa: E402

nn = torch.nn
pytestmark = [pytest.mark.needs("gcc", "g++"), pytest.mark.must_run]

STEP = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
NETWORKS = {
    "mlp": (
        lambda: nn.Sequential(
            nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)
        ),
        (4, 32),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3),
            nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 10), nn.Softmax(-1),
        ),
        (1, 1, 12, 12),
    ),
}  # fmt: skip


def within(have: Any, want: Any, step: float) -> bool:
    """The bound of docs/numerics.md."""
    off = (have.double() - want.double()).abs()
    return bool((off <= step * want.double().abs() + step * want.double().abs().max()).all())


@pytest.mark.share(name=2)
@pytest.mark.parametrize("target", ["cpu", "h100", "mlu270"])
@pytest.mark.parametrize("dtype", STEP, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, dtype: Any, target: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(11)
    model = make().eval().to(dtype)
    inputs = torch.randn(8, *shape).to(dtype)
    exact = copy.deepcopy(model).double()
    with cuvil.compile(model, target, example_inputs=inputs[0]) as program, torch.no_grad():
        for x in inputs:
            y = program(x)
            assert y.dtype == dtype
            assert within(y, exact(x.double()), STEP[dtype])
            assert within(y, model(x), STEP[dtype])


@pytest.mark.parametrize(
    ("target", "dtype"),
    [("cpu", torch.float16), ("cpu", torch.bfloat16), ("h100", torch.float16), ("mlu270", torch.bfloat16)],
    ids=str,
)
def test_a_model_in_f32_compiled_in_another_precision(target: str, dtype: Any) -> None:
    make, shape = NETWORKS["mlp"]
    torch.manual_seed(12)
    model = make().eval()
    narrow = copy.deepcopy(model).to(dtype)
    exact = copy.deepcopy(narrow).double()
    inputs = torch.randn(4, *shape)
    precision = str(dtype).removeprefix("torch.")
    with cuvil.compile(model, target, example_inputs=inputs[0], precision=precision) as program, torch.no_grad():
        assert program.report["precision"] == precision
        for x in inputs:
            y = program(x)
            assert y.dtype == torch.float32
            assert within(y, exact(x.to(dtype).double()), STEP[dtype])
            assert within(y, narrow(x.to(dtype)), STEP[dtype])
