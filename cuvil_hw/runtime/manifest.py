"""The manifest of an artifact: what a program is, as frozen data, and its JSON form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from cuvil_hw import dtypes
from cuvil_hw.contract import canonical, signature
from cuvil_hw.contract.calling import PLAIN, Calling, Guard, KeptState, Range, Write
from cuvil_hw.contract.device import Port
from cuvil_hw.runtime.host import HostProgram, HostStep
from cuvil_hw.version import VERSION

FORMAT_VERSION = 1
FORMAT = f"cuvil-artifact/{FORMAT_VERSION}"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a program is and what it needs. All values are JSON values, or consist of them.

    Between the model's ports and the device's ports, the `prologue` and the `epilogue` run on the processor:
    prologue.inputs name the model's inputs and prologue.outputs the device's; epilogue.inputs name the device's outputs
    and epilogue.outputs the model's; each in the order of the ports.

    Attributes:
        model: the model's name.
        adapter, profile: the target; the profile as data.
        interface: the device that `load` opens by default ("hw", "sim", "null").
        inputs, outputs: ports of the model.
        device_inputs, device_outputs: ports of the device program.
        info: the build plan's own data.
        calling: which ports of the model are state, guards and inputs written back.
        abi: the host that can run the products itself ("machine", "system": names of the platform module).
    """

    model: str
    adapter: str
    profile: Mapping[str, Any]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    device_inputs: tuple[Port, ...]
    device_outputs: tuple[Port, ...]
    prologue: HostProgram
    epilogue: HostProgram
    interface: str = "hw"
    info: Mapping[str, Any] = field(default_factory=dict)
    abi: Mapping[str, str] = field(default_factory=dict)
    calling: Calling = PLAIN
    product_version: str = VERSION


@dataclass(frozen=True, slots=True)
class Member:
    """Size in bytes and SHA-256 (hex) of one file of the artifact."""

    size: int
    sha256: str


def to_json(manifest: Manifest, members: Mapping[str, Member]) -> bytes:
    """manifest.json: canonical JSON. Raises TypeError or ValueError when a value is no JSON value."""
    return canonical.dump(
        {
            "format": FORMAT,
            "product_version": manifest.product_version,
            "model": manifest.model,
            "adapter": manifest.adapter,
            "interface": manifest.interface,
            "profile": manifest.profile,
            "inputs": [_port_json(p) for p in manifest.inputs],
            "outputs": [_port_json(p) for p in manifest.outputs],
            "device_inputs": [_port_json(p) for p in manifest.device_inputs],
            "device_outputs": [_port_json(p) for p in manifest.device_outputs],
            "prologue": _program_json(manifest.prologue),
            "epilogue": _program_json(manifest.epilogue),
            "info": manifest.info,
            "abi": manifest.abi,
            "calling": calling_json(manifest.calling),
            "members": {name: {"size": m.size, "sha256": m.sha256} for name, m in members.items()},
        }
    )


def from_json(data: bytes) -> tuple[Manifest, dict[str, Member]]:
    """The inverse of `to_json`. Raises ValueError that names the key that is missing or wrong."""
    root = _Node(canonical.parse(data), "")
    if root.get("format", str) != FORMAT:
        raise ValueError(f"format is {root.get('format', str)!r}, expected {FORMAT!r}")
    written_by = root.get("product_version", str)
    if _release(written_by) > _release(VERSION):
        raise ValueError(f"written by cuvil-hw {written_by}, and this is {VERSION}: upgrade cuvil-hw")
    root.only(*(f.name for f in fields(Manifest)), "format", "members")
    members = {name: _member(node) for name, node in root.nodes("members").items()}
    manifest = Manifest(
        product_version=written_by,
        model=root.get("model", str),
        adapter=root.get("adapter", str),
        interface=root.get("interface", str),
        profile=root.get("profile", dict),
        inputs=root.each("inputs", _port),
        outputs=root.each("outputs", _port),
        device_inputs=root.each("device_inputs", _port),
        device_outputs=root.each("device_outputs", _port),
        prologue=_program(root.node("prologue")),
        epilogue=_program(root.node("epilogue")),
        info=root.get("info", dict),
        abi={key: node.typed(str) for key, node in root.nodes("abi").items()},
        calling=_calling(root.node("calling")),
    )
    return manifest, members


def _port_json(port: Port) -> dict[str, Any]:
    return {"name": port.name, "shape": list(port.shape), "dtype": port.dtype}


def _program_json(program: HostProgram) -> dict[str, Any]:
    steps = [{"op": s.op, "attrs": s.attrs, "inputs": s.inputs, "outputs": s.outputs} for s in program.steps]
    return {"steps": steps, "inputs": program.inputs, "outputs": program.outputs}


def calling_json(calling: Calling) -> dict[str, Any]:
    return {
        "states": [{"input": s.input, "output": s.output, "initial": s.initial} for s in calling.states],
        "guards": [{"output": g.output, "message": g.message} for g in calling.guards],
        "writes": [{"input": w.input, "output": w.output} for w in calling.writes],
        "ranges": [_range_json(r) for r in calling.ranges],
        "signature": None if calling.signature is None else signature.to_json(calling.signature),
    }


def _range_json(bounds: Range) -> dict[str, Any]:
    part = {"part": [list(line) for line in bounds.part]} if bounds.part else {}
    return {"input": bounds.input, "low": bounds.low, "high": bounds.high, **part}


@dataclass(frozen=True, slots=True)
class _Node:
    """A JSON value with its path, so that errors can name the place."""

    value: Any
    at: str

    def child(self, key: str) -> _Node:
        if not isinstance(self.value, dict):
            raise ValueError(f"{self.at or 'the top level'} must be an object")
        if key not in self.value:
            raise ValueError(f"{self.at}{key} is missing")
        return _Node(self.value[key], f"{self.at}{key}.")

    def only(self, *keys: str) -> None:
        """Raises ValueError for unknown keys: a newer version may give them a meaning."""
        unknown = sorted(set(self.typed(dict)) - set(keys))
        if unknown:
            raise ValueError(f"{self.at}{unknown[0][:80]} is unknown to cuvil-hw {VERSION}")

    def typed(self, kind: type[T]) -> T:
        if type(self.value) is not kind:
            at = self.at[:-1] or "the top level"
            raise ValueError(f"{at} must be {kind.__name__}, not {type(self.value).__name__}")
        value: T = self.value
        return value

    def get(self, key: str, kind: type[T]) -> T:
        return self.child(key).typed(kind)

    def count(self, key: str) -> int:
        value = self.get(key, int)
        if not 0 <= value < 1 << 62:
            raise ValueError(f"{self.at}{key} must lie in [0, 2^62), not {value}")
        return value

    def node(self, key: str) -> _Node:
        child = self.child(key)
        child.typed(dict)
        return child

    def nodes(self, key: str) -> dict[str, _Node]:
        return {name: _Node(v, f"{self.at}{key}.{name}.") for name, v in self.get(key, dict).items()}

    def each(self, key: str, read: Callable[[_Node], T]) -> tuple[T, ...]:
        items = self.get(key, list)
        return tuple(read(_Node(v, f"{self.at}{key}[{i}].")) for i, v in enumerate(items))


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, by which versions are ordered. Raises ValueError."""
    match = re.match(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}", version)
    if match is None:
        raise ValueError(f"product_version is {version[:80]!r}, no version")
    return tuple(map(int, match[0].split(".")))


def _member(node: _Node) -> Member:
    node.only("size", "sha256")
    return Member(node.count("size"), node.get("sha256", str))


def _name(node: _Node) -> str:
    return node.typed(str)


def _port(node: _Node) -> Port:
    node.only("name", "shape", "dtype")
    shape = node.get("shape", list)
    if not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
        raise ValueError(f"{node.at}shape must be a list of extents, not {shape}")
    dtype = node.get("dtype", str)
    dtypes.to_numpy(dtype)
    return Port(node.get("name", str), tuple(shape), dtype)


def _step(node: _Node) -> HostStep:
    node.only("op", "attrs", "inputs", "outputs")
    op, attrs = node.get("op", str), node.get("attrs", dict)
    return HostStep(op, attrs, node.each("inputs", _name), node.each("outputs", _name))


def _program(node: _Node) -> HostProgram:
    node.only("steps", "inputs", "outputs")
    return HostProgram(node.each("steps", _step), node.each("inputs", _name), node.each("outputs", _name))


def _range(node: _Node) -> Range:
    node.only("input", "low", "high", "part")
    part = node.each("part", _line) if "part" in node.value else ()
    return Range(node.get("input", str), node.get("low", int), node.get("high", int), part)


def _line(node: _Node) -> tuple[int, int, int]:
    values = node.typed(list)
    if len(values) != 3 or any(type(v) is not int or not 0 <= v < 1 << 40 for v in values):
        raise ValueError(f"{node.at[:-1]} must be a start, a count and a step")
    return values[0], values[1], values[2]


def _calling(node: _Node) -> Calling:
    node.only(*(f.name for f in fields(Calling) if f.name != "rebuild"))
    called = node.child("signature").value
    return Calling(
        node.each("states", lambda n: KeptState(n.get("input", str), n.get("output", str), n.get("initial", str))),
        node.each("guards", lambda n: Guard(n.get("output", str), n.get("message", str))),
        node.each("writes", lambda n: Write(n.get("input", str), n.get("output", str))),
        None if called is None else signature.from_json(called),
        ranges=node.each("ranges", _range)
        if "ranges" in node.value  # artifacts of earlier versions hold none
        else (),
    )
