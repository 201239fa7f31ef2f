"""Narrows each accumulator to the width that the actual weights and the known range of the input need, never less.

before: %0 = clamp %x {lo = 0}; %1 = conv %0, %w, %b {acc = "i32"}; %2 = rescale %1
after:  %0 = clamp %x {lo = 0}; %1 = conv %0, %w, %b' {acc = "i17"}; %2 = rescale %1

The bound holds for every partial sum in any order. Ranges come from the type, narrowed by clamp, rescale and lut
before.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.base import Op, ShapeError
from cuvil_hw.ops.cast import Cast
from cuvil_hw.ops.interval import Interval
from cuvil_hw.ops.nn import Conv, Linear
from cuvil_hw.ops.reduce import MatMul
from cuvil_hw.passes.edit import const_array, insert, mnemonic, replace, walk
from cuvil_hw.passes.layers import layer_bounds
from cuvil_hw.passes.quantize.arithmetic import MAX_ACCUMULATOR_BITS, MAX_SUM_BITS, accumulator

Ranges = dict[SSAValue, Interval]


def run(program: Program) -> None:
    known: Ranges = {}
    for operation in walk(program.block):
        op = operation.op
        if op.accumulator():
            narrow(program, operation, op, known)
        elif len(operation.results) == 1 and dtypes.is_int(level1.type_of(operation.results[0]).dtype):
            known[operation.results[0]] = after(program, operation, known)


def interval(program: Program, value: SSAValue, known: Ranges) -> Interval:
    """The range of `value`: its known range, that of a constant's elements, or its type's."""
    if value in known:
        return known[value]
    array = const_array(program, value)
    if array is not None and array.size:
        return Interval(int(array.min()), int(array.max()))
    return Interval.of(level1.type_of(value).dtype)


def after(program: Program, operation: level1.TensorOp, known: Ranges) -> Interval:
    """The range of the result of an integer op, and of its accumulator if it has one."""
    types, ranges = list(map(level1.type_of, operation.operands)), []
    if types and all(dtypes.is_int(t.dtype) for t in types):
        ranges = [interval(program, v, known) for v in operation.operands]
    found = operation.op.value_range(types, ranges) if ranges else None
    return Interval.of(level1.type_of(operation.results[0]).dtype) if found is None else found


def bounds(program: Program, operation: level1.TensorOp, known: Ranges) -> Interval:
    """The range of values that the accumulator can hold during the op."""
    op = operation.op
    if not isinstance(op, Conv | Linear | MatMul):
        return after(program, operation, known)
    ranges = [interval(program, v, known) for v in operation.operands]
    weights = const_array(program, operation.operands[1])
    bias = const_array(program, operation.operands[2]) if len(operation.operands) > 2 else None
    if bias is None and len(operation.operands) > 2:
        unknown = ranges[2]
        inner = layer_bounds(op, ranges[0], op.x_zp, weights, ranges[1], op.w_zp, None, shape(operation, 1))
        return inner + Interval(min(unknown.lo, 0), max(unknown.hi, 0))
    return layer_bounds(op, ranges[0], op.x_zp, weights, ranges[1], op.w_zp, bias, shape(operation, 1))


def shape(operation: level1.TensorOp, i: int) -> tuple[int, ...]:
    return level1.type_of(operation.operands[i]).shape


def narrow(program: Program, operation: level1.TensorOp, op: Op, known: Ranges) -> None:
    """Give `operation` its narrowest accumulator, convert its constant bias to that type, and keep the types that
    readers expect."""
    found = bounds(program, operation, known)
    operands = list(operation.operands)
    put = insert(program, operation)
    bias = const_array(program, operands[2]) if len(operands) > 2 else None
    if len(operands) > 2 and bias is None:
        known[operation.results[0]] = found
        return
    old = op.accumulator()
    if wraps(operation, old, found):
        known[operation.results[0]] = Interval.of(old)
        return
    limit = MAX_SUM_BITS if op.integer_form == "arithmetic" else MAX_ACCUMULATOR_BITS
    acc = readable(operation.results[0], accumulator(found, level1.loc_of(operation), limit))
    if bias is not None and acc != old:
        operands[2] = put.const(bias, acc)
    new = operation.results[0] if acc == old else put.op(op.with_accumulator(acc), *operands)
    known[new] = found
    if acc == old:
        return
    for use in list(operation.results[0].uses):
        reader = use.operation
        if mnemonic(reader) in ("rescale", "dequantize"):
            reader.operands[use.index] = new
        else:
            reader.operands[use.index] = insert(program, reader).op(Cast(old), new)
            known[reader.operands[use.index]] = found if fits(found, old) else Interval.of(old)
    replace(operation, new)


def fits(bounds: Interval, dtype: str) -> bool:
    lo, hi = dtypes.int_range(dtype)
    return lo <= bounds.lo and bounds.hi <= hi


def wraps(operation: level1.TensorOp, acc: str, bounds: Interval) -> bool:
    """Whether sums may exceed 64 bits. Only those of a program's own integers (not quantized ones) can; they wrap, as
    everywhere."""
    read = {mnemonic(u.operation) for u in operation.results[0].uses}
    return acc == "i64" and not fits(bounds, f"i{MAX_ACCUMULATOR_BITS}") and read.isdisjoint({"rescale", "dequantize"})


def readable(value: SSAValue, acc: str) -> str:
    """`acc`, or the next wider type that every rescale of `value` accepts (a rescale with constant result needs a wider
    one)."""
    kind = level1.type_of(value)
    rescales = [
        u.operation.op
        for u in value.uses
        if isinstance(u.operation, level1.TensorOp) and mnemonic(u.operation) == "rescale"
    ]
    for bits in range(int(acc[1:]), 65):
        try:
            for op in rescales:
                op.infer(kind.with_dtype(f"i{bits}"))
        except ShapeError:
            continue
        return f"i{bits}"
    return kind.dtype
