"""Cost of a streaming stage: cycles, and use of logic, registers, memories and multipliers.

LUTs are those of the parts that a stage consists of (products, adder tree, accumulators, epilogue, counters; logic.py),
with a fixed amount of control a process; fabric.py has memories and multiplier blocks. All figures are analytic: they
plan a design, a synthesis report replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, prod

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis import logic
from cuvil_hw.adapters.streaming.analysis.access import Words
from cuvil_hw.adapters.streaming.analysis.exact import Multiplication, SharedFactor, narrowest, stored
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric, Use, bits, fifo_use, memory, multiplier_blocks
from cuvil_hw.adapters.streaming.analysis.floats import counted
from cuvil_hw.adapters.streaming.analysis.fold import Folding
from cuvil_hw.adapters.streaming.analysis.lines import FEW, Lines
from cuvil_hw.adapters.streaming.analysis.operand import Operand
from cuvil_hw.adapters.streaming.analysis.ring import Ring
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.analysis.tables import Table
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Apply, Const, Expr, Load, Lookup
from cuvil_hw.expr.scalar import column
from cuvil_hw.expr.traverse import walk


def cycles(folding: Folding) -> int:
    """Cycles for which a stage and its window generator are busy with one sample (the initiation interval in the
    pipeline of stages)."""
    stage, lanes_in = folding.stage, folding.lanes[0]
    main = max(steps(folding), *(o.cycles(folding.pe, folding.simd) for o in stage.operands), 0)
    if stage.moves or stage.kind in ("buffered", "map", "border"):
        return max([main, *(w.schedule.steps for w in folding.feeds if w is not None)])
    source = stage.kernel.operand(stage.sources[0]).type.size // lanes_in
    if not stage.reordered:
        return main if stage.operands else max(main, source)
    if stage.abreast > 1:
        made = Lines.of(stage, lanes_in)
        return max(made.steps, main + max(0, made.first - main // stage.pixels))
    plan = Ring.of(stage, lanes_in).schedule
    # While the last window is read again, the generator already takes the first words of the next sample.
    again = main // stage.pixels - main // (stage.pixels * (stage.channels_out // folding.pe))
    return max(source, plan.steps, main + max(0, plan.lead - (again if stage.kind == "dense" else 0)))


def steps(folding: Folding) -> int:
    """Cycles for which the process of a stage is busy with one sample."""
    stage, ii = folding.stage, folding.ii
    if stage.kind == "buffered":
        each = prod(i.extent for i in stage.kernel.reduction_iters)
        return (sum(stage.kernel.operand(s).type.size for s in stage.sources) + stage.kernel.type.size * each) * ii
    if stage.kind == "border":
        ends = zip((stage.channels_in, stage.channels_out), folding.lanes, strict=True)
        return stage.pixels * max(ceil(n / lanes) for n, lanes in ends)
    fold_out = stage.channels_out // folding.pe
    if stage.kind in ("map", "moved"):
        return stage.pixels * fold_out
    return stage.pixels * fold_out * folding.between * ii


def resources(folding: Folding, fabric: Fabric) -> Use:
    """Use of one stage with its window generator, its input FIFO and its constants."""
    stage, k = folding.stage, folding.stage.kernel
    lanes_in, lanes_out = folding.lanes
    source = stage.kernel.operand(stage.sources[0]).type.dtype if stage.sources else k.type.dtype
    width_in, width_out = bits(source), bits(k.type.dtype)
    use = fifo_use(fabric, 2, lanes_in * width_in)
    use.lut += 60 + width_out * lanes_out  # control and output register of a pipelined process
    use.ff += 80 + 2 * width_out * lanes_out
    if stage.kind == "buffered":
        _buffered(use, folding, fabric)
    if stage.kind in ("buffered", "border"):
        return use
    if stage.kind in ("dense", "depthwise"):
        _reduction(use, folding, fabric, width_in)
        if stage.reordered and stage.abreast > 1:
            _lines(use, folding, fabric, width_in)
        elif stage.reordered:
            _window(use, stage, fabric, lanes_in, width_in)
        if folding.tail:
            _tail(use, folding, fabric)
    for walked in stage.operands:
        _feed(use, walked, folding, fabric, bits(k.operand(walked.buffer).type.dtype))
    for move, words in zip(stage.moves, folding.feeds, strict=False):
        if words is not None:
            _words(use, words, fabric, bits(move.load.dtype))
    if stage.kind == "map":
        _held(use, folding, fabric)
    _arithmetic(use, folding, stage.epilogue, fabric, lanes_out)
    pe, outside = folding.pe, {n for n in stage.epilogue if isinstance(n, Load | Lookup)}
    steps = 0 if stage.kind == "moved" else folding.between  # there each table counts its own
    for lanes, tables in (
        (lanes_out, [t for t in stage.parameters if t.leaf in outside]),
        (pe, [t for t in stage.parameters if t.leaf not in outside]),
    ):
        _tables(use, tables, fabric, (lanes, folding.simd), (max(1, stage.channels_out // lanes), steps))
    return use


def _feed(use: Use, walked: Operand, folding: Folding, fabric: Fabric, width: int) -> None:
    """The processes between a stream and its stage. The FIFO before a memory holds the next block meanwhile."""
    wide, lanes = walked.lanes(folding.pe, folding.simd)
    if walked.sliced:
        use.lut += 60 + lanes * width + 2 * logic.counter(walked.elements)
        use.ff += 80 + 2 * lanes * width
    if walked.stored:
        plan = walked.reorder(folding.pe, folding.simd)
        depth = plan.words // plan.banks
        for _ in range(plan.banks):
            memory(use, fabric, depth, lanes * width)
        address = ceil(log2(max(depth, 2)))
        use.lut += 100 + 8 * address + wide * width + logic.counter(plan.given)
        use.ff += 100 + 6 * address + 2 * wide * width
        use.add(fifo_use(fabric, plan.words, lanes * width))


def _words(use: Use, words: Words, fabric: Fabric, width: int) -> None:
    """A process that brings words into another order: its memories, sums of places, multiplexers where lanes move."""
    for depth, wide in words.memories(width):
        memory(use, fabric, depth, wide)
    adders = logic.adder(ceil(log2(max(words.total, 2)))) * (words.terms + 2)
    use.lut += 140 + adders + sum(map(logic.counter, words.extents))
    use.lut += words.lanes[1] * logic.multiplexer(len(words.ways), width)
    use.ff += 120 + adders + sum(words.lanes) * width
    use.add(fifo_use(fabric, words.schedule.lead, words.lanes[0] * width))


def _held(use: Use, folding: Folding, fabric: Fabric) -> None:
    """What an elementwise stage holds to use it again."""
    stage = folding.stage
    sweeps = stage.sweeps(folding.pe)
    for n, walked in enumerate(stage.operands):
        still = next((m for m, t in enumerate(sweeps) if not t.moves[n] and t.extent > 1), len(sweeps))
        words = prod(t.extent for t in sweeps[still:] if t.moves[n])
        width = walked.lanes(folding.pe, 1)[0] * bits(stage.kernel.operand(walked.buffer).type.dtype)
        memory(use, fabric, words, width)


def _tail(use: Use, folding: Folding, fabric: Fabric) -> None:
    """What an epilogue of its own takes beside its arithmetic: control, and the way of the sums to it."""
    stage, reduce = folding.stage, folding.stage.kernel.reduce
    assert reduce is not None
    width = folding.pe * bits(reduce.dtype)
    use.lut += 2 * 60 + width  # a process and a converter, whose word moves up
    use.ff += 2 * 80 + width
    burst = stage.channels_out // folding.pe if stage.kind == "depthwise" else 2
    use.add(fifo_use(fabric, max(burst, 2), width))
    use.add(fifo_use(fabric, 2, folding.tail * bits(reduce.dtype)))


def _reduction(use: Use, folding: Folding, fabric: Fabric, width_in: int) -> None:
    stage, pe, k = folding.stage, folding.pe, folding.stage.kernel
    reduce = k.reduce
    if reduce is None:
        raise CuvilError(f"{k.name} has no reduction")
    lanes, depth_in = folding.simd, folding.between
    acc = bits(reduce.dtype)
    fold_out = stage.channels_out // pe
    floats = stage.floats
    if floats:
        float_use(use, [n for u in reduce.update for n in walk(u)], fabric, pe * lanes)
    multipliers = stage.products[0]
    if folding.graph is not None:
        luts, registers = logic.graph(folding.graph.adders.adder_bits)
        use.lut += luts
        use.ff += registers
    elif folding.multiplier == "pair" and stage.pair is not None:
        use_pair(use, stage.pair, pe * lanes)
    else:
        for p in multipliers:
            use_product(use, p, fabric, pe * lanes, folding.multiplier)
    if folding.multiplier in ("lut", "pair"):  # the sum of products in multiplier blocks is made in their own cascade
        whole = max(sum(p.ports) for p in multipliers)
        use.lut += pe * logic.tree(lanes, whole)
        use.ff += pe * lanes * whole
    _tables(use, stage.weights, fabric, (pe, lanes), (fold_out, depth_in), folding.memory)
    if not floats:
        use.lut += pe * logic.adder(acc)
    use.ff += pe * acc
    use.lut += logic.counter(stage.pixels * fold_out * depth_in)
    use.ff += 2 * ceil(log2(max(stage.pixels * fold_out * depth_in, 2)))  # and what the pipeline carries of it
    if stage.kind == "dense" and fold_out > 1 and not stage.ordered:
        memory(use, fabric, depth_in, lanes * width_in)  # the window that is read again
        if not stage.reordered:  # and the next one, meanwhile
            use.add(fifo_use(fabric, max(depth_in, 2), lanes * width_in))
    if (stage.kind == "depthwise" or stage.ordered) and fold_out > 1 and depth_in > 1:
        for _ in range(pe):
            memory(use, fabric, fold_out, acc)


def _window(use: Use, stage: Stage, fabric: Fabric, lanes: int, width: int) -> None:
    r = Ring.of(stage, lanes)
    words = r.schedule.rows * r.row_words
    memory(use, fabric, words, lanes * width)
    address = ceil(log2(max(words, 2)))
    use.lut += 140 + 12 * address + 2 * lanes * width
    use.ff += 120 + 8 * address + 2 * lanes * width
    use.add(fifo_use(fabric, r.schedule.lead, lanes * width))


def _lines(use: Use, folding: Folding, fabric: Fabric, width: int) -> None:
    """A generator of whole windows: its lines, the columns of a window, masks where it leaves the input; a converter
    where a stage takes a part of a window a step."""
    stage, element = folding.stage, folding.lanes[0] * width
    made = Lines.of(stage, folding.lanes[0])
    y, x = made.y, made.x
    memory(use, fabric, made.row_words, (y.span - 1) * element)
    columns, window = (x.span - 1) * y.kernel * element, stage.tap_count * element
    if made.fold <= FEW:
        use.ff += made.fold * columns
        use.lut += logic.multiplexer(made.fold, columns)
    else:
        memory(use, fabric, made.fold, columns)
    use.lut += 140 + window / 2 + sum(map(logic.counter, (made.row_words, made.steps, made.turn, y.out)))
    use.ff += 120 + 2 * element + window
    use.add(fifo_use(fabric, 2, window))
    if folding.window_lanes < stage.tap_count * folding.lanes[0]:
        use.lut += 60 + window
        use.ff += 80 + window
        use.add(fifo_use(fabric, 2, folding.window_lanes * width))


def _tables(
    use: Use, tables: Sequence[Table], fabric: Fabric, lanes: tuple[int, int], folds: tuple[int, int], kind: str = ""
) -> None:
    """Constants in the widths in which they are emitted. `lanes`: of outputs and inputs; `folds`: steps over both."""
    for t in tables:
        words, elements = t.shape(*lanes, folds)
        for _ in range(ceil(lanes[0] / 2) if t.by_data else 1):  # two ports each
            memory(use, fabric, words, elements * fabric.bits(t.dtype), kind if words > 1 else "")


def _arithmetic(use: Use, folding: Folding, nodes: Sequence[Expr], fabric: Fabric, lanes: int) -> None:
    """Operators of one output, `lanes` times."""
    float_use(use, nodes, fabric, lanes)
    for product in folding.stage.products[1]:
        use_product(use, product, fabric, lanes, folding.rescale)
    for n in nodes:
        match n:
            case Apply() if any(dtypes.is_float(e.dtype) for e in (n, *n.args)):
                pass  # counted above
            case Apply(dtype="index"):
                pass  # the loop counters' own
            case Apply(op="and", args=(_, Const(value=1))) if n.dtype != "bool":
                pass  # one wire, the carry into the adder that reads it (ties to even)
            case Apply(op="add", args=(_, Apply(op="and", args=(_, Const(value=1))))):
                pass
            case Apply():
                _integer_use(use, n, fabric, lanes)


def _integer_use(use: Use, n: Apply, fabric: Fabric, lanes: int) -> None:
    """An operator on integers or bool, `lanes` times."""
    match column(n.op, "logic", "an FPGA's integers"):
        case "product":
            pass  # counted apart
        case "shift" if isinstance(by := n.args[1], Lookup):
            # half a LUT for a bit of a stage of multiplexers
            use.lut += 0.5 * lanes * bits(n.dtype) * ceil(log2(max(by.values) - min(by.values) + 1))
        case "adder":
            use.lut += lanes * logic.adder(bits(n.args[0].dtype))
            use.ff += lanes * bits(n.dtype)
        case "divider":
            use.lut += lanes * bits(n.dtype) * (bits(n.dtype) + 4)


def float_use(use: Use, nodes: Sequence[Expr], fabric: Fabric, lanes: int) -> None:
    """The float operators among `nodes`, `lanes` times."""
    for name, count in counted(nodes, fabric.fused).items():
        core = fabric.floats[name]
        use.dsp += lanes * count * core.dsp
        use.lut += lanes * count * core.lut
        use.ff += lanes * count * core.ff


def use_product(use: Use, product: Multiplication, fabric: Fabric, lanes: int, kind: str) -> None:
    """One product a lane, in blocks (`kind` "dsp") or logic ("lut")."""
    a, b = product.ports
    use.ff += logic.operand_registers(lanes, b)
    if kind != "lut":
        use.dsp += lanes * multiplier_blocks(fabric, a, b)
    else:
        use.lut += lanes * logic.multiplier(a, b, product.factor)


def use_pair(use: Use, pair: SharedFactor, lanes: int) -> None:
    """`lanes` products, two a block: logic puts two factors side by side, and gives the upper product back what the
    lower one's sign took."""
    _, other, product = pair.bits
    use.dsp += lanes / 2
    use.ff += logic.operand_registers(lanes, other)
    use.lut += lanes / 2 * (logic.adder(other + 1) + logic.adder(product))


def _buffered(use: Use, folding: Folding, fabric: Fabric) -> None:
    stage = folding.stage
    for name in stage.kernel.inputs:
        operand = stage.kernel.operand(name)
        lo, hi = stage.ranges.get(name, (0, 0))
        dtype = narrowest(lo, hi) if name in stage.ranges else operand.type.dtype
        memory(use, fabric, operand.type.size, fabric.bits(dtype))
    use.lut += 250
    use.ff += 250
    reduce = stage.kernel.reduce
    for start in reduce.init if reduce is not None and stage.side_by_side > 1 else ():
        memory(use, fabric, stage.side_by_side, bits(start.dtype))
    nodes = list(walk(stage.kernel.body))
    _arithmetic(use, folding, nodes, fabric, 1)
    for n in nodes:
        if isinstance(n, Lookup):
            memory(use, fabric, len(n.values), fabric.bits(stored(n, stage.ranges)))
