"""The Open Inference Protocol v2 as data, for both of its transports: tensors, what a request asks for, what it gets.

Names and forms of data types are those of the protocol (github.com/kserve/open-inference-protocol). Element types that
NumPy hasn't (i4, u2, …) are served as the type that holds them; a value out of range is refused by the program.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuvil_hw.contract.device import Port
from cuvil_hw.errors.quoting import visible
from cuvil_hw.serve.faults import RequestError, wrong
from cuvil_hw.serve.kinds import KINDS, kind_of
from cuvil_hw.serve.process import About
from cuvil_hw.serve.wire import Array
from cuvil_hw.version import VERSION

SERVER = "cuvil"
EXTENSIONS = ("binary_tensor_data", "model_repository")


@dataclass(frozen=True, slots=True)
class InferTensor:
    """An input tensor as a request has it."""

    name: str
    kind: str
    array: Array


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request. `outputs`: those wanted, by name, and whether as binary; None: all, as `binary` says."""

    model: str
    version: str
    inputs: Sequence[InferTensor]
    id: str = ""
    outputs: Mapping[str, bool] | None = None
    binary: bool = False


@dataclass(frozen=True, slots=True)
class InferResponse:
    asked: InferRequest
    version: str
    ports: Sequence[Port]
    arrays: Sequence[Array]

    def outputs(self) -> list[tuple[str, str, Array, bool]]:
        """Name, kind, values, whether as binary, of each output asked for. Raises RequestError for a name that the
        model doesn't have."""
        made = {p.name: (p, a) for p, a in zip(self.ports, self.arrays, strict=True)}
        wanted = self.asked.outputs if self.asked.outputs is not None else dict.fromkeys(made, self.asked.binary)
        for name in wanted:
            if name not in made:
                raise wrong(f"output {visible(name)!r}: the model has {', '.join(made)}")
        return [(n, kind_of(made[n][0]), made[n][1], binary) for n, binary in wanted.items()]


def shape_of(port: Port, about: About) -> list[int]:
    """-1: any number of samples."""
    return [-1, *port.shape[1:]] if about.batched else list(port.shape)


def metadata(name: str, versions: Sequence[int], about: About) -> dict[str, Any]:
    def tensors(ports: Sequence[Port]) -> list[dict[str, Any]]:
        return [{"name": p.name, "datatype": kind_of(p), "shape": shape_of(p, about)} for p in ports]

    return {
        "name": name,
        "versions": [str(v) for v in sorted(versions)],
        "platform": f"cuvil_{about.adapter}",
        "inputs": tensors(about.inputs),
        "outputs": tensors(about.outputs),
    }


def check_parameters(names: Iterable[str]) -> None:
    """Raises RequestError for a parameter of the protocol's extensions that would change the answer."""
    for name in names:
        if name.startswith("shared_memory") or name in ("classification", "sequence_id"):
            raise wrong(f"the parameter {name} isn't supported")


def check_token(token: str | None, given: bytes, how: str) -> None:
    """Raises RequestError unless `given` is what a client sends that has the token; `how`: to send it. None: no token
    is asked for."""
    if token is not None and not hmac.compare_digest(given, f"Bearer {token}".encode()):
        raise RequestError(401, f"the token is missing or wrong; send {how}")


def server_metadata() -> dict[str, Any]:
    return {"name": SERVER, "version": VERSION, "extensions": list(EXTENSIONS)}


def arrays_for(asked: InferRequest, about: About) -> tuple[list[Array], int]:
    """The inputs in the order of the ports, and the number of samples along their first dimension. Raises
    RequestError."""
    given = {g.name: g for g in asked.inputs}
    names = [p.name for p in about.inputs]
    if len(given) != len(asked.inputs) or set(given) != set(names):
        got = ", ".join(visible(g.name) for g in asked.inputs) or "none"
        raise wrong(f"inputs given: {got}; the model takes each of {', '.join(names)} once")
    arrays, samples = [], set()
    for port in about.inputs:
        kind, array = given[port.name].kind, given[port.name].array
        if kind != kind_of(port):
            raise wrong(f"input {port.name!r} is {visible(kind)}, the model takes {kind_of(port)}")
        fits = array.shape[1:] == port.shape[1:] and array.ndim > 0 if about.batched else array.shape == port.shape
        if not fits:
            raise wrong(f"input {port.name!r} has shape {list(array.shape)}, the model takes {shape_of(port, about)}")
        arrays.append(array)
        samples.add(len(array) if about.batched else 1)
    if len(samples) != 1 or 0 in samples:
        raise wrong(f"inputs have {sorted(samples)} samples; give equally many of each, and one at least")
    return arrays, samples.pop()


def shaped(name: str, kind: Any, shape: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type and shape that a request states for an input. Raises RequestError."""
    if not isinstance(name, str) or not isinstance(kind, str) or kind not in KINDS:
        raise wrong(f"input {name!r}: data type {kind!r} isn't one of {', '.join(KINDS)}")
    whole = isinstance(shape, list | tuple) and len(shape) <= 16 and all(type(n) is int and n >= 0 for n in shape)
    if not whole or math.prod(shape) * KINDS[kind].itemsize > 1 << 40:
        raise wrong(f"input {visible(name)!r}: its shape is no list of at most 16 extents")
    return KINDS[kind], tuple(shape)


def from_bytes(name: str, kind: Any, shape: Any, data: bytes | memoryview) -> InferTensor:
    """A tensor from its little-endian, row-major bytes. Raises RequestError."""
    dtype, extents = shaped(name, kind, shape)
    need = math.prod(extents) * dtype.itemsize
    if len(data) != need:
        raise wrong(f"input {visible(name)!r}: {len(data)} bytes for {kind} {list(extents)}, which takes {need}")
    array = np.frombuffer(data, dtype).reshape(extents) if need else np.empty(extents, dtype)
    if kind == "BOOL" and array.view(np.uint8).max(initial=0) > 1:
        raise wrong(f"input {visible(name)!r}: a BOOL is a byte of 0 or 1")
    return InferTensor(name, kind, array)


def from_numbers(name: str, kind: Any, shape: Any, data: Any) -> InferTensor:
    """A tensor from numbers, nested or flat. Raises RequestError."""
    dtype, extents = shaped(name, kind, shape)
    if kind == "BF16":
        raise wrong(f"input {visible(name)!r}: BF16 goes as binary data only")
    try:
        array = np.asarray(data)
        if array.size == 0:
            array = np.empty(0, dtype)
        allowed = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]
        if array.dtype.kind not in allowed:
            raise ValueError(f"holds {array.dtype.name}")
        if dtype.kind in "iu" and array.size:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            if int(array.min()) < low or int(array.max()) > high:
                raise ValueError(f"holds values outside of {low} to {high}")
        with np.errstate(over="ignore"):  # beyond FP16 or FP32 is infinite there
            return InferTensor(name, kind, array.astype(dtype).reshape(extents))
    except (ValueError, TypeError, OverflowError) as e:
        raise wrong(f"input {visible(name)!r}: its data aren't {kind} {list(extents)}: {visible(str(e))}") from None


def to_bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@dataclass(slots=True)
class ByteBudget:
    """Bytes of requests and answers that are held at once."""

    most: int
    held: int = 0
    refused: int = field(default=0)

    def room(self, size: int) -> bool:
        """Whether so many more may be held; counts a refusal."""
        fits = self.held + size <= self.most
        self.refused += not fits
        return fits
