"""Divides a program between target and processor: ops that the target refuses become host steps if they are at the ends
of the program.

before: quantize → conv → rescale → dequantize → softmax
after:  prologue [quantize], core {conv, rescale}, epilogue [dequantize, softmax]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Adapter, RunsLoops
from cuvil_hw.compile.precision import CONVERT
from cuvil_hw.errors import Refusal, Unsupported
from cuvil_hw.ir import level1
from cuvil_hw.ir.loops import loops_of
from cuvil_hw.ir.program import Program, constant_value
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.integer import Dequantize, Quantize
from cuvil_hw.passes.pipeline import INTEGER, UnrollSteps, run_passes, run_pipeline
from cuvil_hw.runtime.host import HostProgram, HostStep, sample_wise
from cuvil_hw.runtime.host_work import HostOp
from cuvil_hw.types import TensorType

Refuses = Callable[[Op, tuple[TensorType, ...], tuple[TensorType, ...]], str | None]


def can_be_integer(operation: level1.TensorOp) -> bool:
    """Whether quantization may turn the operation into integer arithmetic."""
    spec = operation.spec
    return spec.pointwise or spec.moves or spec.monotone != "none" or spec.integer_form != "none"


@dataclass(frozen=True)
class Partition:
    """A program in three parts.

    Attributes:
        prologue: computes the core's inputs from the program's.
        epilogue: computes the program's outputs from the core's, and from any value of the prologue.
        constants: arrays that host steps read, by name.
        host: the cost of each host step, and why it is there.
    """

    prologue: HostProgram
    core: Program
    epilogue: HostProgram
    constants: Mapping[str, npt.NDArray[np.generic]]
    host: tuple[HostOp, ...] = ()


def split(program: Program, refuses: Refuses, target: str = "the target", *, float_ends: bool = False) -> Partition:
    """Divide `program` (no groups yet) into prologue, core and epilogue.

    A refused op becomes a host step if only refused ops and views lie between it and the inputs, or the outputs.

    Args:
        refuses: (op, operand types, result types) → None, or why the target doesn't run it.
        target: name for messages.
        float_ends: also move float ops to the host, if they come before the first quantize or after the last dequantize
            of integer computations. In a program without such a place, or without anything else, only float ops that
            rearrange elements move.

    Raises Unsupported, listing every refused op, if one lies in the middle or nothing is left for the target.
    """
    ops = [o for o in program.block.ops if isinstance(o, level1.TensorOp)]
    if not ops:  # returns constants, or its inputs: copies for the target
        inputs, outputs = (tuple(n for n, _ in ports) for ports in (program.inputs, program.outputs))
        return Partition(HostProgram((), inputs, inputs), program, HostProgram((), outputs, outputs), {})
    reasons = {o: why for o in ops if (why := refuses(o.op, _types(o.operands), _types(o.results))) is not None}
    before, after, core = _ends(ops, reasons)
    if float_ends:
        floats = [o for o in ops if _has_floats(o)]
        quantized = any(isinstance(o.op, Quantize | Dequantize) for o in ops)
        for wanted in (floats if quantized else [], [o for o in floats if _moves(o)]):
            wide = _ends(ops, {**dict.fromkeys(wanted, ""), **reasons})
            if wanted and wide[2]:
                before, after, core = wide
                break
    middle = [o for o in reasons if o not in before and o not in after]
    if middle or not core:
        raise Unsupported(_refusals({o: reasons[o] for o in middle or reasons}), f"{program.name} on {target}")
    host = [_host_op("before", o, reasons) for o in ops if o in before]
    host += [_host_op("after", o, reasons) for o in ops if o in after]
    return replace(_cut(program, before, core, after), host=tuple(host))


def without_loops(program: Program, adapter: Adapter) -> Program:
    """The program, its loops unrolled where the target has none; a note in `program` says so."""
    loops = loops_of(program.block)
    if not loops or (isinstance(adapter, RunsLoops) and adapter.runs_loops):
        return program
    steps = ", ".join(f"{level1.loc_of(x.begin) or 'a loop'} ({x.first.steps} steps)" for x in loops)
    program.notes["loops"] = (f"{adapter.name} has no loops around layers, each step is built by itself: {steps}",)
    unrolled = program.clone()
    run_passes(unrolled, [UnrollSteps()])
    run_pipeline(unrolled, INTEGER)
    return unrolled


def _host_op(where: str, operation: level1.TensorOp, reasons: Mapping[level1.TensorOp, str]) -> HostOp:
    op, operands = operation.op, _types(operation.operands)
    size = sum(level1.type_of(r).size for r in operation.results)
    whole = sample_wise(op, [level1.type_of(v) for v in operation.operands if not isinstance(v.owner, level1.ConstOp)])
    count = op.count_products(operands, size)
    return HostOp(where, op.mnemonic, level1.loc_of(operation), reasons.get(operation, ""), count, size, not whole)


def _ends(
    ops: Sequence[level1.TensorOp], chosen: Mapping[level1.TensorOp, str]
) -> tuple[set[level1.TensorOp], set[level1.TensorOp], list[level1.TensorOp]]:
    """(ops of `chosen` that the processor can run before the target, those after it, all ops between)."""
    before = _before(ops, chosen)
    after = _after(ops, chosen, before)
    return before, after, [o for o in ops if o not in before and o not in after]


def _has_floats(operation: level1.TensorOp) -> bool:
    return any(dtypes.is_float(t.dtype) for t in _types([*operation.operands, *operation.results]))


def _types(values: Sequence[SSAValue]) -> tuple[TensorType, ...]:
    return tuple(map(level1.type_of, values))


def _is_free(operation: level1.TensorOp) -> bool:
    """Pulling it to the processor with a refused op costs nothing."""
    return operation.spec.costs_nothing


def _before(ops: Sequence[level1.TensorOp], reasons: Mapping[level1.TensorOp, str]) -> set[level1.TensorOp]:
    """Refused ops that read only inputs, constants, other such ops and views of them; and these views."""
    reachable: set[Operation] = set()
    for operation in ops:
        if (operation in reasons or _is_free(operation)) and all(_is_outside(v, reachable) for v in operation.operands):
            reachable.add(operation)
    kept: set[level1.TensorOp] = set()
    for operation in reversed(ops):
        if operation in reachable and (
            operation in reasons or any(u.operation in kept for u in operation.results[0].uses)
        ):
            kept.add(operation)
    for operation in ops:
        if operation in reachable and _moves(operation) and any(v.owner in kept for v in operation.operands):
            kept.add(operation)
    return kept


def _moves(operation: level1.TensorOp) -> bool:
    """Whether the operation only rearranges elements. Between device and processor the processor should do that, so
    that the device's kernels can stream."""
    return operation.spec.is_view and len({t.size for t in _types([*operation.operands, *operation.results])}) == 1


def _is_outside(value: SSAValue, done: set[Operation]) -> bool:
    return isinstance(value.owner, Block | level1.ConstOp) or value.owner in done


def _after(
    ops: Sequence[level1.TensorOp], reasons: Mapping[level1.TensorOp, str], before: set[level1.TensorOp]
) -> set[level1.TensorOp]:
    """Refused ops that are read only by outputs, other such ops and views; and these views."""
    reachable: set[Operation] = set()
    for operation in reversed(ops):
        ends = all(
            isinstance(u.operation, ReturnOp) or u.operation in reachable for r in operation.results for u in r.uses
        )
        if operation not in before and (operation in reasons or _is_free(operation)) and ends:
            reachable.add(operation)
    kept: set[level1.TensorOp] = set()
    for operation in ops:
        if operation in reachable and (operation in reasons or any(v.owner in kept for v in operation.operands)):
            kept.add(operation)
    for operation in reversed(ops):
        if operation in reachable and _moves(operation) and any(u.operation in kept for u in operation.results[0].uses):
            kept.add(operation)
    return kept


def _refusals(reasons: Mapping[level1.TensorOp, str]) -> list[Refusal]:
    """One entry per kind of op and reason, with advice that can work: only f32 among floats can be quantized, and only
    ops with an integer form."""
    found: dict[tuple[str, str], list[str]] = {}
    for operation, why in reasons.items():
        types = {t.dtype for t in _types([*operation.operands, *operation.results]) if dtypes.is_float(t.dtype)}
        if types - {"f32"}:
            why += f"; {CONVERT}"
        elif types and can_be_integer(operation):
            why += "; quantize the model (precision int8 or fixed<W,I>)"
        elif types and not isinstance(operation.op, Quantize | Dequantize):
            why += "; it has no integer form, choose a target that runs floats, such as cpu"
        found.setdefault((operation.spec.mnemonic, why), []).append(level1.loc_of(operation))
    return [Refusal(op, why, len(where), tuple(w for w in where if w)) for (op, why), where in found.items()]


def _cut(
    program: Program, before: set[level1.TensorOp], core: Sequence[level1.TensorOp], after: set[level1.TensorOp]
) -> Partition:
    inside: set[Operation] = set(core)
    results = list(program.block.ops)[-1].operands
    crossing_in = list(dict.fromkeys(v for o in core for v in o.operands if not _in_core(v, inside)))
    crossing_out = [
        r for o in core for r in o.results if any(u.operation not in inside for u in r.uses)
    ]  # every value that the epilogue or the caller reads
    names: dict[SSAValue, str] = {v: n for v, (n, _) in zip(program.block.args, program.inputs, strict=True)}
    taken = set(names.values())

    def name(value: SSAValue, wanted: str) -> str:
        if value not in names:
            count, candidate = 0, wanted
            while candidate in taken:
                count += 1
                candidate = f"{wanted}_{count}"
            names[value] = candidate
            taken.add(candidate)
        return names[value]

    for value, (output, _) in zip(results, program.outputs, strict=True):
        name(value, output)
    for number, value in enumerate([*crossing_in, *crossing_out]):
        name(value, f"v{number}")
    constants: dict[str, npt.NDArray[np.generic]] = {}

    def read(value: SSAValue) -> str:
        label = name(value, "t")
        if isinstance(value.owner, level1.ConstOp):
            constants[label] = constant_value(value.owner, program.constants)
        return label

    def steps(chosen: set[level1.TensorOp]) -> tuple[HostStep, ...]:
        ordered = [o for o in program.block.ops if o in chosen and isinstance(o, level1.TensorOp)]
        return tuple(
            HostStep.of(o.op, [read(v) for v in o.operands], [name(r, "t") for r in o.results]) for o in ordered
        )

    prologue = HostProgram(steps(before), tuple(n for n, _ in program.inputs), tuple(read(v) for v in crossing_in))
    epilogue = HostProgram(steps(after), tuple(name(v, "t") for v in crossing_out), tuple(read(v) for v in results))
    module = _core(program, core, crossing_in, crossing_out, names)
    return Partition(
        prologue,
        Program(module, program.constants, program.name, dict(program.notes)),
        epilogue,
        constants,
    )


def _in_core(value: SSAValue, inside: set[Operation]) -> bool:
    return isinstance(value.owner, level1.ConstOp) or value.owner in inside


def _core(
    program: Program,
    core: Sequence[level1.TensorOp],
    inputs: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
    names: Mapping[SSAValue, str],
) -> ModuleOp:
    """The core as a separate module; `program` isn't changed."""
    block = Block(arg_types=[v.type for v in inputs])
    mapped: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
    chosen: set[Operation] = set(core)
    for operation in program.block.ops:
        if (
            isinstance(operation, level1.ConstOp) and any(u.operation in chosen for u in operation.results[0].uses)
        ) or operation in chosen:
            block.add_op(operation.clone(mapped))
    block.add_op(ReturnOp(*[mapped[v] for v in outputs]))
    main = FuncOp("main", FunctionType.from_lists([v.type for v in inputs], [v.type for v in outputs]), Region(block))
    main.attributes["input_names"] = ArrayAttr([StringAttr(names[v]) for v in inputs])
    main.attributes["output_names"] = ArrayAttr([StringAttr(names[v]) for v in outputs])
    module = ModuleOp([main])
    module.verify()
    return module
