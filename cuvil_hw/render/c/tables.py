"""Constant tables as C text: `memref.global` ops whose values lie in a constant store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects import memref
from xdsl.dialects.builtin import AnyFloat, MemRefType

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.annotations import Handle, Stored, text_of
from cuvil_hw.render.c.lang import Lang
from cuvil_hw.render.c.scalar import spelled, table_type, width

_LINE = re.compile(r"([^\n]{60,94}?,) ")


def table(op: memref.GlobalOp, name: str, lang: Lang, constants: Mapping[str, npt.NDArray[Any]]) -> str:
    """The definition of one table. Raises CuvilError when its array is missing or doesn't fit its type."""
    kind, handle = op.type, text_of(op, Handle)
    assert isinstance(kind, MemRefType)
    if not handle:
        raise CuvilError(f"table {name} has no cuvil.handle: nothing says which constant it holds")
    array = np.asarray(constants[handle])
    shape = tuple(kind.get_shape())
    if array.shape != shape:
        raise CuvilError(f"table {name} is declared {shape}, its constant has shape {array.shape}")
    if isinstance(kind.element_type, AnyFloat):
        text = _floats(array)
    else:
        text = _braced(array.tolist() if text_of(op, Stored) else _signless(array, width(kind.element_type)))
    dims = "".join(f"[{max(n, 1)}]" for n in shape)
    head = lang.table.format(type=spelled(table_type(kind.element_type, text_of(op, Stored), lang), lang), name=name)
    text = "{0}" if array.size == 0 else text  # C has no empty arrays: one element that nothing reads
    body = _LINE.sub(r"\1\n    ", text.replace("}, {", "},\n    {")) if len(head) + len(text) > 100 else text
    return f"{head}{dims} = {body};\n"


def _signless(array: npt.NDArray[Any], bits: int) -> Any:
    """Values as the signed numbers that have the same low `bits` bits, as nested lists."""
    if array.dtype == dtypes.BF16:
        array = array.view(np.uint16)
    if bits == 1 or array.dtype == np.bool_:
        return (array != 0).astype(np.int8).tolist()
    if array.dtype.kind == "u":
        if bits == 64:
            return array.view(np.int64).tolist()
        wide = array.astype(np.int64)
        return np.where(wide >= 1 << (bits - 1), wide - (1 << bits), wide).tolist()
    return array.tolist()


def _braced(values: Any) -> str:
    text = repr(values).replace("[", "{").replace("]", "}")
    # The lowest 64-bit number can't be written as one literal.
    text = text.replace("-9223372036854775808", "(-9223372036854775807LL - 1)")
    return re.sub(r"(-?\d{10,})(?!LL)(?=[,}]|$)", r"\1LL", text)


def _floats(array: npt.NDArray[Any]) -> str:
    """Shortest decimals that read back exactly; f16 as f32."""
    single = array.dtype != np.float64
    words = (array.astype(np.float32) if single else array).astype(np.str_)
    flat = [w + "f" for w in words.ravel().tolist()] if single else words.ravel().tolist()
    if not np.isfinite(array).all():
        names = {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY", "-nan": "NAN"}
        flat = [names.get(w.removesuffix("f") if w not in ("inf", "-inf") else w, w) for w in flat]
    if array.ndim == 0:
        return str(flat[0])
    for extent in reversed(array.shape):
        flat = ["{" + ", ".join(flat[i : i + extent]) + "}" for i in range(0, len(flat), extent)] if extent else ["{}"]
    return flat[0]
