"""Level2 → text of a C-family language. One walker for all of them (function.py); a language is a table (lang.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy.typing as npt
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ModuleOp

from cuvil_hw.render.expressions import Expressions
from cuvil_hw.render.function import Function
from cuvil_hw.render.inline import writes
from cuvil_hw.render.lang import Lang
from cuvil_hw.render.names import Names
from cuvil_hw.render.tables import table


def render(module: ModuleOp, lang: Lang, constants: Mapping[str, npt.NDArray[Any]]) -> str:
    """A whole source file: preamble, tables, helper functions, functions. `constants`: arrays by `cuvil.handle`.

    Raises CuvilError for an op that the language can't express."""
    return "\n".join(
        part for part in (lang.preamble, render_tables(module, lang, constants), render_functions(module, lang)) if part
    )


def render_tables(module: ModuleOp, lang: Lang, constants: Mapping[str, npt.NDArray[Any]]) -> str:
    """The module's constant tables, in order. They keep native element types in every language."""
    names = symbols(module, lang)
    ops = [op for op in module.body.block.ops if isinstance(op, memref.GlobalOp)]
    return "".join(table(op, names[op.sym_name.data], lang, constants) for op in ops)


def render_functions(module: ModuleOp, lang: Lang) -> str:
    """The module's functions, in order, after the helper functions that they call."""
    names = symbols(module, lang)
    expressions = Expressions(lang)
    functions = [op for op in module.body.block.ops if isinstance(op, func.FuncOp)]
    written = _written_arguments(functions)
    texts = [Function(f, lang, names, expressions, written[f.sym_name.data]).text() for f in functions]
    helpers = "\n".join(expressions.helpers.values())
    return "\n".join([*([helpers + "\n"] if helpers else []), *texts])


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


def _written_arguments(functions: Sequence[func.FuncOp]) -> dict[str, set[int]]:
    """Positions of the memory arguments that each function writes, itself or through calls (callees come first)."""
    result: dict[str, set[int]] = {}
    for f in functions:
        args = list(f.body.block.args) if f.body.blocks else []
        changed = {v for op in f.walk() for v in writes(op, result)}
        result[f.sym_name.data] = {i for i, a in enumerate(args) if a in changed}
    return result
