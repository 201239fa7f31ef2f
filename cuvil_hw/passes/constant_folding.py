"""Folds constants and removes ops without effect.

before: %w = const; %t = transpose %w {perm = [1, 0]}; %y = sub %x, zeros; %z = reshape (reshape %y)
after:  %t = const (transposed bytes);                                     %z = reshape %x

A result is stored only if it isn't much larger than its operands: a bias broadcast over an image stays a small constant
and a `broadcast_to`. `dequantize` of a constant stays too, since quantization needs to see it; the option `dequantize`
folds it in programs that stay float.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops import base
from cuvil_hw.ops.shape import Reshape, Transpose
from cuvil_hw.passes import dce
from cuvil_hw.passes.edit import Array, const_array, insert, mnemonic, producer, replace, splat_of, until_stable

SMALL = 4096  # elements that may always be stored


def run(program: Program) -> None:
    fold(program, dequantize=False)


def fold(program: Program, dequantize: bool) -> None:
    def rule(operation: level1.TensorOp) -> bool:
        return identity(program, operation) or constant(program, operation, dequantize)

    until_stable(program.block, rule)
    dce.run(program)


def constant(program: Program, operation: level1.TensorOp, dequantize: bool) -> bool:
    name = mnemonic(operation)
    if not operation.operands or len(operation.results) != 1 or (name == "dequantize" and not dequantize):
        return False
    kind = level1.type_of(operation.results[0])
    put = insert(program, operation)
    if name == "broadcast_to":
        value = splat_of(program, operation.operands[0])
        if value is None:
            return False
        replace(operation, put.const(np.broadcast_to(value, kind.shape), kind.dtype))
        return True
    arrays = [operand_array(program, v) for v in operation.operands]
    known = [a for a in arrays if a is not None]
    if len(known) != len(arrays) or kind.size > max(SMALL, *(base.stored(a) for a in known)):
        return False
    replace(operation, put.const(base.evaluate(operation.op, known)[0], kind.dtype))
    return True


def operand_array(program: Program, value: SSAValue) -> Array | None:
    """The array of a const, or of a broadcast const (as a view, which costs no memory)."""
    spread = producer(value, "broadcast_to")
    if spread is None:
        return const_array(program, value)
    array = const_array(program, spread.operands[0])
    return None if array is None else np.broadcast_to(array, level1.type_of(value).shape)


def identity(program: Program, operation: level1.TensorOp) -> bool:
    """Remove ops that return their first operand; merge pairs of views into one view."""
    if not operation.operands:
        return False
    x = operation.operands[0]
    same = x.type == operation.results[0].type
    name, op = mnemonic(operation), operation.op
    types = [level1.type_of(v) for v in operation.operands]
    if same and op.is_identity(types, lambda n: splat_of(program, operation.operands[n])):
        replace(operation, x)
        return True
    inner = producer(x, name)
    if name == "reshape" and inner is not None:
        replace(operation, insert(program, operation).op(op, inner.operands[0]))
        return True
    if isinstance(op, Transpose) and inner is not None and isinstance(inner.op, Transpose):
        perm = tuple(inner.op.perm[p] for p in op.perm)
        replace(operation, insert(program, operation).op(Transpose(perm), inner.operands[0]))
        return True
    if isinstance(op, Transpose) and moves_only_ones(level1.type_of(x).shape, op.perm):
        replace(operation, insert(program, operation).op(Reshape(level1.type_of(operation.results[0]).shape), x))
        return True
    return False


def moves_only_ones(shape: tuple[int, ...], perm: tuple[int, ...]) -> bool:
    """Whether a transpose keeps the order of all extents other than 1, so that the bytes stay in place."""
    real = [p for p in perm if shape[p] != 1]
    return real == sorted(real)
