"""If, Loop and Scan: branches are taken or selected; loops stay loops where all steps are the same, else are unrolled.

Level1 has static shapes and no jumps. Shapes that depend on values are refused; loops that end by values need a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import onnx

from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.node import OnnxNode, Value
from cuvil_hw.frontend.onnx.scope import Scope
from cuvil_hw.frontend.shared.refusals import Refused

# Converts the nodes of a graph inside a scope, and returns the graph's outputs.
Run = Callable[[onnx.GraphProto, Scope], list[Value]]
MOST_STEPS = 4096


def graph(n: OnnxNode, name: str) -> onnx.GraphProto:
    found: onnx.GraphProto | None = n.attr(name)
    if found is None:
        n.refuse(f"has no attribute {name!r}")
    return found


def if_(n: OnnxNode, scope: Scope, run: Run) -> Sequence[Value]:
    """If the condition is known, its branch; else both branches and a selection between their results, which must have
    equal shapes."""
    if n[0].type.size != 1:
        n.refuse(f"a condition of shape {n[0].shape}; one value expected")
    branches = {name: graph(n, f"{name}_branch") for name in ("then", "else")}
    if n[0].array is not None:
        return run(branches["then" if n[0].array.all() else "else"], scope.inner())
    try:
        asked = n.reshape(n[0], ())
        with counting(n, asked):
            results = [run(branches["then"], scope.inner())]
        with counting(n, n.emit(e.LogicalNot(), asked)):
            results.append(run(branches["else"], scope.inner()))
    except Refused as error:
        n.refuse(f"{error}; its condition is known only at run time: an input made constant (constants=) may decide it")
    chosen = []
    for a, b in zip(*results, strict=True):
        if a.type != b.type:
            n.refuse(f"its condition is known only at run time, and its branches give {a.type} and {b.type}")
        chosen.append(n.emit(e.Where(), n.expand(n.reshape(n[0], ()), a.shape), a, b))
    return chosen


def stacked(n: OnnxNode, values: Sequence[Value], axis: int) -> Value:
    """Values of equal shape along a new axis."""
    shape = values[0].shape
    if any(v.type != values[0].type for v in values):
        n.refuse("the shape of a scan output changes from step to step")
    apart = [n.reshape(v, (*shape[:axis], 1, *shape[axis:])) for v in values]
    return apart[0] if len(apart) == 1 else n.emit(e.Concat(axis), *apart)


def loop(n: OnnxNode, scope: Scope, run: Run) -> Sequence[Value]:
    """The loop as it is, if its steps are known to be so many and all the same; else unrolled. Exact if trip count and
    conditions are known at import. Otherwise unrolled up to a bound: the results of the last iteration that counts are
    selected, and a guard checks that the loop has ended by then.

    Each iteration computes from the one before, whether that counts or not, so that counters stay known.
    """
    body = graph(n, "body")
    trips, going_on = n.get(0), n.get(1)
    if (steps := _known_trips(trips, going_on)) > 1:
        given = [n[i] for i in range(2, len(n.inputs))]
        same = _Same(n, scope, run, body, steps, given, (), (), (0,) * (len(body.output) - 1 - len(given)), counts=True)
        if (made := same.steps_as_loop()) is not None:
            return made
    state = results = [n[i] for i in range(2, len(n.inputs))]
    scans: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    going: Value | None = None  # whether the step at hand counts; None: certainly
    bound: int | None = None
    for step in range(MOST_STEPS + 1):
        again = _again(n, trips, going_on, step)
        if again is False:
            break
        if isinstance(again, Value):
            if scans:
                n.refuse(
                    "the length of its scan outputs depends on values known only at run time; its trip count and "
                    "condition must be constant"
                )
            bound = _bound(n, scope, trips) if going is None else bound
            going = again if going is None else n.emit(e.LogicalAnd(), going, again)
        if going is not None and step == bound:
            message = f"the loop at {n.loc} hadn't ended after {bound} trips; compile it with a larger max_trips"
            n.emitter.builder.guard(n.emitter.ssa(n.emit(e.LogicalNot(), going)), message, n.loc)
            break
        if step == MOST_STEPS:
            n.refuse(f"more than {MOST_STEPS} steps, which would all be unrolled")
        inner = scope.inner()
        given = [n.const(step, "i64"), n.const(True, "bool"), *state]
        inner.values.update(zip((i.name for i in body.input), given, strict=False))
        with counting(n, going):
            made = run(body, inner)
        going_on, state = made[0], made[1 : 1 + len(state)]
        results = state if going is None else [choose(n, going, a, b) for a, b in zip(state, results, strict=True)]
        for scan, value in zip(scans, made[1 + len(state) :], strict=True):
            scan.append(value)
    if not all(scans):
        n.refuse("it takes no step, and the shape of its scan outputs is unknown")
    return [*results, *(stacked(n, scan, 0) for scan in scans)]


def _again(n: OnnxNode, trips: Value | None, going_on: Value | None, step: int) -> bool | Value:
    """The condition that the loop takes this iteration."""
    asked: list[Value] = []
    for value, what in ((trips, "trip count"), (going_on, "condition")):
        if value is None:
            continue
        if value.type.size != 1:
            n.refuse(f"a {what} of shape {value.shape}; one value expected")
        if value.array is None:
            value = n.reshape(value, ())
            asked.append(n.emit(e.Less(), n.const(step, "i64"), value) if what == "trip count" else value)
        else:
            known = (value.array if value.sizes is None else value.sizes).item()
            if not (step < known if what == "trip count" else known):
                return False
    return True if not asked else asked[0] if len(asked) == 1 else n.emit(e.LogicalAnd(), *asked)


def _bound(n: OnnxNode, scope: Scope, trips: Value | None) -> int | None:
    """The largest number of iterations to unroll; None if a known trip count ends the loop."""
    if scope.max_trips is not None:
        return scope.max_trips
    if trips is None or trips.array is None or trips.array.item() > MOST_STEPS:
        n.refuse(
            "the number of its steps depends on values known only at run time: give compile(…, max_trips=N), or make "
            "the input that decides it a constant (constants=)"
        )
    return None


@contextmanager
def counting(n: OnnxNode, condition: Value | None) -> Iterator[None]:
    """Inside this context, guards only count where the condition, of shape (), is true."""
    if condition is None:
        yield
    else:
        with n.emitter.builder.when(n.emitter.ssa(condition), n.loc):
            yield


def choose(n: OnnxNode, condition: Value, a: Value, b: Value) -> Value:
    """`condition ? a : b`, of one type."""
    if a is b:
        return a
    if a.type != b.type:
        n.refuse(f"it carries {b.type} into a step and {a.type} out of it, and how often is known only at run time")
    return n.emit(e.Where(), n.expand(condition, a.shape), a, b)


def scan(n: OnnxNode, scope: Scope, run: Run, version: int) -> Sequence[Value]:
    """One step for each slice of the scanned operands."""
    if version < 9:
        n.refuse("Scan-8 has a batch dimension and sequence lengths; convert the model to opset 9 or later")
    body, count = graph(n, "body"), n.integer("num_scan_inputs", 1)
    values = list(n.values)
    states, scanned = values[:-count], values[-count:]
    outputs = len(body.output) - len(states)
    axes = [n.axis(a, v.rank) for a, v in zip(n.ints("scan_input_axes", (0,) * count), scanned, strict=True)]
    backward = n.ints("scan_input_directions", (0,) * count)
    out_backward = n.ints("scan_output_directions", (0,) * outputs)
    steps = {v.shape[a] for v, a in zip(scanned, axes, strict=True)}
    if len(steps) != 1:
        n.refuse(f"scans operands of different lengths {sorted(steps)}")
    length = steps.pop()
    if not length:
        n.refuse("no steps; one at least")
    out_axes = n.ints("scan_output_axes", (0,) * outputs)
    if length > 1:
        along = [_axis_first(n, v, a) for v, a in zip(scanned, axes, strict=True)]
        same = _Same(n, scope, run, body, length, states, along, tuple(backward), tuple(out_backward))
        if (made := same.steps_as_loop()) is not None:
            count = len(states)
            stacks = [_axis_from_first(n, v, a) for v, a in zip(made[count:], out_axes, strict=True)]
            return [*made[:count], *stacks]
    scans: list[list[Value]] = [[] for _ in range(outputs)]
    for step in range(length):
        inner = scope.inner()
        slices = [
            _element(n, v, a, length - 1 - step if back else step)
            for v, a, back in zip(scanned, axes, backward, strict=True)
        ]
        inner.values.update(zip((i.name for i in body.input), [*states, *slices], strict=True))
        results = run(body, inner)
        states = results[: len(states)]
        for gathered, value in zip(scans, results[len(states) :], strict=True):
            gathered.append(value)
    stacks = []
    for gathered, axis, back in zip(scans, out_axes, out_backward, strict=True):
        stacks.append(stacked(n, gathered[::-1] if back else gathered, n.axis(axis, gathered[0].rank + 1)))
    return [*states, *stacks]


@dataclass(frozen=True)
class _Same:
    """A loop whose steps may all compute the same.

    Attributes:
        along: tensors with an element per step along axis 0; `backward` and `out_backward`: whether each of them, and
            of the stacked results, begins with the last one.
        counts: the body takes the number of the step and a condition before its states, and gives a condition, as that
            of Loop.
    """

    n: OnnxNode
    scope: Scope
    run: Run
    body: onnx.GraphProto
    steps: int
    states: Sequence[Value]
    along: Sequence[Value]
    backward: tuple[int, ...]
    out_backward: tuple[int, ...]
    counts: bool = False

    def steps_as_loop(self) -> Sequence[Value] | None:
        """States after the last step, and stacked results along axis 0; None where the steps differ: the body needs
        to know its step, types change, or something is demanded of values of a step."""
        try:
            with self.n.emitter.attempt():
                return self._emitted()
        except Refused:
            return None

    def _emitted(self) -> Sequence[Value]:
        n, count = self.n, len(self.states)
        demands = n.emitter.builder.guarded
        begin = e.LoopBegin(self.steps, count, self.backward)
        number, *inside = n.emits(begin, *self.states, *self.along)
        given = [number, n.const(True, "bool"), *inside] if self.counts else inside
        inner = self.scope.inner()
        inner.values.update(zip((i.name for i in self.body.input), given, strict=False))
        made = self.run(self.body, inner)
        if self.counts:
            going_on, *made = made
            if going_on.array is None or not going_on.array.all():
                raise Refused("it may end early")
        if n.emitter.builder.guarded != demands:
            raise Refused("something is demanded of values of a step")
        if any(a.type != b.type for a, b in zip(made, self.states, strict=False)):
            raise Refused("a state changes its type")
        return n.emits(e.LoopEnd(self.steps, count, self.out_backward), number, *made)


def _known_trips(trips: Value | None, going_on: Value | None) -> int:
    """The number of steps where nothing but a constant decides it; else 0."""
    if trips is None or trips.array is None or trips.type.size != 1:
        return 0
    if going_on is not None and (going_on.array is None or not going_on.array.all()):
        return 0
    return int((trips.array if trips.sizes is None else trips.sizes).item())


def _axis_first(n: OnnxNode, x: Value, axis: int) -> Value:
    return x if axis == 0 else n.transpose(x, (axis, *(d for d in range(x.rank) if d != axis)))


def _axis_from_first(n: OnnxNode, x: Value, axis: int) -> Value:
    """Axis 0 of x at another place."""
    at = n.axis(axis, x.rank)
    return x if at == 0 else n.transpose(x, (*range(1, at + 1), 0, *range(at + 1, x.rank)))


def _element(n: OnnxNode, x: Value, axis: int, i: int) -> Value:
    """x[…, i, …] without that axis."""
    starts = [i if d == axis else 0 for d in range(x.rank)]
    sizes = [1 if d == axis else s for d, s in enumerate(x.shape)]
    part = n.emit(e.Slice(tuple(starts), tuple(sizes), (1,) * x.rank), x)
    return n.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))
