"""PyTorch models with open shapes: results equal PyTorch's at many sizes; sizes that a model refuses are named."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.errors import CuvilError, InputError
from cuvil_hw.runtime.dynamic import DynamicExecutable


class Pyramid(nn.Module):
    """A U-Net of two levels: concat needs even heights and widths."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x).relu()
        b = self.b(nn.functional.max_pool2d(a, 2)).relu()
        up = nn.functional.interpolate(b, scale_factor=2.0)
        return self.c(torch.cat([a, up], 1))


class Encoder(nn.Module):
    """Self-attention over any length, with a mask, and positions from a table of 32."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, width), nn.Embedding(32, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length = ids.shape
        x = self.words(ids) + self.places(torch.arange(length))
        q, k, v = (f(x).view(batch, length, 2, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :] > 0)
        x = self.norm(x + y.transpose(1, 2).reshape(batch, length, -1))
        return x, x.mean(1)


def compiled(model: nn.Module, examples: Any, shapes: Any, **options: Any) -> DynamicExecutable:
    program = cuvil.compile(model.eval(), "cpu", example_inputs=examples, shapes=shapes, **options)
    assert isinstance(program, DynamicExecutable)
    return program


def check(program: Any, model: nn.Module, *inputs: Any) -> None:
    made, wanted = program(*inputs), model.eval()(*inputs)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)


def test_a_batch_of_one_as_the_example_and_no_upper_bound() -> None:
    model = nn.Conv2d(3, 64, 3)
    program = compiled(model, torch.randn(1, 3, 8, 8), {"input": {0: cuvil.Dim("B")}})
    assert str(program.outputs[0]) == "out0: (B, 64, 6, 6) f32"
    assert program.proven
    for batch in (1, 2, 37):
        check(program, model, torch.randn(batch, 3, 8, 8))


def test_a_net_of_convolutions_over_height_and_width() -> None:
    h, w = cuvil.Dim("H", 4, 32), cuvil.Dim("W", 4, 32)
    model, x = Pyramid(), torch.randn(2, 3, 8, 8)
    with pytest.raises(CuvilError) as error:
        compiled(model, x, {0: (2, 3, h, w)}, constraints=["H % 2 == 0"])
    text = str(error.value)
    assert "W = 5" in text
    assert "test_shapes_torch.py:" in text  # the user's line
    assert "got size 4" in text or "got 4" in text  # in numbers, not in torch's symbols
    assert 'cuvil.Constraint("W % 2 == 0")' in text
    program = compiled(model, x, {0: (2, 3, h, w)}, constraints=["H % 2 == 0", "W % 2 == 0"])
    assert str(program.outputs[0]) == "out0: (2, 2, H, W) f32"
    for height, width in ((4, 32), (32, 4), (10, 14)):
        check(program, model, torch.randn(2, 3, height, width))
    with pytest.raises(InputError, match="constraint W % 2 == 0 does not hold for W = 7"):
        program(torch.randn(2, 3, 8, 7))


def test_an_encoder_over_batch_and_length() -> None:
    b, s = cuvil.Dim("B", 1, 4), cuvil.Dim("S", 2, 32)
    model, ids, mask = Encoder(), torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5)
    program = compiled(model, (ids, mask), {"ids": (b, s), "mask": (b, s)})
    assert [str(p) for p in program.outputs] == ["out0: (B, S, 8) f32", "out1: (B, 8) f32"]
    for batch, length in ((1, 2), (4, 32), (3, 7)):
        mask = torch.ones(batch, length)
        mask[:, -1] = 0
        check(program, model, torch.randint(0, 20, (batch, length)), mask)
    with pytest.raises(InputError, match="input 'mask', dimension 0: has 3, expected 2 = B"):
        program(torch.zeros(2, 5, dtype=torch.int64), torch.ones(3, 5))
    long = cuvil.Dim("S", 2, 64)
    with pytest.raises(CuvilError, match=r"S = 64: .*embedding.*\n.*S = 32, not 33"):
        compiled(model, (ids, torch.ones(2, 5)), {"ids": (2, long), "mask": (2, long)})


def test_exported_programs_bring_their_own_ranges() -> None:
    model = Encoder().eval()
    dims = {0: torch.export.Dim("batch", min=1, max=4), 1: torch.export.Dim("seq", min=3, max=32)}
    example = (torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5))
    exported = torch.export.export(model, example, dynamic_shapes=(dims, dims))
    program = cuvil.compile(exported, "cpu")
    assert isinstance(program, DynamicExecutable)
    assert str(program.inputs[0]) == "ids: (ids_0, ids_1) i64"
    for batch, length in ((1, 3), (4, 32)):
        check(program, model, torch.randint(0, 20, (batch, length)), torch.ones(batch, length))
    for batch, length in ((5, 5), (2, 33), (2, 2)):
        with pytest.raises(InputError, match="outside its bounds"):
            program(torch.zeros(batch, length, dtype=torch.int64), torch.ones(batch, length))
    b, s = cuvil.Dim("B", 1, 2, sizes=(2,)), cuvil.Dim("S", 4, 8, sizes=(4,))
    named = cuvil.compile(exported, "cpu", shapes={"ids": (b, s), "mask": (b, s)})
    assert isinstance(named, DynamicExecutable)
    assert named.sizes == ({"B": 2, "S": 4},)
    wider = cuvil.Dim("B", 1, 40)
    with pytest.raises(CuvilError, match="exported for B <= 4"):
        cuvil.compile(exported, "cpu", shapes={"ids": (wider, s), "mask": (wider, s)})
    fixed = cuvil.compile(exported, "cpu", example_inputs=example)
    assert not isinstance(fixed, DynamicExecutable)


class Branches(nn.Module):
    """Python looks at the size: each way is a region of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 4:
            return x * 2
        return x.flip(0) + x.shape[0]


class Strided(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], 8, -1) + 1


class Nested(nn.Module):
    def forward(self, parts: dict[str, Any], scale: float = 2.0) -> dict[str, torch.Tensor]:
        return {"sum": parts["u"] * scale + parts["v"][0], "rows": parts["u"].sum(1)}


def test_ways_that_hang_on_the_size() -> None:
    model = Branches()
    program = compiled(model, torch.randn(2, 3), {"x": {0: cuvil.Dim("B", 1, 8)}})
    assert program.proven
    assert program.batch == ()
    for batch in (1, 4, 5, 8):
        check(program, model, torch.randn(batch, 3))


def test_strides_are_the_callers_own() -> None:
    model = Strided()
    program = compiled(model, torch.randn(2, 9, 16).transpose(1, 2), {"x": {0: cuvil.Dim("B", 1, 8)}})
    check(program, model, torch.randn(3, 9, 16).transpose(1, 2))
    check(program, model, torch.randn(3, 16, 9))


def test_nested_arguments_are_named_as_torch_names_them() -> None:
    b = cuvil.Dim("B", 1, 8)
    model = Nested()
    shapes = {"parts_u": {0: b}, "parts_v_0": {0: b}}
    program = compiled(model, ({"u": torch.randn(2, 3), "v": [torch.randn(2, 3)]},), shapes)
    check(program, model, {"u": torch.randn(5, 3), "v": [torch.randn(5, 3)]})


def test_an_empty_batch_where_it_is_allowed() -> None:
    model = nn.Linear(3, 2)
    program = compiled(model, torch.randn(2, 3), {0: {0: cuvil.Dim("B", 0, 4)}})
    assert program(torch.randn(0, 3)).shape == (0, 2)
    check(program, model, torch.randn(4, 3))


def test_weights_are_those_of_the_compilation() -> None:
    model, x = nn.Linear(3, 2).eval(), torch.randn(5, 3)
    program = compiled(model, torch.randn(2, 3), {0: {0: cuvil.Dim("B", 1, 8, sizes=(1,))}})
    wanted = model(x).detach()
    with torch.no_grad():
        model.weight.zero_()
    torch.testing.assert_close(program(x), wanted)  # 5 is compiled now


def test_what_never_works_keeps_its_own_error() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(7)

    with pytest.raises(CuvilError, match="shape '\\[7\\]' is invalid"):
        compiled(Fixed(), torch.randn(2, 3), {"x": {0: cuvil.Dim("B", 1, 8)}})
    with pytest.raises(CuvilError, match="shapes= names 'y'; the inputs are x"):
        compiled(Fixed(), torch.randn(2, 3), {"y": {0: cuvil.Dim("B")}})


def test_what_torch_logs_of_a_refused_size_is_said_by_the_error_alone(caplog: pytest.LogCaptureFixture) -> None:
    pool = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.MaxPool2d(2)).eval()
    with pytest.raises(CuvilError, match=r"doesn't take S = 1: .*Output size is too small"):
        cuvil.compile(pool, "cpu", torch.randn(1, 1, 8, 8), shapes={"input": (1, 1, cuvil.Dim("S", max=9), 8)})
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_rule_that_is_named_is_the_one_that_matters() -> None:
    pool = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.MaxPool2d(2)).eval()
    shapes = {"input": (cuvil.Dim("B", max=4), 1, cuvil.Dim("S", max=9), 8)}
    with pytest.raises(CuvilError, match=r'e\.g\. cuvil\.Constraint\("S >= 2"\)') as caught:
        cuvil.compile(pool, "cpu", torch.randn(1, 1, 8, 8), shapes=shapes)
    assert "B >= 2" not in str(caught.value)
