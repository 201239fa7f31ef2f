"""A whole streaming design: stages joined by streams, forks, width converters and ports, as a level2 module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import gcd

import numpy as np
from xdsl.dialects import func
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.ir import Block, Region, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis import cost, fifo
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric, Use, bits, fifo_kind, fifo_use
from cuvil_hw.adapters.streaming.analysis.fifo import Counts, Edge
from cuvil_hw.adapters.streaming.analysis.lines import Lines
from cuvil_hw.adapters.streaming.analysis.moved import taken
from cuvil_hw.adapters.streaming.analysis.operand import part_needs
from cuvil_hw.adapters.streaming.analysis.ring import Ring
from cuvil_hw.adapters.streaming.lowering import process, reordering, storage
from cuvil_hw.adapters.streaming.lowering.feed import feed
from cuvil_hw.adapters.streaming.lowering.form import Process
from cuvil_hw.adapters.streaming.lowering.whole_window import whole_windows
from cuvil_hw.adapters.streaming.lowering.window import window
from cuvil_hw.errors import CuvilError, Refusal, Unsupported
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import Args, Comment, Fifo, Name, Role, annotate
from cuvil_hw.lower.emit import Tables
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.types import TensorType

MAX_LAYERS = 1024  # saturation counters of the simulator
MOST_AHEAD = 64  # samples between input and output whose ends of packets are remembered


@dataclass(frozen=True)
class Link:
    """A stream between two processes. `words`: of one sample."""

    name: str
    dtype: str
    lanes: int
    words: int


@dataclass(frozen=True)
class Node:
    """One process. `build` is None for the ports of the design. `cycles`: for which one sample keeps it busy, if
    nothing makes it wait; `ahead`: words that it reads in one go, as the first of the next sample or window, while it
    reads none at other times; `burst`: words that it gives in one go, beyond those that are taken meanwhile; `smooth`:
    gives words at its own pace, whenever its input came."""

    name: str
    inputs: tuple[Link, ...]
    outputs: tuple[Link, ...]
    build: Callable[[], func.FuncOp] | None
    needs: Callable[[Link], Counts]
    cycles: int
    ahead: int = 0
    burst: int = 0
    smooth: bool = False
    sequential: bool = False  # reads each input to its end before the next


@dataclass
class Network:
    """The processes of a design in topological order. `flags`: streams that say where packets end."""

    graph: KernelGraph
    tables: Tables
    flags: set[str] = field(default_factory=set)
    nodes: list[Node] = field(default_factory=list)
    ready: dict[str, list[Link]] = field(default_factory=dict)  # streams that still wait for a reader, by buffer

    def stream(self, name: str, dtype: str, lanes: int, elements: int) -> Link:
        """The last word may be filled in part."""
        return Link(name, dtype, lanes, -(-elements // lanes))


def build_network(graph: KernelGraph, forms: Sequence[Process], packets: bool = False, axis_bits: int = 64) -> Network:
    """Place every kernel, by its form, and join them. `packets`: outputs end theirs where the first input does;
    `axis_bits`: that a port moves a cycle."""
    net = Network(graph, Tables(graph.constants))
    wanted: dict[str, list[int]] = {b: [] for b in graph.buffers}
    for form in forms:
        for n, source in enumerate(form.folding.stage.sources):
            wanted[source].append(form.folding.reads(n)[1])
    for name in graph.inputs:
        kind = graph.buffers[name].type
        out = net.stream(name, kind.dtype, max(wanted[name], default=1), kind.size)
        ends = (Link(f"{name}_ends", "bool", 1, 1),) if packets and name == graph.inputs[0] else ()
        busy = max(out.words, _port_words(kind, axis_bits))
        net.nodes.append(Node(f"read_{name}", (), (out, *ends), None, lambda _: np.zeros(0, np.int64), busy))
        _publish(net, name, out, len(wanted[name]))
        for flags in ends:
            _publish(net, flags.name, flags, len(graph.outputs))
            net.flags = {flags.name, *(s.name for s in net.ready[flags.name])}
    for layer, form in enumerate(forms):
        if layer >= MAX_LAYERS:
            raise CuvilError(f"more than {MAX_LAYERS} layers in one design")
        _place(net, form, layer)
        made = form.folding.stage.kernel.output
        uses = len(wanted[made]) + (graph.buffers[made].role == "output")
        _publish(net, made, net.nodes[-1].outputs[0], uses)
    for name in graph.outputs:
        final = net.ready[name].pop()
        ends = (net.ready[f"{graph.inputs[0]}_ends"].pop(),) if net.flags else ()
        busy = max(final.words, _port_words(graph.buffers[name].type, axis_bits))
        net.nodes.append(Node(f"write_{name}", (final, *ends), (), None, lambda _: np.zeros(0, np.int64), busy))
    return net


def _port_words(kind: TensorType, axis_bits: int) -> int:
    """Words of a port in which the elements of a tensor cross, each in its container."""
    return -(-kind.size * 8 * dtypes.to_numpy(kind.dtype).itemsize // axis_bits)


def port_cycles(graph: KernelGraph, axis_bits: int) -> int:
    """Cycles in which the slowest port moves the words of a sample, one a cycle."""
    return max((_port_words(graph.buffers[n].type, axis_bits) for n in (*graph.inputs, *graph.outputs)), default=0)


def _drain(net: Network, out: Link) -> None:
    """Read what no result depends on: whoever sends it must not wait."""
    name = f"drain_{out.name}"
    build = lambda: process.drain(name, net.tables, out.dtype, out.words, out.lanes)  # noqa: E731
    net.nodes.append(Node(name, (out,), (), build, lambda _: np.zeros(0, np.int64), out.words))


def _publish(net: Network, buffer: str, out: Link, uses: int) -> None:
    """Make a stream available to its readers, through a fork when there are several."""
    if uses <= 1:
        net.ready[buffer] = [out]
        if not uses:
            _drain(net, out)
        return
    copies = tuple(Link(f"{buffer}_to{n}", out.dtype, out.lanes, out.words) for n in range(uses))
    name = f"fork_{buffer}"
    build = lambda: process.fork(name, net.tables, out.dtype, out.words, out.lanes, uses)  # noqa: E731
    net.nodes.append(Node(name, (out,), copies, build, lambda _: fifo.map_needs(out.words), out.words))
    net.ready[buffer] = list(copies)[::-1]


def _take(net: Network, buffer: str, lanes: int, reader: str) -> Link:
    """The next stream of a buffer, with the wanted number of lanes."""
    return _convert(net, net.ready[buffer].pop(), lanes, reader)


def _feed(net: Network, form: Process, n: int) -> Link:
    """The stream of a stage's source number `n`, as the stage reads it: a part of it alone, reordered or again and
    again."""
    f, name = form.folding, form.folding.stage.kernel.name
    stage, (_, lanes) = f.stage, f.reads(n)
    have = _take(net, stage.sources[n], lanes, f"{name}{n or ''}")
    words = f.feeds[n] if stage.moves else None
    if words is not None:
        brought = Link(f"{name}_feed{n}", have.dtype, words.lanes[1], words.given)
        build_feed = lambda: feed(brought.name, words, have.dtype, net.tables, stage.pad_value)  # noqa: E731
        needs_feed = lambda _: words.read_by()  # noqa: E731
        s = words.schedule
        net.nodes.append(Node(brought.name, (have,), (brought,), build_feed, needs_feed, s.steps, s.lead, smooth=True))
        return brought
    if not stage.operands:
        return have
    walked = stage.operands[n]
    if walked.sliced:
        levels = walked.levels or ()
        source, here = have, f"{name}_part{n}"
        have = Link(here, source.dtype, lanes, walked.read // lanes)
        build = lambda: reordering.part(here, source.dtype, net.tables, levels, lanes)  # noqa: E731
        needs = lambda _: part_needs(levels, lanes)  # noqa: E731
        net.nodes.append(Node(here, (source,), (have,), build, needs, source.words))
    if walked.stored:
        plan = walked.reorder(f.pe, f.simd)
        stream, at = have, f"{name}_order{n}"
        have = Link(at, stream.dtype, plan.lanes * plan.banks, plan.blocks * plan.given)
        build_order = lambda: reordering.reorder(at, stream.dtype, net.tables, plan)  # noqa: E731
        needs_order = lambda _: plan.needs()  # noqa: E731
        net.nodes.append(Node(at, (stream,), (have,), build_order, needs_order, plan.steps, plan.words, smooth=True))
    return have


def _convert(net: Network, have: Link, lanes: int, reader: str) -> Link:
    if have.lanes == lanes:
        return have
    if max(have.lanes, lanes) % min(have.lanes, lanes):
        have = _convert(net, have, gcd(have.lanes, lanes), reader)
    words = have.words * have.lanes // lanes
    out = Link(f"{have.name}_by{lanes}_{reader}", have.dtype, lanes, words)
    name = f"resize_{have.name}_{reader}"
    wide, busy = sorted((have.words, words))
    build = lambda: process.convert(name, net.tables, have.dtype, wide, have.lanes, lanes)  # noqa: E731
    needs = lambda _: fifo.convert_needs(words, have.lanes, lanes)  # noqa: E731
    net.nodes.append(Node(name, (have,), (out,), build, needs, busy))
    return out


def _place(net: Network, form: Process, layer: int) -> None:
    s, graph, tables = form.folding.stage, net.graph, net.tables
    k, (lanes_in, lanes_out) = s.kernel, form.folding.lanes
    ins = tuple(_feed(net, form, n) for n in range(len(s.sources)))
    if s.abreast > 1 and s.reordered:
        source, made = ins[0], Lines.of(s, lanes_in)
        whole = Link(f"{k.name}_windows", source.dtype, s.tap_count * lanes_in, s.pixels * made.fold)
        build_lines = lambda: whole_windows(f"{k.name}_window", s, source.dtype, tables, lanes_in)  # noqa: E731
        by = lambda _: made.read_by()  # noqa: E731
        net.nodes.append(Node(f"{k.name}_window", (source,), (whole,), build_lines, by, made.steps))
        ins = (_convert(net, whole, form.folding.window_lanes, k.name),)
    elif s.kind in ("dense", "depthwise") and s.reordered:
        source = ins[0]
        r = Ring.of(s, lanes_in)
        taps = Link(f"{k.name}_windows", source.dtype, lanes_in, s.pixels * s.tap_count * s.channels_in // lanes_in)
        name = f"{k.name}_window"
        build_window = lambda: window(name, s, source.dtype, tables, lanes_in)  # noqa: E731
        plan = r.schedule
        needs_window = lambda _: r.read_by()  # noqa: E731
        net.nodes.append(Node(name, (source,), (taps,), build_window, needs_window, plan.steps, plan.lead, smooth=True))
        ins = (taps,)
    out = net.stream(k.output, k.type.dtype, lanes_out, k.type.size)
    pe, tail = form.folding.pe, form.folding.tail
    fold_out = s.channels_out // pe
    ahead = burst = 0
    needs: Callable[[Link], Counts]
    match s.kind:
        case "dense":
            words, gangs = form.folding.between, s.groups // form.folding.gang
            weights = ins[1] if s.product else None
            once = (s.pixels * gangs, words, fold_out // gangs), (s.pixels * fold_out, words, 1)
            needs = lambda e: fifo.dense_needs(*once[e is weights])  # noqa: E731
            ahead = words if fold_out > gangs and not s.ordered else 0
        case "depthwise" if s.abreast > 1:
            needs = lambda _: fifo.map_needs(out.words)  # noqa: E731
        case "depthwise":
            needs = lambda _: fifo.depthwise_needs(s.pixels, s.tap_count, fold_out)  # noqa: E731
            burst = fold_out - fold_out * tail // pe if tail else 0
        case "map":
            needs = lambda e: fifo.held_needs(s.sweeps(pe), [i is e for i in ins].index(True))  # noqa: E731
        case "border":
            needs = lambda e: np.minimum(fifo.map_needs(out.words), e.words)  # noqa: E731
        case "moved":
            nest = [k.iterators[d] for d in s.order]
            needs = lambda e: taken(s.moves[[i is e for i in ins].index(True)], nest, pe)  # noqa: E731
        case _:
            needs = lambda e: fifo.all_needs(e.words, out.words)  # noqa: E731
    build = lambda: form.emit(graph, tables, layer)  # noqa: E731
    busy = cost.steps(form.folding)
    given = out
    if tail:
        assert k.reduce is not None
        given = net.stream(f"{k.name}_sums", k.reduce.dtype, pe, k.type.size)
    net.nodes.append(Node(k.name, ins, (given,), build, needs, busy, ahead, burst, sequential=s.kind == "buffered"))
    if tail:
        few = _convert(net, given, tail, k.name)
        build_tail = lambda: form.emit_epilogue(graph, tables, layer)  # noqa: E731
        needs_tail = lambda _: fifo.map_needs(out.words)  # noqa: E731
        net.nodes.append(Node(f"{k.name}_epilogue", (few,), (out,), build_tail, needs_tail, out.words))


def fifo_depths(net: Network) -> dict[str, int]:
    """Depth of every stream of a design, in words."""
    ahead = _waiting(net)
    return {name: max(depth, ahead.get(name, 0)) for name, depth in _bypass_depths(net).items()}


def _bypass_depths(net: Network) -> dict[str, int]:
    """What it takes that no process waits for ever."""
    source = {s.name: n.name for n in net.nodes for s in n.outputs}
    joined = [(n, s) for n in net.nodes for s in n.inputs if s.name not in net.flags]
    edges = [Edge(s.name, source[s.name], n.name, s.words) for n, s in joined]
    needs = {(n.name, s.name): (lambda n=n, s=s: n.needs(s)) for n, s in joined}
    result = fifo.depths(edges, needs, [n.name for n in net.nodes])
    # Each process may be at another sample; a flag waits until its sample comes out.
    result |= dict.fromkeys(net.flags, min(len(net.nodes), MOST_AHEAD))
    for n in net.nodes:
        if n.sequential:
            for s in n.inputs[1:]:
                result[s.name] = s.words + fifo.SLACK_WORDS
    return result


def _waiting(net: Network) -> dict[str, int]:
    """Words for which each stream needs room so that neither end waits for the other where a process reads many words
    in one go and none at other times: those that don't come while it reads; all of them where it reads at an even pace
    else, as does who writes them."""
    pace: dict[str, int] = {}  # cycles in which the words of a stream come, at best
    result: dict[str, int] = {}
    for n in net.nodes:
        for s in n.inputs:
            meanwhile = n.ahead * s.words // max(pace[s.name], s.words)
            room = n.ahead - (meanwhile if meanwhile == n.ahead or not n.smooth else 0)
            result[s.name] = max(result.get(s.name, 0), room)
        result.update({s.name: n.burst for s in n.outputs})
        slowest = max((pace[s.name] for s in n.inputs if not n.smooth), default=0)
        pace.update(dict.fromkeys((s.name for s in n.outputs), max(slowest, n.cycles)))
    return result


def lower(graph: KernelGraph, forms: Sequence[Process], axis_bits: int, packets: bool = False) -> ModuleOp:
    """The level2 module of a streaming design: tables, processes, and the top that joins them. `packets`: see
    build_network."""
    for name in (*graph.inputs, *graph.outputs):
        if graph.buffers[name].type.size == 0:
            raise Unsupported([Refusal(f"port {name}", "it has no elements; a stream can't carry it")])
    net = build_network(graph, forms, packets, axis_bits)
    depth = fifo_depths(net)
    functions = [n.build() for n in net.nodes if n.build is not None]
    if forms:
        functions = [storage.placed(f, forms[0].fabric) for f in functions]
    top = _top(net, depth, axis_bits, forms[0].fabric if forms else None)
    return ModuleOp([*net.tables.ops, *functions, top])


def _top(net: Network, depth: dict[str, int], axis_bits: int, fabric: Fabric | None) -> func.FuncOp:
    graph = net.graph
    ports = [*graph.inputs, *graph.outputs]
    kind = level2.axis_type(axis_bits)
    block = Block(arg_types=[kind] * len(ports))
    for arg, name in zip(block.args, ports, strict=True):
        arg.name_hint = name
    port = {name: block.args[n] for n, name in enumerate(graph.inputs)}
    port_out = {name: block.args[len(graph.inputs) + n] for n, name in enumerate(graph.outputs)}
    values: dict[str, SSAValue] = {}
    for n in net.nodes:
        for s in n.outputs:
            op = level2.StreamOp(level2.stream_type(level2.signless(s.dtype), s.lanes), depth[s.name], s.words)
            annotate(op, Name(s.name))
            made_of = fifo_kind(fabric, depth[s.name], s.lanes * bits(s.dtype)) if fabric else ""
            if made_of:
                annotate(op, Fifo(made_of))
            block.add_op(op)
            values[s.name] = op.output
    for n in net.nodes:
        if n.build is not None:
            block.add_op(func.CallOp(n.name, [values[s.name] for s in (*n.inputs, *n.outputs)], []))
        elif n.outputs:
            name = n.name.removeprefix("read_")
            size = graph.buffers[name].type.size
            stream, *ends = (values[s.name] for s in n.outputs)
            block.add_op(level2.AxisReadOp(port[name], stream, size, n.outputs[0].dtype, *ends))
        else:
            name = n.name.removeprefix("write_")
            size = graph.buffers[name].type.size
            stream, *ends = (values[s.name] for s in n.inputs)
            block.add_op(level2.AxisWriteOp(stream, port_out[name], size, n.inputs[0].dtype, *ends))
    block.add_op(func.ReturnOp())
    top = func.FuncOp("top", FunctionType.from_lists([kind] * len(ports), []), Region(block))
    annotate(top, Args(tuple(ports)))  # hints of names lose a number at their end
    annotate(top, Role("dataflow"), Comment(f"{graph.name}: {', '.join(graph.inputs)} → {', '.join(graph.outputs)}"))
    return top


def overhead(
    graph: KernelGraph, narrow: Sequence[Process], fabric: Fabric, axis_bits: int, packets: bool = False
) -> dict[str, float]:
    """Use of ports, forks and the FIFOs that bypass longer branches; by forms with streams of one lane, so an upper
    bound in words."""
    net = build_network(graph, narrow, packets, axis_bits)
    depth = _bypass_depths(net)  # a stage counts the others itself
    use = Use()
    for n in net.nodes:
        for s in n.outputs:
            width = s.lanes * bits(s.dtype)
            if depth[s.name] > 2:
                use.add(fifo_use(fabric, depth[s.name], width))
        if n.name.startswith("fork_"):
            use.lut += 40
            use.ff += 40
        elif n.build is None:  # a port: gearbox between the bus and the lanes, and its FIFO
            use.lut += 150 + 2 * axis_bits
            use.ff += 150 + 3 * axis_bits
    return use.axes(fabric)
