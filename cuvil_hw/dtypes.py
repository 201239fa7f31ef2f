"""Element types. A dtype is a string: "f32", "bf16", "i8", "u4", "bool". NumPy only, so that a board can use it.

`iN`/`uN` exist for every width 1-64, stored in the next larger NumPy container. A type's record holds everything that
Cuvil knows about it: a new type is a new row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

_INT = re.compile(r"([iu])([1-9][0-9]?)\Z")


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type.

    Attributes:
        bits: of a value, which is zero- or sign-extended to its NumPy `container`.
        work: the dtype in which arithmetic is done; the result of each op is rounded once.
        onnx, torch: their names for it; "" if they have none.

    The other fields hold, for each language, how a variable of the container is declared; "" if it can't be.
    """

    name: str
    kind: Literal["float", "int", "bool"]
    bits: int
    signed: bool
    container: np.dtype[Any]
    work: str
    onnx: str = ""
    torch: str = ""
    c: str = ""
    cuda: str = ""
    hls: str = ""
    opencl: str = ""
    sycl: str = ""
    bang: str = ""


Language = Literal["c", "cuda", "hls", "opencl", "sycl", "bang"]


def _float(name: str, container: npt.DTypeLike, work: str, onnx: str, torch: str, *cells: str) -> Dtype:
    kind = np.dtype(container)
    return Dtype(name, "float", 8 * kind.itemsize, True, kind, work, onnx, torch, *cells)


def _int(signed: bool, bits: int) -> Dtype:
    """The record of an integer. Where it fills its container it has C99's type of fixed width, and OpenCL's (6.1.1:
    char 8, short 16, int 32, long 64 bits on every device)."""
    box = next(c for c in (8, 16, 32, 64) if bits <= c)
    u, name = "" if signed else "u", f"{'i' if signed else 'u'}{bits}"
    kind = np.dtype(f"{'i' if signed else 'u'}{box // 8}")
    onnx = f"{u.upper()}INT{bits}" if bits in (2, 4, 8, 16, 32, 64) else ""
    torch = f"{u}int{bits}" if bits == box else ""
    stdint = f"{u}int{bits}_t" if bits == box else ""
    opencl = u + {8: "char", 16: "short", 32: "int", 64: "long"}[box] if bits == box else ""
    return Dtype(name, "int", bits, signed, kind, name, onnx, torch, stdint, stdint, stdint, opencl, stdint, stdint)


# NumPy has no bfloat16: its bits, in a type that NumPy moves but never computes with (`numbers`, `convert`).
BF16 = np.dtype([("bf16", np.uint16)])

_RECORDS = {
    d.name: d
    for d in (
        # name, container, work, ONNX, torch; C, CUDA, HLS, OpenCL, SYCL, BANG (MLUs have no double)
        _float(
            "f16", np.float16, "f32", "FLOAT16", "float16", "_Float16", "half_t", "half", "half", "sycl::half", "half"
        ),
        _float("bf16", BF16, "f32", "BFLOAT16", "bfloat16"),  # level2 and every language see its bits, an i16
        _float("f32", np.float32, "f32", "FLOAT", "float32", "float", "float", "float", "float", "float", "float"),
        _float("f64", np.float64, "f64", "DOUBLE", "float64", "double", "double", "double", "double", "double", ""),
        Dtype("bool", "bool", 1, False, np.dtype(np.bool_), "bool", "BOOL", "bool", *["bool"] * 6),
    )
}
FLOATS: Mapping[str, np.dtype[Any]] = {name: d.container for name, d in _RECORDS.items() if d.kind == "float"}
# Those that fill their container: types of arrays, of ONNX tensors and of torch tensors.
WHOLE = (*FLOATS, *(f"{s}{bits}" for s in "iu" for bits in (8, 16, 32, 64)), "bool")


@cache
def record(dtype: str) -> Dtype:
    """The record of a dtype. Raises ValueError for a name that is none."""
    if dtype in _RECORDS:
        return _RECORDS[dtype]
    width = int_width(dtype)
    if width is None:
        raise ValueError(f"unknown dtype {dtype!r}")
    return _int(*width)


def spellings(language: Language) -> dict[str, str]:
    """A language's names of the types that fill their container, by dtype; types that it lacks are left out."""
    return {d: text for d in WHOLE if (text := getattr(record(d), language))}


@cache
def int_width(dtype: str) -> tuple[bool, int] | None:
    """(signed, bits) of an integer dtype; None for floats and bool."""
    match = _INT.match(dtype)
    if match is None:
        return None
    bits = int(match[2])
    if not (1 <= bits <= 64):
        raise ValueError(f"integer width {bits} is outside 1-64")
    return match[1] == "i", bits


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def is_int(dtype: str) -> bool:
    return int_width(dtype) is not None


def int_range(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype (or bool)."""
    if dtype == "bool":
        return 0, 1
    width = int_width(dtype)
    if width is None:
        raise ValueError(f"{dtype} is not an integer type")
    signed, bits = width
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def to_numpy(dtype: str) -> np.dtype[Any]:
    """The NumPy container of `dtype`."""
    return record(dtype).container


_BY_CONTAINER = {record(name).container: name for name in WHOLE}


def from_numpy(dtype: npt.DTypeLike) -> str:
    """The dtype whose container is exactly `dtype`; ValueError for complex, str, object, …"""
    d = np.dtype(dtype)
    found = _BY_CONTAINER.get(d.newbyteorder("="))
    if found is None:
        raise ValueError(f"NumPy dtype {d} has no Cuvil equivalent")
    return found


def numbers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`array` in a form with which NumPy can compute: bf16 becomes f32, exactly; others stay."""
    if array.dtype != BF16:
        return array
    return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def convert(array: npt.ArrayLike, dtype: str) -> npt.NDArray[Any]:
    """Numbers converted to the container of `dtype`; no copy if they have it already. Floats are rounded to nearest,
    ties to even, overflow gives infinity; bf16 is rounded through f32, as in PyTorch."""
    given = numbers(np.asarray(array))
    if dtype != "bf16":
        return given.astype(to_numpy(dtype), copy=False)
    if np.asarray(array).dtype == BF16:
        return np.asarray(array)
    with np.errstate(over="ignore", invalid="ignore"):
        single = given.astype(np.float32)
    bits = single.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.asarray(np.where(np.isnan(single), np.uint32(0x7FC0), rounded)).astype(np.uint16).view(BF16)


def smallest_int(lo: int, hi: int) -> str:
    """The narrowest signed integer dtype that holds [lo, hi]."""
    bits = max(int(lo if lo >= 0 else ~lo).bit_length(), int(hi if hi >= 0 else ~hi).bit_length()) + 1
    if bits > 64:
        raise OverflowError(f"[{lo}, {hi}] needs {bits} bits")
    return f"i{bits}"
