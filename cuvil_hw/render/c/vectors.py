"""Ops on vectors, the types of several lanes: loads, stores, arithmetic lane by lane."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import vector
from xdsl.dialects.builtin import AnyFloat, VectorType, i32
from xdsl.ir import Attribute, Operation

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.lanes import RescaleOp
from cuvil_hw.ir.level2 import WidenOp
from cuvil_hw.render.c import lanes
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
    assert isinstance(result, VectorType)
    name, kind = defined(result, lang, helpers), value_type(result, lang)
    for table in (RING, FLOAT):
        if op.name in table:
            sign, prec = table[op.name]
            left, right = at(args[0], prec), at(args[1], prec + 1)
            return Code(f"{left} {sign} {right}", prec, kind, split=(sign, left, right))
    if isinstance(op, RescaleOp):
        function = f"rescale_{name}"
        helpers[function] = lanes.rescale(function, name, prod(result.get_shape()), lang.helper)
        numbers = [str(n.value.data) for n in (op.shift, op.zero, op.low, op.high, op.even)]
        text = ", ".join([*(a.text for a in args), f"{op.offset.value.data}LL", *numbers])
        return Code(f"{function}({text})", PRIMARY, kind)
    if op.name in lanes.OPS:
        factors = defined(op.operands[0].type, lang, helpers)
        function = f"{op.name.rpartition('.')[2]}_{name}"
        helpers[function] = lanes.helper(op.name, function, name, factors, kind.bits, lang.helper)
        return Code(f"{function}({', '.join(a.text for a in args)})", PRIMARY, kind)
    if isinstance(op, vector.BroadcastOp):
        return Code(f"{_splat(result, name, lang, helpers)}({args[0].text})", PRIMARY, kind)
    if isinstance(op, WidenOp):
        source, given = op.value.type, args[0]
        if op.dtype.data[0] == "u":
            given = Code(f"({defined(source, lang, helpers, signed=False)}){at(given, UNARY)}", UNARY, given.type)
        if dtypes.record(op.dtype.data).bits == 8 and kind.bits == 256 and prod(result.get_shape()) == 8:
            plain = defined(source, lang, helpers, signed=op.dtype.data[0] != "u")
            function = f"widen_{plain}_to_{name}"
            helpers[function] = lanes.widen(function, name, plain, lang.helper)
            return Code(f"{function}({given.text})", PRIMARY, kind)
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


def splat_pair(type: Attribute, element: str, lang: Lang, helpers: dict[str, str]) -> str:
    """A vector that repeats two neighbours of 16 bits, from the text of the first in memory."""
    assert isinstance(type, VectorType)
    name, words = defined(type, lang, helpers), VectorType(i32, [prod(type.get_shape()) // 2])
    splat = _splat(words, defined(words, lang, helpers), lang, helpers)
    word = spelled(value_type(i32, lang), lang)
    helpers["pair_u"] = f"typedef {word} pair_u __attribute__((aligned(2), may_alias));"
    return f"({name}){splat}(*(const pair_u *)&{element})"


def in_memory(type: Attribute, element: str, lang: Lang, helpers: dict[str, str], *, constant: bool) -> str:
    """The lvalue of a vector in a memory, from the text of its first element."""
    return f"*({'const ' if constant else ''}{defined(type, lang, helpers)}u *)&{element}"
