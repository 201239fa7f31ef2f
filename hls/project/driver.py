"""Drives this project's bitstream on a Zynq board, with NumPy and pynq only.

    from driver import Design, golden
    design = Design("shell.bit")        # shell.hwh lies beside it
    outputs = design(*golden().inputs)  # one array (N, *shape) a port, N samples in one transfer

The arrays are those of the hardware, integers for most designs, as ports.json says. What a model does before and after
(quantizing, say), and a watch for stalls, are in the whole program: cuvil.load("model.cuvil", interface="hw").
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent


class Port(NamedTuple):
    """One AXI4-Stream port. `shape`: of a sample; `order`: its dimension that each streamed one is; `container`: NumPy
    dtype of an element; `dma`: instance that serves it; `row`: bytes of a sample on the stream, in whole words."""

    name: str
    direction: str
    shape: tuple
    order: tuple
    container: str
    dma: str
    row: int

    def pack(self, array: np.ndarray, rows: np.ndarray) -> None:
        """Samples (N, *shape) into N rows of bytes."""
        streamed = np.ascontiguousarray(array.transpose(0, *(d + 1 for d in self.order)), np.dtype(self.container))
        raw = streamed.reshape(len(array), -1).view(np.uint8)
        rows[:, : raw.shape[1]] = raw

    def unpack(self, rows: np.ndarray) -> np.ndarray:
        """The reverse."""
        kind = np.dtype(self.container)
        size = int(np.prod(self.shape)) * kind.itemsize
        raw = np.array(rows[:, :size], np.uint8).view(kind).reshape(len(rows), *(self.shape[d] for d in self.order))
        return np.ascontiguousarray(raw.transpose(0, *(int(d) + 1 for d in np.argsort(self.order))))


class Golden(NamedTuple):
    """Arrays (N, *shape), one a port."""

    inputs: list
    outputs: list


def ports() -> list:
    """All ports, inputs first."""
    table = json.loads((HERE / "ports.json").read_text())
    return [Port(**{**p, "shape": tuple(p["shape"]), "order": tuple(p["order"])}) for p in table["ports"]]


def golden() -> Golden:
    """The golden vectors of the testbench: what the model means, computed in NumPy."""
    count, *lines = (HERE / "tb" / "golden.txt").read_text().splitlines()
    found = Golden([], [])
    every = ports()
    width = json.loads((HERE / "ports.json").read_text())["bits"] // 8
    for k, port in enumerate(every):
        rows = [b"".join(int(w, 16).to_bytes(width, "little") for w in line.split()) for line in lines[k :: len(every)]]
        raw = np.frombuffer(b"".join(rows), np.uint8).reshape(int(count), port.row)
        (found.inputs if port.direction == "in" else found.outputs).append(port.unpack(raw))
    return found


class Design:
    """The design on the fabric. `seconds`: of the last call's transfers."""

    def __init__(self, bit: str) -> None:
        import pynq
        from pynq.lib import dma  # noqa: F401  (binds pynq's driver to the DMAs)

        self.pynq, self.ports, self.seconds = pynq, ports(), 0.0
        self.overlay = pynq.Overlay(str(bit))

    def __call__(self, *inputs: np.ndarray, timeout: float = 10.0) -> list:
        """Outputs (N, *shape) for inputs (N, *shape). Raises TimeoutError when they don't come."""
        samples = len(inputs[0])
        buffers = [self.pynq.allocate((samples, p.row), np.uint8) for p in self.ports]
        given = iter(inputs)
        for port, buffer in zip(self.ports, buffers, strict=True):
            buffer[:] = 0
            if port.direction == "in":
                port.pack(next(given), buffer)
            buffer.flush()
        channels = []
        start = time.perf_counter()
        for port, buffer in reversed(list(zip(self.ports, buffers, strict=True))):  # outputs first: they must be ready
            dma = getattr(self.overlay, port.dma)
            channels.append(dma.sendchannel if port.direction == "in" else dma.recvchannel)
            channels[-1].transfer(buffer)
        while not all(c.idle for c in channels):
            if time.perf_counter() - start > timeout:
                raise TimeoutError(f"the design stands still after {timeout:g} s; program it again (a new Design)")
        self.seconds = time.perf_counter() - start
        outputs = []
        for port, buffer in zip(self.ports, buffers, strict=True):
            if port.direction == "out":
                buffer.invalidate()
                outputs.append(port.unpack(np.asarray(buffer)))
        for buffer in buffers:
            buffer.freebuffer()
        return outputs
