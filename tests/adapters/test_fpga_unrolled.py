"""Layers that are unrolled as a whole: a sample a cycle, in the report, by the simulated sources, and in their text."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw.runtime.executable import Executable
from tests.support.hls_count import count

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++", "torch", "ortools")]

JETS = (16, 64, 32, 32, 5)


def jets(target: str) -> Executable:
    """The MLP of hls4ml's jet tagging, ap_fixed<16,6>, with random weights."""
    import torch

    torch.manual_seed(1)
    layers = [layer for a, b in pairwise(JETS) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers[:-1]).eval()
    return cuvil.compile(model, target, example_inputs=torch.zeros(1, 16), precision="fixed<16,6>")


@cache
def unrolled() -> Executable:
    return jets("u250")


def text_of(program: Executable) -> tuple[str, str]:
    files = {n.rpartition("/")[2]: t.decode() for n, t in program.artifact.files.items() if "/src/" in n}
    (source,) = (t for n, t in files.items() if n.endswith(".cpp"))
    return source, files["tables.h"]


def test_jets_are_tagged_at_one_a_cycle() -> None:
    program = unrolled()
    found: Any = program.report["timing"]
    assert (found["interval"], found["formula"]) == (1, 1)
    assert program.timing().cycles == 1
    x = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32) * 8
    np.testing.assert_array_equal(np.asarray(program(x)), np.asarray(jets("x86_64-linux-gnu")(x)))


def test_a_process_of_one_step_is_a_pipeline_itself() -> None:
    """Tools drop a loop of one step, with the interval that it asks for."""
    source, tables = text_of(unrolled())
    functions = count(source, tables)
    layers = [n for n in functions if n.startswith("linear_")]
    assert len(layers) == len(JETS) - 1
    for name, (a, b) in zip(layers, pairwise(JETS), strict=True):
        body = source.split(f"static void {name}(", 1)[1].split("\n}\n", 1)[0]
        assert body.count("\n  #pragma HLS pipeline II=1\n") == 1
        assert len(re.findall(r"#pragma HLS unroll", body)) == len(re.findall(r"\bfor \(", body))
        assert len(body.splitlines()) < 120
        assert sum(m.count for m in functions[name].multipliers) == a * b
    assert "axis_word_to_stream<512, ap_int<16>, 16>" in source
    assert "stream_to_axis_word<512, ap_int<16>, 5>" in source
