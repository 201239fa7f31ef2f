"""Random integer graphs: the meaning in NumPy, this processor, the Zynq simulator and its SystemVerilog give the same
bits.

Every op that takes integers, all widths, odd shapes, values at the ends of their ranges, values that several ops read
or none, several outputs, outputs that are inputs, foldings drawn at random. An eighth of the seeds runs on each
target, one in seventy as SystemVerilog, all 1,400 with `make conformance`; see graph_check.py for how to try more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from cuvil_hw.ir.program import Program, evaluate
from tests.support import graph_check
from tests.support.graph_check import Run, failures, report
from tests.support.graph_maker import NATIVE, ODD, Array, program_of
from tests.support.graph_steps import INTEGERS

pytestmark = [pytest.mark.must_run, pytest.mark.needs("cc", "g++")]

GRAPHS, TOGETHER = 1400, 40
STARTS = range(0, GRAPHS, TOGETHER)
RTL_TOGETHER, RTL_PARTS = 10, 70
# Mnemonics of ops on integers that random graphs must meet.
MET = frozenset(
    """
    abs add arg_max arg_min bitwise_and bitwise_not bitwise_or bitwise_xor broadcast_to cast clamp concat conv
    cum_prod cum_sum div equal gather gather_elements gather_nd greater greater_equal less less_equal linear
    logical_and logical_not logical_or logical_xor lut mat_mul max_pool max_pool_positions maximum minimum mod mul neg
    pad position_of rank reduce_max reduce_min reduce_prod reduce_sum relu rescale reshape scatter_elements scatter_nd
    shift_left shift_right sign slice sub sum_pool transpose where
    """.split()
)


@pytest.mark.slow
@pytest.mark.share(start=8)
@pytest.mark.parametrize("target", ["cpu", "zynq"])
@pytest.mark.parametrize("start", STARTS)
def test_integer_graphs_give_the_bits_of_their_meaning(start: int, target: str) -> None:
    print(f"seeds {start} to {start + TOGETHER - 1}")
    failed = failures(range(start, start + TOGETHER), INTEGERS, target)
    assert not failed, report(failed, "integers", target)


@pytest.mark.slow
@pytest.mark.needs("verilator", "make")
@pytest.mark.share(start=RTL_PARTS)
@pytest.mark.parametrize("start", range(0, GRAPHS, RTL_TOGETHER))
def test_integer_graphs_give_the_bits_of_their_meaning_as_systemverilog(start: int) -> None:
    """Fewer at once: Verilator and g++ take longer over a design than it runs."""
    print(f"seeds {start} to {start + RTL_TOGETHER - 1}")
    failed = failures(range(start, start + RTL_TOGETHER), INTEGERS, "rtl")
    assert not failed, report(failed, "integers", "rtl")


def test_the_generator_meets_every_op_on_integers() -> None:
    """Guards the test above, which would prove less if a kind of op stopped appearing."""
    met: Counter[str] = Counter()
    dtypes: set[str] = set()
    returned = 0
    for start in STARTS[:10]:
        program, made = program_of(range(start, start + TOGETHER), INTEGERS)
        met.update(operation.name.rpartition(".")[2] for operation in program.ops())
        dtypes |= {kind.dtype for _, kind in program.inputs}
        given = {program.block.args[n] for m in made for n in m.inputs}
        returned += sum(v.ssa in given for m in made for v in m.values)
    assert sorted(MET - set(met)) == []
    assert dtypes == {*NATIVE, *ODD, "bool"}
    assert returned >= 20, "outputs that are inputs"


@contextmanager
def _one_wrong_bit(program: Program, seed: int) -> Iterator[Run]:
    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        runs = [evaluate(program, [stack[n] for stack in inputs]) for n in range(len(inputs[0]))]
        results = [np.stack(r) for r in zip(*runs, strict=True)]
        last = results[-1].reshape(-1)
        last[-1] = last[-1] ^ 1
        return results

    yield run


def test_one_wrong_bit_is_found_and_its_graph_can_be_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(graph_check.TARGETS, "wrong", _one_wrong_bit)
    failed = failures(range(40, 50), INTEGERS, "wrong")
    assert list(failed) == [49]
    text = report(failed, "integers", "wrong")
    assert "python -m tests.support.graph_check --kind integers --seed 49 --target wrong" in text
    assert "expected" in text
    assert "\n  input " in text
