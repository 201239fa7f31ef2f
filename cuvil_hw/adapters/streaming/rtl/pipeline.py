"""Which stage of the pipeline computes what.

Words are read in stage 0, or as soon as tables have said whether a step wants one; a step goes on when they are there.
Stages are filled as far as the delays allow; what a register holds is computed in the stage that uses it, so that steps
may follow one another every `ii` cycles. All words are written in the last stage. A value's stage is the first in which
it can be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cuvil_hw.adapters.streaming.rtl.arrange import arrange, cycles, needed, reachable
from cuvil_hw.adapters.streaming.rtl.delays import Delays
from cuvil_hw.adapters.streaming.rtl.graph import Signal
from cuvil_hw.adapters.streaming.rtl.scalars import NotHardware
from cuvil_hw.adapters.streaming.rtl.step import Kept, Ram, Step, WordPort

TRIES = 200  # until the stages of memories' ports agree


@dataclass(frozen=True)
class MemoryWrite:
    """Words of a memory that a step writes: lanes by their place in the word."""

    ram: Ram
    want: Signal
    address: Signal
    lanes: tuple[tuple[tuple[int, ...], Signal], ...]


@dataclass
class Staged:
    """A step with its stages. `stage`: of each node; `write_stage`: of each memory write, in the order of `stored`;
    `read`: in which words are read; `last`: in which they are written; `longest`: nanoseconds of the slowest stage."""

    step: Step
    ii: int
    nodes: list[Signal]
    reads: dict[WordPort, Signal]
    writes: dict[WordPort, tuple[Signal, list[Signal]]]
    registers: list[Kept]
    stored: list[MemoryWrite]
    stage: Mapping[Signal, int]
    write_stage: list[int]
    read: int
    last: int
    longest: float


def pipeline(step: Step, delays: Delays) -> Staged:
    """Arrange and schedule a step. Raises NotHardware."""
    stored = _stored(step)
    after = {r.now: r.next for r in step.registers if r.now is not r.next}
    roots = [*step.reads.values(), *(n for want, lanes in step.writes.values() for n in (want, *lanes))]
    used = _used(step, stored, roots, after)
    roots += [n for w in used for n in (w.want, w.address, *(v for _, v in w.lanes))]
    made = arrange(step.graph, roots, after)
    stored = [
        MemoryWrite(w.ram, made[w.want], made[w.address], tuple((lane, made[v]) for lane, v in w.lanes)) for w in used
    ]
    kept = [r for r in step.registers if r.now in made and r.now in after]
    registers = [Kept(r.name, r.now, made[r.next], r.first) for r in kept]
    reads = {c: made[n] for c, n in step.reads.items()}
    writes = {c: (made[want], [made[v] for v in lanes]) for c, (want, lanes) in step.writes.items()}
    after = {r.now: r.next for r in registers}
    nodes = reachable((made[n] for n in roots), after)
    plan = _Schedule(step, nodes, after, delays, reads.values(), stored)
    plan.solve()
    ends = [n for want, lanes in writes.values() for n in (want, *lanes)]
    ends += [n for r in registers for n in (r.now, r.next)]
    last = max([plan.at(n) for n in ends] + plan.write_stage, default=plan.read)
    last = max(last, plan.read)
    return Staged(
        step,
        plan.ii,
        nodes,
        reads,
        writes,
        registers,
        stored,
        plan.stage,
        plan.write_stage,
        plan.read,
        last,
        plan.longest,
    )


def _used(
    step: Step, stored: list[MemoryWrite], roots: list[Signal], after: Mapping[Signal, Signal]
) -> list[MemoryWrite]:
    """The writes of memories that something reads, with the lanes that are read."""
    kept: dict[MemoryWrite, tuple[tuple[tuple[int, ...], Signal], ...]] = {}
    while True:
        needs = [*roots, *(n for w, lanes in kept.items() for n in (w.want, w.address, *(v for _, v in lanes)))]
        read = {n.data[1:] for n in reachable(needs, after) if n.op == "load" and n.data[0] == "ram"}
        found = {w: tuple((lane, v) for lane, v in w.lanes if (w.ram.name, lane) in read) for w in stored}
        found = {w: lanes for w, lanes in found.items() if lanes}
        if found == kept:
            return [MemoryWrite(w.ram, w.want, w.address, lanes) for w, lanes in kept.items()]
        kept = found


def _stored(step: Step) -> list[MemoryWrite]:
    """What a step writes into memories, lanes with one address and condition together."""
    result = []
    graph = step.graph
    for ram in step.rams:
        by_lane: dict[tuple[int, ...], tuple[Signal, Signal, Signal]] = {}
        for path, address, lane, value in ram.stores:
            want = graph.both(path)
            if lane in by_lane:  # the later one counts
                before, where, held = by_lane[lane]
                if where is not address and graph.bitwise("and", before, want).value != 0:
                    raise NotHardware(f"rtl: @{step.name}: {ram.name} is written at two places in a step")
                address = graph.select(want, address, where)
                value, want = graph.select(want, value, held), graph.bitwise("or", before, want)
            by_lane[lane] = (want, address, value)
        groups: dict[tuple[Signal, Signal], list[tuple[tuple[int, ...], Signal]]] = {}
        for lane, (want, address, value) in by_lane.items():
            groups.setdefault((want, address), []).append((lane, graph.wrap(value, ram.bits)))
        result += [MemoryWrite(ram, want, address, tuple(lanes)) for (want, address), lanes in groups.items()]
    return result


class _Schedule:
    def __init__(
        self, step: Step, nodes: list[Signal], after: Mapping[Signal, Signal], delays: Delays, wants: Iterable[Signal],
        stored: list[MemoryWrite],
    ) -> None:  # fmt: skip
        self.step, self.nodes, self.after, self.delays, self.stored = step, nodes, after, delays, stored
        self.ii = step.ii
        self.stage: dict[Signal, int] = {}
        self.ready: dict[Signal, float] = {}  # when in its stage
        self.least: dict[Signal, int] = {}
        self.least_write = [0] * len(stored)
        self.write_stage = [0] * len(stored)
        self.longest = 0.0
        part = cycles(nodes, after)
        self.groups: dict[int, list[Signal]] = {}
        for node in nodes:
            self.groups.setdefault(part[node], []).append(node)
        self.order = self._order(part)
        self.wants = list(wants)
        self.first = set(reachable(self.wants, after))  # what says whether a step reads is known before it does
        self.read = 0
        for node in self.first:
            if node.op in ("leaf", "load") and node.data[0] in ("word", "ram"):
                raise NotHardware(f"rtl: @{step.name}: whether it reads a word depends on what words hold")

    def _order(self, part: Mapping[Signal, int]) -> list[int]:
        """Groups of nodes, those that others need first."""
        done: dict[int, None] = {}
        for node in self.nodes:
            stack = [part[node]]
            while stack:
                group = stack[-1]
                if group in done:
                    stack.pop()
                    continue
                needs = {part[a] for n in self.groups[group] for a in needed(n, self.after)}
                open_ = sorted(g for g in needs if g != group and g not in done)
                if open_:
                    stack += open_
                else:
                    done[stack.pop()] = None
        return list(done)

    def at(self, node: Signal) -> int:
        return 0 if node.op == "const" else self.stage[node]

    def solve(self) -> None:
        """Stages that keep every rule. Then words of memories are read as late as they may be: addresses are narrow."""
        self._settle()
        wanted: dict[object, int] = {}  # by memory and place: lanes that are read together stay together
        for node in self.nodes:
            for a in node.args:
                if a.op == "load":
                    wanted[_port(a)] = min(wanted.get(_port(a), self.stage[node]), self.stage[node])
        for node in self.nodes:
            stage = wanted.get(_port(node), 0) if node.op == "load" else 0
            if stage - 1 > self.stage.get(node, 0):
                self.least[node] = stage - 1
        self._settle()
        self.longest = max(self.ready.values(), default=0.0)

    def _settle(self) -> None:
        for _ in range(TRIES):
            self._place()
            read = max((self.at(w) for w in self.wants), default=0)
            if self.read != read:
                self.read = read
            elif self._memories() and self._interval():
                return
        raise NotHardware(f"rtl: @{self.step.name}: a memory is used again before its value can be there")

    def _place(self) -> None:
        self.stage, self.ready = {}, {}
        for group in self.order:
            nodes = self.groups[group]
            if len(nodes) == 1 and nodes[0] not in self.after:
                self._alone(nodes[0])
            else:
                self._together(nodes)

    def _alone(self, node: Signal) -> None:
        stage, ready = self._arrival(node.args)
        if node.op == "leaf" and node.data[0] == "word":
            stage = self.read
        if node.op == "load":
            self.stage[node] = max(stage + 1, self.least.get(node, 0))
            self.ready[node] = self.delays.memory
            return
        delay = self.delays.of(node)
        late = node not in self.first and ready + delay > self.delays.period and ready > self.delays.register
        if late or self.least.get(node, 0) > stage:
            stage, ready = max(stage + late, self.least.get(node, 0)), self.delays.register
        self._set(node, stage, ready + delay)

    def _set(self, node: Signal, stage: int, ready: float) -> None:
        self.stage[node], self.ready[node] = stage, ready

    def _arrival(self, args: Iterable[Signal]) -> tuple[int, float]:
        known = [(self.stage[a], self.ready[a]) for a in args if a.op != "const"]
        return max(known, default=(0, self.delays.register))

    def _together(self, nodes: list[Signal]) -> None:
        """Nodes that depend on one another through registers: in one stage, where all else that they need is there."""
        inside = set(nodes)
        if len(nodes) == 1 and nodes[0] not in nodes[0].args and self.after[nodes[0]] is not nodes[0]:
            node = nodes[0]  # a value of the step before, nothing else
            stage = max(self.at(self.after[node]) - self.ii + 1, self.least.get(node, 0), 0)
            self._set(node, stage, self.delays.register)
            return
        outside = [a for n in nodes for a in n.args if a not in inside]
        stage = max(self._arrival(outside)[0], *(self.least.get(n, 0) for n in nodes))
        for _ in range(2):
            worst = 0.0
            for node in nodes:
                at, ready = self._arrival(node.args)
                ready = ready if at == stage else self.delays.register
                if node.op == "load":
                    raise NotHardware(f"rtl: @{self.step.name}: what it keeps goes through a memory within one step")
                self._set(node, stage, ready + self.delays.of(node))
                worst = max(worst, self.ready[node])
            crowded = any(a.op != "const" and self.stage[a] == stage for a in outside)
            if worst <= self.delays.period or not crowded or inside & self.first:
                return
            stage += 1

    def _memories(self) -> bool:
        """Whether each memory's words are read before they are replaced, and written before they are wanted again; if
        not, moves what is too early."""
        good = True
        loads: dict[str, list[Signal]] = {}
        for node in self.nodes:
            if node.op == "load" and node.data[0] == "ram":
                loads.setdefault(node.data[1], []).append(node)
        for n, w in enumerate(self.stored):
            here = max([self.at(v) for v in (w.want, w.address, *(v for _, v in w.lanes))] + [self.least_write[n]])
            for load in loads.get(w.ram.name, []):
                issued = self.stage[load] - 1
                if issued > here:
                    here = issued
                if w.ram.distance and here > issued + w.ram.distance * self.ii - 1:
                    self.least[load] = here - w.ram.distance * self.ii + 2
                    good = False
            self.least_write[n] = self.write_stage[n] = here
        return good

    def _interval(self) -> bool:
        """Whether registers are ready for the next step; if not, steps start further apart."""
        apart = max((self.at(b) - self.at(a) + 1 for a, b in self.after.items()), default=1)
        if apart <= self.ii:
            return True
        self.ii = apart
        return False


def _port(load: Signal) -> object:
    return *load.data[:2], load.args[0]
