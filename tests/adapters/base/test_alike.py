"""Kernels that compute the same share one function; what differs in any way that counts doesn't."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import cuvil
from cuvil_hw import ops
from cuvil_hw.adapters.sequential.alike import form_of
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Builder
from cuvil_hw.types import TensorType as T
from tests.support.cpu_runner import check, graph_of, source_of


def functions(source: str) -> list[str]:
    return re.findall(r"^static void (\w+)\(", source, re.MULTILINE)


def deep(layers: int) -> torch.nn.Module:
    stack = [m for _ in range(layers) for m in (torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())]
    return torch.nn.Sequential(*stack).eval()


def test_the_source_of_equal_layers_does_not_grow_with_their_number() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    counts = []
    for layers in (3, 9):
        model = deep(layers)
        program = cuvil.compile(model, "cpu", example_inputs=(x,))
        got = program(x.numpy())
        np.testing.assert_allclose(got, model.double()(x.double()).detach().numpy(), rtol=1e-5, atol=1e-5)
        source = program.artifact.files["sources/model.c"].decode()
        counts.append(len(functions(source)))
        assert "also:" in source
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("values", "count"), [((0.5, 0.5), 1), ((0.0, -0.0), 2), ((1.0, 2.0), 2)])
def test_constants_count_by_their_bits(values: tuple[float, float], count: int) -> None:
    builder = Builder([("x", T((2, 5), "f32")), ("y", T((2, 5), "f32"))])
    found = []
    for n, value in enumerate(values):
        builder.block.add_op(splat := level1.const_splat(value, T((2, 5), "f32")))
        found.append((f"out{n}", builder.op(ops.Add(), builder.input(n), splat.results[0])))
    program = builder.finish(found)
    assert len(functions(source_of(program.clone()))) == count
    x = np.array([[-0.0, 0.0, 1.5, np.inf, np.nan]] * 2, np.float32)
    check(program, x, x[::-1].copy())


def test_extents_dtypes_and_order_of_operands_count() -> None:
    wide = T((2, 5), "f32")
    builder = Builder([("x", wide), ("y", wide), ("z", T((5, 2), "f32")), ("i", T((2, 5), "i32"))])
    x, y, z, i = map(builder.input, range(4))
    sub = ops.Sub()
    results = [(x, y), (y, x), (z, z), (i, i), (x, x)]
    program = builder.finish([(f"out{n}", builder.op(sub, *pair)) for n, pair in enumerate(results)])
    forms = [form_of(k) for k in graph_of(program).kernels]
    assert forms[0] == forms[1]  # both take the first buffer from the second
    assert len(set(forms)) == 4
