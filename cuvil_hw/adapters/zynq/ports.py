"""How arrays cross a design's AXI4-Stream ports, and the digest that says which hardware a design needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.zynq.record import HLS, RTL, ZynqRecord, without_heading
from cuvil_hw.contract import canonical
from cuvil_hw.contract.device import Array
from cuvil_hw.contract.record import parse

# What of a project decides its hardware, by its flow: folder, and endings of names there.
_HARDWARE: dict[str, tuple[str, tuple[str, ...]]] = {HLS: ("src/", ("",)), RTL: ("rtl/", (".sv", ".v", ".hex"))}


@dataclass(frozen=True, slots=True)
class StreamPort:
    """One AXI4-Stream port. `direction`: "in" or "out" of the design; `order`: logical dimension of each streamed one;
    `bits`: of a stream word. A sample fills whole words, zero padded (cuvil_hls.h says how)."""

    name: str
    direction: str
    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    bits: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of one sample's array."""
        return prod(self.shape) * dtypes.to_numpy(self.dtype).itemsize

    @property
    def words(self) -> int:
        """Stream words of one sample."""
        return -(-self.payload_bytes // (self.bits // 8))

    @property
    def sample_bytes(self) -> int:
        """Bytes that one sample takes on the stream, padding included."""
        return self.words * (self.bits // 8)

    def pack(self, samples: Array, rows: Array) -> None:
        """Write N samples (N, *shape) into the first N rows of `rows` (uint8, at least payload_bytes wide). Bytes
        behind the payload keep what they hold."""
        ordered = np.ascontiguousarray(samples.transpose(0, *(d + 1 for d in self.order)))
        raw = ordered.astype(ordered.dtype.newbyteorder("<"), copy=False).view(np.uint8)
        rows[: len(samples), : self.payload_bytes] = raw.reshape(len(samples), -1)

    def unpack(self, rows: Array) -> Array:
        """The reverse: a fresh array (N, *shape) of the container dtype."""
        dtype = dtypes.to_numpy(self.dtype)
        raw = np.array(rows[:, : self.payload_bytes], np.uint8)
        streamed = raw.view(dtype.newbyteorder("<")).reshape(len(rows), *(self.shape[d] for d in self.order))
        logical = streamed.transpose(0, *(int(d) + 1 for d in np.argsort(self.order)))
        return np.array(logical, dtype, order="C")


def stream_ports(info: Mapping[str, Any]) -> tuple[tuple[StreamPort, ...], tuple[StreamPort, ...]]:
    """Inputs and outputs of a design, from its plan's info. Raises ArtifactError when that is malformed."""
    record = parse(ZynqRecord, info, "the design")
    inputs, outputs = (
        tuple(StreamPort(p.name, way, p.shape, p.dtype, p.order, record.axis_bits) for p in ports)
        for way, ports in (("in", record.inputs), ("out", record.outputs))
    )
    return inputs, outputs


def ends_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a block design must connect, streams or AXI masters, as bitstreams.add takes it. Raises ArtifactError."""
    if "masters" in info:
        return {"masters": tuple(info["masters"])}
    return {"ports": stream_ports(info)}


def design_digest(sources: Mapping[str, bytes], info: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over what decides the hardware: the sources of the design's flow (paths below src/ or rtl/) and the
    ports. Readme, golden vectors and scripts don't count, so that a bitstream outlives a change of theirs."""
    folder, ends = _HARDWARE[info.get("flow", HLS)]
    mine = {p: d for p, d in sources.items() if p.startswith(folder) and p.endswith(ends)}
    listing = {p: hashlib.sha256(without_heading(d)).hexdigest() for p, d in mine.items()}
    facts = {key: info[key] for key in ("top", "axis_bits", "masters", "inputs", "outputs") if key in info}
    return hashlib.sha256(canonical.dump({"sources": listing, **facts})).hexdigest()


def folder_digest(folder: Path, info: Mapping[str, Any]) -> str:
    """`design_digest` of a project's folder."""
    place = folder / _HARDWARE[info.get("flow", HLS)][0]
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}
    return design_digest(files, info)
