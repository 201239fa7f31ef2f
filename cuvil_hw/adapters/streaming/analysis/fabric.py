"""What a family of FPGAs is made of: multiplier blocks, memories, FIFOs, and what each takes of a device.

Rules are those of the vendors' memory guides (UG573, UG474). All figures are analytic.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis import logic
from cuvil_hw.adapters.streaming.analysis.exact import SharedFactor
from cuvil_hw.adapters.streaming.analysis.floats import Cores


@dataclass(frozen=True, slots=True)
class Fabric:
    """One FPGA family.

    `dsp_a`, `dsp_b`: signed operand widths of a multiplier block; `ram_shapes`: (depth, width) of the block memory
    counted on the axis `ram`; `lutram_bits`: depth of one unit of distributed memory; names of the axes of the
    profile. `dsp_parts`: (a, b, n) where one block makes n products of such operands, narrowest first. Logic is
    reckoned in LUTs of six inputs: `cell` of the profile's units do the work of one. A unit of distributed memory
    is `lutram_width` bits wide and takes `lutram_luts`. `shift_registers`: whether a LUT is one, for short FIFOs.
    `floats`: the f32 operators, all of floats.CORES; `fused`: whether one of them adds to its product. `exact`: the
    language has integers of any width; else widths are those of native types. `pairs`: sources may pack two products
    with a factor in common into one block. `adders`: sources may hold products by constants as graphs of additions.
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
    exact: bool = True
    pairs: bool = False
    adders: bool = False

    def bits(self, dtype: str) -> int:
        """Bits in which an element is kept."""
        width = dtypes.int_width(dtype)
        if self.exact or width is None:
            return bits(dtype)
        needed = width[1] + (not width[0])
        return next((b for b in (8, 16, 32) if needed <= b), 64)

    def holds_pair(self, pair: SharedFactor) -> bool:
        """Whether one multiplier block makes both products."""
        a, b = pair.ports
        return self.pairs and a <= self.dsp_a and b <= self.dsp_b

    def place(self, words: int, width: int) -> str:
        """What a memory of `words` words of `width` bits is made of where nobody chose: constants of one word are
        wiring; up to 1,024 bits, or as deep as one unit, is distributed."""
        if words <= 1:
            return ""
        return "bram" if words > self.lutram_bits and words * width > 1024 else "lutram"


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
    """Add a memory: as asked for, or where `Fabric.place` puts it."""
    kind = kind or fabric.place(depth, width)
    if kind == "bram":
        use.ram += block_rams(fabric, depth, width)
    elif kind == "lutram":
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
    kind = fifo_kind(fabric, depth, width)
    if kind == "srl":
        luts = ceil(width / 2) if depth <= 16 else ceil(depth / 32) * width
        use.lut += luts
        use.lutram += luts
    elif kind:
        memory(use, fabric, depth, width, kind)
    else:
        use.lut += width
        use.ff += 2 * width
    return use


def fifo_kind(fabric: Fabric, depth: int, width: int) -> str:
    """What a FIFO is made of: "srl", "lutram" or "bram"; "" for two words, which tools keep in registers or SRLs."""
    if depth <= 2:
        return ""
    if fabric.shift_registers:
        return "srl" if depth * width <= 1024 or depth <= 32 else "bram"
    return fabric.place(depth, width)
