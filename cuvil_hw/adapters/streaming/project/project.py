"""What every project of a streaming design says of it: its name, its ports, whether it computes with floats."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import AnyFloat, MemRefType
from xdsl.ir import Attribute

from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.adapters.streaming.project.record import PortRecord
from cuvil_hw.ir.level2 import StreamType
from cuvil_hw.schedule.kernel import Buffer, KernelGraph

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

TOP = "top"
_FOLDERS = ("src", "tb", "build", "shell", "solution1")


def project_name(graph: KernelGraph) -> str:
    """The graph's name as a C identifier, and as a folder beside the project's own, which the vendors' tools empty."""
    name = re.sub(r"\W", "_", graph.name, flags=re.ASCII) or "model"
    return name if name[0].isalpha() and name.lower() not in _FOLDERS else f"m_{name}"


def facts(graph: KernelGraph, top: str = TOP) -> dict[str, Any]:
    """The fields of a DesignRecord. `top`: the function that joins the processes."""
    inputs, outputs = (tuple(_port(graph.buffers[b]) for b in names) for names in (graph.inputs, graph.outputs))
    return {
        "top": top,
        "project": project_name(graph),
        "inputs": inputs,
        "outputs": outputs,
        "layers": tuple(k.name for k in graph.kernels),
    }


def _port(buffer: Buffer) -> PortRecord:
    return PortRecord(buffer.name, buffer.type.shape, buffer.type.dtype, physical(buffer.type.rank))


def has_floats(module: ModuleOp) -> bool:
    """Whether any value, memory or stream of a level2 module holds floats."""
    return any(_is_float(v.type) for op in module.walk() for v in (*op.operands, *op.results))


def _is_float(kind: Attribute) -> bool:
    if isinstance(kind, MemRefType):
        kind = kind.element_type
    elif isinstance(kind, StreamType):
        kind = kind.element
    return isinstance(kind, AnyFloat)
