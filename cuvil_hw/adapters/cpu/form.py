"""How a kernel runs on a processor: a loop nest with accumulators side by side, or a tile of vector registers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from xdsl.dialects.func import FuncOp

from cuvil_hw import dtypes
from cuvil_hw.adapters.cpu import cost
from cuvil_hw.adapters.cpu.tile import InRegisters, Registers, fits, rows_of
from cuvil_hw.adapters.sequential.alike import form_of
from cuvil_hw.adapters.sequential.nest import Layout, Nest, apply, function_of
from cuvil_hw.expr.nodes import Load
from cuvil_hw.lower.emit import Tables
from cuvil_hw.schedule.kernel import Buffer, Kernel
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import Profile

# Rows and vectors of a tile; those that fit the registers are offered.
ROWS = (2, 3, 4, 6, 8, 12)
VECTORS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class LoopNest:
    """A kernel as loops of C.

    Attributes:
        vector: the iterator along which accumulators lie side by side; "" for none.
        lanes: how many accumulators; 0 for a kernel without a reduction.
        layouts: physical order of its buffers, by name, where it isn't the logical one.
    """

    kernel: Kernel = field(compare=False, repr=False)
    vector: str
    lanes: int
    layouts: Mapping[str, Layout] = field(compare=False, repr=False)

    @property
    def nest(self) -> Nest:
        return Nest(self.vector, self.lanes, self.layouts)

    def describe(self) -> str:
        return f"lanes={self.lanes}" if self.lanes else "default"

    def estimate(self, profile: Profile) -> Estimate:
        return cost.estimate(self.kernel, self.lanes, profile)

    def alike(self, buffers: Mapping[str, Buffer]) -> Hashable:
        """What the function of a form depends on besides its names: equal ones need one function."""
        orders = tuple(self.nest.layout(buffers[name]) for name in (*self.kernel.inputs, self.kernel.output))
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
        return f"{rows}{self.vector}={t.lanes}@registers vector={t.width}"

    def estimate(self, profile: Profile) -> Estimate:
        t = self.registers
        extent = next((i.extent for i in self.kernel.iterators if i.name == t.row), 1)
        inside = (t.inner[1] - t.inner[0]) / extent  # the share of the rows that no condition touches
        return cost.estimate(self.kernel, self.lanes, profile, t.rows, inside)

    def alike(self, buffers: Mapping[str, Buffer]) -> Hashable:
        return LoopNest.alike(self, buffers), self.registers

    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        lower = lambda memories, e: InRegisters(self.kernel, self.nest, buffers, memories, e, self.registers)  # noqa: E731
        return function_of(self.kernel, self.nest, buffers, tables, symbol, layer, lower)


def register_tiles(kernel: Kernel, vector: str, layouts: Mapping[str, Layout], profile: Profile) -> list[RegisterTile]:
    """Tiles that fit the registers of the profile's processor; none for a kernel that isn't arithmetic on vectors."""
    lane = next((i for i in kernel.iterators if i.name == vector), None)
    reduce = kernel.reduce
    if lane is None or reduce is None or not dtypes.is_float(reduce.dtype):
        return []
    width = cost.vector_bits(profile) // dtypes.record(reduce.dtype).bits
    if lane.extent < width or not fits(kernel, lane, lambda load: _innermost(load, layouts)):
        return []
    row, (low, high) = rows_of(kernel, lane) or (None, (0, 1))
    found = []
    for rows in ROWS if row is not None else (1,):
        for vectors in VECTORS:
            small = rows > high - low or (vectors - 1) * width >= lane.extent
            if small or rows * vectors + vectors + 1 > cost.vector_registers(profile):
                continue
            tile = Registers(row.name if row is not None else "", (low, high), rows, vectors, width)
            found.append(RegisterTile(kernel, vector, tile.lanes, layouts, tile))
    return found


def _innermost(load: Load, layouts: Mapping[str, Layout]) -> int:
    return layouts[load.buffer][-1] if load.buffer in layouts else len(load.index) - 1
