"""ONNX's backend suites: nothing wrong, nothing crashes, and what passes is written in docs/ops.md.

All suites run on the reference and on the cpu target. On every other target run the node cases of operators that models
at the edge use, but not their `_expanded` twins: the same operator on the same data, written by simpler operators, of
which each has cases of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from tests.support.onnx_suite import SUITES, Case, cases
from tests.support.onnx_targets import TARGETS, Outcome, run
from tests.support.ops_table import markdown

pytestmark = [pytest.mark.slow, pytest.mark.must_run, pytest.mark.needs("cc", "g++")]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "ops.md"
# (on the reference, on cpu) at least; of ONNX 1.23.
LEAST = {"node": (1629, 1629), "simple": (7, 7), "pytorch-converted": (79, 79), "pytorch-operator": (33, 33)}
# Node cases of EDGE that pass at least, by target.
LEAST_EDGE = {"cpu": 1318, "zynq": 990, "agilex": 990, "cuda": 1060, "mlu270": 1020, "mlu370": 1020}
# Operators that models at the edge use; 849 of their cases must pass.
EDGE = frozenset(
    """
    Conv ConvTranspose Gemm MatMul MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool BatchNormalization
    LayerNormalization InstanceNormalization GroupNormalization RMSNormalization LRN Relu LeakyRelu PRelu Elu Selu
    Celu Gelu Sigmoid HardSigmoid HardSwish Softplus Softsign Mish Swish Tanh ThresholdedRelu Clip Softmax
    LogSoftmax Hardmax Add Sub Mul Div Pow Mod Neg Abs Exp Log Sqrt Reciprocal Erf Sin Cos Floor Ceil Round Sign
    Min Max Mean Sum Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Not BitwiseAnd BitwiseOr BitwiseXor
    BitwiseNot BitShift IsNaN IsInf Where ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceSumSquare ArgMax ArgMin TopK CumSum Reshape Transpose Flatten Squeeze
    Unsqueeze Concat Split Slice Pad Gather GatherElements GatherND ScatterElements ScatterND Expand Tile Resize
    Upsample GridSample DepthToSpace SpaceToDepth Cast CastLike LSTM GRU RNN NonMaxSuppression OneHot Einsum
    Attention QuantizeLinear DequantizeLinear QLinearConv QLinearMatMul ConvInteger MatMulInteger
    DynamicQuantizeLinear Constant ConstantOfShape Shape Size Identity Dropout Range Trilu EyeLike
    """.split()
)


RUNS = [(suite, device) for suite in SUITES for device in ("reference", "cpu")]
RUNS += [("node", device) for device in TARGETS if device != "cpu"]


def devices(case: Case) -> tuple[str, ...]:
    """Of TARGETS, on which a case is run."""
    twin = case.name.endswith("_expanded")  # the same operator, written by simpler ones
    return ("cpu",) if case.suite != "node" or case.op not in EDGE or twin else tuple(TARGETS)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[Outcome]]:
    return {suite: run(cases(suite), devices) for suite in SUITES}


def on(device: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that ran there. Skips when nothing could."""
    found = [o for o in outcomes if device in o.on]
    absent = {o.on[device].why for o in found if o.on[device].status == "absent"}
    if absent:
        pytest.skip("; ".join(absent))
    return found


@pytest.mark.parametrize(("suite", "device"), RUNS)
def test_nothing_is_wrong(suite: str, device: str, outcomes: dict[str, list[Outcome]]) -> None:
    """A case passes, or is refused with a reason."""
    found = on(device, outcomes[suite])
    assert [o.case.name for o in found] == [c.name for c in cases(suite) if device in ("reference", *devices(c))]
    odd = [(o.case.name, o.on[device]) for o in found if o.on[device].status not in ("passed", "refused")]
    assert odd == []
    assert [o.case.name for o in found if not o.passed(device) and not o.on[device].why.strip()] == []


@pytest.mark.parametrize("suite", SUITES)
def test_enough_passes(suite: str, outcomes: dict[str, list[Outcome]]) -> None:
    passed = [sum(o.passed(device) for o in outcomes[suite]) for device in ("reference", "cpu")]
    assert [have >= least for have, least in zip(passed, LEAST[suite], strict=True)] == [True, True], passed


@pytest.mark.parametrize("device", TARGETS)
def test_edge_operators_pass(device: str, outcomes: dict[str, list[Outcome]]) -> None:
    passed = [o for o in on(device, outcomes["node"]) if o.case.op in EDGE and o.passed(device)]
    assert len(passed) >= max(849, LEAST_EDGE[device])


def test_docs_say_what_passes(outcomes: dict[str, list[Outcome]], request: pytest.FixtureRequest) -> None:
    for device in TARGETS:
        on(device, outcomes["node"])
    text = markdown(outcomes["node"], f"onnx {onnx.__version__}")
    if request.config.getoption("--update-golden"):
        DOCS.write_text(text, encoding="utf-8")
    assert DOCS.is_file(), "docs/ops.md is missing; write it with: make docs-ops"
    assert text == DOCS.read_text(encoding="utf-8"), "docs/ops.md is out of date; write it with: make docs-ops"
