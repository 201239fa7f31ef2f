"""The table of scalar operators: every target prices every function, and refuses what has no figure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.adapters.cpu import cost as cpu
from cuvil_hw.adapters.cuda import cost as cuda
from cuvil_hw.adapters.mlu import cost as mlu
from cuvil_hw.adapters.mlu.tile import tiles
from cuvil_hw.adapters.streaming.analysis.classify import classify
from cuvil_hw.adapters.streaming.analysis.cost import resources
from cuvil_hw.adapters.streaming.analysis.fabric import Use
from cuvil_hw.adapters.streaming.analysis.fold import foldings
from cuvil_hw.adapters.zynq.fabric import FABRICS
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr import scalar
from cuvil_hw.expr.nodes import Load, binary, unary
from cuvil_hw.ir.program import Builder
from cuvil_hw.ops.base import Op
from cuvil_hw.schedule.kernel import Kernel
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType
from tests.support.fpga_runner import graph_of

ZYNQ = FABRICS["dsp48e1"]


def kernel_of(op: Op) -> Kernel:
    b = Builder([("x", TensorType((1, 4096), "f32"))])
    (kernel,) = graph_of(b.finish([("y", b.op(op, b.input(0)))])).kernels
    return kernel


def on_cpu(kernel: Kernel) -> float:
    return cpu.estimate(kernel, "", 0, load_profile("x86_64-linux-gnu")).cycles


def on_gpu(kernel: Kernel) -> float:
    profile = load_profile("h100")
    settings = {**profile.settings, "bandwidth_gb_s": 1 << 30, "sms": 1}  # so that arithmetic is what is seen
    return cuda.estimate(kernel, cuda.threads(kernel, 128), replace(profile, settings=settings)).cycles


def on_mlu(kernel: Kernel) -> float:
    profile = load_profile("mlu270")
    return mlu.estimate(tiles(kernel, 1 << 18, 1)[0], profile).cycles


def on_fabric(kernel: Kernel) -> Use:
    return resources(next(iter(foldings(classify(kernel), ZYNQ.floats))), ZYNQ)


# elu is made of expm1, softplus of log1p and exp.
@pytest.mark.parametrize("op", [ops.Tan(), ops.Atan(), ops.Elu(), ops.Softplus(), ops.Tanh()], ids=str)
def test_a_function_costs_more_than_a_negation(op: Op) -> None:
    plain, function = kernel_of(ops.Neg()), kernel_of(op)
    assert on_cpu(function) > 10 * on_cpu(plain)
    assert on_gpu(function) > on_gpu(plain)
    assert on_fabric(function).lut > on_fabric(plain).lut + 200


@pytest.mark.parametrize(("column", "price"), [("cpu", on_cpu), ("gpu", on_gpu), ("mlu", on_mlu), ("cores", on_fabric)])
def test_what_has_no_figure_is_refused(monkeypatch: pytest.MonkeyPatch, column: str, price: object) -> None:
    kernel = kernel_of(ops.Atan())
    without = {**scalar.SCALARS, "atan": replace(scalar.SCALARS["atan"], **{column: None})}
    monkeypatch.setattr(scalar, "SCALARS", without)
    assert callable(price)
    target = {"cpu": "a CPU", "gpu": "a GPU", "mlu": "an MLU", "cores": "an FPGA's floats"}[column]
    with pytest.raises(CuvilError, match=f"operator 'atan' has no '{column}' in its table .* which {target} needs"):
        price(kernel)


def test_an_unknown_operator_is_refused_where_it_is_written() -> None:
    x = Load("f32", "x", ())
    with pytest.raises(CuvilError, match="'cbrt' is no operator of scalar expressions; there are: add, sub"):
        unary("cbrt", x)
    with pytest.raises(CuvilError, match="'atan2' is no operator"):
        binary("atan2", x, x)


def test_a_function_without_meaning_on_arrays_is_refused() -> None:
    with pytest.raises(CuvilError, match="operator 'sigmoid' has no 'numpy'"):
        scalar.on_arrays("sigmoid")
    assert scalar.on_arrays("tan")(np.float32(0.5)) == np.tan(np.float32(0.5))


def test_every_function_has_every_column() -> None:
    for row in scalar.SCALARS.values():
        assert None not in (row.cpu, row.gpu, row.mlu), row.name
        if row.real is not None:
            assert row.cores is not None, row.name
