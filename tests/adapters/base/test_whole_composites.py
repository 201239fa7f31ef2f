"""A composite op reaches an adapter whole where the adapter says so, and as smaller ops where it doesn't."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from cuvil_hw import api, ops
from cuvil_hw.adapters.cpu.adapter import CpuAdapter
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Tensor
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.ops.base import Op
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType
from tests.support.expr_interpreter import run


class WithSoftmax(CpuAdapter):
    whole_composites: Sequence[str] = ("softmax",)


def network() -> Program:
    """A softmax over a transposed layer, one of a constant, and a log softmax."""
    b = Builder([("x", TensorType((3, 5), "f32"))])
    weights = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    y = b.op(ops.Transpose((1, 0)), b.op(ops.Linear(), b.input(0), b.const(weights)))
    first = b.op(ops.Add(), b.op(ops.Softmax(0), b.op(ops.Neg(), y)), b.op(ops.Softmax(1), b.op(ops.Relu(), y)))
    return b.finish([("y", first), ("z", b.op(ops.LogSoftmax(1), y))])


def interpreted(graph: KernelGraph, x: Any) -> list[Any]:
    """What an adapter that knows its composite ops would compute."""
    values = {name: graph.constant(name) for name, b in graph.buffers.items() if b.role == "const"}
    values |= dict(zip(graph.inputs, [x], strict=True))
    for kernel in graph.kernels:
        if kernel.whole is None:
            values[kernel.output] = run(Tensor(kernel.type, lambda *i, body=kernel.body: body), values)
        else:
            op = kernel.whole.op
            assert isinstance(op, Op)
            assert kernel.inputs == tuple(dict.fromkeys(kernel.whole.buffers))
            values[kernel.output] = op.evaluate(*[values[n] for n in kernel.whole.buffers])
    return [values[name] for name in graph.outputs]


def test_softmax_is_one_kernel_and_the_rest_as_ever() -> None:
    x = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    graph = api.fuse(network(), WithSoftmax())
    whole = [k.whole.op for k in graph.kernels if k.whole is not None]
    assert whole == [ops.Softmax(0), ops.Softmax(1)]
    plain = api.fuse(network(), CpuAdapter())
    assert all(k.whole is None for k in plain.kernels)
    assert len(graph.kernels) < len(plain.kernels)
    (weights,) = [graph.constant(n) for n, b in graph.buffers.items() if b.role == "const"]
    y = torch.from_numpy(x @ weights.T).T
    wanted = torch.softmax(-y, 0) + torch.softmax(torch.relu(y), 1), torch.log_softmax(y, 1)
    for made in (graph, plain):
        for have, want in zip(interpreted(made, x), wanted, strict=True):
            np.testing.assert_allclose(have, want.numpy(), rtol=1e-5, atol=1e-6)


def test_a_constant_of_one_value_is_a_buffer_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WithSoftmax, "whole_composites", ("layer_norm",))
    b = Builder([("x", TensorType((2, 3), "f32"))])
    scale = b.op(ops.BroadcastTo((3,)), b.const(np.full((1,), 7, np.float32)))
    graph = api.fuse(b.finish([("y", b.op(ops.LayerNorm(1), b.input(0), scale))]), WithSoftmax())
    (kernel,) = graph.kernels
    assert [o.role for o in kernel.operands] == ["input", "const"]
    x = np.random.default_rng(2).normal(size=(2, 3)).astype(np.float32)
    want = 7 * torch.nn.functional.layer_norm(torch.from_numpy(x), (3,))
    np.testing.assert_allclose(interpreted(graph, x)[0], want.numpy(), rtol=1e-4, atol=1e-5)


def test_loops_for_it_are_an_error_that_says_whose() -> None:
    profile = load_profile("cpu")
    with pytest.raises(CuvilError, match=r"Softmax\(.* names it in whole_composites lowers kernel\.whole itself"):
        api.compile_program(network(), profile, WithSoftmax(), None, None, None, lambda step: None)
