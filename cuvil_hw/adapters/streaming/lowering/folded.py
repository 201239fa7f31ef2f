"""Constants of a folded stage: laid out as it consumes them, and how its expressions read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.exact import stored
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.analysis.tables import indexed_by_data
from cuvil_hw.adapters.streaming.lowering.rom import gather
from cuvil_hw.expr.nodes import Iter, Load, Lookup
from cuvil_hw.ir.annotations import Annotation, Bind, ReadPorts, Reshape
from cuvil_hw.lower.emit import Emitter, Env
from cuvil_hw.schedule.kernel import KernelGraph

VECTOR = 8  # lanes from which a loop over them is worth a vector instruction in simulation


class Folded:
    """Constants of a stage in folded order: tables over (fold of outputs, fold of inputs, input lane, output lane).

    `outputs_inside`: whether the loop over output lanes is the inner one, with the table laid out for it: the longer
    lane loop goes inside, where simulators vectorise it.
    """

    def __init__(self, stage: Stage, graph: KernelGraph, pe: int, simd: int) -> None:
        self.stage, self.graph, self.pe, self.simd = stage, graph, pe, simd
        self.nf = stage.channels_out // pe
        channels = stage.channels_in if stage.kind == "dense" else 1
        self.sf = stage.tap_count * channels // simd
        self.outputs_inside = pe >= VECTOR or pe >= simd or stage.multiplier == "pair"
        self.grids: dict[Iter, Any] = {}
        if stage.lanes:
            places = np.indices([i.extent for i in stage.lanes]).reshape(len(stage.lanes), self.nf, 1, 1, pe)
            self.grids |= dict(zip(stage.lanes, places, strict=True))
        shape = [d.kernel for d in stage.dims]
        inputs = np.arange(stage.tap_count * channels).reshape(1, self.sf, simd, 1)  # as they come, channels last
        number = inputs // channels if stage.abreast > 1 else inputs[:, :, :1] // channels
        digits = np.unravel_index(number, shape) if shape else ()
        for tap, digit in zip(stage.taps, digits, strict=True):
            if tap is not None:
                self.grids[tap] = digit
        for row in stage.rows:
            self.grids[row] = np.arange(row.extent).reshape(1, -1, 1, 1)
        if stage.channel is not None:
            self.grids[stage.channel] = inputs % channels
        self.axes = stage.loops

    def constant(self, buffer: str) -> Any:
        return self.graph.constant(buffer).reshape(self.graph.buffers[buffer].type.shape)

    def table(self, e: Load | Lookup) -> tuple[Any, tuple[int, ...]]:
        """Array of the constants and the axes (of the four) that it keeps; the two folds are merged when both are."""
        array, kept = gather(e, self.constant, self.grids, self.axes)
        if kept[-2:] == (2, 3) and not self.outputs_inside:
            array = array.swapaxes(-1, -2)
        if kept[:2] == (0, 1):
            array = array.reshape(-1, *array.shape[2:])
        return array, kept


def read_constant(
    folded: Folded, hint: str, places: Sequence[SSAValue | None], flat: SSAValue | None, bind: str
) -> Callable[[Load | Lookup, Emitter, Env], SSAValue]:
    """How expression leaves read constants. `places`: index on each of the four axes; `flat`: nf·SF + sf."""

    def read(leaf: Load | Lookup, e: Emitter, env: Env) -> SSAValue:
        kind = stored(leaf, folded.stage.ranges)
        if isinstance(leaf, Lookup) and indexed_by_data(leaf):
            ports = [ReadPorts(folded.pe)] if folded.pe > 1 else []
            table = e.table(np.asarray(leaf.values), leaf.dtype, f"{hint}_lut", *ports, stored=kind)
            return e.load(table, e.value(leaf.index, env))
        array, kept = folded.table(leaf)
        name = f"{hint}_{leaf.buffer if isinstance(leaf, Load) else 'p'}"
        at = [places[n] for n in kept]
        if kept[:2] == (0, 1):
            at = [flat, *at[2:]]
        if kept[-2:] == (2, 3) and not folded.outputs_inside:
            at = [*at[:-2], at[-1], at[-2]]
        lanes = [n for n in range(len(at)) if kept[len(kept) - len(at) + n] >= 2]
        placed: list[Annotation] = [Bind(bind)] if bind else []
        if lanes:
            placed.append(Reshape(tuple(lanes)))
        table = e.table(array, leaf.dtype, name, *placed, stored=kind)
        return e.load(table, *[a for a in at if a is not None])

    return read
