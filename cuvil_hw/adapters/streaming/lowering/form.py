"""How a kernel runs on a fabric: a process of its own, folded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from xdsl.dialects.func import FuncOp

from cuvil_hw.adapters.streaming.analysis import cost, exact, fold
from cuvil_hw.adapters.streaming.analysis.classify import classify
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric
from cuvil_hw.adapters.streaming.analysis.fold import Folding
from cuvil_hw.adapters.streaming.analysis.operand import Order
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.lowering import process
from cuvil_hw.adapters.streaming.lowering.at_once import at_once
from cuvil_hw.adapters.streaming.lowering.border import border
from cuvil_hw.adapters.streaming.lowering.buffered import buffered
from cuvil_hw.adapters.streaming.lowering.elementwise import elementwise
from cuvil_hw.adapters.streaming.lowering.moving import moving
from cuvil_hw.adapters.streaming.lowering.unrolled import constant_products, unrolled
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.errors import CuvilError
from cuvil_hw.lower.emit import Tables
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import Profile


@dataclass(frozen=True, slots=True)
class Process:
    folding: Folding
    fabric: Fabric = field(compare=False, repr=False)

    def describe(self) -> str:
        return self.folding.describe()

    def estimate(self, profile: Profile) -> Estimate:
        cycles, graph = cost.cycles(self.folding), self.folding.graph
        room = {a.name: a.budget for a in profile.axes}.get(self.fabric.lut, 0.0)
        if (
            graph is not None and graph.least * self.fabric.cell > room
        ):  # nobody needs to know by how much it is too large
            return Estimate(cycles / profile.clock_hz, cycles, {self.fabric.lut: graph.least * self.fabric.cell})
        return Estimate(cycles / profile.clock_hz, cycles, cost.resources(self.folding, self.fabric).axes(self.fabric))

    @property
    def _stage(self) -> Stage:
        """The stage as it was decided what its products are made of."""
        f = self.folding
        return replace(f.stage, multiplier=f.multiplier, rescale=f.rescale)

    def emit(self, graph: KernelGraph, tables: Tables, layer: int) -> FuncOp:
        """The function of role "process": streams in, then streams out. `layer`: number in saturation counters. Where
        the epilogue is a process of its own, this one gives the sums."""
        f, stage = self.folding, self._stage
        match stage.kind:
            case "dense" if f.graph is not None:
                return unrolled(stage, graph, tables, layer, f.graph)
            case "dense" if not stage.ordered:
                return process.dense(stage, graph, tables, layer, f.pe, f.simd, f.memory, f.tail > 0)
            case "depthwise" if stage.abreast > 1:
                return at_once(stage, graph, tables, layer, f.pe, f.memory)
            case "dense" | "depthwise":
                return process.running(stage, graph, tables, layer, f.pe, f.memory, f.ii, f.tail > 0)
            case "map":
                return elementwise(stage, graph, tables, layer, f.pe)
            case "moved":
                return moving(stage, graph, tables, layer, f.pe)
            case "border":
                return border(f, tables, layer)
        return buffered(stage, graph, tables, layer, f.ii)

    def emit_epilogue(self, graph: KernelGraph, tables: Tables, layer: int) -> FuncOp:
        """The process that turns sums into outputs."""
        return process.epilogue(self._stage, graph, tables, layer, self.folding.tail)


def processes(
    kernel: Kernel,
    fabric: Fabric,
    constants: ConstantStore,
    orders: Mapping[str, Order] | None = None,
    ends: Collection[str] = (),
) -> list[Process]:
    """All that a kernel may become. The constants' values say which widths are exact; `orders`: in which its tensors
    stream; `ends`: see classify."""
    ranges = exact.ranges_of(kernel, constants)
    stage = classify(exact.narrowed(kernel, ranges) if fabric.exact else kernel, ranges, orders, constants, ends)
    if orders is not None and stage.order != orders[kernel.output]:
        raise CuvilError(f"{kernel.name} streams {stage.order}, not {orders[kernel.output]}")
    pairs = stage.pair is not None and fabric.holds_pair(stage.pair)
    products = constant_products(stage, constants) if fabric.adders else None
    return [Process(f, fabric) for f in fold.foldings(stage, fabric.floats, pairs, products)]
