"""Post-training quantization: places quantize/dequantize pairs around the ops of a float program, from calibration
data.

before: %1 = conv %x, %w, %b; %2 = relu %1; %3 = linear …
after:  %q = dequantize (quantize %x); %1 = conv %q, dequantize(%w'), %b; %2 = relu %1; %3 = dequantize (quantize %2); …

passes/integerize.py then turns the pairs into integer arithmetic. A value is quantized once, as late as the views,
relu, clamp and pools of maxima after it allow, so that a layer and its activation share one range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import Operation, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level1
from cuvil_hw.ir.loops import is_edge, loops_of
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.elementwise import Relu
from cuvil_hw.ops.integer import Dequantize, Quantize
from cuvil_hw.ops.reduce import ArgMax, ArgMin
from cuvil_hw.passes.edit import (
    const_array,
    insert,
    integer_form,
    is_const,
    mnemonic,
    owner,
    producer,
    sole_user,
    spec,
    splat_of,
    static_array,
    users,
)
from cuvil_hw.passes.lookup_tables import MAX_BITS, costs_nothing, fits
from cuvil_hw.passes.move import is_monotone, keeps_range
from cuvil_hw.passes.quantize.calibrate import ObservedRange, Statistics, digest, numbered
from cuvil_hw.passes.quantize.edges import Edges, share_range
from cuvil_hw.passes.quantize.scores import scores
from cuvil_hw.target.schemes import Fixed, Grid, Int8, Scheme

BIAS_LIMIT = 2.0**30  # a bias beyond this many steps makes the weight scale larger


@dataclass(frozen=True)
class Placed:
    """`taps`: for each quantized value, by its number in the float program: the integers that represent it, and their
    grid."""

    program: Program
    taps: Mapping[int, tuple[SSAValue, Grid]]


def quantize(program: Program, stats: Statistics, scheme: Scheme) -> Program:
    """A copy of `program` (float, batch norms folded) with quantize/dequantize pairs. Raises CuvilError if the
    statistics are of another program, or if constants have no integer form: NaN, infinite weights."""
    return place(program, stats, scheme).program


def place(program: Program, stats: Statistics, scheme: Scheme) -> Placed:
    """The same, with where each value went."""
    check_constants(program)
    if stats.program != digest(program):
        raise CuvilError("the calibration statistics belong to another program; collect them again on this one")
    ranges = {v: stats.ranges[i] for v, i in numbered(program).items() if i in stats.ranges}
    for state in (s for loop in loops_of(program.block) for s in loop.carried):
        share_range(ranges, state[1], state[2])
    copy = Program(program.module.clone(), program.constants, program.name, dict(program.notes), program.calling)
    before = list(numbered(copy))
    matching = dict(zip(numbered(program), before, strict=True))
    kept = scores(copy)
    found = {o: v for o, v in table_inputs(copy, is_wide(scheme)).items() if o not in kept}
    placed = _Placement(copy, scheme, {matching[v]: r for v, r in ranges.items()}, found, kept)
    wanted = placed.values_to_quantize()
    layers = [o for o in copy.block.ops if integer_form(o) == "layer" and placed.supported(o)]
    for value, full in wanted.items():
        placed.place(value, full)
    for operation in layers:
        placed.weights(operation)
    copy.verify()
    numbers = {v: n for n, v in enumerate(before)}
    return Placed(copy, {numbers[v]: tap for v, tap in placed.taps.items()})


def out_of_range(program: Program, stats: Statistics, scheme: Scheme) -> tuple[str, ...]:
    """Warnings for a fixed grid: the values seen in calibration that exceed it and will saturate."""
    if not isinstance(scheme, Fixed):
        return ()
    lo, hi = (scheme.step * end for end in dtypes.int_range(scheme.dtype))
    found = []
    kept = scores(program)
    for value, number in numbered(program).items():
        seen = stats.ranges.get(number) if value.owner not in kept else None
        if seen is not None and (seen.lo < lo - scheme.step or seen.hi > hi + scheme.step):
            at = level1.loc_of(value.owner) if isinstance(value.owner, Operation) else "an input"
            beyond = seen.lo if -seen.lo > seen.hi else seen.hi
            grid = f"fixed<{scheme.width},{scheme.integer}> holds [{lo:g}, {hi:g}]"
            found.append(f"{grid}, but {at} reaches {beyond:g}: it saturates")
    for operation, weights in layer_weights(program):
        if weights.min(initial=0.0) < lo - scheme.step or weights.max(initial=0.0) > hi + scheme.step:
            beyond = weights.flat[np.abs(weights).argmax()]
            grid = f"fixed<{scheme.width},{scheme.integer}> holds [{lo:g}, {hi:g}]"
            found.append(f"{grid}, but a weight of {level1.loc_of(operation)} is {beyond:g}: it saturates")
    return tuple(found)


def layer_weights(program: Program) -> Iterator[tuple[Operation, npt.NDArray[Any]]]:
    """Every constant factor of the layers, one for each operand."""
    for operation in program.block.ops:
        if integer_form(operation) == "layer":
            for value in operation.operands[:2]:
                weights = const_array(program, value)
                if weights is not None:
                    yield operation, weights


def check_constants(program: Program) -> None:
    """Raises CuvilError for constants that no integer stands for: a cast would make up a value."""
    for operation in program.block.ops:
        for value in operation.operands:
            array = const_array(program, value)
            if array is not None and array.dtype.kind == "f" and np.isnan(array).any():
                raise CuvilError(
                    f"a constant of {mnemonic(operation) or 'the outputs'} at {level1.loc_of(operation)} holds NaN, "
                    "which has no integer; check the model's weights, or compile it with precision='float32'"
                )
    for operation, weights in layer_weights(program):
        if not np.isfinite(weights).all():
            raise CuvilError(
                f"weights of {mnemonic(operation)} at {level1.loc_of(operation)} are infinite and can't be quantized; "
                "check the model's weights, or compile it with precision='float32'"
            )


def is_wide(scheme: Scheme) -> bool:
    """Whether activations have too many bits to index a table."""
    return (dtypes.int_width(scheme.dtype) or (True, 0))[1] > MAX_BITS


def table_inputs(program: Program, wide: bool) -> dict[Operation, SSAValue]:
    """The ops that become part of a table, elementwise on one computed value, and the value that indexes the table.

    `wide`: activations have too many bits to index a table directly."""
    found: dict[Operation, SSAValue] = {}
    for operation in program.block.ops:
        if not fits(operation) or (wide and integer_form(operation) == "arithmetic"):
            continue
        computed = [v for v in operation.operands if splat_of(program, v) is None]
        indices = {found.get(v.owner, v) if isinstance(v.owner, Operation) else v for v in computed}
        begins = operation.operands[0] in indices
        if len(indices) == 1 and not (costs_nothing(operation) and begins):
            found[operation] = indices.pop()
    return found


@dataclass(frozen=True)
class _Placement:
    """Decides where pairs go.

    `tables`: from `table_inputs`, before any pair is placed. `floats`: ops that stay float (`scores`).
    """

    program: Program
    scheme: Scheme
    ranges: dict[SSAValue, ObservedRange]
    tables: dict[Operation, SSAValue]
    floats: frozenset[Operation]
    taps: dict[SSAValue, tuple[SSAValue, Grid]] = field(default_factory=dict)

    @cached_property
    def edges(self) -> Edges:
        return Edges.of(self.program)

    @property
    def wide(self) -> bool:
        return is_wide(self.scheme)

    def tabled(self, operation: Operation | None) -> bool:
        return operation in self.tables

    def source(self, value: SSAValue) -> SSAValue:
        """The value that the table computing `value` is indexed by; `value` itself when no table computes it."""
        operation = owner(value)
        return value if operation is None else self.tables.get(operation, value)

    def supported(self, operation: Operation) -> bool:
        """Whether the op can be integer arithmetic once its operands are quantized."""
        op = spec(operation)
        if operation in self.floats:
            return False
        if not operation.results or level1.type_of(operation.results[0]).dtype != "f32":
            return isinstance(op, ArgMax | ArgMin)
        if integer_form(operation) == "layer":
            w = operation.operands[1]
            bias = operation.operands[2:]
            return (is_const(w) or static_array(self.program, w) is None) and all(is_const(v) for v in bias)
        if integer_form(operation) == "arithmetic":
            return not all(static_array(self.program, v) is not None for v in operation.operands)
        return integer_form(operation) == "sum" or self.tabled(operation)

    def follows(self, operation: Operation | None) -> bool:
        """Whether quantize can move up through the op."""
        return is_monotone(operation) and not self.tabled(operation) and operation not in self.floats

    def values_to_quantize(self) -> dict[SSAValue, bool]:
        """Values that get a pair, in order; False: only the narrower one that tables read, as it is quantized
        already."""
        wanted: dict[SSAValue, bool] = {}
        done: set[SSAValue] = set()
        for value in self.ranges:
            operation = owner(value)
            if (
                level1.type_of(value).dtype != "f32"
                or value.first_use is None
                or static_array(self.program, value) is not None
                or operation in self.floats
            ):
                continue
            if (
                operation is not None
                and self.follows(operation)
                and keeps_range(operation)
                and operation.operands[0] in done
            ):
                done.add(value)  # has the range of what it was made from
                if self.wide and any(self.tabled(u) for u in users(value)):
                    wanted[value] = False
                continue
            if self.inside_table(value):
                continue
            reader = sole_user(value)
            if reader is not None and self.follows(reader):
                continue  # quantized after the reader
            consumed = any(self.consumes(u, value) for u in users(value))
            if consumed or (self.computes(value) and not self.keeps_sums(value)):
                wanted[value] = True
                done.add(value)
        return wanted

    def keeps_sums(self, value: SSAValue) -> bool:
        """Whether `value` should keep the accumulator's width: a layer computes it exactly, and no integer arithmetic
        reads it."""
        operation = owner(value)
        while isinstance(operation, level1.TensorOp) and (operation.spec.is_view or isinstance(operation.op, Relu)):
            operation = owner(operation.operands[0])
        return isinstance(self.scheme, Int8) and integer_form(operation) == "layer"

    def inside_table(self, value: SSAValue) -> bool:
        """Whether a table computes `value` and only the same table reads it."""
        source = self.source(value)
        if source is value:
            return False
        return all(self.tabled(u) and self.source(u.results[0]) is source for u in users(value))

    def computes(self, value: SSAValue) -> bool:
        """Whether integer arithmetic produces `value`."""
        operation = owner(value)
        if operation is None:
            return False
        if self.follows(operation):
            return any(self.computes(v) for v in operation.operands)
        return self.supported(operation)

    def consumes(self, operation: Operation, value: SSAValue) -> bool:
        """Whether `operation` is integer arithmetic that reads `value`."""
        if self.follows(operation):
            return any(self.consumes(u, operation.results[0]) for u in users(operation.results[0]))
        return self.supported(operation)

    def grid(self, value: SSAValue) -> Grid:
        found = self.ranges[value]
        if isinstance(self.scheme, Int8):
            bits = self.bits(value, self.scheme)
            return self.scheme.activation(*found.clipped(self.scheme.ranges, bits), bits)
        return self.scheme.activation(found.lo, found.hi)

    def bits(self, value: SSAValue, scheme: Int8) -> int:
        """8, or more for what only tables, sums and products read; of a layer's result, if that holds for these too: it
        is one of the products that meet in a recurrent layer then."""
        value = self.edges.left.get(value, value)  # both ends of a step have one grid
        readers = list(self.readers(value))
        maker = self.maker(value)
        inner = self.is_inner(maker)
        if integer_form(maker) == "layer":
            inner = not any(map(self.tabled, readers)) and all(
                self.is_inner(second) for first in readers if first.results for second in self.readers(first.results[0])
            )
        inner = inner and bool(readers) and all(map(self.is_inner, readers))
        return scheme.inner(any(map(self.tabled, readers))) if inner else scheme.bits

    def maker(self, value: SSAValue) -> Operation | None:
        """The op that produces `value`, seen through ops that only move elements."""
        operation, seen = owner(value), set[SSAValue]()
        while operation is not None and value not in seen:
            seen.add(value)
            if value in self.edges.holds:
                value = self.edges.holds[value]
            elif keeps_range(operation) and not self.tabled(operation):
                value = operation.operands[0]
            else:
                break
            operation = owner(value)
        return operation

    def is_inner(self, operation: Operation | None) -> bool:
        return self.tabled(operation) or integer_form(operation) == "arithmetic"

    def readers(self, value: SSAValue, seen: set[SSAValue] | None = None) -> Iterator[Operation]:
        """The ops that read `value`, seen through ops that only move elements, and through the edges of loops."""
        seen = set() if seen is None else seen
        if value in seen:
            return
        seen.add(value)
        for other in self.edges.becomes.get(value, ()):
            yield from self.readers(other, seen)
        for user in users(value):
            if self.follows(user):
                yield from self.readers(user.results[0], seen)
            elif not is_edge(user):
                yield user

    def place(self, value: SSAValue, quantized: bool) -> None:
        """As `quantize`, and also says where each value was quantized."""
        readers = list(value.uses)
        block = self.program.block
        operation = owner(value)
        anchor = block.first_op if operation is None else operation.next_op
        assert anchor is not None, "a block ends in return"
        put = insert(self.program, anchor)
        loc = level1.loc_of(operation) if operation is not None else ""

        def pair(x: SSAValue, grid: Grid) -> SSAValue:
            q = put.op(Quantize((grid.scale,), (grid.zero,), grid.dtype), x, loc=loc)
            self.taps.setdefault(value, (q, grid))
            return put.op(Dequantize((grid.scale,), (grid.zero,)), q, loc=loc)

        tables = [u for u in readers if self.wide and self.tabled(u.operation)]
        others = [u for u in readers if u not in tables]
        full = pair(value, self.grid(value)) if others and quantized else value
        for use in others:
            use.operation.operands[use.index] = full
        if tables:
            narrow = pair(full, self.index_grid(value))
            for use in tables:
                use.operation.operands[use.index] = narrow

    def index_grid(self, value: SSAValue) -> Grid:
        """A power-of-two grid of as many bits as a table takes, over what the value really is."""
        top = self.ranges[value].absmax
        if isinstance(self.scheme, Fixed):
            top = min(top, math.ldexp(1.0, self.scheme.integer - 1))
        exponent = math.ceil(math.log2(top / ((1 << (MAX_BITS - 1)) - 1))) if top > 0 else 0
        return Grid(math.ldexp(1.0, max(-60, min(exponent, 60))), 0, f"i{MAX_BITS}")

    def weights(self, operation: Operation) -> None:
        """Constant weights as integers behind dequantize, the bias on the grid of their products with the input."""
        for i, value in enumerate(list(operation.operands[:2])):
            array = const_array(self.program, value)
            if array is None:
                continue
            scales = self.weight_scales(operation, array, mnemonic(operation) != "mat_mul" and i == 1)
            q, scale = quantized_weights(array, scales, self.scheme.dtype)
            put = insert(self.program, operation)
            w = put.const(q, self.scheme.dtype)
            operation.operands[i] = put.op(Dequantize(scale, (0,), 0), w)
        self.bias(operation)

    def bias(self, operation: Operation) -> None:
        """A constant bias rounded to a whole number of steps, where f32 can tell it from its neighbours."""
        bias = const_array(self.program, operation.operands[2]) if len(operation.operands) > 2 else None
        x, w = (scales_of(v) for v in operation.operands[:2])
        if bias is None or x is None or w is None:
            return
        step = x[0] * np.asarray(w)
        steps = bias.astype(np.float64) / step
        rounded = np.where(np.abs(steps) < 2.0**23, np.rint(steps) * step, bias)
        put = insert(self.program, operation)
        operation.operands[2] = put.const(rounded.astype(np.float32), "f32")

    def weight_scales(self, operation: Operation, w: npt.NDArray[Any], channels: bool) -> npt.NDArray[np.float64]:
        """One scale, or one per output channel; larger where the bias would need more than 31 bits on s_x · s_w."""
        per_channel = channels and isinstance(self.scheme, Int8) and self.scheme.per_channel
        tops = (
            np.abs(w).reshape(w.shape[0], -1).max(axis=1, initial=0.0)
            if per_channel
            else np.abs(w).max(initial=0.0).reshape(1)
        )
        scales = np.asarray([self.scheme.weight_scale(float(t)) for t in tops], np.float64)
        bias = const_array(self.program, operation.operands[2]) if len(operation.operands) > 2 else None
        if bias is not None and isinstance(self.scheme, Int8):
            x = scales_of(operation.operands[0]) or (1.0,)
            least = np.abs(bias.astype(np.float64)) / (x[0] * BIAS_LIMIT)
            scales = np.maximum(scales, least if per_channel else least.max(initial=0.0))
        return np.asarray(scales.astype(np.float32), np.float64)


def quantized_weights(
    w: npt.NDArray[Any], scales: npt.NDArray[np.float64], dtype: str
) -> tuple[npt.NDArray[np.int64], tuple[float, ...]]:
    """Integers (rounded half to even, saturated) and their scales: one, or one per index of the first dimension."""
    lo, hi = dtypes.int_range(dtype)
    shaped = scales.reshape(-1, *[1] * (w.ndim - 1)) if len(scales) > 1 else scales[0]
    q = np.clip(np.rint(w.astype(np.float64) / shaped), lo, hi).astype(np.int64)
    return q, tuple(float(s) for s in scales)


def scales_of(value: SSAValue) -> tuple[float, ...] | None:
    """The scales of a quantized operand, seen through the ops that keep them; None where no dequantize is found."""
    operation = owner(value)
    while operation is not None and keeps_range(operation):
        operation = owner(operation.operands[0])
    quantized = producer(operation.results[0], "dequantize") if operation is not None else None
    return quantized.op.scale if quantized is not None and isinstance(quantized.op, Dequantize) else None
