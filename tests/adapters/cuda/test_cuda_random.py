"""Random integer networks as CUDA kernels on the simulator: what their meaning says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import cuda_runner
from tests.support.cuda_runner import form
from tests.support.fpga_networks import network
from tests.support.op_checks import sample


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
