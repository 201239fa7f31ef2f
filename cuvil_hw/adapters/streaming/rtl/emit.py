"""From a streaming level2 module to files of SystemVerilog: one for each process, one for the top, tables beside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from xdsl.dialects import func, hw, memref
from xdsl.dialects.builtin import ModuleOp, StringAttr

from cuvil_hw.adapters.streaming.rtl.circuit import Tables, circuit
from cuvil_hw.adapters.streaming.rtl.delays import Delays
from cuvil_hw.adapters.streaming.rtl.depths import depths
from cuvil_hw.adapters.streaming.rtl.pipeline import Staged, pipeline
from cuvil_hw.adapters.streaming.rtl.scalars import NotHardware, width
from cuvil_hw.adapters.streaming.rtl.step import step
from cuvil_hw.adapters.streaming.rtl.top import join
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.annotations import Comment, ElementType, Handle, Role, text_of
from cuvil_hw.ir.legal import functions
from cuvil_hw.render.c.names import Names
from cuvil_hw.render.verilog.keywords import KEYWORDS
from cuvil_hw.render.verilog.printer import text_of as verilog


def hardware(
    module: ModuleOp, constants: Mapping[str, Any], name: str, delays: Delays | None = None
) -> tuple[ModuleOp, Tables, dict[str, Staged]]:
    """The hardware level of a module of `dataflow.lower`: its modules, the last of them `<name>_top`; contents of
    tables, words in hexadecimal by file; the pipelines of processes. Raises NotHardware with the reason."""
    top, processes = _parts(module)
    names = Names(frozenset({*KEYWORDS, f"{name}_top"}))
    made, files, plans = {}, Tables(), {}
    for f, plan in _pipelines(module, processes, constants, delays or Delays()):
        plan.step.name = names.new(f.sym_name.data)
        made[f.sym_name.data], contents = circuit(plan)
        files.update(contents)
        plans[plan.step.name] = plan
        if comment := text_of(f, Comment):
            made[f.sym_name.data].attributes["comment"] = StringAttr(comment)
    room = depths(top, {f.sym_name.data: plans[made[f.sym_name.data].sym_name.data] for f in processes})
    whole = join(top, f"{name}_top", made, {f.sym_name.data: f for f in processes}, room)
    whole.attributes["comment"] = StringAttr(text_of(top, Comment))
    return ModuleOp([*made.values(), whole]), files, plans


def stages(module: ModuleOp, constants: Mapping[str, Any], delays: Delays) -> tuple[func.FuncOp, dict[str, Staged]]:
    """The top function of a module of `dataflow.lower`, and the pipeline of each process by its symbol. Raises
    NotHardware."""
    top, processes = _parts(module)
    return top, {f.sym_name.data: plan for f, plan in _pipelines(module, processes, constants, delays)}


def _pipelines(
    module: ModuleOp, processes: Iterable[func.FuncOp], constants: Mapping[str, Any], delays: Delays
) -> Iterator[tuple[func.FuncOp, Staged]]:
    tables = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, memref.GlobalOp)}

    def table(symbol: str) -> tuple[np.ndarray[Any, Any], int]:
        op = tables[symbol]
        kind = op.type
        bits = width(kind.element_type)
        if bits is None:
            raise NotHardware(f"rtl: table {symbol} holds {text_of(op, ElementType)}; hardware computes in integers")
        return np.asarray(constants[text_of(op, Handle)]).reshape(kind.get_shape()), bits

    for f in processes:
        yield f, pipeline(step(f, table), delays)


def emit(module: ModuleOp, constants: Mapping[str, Any], name: str, delays: Delays | None = None) -> dict[str, str]:
    """Text by file name: `<module>.sv` of each module, `<table>.hex` of each table. The modules of `rtl/` belong to it.
    Raises NotHardware with the reason."""
    made, tables, _ = hardware(module, constants, name, delays)
    files = {}
    for op in made.body.block.ops:
        assert isinstance(op, hw.HWModuleOp)
        comment = op.attributes.get("comment")
        files[f"{op.sym_name.data}.sv"] = verilog(op, comment.data if isinstance(comment, StringAttr) else "")
    return files | {file: "\n".join([*words, ""]) for file, words in tables.items()}


def _parts(module: ModuleOp) -> tuple[func.FuncOp, list[func.FuncOp]]:
    tops = [f for f in functions(module) if text_of(f, Role) == "dataflow"]
    if len(tops) != 1:
        raise CuvilError("rtl: the module has no function of role dataflow; lower it with dataflow.lower")
    return tops[0], [f for f in functions(module) if f is not tops[0]]
