"""Loops of level1: which ops a loop repeats (see ops/loop.py), whether they are sound, and how they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from xdsl.ir import Block, Operation, SSAValue

from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level1
from cuvil_hw.ops.base import Array
from cuvil_hw.ops.loop import LoopBegin, LoopEnd

Path = tuple[level1.TensorOp, ...]  # the loop_begin of each loop around something, the outermost first
NOWHERE: Path = ()


def begins(operation: object) -> TypeGuard[level1.TensorOp]:
    return isinstance(operation, level1.TensorOp) and issubclass(operation.spec, LoopBegin)


def ends(operation: object) -> TypeGuard[level1.TensorOp]:
    return isinstance(operation, level1.TensorOp) and issubclass(operation.spec, LoopEnd)


def is_edge(operation: Operation | None) -> bool:
    """Whether it begins or ends a loop."""
    return begins(operation) or ends(operation)


def has_loops(block: Block) -> bool:
    return any(map(is_edge, block.ops))


@dataclass(frozen=True, eq=False)
class LevelLoop:
    """A loop of a program. `body`: what a step computes, in order; loops within it among them."""

    begin: level1.TensorOp
    end: level1.TensorOp
    body: tuple[Operation | LevelLoop, ...]

    @property
    def first(self) -> LoopBegin:
        op = self.begin.op
        assert isinstance(op, LoopBegin)
        return op

    @property
    def last(self) -> LoopEnd:
        op = self.end.op
        assert isinstance(op, LoopEnd)
        return op

    @property
    def carried(self) -> tuple[tuple[SSAValue, SSAValue, SSAValue, SSAValue], ...]:
        """(initial, at the start of a step, at its end, after the last) of each state."""
        n = self.first.carried
        return tuple(zip(self.begin.operands[:n], self.begin.results[1 : 1 + n], self.end.operands[1 : 1 + n],
                         self.end.results[:n], strict=True))  # fmt: skip

    @property
    def sliced(self) -> tuple[tuple[SSAValue, SSAValue], ...]:
        """(tensor, its element in a step)."""
        n = self.first.carried
        return tuple(zip(self.begin.operands[n:], self.begin.results[1 + n :], strict=True))

    @property
    def stacked(self) -> tuple[tuple[SSAValue, SSAValue], ...]:
        """(result of a step, those of all steps)."""
        n = self.last.carried
        return tuple(zip(self.end.operands[1 + n :], self.end.results[n:], strict=True))


def paths(block: Block) -> dict[Operation, Path]:
    """The loops around each operation of a block; both edges of a loop lie outside of it. What a block returns isn't
    looked at.

    Raises CuvilError for what isn't a loop: an end of none, an op with values of two loops of which none is around the
    other, a value that is read behind its loop.
    """
    found: dict[Operation, Path] = {}
    within: dict[SSAValue, Path] = {}
    ended: set[Operation] = set()
    for operation in block.ops:
        if operation.next_op is None:
            found[operation] = NOWHERE
            break
        around: Path = NOWHERE
        for value in operation.operands:
            path = within.get(value, NOWHERE)
            longer, shorter = (path, around) if len(path) > len(around) else (around, path)
            if longer[: len(shorter)] != shorter or any(b in ended for b in path):
                raise _broken(operation, "reads values of a loop outside of it")
            around = longer
        if ends(operation):
            begin = operation.operands[0].owner
            if not around or around[-1] is not begin or operation.operands[0] is not around[-1].results[0]:
                raise _broken(operation, "ends no loop, or not the innermost one")
            _check_ends(around[-1], operation)
            ended.add(around[-1])
            around = around[:-1]
        found[operation] = around
        inside = around
        if begins(operation):
            inside = (*around, operation)
        if inside:
            within.update(dict.fromkeys(operation.results, inside))
    return found


def check(block: Block) -> None:
    """Raises CuvilError as `paths`, and for a block that returns a value of a loop."""
    around, end = paths(block) if has_loops(block) else {}, block.last_op
    for value in end.operands if end is not None and around else ():
        inside = around.get(value.owner) if isinstance(value.owner, Operation) else NOWHERE
        if inside or begins(value.owner):
            assert end is not None
            raise _broken(end, "reads values of a loop outside of it")


def _check_ends(begin: level1.TensorOp, end: level1.TensorOp) -> None:
    loop = LevelLoop(begin, end, ())
    states = [(before.type, after.type) for _, before, after, _ in loop.carried]
    agree = (loop.first.steps, loop.first.carried) == (loop.last.steps, loop.last.carried)
    if not agree or any(before != after for before, after in states):
        raise _broken(end, "has other states or steps than its loop_begin")


def _broken(operation: Operation, why: str) -> CuvilError:
    return CuvilError(f"{operation.name} at {level1.loc_of(operation) or 'an unnamed place'} {why}")


def arranged(block: Block) -> tuple[Operation | LevelLoop, ...]:
    """The operations of a block in an order in which they can run, those of each loop together. Raises CuvilError as
    `paths`."""
    if not has_loops(block):
        return tuple(block.ops)
    lists: dict[Path, list[Operation | LevelLoop]] = {NOWHERE: []}
    for operation, path in paths(block).items():
        if begins(operation):
            lists[(*path, operation)] = []
        elif ends(operation):
            begin = operation.operands[0].owner
            assert isinstance(begin, level1.TensorOp)
            lists[path].append(LevelLoop(begin, operation, tuple(lists.pop((*path, begin)))))
        else:
            lists[path].append(operation)
    if len(lists) > 1:
        raise _broken(next(p[-1] for p in lists if p), "begins a loop that has no end")
    return tuple(lists[NOWHERE])


def loops_of(block: Block) -> tuple[LevelLoop, ...]:
    """All loops of a block, those within others before these."""

    def inner(items: Iterable[Operation | LevelLoop]) -> Iterable[LevelLoop]:
        for item in items:
            if isinstance(item, LevelLoop):
                yield from inner(item.body)
                yield item

    return tuple(inner(arranged(block)))


Values = MutableMapping[SSAValue, Array]


def run(
    items: Sequence[Operation | LevelLoop],
    values: Values,
    apply: Callable[[Operation], None],
    seen: Callable[[SSAValue, Array], None] | None = None,
) -> None:
    """Run operations in order on `values`; `apply` runs one that is no loop. `seen` is told of every value of a loop
    and step; without it, only the values of the last step are left."""
    for item in items:
        if not isinstance(item, LevelLoop):
            apply(item)
            continue
        _repeat(item, values, apply, seen)


def _repeat(
    loop: LevelLoop,
    values: Values,
    apply: Callable[[Operation], None],
    seen: Callable[[SSAValue, Array], None] | None,
) -> None:
    first, n = loop.first, loop.first.carried
    given = [values[v] for v in loop.begin.operands]
    states, made = given[:n], []
    made_of = [loop.begin, *(o.end if isinstance(o, LevelLoop) else o for o in loop.body)]
    inside = [r for o in made_of for r in o.results]
    for step in range(first.steps):
        values.update(zip(loop.begin.results, first.at(step, states, given[n:]), strict=True))
        run(loop.body, values, apply, seen)
        made.append([values[v] for v in loop.end.operands[1:]])
        states = made[-1][:n]
        for value in inside if seen is not None else ():
            assert seen is not None
            if value in values:
                seen(value, values[value])
    values.update(zip(loop.end.results, loop.last.gathered(made), strict=True))
