"""Runs one function of level2 text on arguments that are text, too: for tests and for looking at what a module does.

An argument is numbers with commas between (1,2,-3 or 0.5,nan), `_` for a memory or stream in which nothing is yet, `_6`
for such a memory of six elements where its first size is open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp
from xdsl.ir import Attribute, SSAValue

from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.interpreter.machine import Argument, Machine
from cuvil_hw.ir.interpreter.scalars import number
from cuvil_hw.ir.interpreter.values import FLOATS, Array, Memory, Stream, Values, Wire
from cuvil_hw.ir.level2 import AxisReadOp, AxisType, StreamType, signless

ENDLESS = 1 << 30  # words of a stream that nobody reads while the function runs


def interpreted(
    module: ModuleOp, name: str, given: Sequence[str], constants: Mapping[str, Array], blocks: int = 1, samples: int = 1
) -> str:
    """One line for each memory, port and stream among the arguments of function @name, with what it holds after the
    run. Raises CuvilError for arguments that don't fit, and as Machine.run does."""
    machine = Machine(module, constants)
    f = machine.functions.get(name)
    kinds = [] if f is None else list(f.body.block.args)
    if f is not None and len(kinds) != len(given):
        raise CuvilError(f"@{name} takes {len(kinds)} arguments, {len(given)} given")
    arguments = [_argument(text, arg) for text, arg in zip(given, kinds, strict=False)]
    machine.run(name, arguments, blocks=blocks, samples=samples)
    lines = []
    for n, (arg, value) in enumerate(zip(kinds, arguments, strict=True)):
        if not isinstance(value, int):
            lines.append(f"{arg.name_hint or f'arg{n}'}: {_shown(value)}")
    return "".join(f"{line}\n" for line in lines)


def _argument(text: str, arg: SSAValue) -> Argument:
    kind = arg.type
    if isinstance(kind, MemRefType):
        return _memory(text, kind)
    if isinstance(kind, StreamType):
        values, lanes = _numbers(text, kind.element), kind.lanes.data
        made = Stream(arg.name_hint or "stream", ENDLESS)
        made.words.extend(values[n : n + lanes] for n in range(0, len(values), lanes))
        return made
    if isinstance(kind, AxisType):
        reader = next((u.operation for u in arg.uses if isinstance(u.operation, AxisReadOp)), None)
        if reader is None:
            return Wire()
        values, count = _numbers(text, signless(reader.dtype.data)), reader.count.value.data
        tensors = [values[n : n + count] for n in range(0, len(values), count)]
        return Wire(tensors, [n == len(tensors) - 1 for n in range(len(tensors))])
    (value,) = _numbers(text, kind)
    if not isinstance(kind, IndexType):
        raise CuvilError(f"{kind} is no argument that text can give")
    return int(value)


def _memory(text: str, kind: MemRefType[Attribute]) -> Memory:
    if room := re.fullmatch(r"_(\d*)", text):
        inner = prod(n for n in kind.get_shape() if n >= 0)
        return Memory.empty(kind, int(room[1] or 0) // max(inner, 1))
    values = _numbers(text, kind.element_type)
    inner = prod(n for n in kind.get_shape() if n >= 0)
    shape = [n if n >= 0 else len(values) // max(inner, 1) for n in kind.get_shape()]
    if prod(shape) != len(values):
        raise CuvilError(f"{kind} doesn't hold {len(values)} elements")
    return Memory(MemRefType(kind.element_type, shape), values)


def _numbers(text: str, kind: Attribute) -> Values:
    words = [w for w in text.split(",") if w and not w.startswith("_")]
    try:
        return [number(float(w) if type(kind) in FLOATS else int(w), kind) for w in words]
    except ValueError as e:
        raise CuvilError(f"{text} isn't numbers of {kind} with commas between") from e


def _shown(value: Memory | Stream | Wire) -> str:
    if isinstance(value, Memory):
        return _list(value.values)
    if isinstance(value, Stream):
        return " | ".join(map(_list, value.words)) or "empty"
    return " | ".join(map(_list, value.tensors))


def _list(values: Values) -> str:
    return ", ".join("_" if v is None else str(int(v) if isinstance(v, bool) else v) for v in values)
