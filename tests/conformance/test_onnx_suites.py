"""ONNX's backend suites: nothing wrong, nothing crashes, and what passes is written in docs/ops.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

from tests.conformance.onnx_suite import SUITES, Outcome, cases, run
from tests.conformance.ops_table import markdown

pytestmark = [pytest.mark.slow, pytest.mark.must_run, pytest.mark.needs("cc")]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "ops.md"
# (on the reference, on cpu) at least; of ONNX 1.23.
LEAST = {"node": (1631, 1631), "simple": (7, 7), "pytorch-converted": (79, 79), "pytorch-operator": (33, 33)}
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
    """.split()  # noqa: SIM905
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[Outcome]]:
    return {suite: run(cases(suite)) for suite in SUITES}


@pytest.mark.parametrize("suite", SUITES)
def test_nothing_is_wrong(suite: str, outcomes: dict[str, list[Outcome]]) -> None:
    found = outcomes[suite]
    assert len(found) == len(cases(suite))
    assert [f"{o.case.name}: {o.why}" for o in found if "wrong" in (o.reference, o.cpu)] == []
    assert {o.reference for o in found} | {o.cpu for o in found} == {"passed", "refused"}


@pytest.mark.parametrize("suite", SUITES)
def test_enough_passes(suite: str, outcomes: dict[str, list[Outcome]]) -> None:
    passed = Counter(where for o in outcomes[suite] for where in ("reference", "cpu") if getattr(o, where) == "passed")
    assert (passed["reference"], passed["cpu"]) >= LEAST[suite]
    assert min(passed["reference"] - LEAST[suite][0], passed["cpu"] - LEAST[suite][1]) >= 0


def test_edge_operators_pass(outcomes: dict[str, list[Outcome]]) -> None:
    assert sum(o.cpu == "passed" for o in outcomes["node"] if o.case.op in EDGE) >= 849


@pytest.mark.parametrize("suite", SUITES)
def test_what_is_refused_says_why(suite: str, outcomes: dict[str, list[Outcome]]) -> None:
    assert [o.case.name for o in outcomes[suite] if "refused" in (o.reference, o.cpu) and not o.why.strip()] == []


def test_docs_say_what_passes(outcomes: dict[str, list[Outcome]], request: pytest.FixtureRequest) -> None:
    text = markdown(outcomes["node"], f"onnx {onnx.__version__}")
    if request.config.getoption("--update-golden"):
        DOCS.write_text(text, encoding="utf-8")
    assert DOCS.is_file(), "docs/ops.md is missing; write it with: make docs-ops"
    assert text == DOCS.read_text(encoding="utf-8"), "docs/ops.md is out of date; write it with: make docs-ops"
