"""The vendor's runtime libraries through ctypes: one code path for every table in abi.py. Standard library only."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuvil_hw.adapters.mlu.abi import Abi, ApiCall
from cuvil_hw.errors import DeviceError, ToolNotFound

KINDS: Mapping[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "size": ctypes.c_size_t,
    "ptr": ctypes.c_void_p,
    "text": ctypes.c_char_p,
}


class _Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32))


class Runtime:
    """The libraries of one generation, loaded. `folder`: where they lie; None: where the system or Neuware has them."""

    def __init__(self, abi: Abi, folder: Path | None = None) -> None:
        """Raises ToolNotFound when a library is missing, DeviceError when one lacks a function of the table."""
        self.abi = abi
        self._libraries = {key: _open(name, folder, abi) for key, name in abi.libraries.items()}
        calls = [c for steps in abi.operations.values() for c in steps] + list(abi.error.values())
        missing = sorted({c.symbol for c in calls if not hasattr(self._libraries[c.library], c.symbol)})
        if missing:
            raise DeviceError(
                f"{', '.join(abi.libraries.values())} here lack {', '.join(missing)}; they are not {abi.name}: "
                "install that generation of Neuware, or set `cnrt` in the profile to the one that is installed"
            )

    def has(self, operation: str) -> bool:
        return operation in self.abi.operations

    def do(self, operation: str, **values: Any) -> dict[str, Any]:
        """Make the calls of an operation (none, where the generation needs none); returns what they left, by name.
        Raises DeviceError with the library's own text for a status that isn't 0."""
        left: dict[str, Any] = dict(values)
        for call in self.abi.operations.get(operation, ()):
            left.update(self._call(call, left, operation))
        return left

    def _call(self, call: ApiCall, values: Mapping[str, Any], operation: str) -> dict[str, Any]:
        outs: dict[str, Any] = {}
        args: list[Any] = []
        for word in call.args:
            kind, name = word.split(" ")
            if kind == "out":
                outs[name] = ctypes.c_uint64(0)
                args.append(ctypes.byref(outs[name]))
                continue
            value = int(name) if name.isdigit() else values[name]
            if kind == "given":
                args.append(ctypes.byref(ctypes.c_uint64(value)))
            elif kind == "dim3":
                args.append(_Dim3(value, 1, 1))
            else:
                args.append(KINDS[kind](value or None if kind == "ptr" else value))
        function = getattr(self._libraries[call.library], call.symbol)
        function.restype = ctypes.c_int
        status = function(*args)
        if status != 0:
            raise DeviceError(f"{call.symbol} gave {status} ({operation}): {self._text(call.library, status)}")
        return {name: out.value for name, out in outs.items()}

    def _text(self, library: str, status: int) -> str:
        call = self.abi.error[library]
        function = getattr(self._libraries[call.library], call.symbol)
        if "out text" in call.args:
            text = ctypes.c_char_p()
            function.restype = ctypes.c_int
            function(ctypes.c_int32(status), ctypes.byref(text))
            return (text.value or b"").decode(errors="replace")
        function.restype = ctypes.c_char_p
        return (function(ctypes.c_int32(status)) or b"").decode(errors="replace")


class LoadedModule:
    """Kernels of one file, on the device."""

    def __init__(self, runtime: Runtime, path: Path, symbols: Sequence[str]) -> None:
        self._runtime = runtime
        self._module: int | None = None
        self._library: ctypes.CDLL | None = None
        if runtime.abi.host_kernels:
            self._library = ctypes.CDLL(str(path))
            self.kernels = {s: _address(self._library, s, path) for s in symbols}
        else:
            self._image = path.read_bytes()  # may be needed as long as the module is
            address = ctypes.cast(ctypes.c_char_p(self._image), ctypes.c_void_p).value
            self._module = runtime.do("load", image=address)["module"]
            self.kernels = {s: runtime.do("find", module=self._module, symbol=s.encode())["kernel"] for s in symbols}

    def launch(self, symbol: str, tasks: int, pointers: Sequence[int], queue: int) -> None:
        """Queue one kernel, whose arguments are all addresses on the device."""
        values = (ctypes.c_uint64 * max(len(pointers), 1))(*pointers)
        addresses = [ctypes.addressof(values) + 8 * n for n in range(len(pointers))]
        arguments = (ctypes.c_void_p * max(len(pointers), 1))(*addresses)
        run = self._runtime
        begun = run.do("begin")
        for value in pointers if run.has("argument") else ():
            run.do("argument", value=value, **begun)
        begun.update(kernel=self.kernels[symbol], tasks=tasks, queue=queue, arguments=ctypes.addressof(arguments))
        run.do("launch", **begun)
        run.do("end", **begun)

    def close(self) -> None:
        module, self._module = self._module, None
        if module is not None:
            self._runtime.do("unload", module=module)


def _open(name: str, folder: Path | None, abi: Abi) -> ctypes.CDLL:
    home = os.environ.get("NEUWARE_HOME")
    if folder is not None:
        places = [str(folder / name)]
    else:
        places = [*([str(Path(home) / "lib64" / name)] if home else []), name]
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError as e:
            problem = str(e)
    remedy = (
        "install Cambricon's Neuware and set NEUWARE_HOME to it, or put its libraries on the loader's path "
        f"({problem}); without a card use interface='sim'"
    )
    raise ToolNotFound(name, f"run on an MLU ({abi.name}: {', '.join(abi.libraries.values())})", remedy)


def _address(library: ctypes.CDLL, symbol: str, path: Path) -> int:
    try:
        return int(ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0)
    except AttributeError as e:
        raise DeviceError(f"{path.name} has no kernel {symbol}; compile the model again") from e
