"""Runs the level2 modules that adapters lower on the interpreter, as a device would run what is rendered from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp
from xdsl.dialects.func import FuncOp

from cuvil_hw import dtypes
from cuvil_hw.adapters.cpu.layout import place
from cuvil_hw.adapters.cpu.record import Constant
from cuvil_hw.adapters.streaming.analysis.order import stream_orders
from cuvil_hw.contract.loops import expanded
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import Kernels, Role, noted, text_of
from cuvil_hw.ir.interpreter.machine import Machine
from cuvil_hw.ir.interpreter.values import Array, Memory, Wire
from cuvil_hw.ir.legal import functions, legal
from cuvil_hw.schedule.kernel import Buffer, Kernel, KernelGraph
from cuvil_hw.target.profile import Profile, load_profile

BLOCKS = 3  # of a grid, fewer than kernels have work for, and no divisor of it


class Interpreted:
    """A lowered graph that runs batches (N, *shape), as cuvil_hw.contract.device.Loaded."""

    def __init__(self, graph: KernelGraph, module: ModuleOp, profile: Profile | None = None) -> None:
        """`profile`: the cpu target's that the module was lowered for, which decides how constants lie."""
        legal(module)
        self.graph, self.module = graph, module
        self.machine = Machine(module, graph.constants)
        permuted = any(noted(f, Kernels) is not None for f in functions(module))
        self._placed = place(graph, profile or load_profile("cpu")) if permuted else None

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        tops = [f for f in functions(self.module) if text_of(f, Role) == "dataflow"]
        return (self._streaming(tops[0], inputs) if tops else self._sequential(inputs)), 0.0

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        pass

    # -- streaming designs -------------------------------------------------------------------------------------------

    def _streaming(self, top: FuncOp, inputs: Sequence[Array]) -> list[Array]:
        samples = len(inputs[0])
        known = stream_orders(self.graph)
        orders = [known[n] for n in (*self.graph.inputs, *self.graph.outputs)]
        packed = [a.transpose(0, *(d + 1 for d in o)) for a, o in zip(inputs, orders, strict=False)]
        kinds = [self.graph.buffers[n].type for n in self.graph.outputs]
        if any(isinstance(a.type, IndexType) for a in top.body.block.args):
            memories = [a.type for a in top.body.block.args[1:]]
            given = [Memory.of(a, k) for a, k in zip(packed, memories, strict=False)]
            room = [Memory.empty(k, samples * t.size)
                    for k, t in zip(memories[len(given) :], kinds, strict=True)]  # fmt: skip
            self.machine.run(top.sym_name.data, [samples, *given, *room])
            flat = [m.array(t.dtype) for m, t in zip(room, kinds, strict=True)]
        else:
            given_ports = [Wire.of(a, level2.signless(self.graph.buffers[n].type.dtype))
                           for a, n in zip(packed, self.graph.inputs, strict=True)]  # fmt: skip
            wires = [Wire() for _ in kinds]
            self.machine.run(top.sym_name.data, [*given_ports, *wires], samples=samples)
            assert all(w.ends == [*[False] * (samples - 1), True] for w in wires), "packets end with the batch"
            flat = [w.array() for w in wires]
        results = []
        for array, kind, order in zip(flat, kinds, orders[len(inputs) :], strict=True):
            crossed = array.reshape(samples, *(kind.shape[d] for d in order))
            results.append(np.ascontiguousarray(crossed.transpose(0, *(int(d) + 1 for d in np.argsort(order)))))
        return results

    # -- kernels one after another -----------------------------------------------------------------------------------

    def _sequential(self, inputs: Sequence[Array]) -> list[Array]:
        batched = any(isinstance(a.type, IndexType) for f in functions(self.module) for a in f.body.block.args)
        apart = not batched or self.graph.loops  # views lie apart in each sample
        ones = [[a[n : n + 1] if batched else a[n] for a in inputs] for n in range(len(inputs[0]))]
        runs = [self._batch(batch, len(batch[0]) if batched else 1) for batch in (ones if apart else [inputs])]
        outs = [np.concatenate(a) if batched else np.stack(a) for a in zip(*runs, strict=True)]
        shapes = [self.graph.buffers[n].type.shape for n in self.graph.outputs]
        return [a.reshape(len(inputs[0]), *s) for a, s in zip(outs, shapes, strict=True)]

    def _batch(self, inputs: Sequence[Array], samples: int) -> list[Array]:
        graph, given = self.graph, dict(zip(self.graph.inputs, inputs, strict=True))
        held: dict[str, Memory] = {}
        calls = list(self._calls())
        for number, places in expanded(self.graph.loops, len(calls)):
            kernel, f = calls[number]
            arguments: list[Memory | int] = []
            for name, arg in zip((*kernel.inputs, kernel.output, ""), f.body.block.args, strict=False):
                if not isinstance(arg.type, MemRefType):
                    arguments.append(samples)
                    continue
                base, start = places.get(name, (name, 0))
                if base not in held:
                    kind = arg.type if base == name else _memory(arg.type, graph.buffers[base])
                    held[base] = self._buffer(graph.buffers[base], kind, given, samples)
                arguments.append(held[name] if base == name else _part(held[base], graph.buffers[name], start))
            numbered = any(op.name.startswith("gpu.") for op in f.walk())
            self.machine.run(f.sym_name.data, arguments, blocks=BLOCKS if numbered else 1)
            base, start = places.get(kernel.output, (kernel.output, 0))
            if base != kernel.output:
                written = arguments[len(kernel.inputs)]
                at = start // _itemsize(graph.buffers[kernel.output])
                held[base].values[at : at + len(written.values)] = written.values
        return [self._result(held, n, samples) for n in graph.outputs]

    def _result(self, held: Mapping[str, Memory], name: str, samples: int) -> Array:
        kind = self.graph.buffers[name].type
        if name in held:
            return held[name].array(kind.dtype)
        assert kind.size == 0, f"nothing computes {name}"
        return np.zeros((samples, *kind.shape), dtypes.to_numpy(kind.dtype))

    def _calls(self) -> Iterator[tuple[Kernel, FuncOp]]:
        """Kernels in order, with the functions that compute them; one without elements may have none."""
        made = functions(self.module)
        named = {name: f for f in made if (names := noted(f, Kernels)) for name in names.data}
        if named:
            return ((k, named[k.name]) for k in self.graph.kernels)
        kernels = [k for k in self.graph.kernels if len(made) == len(self.graph.kernels) or k.type.size]
        return zip(kernels, made, strict=True)

    def _buffer(self, buffer: Buffer, kind: MemRefType[Any], given: Mapping[str, Array], samples: int) -> Memory:
        if buffer.name in given:
            return Memory.of(given[buffer.name], kind)
        if buffer.role == "const":
            array = self.graph.constant(buffer.name).reshape(buffer.type.shape)
            if self._placed is None:
                return Memory.of(array, kind)
            layout, packed = self._placed.layouts.get(buffer.name), self._placed.packed.get(buffer.name)
            lanes, pairs = (packed.lanes, packed.pairs) if packed is not None else (0, False)
            lies = Constant(buffer.digest, layout or tuple(range(array.ndim)), 0, lanes, pairs)
            return Memory.of(lies.arranged(array), kind)
        return Memory.empty(kind, samples)


def _itemsize(buffer: Buffer) -> int:
    return dtypes.to_numpy(buffer.type.dtype).itemsize


def _memory(kind: MemRefType[Any], buffer: Buffer) -> MemRefType[Any]:
    """The type of a buffer's memory; `kind`: that of a view's."""
    return MemRefType(kind.element_type, [buffer.type.size])


def _part(memory: Memory, view: Buffer, start: int) -> Memory:
    """A copy of the elements of a view, `start` bytes into a memory."""
    at = start // _itemsize(view)
    return Memory(MemRefType(memory.kind.element_type, [view.type.size]), memory.values[at : at + view.type.size])
