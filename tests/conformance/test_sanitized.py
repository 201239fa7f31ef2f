"""The generated C of whole models under AddressSanitizer and UndefinedBehaviorSanitizer: nothing is read or written
beside its memory, no shift, conversion or pointer is undefined."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import cuvil
from cuvil_hw import dtypes

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "native" / "example.c"
# Signed sums wrap (-fwrapv), as NumPy's do. What isn't clean ends the program.
CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g", "-ffp-contract=off", "-fwrapv")
NAMES = (
    "ic_resnet", "ad_deep_autoencoder", "kws_ref_model", "vww_mobilenet_v1", "mnist_conv", "ic_resnet_float",
    "ad_float", "kws_float", "vww_96_float", "espcn_float", "fraud_mlp",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.share(name=6)
def test_models_are_clean(models: Path, tmp_path: Path, name: str) -> None:
    with cuvil.compile(models / f"{name}.onnx") as program:
        program.save(tmp_path / "model.c")
        rng = np.random.default_rng(0)
        inputs = []
        for port in program.inputs:
            kind = dtypes.to_numpy(port.dtype)
            whole = kind.kind in "iu"
            info = np.iinfo(kind) if whole else None
            values = rng.integers(info.min, info.max, port.shape, endpoint=True) if info else rng.random(port.shape)
            inputs.append(values.astype(kind))
        wanted = program.run(*inputs).outputs[0].reshape(-1)[:10]
    shutil.copy(EXAMPLE, tmp_path)
    # The instructions of the program itself: the same vectors, and sums rounded alike.
    march = program.artifact.manifest.profile["settings"]["march"]
    argv = ["gcc", "-std=c99", f"-march={march}", *CHECKED, "example.c", "model.c", "-lm", "-o", "example"]
    subprocess.run(argv, cwd=tmp_path, check=True, timeout=900)
    files = []
    for n, array in enumerate(inputs):
        array.tofile(tmp_path / f"{n}.bin")
        files.append(f"{n}.bin")
    env = {"ASAN_OPTIONS": "detect_leaks=0"}  # the example ends without giving its memory back
    done = subprocess.run(["./example", *files], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    values = [line for line in done.stdout.splitlines() if ":" not in line]
    np.testing.assert_allclose(np.array(values, float), wanted.astype(float), rtol=1e-6, atol=1e-30)


def test_the_sanitizers_find_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "wrong.c").write_text("int main(int n, char **x) { int y[4] = {0}; (void)x; return y[n + 3]; }\n")
    subprocess.run(["gcc", *CHECKED, "wrong.c", "-o", "wrong"], cwd=tmp_path, check=True, timeout=600)
    done = subprocess.run(["./wrong"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert "out of bounds" in done.stderr
