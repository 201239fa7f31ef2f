"""How a kernel runs on an MLU: tiles of its output, shared out among the cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp

from cuvil_hw.adapters.mlu import cost
from cuvil_hw.adapters.mlu.lower import lower
from cuvil_hw.adapters.mlu.tile import Tile
from cuvil_hw.lower.emit import Tables
from cuvil_hw.schedule.kernel import Buffer, Kernel
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import Profile


@dataclass(frozen=True, slots=True)
class Tiling:
    tile: Tile

    @property
    def kernel(self) -> Kernel:
        return self.tile.kernel

    def describe(self) -> str:
        if not self.kernel.type.size:
            return "default"
        cut = [f"{self.tile.cut.name}={self.tile.size}"] if self.tile.cut is not None else []
        return " ".join(["core", *cut, *(f"{name}@gdram" for name in self.tile.far)])

    def estimate(self, profile: Profile) -> Estimate:
        return cost.estimate(self.tile, profile)

    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        return lower(self.kernel, self.tile, buffers, tables, symbol)
