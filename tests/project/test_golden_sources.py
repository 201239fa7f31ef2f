"""The text of one small program in each language, to be read: a change to it is seen as a diff of that language."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tools import replay

PROGRAM = "mlp-int8"
# C and BANG have their own, beside the tests of their targets. By golden file: target, generated file.
SOURCES = {
    "hls_mlp.cpp": ("pynq-z2", "src/mlp_int8.cpp"),
    "cuda_mlp.cu": ("h100", "model.cu"),
    "opencl_mlp.cl": ("agilex-agfb014", "src/mlp_int8.cl"),
    "sycl_mlp.cpp": ("agilex-agfb014", "src/mlp_int8.sycl.cpp"),
}


@pytest.fixture(scope="module")
def texts() -> Mapping[replay.Pair, replay.Texts]:
    targets = dict.fromkeys(target for target, _ in SOURCES.values())
    return replay.replay(replay.ROOT, [(PROGRAM, target) for target in targets]).texts


@pytest.mark.must_run
@pytest.mark.needs("ortools", "torch", "onnx")
@pytest.mark.parametrize("name", SOURCES)
def test_golden_text(name: str, texts: Mapping[replay.Pair, replay.Texts], golden: Callable[[str, str], None]) -> None:
    target, file = SOURCES[name]
    golden(name, texts[PROGRAM, target][f"sources/{file}"])
