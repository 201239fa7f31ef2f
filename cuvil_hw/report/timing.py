"""How the timing of a streaming design looks, as text and as one HTML file."""

from __future__ import annotations

from cuvil_hw.contract.timing import ORIGIN, ProcessTiming, Timing
from cuvil_hw.errors.quoting import lines
from cuvil_hw.report import html, words
from cuvil_hw.report.bars import share_chart
from cuvil_hw.report.text import TERMINAL, Table, table

_BAR = 20  # characters
_KEY = "█ busy, ░ waits for words, ▒ waits for room, of the cycles of one sample"


def render(timing: Timing, width: int = TERMINAL) -> str:
    """Head, tables and remarks as text."""
    parts = [head(timing), *(table(*t, width=width) for t in tables(timing)), "\n".join(closing(timing))]
    return lines("\n\n".join(parts)) + "\n"


def head(timing: Timing) -> str:
    return f"{timing.program}, {timing.clock_hz / 1e6:g} MHz, {timing.origin}"


def tables(timing: Timing) -> list[Table]:
    return [*([layers(timing)] if timing.layers else []), processes(timing), streams(timing)]


def layers(timing: Timing) -> Table:
    """A row for each layer of a design that runs them one after another."""
    rows = [[n.name, words.count(n.cycles), f"{n.cycles / max(timing.cycles, 1):.1%}", n.bound] for n in timing.layers]
    return ["layer", "cycles", "share", "bound by"], rows, [False, True, True, False]


def processes(timing: Timing) -> Table:
    """A row and a bar for each process; `*` marks those that never wait."""
    hot = timing.bottlenecks
    rows = [
        [
            p.name + (" *" if p.name in hot else ""),
            _bar(p),
            *(words.count(value) for value in (p.busy, p.waits_for_words, p.waits_for_room)),
            _longest(timing, p)[1],
        ]
        for p in timing.processes
    ]
    columns = ["process", "", "busy", "for words", "for room", "waits most for"]
    return columns, rows, [False, True, True, True, True, False]  # bars are never folded


def streams(timing: Timing) -> Table:
    rows = [
        [
            s.name,
            *(words.count(value) for value in (s.words, s.depth, s.most)),
            f"{s.mean:.1f}",
            *(words.count(value) for value in (s.empty, s.full)),
            f"{s.writer} → {s.reader}",
        ]
        for s in timing.streams
    ]
    columns = ["stream", "words", "depth", "most", "mean", "empty", "full", "from and to"]
    return columns, rows, [False, True, True, True, True, True, True, False]


def closing(timing: Timing) -> list[str]:
    found = [_slowest(timing)]
    if timing.short and not timing.bottlenecks:
        found.append(f"FIFOs that are empty at one time and full at another: {', '.join(s.name for s in timing.short)}")
    first = words.seconds(timing.first_cycles / timing.clock_hz)
    found += [
        f"cycles per sample: {words.count(timing.cycles)}, {words.rate(timing.inferences_per_s)} inferences/s",
        f"first result: {words.count(timing.first_cycles)} cycles, {first}",
        _steady(timing),
    ]
    if timing.origin == ORIGIN:
        found.append("hardware is never faster: loops are taken to keep their intervals, and nothing else takes time")
    return [*found, _KEY]


def document(timing: Timing, command: str = "") -> str:
    """One self-contained HTML document. Every name in it is escaped."""
    per_sample = f"{words.count(timing.cycles)} cycles a sample"
    hot, what = ", ".join(timing.busiest), "processes that never wait" if timing.bottlenecks else "waits, but the least"
    cards = [
        ("Inferences per second", words.rate(timing.inferences_per_s), per_sample),
        ("First result", words.seconds(timing.first_cycles / timing.clock_hz), f"{timing.first_cycles:,} cycles"),
        ("Bottleneck", hot, what),
    ]
    rows = [
        (
            p.name,
            [(p.busy, "busy", "hot" if p.name in timing.bottlenecks else "b0"),
             (p.waits_for_words, "waits for words", "b1"), (p.waits_for_room, "waits for room", "fix")],
            " ".join(_longest(timing, p)),
        )
        for p in timing.processes
    ]  # fmt: skip
    key = [("mark", "busy, never waits"), ("b0", "busy"), ("b1", "waits for words"), ("muted", "waits for room")]
    chart = share_chart("What each process does with the cycles of a sample", rows, key)
    named, _, numeric = processes(timing)
    figures = [[c for i, c in enumerate(row) if i != 1] for row in processes(timing)[1]]
    content: Table = ([c for c in named if c], figures, [n for i, n in enumerate(numeric) if i != 1])
    parts = [
        html.header(timing.program, [f"{timing.clock_hz / 1e6:g} MHz", timing.origin]),
        html.cards(cards),
        html.section("Layers", html.table(layers(timing))) if timing.layers else "",
        html.section("Processes", chart + html.details("Figures", content)),
        html.section("Streams", html.table(streams(timing))),
        html.section("Remarks", html.listed(closing(timing)[:-1])),
    ]
    return html.page(f"Timing of {timing.program}", parts, html.foot("cuvil-timing/1", command))


def _slowest(timing: Timing) -> str:
    if timing.bottlenecks:
        return f"* bottleneck: {', '.join(timing.bottlenecks)}"
    busy = max((p.busy for p in timing.processes), default=0.0)
    busiest = f"the busiest, for {words.count(busy)} cycles, {', '.join(timing.busiest)}"
    return f"bottleneck: every process waits at times; {busiest}"


def _bar(p: ProcessTiming) -> str:
    """Rounded so that a wait is seen as one, and the parts fill the bar."""
    if not p.cycles:
        return ""
    waits = [min(_BAR, -int(-_BAR * value // p.cycles)) for value in (p.waits_for_words, p.waits_for_room)]
    while sum(waits) > _BAR:
        waits[waits.index(max(waits))] -= 1
    return "█" * (_BAR - sum(waits)) + "░" * waits[0] + "▒" * waits[1]


def _longest(timing: Timing, p: ProcessTiming) -> tuple[str, str]:
    """At which stream a process waits longest, and for whom."""
    waits = [(s.empty, f"at {s.name} for", s.writer) for s in timing.streams if s.reader == p.name]
    waits += [(s.full, f"at {s.name} for", s.reader) for s in timing.streams if s.writer == p.name]
    cycles, where, whom = max(waits, default=(0.0, "", ""), key=lambda w: w[0])
    return (where, whom) if cycles else ("", "")


def _steady(timing: Timing) -> str:
    match timing.period:
        case 0:
            return f"not in its steady state after {timing.samples} samples: figures are those of the last"
        case 1:
            return f"steady state: every sample is like the one before, as found in {timing.samples} samples"
    return f"steady state: everything repeats after {timing.period} samples, of which figures are means"
