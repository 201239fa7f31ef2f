"""ONNX's backend suites: nothing wrong, nothing crashes, and what passes is written in docs/ops.md.

All cases run on the reference, and all suites on the cpu target. On every other target run the node cases of operators
that models at the edge use, but not their `_expanded` twins: the same operator on the same data, written by simpler
operators, of which each has cases of its own.

Unless `--full` is given, each target takes a share of the node cases, at least one case of each operator, every target
other ones: see PARTS. The cases of the share must fit the counts of docs/ops.md, which a full run writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from tests.support.onnx_suite import SUITES, Case, cases
from tests.support.onnx_targets import RTL, TARGETS, Outcome, run
from tests.support.ops_table import markdown
from tests.support.shares import counts_of, share

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
RUNS += [("node", device) for device in (*TARGETS, RTL) if device != "cpu"]


PARTS = 10  # one tenth of each operator's cases on a target
RTL_PARTS = 60  # one case in so many as SystemVerilog: a second or two each


def twin(case: Case) -> bool:
    """Whether the case is an operator that is also there by itself, written by simpler ones."""
    return case.name.endswith("_expanded")


def devices(case: Case) -> tuple[str, ...]:
    """Of TARGETS and RTL, on which a case is run when all are."""
    return ("cpu",) if case.suite != "node" or case.op not in EDGE or twin(case) else (*TARGETS, RTL)


def shares() -> dict[str, tuple[str, ...]]:
    """By case of the node suite, the targets that take it into their share. cpu takes all but twins whole, and RTL
    chooses among those between integers."""
    chosen: dict[str, tuple[str, ...]] = {c.name: () for c in cases("node")}
    for turn, device in enumerate(TARGETS):
        mine = [c for c in cases("node") if device in devices(c)]
        whole = [c for c in mine if device == "cpu" and not twin(c)]
        rest = [c for c in mine if device != "cpu" or twin(c)]
        for case in (*whole, *share(rest, lambda c: c.op, PARTS, turn)):
            chosen[case.name] += (device,)
    for case in share([c for c in cases("node") if RTL in devices(c) and c.integer], lambda c: "", RTL_PARTS):
        chosen[case.name] += (RTL,)
    return chosen


@pytest.fixture(scope="module")
def outcomes(full: bool) -> dict[str, list[Outcome]]:
    chosen = {} if full else shares()
    return {suite: run(cases(suite), lambda c: chosen.get(c.name, devices(c))) for suite in SUITES}


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
    if device == "reference" or suite != "node":
        assert [o.case.name for o in found] == [c.name for c in cases(suite)]
    odd = [(o.case.name, o.on[device]) for o in found if o.on[device].status not in ("passed", "refused")]
    assert odd == []
    assert [o.case.name for o in found if not o.passed(device) and not o.on[device].why.strip()] == []


def test_every_operator_has_a_case_on_every_target(outcomes: dict[str, list[Outcome]]) -> None:
    for device in TARGETS:
        wanted = {c.op for c in cases("node") if device in devices(c)}
        assert wanted - {o.case.op for o in on(device, outcomes["node"])} == set()


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, int]]:
    """By operator, of docs/ops.md."""
    return counts_of(DOCS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("device", ["reference", *TARGETS])
def test_results_fit_the_counts_of_the_page(
    device: str, outcomes: dict[str, list[Outcome]], counts: dict[str, dict[str, int]]
) -> None:
    """Of each operator no more cases pass than the page says, and no more are refused."""
    found = on(device, outcomes["node"])
    of = Counter(c.op for c in cases("node") if device == "reference" or device in devices(c))
    for op in {o.case.op for o in found}:
        passed = counts[op][device]
        mine = [o.passed(device) for o in found if o.case.op == op]
        assert sum(mine) <= passed, op
        assert len(mine) - sum(mine) <= of[op] - passed, op


@pytest.mark.parametrize("suite", SUITES)
def test_enough_passes(suite: str, outcomes: dict[str, list[Outcome]], counts: dict[str, dict[str, int]]) -> None:
    pair = ("reference", "cpu")
    passed = [sum(o.passed(device) for o in outcomes[suite]) for device in pair]
    if suite == "node":
        passed = [sum(of[device] for of in counts.values()) for device in pair]
    assert [have >= least for have, least in zip(passed, LEAST[suite], strict=True)] == [True, True], passed


@pytest.mark.parametrize("device", TARGETS)
def test_edge_operators_pass(device: str, counts: dict[str, dict[str, int]]) -> None:
    assert sum(counts[op][device] for op in EDGE if op in counts) >= max(849, LEAST_EDGE[device])


def test_docs_say_what_passes(outcomes: dict[str, list[Outcome]], full: bool, request: pytest.FixtureRequest) -> None:
    """The whole page where all cases ran; else the operators and cases of today."""
    if not full:
        page = counts_of(DOCS.read_text(encoding="utf-8"))
        assert {op: of["cases"] for op, of in page.items()} == Counter(c.op for c in cases("node"))
        return
    for device in TARGETS:
        on(device, outcomes["node"])
    text = markdown(outcomes["node"], f"onnx {onnx.__version__}")
    if request.config.getoption("--update-golden"):
        DOCS.write_text(text, encoding="utf-8")
    assert text == DOCS.read_text(encoding="utf-8"), "docs/ops.md is out of date; write it with: make docs-ops"
