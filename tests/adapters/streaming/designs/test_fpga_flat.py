"""Every process of a streaming design is one pipelined loop nest; and the check for it can fail."""

from __future__ import annotations

import random

import pytest
from xdsl.dialects import func

from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.lowering.ports import memory_ports
from cuvil_hw.ir import legal
from cuvil_hw.ir.flat import breaks
from cuvil_hw.ir.program import Program
from tests.support import fpga_runner
from tests.support.flat_check import unflat
from tests.support.fpga_networks import network


@pytest.mark.share(seed=2)
@pytest.mark.parametrize("seed", range(12))
def test_random_networks_are_flat(seed: int) -> None:
    program: Program
    program, trace = network(seed)
    graph = fpga_runner.graph_of(program)
    choice = fpga_runner.random_choice(graph, random.Random(seed))
    module = dataflow.lower(graph, fpga_runner.forms_of(choice), 64)
    assert not unflat(module), trace
    assert not unflat(memory_ports(module)), trace


PROCESS = """
func.func @p(%in: !cuvil.stream<i8, 4>, %out: !cuvil.stream<i8, 4>) attributes {{cuvil.role = #cuvil.role<process>}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c8 = arith.constant 8 : index
  %w = "memref.alloca"() <{{operandSegmentSizes = array<i32: 0, 0>}}> {{cuvil.word = #cuvil.word}} : () -> memref<4xi8>
  %a = "memref.alloca"() <{{operandSegmentSizes = array<i32: 0, 0>}}> : () -> memref<8xi8>
  {0}
  func.return
}}
"""
LOOP = "scf.for %i = %c0 to %c8 step %c1 {{ {0} }} {{cuvil.pipeline = #cuvil.pipeline<1>}}"
READ = '"cuvil.level2.stream_read"(%in, %w) : (!cuvil.stream<i8, 4>, memref<4xi8>) -> ()'
WRITE = '"cuvil.level2.stream_write"(%out, %w) : (!cuvil.stream<i8, 4>, memref<4xi8>) -> ()'


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (LOOP.format(f"{READ} {WRITE}"), ""),
        (LOOP.format(READ) + LOOP.format(WRITE).replace("%i", "%j"), "2 loops, one after the other"),
        (LOOP.format(READ) + WRITE, "cuvil.level2.stream_write outside of the loop"),
        (f"scf.for %j = %c0 to %c8 step %c1 {{ {READ} {LOOP.format(WRITE)} }}", "holds more than another loop"),
        (LOOP.format(f"{READ} {LOOP.format(WRITE).replace('%i', '%j')}"), "isn't unrolled"),
        (LOOP.format("%q = arith.remui %i, %c3 : index"), "arith.remui by what is no power of two"),
        (LOOP.format("%q = arith.remui %i, %c8 : index"), ""),
        (LOOP.format("%v = memref.load %w[%i] : memref<4xi8>"), "a lane of a word is chosen by the run"),
        (
            LOOP.format(
                "%v = memref.load %a[%i] : memref<8xi8> %s = arith.addi %v, %v : i8 "
                "memref.store %s, %a[%i] : memref<8xi8>"
            ),
            "a running value in a memory",
        ),
    ],
)
def test_what_breaks_a_nest(body: str, why: str) -> None:
    module = legal.Parser(legal.context(), PROCESS.format(body)).parse_module()
    (process,) = (op for op in module.body.block.ops if isinstance(op, func.FuncOp))
    found = breaks(process)
    assert why in found[0] if why else not found, found
