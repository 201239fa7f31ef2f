"""What memories and FIFOs are made of: said in the source for each one that is priced, by the rule that priced it."""

from __future__ import annotations

from math import prod

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import AnyFloat, MemRefType

from cuvil_hw.adapters.streaming.analysis.fabric import Fabric
from cuvil_hw.ir import annotations as notes
from cuvil_hw.ir.level2 import AddProductsOp
from cuvil_hw.render.c.scalar import width


def placed(function: func.FuncOp, fabric: Fabric) -> func.FuncOp:
    """Bind the memories of a process for which nothing was chosen. Changes `function`."""
    graphs = {op.graph for op in function.walk() if isinstance(op, AddProductsOp)}  # logic, no memories
    for op in function.walk():
        if isinstance(op, memref.AllocaOp | memref.GetGlobalOp) and not notes.noted(op, notes.Bind):
            if op.results[0] in graphs:
                continue
            words, bits = geometry(op, fabric)
            kind = "" if notes.noted(op, notes.StreamWord) else fabric.place(words, bits)
            if kind:
                notes.annotate(op, notes.Bind(kind))
    return function


def geometry(op: memref.AllocaOp | memref.GetGlobalOp, fabric: Fabric) -> tuple[int, int]:
    """(words, bits a word) of each of the memories that an array becomes."""
    kind = op.results[0].type
    assert isinstance(kind, MemRefType)
    shape = list(kind.get_shape())
    apart, beside = (notes.noted(op, n) for n in (notes.ArrayPartition, notes.Reshape))
    wide = prod(shape[d] for d in (beside.data if beside else ()))
    gone = {*(apart.data if apart else ()), *(beside.data if beside else ())}
    stored, element = notes.text_of(op, notes.Stored), kind.element_type
    bits = fabric.bits(stored) if stored else element.bitwidth if isinstance(element, AnyFloat) else width(element)
    return prod(n for d, n in enumerate(shape) if d not in gone), wide * bits
