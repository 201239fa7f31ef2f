"""Attention whose mask holds -1e4, -1e9, the least float or -infinity, in int8: as near to PyTorch as without mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cuvil_hw import api
from cuvil_hw.compile import numbers
from cuvil_hw.compile.precision import choose_precision
from cuvil_hw.ir.program import evaluate
from cuvil_hw.target.profile import load_profile
from tests.support.quantized_networks import data, sqnr

LEAST = float(np.finfo(np.float32).min)
LENGTH, WIDTH = 12, 16
KEEP = torch.ones(LENGTH, LENGTH).tril().bool()


class Attention(nn.Module):
    """`form`: how scores are masked, by `value`."""

    def __init__(self, form: str, value: float) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.form, self.value = form, value
        self.register_buffer("keep", KEEP)

    def forward(self, x: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        mask = torch.where(self.keep, 0.0, self.value)
        match self.form:
            case "sdpa, causal":
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            case "sdpa, added":
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            case "sdpa, bool":
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.keep)
            case _:
                scores = q @ k.transpose(-1, -2) / WIDTH**0.5
                if self.form == "added":
                    scores = scores + mask
                elif self.form == "filled":
                    scores = scores.masked_fill(~self.keep, self.value)
                elif self.form == "input":
                    assert valid is not None
                    scores = scores + ((1.0 - valid) * self.value)[:, None, :]
                elif self.form == "bounded":
                    scores = torch.maximum(scores + mask, torch.tensor(LEAST))
                y = torch.softmax(scores, -1) @ v
        return x + self.out(y)


def decibels(form: str, value: float) -> float:
    torch.manual_seed(0)
    module = Attention(form, value).eval()
    valid = np.ones((24, LENGTH), np.float32)
    valid[:, 9:] = 0
    valid[::2, 6:] = 0
    seen, test = data((1, LENGTH, WIDTH), 24, 1), data((1, LENGTH, WIDTH), 16, 2)
    more = [valid] if form == "input" else []
    examples = tuple(torch.from_numpy(a[:1]) for a in (seen, *more))
    program = api.import_model(module, examples, None, None)
    numbers.simplify(program)
    chosen = choose_precision(program, "int8", True, load_profile("cpu"))
    program = numbers.quantize(program, chosen, (seen, *more) if more else seen)
    numbers.make_integer(program, chosen)
    made = [evaluate(program, [test[i : i + 1], *(a[i : i + 1] for a in more)])[0] for i in range(len(test))]
    with torch.no_grad():
        inputs = [torch.from_numpy(a[: len(test)]).double() for a in (test, *more)]
        wanted = module.double()(*inputs).numpy()
    assert np.isfinite(wanted).all()
    return sqnr(wanted, np.concatenate(made))


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("none", 0.0),
        *((form, value) for form in ("added", "filled") for value in (-100.0, -1e4, -1e9, LEAST, -np.inf)),
        *(("input", value) for value in (-1e4, LEAST)),
        ("bounded", LEAST),
        ("sdpa, causal", 0.0),
        ("sdpa, bool", 0.0),
        ("sdpa, added", -np.inf),
    ],
)
def test_a_mask_does_not_set_the_range_of_scores(form: str, value: float) -> None:
    assert decibels(form, value) >= 36.0  # 37.3 without a mask
