"""How a kernel runs on a processor: a loop nest with accumulators side by side, or a tile of vector registers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from xdsl.dialects.func import FuncOp

from cuvil_hw import dtypes
from cuvil_hw.adapters.cpu import cost
from cuvil_hw.adapters.cpu.layout import pairs_of
from cuvil_hw.adapters.cpu.reach import fits, inner_range
from cuvil_hw.adapters.cpu.tile import InRegisters, Registers
from cuvil_hw.adapters.sequential.alike import form_of
from cuvil_hw.adapters.sequential.nest import LaneBlocks, Layout, Nest, apply, function_of
from cuvil_hw.adapters.sequential.product import Product, product_of
from cuvil_hw.adapters.sequential.stage import OperandStage, stage_of
from cuvil_hw.expr.nodes import Iter, Load
from cuvil_hw.expr.traverse import walk
from cuvil_hw.lower.emit import Tables
from cuvil_hw.schedule.kernel import Buffer, Kernel
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import Profile

# Rows and vectors of a tile; those that fit the registers are offered.
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12)
VECTORS = tuple(range(1, 9))
# A stage lies on the stack and should stay in the second cache beside the weights; one row alone may be larger.
STAGE_BYTES, STAGE_LIMIT_BYTES = 96 << 10, 256 << 10


@dataclass(frozen=True, slots=True)
class Laid:
    """How a kernel's buffers lie: physical orders, and constants in blocks of lanes."""

    layouts: Mapping[str, Layout]
    packed: Mapping[str, LaneBlocks]


@dataclass(frozen=True, slots=True)
class LoopNest:
    """A kernel as loops of C.

    Attributes:
        vector: the iterator along which accumulators lie side by side; "" for none.
        lanes: how many accumulators; 0 for a kernel without a reduction.
        layouts: physical order of its buffers, by name, where it isn't the logical one.
        packed: its constants that lie in blocks of lanes.
    """

    kernel: Kernel = field(compare=False, repr=False)
    vector: str
    lanes: int
    layouts: Mapping[str, Layout] = field(compare=False, repr=False)
    packed: Mapping[str, LaneBlocks] = field(compare=False, repr=False)

    @property
    def nest(self) -> Nest:
        return Nest(self.vector, self.lanes, self.layouts, self.packed)

    def describe(self) -> str:
        return f"lanes={self.lanes}" if self.lanes else "default"

    def estimate(self, profile: Profile) -> Estimate:
        return cost.estimate(self.kernel, self.vector, self.lanes, profile)

    def alike(self, buffers: Mapping[str, Buffer]) -> Hashable:
        """What the function of a form depends on besides its names: equal ones need one function."""
        names = (*self.kernel.inputs, self.kernel.output)
        orders = tuple((self.nest.layout(buffers[n]), self.packed.get(n)) for n in names)
        return form_of(self.kernel), self.vector, self.lanes, orders

    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        return apply(self.kernel, self.nest, buffers, tables, symbol, layer)


@dataclass(frozen=True, slots=True)
class RegisterTile(LoopNest):
    """A sum of products in `registers`."""

    registers: Registers

    def describe(self) -> str:
        t = self.registers
        rows = f"{t.row}={t.rows}@registers " if t.row else ""
        copied = f" stage={t.stage.load.buffer}@{t.high}" if t.stage is not None else ""
        return f"{rows}{self.vector}={t.lanes}@registers vector={t.width}{' pairs' if t.pairs else ''}{copied}"

    def estimate(self, profile: Profile) -> Estimate:
        t, extents = self.registers, {i.name: i.extent for i in self.kernel.iterators}
        alone = extents[t.row] - (t.inner[1] - t.inner[0]) if t.row else 0
        whole, rest = divmod(t.inner[1] - t.inner[0], t.rows)
        rows = [(t.rows, whole), (rest, 1), (1, alone)] if t.row else [(1, 1)]
        return cost.of_tile(self.kernel, extents[self.vector], t.width, t.vectors, rows, t.pairs, profile)

    def alike(self, buffers: Mapping[str, Buffer]) -> Hashable:
        stage = self.registers.stage
        number = self.kernel.inputs.index(stage.load.buffer) if stage is not None else -1
        plain = replace(self.registers, stage=None)
        return LoopNest.alike(self, buffers), plain, number, stage and replace(stage, load=None)  # type: ignore[arg-type]

    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        lower = lambda memories, e: InRegisters(self.kernel, self.nest, buffers, memories, e, self.registers)  # noqa: E731
        return function_of(self.kernel, self.nest, buffers, tables, symbol, layer, lower)


def register_tiles(
    kernel: Kernel, vector: str, laid: Laid, profile: Profile, finite: Callable[[str], bool]
) -> list[RegisterTile]:
    """Tiles that fit the registers of the profile's processor; none for a kernel that isn't arithmetic on vectors.
    `finite`: whether a constant holds no infinity or NaN, whose products with a stage's zeros wouldn't be zero."""
    lane = next((i for i in kernel.iterators if i.name == vector), None)
    reduce, product = kernel.reduce, product_of(kernel)
    if lane is None or reduce is None:
        return []
    pairs = product is not None and pairs_of(kernel, product, lane)
    if not pairs and not fits(kernel, lane, lambda x: _innermost(x, laid.layouts)):
        return []
    wide = not dtypes.is_float(reduce.dtype)
    width = cost.vector_bits(profile) // (32 if wide else dtypes.record(reduce.dtype).bits)
    row, band = rows_of(kernel, lane, product)
    stage = _stage(kernel, lane, row, band, product, finite, pairs)
    if pairs and (stage is None or not _in_pairs(kernel, lane, product, laid.packed)):
        return []
    high = _high(stage, band)
    inner = (0, row.extent) if stage is not None and row is not None else inner_range(kernel, row) if row else (0, 1)
    if inner is None or (stage is None and lane.extent < width):
        return []
    if stage is None and band is not None:
        band, high = None, 1
    blocks = {p.lanes for n, p in laid.packed.items() if n in kernel.inputs}
    found = []
    for rows in ROWS if row is not None else (1,):
        for vectors in VECTORS:
            small = rows > inner[1] - inner[0] or (vectors - 1) * width >= lane.extent
            shared = vectors if rows > 1 else 1  # one row alone multiplies by vectors in memory
            if small or rows * vectors + shared + 1 > cost.vector_registers(profile):
                continue
            if blocks and blocks != {vectors * width}:
                continue
            tile = Registers(
                row.name if row is not None else "", inner, rows, vectors, width,
                band.name if band is not None else "", high, stage, pairs, wide,
            )  # fmt: skip
            found.append(RegisterTile(kernel, vector, tile.lanes, laid.layouts, laid.packed, tile))
    return found


def rows_of(kernel: Kernel, lane: Iter, product: Product | None) -> tuple[Iter | None, Iter | None]:
    """The iterator whose neighbours use the same values of the lanes, innermost, and the one around it."""
    if product is None:
        return None, None
    own, other = product.sides(lane)
    several = [i for i in kernel.iterators if i.extent > 1 and i in other.iters - own.iters and i != lane]
    return (several[-1] if several else None), (several[-2] if len(several) > 1 else None)


def _stage(
    kernel: Kernel, lane: Iter, row: Iter | None, band: Iter | None, product: Product | None,
    finite: Callable[[str], bool], pairs: bool,
) -> OperandStage | None:  # fmt: skip
    """The copy of what the rows read, where it saves conditions or conversions; None where it doesn't, or a row of it
    is too large."""
    if product is None or (not product.guards and not pairs):
        return None
    own, other = product.sides(lane)
    load = other.bytes.load if other.bytes is not None else other.value
    if lane in other.iters or lane not in own.iters or not isinstance(load, Load):
        return None
    weights = [x.buffer for x in walk(own.value) if isinstance(x, Load)]
    if not pairs and not all(kernel.operand(w).role == "const" and finite(w) for w in weights):
        return None
    inside = [*product.reduce.iters, *(i for i in (row, band) if i is not None)]
    shape = kernel.operand(load.buffer).type.shape
    stage = stage_of(product, other, inside, shape)
    small = stage is not None and _bytes(stage, band, 1) <= STAGE_LIMIT_BYTES
    return stage if small else None


def _bytes(stage: OperandStage, band: Iter | None, high: int) -> int:
    elements = stage.elements({band.name: high} if band is not None else {})
    return elements * dtypes.to_numpy(stage.dtype).itemsize


def _high(stage: OperandStage | None, band: Iter | None) -> int:
    """As many rows of a band as fit."""
    if stage is None or band is None:
        return 1
    fitting = [n for n in range(1, band.extent + 1) if _bytes(stage, band, n) <= STAGE_BYTES]
    return max(fitting, default=1)


def _in_pairs(kernel: Kernel, lane: Iter, product: Product | None, packed: Mapping[str, LaneBlocks]) -> bool:
    """Whether the weights lie as pairs."""
    assert product is not None
    own, _ = product.sides(lane)
    return own.bytes is not None and (p := packed.get(own.bytes.load.buffer)) is not None and p.pairs


def _innermost(load: Load, layouts: Mapping[str, Layout]) -> int:
    return layouts[load.buffer][-1] if load.buffer in layouts else len(load.index) - 1
