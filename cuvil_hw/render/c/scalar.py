"""Pieces of C text with what is known of them: precedence, the type the language gives them, what memory they read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from xdsl.dialects.builtin import AnyFloat, IndexType, IntegerType, VectorType
from xdsl.ir import Attribute

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.render.c.lang import Lang

# C's precedence, tightest first.
PRIMARY, UNARY, TIMES, PLUS, SHIFT, LESS, EQUAL, AND, XOR, OR, BOTH, EITHER, CHOICE = range(13, 0, -1)


@dataclass(frozen=True, slots=True)
class CType:
    """A type as C sees it. `kind`: "int" (native: C's promotions), "arbitrary" (operators widen), "bool", "float" or
    "vector".
    """

    kind: str
    bits: int
    signed: bool = True


INT = CType("int", 32)
BOOL = CType("bool", 1, False)


@dataclass(frozen=True, slots=True)
class Code:
    """An expression.

    Attributes:
        exact: it has the value of the level2 value; else only modulo 2^bits of the level2 type, as C computes in
            wider types.
        reads: names of the memories that it loads from.
        split: operator and sides, for `x += y`.
        literal: its value, for an integer literal.
    """

    text: str
    prec: int
    type: CType
    exact: bool = True
    reads: frozenset[str] = frozenset()
    split: tuple[str, str, str] | None = None
    literal: int | None = None

    @property
    def atom(self) -> bool:
        """May be written twice: a variable or a literal."""
        return self.prec == PRIMARY and not self.reads and (self.literal is not None or self.text.isidentifier())


def at(code: Code, prec: int) -> str:
    """The text, in parentheses where it binds looser than `prec`."""
    return code.text if code.prec >= prec else f"({code.text})"


def bare(side: str) -> str:
    """The right side of `x = x + (side)`, without the parentheses that only the operator needed."""
    if not (side.startswith("(") and side.endswith(")")):
        return side
    depth = 0
    for i, c in enumerate(side):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(side) - 1:
            return side
    return side[1:-1]


def container_bits(bits: int) -> int:
    return next(b for b in (8, 16, 32, 64) if bits <= b)


def width(type: Attribute) -> int:
    """Bits of a level2 integer (index counts as 32)."""
    if isinstance(type, IndexType):
        return 32
    if isinstance(type, IntegerType):
        return int(type.width.data)
    raise CuvilError(f"{type} is not an integer type of level2")


def value_type(type: Attribute, lang: Lang) -> CType:
    """The type that variables and memories of a level2 type have."""
    if isinstance(type, IndexType):
        return INT
    if isinstance(type, AnyFloat):
        return CType("float", type.bitwidth)
    if isinstance(type, VectorType):
        return CType("vector", prod(type.get_shape()) * value_type(type.element_type, lang).bits)
    bits = width(type)
    if bits == 1:
        return BOOL
    return CType("arbitrary", bits) if lang.arbitrary else CType("int", container_bits(bits))


def native_type(type: Attribute) -> CType:
    """The native type that holds a level2 type."""
    if isinstance(type, AnyFloat):
        return CType("float", type.bitwidth)
    return BOOL if width(type) == 1 else CType("int", container_bits(width(type)))


def table_type(type: Attribute, stored: str, lang: Lang) -> CType:
    """The type of a constant table's elements: native, which compilers read fastest, or where the language has types of
    any width and the elements need (`stored`) fewer bits than a native type has, of that width."""
    if not stored:
        return native_type(type)
    signed, bits = dtypes.int_width(stored) or (True, width(type))
    if lang.arbitrary and bits not in (8, 16, 32, 64):
        return CType("arbitrary", bits, signed)
    if lang.arbitrary and not signed:
        return CType("int", bits, False) if bits < 32 else CType("arbitrary", bits, False)
    return CType("int", container_bits(min(bits + (not signed), 64)))


def spelled(type: CType, lang: Lang) -> str:
    match type.kind:
        case "float":
            return _native(f"f{type.bits}", lang)
        case "bool":
            return lang.boolean
        case "arbitrary":
            return (lang.arbitrary if type.signed else lang.arbitrary_unsigned).format(type.bits)
        case _:
            return _native(f"{'i' if type.signed else 'u'}{type.bits}", lang)


def _native(dtype: str, lang: Lang) -> str:
    """Raises CuvilError for a type that the language lacks."""
    if dtype not in lang.types:
        raise CuvilError(f"{lang.name} has no type for {dtype}")
    return lang.types[dtype]


def declared(type: Attribute, lang: Lang) -> str:
    """The type of a variable of a level2 type, in words of the language."""
    if isinstance(type, VectorType):
        return vector_name(type, lang)
    return lang.index if isinstance(type, IndexType) else spelled(value_type(type, lang), lang)


def vector_name(type: VectorType[Attribute], lang: Lang, signed: bool = True) -> str:
    """What `vectors.py` calls the type of several lanes."""
    kind = value_type(type.element_type, lang)
    letter = "f" if kind.kind == "float" else "i" if signed else "u"
    return f"{letter}{kind.bits}x{prod(type.get_shape())}"


def port_element(dtype: str, lang: Lang) -> str:
    """The type of one element at a port: unlike inside, its sign matters, since it is extended to a container. Raises
    CuvilError for a float in a language whose ports have none."""
    if dtypes.is_float(dtype):
        if not lang.axis_float:
            raise CuvilError(f"{lang.name} has no ports of floats")
        return lang.axis_float.format(type=_native(dtype, lang))
    signed, bits = (False, 1) if dtype == "bool" else dtypes.int_width(dtype) or (True, 0)
    return spelled(CType("arbitrary", bits, signed or bits == 64), lang)  # 64 bits fill their container


def cast(code: Code, type: CType, lang: Lang, name: str = "") -> Code:
    """`code` converted; `name` overrides the spelling of the type."""
    text = code.text if lang.cast_calls else at(code, UNARY)
    done = lang.cast.format(type=name or spelled(type, lang), x=text)
    return Code(done, PRIMARY if lang.cast_calls else UNARY, type, True, code.reads)


def integer(value: int, bits: int = 32) -> Code:
    """A literal; `int` where it fits, `long long` beyond."""
    small = -(1 << 31) < value < 1 << 31
    type = INT if small else CType("int", 64)
    suffix = "" if small else "LL"
    if value == -(1 << 63):
        return Code("(-9223372036854775807LL - 1)", PRIMARY, type, literal=value)
    if value == -(1 << 31) and bits <= 32:
        return Code("(-2147483647 - 1)", PRIMARY, INT, literal=value)
    return Code(f"{value}{suffix}", UNARY if value < 0 else PRIMARY, type, literal=value)


def float_text(value: float, bits: int) -> str:
    """An exact literal: the shortest decimal that reads back as the same f64, or f32."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    if bits == 64:
        return repr(float(value))
    return f"{np.float32(value)!s}f"


def real(value: float, bits: int) -> Code:
    text = float_text(value, bits)
    # NAN and INFINITY are float, and so is a literal of f16: it reads back exactly, as every f16 is an f32.
    return Code(text, UNARY if text.startswith("-") else PRIMARY, CType("float", 64 if bits == 64 else 32))


def inexact(code: Code) -> Code:
    return replace(code, exact=False)
