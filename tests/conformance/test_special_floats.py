"""Every float function of PyTorch on zeros of both signs, subnormals, the largest numbers, infinities and NaN.

NaN, infinities and signs of zeros must be those of eager PyTorch, computed in f32 or in f64 and rounded: its vector
kernels have faults of their own (gelu of infinity, fmod where the quotient overflows). What differs on purpose is in
DIFFERS, and under "Special values" in docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cuvil

pytestmark = [pytest.mark.must_run, pytest.mark.needs("gcc", "torch")]

SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 1e-38, 3.4028235e38, -3.4028235e38, float("inf"), -float("inf"), float("nan")]
PLAIN = [1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 1e-5, -1e-5, 88.0, -104.0]
ONE = torch.tensor(SPECIAL + PLAIN)
PAIRS = tuple(t.contiguous() for t in torch.meshgrid(ONE, ONE, indexing="ij"))

TENSOR_FUNCTIONS = """
    abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sign sgn sin cos tan asin acos
    atan sinh cosh tanh asinh acosh atanh erf sigmoid logit floor ceil round trunc frac relu isnan isinf
    isfinite signbit deg2rad rad2deg nan_to_num
"""

NN_FUNCTIONS = """
    gelu silu mish softplus softsign elu selu celu hardtanh hardswish hardsigmoid leaky_relu relu6 logsigmoid
    tanhshrink hardshrink softshrink
"""

PAIR_FUNCTIONS = """
    add sub mul div remainder fmod pow atan2 maximum minimum fmax fmin floor_divide copysign hypot logaddexp
    eq ne lt le gt ge xlogy
"""

UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = (
    {name: getattr(torch, name) for name in TENSOR_FUNCTIONS.split()}
    | {name: getattr(F, name) for name in NN_FUNCTIONS.split()}
    | {
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "add_zero": lambda x: x + 0.0,
        "sub_zero": lambda x: x - 0.0,
        "times_zero": lambda x: x * 0.0,
        "minus_from_zero": lambda x: 0.0 - x,
        "clamp": lambda x: x.clamp(-1.0, 2.0),
        "clamp_min": lambda x: x.clamp(min=0.0),
        "pow_2": lambda x: x**2,
        "pow_half": lambda x: x**0.5,
        "pow_-1": lambda x: x**-1.0,
        "pow_3": lambda x: x**3,
        "two_pow": lambda x: 2.0**x,
        "round_1": lambda x: torch.round(x, decimals=1),
        "threshold": lambda x: F.threshold(x, 0.1, -7.0),
        "glu": lambda x: F.glu(x, -1),
        "div_floor": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
        "div_trunc": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    }
)

BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name) for name in PAIR_FUNCTIONS.split()
} | {
    "trunc_divide": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "where": lambda x, y: torch.where(x > y, x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "prelu": lambda x, y: torch.where(x > 0, x, x * y),
}

# By lane: each special value stands among ordinary ones, in its own row.
ROWS = torch.stack([torch.tensor([0.3, -1.2, 2.0, s, 0.7, 1.1]) for s in SPECIAL]).reshape(len(SPECIAL), 6)
LANES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "prod": lambda x: x.prod(-1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "std": lambda x: x.std(-1),
    "var": lambda x: x.var(-1),
    "var_0": lambda x: x.var(-1, correction=0),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "group_norm": lambda x: F.group_norm(x.reshape(-1, 2, 3), 1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "norm": lambda x: x.norm(dim=-1),
    "norm_1": lambda x: x.norm(p=1, dim=-1),
    "norm_inf": lambda x: x.norm(p=float("inf"), dim=-1),
    "max_pool": lambda x: F.max_pool1d(x[:, None], 3, 1, 1),
    "avg_pool": lambda x: F.avg_pool1d(x[:, None], 3, 1, 1),
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "linear": lambda x: x @ torch.arange(12, dtype=x.dtype).reshape(6, 2),
    "sort": lambda x: x.sort(-1).values,
    "topk": lambda x: x.topk(2, -1).values,
    "median": lambda x: x.median(-1).values,
    "nansum": lambda x: x.nansum(-1),
    "count_nonzero": lambda x: x.count_nonzero(-1),
}

ZERO = "which zero a minimum or maximum of two zeros gives isn't defined"
SQUARES = "squares of numbers above 1.8e19 overflow f32"
DIFFERS = {
    **dict.fromkeys(("relu", "relu6", "clamp_min", "softshrink", "fmax", "fmin"), ZERO),
    **dict.fromkeys(("std", "layer_norm", "group_norm"), SQUARES),
    "lerp": "products of subnormals underflow; torch's kernel doesn't round them",
}


class Each(torch.nn.Module):
    def __init__(self, functions: dict[str, Callable[..., torch.Tensor]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: torch.Tensor) -> list[torch.Tensor]:
        return [f(*args) for f in self.functions.values()]


def same(got: np.ndarray, right: np.ndarray) -> np.ndarray:
    """By element: the same kind of number, zeros of the same sign, others within 1e-5 of theirs."""
    if right.dtype.kind != "f":
        return got == right
    kinds = np.isnan(got) == np.isnan(right)
    zeros = ~((got == 0) & (right == 0)) | (np.signbit(got) == np.signbit(right))
    with np.errstate(invalid="ignore", over="ignore"):
        near = (got == right) | np.isnan(right) | (abs(got - right) <= 1e-5 * abs(right) + 1e-37)
    return kinds & zeros & near


def differences(got: np.ndarray, right: np.ndarray, exact: np.ndarray) -> list[tuple[float, float]]:
    """(ours, eager's) where ours is neither eager's result nor the one that eager computes in f64."""
    wrong = ~(same(got, right) | same(got, exact))
    return list(zip(got[wrong].tolist(), right[wrong].tolist(), strict=True))


def allowed(name: str, pairs: list[tuple[float, float]]) -> bool:
    """Whether all that differs is what DIFFERS says."""
    if name not in DIFFERS:
        return False
    if DIFFERS[name] == SQUARES:
        return all(a in (0, float("inf")) for a, _ in pairs)
    return all(a == b == 0 for a, b in pairs)


CASES = [("unary", UNARY, (ONE,)), ("binary", BINARY, PAIRS), ("lanes", LANES, (ROWS,))]


@pytest.mark.parametrize(("kind", "functions", "args"), CASES, ids=[c[0] for c in CASES])
def test_special_values_as_eager(
    kind: str, functions: dict[str, Callable[..., torch.Tensor]], args: tuple[torch.Tensor, ...]
) -> None:
    model = Each(functions).eval()
    program = cuvil.compile(model, "cpu", example_inputs=args)
    right, got = model(*args), program(*args)
    exact = [r.to(e.dtype) for r, e in zip(model(*(a.double() for a in args)), right, strict=True)]
    wrong = []
    for name, g, r, x in zip(functions, got, right, exact, strict=True):
        pairs = differences(np.asarray(g), r.numpy(), x.numpy())
        if pairs and not allowed(name, pairs):
            wrong.append(f"{name}: " + ", ".join(f"{ours} for {eager}" for ours, eager in pairs[:5]))
    assert not wrong, "\n".join(wrong)
