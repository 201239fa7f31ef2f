"""Trained models that packages carry, on this processor, against ONNX Runtime.

silero-vad: LSTM cells, If on the sampling rate and on shapes, a state that goes round. magika: file types from bytes.
rapidocr: convolutions, normalizations and attention at any height and width.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import cuvil
from tests.conformance import test_models, test_onnx_fraud, test_qonnx

pytestmark = [pytest.mark.slow, pytest.mark.must_run, pytest.mark.needs("cc")]

Array = np.ndarray
RATES = {16000: 576, 8000: 288}  # samples of a chunk, with those that repeat the end of the one before
CHUNKS = 50


def carried(package: str, path: str) -> Path:
    """A file of an installed package, which isn't imported."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / path


def session(path: Path) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def near(got: Array, want: Array) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def speech(rng: np.random.Generator, rate: int, chunks: int) -> Array:
    """(chunks, samples): noise, then a voice-like hum with harmonics that comes and goes, then silence."""
    size = RATES[rate]
    t = np.arange(chunks * size) / rate
    hum = sum(np.sin(2 * np.pi * 140 * k * t + k) / k for k in range(1, 12)) * (np.sin(2 * np.pi * 3 * t) > 0)
    loud = np.where(t < t[-1] / 5, 0, np.where(t < t[-1] * 4 / 5, 0.3, 0))
    noise = rng.standard_normal(len(t)) * np.where(t < t[-1] * 0.9, 0.02, 0)
    return (hum * loud + noise).reshape(chunks, size).astype(np.float32)


@pytest.mark.needs("silero_vad")
@pytest.mark.share(name=3)
@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("silero_vad", 16000),
        ("silero_vad", 8000),
        ("silero_vad_op18_ifless", 16000),
        ("silero_vad_op18_ifless", 8000),
        ("silero_vad_16k_op15", 16000),
        ("silero_vad_half", 16000),
        ("silero_vad_openvino_16k", 16000),
    ],
)
def test_silero_hears_the_same_over_many_chunks(name: str, rate: int) -> None:
    """Each side feeds its own state back, so that errors could add up."""
    path = carried("silero_vad", f"data/{name}.onnx")
    theirs = session(path)
    fixed: dict[str, Any] = {"sr": rate} if "sr" in [i.name for i in theirs.get_inputs()] else {}
    shapes = {"input": (1, RATES[rate]), "state": (2, 1, 128)}
    ours = cuvil.compile(path, "cpu", shapes=shapes, constants=fixed)
    wanted = {n: np.asarray(v, np.int64) for n, v in fixed.items()}
    state = expected = np.zeros((2, 1, 128), np.float32)
    heard = []
    with ours:
        assert {port.name for port in ours.inputs} == {"input", "state"}
        for chunk in speech(np.random.default_rng(rate), rate, CHUNKS):
            out, state = ours(input=chunk[None], state=state)
            want, expected = theirs.run(None, {"input": chunk[None], "state": expected, **wanted})
            near(out, want)
            near(state, expected)
            heard.append(float(want[0, 0]))
    assert max(heard) - min(heard) > 0.02, "the test signal must move the detector"


@pytest.mark.needs("silero_vad")
def test_silero_takes_whole_sequences() -> None:
    path = carried("silero_vad", "data/silero_vad_16k_sequence.onnx")
    chunks = speech(np.random.default_rng(0), 16000, 6)
    zero = np.zeros((1, 1, 128), np.float32)
    with cuvil.compile(path, "cpu", shapes={"input": chunks.shape}) as ours:
        for got, want in zip(ours(chunks, zero, zero), session(path).run(None, {"input": chunks, "h": zero, "c": zero}),
                             strict=True):  # fmt: skip
            near(got, want)


@pytest.mark.needs("silero_vad")
def test_a_rate_known_only_at_run_time_chooses_between_both_branches() -> None:
    path = carried("silero_vad", "data/silero_vad_op18_ifless.onnx")
    shapes: dict[str, Sequence[int]] = {"input": (1, 512), "state": (2, 1, 128), "sr": ()}
    theirs = session(path)
    inputs = {"input": speech(np.random.default_rng(1), 16000, 1)[:, :512], "state": np.ones((2, 1, 128), np.float32)}
    with cuvil.compile(path, "cpu", shapes=shapes) as ours:
        results = []
        for rate in (8000, 16000):
            inputs["sr"] = np.asarray(rate, np.int64)
            want = theirs.run(None, inputs)
            for got, expected in zip(ours(**inputs), want, strict=True):
                near(got, expected)
            results.append(want[0])
    assert np.abs(results[0] - results[1]).max() > 1e-4, "the branches must differ"


@pytest.mark.needs("silero_vad")
def test_a_branch_that_the_sizes_rule_out_says_how_to_decide() -> None:
    with pytest.raises(cuvil.Unsupported, match=r"known only at run time.*constants="):
        cuvil.compile(
            carried("silero_vad", "data/silero_vad.onnx"), "cpu", shapes={"input": (1, 576), "state": (2, 1, 128)}
        )


def ends_of(content: bytes) -> Array:
    """What magika looks at: the first and the last 1,024 bytes, with 256 where there are fewer."""
    first, last = (np.frombuffer(part, np.uint8) for part in (content[:1024], content[-1024:]))
    return np.concatenate([np.pad(first.astype(np.int32), (0, 1024 - len(first)), constant_values=256),
                           np.pad(last.astype(np.int32), (1024 - len(last), 0), constant_values=256)])  # fmt: skip


@pytest.mark.needs("magika")
def test_magika_tells_file_types() -> None:
    (path,) = carried("magika", "models").glob("*/model.onnx")
    root = Path(__file__).resolve().parents[2]
    files = ["README.md", "Makefile", "pyproject.toml", "LICENSE", "cuvil_hw/api.py", "hls/cuvil_hls.h"]
    contents = [(root / name).read_bytes() for name in files] + [b"", np.random.default_rng(0).bytes(5000)]
    batch = np.stack([ends_of(content) for content in contents])
    (want,) = session(path).run(None, {"bytes": batch})
    with cuvil.compile(path, "cpu", shapes={"bytes": batch.shape}) as ours:
        near(ours(batch), want)
    assert len(set(want.argmax(axis=1))) >= 6


@pytest.mark.needs("rapidocr_onnxruntime")
@pytest.mark.share(name=3)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("ch_ppocr_mobile_v2.0_cls_infer", (1, 3, 48, 192)),
        ("ch_ppocr_mobile_v2.0_cls_infer", (2, 3, 64, 75)),
        ("ch_PP-OCRv4_det_infer", (1, 3, 64, 96)),
        ("ch_PP-OCRv4_det_infer", (1, 3, 96, 32)),
        ("ch_PP-OCRv4_rec_infer", (1, 3, 48, 61)),
        ("ch_PP-OCRv4_rec_infer", (2, 3, 48, 104)),
    ],
)
def test_rapidocr_reads_at_any_size(name: str, shape: tuple[int, ...]) -> None:
    path = carried("rapidocr_onnxruntime", f"models/{name}.onnx")
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    x[..., 10:20, 8:24] = 1  # something that isn't noise
    with cuvil.compile(path, "cpu", shapes={"x": shape}) as ours:
        near(ours(x), session(path).run(None, {"x": x})[0])


def test_no_shared_model_goes_untested(models: Path) -> None:
    tested = {*test_models.QUANTIZED, *test_models.FLOAT, *test_qonnx.MODELS, *test_onnx_fraud.MODELS}
    assert {path.stem for path in models.glob("*.onnx")} == tested
