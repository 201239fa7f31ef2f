"""What every project of a streaming design says of it: its name, its ports, whether it computes with floats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import AnyFloat, MemRefType
from xdsl.ir import Attribute

from cuvil_hw.adapters.streaming.analysis.operand import Order
from cuvil_hw.adapters.streaming.analysis.order import stream_orders
from cuvil_hw.adapters.streaming.project.record import PortRecord
from cuvil_hw.ir.level2 import StreamType
from cuvil_hw.schedule.kernel import KernelGraph

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

TOP = "top"
_FOLDERS = ("src", "tb", "build", "shell", "solution1")


def project_name(graph: KernelGraph) -> str:
    """The graph's name as a C identifier, and as a folder beside the project's own, which the vendors' tools empty."""
    name = re.sub(r"\W", "_", graph.name, flags=re.ASCII) or "model"
    return name if name[0].isalpha() and name.lower() not in _FOLDERS else f"m_{name}"


def facts(graph: KernelGraph, top: str = TOP, orders: Mapping[str, Order] | None = None) -> dict[str, Any]:
    """The fields of a DesignRecord. `top`: the function that joins the processes; `orders`: of the dimensions of its
    ports, those of its streams where none are given."""
    known = orders if orders is not None else stream_orders(graph)

    def port(name: str) -> PortRecord:
        buffer = graph.buffers[name]
        return PortRecord(name, buffer.type.shape, buffer.type.dtype, known[name])

    inputs, outputs = (tuple(map(port, names)) for names in (graph.inputs, graph.outputs))
    return {
        "top": top,
        "project": project_name(graph),
        "inputs": inputs,
        "outputs": outputs,
        "layers": tuple(k.name for k in graph.kernels),
    }


def has_floats(module: ModuleOp) -> bool:
    """Whether any value, memory or stream of a level2 module holds floats."""
    return any(_is_float(v.type) for op in module.walk() for v in (*op.operands, *op.results))


def _is_float(kind: Attribute) -> bool:
    if isinstance(kind, MemRefType):
        kind = kind.element_type
    elif isinstance(kind, StreamType):
        kind = kind.element
    return isinstance(kind, AnyFloat)
