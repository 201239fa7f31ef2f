"""Small hand-written HLS designs, built with clocks; random ones beside a simulation of their own, cycle by cycle."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuvil_hw import data
from cuvil_hw.adapters.zynq import simbuild
from cuvil_hw.adapters.zynq.cycles import LoadedCycles
from cuvil_hw.contract.device import DeviceProgram, Port

QUICK = (*simbuild.BOUNDED, "-O0")
PORT = "hls::stream<ap_axiu<16, 0, 0, 0> >"
FRAME = """#include "cuvil_hls.h"
typedef hls::stream<int> Ints;
static void enter(PORT& in, Ints& out) {
  for (int i = 0; i < IN; ++i) {
    #pragma HLS pipeline II=1
    out.write((short)in.read().data.to_uint64());
  }
}
static void leave(Ints& in, PORT& out) {
  for (int i = 0; i < OUT; ++i) {
    #pragma HLS pipeline II=1
    ap_axiu<16, 0, 0, 0> word;
    word.data = in.read();
    word.keep = word.strb = 3;
    word.last = i == OUT - 1;
    out.write(word);
  }
}
BODY
void top(PORT& x, PORT& y) {
  STREAMS
  CUVIL_DATAFLOW_BEGIN
  CUVIL_PROCESS(enter, enter(x, first))
  PROCESSES
  CUVIL_PROCESS(leave, leave(last, y))
  CUVIL_DATAFLOW_END
}
"""


@dataclass(frozen=True)
class Design:
    """`words`: of a sample, in and out; `streams`: depth by name, "first" and "last" among them; `processes`: calls by
    name; `body`: their functions."""

    words: tuple[int, int]
    streams: dict[str, int]
    processes: dict[str, str]
    body: str

    def source(self) -> str:
        streams = " ".join(f'hls::stream<int, {depth}> {name}("{name}");' for name, depth in self.streams.items())
        calls = "\n  ".join(f"CUVIL_PROCESS({name}, {call})" for name, call in self.processes.items())
        text = FRAME.replace("STREAMS", streams).replace("PROCESSES", calls).replace("BODY", self.body)
        return text.replace("PORT", PORT).replace("IN;", f"{self.words[0]};").replace("OUT", str(self.words[1]))


@contextmanager
def loaded(design: Design, clock_hz: float = 1.0) -> Iterator[LoadedCycles]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "src").mkdir()
        (folder / "src" / "cuvil_hls.h").write_bytes((data.folder("hls") / "cuvil_hls.h").read_bytes())
        (folder / "src" / "net.cpp").write_text(design.source())
        shapes = {"x": design.words[0], "y": design.words[1]}
        about = [{"name": n, "shape": [words], "dtype": "i16", "order": [0]} for n, words in shapes.items()]
        info = {
            "project": "net",
            "top": "top",
            "inputs": about[:1],
            "outputs": about[1:],
            "layers": [],
            "axis_bits": 16,
        }
        ports = [Port(n, (words,), "i16") for n, words in shapes.items()]
        program = DeviceProgram("net", folder, (ports[0],), (ports[1],), info)
        simulation = LoadedCycles(simbuild.build_simulation(program, QUICK), program, clock_hz)
        try:
            yield simulation
        finally:
            simulation.close()


def raw(simulation: LoadedCycles) -> dict[str, Any]:
    """What the last run counted."""
    found: dict[str, Any] = json.loads(simulation._library.functions.cuvil_sim_timing())
    return found


# ---- random networks, and what they must take ----------------------------------------------------------------------

Action = tuple[str, Any]  # ("tick", cycles), ("read", stream), ("look", stream) or ("write", stream)


@dataclass
class Process:
    """A loop: in which of its iterations it reads each input and writes each output. `looks`: inputs of which it takes
    a word in each iteration if one is there, and in the last one what is left of so many words."""

    name: str
    interval: int
    trips: int
    reads: dict[str, list[int]] = field(default_factory=dict)
    writes: dict[str, list[int]] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)

    def actions(self) -> Generator[Action, bool, None]:
        left = dict(self.looks)
        for i in range(self.trips):
            yield "tick", self.interval
            yield from (("read", s) for s, when in self.reads.items() if i in when)
            for s in left:
                if left[s] and (yield "look", s):
                    left[s] -= 1
                for _ in range(left[s] if i == self.trips - 1 else 0):
                    yield "read", s
            yield from (("write", s) for s, when in self.writes.items() if i in when)

    def function(self) -> str:
        names = [*self.reads, *self.looks, *self.writes]
        lines = [f"static void {self.name}({', '.join(f'Ints& {s}' for s in names)}) {{"]
        for s, when in (self.reads | self.writes).items():
            bits = ", ".join(str(int(i in when)) for i in range(self.trips))
            lines.append(f"  static const bool at_{s}[{self.trips}] = {{{bits}}};")
        lines += [f"  int left_{s} = {words};" for s, words in self.looks.items()]
        lines += ["  int sum = 0, word = 0;", f"  for (int i = 0; i < {self.trips}; ++i) {{"]
        lines.append(f"    #pragma HLS PIPELINE II = {self.interval}")
        lines += [f"    if (at_{s}[i]) sum += {s}.read();" for s in self.reads]
        for s in self.looks:
            lines.append(f"    if (left_{s} && {s}.read_nb(word)) sum += i * word, --left_{s};")
            lines.append(f"    if (i == {self.trips - 1}) for (; left_{s}; --left_{s}) sum += {s}.read();")
        lines += [f"    if (at_{s}[i]) {s}.write(sum);" for s in self.writes]
        return "\n".join([*lines, "  }", "}"])


@dataclass
class Network:
    words: tuple[int, int]
    depths: dict[str, int]
    processes: list[Process]

    def design(self) -> Design:
        calls = {p.name: f"{p.name}({', '.join([*p.reads, *p.looks, *p.writes])})" for p in self.processes}
        return Design(self.words, self.depths, calls, "\n".join(p.function() for p in self.processes))


def random_network(rng: random.Random) -> Network:
    """A chain of forks and joins of random paces; a stream may carry few words of few iterations."""
    count = {"first": rng.randint(3, 9)}
    open_, processes, depths = ["first"], [], {"first": rng.randint(1, 4)}
    for n in range(rng.randint(2, 6)):
        taken = [open_.pop(rng.randrange(len(open_))) for _ in range(min(len(open_), rng.choice((1, 1, 2))))]
        outs = [f"s{n}_{k}" for k in range(rng.choice((1, 1, 2)))]
        processes.append(_process(rng, f"p{n}", taken, outs, count))
        open_ += outs
        depths |= {s: rng.choice((1, 2, 2, 3, 5, 9)) for s in outs}
    processes.append(_process(rng, "end", open_, ["last"], count))
    depths["last"] = rng.randint(1, 3)
    return Network((count["first"], count["last"]), depths, processes)


def _process(rng: random.Random, name: str, ins: Sequence[str], outs: Sequence[str], count: dict[str, int]) -> Process:
    count |= {s: rng.randint(1, 9) for s in outs}
    trips = max(count[s] for s in (*ins, *outs)) + rng.randint(0, 4)
    process = Process(name, rng.choice((1, 1, 2, 3)), trips)
    for s in (*ins, *outs):
        if s in ins and rng.random() < 0.3:
            process.looks[s] = count[s]
        else:
            (process.reads if s in ins else process.writes)[s] = sorted(rng.sample(range(trips), count[s]))
    return process


@dataclass
class _State:
    actions: Generator[Action, bool | None, None]
    now: Action | None = None
    seen: bool | None = None  # what the last action was answered
    since: int = 0  # in which cycle the action became the next
    ends: list[int] = field(default_factory=list)


def by_the_cycle(net: Network, samples: int) -> tuple[dict[str, list[int]], bool]:
    """In which cycle each process ends each sample, and whether all do: one cycle after the other, in each of which a
    process does what the state at the end of the cycle before allows."""
    enter, leave = Process("enter", 1, net.words[0]), Process("leave", 1, net.words[1])
    enter.reads, enter.writes = {"input 0": list(range(enter.trips))}, {"first": list(range(enter.trips))}
    leave.reads, leave.writes = {"last": list(range(leave.trips))}, {"output 0": list(range(leave.trips))}
    before, behind = Process("input 0", 1, enter.trips), Process("output 0", 1, leave.trips)
    before.writes, behind.reads = {"input 0": list(range(enter.trips))}, {"output 0": list(range(leave.trips))}
    processes = [before, enter, *net.processes, leave, behind]

    def repeated(p: Process) -> Generator[Action, bool | None, None]:
        for _ in range(samples):
            yield from p.actions()
            yield "end", None

    depths = net.depths | {"input 0": 2, "output 0": 2}
    written: dict[str, list[int]] = {s: [] for s in depths}
    read: dict[str, list[int]] = {s: [] for s in depths}
    looked = dict.fromkeys(depths, -9)
    states = {p.name: _State(repeated(p), since=-1 if p is before else 0) for p in processes}
    cycle, idle = -1, 0
    while idle < 8 and any(len(s.ends) < samples for s in states.values()):
        idle += 1
        for state in states.values():
            while True:
                if state.now is None and len(state.ends) < samples:
                    state.now = state.actions.send(state.seen)
                if state.now is None or not _done(state, state.now, cycle, written, read, looked, depths):
                    break
                state.now, idle = None, 0
        cycle += 1
    return {name: s.ends for name, s in states.items()}, idle < 8


def _done(
    state: _State, action: Action, cycle: int, written: dict[str, list[int]], read: dict[str, list[int]],
    looked: dict[str, int], depths: dict[str, int],
) -> bool:  # fmt: skip
    kind, what = action
    if kind == "tick":
        if cycle < state.since + what:
            return False
    elif kind == "end":
        state.ends.append(cycle)
    elif kind in ("read", "look"):
        k = len(read[what])
        there = len(written[what]) > k and written[what][k] < cycle
        if looked[what] >= cycle or (kind == "read" and not there):
            return False
        looked[what] = cycle
        if there:
            read[what].append(cycle)
        state.seen = there
    else:
        k = len(written[what])
        freed = k - depths[what]
        if (freed >= 0 and (len(read[what]) <= freed or read[what][freed] >= cycle)) or (
            k and written[what][-1] >= cycle
        ):
            return False
        written[what].append(cycle)
    state.since = cycle
    return True
