"""Cost of a streaming stage: cycles, and use of logic, registers, memories and multipliers.

LUTs are those of the parts that a stage consists of (products, adder tree, accumulators, epilogue, counters; logic.py),
with a fixed amount of control a process; memory rules are those of the vendor's memory guides (UG573, UG474). A
`Fabric` holds what differs between families. All figures are analytic: they plan a design, a synthesis report
replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis import logic
from cuvil_hw.adapters.streaming.analysis.floats import Cores, counted, latency
from cuvil_hw.adapters.streaming.analysis.fold import Folding, weighted
from cuvil_hw.adapters.streaming.analysis.ring import ring
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Apply, Const, Expr, Load, Lookup
from cuvil_hw.expr.scalar import column
from cuvil_hw.expr.traverse import walk


@dataclass(frozen=True, slots=True)
class Fabric:
    """One FPGA family.

    `dsp_a`, `dsp_b`: signed operand widths of a multiplier block; `ram_shapes`: (depth, width) of the block memory
    counted on the axis `ram`; `lutram_bits`: depth of one unit of distributed memory; names of the axes of the
    profile. `dsp_parts`: (a, b, n) where one block makes n products of such operands, narrowest first. Logic is
    reckoned in LUTs of six inputs: `cell` of the profile's units do the work of one. A unit of distributed memory
    is `lutram_width` bits wide and takes `lutram_luts`. `shift_registers`: whether a LUT is one, for short FIFOs.
    `floats`: the f32 operators, all of floats.CORES; `fused`: whether one of them adds to its product.
    """

    dsp_a: int
    dsp_b: int
    ram_shapes: tuple[tuple[int, int], ...]
    lutram_bits: int
    floats: Cores
    lut: str = "lut"
    ff: str = "ff"
    ram: str = "bram18"
    dsp: str = "dsp"
    lutram: str = "lutram"
    dsp_parts: tuple[tuple[int, int, int], ...] = ()
    cell: float = 1.0
    lutram_width: int = 1
    lutram_luts: float = 1.0
    shift_registers: bool = True
    fused: bool = False


@dataclass(slots=True)
class Use:
    """A running total."""

    lut: float = 0.0
    ff: float = 0.0
    ram: float = 0.0
    dsp: float = 0.0
    lutram: float = 0.0  # of the LUTs, those that are memory: only a part of a device's LUTs can be

    def add(self, other: Use) -> None:
        self.lut += other.lut
        self.ff += other.ff
        self.ram += other.ram
        self.dsp += other.dsp
        self.lutram += other.lutram

    def axes(self, fabric: Fabric) -> dict[str, float]:
        return {
            fabric.lut: float(ceil(self.lut * fabric.cell)),
            fabric.ff: float(ceil(self.ff)),
            fabric.ram: float(ceil(self.ram)),
            fabric.dsp: float(ceil(self.dsp)),
            fabric.lutram: float(ceil(self.lutram)),
        }


def bits(dtype: str) -> int:
    return dtypes.record(dtype).bits


def block_rams(fabric: Fabric, depth: int, width: int) -> int:
    """Blocks that hold `depth` words of `width` bits, in the best single shape."""
    return min(ceil(depth / d) * ceil(width / w) for d, w in fabric.ram_shapes) if depth and width else 0


def distributed_units(fabric: Fabric, depth: int, width: int) -> int:
    """Units of distributed memory that hold `depth` words of `width` bits."""
    return ceil(depth / fabric.lutram_bits) * ceil(width / fabric.lutram_width)


def distributed(fabric: Fabric, depth: int, width: int) -> float:
    """LUTs that hold `depth` words of `width` bits. The slices' own multiplexers join four units, further ones take
    LUTs."""
    groups = ceil(ceil(depth / fabric.lutram_bits) / 4)
    return distributed_units(fabric, depth, width) * fabric.lutram_luts + logic.multiplexer(groups, width)


def memory(use: Use, fabric: Fabric, depth: int, width: int, kind: str = "") -> None:
    """Add a memory: as asked for, or what a tool would choose (distributed up to 1,024 bits or 64 words deep)."""
    if kind == "bram" or (not kind and depth > fabric.lutram_bits and depth * width > 1024):
        use.ram += block_rams(fabric, depth, width)
    else:
        use.lut += distributed(fabric, depth, width)
        use.lutram += distributed_units(fabric, depth, width)


def multiplier_blocks(fabric: Fabric, a: int, b: int) -> float:
    """DSP blocks of one signed a × b product, tiled; a part of one where several products share it. A product by at
    most one bit is a selection."""
    if min(a, b) <= 1:
        return 0
    for wide, narrow, products in fabric.dsp_parts:
        if max(a, b) <= max(wide, narrow) and min(a, b) <= min(wide, narrow):
            return 1 / products

    def tiles(operand: int, port: int) -> int:
        """The tile with the sign fills the port; the others are unsigned and leave its sign bit free."""
        return 1 + ceil(max(0, operand - port) / (port - 1))

    return min(
        tiles(a, fabric.dsp_a) * tiles(b, fabric.dsp_b),
        tiles(b, fabric.dsp_a) * tiles(a, fabric.dsp_b),
    )


def fifo_use(fabric: Fabric, depth: int, width: int) -> Use:
    """A FIFO: two words in flip-flops, more in shift registers (a LUT holds 32 bits of one or 16 bits of two), beyond
    1,024 bits in block memory; without shift registers in a memory. Control is a pointer and two flags (UG474, and
    counts of Yosys: benchmarks/fabric_primitives.py)."""
    pointer = ceil(log2(max(depth, 2)))
    use = Use(lut=2 * pointer + 4, ff=pointer + 2)
    if depth <= 2:
        use.lut += width
        use.ff += 2 * width
    elif not fabric.shift_registers:
        memory(use, fabric, depth, width)
    elif depth * width <= 1024 or depth <= 32:
        luts = ceil(width / 2) if depth <= 16 else ceil(depth / 32) * width
        use.lut += luts
        use.lutram += luts
    else:
        use.ram += block_rams(fabric, depth, width)
    return use


def cycles(folding: Folding, cores: Cores) -> int:
    """Cycles for which a stage and its window generator are busy with one sample (the initiation interval in the
    pipeline of stages)."""
    stage = folding.stage
    lanes_in, lanes_out = folding.lanes
    if stage.kind in ("buffered", "map"):
        return steps(folding, cores)
    main = steps(folding, cores)
    source = stage.kernel.operand(stage.sources[0]).type.size // lanes_in
    if not stage.reordered:
        return max(main, source)
    plan = ring(stage, lanes_in).schedule
    # While the last window is read again, the generator already takes the first words of the next sample.
    again = main // stage.pixels - main // (stage.pixels * (stage.channels_out // lanes_out))
    return max(source, plan.steps, main + max(0, plan.lead - (again if stage.kind == "dense" else 0)))


def steps(folding: Folding, cores: Cores) -> int:
    """Cycles for which the process of a stage is busy with one sample."""
    stage, ii = folding.stage, folding.ii
    lanes_in, lanes_out = folding.lanes
    if stage.kind == "buffered":
        inner: float = ii
        for i in stage.kernel.reduction_iters:
            inner *= i.extent
        reduce = stage.kernel.reduce
        if reduce is not None and stage.floats:  # the next outputs start when these are through
            across = stage.side_by_side
            fill = sum(latency(e, cores) for e in (*reduce.update, stage.kernel.body))
            inner += fill / across + (2 if across > 1 else 0)
        return ceil(sum(stage.kernel.operand(s).type.size for s in stage.sources) + stage.kernel.type.size * inner)
    fold_out = stage.channels_out // lanes_out
    if stage.kind == "map":
        return stage.pixels * fold_out
    inputs = stage.channels_in // lanes_in if stage.kind == "dense" else 1
    return stage.pixels * fold_out * stage.tap_count * inputs * ii


def resources(folding: Folding, fabric: Fabric) -> Use:
    """Use of one stage with its window generator, its input FIFO and its constants."""
    stage, k = folding.stage, folding.stage.kernel
    lanes_in, pe = folding.lanes
    source = stage.kernel.operand(stage.sources[0]).type.dtype if stage.sources else k.type.dtype
    width_in, width_out = bits(source), bits(k.type.dtype)
    use = fifo_use(fabric, 2, lanes_in * width_in)
    use.lut += 60 + width_out * pe  # control and output register of a pipelined process
    use.ff += 80 + 2 * width_out * pe
    if stage.kind == "buffered":
        _buffered(use, stage, fabric)
        return use
    if stage.kind in ("dense", "depthwise"):
        _reduction(use, folding, fabric, lanes_in, width_in)
        if stage.reordered:
            _window(use, stage, fabric, lanes_in, width_in)
    _arithmetic(use, stage.epilogue, stage, fabric, pe)
    return use


def _reduction(use: Use, folding: Folding, fabric: Fabric, simd: int, width_in: int) -> None:
    stage, pe, k = folding.stage, folding.pe, folding.stage.kernel
    reduce = k.reduce
    if reduce is None:
        raise CuvilError(f"{k.name} has no reduction")
    lanes = simd if stage.kind == "dense" else 1
    acc = bits(reduce.dtype)
    fold_out = stage.channels_out // pe
    depth_in = stage.tap_count * (stage.channels_in // simd if stage.kind == "dense" else 1)
    product = 0
    floats = stage.floats
    if floats:
        float_use(use, [n for u in reduce.update for n in walk(u)], fabric, pe * lanes)
    if weighted(stage):
        weights = [k.operand(b) for b in k.inputs if b not in stage.sources]
        width_w = (
            max(bits(b.type.dtype) for b in weights if b.type.rank > 1) if any(b.type.rank > 1 for b in weights) else 8
        )
        product = 0 if floats else width_in + width_w
        if floats:
            pass  # counted above
        elif folding.multiplier == "dsp":
            use.dsp += pe * lanes * multiplier_blocks(fabric, width_in + 1, width_w)
        else:
            use.lut += pe * (lanes * logic.multiplier(width_in, width_w) + logic.tree(lanes, product))
            use.ff += pe * lanes * product
        if not floats:
            use.ff += logic.operand_registers(pe * lanes, width_w)
        memory(use, fabric, fold_out * depth_in, pe * lanes * width_w, folding.memory)
    if not floats:  # the sum of products in multiplier blocks is made in their own cascade
        use.lut += pe * logic.adder(acc)
    use.ff += pe * acc
    use.lut += logic.counter(stage.pixels * fold_out * depth_in)
    use.ff += 2 * ceil(log2(max(stage.pixels * fold_out * depth_in, 2)))  # and what the pipeline carries of it
    if stage.kind == "dense" and fold_out > 1 and not stage.ordered:
        memory(use, fabric, depth_in, simd * width_in)  # the window that is read again
    if (stage.kind == "depthwise" or stage.ordered) and fold_out > 1:
        memory(use, fabric, fold_out, pe * acc)


def _window(use: Use, stage: Stage, fabric: Fabric, lanes: int, width: int) -> None:
    r = ring(stage, lanes)
    words = r.schedule.rows * r.row_words
    memory(use, fabric, words, lanes * width, "bram" if words > 64 else "lutram")
    address = ceil(log2(max(words, 2)))
    use.lut += 140 + 12 * address + 2 * lanes * width
    use.ff += 120 + 8 * address + 2 * lanes * width
    use.add(fifo_use(fabric, r.schedule.lead, lanes * width))


def _arithmetic(use: Use, nodes: Sequence[Expr], stage: Stage, fabric: Fabric, lanes: int) -> None:
    """Operators of one output, `lanes` times; constants per channel are small memories."""
    fold_out = max(1, stage.channels_out // lanes)
    float_use(use, nodes, fabric, lanes)
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
            case Lookup():
                if any(isinstance(m, Load) for m in walk(n.index)):
                    copies = ceil(lanes / 2)  # two ports each
                    memory(use, fabric, len(n.values), bits(n.dtype)) if lanes == 1 else memory(
                        use, fabric, len(n.values), bits(n.dtype) * copies
                    )
                else:
                    memory(use, fabric, fold_out, lanes * _needed_bits(n))
            case Load(buffer=b) if b not in stage.sources:
                memory(use, fabric, fold_out, lanes * bits(n.dtype))


def _integer_use(use: Use, n: Apply, fabric: Fabric, lanes: int) -> None:
    """An operator on integers or bool, `lanes` times."""
    match column(n.op, "logic", "an FPGA's integers"):
        case "product":
            use_product(use, n.args[0], n.args[1], fabric, lanes)
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


def _needed_bits(n: Lookup) -> int:
    if dtypes.is_float(n.dtype):
        return bits(n.dtype)
    return max(int(abs(v)).bit_length() for v in n.values) + (min(n.values) < 0)


def use_product(use: Use, a: Expr, b: Expr, fabric: Fabric, lanes: int) -> None:
    """One product a lane; by a power of two it is wiring, constants narrow it."""
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const) and not dtypes.is_float(b.dtype):
        value = abs(int(b.value))
        if value & (value - 1) == 0:
            return
        other = value.bit_length() + 1
    elif isinstance(b, Lookup) and not dtypes.is_float(b.dtype):
        other = _needed_bits(b) + 1
    else:
        other = bits(b.dtype)
    use.dsp += lanes * multiplier_blocks(fabric, _source_bits(a), other)
    use.ff += lanes * bits(a.dtype)


def _source_bits(e: Expr) -> int:
    """Width of a value before it was widened by casts."""
    while isinstance(e, Apply) and e.op == "cast":
        e = e.args[0]
    return bits(e.dtype) if e.dtype != "index" else 32


def _buffered(use: Use, stage: Stage, fabric: Fabric) -> None:
    for name in stage.kernel.inputs:
        kind = stage.kernel.operand(name).type
        memory(use, fabric, kind.size, bits(kind.dtype), "bram" if kind.size > 128 else "lutram")
    use.lut += 250
    use.ff += 250
    reduce = stage.kernel.reduce
    for start in reduce.init if reduce is not None and stage.side_by_side > 1 else ():
        memory(use, fabric, stage.side_by_side, bits(start.dtype), "lutram")
    nodes = list(walk(stage.kernel.body))
    _arithmetic(use, [n for n in nodes if not isinstance(n, Load)], stage, fabric, 1)
