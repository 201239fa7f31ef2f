"""Drives this project's bitstream on a Zynq board, with NumPy and pynq only.

    from driver import Design, golden
    design = Design("shell.bit")        # shell.hwh lies beside it
    outputs = design(*golden().inputs)  # one array (N, *shape) a port, N samples in one transfer

The arrays are those of the hardware, integers for most designs, as ports.json says. What a model does before and after
(quantizing, say), and a watch for stalls, are in the whole program: cuvil.load("model.cuvil", interface="hw").
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import time
import warnings
import weakref
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

HERE = Path(__file__).resolve().parent
CLOCK_TOLERANCE = 0.01
# Control registers of an AXI DMA's channels, and the bit that resets the DMA (PG021).
CONTROL = {"in": 0x00, "out": 0x30}
RESET = 0x4


class Port(NamedTuple):
    """One AXI4-Stream port. `shape`: of a sample; `order`: its dimension that each streamed one is; `container`: NumPy
    dtype of an element; `dma`: instance that serves it; `row`: bytes of a sample on the stream, in whole words;
    `tolerance`: by which floats may differ from the golden ones, 0 for integers."""

    name: str
    direction: str
    shape: tuple
    order: tuple
    container: str
    dma: str
    row: int
    tolerance: float

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

    def agrees(self, got: np.ndarray, want: np.ndarray) -> bool:
        """Whether an array is as the golden one, by the testbench's measure."""
        if want.dtype.kind != "f":
            return bool(np.array_equal(got, want))
        with np.errstate(invalid="ignore"):  # infinity less itself
            near = np.abs(got - want) <= self.tolerance
        return bool(np.all(near | (got == want) | (np.isnan(got) & np.isnan(want))))


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
    width = min(json.loads((HERE / "ports.json").read_text())["bits"], 64) // 8
    for k, port in enumerate(every):
        rows = [b"".join(int(w, 16).to_bytes(width, "little") for w in line.split()) for line in lines[k :: len(every)]]
        raw = np.frombuffer(b"".join(rows), np.uint8).reshape(int(count), port.row)
        (found.inputs if port.direction == "in" else found.outputs).append(port.unpack(raw))
    return found


def for_pynq(hardware: bytes, clock_hz: float) -> bytes:
    """Vivado's .hwh with what pynq needs: DMA parameters in lower case (else channels are silently missing), and on a
    Zynq-7000 the frequencies of the fabric clocks under the name that pynq 4 looks up on every device."""
    root = ElementTree.fromstring(hardware)
    for module in root.iter("MODULE"):
        parameters = module.find("PARAMETERS")
        if parameters is None:
            continue
        if module.get("MODTYPE") == "axi_dma":
            for p in parameters.iter("PARAMETER"):
                if p.get("NAME", "").startswith("C_"):
                    p.set("NAME", p.attrib["NAME"].lower())
        if module.get("MODTYPE") == "processing_system7":
            have = {p.get("NAME", ""): p.get("VALUE", "") for p in parameters.iter("PARAMETER")}
            for n in range(4):
                key = f"PSU__CRL_APB__PL{n}_REF_CTRL__ACT_FREQMHZ"
                if key not in have:
                    mhz = have.get(f"PCW_ACT_FPGA{n}_PERIPHERAL_FREQMHZ", f"{clock_hz / 1e6:g}")
                    ElementTree.SubElement(parameters, "PARAMETER", {"NAME": key, "VALUE": mhz})
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def built_clock(hardware: bytes, names: set) -> tuple:
    """(n, MHz): the fabric clock of the core with streams of these names, and what the bitstream was built for.
    (0, 0.0) where the .hwh doesn't say, as of a clock that isn't the processor's."""
    for module in ElementTree.fromstring(hardware).iter("MODULE"):
        # Names that Verilog reserves get "_r" from Vitis HLS.
        streams = {b.get("NAME", "").lower() for b in module.iter("BUSINTERFACE")}
        if module.get("MODTYPE") != "axi_dma" and all({n.lower(), f"{n.lower()}_r"} & streams for n in names):
            for port in module.iter("PORT"):
                source = re.search(r"_(?:FCLK_CLK|pl_clk)([0-3])$", port.get("SIGNAME", ""))
                if port.get("NAME") == "ap_clk" and source:
                    return int(source[1]), float(port.get("CLKFREQUENCY", 0)) / 1e6
    return 0, 0.0


class Design:
    """The design on the fabric, at the clock that it was built for. `seconds`: of the last call's transfers.

    Raises RuntimeError when the board can't be set to that clock and would run faster: results could be wrong."""

    def __init__(self, bit: str) -> None:
        import pynq
        from pynq.lib import dma  # noqa: F401  (binds pynq's driver to the DMAs)

        self.pynq, self.ports, self.seconds = pynq, ports(), 0.0
        planned = float(json.loads((HERE / "ports.json").read_text())["clock_hz"])
        content, hardware = Path(bit).read_bytes(), Path(bit).with_suffix(".hwh").read_bytes()
        folder = tempfile.mkdtemp(prefix="cuvil-bit-")
        weakref.finalize(self, shutil.rmtree, folder, True)
        # pynq and the firmware loader remember designs by file name: this one no other content has.
        path = Path(folder) / f"cuvil-{hashlib.sha256(content + hardware).hexdigest()[:32]}.bit"
        path.write_bytes(content)
        path.with_suffix(".hwh").write_bytes(for_pynq(hardware, planned))
        self.overlay = pynq.Overlay(str(path))
        self._set_clock(*built_clock(hardware, {p.name for p in self.ports}), planned / 1e6)

    def _set_clock(self, number: int, built: float, planned: float) -> None:
        if not built:
            return
        clocks, name = self.pynq.Clocks, f"fclk{number}_mhz"
        if abs(getattr(clocks, name) / built - 1) > CLOCK_TOLERANCE:
            setattr(clocks, name, built)
        runs = float(getattr(clocks, name))
        if runs > built * (1 + CLOCK_TOLERANCE):
            raise RuntimeError(
                f"fabric clock {number} runs at {runs:g} MHz and can't be set to the {built:g} MHz that the bitstream "
                "was built for, so that results could be wrong; build it for a clock that the board has"
            )
        if abs(runs / planned - 1) > CLOCK_TOLERANCE:
            warnings.warn(f"the fabric runs at {runs:g} MHz where the design is for {planned:g}", stacklevel=3)

    def __call__(self, *inputs: np.ndarray, timeout: float = 10.0) -> list:
        """Outputs (N, *shape) for inputs (N, *shape). Raises TimeoutError when they don't come."""
        buffers = []
        try:
            for port in self.ports:
                buffers.append(self.pynq.allocate((len(inputs[0]), port.row), np.uint8))
            return self._transfer(inputs, buffers, timeout)
        finally:
            for buffer in buffers:
                buffer.freebuffer()

    def _transfer(self, inputs: tuple, buffers: list, timeout: float) -> list:
        given = iter(inputs)
        for port, buffer in zip(self.ports, buffers, strict=True):
            buffer[:] = 0
            if port.direction == "in":
                port.pack(next(given), buffer)
            buffer.flush()
        channels = []
        start = time.perf_counter()
        try:
            for port, buffer in reversed(list(zip(self.ports, buffers, strict=True))):  # outputs first: to be ready
                dma = getattr(self.overlay, port.dma)
                channels.append(dma.sendchannel if port.direction == "in" else dma.recvchannel)
                channels[-1].transfer(buffer)
            while not all(c.idle for c in channels):
                if time.perf_counter() - start > timeout:
                    raise TimeoutError(f"the design stands still after {timeout:g} s; program it again (a new Design)")
        except BaseException:
            self._reset()  # else a DMA could still write into memory that is somebody else's by then
            raise
        self.seconds = time.perf_counter() - start
        outputs = []
        for port, buffer in zip(self.ports, buffers, strict=True):
            if port.direction == "out":
                buffer.invalidate()
                outputs.append(port.unpack(np.asarray(buffer)))
        return outputs

    def _reset(self) -> None:
        for port in self.ports:
            dma = getattr(self.overlay, port.dma)
            dma.write(CONTROL[port.direction], RESET)
            for _ in range(1000):  # it clears the bit when what it had begun with memory has ended
                if not dma.read(CONTROL[port.direction]) & RESET:
                    break
