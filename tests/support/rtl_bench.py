"""Modules of rtl/ in Verilator: many instances side by side in one design, words as Python integers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cuvil_hw.adapters.streaming.verilated.build import Module, Wires, build, library_files
from cuvil_hw.adapters.streaming.verilated.model import Model


@dataclass(frozen=True)
class Instance:
    """A module with its parameters. `inputs`, `outputs`: bits of its valid-ready ports by name; `joined`: connections
    as SystemVerilog, {n} is the number of the instance, beside those by the ports' names or (`named` false) instead."""

    module: str
    parameters: Mapping[str, int | str]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    joined: str = ""
    named: bool = True


def together(instances: Sequence[Instance], more: Mapping[str, str] | None = None) -> Module:
    """One design with all of them. `more`: further files."""
    ports, body = ["input logic clk", "input logic rst"], []
    ins: list[Wires] = []
    outs: list[Wires] = []
    for n, instance in enumerate(instances):
        wires = [".clk(clk)", ".rst(rst)"]
        for given, names, wire in ((True, instance.inputs, ins), (False, instance.outputs, outs)):
            there, back = ("input", "output") if given else ("output", "input")
            for name, bits in names.items():
                full = f"{name}{n}"
                ports += [f"{there} logic [{bits - 1}:0] {full}_data", f"{there} logic {full}_valid"]
                ports.append(f"{back} logic {full}_ready")
                wire.append(Wires.plain(full, bits))
                if instance.named:
                    wires += [f".{name}_{s}({full}_{s})" for s in ("data", "valid", "ready")]
        if instance.joined:
            wires.append(instance.joined.replace("{n}", str(n)))
        values = ", ".join(f".{k}({_value(v)})" for k, v in instance.parameters.items())
        body.append(f"    {instance.module} #({values}) dut{n} ({', '.join(wires)});")
    text = f"module together ({', '.join(ports)});\n" + "\n".join(body) + "\nendmodule\n"
    files = {**library_files(), "together.sv": text.encode(), **{k: v.encode() for k, v in (more or {}).items()}}
    return Module(files, "together", tuple(ins), tuple(outs), {}, ())  # FIFOs as they are synthesised


def _value(v: int | str) -> str:
    return f'"{v}"' if isinstance(v, str) else str(v)


class RtlBench:
    """`run` gives words to all inputs of all instances, and takes so many of all outputs."""

    def __init__(self, module: Module, roms: Path | None = None) -> None:
        self.module = module
        self.model = Model(build(module), module.top, roms)

    def run(
        self,
        given: Sequence[Sequence[int]],
        taken: Sequence[int],
        seed: int = 0,
        percent: int = 0,
        patience: int = 10_000,
    ) -> tuple[list[list[int]], int]:
        """Words of each output, and cycles, after a reset."""
        ins = [_bytes(words, w.bits) for words, w in zip(given, self.module.inputs, strict=True)]
        outs = [np.zeros((1, n, (w.bits + 7) // 8), np.uint8) for n, w in zip(taken, self.module.outputs, strict=True)]
        self.model.restart(seed, percent)
        cycles = self.model.run(ins, outs, 1, True, 10_000)
        return [[int.from_bytes(row.tobytes(), "little") for row in a[0]] for a in outs], cycles


def _bytes(words: Sequence[int], bits: int) -> np.ndarray:
    each = (bits + 7) // 8
    raw = b"".join(w.to_bytes(each, "little") for w in words)
    return np.frombuffer(raw, np.uint8).reshape(1, len(words), each)


def words(rng: random.Random, bits: int, count: int) -> list[int]:
    return [rng.getrandbits(bits) for _ in range(count)]


def packed(elements: Sequence[int], bits: int, lanes: int, count: int) -> list[int]:
    """Words of `lanes` elements, the first lowest, of tensors of `count` elements each; spare elements are zero."""
    found = []
    for start in range(0, len(elements), count):
        tensor = elements[start : start + count]
        for at in range(0, count, lanes):
            found.append(sum(e << (bits * n) for n, e in enumerate(tensor[at : at + lanes])))
    return found
