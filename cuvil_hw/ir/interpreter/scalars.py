"""The meaning of every op on numbers, as the Python expression that computes it.

Integers wrap where their width is one of a machine (8, 16, 32, 64); a sum or product of another width has to fit it,
which is level2's promise to languages that compute wider. Floats are NumPy scalars, so every result is rounded to its
own type once. What a machine leaves undefined (division by zero, shifts beyond the width, conversions of what the type
doesn't hold) is a Fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, Operation

from cuvil_hw import dtypes
from cuvil_hw.ir.interpreter.values import FLOATS, Fault, bits_of, scalar_of, signed
from cuvil_hw.ir.level2 import SaturateOp, WidenOp

NATIVE = (8, 16, 32, 64)
_RING = {"addi": "+", "subi": "-", "muli": "*"}
_BITS = {"andi": "&", "ori": "|", "xori": "^"}
# Of i1, where true is -1 in what has a sign.
_OF_BITS = {"addi": "^", "subi": "^", "muli": "&", "maxsi": "&", "minsi": "|", "maxui": "|", "minui": "&"}
_FLOAT = {"addf": "+", "subf": "-", "mulf": "*", "divf": "/"}
_CALLED = {"divsi", "remsi", "floordivsi", "ceildivsi", "shli", "shrsi"}
_UNSIGNED = {"divui", "remui", "ceildivui", "shrui"}
_COMPARE = ("({0} ^ {1}) == 0", "({0} ^ {1}) != 0", "{0} < {1}", "{0} <= {1}", "{0} > {1}", "{0} >= {1}")
_COMPARE_FLOATS = (
    "False", "{0} >= {1} and {0} <= {1}", "{0} > {1}", "{0} >= {1}", "{0} < {1}", "{0} <= {1}",
    "({0} < {1} or {0} > {1})", "({0} <= {0} and {1} <= {1})", "not ({0} < {1} or {0} > {1})", "not {0} <= {1}",
    "not {0} < {1}", "not {0} >= {1}", "not {0} > {1}", "not ({0} >= {1} and {0} <= {1})",
    "not ({0} <= {0} and {1} <= {1})", "True",
)  # fmt: skip
_EXTREMES = {
    "maximumf": "{0} if {0} > {1} or {0} != {0} else {1}",
    "minimumf": "{0} if {0} < {1} or {0} != {0} else {1}",
    "maxnumf": "fmax({0}, {1})",
    "minnumf": "fmin({0}, {1})",
}
# Functions that are exact, or rounded as IEEE 754 says, in their own type.
_OWN: Mapping[str, Callable[..., Any]] = {
    "math.absf": np.abs, "math.ceil": np.ceil, "math.floor": np.floor, "math.roundeven": np.rint,
    "math.sqrt": np.sqrt, "math.trunc": np.trunc, "math.copysign": np.copysign, "arith.remf": np.fmod,
}  # fmt: skip
# Functions of a library: computed in f64, rounded to their type once.
_LIBRARY: Mapping[str, Callable[..., Any]] = {
    "math.acos": np.arccos, "math.acosh": np.arccosh, "math.asin": np.arcsin, "math.asinh": np.arcsinh,
    "math.atan": np.arctan, "math.atan2": np.arctan2, "math.atanh": np.arctanh, "math.cbrt": np.cbrt,
    "math.cos": np.cos, "math.cosh": np.cosh, "math.erf": lambda x: np.float64(math.erf(x)), "math.exp": np.exp,
    "math.exp2": np.exp2, "math.expm1": np.expm1, "math.log": np.log, "math.log10": np.log10, "math.log1p": np.log1p,
    "math.log2": np.log2, "math.powf": np.power, "math.round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "math.rsqrt": lambda x: 1 / np.sqrt(x), "math.sin": np.sin, "math.sinh": np.sinh, "math.tan": np.tan,
    "math.tanh": np.tanh,
}  # fmt: skip
SCALARS = frozenset(
    [*(f"arith.{n}" for n in (*_RING, *_BITS, *_OF_BITS, *_FLOAT, *_CALLED, *_UNSIGNED, *_EXTREMES)), *_OWN, *_LIBRARY,
     *(f"arith.{n}" for n in ("cmpi", "cmpf", "select", "negf", "extsi", "extui", "trunci", "index_cast", "extf",
                              "truncf", "sitofp", "uitofp", "fptosi", "fptoui",
                              "bitcast")), "math.absi", SaturateOp.name]
)  # fmt: skip


def expression(op: Operation, args: Sequence[str], names: dict[str, Any]) -> str:
    """Python for the result of an op on the values `args`, for one lane of vectors; adds to `names` what the text
    refers to."""
    kind, source = scalar_of(op.results[0].type), scalar_of(op.operands[0].type)
    bits, have = bits_of(kind), bits_of(source)
    stem = op.name.removeprefix("arith.")
    names.update(HELPERS)
    if isinstance(op, arith.SelectOp):
        return f"{args[1]} if {args[0]} & 1 else {args[2]}"
    if isinstance(op, arith.CmpiOp):
        return _compared(op.predicate.value.data, args, source)
    if isinstance(op, arith.CmpfOp):
        return f"bool({_COMPARE_FLOATS[op.predicate.value.data].format(*args)})"
    if isinstance(op, SaturateOp):
        lo, hi = dtypes.int_range(op.dtype.data)
        return _signless(f"clip({args[0]}, {lo}, {hi}, {op.layer.value.data}, clipped)", bits, op.dtype.data[0] == "i")
    if isinstance(op, WidenOp):
        value = args[0] if op.dtype.data[0] == "i" else _natural(args[0], have)
        return value if bits else f"int64({value}).astype({kind})"
    if bits == 1 and stem in _OF_BITS:
        return f"{args[0]} {_OF_BITS[stem]} {args[1]}"
    if stem in _BITS:
        return f"{args[0]} {_BITS[stem]} {args[1]}"
    if stem in _RING:
        return _fitting(f"{args[0]} {_RING[stem]} {args[1]}", kind)
    if stem in _CALLED or stem == "math.absi":
        return _fitting(f"{stem.removeprefix('math.')}({', '.join(args)}, {bits})", kind)
    if isinstance(kind, IndexType) and stem in ("divui", "remui"):
        sign = "//" if stem == "divui" else "%"
        return f"{args[0]} {sign} {args[1]} if {args[0]} >= 0 < {args[1]} else unnatural({args[0]}, {args[1]})"
    if stem in _UNSIGNED:
        return _signless(f"{stem}({_natural(args[0], bits)}, {_natural(args[1], bits)}, {bits})", bits)
    if stem in ("maxsi", "minsi"):
        return f"{stem[:3]}({args[0]}, {args[1]})"
    if stem in ("maxui", "minui"):
        return _signless(f"{stem[:3]}({_natural(args[0], bits)}, {_natural(args[1], bits)})", bits)
    if stem in _FLOAT:
        return f"{args[0]} {_FLOAT[stem]} {args[1]}"
    if stem in _EXTREMES:
        return _EXTREMES[stem].format(*args)
    if op.name in _OWN or op.name in _LIBRARY:
        return _function(op.name, args, kind, names)
    match stem:
        case "negf":
            return f"-{args[0]}"
        case "extsi":
            return f"-{args[0]}" if have == 1 else args[0]
        case "extui":
            return _natural(args[0], have)
        case "trunci":
            return _signless(args[0], bits)
        case "index_cast":
            return f"+{args[0]}" if isinstance(kind, IndexType) or bits >= have else _signless(args[0], bits)
        case "extf" | "truncf":
            return f"{args[0]}.astype({kind})"
        case "sitofp":
            return f"int64({'-' if have == 1 else ''}{args[0]}).astype({kind})"
        case "uitofp":
            return f"uint64({_natural(args[0], have)}).astype({kind})"
        case "bitcast":
            word = f"uint{max(bits, have)}"
            names[word] = getattr(np, word)
            value = args[0] if not have else f"{word}({_natural(args[0], have)})"
            seen = f"{value}.view({kind if not bits else word})" if not have or not bits else args[0]
            return _signless(f"int({seen})", bits) if bits and not have else seen
        case "fptosi":
            return f"whole({args[0]}, {-(1 << (bits - 1))}, {(1 << (bits - 1)) - 1})"
        case "fptoui":
            return _signless(f"whole({args[0]}, 0, {(1 << bits) - 1})", bits)
    raise KeyError(op.name)


def number(value: int | float, kind: Attribute) -> Any:
    """A constant of a level2 type."""
    if (container := FLOATS.get(type(kind))) is not None:
        return container(value)
    return int(value) if isinstance(kind, IndexType) else signed(int(value), bits_of(kind))


def _signless(text: str, bits: int, fits: bool = False) -> str:
    """`text` modulo 2^bits; `fits`: it is in the signed range."""
    if bits == 1:
        return f"({text}) & 1"
    if fits:
        return text
    half = 1 << (bits - 1)
    return f"(({text}) + {half} & {(1 << bits) - 1}) - {half}"


def _fitting(text: str, kind: Attribute) -> str:
    """A result that wraps where the width is a machine's, and else has to fit."""
    if isinstance(kind, IndexType):
        return text
    bits = bits_of(kind)
    if bits in NATIVE:
        return _signless(text, bits)
    half = 1 << (bits - 1)
    return f"r if {-half} <= (r := {text}) < {half} else wide(r, {bits})"


def _natural(text: str, bits: int) -> str:
    """The same bits as a number from zero up."""
    return f"{text} & {(1 << bits) - 1}"


def _compared(predicate: int, args: Sequence[str], kind: Attribute) -> str:
    if isinstance(kind, IndexType) and predicate < 2:
        return f"{args[0]} {'==' if predicate == 0 else '!='} {args[1]}"
    if predicate < 6:
        a, b = args if bits_of(kind) > 1 or predicate < 2 else args[::-1]  # true is -1
        return _COMPARE[predicate].format(a, b)
    a, b = (f"({_natural(x, bits_of(kind))})" for x in args)
    return _COMPARE[predicate - 4].format(a, b)


def _function(name: str, args: Sequence[str], kind: Attribute, names: dict[str, Any]) -> str:
    stem = name.rpartition(".")[2]
    if name in _OWN:
        names[f"np_{stem}"] = _OWN[name]
        return f"np_{stem}({', '.join(args)})"
    names[f"np_{stem}"] = _LIBRARY[name]
    return f"np_{stem}({', '.join(f'{a}.astype(f64)' for a in args)}).astype({kind})"


# -- called by the text ------------------------------------------------------------------------------------------------


def _divided(a: int, b: int) -> int:
    if b == 0:
        raise Fault("divides by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int, bits: int) -> int:
    return a - b * _divided(a, b)


def _floor_divided(a: int, b: int, bits: int) -> int:
    if b == 0:
        raise Fault("divides by zero")
    return a // b


def _shift(by: int, bits: int) -> int:
    if not 0 <= by < bits:
        raise Fault(f"shifts {bits} bits by {by}")
    return by


def _unnatural(a: int, b: int) -> None:
    """Languages differ on negative indices, which kernels compute beside a condition that leaves the result unused."""
    if b <= 0:
        raise Fault(f"divides the index {a} by {b}")


def _wide(value: int, bits: int) -> int:
    raise Fault(f"{value} doesn't fit {bits} bits, which don't wrap")


def _whole(value: Any, lo: int, hi: int) -> int:
    if not np.isfinite(value) or not lo <= (whole := int(value)) <= hi:
        raise Fault(f"converts {value} to an integer from {lo} to {hi}")
    return whole


def _clip(value: int, lo: int, hi: int, layer: int, clipped: dict[int, int]) -> int:
    if lo <= value <= hi:
        return value
    clipped[layer] = clipped.get(layer, 0) + 1
    return lo if value < lo else hi


HELPERS: Mapping[str, Any] = {
    "int64": np.int64, "uint64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64, "fmax": np.fmax,
    "fmin": np.fmin, "wide": _wide, "unnatural": _unnatural, "whole": _whole, "clip": _clip,
    "divsi": lambda a, b, bits: _divided(a, b), "remsi": _remainder, "floordivsi": _floor_divided,
    "ceildivsi": lambda a, b, bits: -_floor_divided(-a, b, bits), "absi": lambda a, bits: abs(a),
    "shli": lambda a, by, bits: a << _shift(by, bits), "shrsi": lambda a, by, bits: a >> _shift(by, bits),
    "shrui": lambda a, by, bits: a >> _shift(by, bits), "divui": _floor_divided,
    "remui": lambda a, b, bits: a - b * _floor_divided(a, b, bits),
    "ceildivui": lambda a, b, bits: -_floor_divided(-a, b, bits),
}  # fmt: skip
