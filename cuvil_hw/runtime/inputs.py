"""Converts what a user passes to a program into arrays for a device. No conversion loses information, except f64 → f32.

torch is never imported here: if an input is a tensor, torch is already imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.device import Array, Port
from cuvil_hw.contract.imported import is_instance
from cuvil_hw.errors import InputError

_TooHard = getattr(np, "exceptions", np).TooHardError  # NumPy 1.25 gave errors a module of their own


def bind(ports: Sequence[Port], args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """One value per port, bound as Python binds arguments: by position, then by name. A single mapping also gives
    values by name (for names that are no Python identifiers). Raises InputError that names the port."""
    names = [p.name for p in ports]
    first = args[0] if len(args) == 1 else None
    if isinstance(first, Mapping):
        if named:
            raise InputError(f"give inputs as one mapping or by name, not both; the inputs are: {', '.join(names)}")
        args, named = (), first
    if len(args) > len(ports):
        raise InputError(f"{len(args)} inputs given, the program has {len(ports)}: {', '.join(names)}")
    bound = dict(zip(names, args, strict=False))
    for name, value in named.items():
        if name not in names:
            raise InputError(f"there is no input {name!r}; the inputs are: {', '.join(names)}")
        if name in bound:
            raise InputError(f"input {name!r} is given by position and by name; give it once")
        bound[name] = value
    missing = [name for name in names if name not in bound]
    if missing:
        raise InputError(f"input {missing[0]!r} is missing; the inputs are: {', '.join(names)}")
    return [bound[name] for name in names]


def is_tensor(value: Any) -> bool:
    return is_instance(value, "torch", "Tensor")


def to_tensor(array: Array, dtype: str) -> Any:
    """A torch tensor on the CPU that shares the memory of `array`, an array of `dtype` in any form."""
    torch = sys.modules["torch"]
    if dtype == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_caller(array: Array) -> Array:
    """An output as callers without torch get it: bf16 as ml_dtypes.bfloat16 if that package is installed, else its bits
    as uint16."""
    if array.dtype != dtypes.BF16:
        return array
    try:
        import ml_dtypes
    except ImportError:
        return array.view(np.uint16)
    return array.view(ml_dtypes.bfloat16)


def as_array(value: Any, port: Port) -> Array:
    """`value` in the container of the port's dtype; any shape, strides and byte order. Raises InputError.

    Allowed: the same dtype; one whose values the port's dtype can all hold; f64 → f32 (rounds; a finite value must stay
    finite); Python numbers if each value is exact in the port's dtype.

    Integer arrays aren't accepted for float ports (PyTorch's layers refuse them too): pixels of 0 to 255 for a model
    that expects 0 to 1 would give wrong results without an error. A uint16 array is accepted as the bits of bf16, which
    NumPy lacks. A tensor that requires grad is detached: no gradient flows through a device.
    """
    at = f"input {port.name!r}"
    if is_tensor(value):
        array, python = _from_tensor(value, at), False
    else:
        if isinstance(value, np.ma.MaskedArray):
            raise InputError(f"{at}: is a masked array; fill it first (array.filled(value))")
        shared = not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__dlpack__")
        python = not isinstance(value, np.ndarray | np.generic) and not shared
        try:
            array = np.from_dlpack(value) if shared else np.asarray(value)
        except (ValueError, TypeError, RuntimeError, BufferError) as e:
            raise InputError(f"{at}: can't be made an array: {e}") from e
    if array.dtype.name == "bfloat16" or (port.dtype == "bf16" and array.dtype.name == "uint16" and not python):
        array = array.astype(array.dtype.newbyteorder("="), copy=False).view(dtypes.BF16)
    if array.dtype == dtypes.BF16:
        if port.dtype == "bf16":
            return array
        array = dtypes.numbers(array)
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and array.dtype.itemsize > 8):
        raise InputError(f"{at}: has dtype {array.dtype}, expected {port.dtype}")
    return _in_range(_convert(array, port, python, at), port, at)


def _from_tensor(value: Any, at: str) -> Array:
    torch = sys.modules["torch"]
    tensor = value.detach()
    try:
        if tensor.dtype == torch.bfloat16:
            bits: Array = tensor.cpu().view(torch.int16).numpy()
            return bits.view(dtypes.BF16)
        array: Array = tensor.resolve_conj().resolve_neg().cpu().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as e:
        kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise InputError(f"{at}: this tensor ({kind}) can't be read as an array: {e}") from e
    return array


def _convert(array: Array, port: Port, python: bool, at: str) -> Array:
    wanted = dtypes.to_numpy(port.dtype)
    if port.dtype == "bf16":
        return _to_bf16(array, python, at)
    counts = wanted.kind == "f" and array.dtype.kind in "biu"
    if counts and not python:
        given = dtypes.from_numpy(array.dtype.newbyteorder("="))
        raise InputError(
            f"{at}: has dtype {given}, expected {port.dtype}; convert and scale it as in training, e.g. "
            f"x.astype(numpy.{wanted})"
        )
    if array.dtype.newbyteorder("=") == wanted or (not counts and np.can_cast(array.dtype, wanted, "safe")):
        return array.astype(wanted, copy=False)
    rounds = array.dtype.itemsize == 8 and array.dtype.kind == "f" and port.dtype == "f32"
    numbers = python and (not array.size or array.dtype.kind != "f" or wanted.kind == "f")
    if not rounds and not numbers:
        given = dtypes.from_numpy(array.dtype.newbyteorder("="))
        raise InputError(
            f"{at}: has dtype {given}, expected {port.dtype}, which can't hold all its values; convert it yourself, "
            f"e.g. x.astype(numpy.{wanted})"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(wanted)
        back = result.astype(array.dtype)
    if rounds:
        if (np.isinf(result) & np.isfinite(array)).any():
            raise InputError(f"{at}: holds values beyond the range of {port.dtype}")
    elif not ((back == array) & ((result < 0) == (array < 0))).all():
        raise InputError(f"{at}: holds numbers that {port.dtype} can't represent exactly")
    return result


def _to_bf16(array: Array, python: bool, at: str) -> Array:
    """Python numbers as bf16; each must be exact."""
    result = dtypes.convert(array, "bf16")
    if not python:
        raise InputError(
            f"{at}: has dtype {array.dtype}, expected bf16; give a torch.bfloat16 tensor, an array of "
            "ml_dtypes.bfloat16, or its bits as uint16"
        )
    if not np.array_equal(dtypes.numbers(result), array):
        raise InputError(f"{at}: holds numbers that bf16 can't represent exactly")
    return result


def _in_range(array: Array, port: Port, at: str) -> Array:
    width = dtypes.int_width(port.dtype)
    if width is not None and array.size and width[1] < array.dtype.itemsize * 8:
        lo, hi = dtypes.int_range(port.dtype)
        low, high = int(array.min()), int(array.max())
        if low < lo or high > hi:
            raise InputError(f"{at}: holds {low if low < lo else high}, outside {port.dtype} [{lo}, {hi}]")
    return array


def check_writable(value: Any, array: Array, name: str) -> None:
    """Raises InputError unless what the model writes into this input can be written back; `array` is `value`
    converted."""
    what = ""
    if is_tensor(value):
        strides, shape, dtype = value.stride(), value.shape, str(value.dtype).removeprefix("torch.")
    elif isinstance(value, np.ndarray):
        strides, shape, dtype = value.strides, value.shape, value.dtype.newbyteorder("=").name
        if array.dtype == dtypes.BF16 and dtype == "uint16":
            dtype = "bfloat16"  # given by its bits
        what = "" if value.flags.writeable else "a read-only array"
    else:
        raise InputError(f"input {name!r}: the model writes into it, and a {type(value).__name__} can't be written to")
    if any(step == 0 and extent > 1 for step, extent in zip(strides, shape, strict=True)):
        what = "expanded (several of its elements share memory)"
    elif dtype != (held := "bfloat16" if array.dtype == dtypes.BF16 else array.dtype.name):
        what = f"{dtype}, not {held}"
    if what:
        raise InputError(f"input {name!r}: the model writes into it, but it is {what}; give a copy")


def check_apart(values: Mapping[str, Any], name: str) -> None:
    """Raises InputError when the input `name`, which the model writes into, shares memory with another input. In
    PyTorch the other one would change during the call; here each keeps the value that was passed."""
    memory = _memory(values[name])
    for other, value in values.items():
        if other != name and _overlap(memory, _memory(value)):
            raise InputError(
                f"input {name!r}: the model writes into it, and input {other!r} has the same memory; give a copy of one"
            )


def _memory(value: Any) -> Array | None:
    if is_tensor(value):
        return _from_tensor(value, "")
    return value if isinstance(value, np.ndarray) else None


def _overlap(a: Array | None, b: Array | None) -> bool:
    if a is None or b is None:
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]
    except _TooHard:
        return True


def write_back(value: Any, stack: Array) -> None:
    """Copy `stack` (N, *shape) into the caller's tensor or array."""
    if is_tensor(value):
        dtype = dtypes.from_numpy(stack.dtype)
        value.detach().copy_(to_tensor(np.ascontiguousarray(stack), dtype).reshape(value.shape))
    else:
        target = value.view(dtypes.BF16) if stack.dtype == dtypes.BF16 else value
        target[...] = stack.reshape(value.shape)
