"""Ops on vectors, the types of several lanes: loads, stores, arithmetic lane by lane."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import vector
from xdsl.dialects.builtin import AnyFloat, VectorType
from xdsl.ir import Attribute, Operation

from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.level2 import WidenOp
from cuvil_hw.render.c.lang import Lang
from cuvil_hw.render.c.operators import FLOAT, RING
from cuvil_hw.render.c.scalar import PRIMARY, UNARY, Code, CType, at, spelled, value_type, vector_name


def defined(type: Attribute, lang: Lang, helpers: dict[str, str], signed: bool = True) -> str:
    """The name of a vector type, whose definition is among `helpers` from now on. Raises CuvilError for a language
    without such types."""
    assert isinstance(type, VectorType)
    if not lang.vectors:
        raise CuvilError(f"{lang.name} has no vectors; lower {type} to loops over its lanes")
    name, element = vector_name(type, lang, signed), value_type(type.element_type, lang)
    lane = element.bits // 8
    scalar = spelled(CType(element.kind, element.bits, signed), lang)
    text = lang.vectors.format(name=name, type=scalar, lane=lane, bytes=lane * prod(type.get_shape()))
    helpers.setdefault(name, text)
    return name


def vector_op(op: Operation, args: Sequence[Code], lang: Lang, helpers: dict[str, str]) -> Code:
    """An op whose result is a vector. Raises CuvilError for one that has no vector form."""
    result = op.results[0].type
    name, kind = defined(result, lang, helpers), value_type(result, lang)
    for table in (RING, FLOAT):
        if op.name in table:
            sign, prec = table[op.name]
            left, right = at(args[0], prec), at(args[1], prec + 1)
            return Code(f"{left} {sign} {right}", prec, kind, split=(sign, left, right))
    if isinstance(op, vector.BroadcastOp):
        return Code(f"{_splat(result, name, lang, helpers)}({args[0].text})", PRIMARY, kind)
    if isinstance(op, WidenOp):
        source, given = op.value.type, args[0]
        if op.dtype.data[0] == "u":
            given = Code(f"({defined(source, lang, helpers, signed=False)}){at(given, UNARY)}", UNARY, given.type)
        return Code(f"__builtin_convertvector({given.text}, {name})", PRIMARY, kind)
    raise CuvilError(f"level2 op {op.name} can't be rendered on vectors as {lang.name}; lower it to loops over lanes")


def _splat(type: Attribute, name: str, lang: Lang, helpers: dict[str, str]) -> str:
    """The function that fills a vector with one number."""
    assert isinstance(type, VectorType)
    element, lanes = value_type(type.element_type, lang), prod(type.get_shape())
    suffix = "f" if isinstance(type.element_type, AnyFloat) else "i"
    function = f"splat_{suffix}{element.bits}x{lanes}"
    body = f"return ({name}){{{', '.join(['x'] * lanes)}}};"
    helpers[function] = f"{lang.helper} {name} {function}({spelled(element, lang)} x) {{ {body} }}"
    return function


def in_memory(type: Attribute, element: str, lang: Lang, helpers: dict[str, str], *, constant: bool) -> str:
    """The lvalue of a vector in a memory, from the text of its first element."""
    return f"*({'const ' if constant else ''}{defined(type, lang, helpers)}u *)&{element}"
