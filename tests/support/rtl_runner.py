"""Runs the SystemVerilog of lowered graphs in Verilator: arrays in and out of the top's ports, under back-pressure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.order import stream_orders
from cuvil_hw.adapters.streaming.rtl import emit
from cuvil_hw.adapters.streaming.verilated.build import Module, Wires, build, library_files
from cuvil_hw.adapters.streaming.verilated.model import Model
from cuvil_hw.schedule.kernel import Buffer, KernelGraph
from tests.support.fpga_runner import Array


@dataclass(frozen=True)
class Simulation:
    graph: KernelGraph
    model: Model
    bits: int

    def run(self, inputs: Sequence[Array], seed: int = 0, percent: int = 0) -> tuple[list[Array], int]:
        """Samples (N, *shape) through the design after a reset, and the cycles; ports wait in `percent` of cycles.
        Raises DeviceError where the design gets stuck or words are wrong."""
        graph, count, orders = self.graph, len(inputs[0]), stream_orders(self.graph)
        given = [_packed(a, graph.buffers[n], orders[n], self.bits) for n, a in zip(graph.inputs, inputs, strict=True)]
        sizes = [-(-_bytes(graph.buffers[n]) // (self.bits // 8)) for n in graph.outputs]
        taken = [np.zeros((count, size, self.bits // 8), np.uint8) for size in sizes]
        self.model.restart(seed, percent)
        cycles = self.model.run(given, taken, count, False, 100_000)
        return [_unpacked(a, graph.buffers[n], orders[n]) for n, a in zip(graph.outputs, taken, strict=True)], cycles


@contextmanager
def simulated(graph: KernelGraph, module: ModuleOp, bits: int = 64, quick: bool = False) -> Iterator[Simulation]:
    """The RTL of a lowered graph, compiled. `bits`: of a port; `quick`: without optimising."""
    with modelled(emit(module, graph.constants, "model"), graph.inputs, graph.outputs, bits, quick) as model:
        yield Simulation(graph, model, bits)


@contextmanager
def modelled(
    files: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str], bits: int, quick: bool = False
) -> Iterator[Model]:
    """The emitted files of a design `model`, compiled. `inputs`, `outputs`: names of its ports."""
    sources = {n: t.encode() for n, t in files.items() if n.endswith(".sv")} | library_files()
    ins, outs = (tuple(Wires.axis(f"{way}_axis_{n}", bits) for n in names)
                 for way, names in (("s", inputs), ("m", outputs)))  # fmt: skip
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            if name.endswith(".hex"):
                Path(folder, name).write_text(text)
        model = Model(build(Module(sources, "model_top", ins, outs, {}), quick=quick), "model", Path(folder))
        try:
            yield model
        finally:
            model.close()


def _bytes(buffer: Buffer) -> int:
    return buffer.type.size * int(dtypes.to_numpy(buffer.type.dtype).itemsize)


def _packed(stack: Array, buffer: Buffer, order: Sequence[int], bits: int) -> Array:
    """(samples, words, bytes) of an array as its port takes it."""
    flat = np.ascontiguousarray(stack.transpose(0, *(d + 1 for d in order))).reshape(len(stack), -1)
    raw = flat.astype(dtypes.to_numpy(buffer.type.dtype)).view(np.uint8).reshape(len(stack), -1)
    each = bits // 8
    return np.ascontiguousarray(np.pad(raw, ((0, 0), (0, -raw.shape[1] % each))).reshape(len(stack), -1, each))


def _unpacked(words: Array, buffer: Buffer, order: Sequence[int]) -> Array:
    kind, count = buffer.type, len(words)
    raw = np.ascontiguousarray(words.reshape(count, -1)[:, : _bytes(buffer)])
    crossed = raw.view(dtypes.to_numpy(kind.dtype)).reshape(count, *(kind.shape[d] for d in order))
    return np.ascontiguousarray(crossed.transpose(0, *(int(d) + 1 for d in np.argsort(order))))
