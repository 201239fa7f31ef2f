"""Forms of kernels that run one after another: each is one function of the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from cuvil_hw.adapters.base import Form
from cuvil_hw.lower.emit import Tables
from cuvil_hw.render.c.names import Names
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import Buffer, Kernel


class EmitsFunction(Form, Protocol):
    @property
    def kernel(self) -> Kernel: ...

    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        """The function @symbol of role "kernel"; arguments: inputs, then output. `layer`: number in saturation
        counters."""


def emit_functions(design: Design, forms: Sequence[EmitsFunction]) -> ModuleOp:
    """A module with one function for each of `forms`, in order."""
    buffers, tables, names = design.graph.buffers, Tables(design.graph.constants), Names(frozenset())
    functions = [f.emit(buffers, tables, names.new(f.kernel.name), layer) for layer, f in enumerate(forms)]
    return ModuleOp([*tables.ops, *functions])
