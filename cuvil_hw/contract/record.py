"""What an adapter's plan tells its device: a dataclass, stored in the artifact as JSON and read back with every type
checked.

An artifact's digests guard against damage, but its manifest could still say anything. A device therefore trusts a
record only after two checks. `read` compares it with the program's ports and constants. `check_seal` finds the record's
digest in the generated code itself, so that nobody can change sizes on which the code relies.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, ClassVar, Protocol, TypeVar, get_args, get_origin, get_type_hints

from cuvil_hw import dtypes
from cuvil_hw.contract import canonical
from cuvil_hw.contract.device import Array, DeviceProgram, Port
from cuvil_hw.errors import ArtifactError

MOST = 1 << 48  # no size, offset or number in a record is larger, and none is below -1
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Record(Protocol):
    """Base: a frozen dataclass of integers, booleans, strings, tuples, mappings by name and other such dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def check(self, program: DeviceProgram) -> None:
        """Raises ValueError when the record doesn't fit the program's ports and constants."""


R = TypeVar("R", bound=Record)


def info_of(record: Record) -> dict[str, Any]:
    """The record as JSON values, for `BuildPlan.info`. It doesn't mention what a program may have several of and has
    none of: empty tuples that are their field's default."""
    optional = {f.name for f in dataclasses.fields(record) if f.default == ()}
    return {name: v for name, v in dataclasses.asdict(record).items() if v != () or name not in optional}


def read(kind: type[R], program: DeviceProgram) -> R:
    """The record of a program, checked against its ports and constants. Raises ArtifactError."""
    record = parse(kind, program.info, program.name)
    try:
        record.check(program)
    except ValueError as e:
        raise ArtifactError(_wrong(program.name, e)) from e
    return record


def parse(kind: type[R], info: Mapping[str, Any], program: str) -> R:
    """The record in a manifest's `info`. Raises ArtifactError that names what is missing, unknown or wrong."""
    try:
        record: R = _read(kind, info, "")
    except ValueError as e:
        raise ArtifactError(_wrong(program, e)) from e
    return record


def _wrong(program: str, why: ValueError) -> str:
    return f"{program}: its record for the device is wrong: {why}; compile the model again"


def seal(info: Mapping[str, Any], inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    """The digest (hex) of a record together with its ports; adapters write it into the code that they generate."""
    ports = [[[p.name, p.shape, p.dtype] for p in ends] for ends in (inputs, outputs)]
    return hashlib.sha256(canonical.dump({"info": info, "ports": ports})).hexdigest()


def check_seal(code: bytes, program: DeviceProgram) -> None:
    """Raises ArtifactError when the code wasn't generated together with the program's record."""
    if program.seal and program.seal.encode() not in code:
        raise ArtifactError(
            f"{program.name}: the artifact's record of ports, buffers and sizes is not the one that its code was "
            "generated with: the file was changed, or comes from another version; compile the model again"
        )


def identifier(text: str, what: str) -> None:
    """Raises ValueError for text that is no C identifier."""
    if not _IDENTIFIER.match(text):
        raise ValueError(f"{what} {text[:80]!r} is no identifier")


def port_bytes(port: Port) -> int:
    """Bytes of one sample."""
    return prod(port.shape) * dtypes.to_numpy(port.dtype).itemsize


def constant(program: DeviceProgram, digest: str, size: int) -> Array:
    """The constant with this digest. Raises ValueError if it is missing or hasn't `size` bytes."""
    array = program.constants.get(digest)
    if array is None:
        raise ValueError(f"constant {digest[:80]} is missing")
    if array.nbytes != size:
        raise ValueError(f"constant {digest} has {array.nbytes} bytes, not {size}")
    return array


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, value: Any, at: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        given = _typed(dict, value, at)
        fields = {f.name: f for f in dataclasses.fields(kind)}
        if unknown := sorted(set(given) - set(fields)):
            raise ValueError(f"{_under(at, unknown[0][:80])} is unknown")
        optional = {n for n, f in fields.items() if f.default is not dataclasses.MISSING}
        if missing := sorted(set(fields) - set(given) - optional):
            raise ValueError(f"{_under(at, missing[0])} is missing")
        hints = _hints(kind)
        return kind(**{name: _read(hints[name], v, _under(at, name)) for name, v in given.items()})
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        items = _typed(tuple if isinstance(value, tuple) else list, value, at)
        return tuple(_read(args[0], v, f"{at}[{n}]") for n, v in enumerate(items))
    if origin is not None:
        return {name: _read(args[1], v, _under(at, name[:80])) for name, v in _typed(dict, value, at).items()}
    _typed(kind, value, at)
    if kind is int and not -1 <= value <= MOST:
        raise ValueError(f"{at} is {value}, outside [-1, {MOST}]")
    return value


def _typed(kind: type[Any], value: Any, at: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{at or 'it'} must be {kind.__name__}, not {type(value).__name__}")
    return value


def _under(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
