"""Programs with quantize/dequantize pairs as integer programs.

before: %1 = dequantize %x; %2 = conv %1, (dequantize %w), %b; %3 = relu %2; %y = quantize %3
after:  %1 = conv %x, %w, %b' {acc = "i20"}; %y = rescale %1

Rules, applied until none fires (each is exact unless its module says otherwise):
  dead.py         scales of 0 go, first
  move.py         quantize climbs up and dequantize sinks down through views, relu, clamp, maxima, choices
  layers.py       conv, linear, mat_mul, pools and means of dequantized tensors become integer ops under one dequantize
  lookup_tables.py        other elementwise arithmetic between dequantize and quantize becomes a table
  affine.py       sums of quantized tensors, and their products and sums with constants
  arithmetic.py   products of quantized tensors
  carry.py        both leave loops at their edges, so that these carry integers
  here            quantize(dequantize(x)) is x, or a rescale; equal quantizations of one value are one
What matches no rule stays float between explicit quantize and dequantize.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.integer import Quantize
from cuvil_hw.passes import affine, arithmetic, carry, constant_folding, dead, layers, lookup_tables, matmul, move
from cuvil_hw.passes.edit import insert, replace, until_stable, users
from cuvil_hw.passes.quantize.arithmetic import MAX_ACCUMULATOR_BITS
from cuvil_hw.passes.real import quantizer, real


def run(program: Program) -> None:
    constant_folding.run(program)
    dead.run(program)
    matmul.run(program)

    for rules in (CLIMB, RULES):

        def step(operation: level1.TensorOp, rules: tuple[Rule, ...] = rules) -> bool:
            return any(rule(program, operation) for rule in rules)

        until_stable(program.block, step)
    constant_folding.run(program)


def shared(program: Program, operation: level1.TensorOp) -> bool:
    """A quantize that equals an earlier one of the same value."""
    if not isinstance(operation.op, Quantize):
        return False
    for other in users(operation.operands[0]):
        same = other is not operation and other.name == operation.name and other.properties == operation.properties
        if same and other.parent is operation.parent and other.is_before_in_block(operation):
            replace(operation, other.results[0])
            return True
    return False


def meet(program: Program, operation: level1.TensorOp) -> bool:
    """quantize(dequantize(x)): x itself when both agree, else a rescale."""
    q, x = quantizer(operation), real(operation.operands[0]) if operation.operands else None
    if q is None or x is None or x.bits > MAX_ACCUMULATOR_BITS:
        return False
    same = (x.scale, x.zero[:1], x.type.dtype) == (q.scale, q.zero_point[:1], q.dtype)
    if x.bits <= 16 and x.per_tensor and same and q.rounding != "sign":
        replace(operation, x.q)
        return True
    replace(operation, affine.rescaled(insert(program, operation), affine.Term.of(x), np.zeros([1] * x.type.rank), q))
    return True


Rule = Callable[[Program, level1.TensorOp], bool]
# First quantize climbs as far as it can, so that relu and the like end up on narrow tensors, not on accumulators.
CLIMB: tuple[Rule, ...] = (shared, lookup_tables.tabulate, move.quantize_up, carry.loop)
RULES: tuple[Rule, ...] = (
    *(shared, meet, carry.loop, move.dequantize_down, layers.layer, layers.average, arithmetic.scaled),
    *(lookup_tables.tabulate, move.quantize_up, affine.combine, affine.leaky, arithmetic.combine),
)
