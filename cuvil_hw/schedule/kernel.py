"""Kernels: frozen data about what one fused group computes. Schedulers and cost models read nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy.typing as npt

from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.contract.device import Port
from cuvil_hw.contract.loops import Place, StepLoop, expanded
from cuvil_hw.expr.nodes import Apply, Expr, Iter, Load, Reduce, Whole
from cuvil_hw.expr.traverse import walk
from cuvil_hw.types import TensorType


@dataclass(frozen=True, slots=True)
class Buffer:
    """`role`: "input", "output", "temp", "const" or "view" (part of another buffer, which one changes from step
    to step of a loop); `digest`: names a constant's bytes in the store."""

    name: str
    type: TensorType
    role: str
    digest: str = ""


@dataclass(frozen=True)
class Kernel:
    """One loop nest: for all `iterators` (parallel, one per output dimension, in logical order), output[iterators] =
    body.

    Attributes:
        body: scalar expression with at most one Reduce.
        inputs: the buffers that it loads, in order of first use.
        operands: the shape, dtype and role of these buffers.
        ops: names of the fused level1 ops.
        loc: source line of the main op.
        runs: how often it runs for one sample: the steps of the loops around it.
    """

    name: str
    inputs: tuple[str, ...]
    output: str
    type: TensorType
    iterators: tuple[Iter, ...]
    body: Expr
    ops: tuple[str, ...]
    loc: str
    operands: tuple[Buffer, ...] = ()
    runs: int = 1

    def operand(self, name: str) -> Buffer:
        """The buffer behind an input."""
        return next(b for b in self.operands if b.name == name)

    @property
    def sources(self) -> tuple[str, ...]:
        """Inputs that aren't constants."""
        return tuple(b.name for b in self.operands if b.role != "const")

    @property
    def whole(self) -> Whole | None:
        """Set for a composite op that the adapter takes as it is (`whole_composites`): the body has no loops then."""
        return self.body if isinstance(self.body, Whole) else None

    @cached_property
    def reduce(self) -> Reduce | None:
        return next((e for e in walk(self.body) if isinstance(e, Reduce)), None)

    @property
    def reduction_iters(self) -> tuple[Iter, ...]:
        r = self.reduce
        return r.iters if r else ()

    def loads(self) -> tuple[Load, ...]:
        """Distinct loads, in order of first use."""
        return tuple(dict.fromkeys(e for e in walk(self.body) if isinstance(e, Load)))

    def op_counts(self) -> Mapping[tuple[str, str], int]:
        """How often each (op, dtype) is executed in one run of the kernel."""
        outer = self.type.size
        inner = 1
        for i in self.reduction_iters:
            inner *= i.extent
        r = self.reduce
        within = {id(e) for u in r.update for e in walk(u)} if r else set()
        counts: Counter[tuple[str, str]] = Counter()
        for e in walk(self.body):
            if isinstance(e, Apply) and e.dtype != "index":
                counts[e.op, e.dtype] += outer * (inner if id(e) in within else 1)
        return counts


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """A program as kernels in topological order over named buffers; constants by digest. `loops`: around kernels."""

    name: str
    buffers: Mapping[str, Buffer]
    kernels: tuple[Kernel, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: ConstantStore
    loops: tuple[StepLoop, ...] = ()

    @property
    def logical(self) -> frozenset[str]:
        """Buffers whose elements must lie in their logical order: views of loops are parts of them."""
        return frozenset(name for loop in self.loops for name in (*loop.views, *loop.bases))

    def runs(self, most: int = 0) -> Iterator[tuple[Kernel, Mapping[str, Place]]]:
        """Every run of a kernel in order, and where views lie then; see `contract.loops.expanded`."""
        for number, places in expanded(self.loops, len(self.kernels), most):
            yield self.kernels[number], places

    def constant(self, buffer: str) -> npt.NDArray[Any]:
        """The array behind a buffer of role "const"."""
        return self.constants[self.buffers[buffer].digest]

    def ports(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        """The inputs and outputs, as a device sees them."""
        ins, outs = (tuple(Port(n, self.buffers[n].type.shape, self.buffers[n].type.dtype) for n in names)
                     for names in (self.inputs, self.outputs))  # fmt: skip
        return ins, outs

    def producer(self, buffer: str) -> Kernel | None:
        return next((k for k in self.kernels if k.output == buffer), None)
