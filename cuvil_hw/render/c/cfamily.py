"""Level2 → text of a C-family language. One walker for all of them (function.py); a language is a table (lang.py)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy.typing as npt
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import SSAValue

from cuvil_hw.ir.adders import from_rows
from cuvil_hw.ir.annotations import Handle, Name, text_of
from cuvil_hw.ir.level2 import AddProductsOp, StreamOp, StreamType
from cuvil_hw.render.c import adders
from cuvil_hw.render.c.expressions import Expressions
from cuvil_hw.render.c.function import Function
from cuvil_hw.render.c.inline import writes
from cuvil_hw.render.c.lang import Lang
from cuvil_hw.render.c.names import Names
from cuvil_hw.render.c.scalar import declared, width
from cuvil_hw.render.c.tables import table


def render(module: ModuleOp, lang: Lang, constants: Mapping[str, npt.NDArray[Any]]) -> str:
    """A whole source file: preamble, tables, helper functions, functions. `constants`: arrays by `cuvil.handle`.

    Raises CuvilError for an op that the language can't express."""
    return "\n".join(
        part for part in (lang.preamble, render_tables(module, lang, constants), render_functions(module, lang)) if part
    )


def render_tables(module: ModuleOp, lang: Lang, constants: Mapping[str, npt.NDArray[Any]]) -> str:
    """The module's constant tables, in order. They keep native element types in every language. Graphs of additions
    are functions."""
    names = symbols(module, lang)
    graphs = {op.symbol: op for op in module.walk() if isinstance(op, AddProductsOp)}
    texts = []
    for op in module.body.block.ops:
        if isinstance(op, memref.GlobalOp):
            symbol = op.sym_name.data
            if symbol in graphs:
                graph = from_rows(constants[text_of(op, Handle)].tolist())
                kind = graphs[symbol].y.type
                assert isinstance(kind, MemRefType)
                texts.append(adders.function(graph, names[symbol], width(kind.element_type), lang))
            else:
                texts.append(table(op, names[symbol], lang, constants))
    return _literals("".join(texts), lang)


def render_streams(module: ModuleOp, lang: Lang) -> str:
    """The types of all stream words, and the streams of a language that declares them at file scope."""
    names = streams(module, lang)
    types: dict[str, str] = {}
    lines = []
    for op in module.walk():
        for value in (*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)):
            if isinstance(kind := value.type, StreamType):
                parts = {"type": declared(kind.element, lang), "lanes": kind.lanes.data}
                word = lang.word.format(**parts)
                types[word] = lang.word_type.format(word=word, **parts)
                if isinstance(op, StreamOp) and value in names:
                    depth, words = op.depth.value.data, op.words
                    count = depth if words is None else words.value.data
                    lines.append(lang.global_stream.format(word=word, name=names[value], depth=depth, words=count))
    return "".join(f"{line}\n" for line in (*(t for t in types.values() if t), *lines))


def render_functions(module: ModuleOp, lang: Lang, without: Collection[str] = ()) -> str:
    """The module's functions but those in `without`, in order, after the helper functions that they call."""
    names = symbols(module, lang)
    expressions = Expressions(lang)
    functions = [op for op in module.body.block.ops if isinstance(op, func.FuncOp)]
    written = _written_arguments(functions)
    joined = streams(module, lang)
    wanted = [f for f in functions if f.sym_name.data not in without]
    each = (Function(f, lang, names, expressions, written[f.sym_name.data], streams=joined) for f in wanted)
    texts = [f.text() for f in each]
    helpers = "\n".join(expressions.helpers.values())
    return _literals("\n".join([*([helpers + "\n"] if helpers else []), *texts]), lang)


def render_declarations(module: ModuleOp, lang: Lang, only: Collection[str] = ()) -> str:
    """One prototype a line, for a header; of the functions in `only` when that isn't empty."""
    functions = [op for op in module.body.block.ops if isinstance(op, func.FuncOp)]
    names, written = symbols(module, lang), _written_arguments(functions)
    wanted = [f for f in functions if not only or f.sym_name.data in only]
    each = (Function(f, lang, names, Expressions(lang), written[f.sym_name.data]) for f in wanted)
    return "".join(f.signature() + ";\n" for f in each)


def symbols(module: ModuleOp, lang: Lang) -> dict[str, str]:
    """Names of functions and tables that the language allows."""
    names = Names(lang.keywords)
    symbols = [op.sym_name.data for op in module.body.block.ops if isinstance(op, func.FuncOp | memref.GlobalOp)]
    return {symbol: names.new(symbol) for symbol in symbols}


def streams(module: ModuleOp, lang: Lang) -> dict[SSAValue, str]:
    """Names of streams at file scope: of what makes them, and of the parameters that calls bind to them. Empty for a
    language where they are passed."""
    if not lang.global_stream:
        return {}
    names = Names(lang.keywords | frozenset(symbols(module, lang).values()))
    functions = {f.sym_name.data: f for f in module.body.block.ops if isinstance(f, func.FuncOp)}
    found: dict[SSAValue, str] = {}
    for op in module.walk():
        if isinstance(op, StreamOp):
            found[op.output] = names.new(text_of(op, Name) or "fifo")
        elif isinstance(op, func.CallOp):
            inner = functions[op.callee.root_reference.data].body.block.args
            found.update({a: found[v] for a, v in zip(inner, op.arguments, strict=True) if v in found})
    return found


def _literals(text: str, lang: Lang) -> str:
    """64-bit literals, written as in C, with the suffix of the language."""
    return text if lang.wide_suffix == "LL" else re.sub(r"(?<=\d)(U?)LL\b", rf"\1{lang.wide_suffix}", text)


def _written_arguments(functions: Sequence[func.FuncOp]) -> dict[str, set[int]]:
    """Positions of the memory arguments that each function writes, itself or through calls (callees come first)."""
    result: dict[str, set[int]] = {}
    for f in functions:
        args = list(f.body.block.args) if f.body.blocks else []
        changed = {v for op in f.walk() for v in writes(op, result)}
        result[f.sym_name.data] = {i for i, a in enumerate(args) if a in changed}
    return result
