"""What the solver chose stands in the emitted sources: multipliers, memories, widths, counted from the text alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import cuvil
from cuvil_hw.adapters.streaming.analysis.cost import block_rams, multiplier_blocks
from cuvil_hw.adapters.zynq.fabric import FABRICS
from tests.support.hls_count import Counted, count

pytestmark = [pytest.mark.must_run, pytest.mark.needs("ortools", "onnx")]

MODELS = ["kws_ref_model", "tfc_2w2a_qonnx", pytest.param("ic_resnet", marks=pytest.mark.slow)]
BOARDS = {"pynq-z2": FABRICS["dsp48e1"], "zcu104": FABRICS["dsp48e2"]}


@cache
def compiled(path: Path, target: str) -> tuple[dict[str, object], dict[str, Counted]]:
    """The report's layers by name, and what each function of the source asks for."""
    program = cuvil.compile(path, target)
    text = {name.rpartition("/")[2]: data.decode() for name, data in program.artifact.files.items() if "/src/" in name}
    (source,) = (t for name, t in text.items() if name.endswith(".cpp"))
    return {layer["name"]: layer for layer in program.report["layers"]}, count(source, text["tables.h"])


def top(functions: dict[str, Counted]) -> Counted:
    """The function that joins the others."""
    (found,) = (f for f in functions.values() if f.fifos)
    return found


@pytest.mark.parametrize("target", BOARDS)
@pytest.mark.parametrize("model", MODELS)
def test_the_source_asks_for_what_the_report_says(models: Path, model: str, target: str) -> None:
    layers, functions = compiled(models / f"{model}.onnx", target)
    fabric = BOARDS[target]
    assert set(layers) < set(functions)
    for name, layer in layers.items():
        names = [n for n in (f"{name}_window", name, f"{name}_epilogue") if n in functions]
        parts = [functions[n] for n in names]
        multipliers = [m for p in parts for m in p.multipliers]
        memories = [m for p in parts for m in p.memories]
        # What waits for a layer, or between its processes, is priced with it, as long as it may become.
        read = {top(functions).calls[n][0] for n in names}
        waiting = [f for f in top(functions).fifos if f.name in read]
        assert not [line for p in parts for line in p.loose], name
        blocks = sum(m.count * multiplier_blocks(fabric, m.a, m.b) for m in multipliers if m.impl == "dsp")
        assert blocks == layer["use"]["dsp"], name  # type: ignore[index]
        rams = sum(m.count * block_rams(fabric, m.words, m.bits) for m in memories if m.impl == "bram")
        rams += sum(block_rams(fabric, f.words, f.bits) for f in waiting if f.impl == "bram")
        assert rams <= layer["use"]["bram18"], name  # type: ignore[index]
        assert waiting or rams == layer["use"]["bram18"], name  # type: ignore[index]
        assert {m.impl for m in memories} <= {"bram", "lutram", "uram"}, name


@pytest.mark.parametrize("target", BOARDS)
def test_every_fifo_says_what_it_is_made_of(models: Path, target: str) -> None:
    _, functions = compiled(models / "kws_ref_model.onnx", target)
    fifos = top(functions).fifos
    assert any(f.words > 2 for f in fifos)
    for f in fifos:
        wanted = "" if f.words <= 2 else "srl" if f.words <= 32 or f.words * f.bits <= 1024 else "bram"
        assert f.impl == wanted, f.name


def test_two_bit_weights_take_two_bits(models: Path) -> None:
    layers, functions = compiled(models / "tfc_2w2a_qonnx.onnx", "pynq-z2")
    weights = [
        m
        for f in functions.values()
        for m in f.memories
        if m.name.rpartition("_")[0].endswith("_c") or m.name.endswith("_c")
    ]
    bits = sum(m.words * m.bits for m in weights)
    assert bits == 2 * (784 * 64 + 2 * 64 * 64 + 64 * 10)
    assert len(layers) >= 4
