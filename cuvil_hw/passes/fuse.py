"""Every op into exactly one group that will be one kernel: one loop nest with at most one reduction and one result.
An op with several results is repeated for each one that is read.

before: %1 = conv %x, %w, %b; %2 = rescale %1; %3 = clamp %2
after:  %3 = group "conv_0" (%x, %w, %b) { conv; rescale; clamp }

A group is an anchor (an op that reduces) with the elementwise ops that follow it, or a tree of elementwise ops alone,
or one view. Constants stay outside, as operands; a constant that is broadcast is broadcast inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, Region, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.loops import Path, has_loops, is_edge, paths
from cuvil_hw.ir.program import Program
from cuvil_hw.passes.edit import is_const, mnemonic, owner, users

# A kernel's expression is walked by recursion: without a bound a chain of some hundred ops would end in RecursionError.
# Far above what a layer with its epilogue has.
MAX_OPS = 32


@dataclass(eq=False)
class Group:
    """Ops in order; the last one gives the result. `anchor`: the op that reduces, or one that nothing joins."""

    ops: list[level1.TensorOp] = field(default_factory=list)
    anchor: level1.TensorOp | None = None
    open: bool = True

    @property
    def result(self) -> SSAValue:
        return result_of(self.ops[-1])


def run(program: Program, residual_epilogue: bool = False, prologue_views: bool = True) -> None:
    """`residual_epilogue`: an elementwise op after an anchor may read one more computed tensor, such as a skip
    connection. `prologue_views`: a view or pad that one group alone reads is computed inside it."""
    block = program.block
    split_results(program)
    spread_constants(program)
    groups: dict[Operation, Group] = {}
    around = paths(block) if has_loops(block) else {}
    for operation in computing(block):
        assign(operation, groups, residual_epilogue, around)
    order = {operation: i for i, operation in enumerate(block.ops)}
    if prologue_views:
        for operation in reversed(computing(block)):
            pull(operation, groups)
    distinct = list(dict.fromkeys(groups[o] for o in order if o in groups))
    for number, group in enumerate(sorted(distinct, key=lambda g: order[g.ops[-1]])):
        emit(block, group, number, order)


def computing(block: Block) -> list[level1.TensorOp]:
    """The ops that become part of kernels: the edges of loops move nothing and stay between groups."""
    return [o for o in block.ops if isinstance(o, level1.TensorOp) and not is_edge(o)]


def split_results(program: Program) -> None:
    """Repeat every op for each of its results that is read, so that each of them can be a kernel's one result."""
    for operation in computing(program.block):
        for result in [r for r in operation.results if r.first_use is not None][1:]:
            copy = operation.clone()
            program.block.insert_op_before(copy, operation)
            result.replace_all_uses_with(copy.results[result.index])


def result_of(operation: Operation) -> SSAValue:
    """The result that is read; the first where none is."""
    return next((r for r in operation.results if r.first_use is not None), operation.results[0])


def spread_constants(program: Program) -> None:
    """Give every reader of a broadcast constant its own broadcast, so that the broadcast can move into the reader's
    group."""
    for operation in list(program.block.ops):
        if mnemonic(operation) == "broadcast_to" and is_const(operation.operands[0]):
            for use in list(operation.results[0].uses)[1:]:
                copy = operation.clone()
                program.block.insert_op_before(copy, operation)
                use.operation.operands[use.index] = copy.results[0]


def is_spread(value: SSAValue) -> bool:
    source = owner(value)
    return source is not None and mnemonic(source) == "broadcast_to" and is_const(source.operands[0])


def assign(
    operation: level1.TensorOp, groups: dict[Operation, Group], residual: bool, around: Mapping[Operation, Path]
) -> None:
    """Put an op into the groups of its operands, merging them if the rules allow; else start a group. `around`: the
    loops around each op; what is computed before a loop isn't computed again in every step."""
    if operation.op.composite:  # one that the adapter takes whole
        put([operation], operation, False, groups)
        return
    if not operation.spec.elementwise:
        constants = [groups.pop(o) for v in operation.operands if (o := owner(v)) is not None and is_spread(v)]
        ops = [o for g in constants for o in g.ops]
        anchored = not operation.spec.moves
        put([*ops, operation], operation if anchored else None, anchored, groups)
        return
    computed = [v for v in dict.fromkeys(operation.operands) if not is_const(v) and not is_spread(v)]
    joined: list[Group] = []
    for value in computed:
        group = groups.get(owner(value))  # type: ignore[arg-type]
        if group is None or not group.open or users(value) != [operation]:
            continue
        if around.get(operation) != around.get(group.ops[-1]) and not all(o.spec.moves for o in group.ops):
            continue
        if sum(len(g.ops) for g in (*joined, group)) >= MAX_OPS:
            continue
        if group.anchor is None or (not any(g.anchor is not None for g in joined) and (residual or len(computed) == 1)):
            joined.append(group)
        else:
            widening = peel(group, groups)
            if widening is not None:
                joined.append(widening)
    spreads = [groups[o] for v in operation.operands if is_spread(v) and (o := owner(v)) in groups]
    anchor = next((g.anchor for g in joined if g.anchor is not None), None)
    put([o for g in (*spreads, *joined) for o in g.ops] + [operation], anchor, True, groups)


def put(
    ops: list[level1.TensorOp], anchor: level1.TensorOp | None, open_: bool, groups: dict[Operation, Group]
) -> None:
    group = Group(list(dict.fromkeys(ops)), anchor, open_)
    for operation in group.ops:
        groups[operation] = group


def peel(group: Group, groups: dict[Operation, Group]) -> Group | None:
    """Remove ops from the end of a group that only widen its result, so that the narrower tensor is passed on."""
    taken: list[level1.TensorOp] = []
    while len(group.ops) > 1 and group.ops[-1] is not group.anchor:
        last = group.ops[-1]
        computed = [v for v in last.operands if not is_const(v)]
        if len(computed) != 1 or owner(computed[0]) is not group.ops[-2] or bits(result_of(last)) <= bits(computed[0]):
            break
        taken.insert(0, group.ops.pop())
    if not taken:
        return None
    put(taken, None, True, groups)
    return groups[taken[0]]


def bits(value: SSAValue) -> int:
    return dtypes.record(level1.type_of(value).dtype).bits


def pull(operation: Operation, groups: dict[Operation, Group]) -> None:
    """Move a view that is alone in its group into the only group that reads it."""
    group = groups[operation]
    alone = group.anchor is None and all(o.spec.moves and len(o.operands) == 1 for o in group.ops)
    if not alone or group.ops[-1] is not operation:
        return
    reading = users(group.result)
    readers = {id(groups[u]): groups[u] for u in reading if u in groups}
    if len(readers) != 1 or any(u not in groups for u in reading):
        return
    reader = next(iter(readers.values()))
    whole = reader.anchor is not None and reader.anchor.op.composite
    if whole or len(reader.ops) + len(group.ops) > MAX_OPS:
        return
    reader.ops[:0] = [o for o in group.ops if o not in reader.ops]
    for o in group.ops:
        groups[o] = reader


def emit(block: Block, group: Group, number: int, order: Mapping[Operation, int]) -> None:
    """Replace the ops by a group operation at the place of the last one. `order`: of the ops in the block."""
    main = group.anchor or group.ops[-1]
    ops = sorted(group.ops, key=order.__getitem__)
    inside = set(ops)
    inputs = list(dict.fromkeys(v for o in ops for v in o.operands if owner(v) not in inside))
    result, anchor = result_of(ops[-1]), ops[-1]
    body = Block(arg_types=[v.type for v in inputs])
    operation = level1.group(
        f"{mnemonic(main)}_{number}", inputs, [level1.type_of(result)], Region(body), level1.loc_of(main)
    )
    block.insert_op_before(operation, anchor)
    result.replace_all_uses_with(operation.results[0])
    arguments = dict(zip(inputs, body.args, strict=True))
    for o in ops:
        block.detach_op(o)
        for i, v in enumerate(list(o.operands)):
            if v in arguments:
                o.operands[i] = arguments[v]
        body.add_op(o)
    body.add_op(level1.YieldOp(operands=[[result]]))
