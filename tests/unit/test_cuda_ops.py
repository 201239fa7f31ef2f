"""Every op that has loops, and random integer networks, as CUDA kernels on the simulator: what their meaning says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvil_hw.ir.program import Builder
from cuvil_hw.types import TensorType
from tests.unit import cuda_runner
from tests.unit.cuda_runner import form
from tests.unit.fpga_networks import network
from tests.unit.op_checks import Array, sample
from tests.unit.test_ops_on_cpu import GROUPS


@pytest.mark.must_run
@pytest.mark.needs("g++")
@pytest.mark.parametrize("name", GROUPS)
def test_ops_are_their_meaning(name: str) -> None:
    operands: list[tuple[Array, str]] = [
        o for _, arrays, names in GROUPS[name] for o in zip(arrays, names, strict=True)
    ]
    builder = Builder([(f"x{n}", TensorType(a.shape, d)) for n, (a, d) in enumerate(operands)])
    outputs: list[Any] = []
    taken = 0
    for op, arrays, _ in GROUPS[name]:
        outputs.append(builder.op(op, *[builder.input(taken + n) for n in range(len(arrays))]))
        taken += len(arrays)
    program = builder.finish([(f"y{n}", v) for n, v in enumerate(outputs)])
    cuda_runner.check(program, *[a for a, _ in operands], rtol=2e-3 if "f16" in name else 1e-5)


@pytest.mark.must_run
@pytest.mark.needs("g++")
@pytest.mark.parametrize("seed", range(6))
def test_random_integer_networks(seed: int) -> None:
    program, trace = network(100 + seed)
    draw = np.random.default_rng(seed)
    inputs = [sample(draw, kind.shape, kind.dtype) for _, kind in program.inputs]
    prefer = [None, form("tile"), form("warp"), form("thread")][seed % 4]
    interface = "sim-check" if seed % 2 else "sim"
    try:
        cuda_runner.check(program, *inputs, prefer=prefer, interface=interface)
    except AssertionError as e:
        e.add_note("\n".join(trace))
        raise
