"""Several targets at once: one import, one calibration, the bytes of single compilations; and their comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import cuvil
from cuvil_hw import api
from cuvil_hw.cli.main import FAILED, USAGE, main
from cuvil_hw.compile import numbers
from cuvil_hw.entry import compare
from cuvil_hw.errors import CuvilError, DoesNotFit, InputError, ProfileError
from cuvil_hw.runtime import artifact
from cuvil_hw.runtime.evaluation import ranked
from cuvil_hw.runtime.executable import Executable

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
DATA = RNG.normal(size=(40, 6)).astype(np.float32)
TARGETS = ["cpu", "pynq-z2", "agilex"]
pytestmark = pytest.mark.needs("gcc", "g++", "ortools")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.fixture(scope="module")
def programs() -> dict[str, Executable]:
    return cuvil.compile_all(net(), TARGETS, torch.zeros(1, 6), DATA, "int8")


def test_each_is_what_compiling_alone_gives(programs: dict[str, Executable]) -> None:
    assert list(programs) == TARGETS
    for target, program in programs.items():
        alone = cuvil.compile(net(), target, torch.zeros(1, 6), DATA, "int8")
        assert artifact.to_bytes(program.artifact) == artifact.to_bytes(alone.artifact)


def test_the_model_is_imported_and_calibrated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            calls.append(name)
            return function(*args, **named)

        return call

    monkeypatch.setattr(api, "import_model", counted("import", api.import_model))
    monkeypatch.setattr(numbers, "collect", counted("calibrate", numbers.collect))
    samples = (row for row in DATA)  # can be read only once
    made = cuvil.compile_all(net(), ["cpu", "pynq-z2"], torch.zeros(1, 6), samples, "int8")
    assert (list(made), calls) == (["cpu", "pynq-z2"], ["import", "calibrate"])


def board(folder: Path, name: str) -> Path:
    """A PYNQ-Z2 with hardly any fabric."""
    path = folder / f"{name}.yaml"
    text = (ROOT / "targets" / "pynq-z2.yaml").read_text(encoding="utf-8")
    text = text.replace("name: pynq-z2", "name: tiny").replace("aliases: [zynq]", "aliases: []")
    assert "lut: {limit: 53200" in text
    path.write_text(text.replace("lut: {limit: 53200", "lut: {limit: 500"), encoding="utf-8")
    return path


def test_one_that_fails_leaves_the_others(tmp_path: Path) -> None:
    found: list[tuple[str, type]] = []
    targets = [board(tmp_path, "a"), "nowhere", "pynq-z2"]
    options = {"example_inputs": torch.zeros(1, 6), "calibration": DATA}
    made = cuvil.compile_all(net(), targets, **options, done=lambda t, r: found.append((t, type(r))))
    assert list(made) == ["pynq-z2"]
    assert found == [("nowhere", ProfileError), ("tiny", DoesNotFit), ("pynq-z2", Executable)]
    with pytest.raises(DoesNotFit) as caught:
        cuvil.compile_all(net(), [targets[0], "pynq-z2"], **options)
    assert caught.value.__notes__[-1] == "on target tiny"
    other = board(tmp_path, "b")
    other.write_text(other.read_text(encoding="utf-8").replace("limit: 500", "limit: 600"), encoding="utf-8")
    with pytest.raises(CuvilError, match="two targets are called tiny"):
        cuvil.compile_all(net(), [targets[0], other], **options)


def test_statistics_with_histograms_give_the_same_ranges() -> None:
    """One collection serves schemes that need histograms and those that don't."""
    program = api.import_model(net(), torch.zeros(1, 6), None, None)
    both = [numbers.collect(program, DATA, histograms=h) for h in (False, True)]
    assert [(r.lo, r.hi) for r in both[0].ranges.values()] == [(r.lo, r.hi) for r in both[1].ranges.values()]


# ---- comparison -----------------------------------------------------------------------------------------------------


def test_rows_say_what_reports_say(programs: dict[str, Executable]) -> None:
    cpu, zynq, _ = [compare.row_of(label, p, 1.5) for label, p in programs.items()]
    assert (cpu.axis, cpu.used, zynq.compile_s) == ("", None, 1.5)
    report = programs["pynq-z2"].report
    shares = {t["axis"]: t["used"] / t["budget"] for t in report["totals"] if t["budget"]}
    assert zynq.used is not None
    assert zynq.budget is not None
    assert zynq.used / zynq.budget == max(shares.values()) == shares[zynq.axis]
    assert zynq.latency_s == report["latency"]["seconds"]
    assert zynq.bytes == len(artifact.to_bytes(programs["pynq-z2"].artifact))


def test_runs_are_compared_with_the_first(programs: dict[str, Executable], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUVIL_AGILEX_PYTHON", raising=False)
    some = {label: programs[label] for label in ("cpu", "pynq-z2")}
    some["float"] = cuvil.compile(net(), "cpu", torch.zeros(1, 6))
    some["zeros"] = Executable(programs["cpu"].artifact, "null")
    some["board"] = Executable(programs["agilex"].artifact, "hw")
    rows = [compare.row_of(label, p) for label, p in some.items()]
    with torch.no_grad():
        scores = net()(torch.from_numpy(DATA)).numpy()
    labels = scores.argmax(axis=1)
    labels[:10] = (labels[:10] + 1) % 3
    got = {r.label: r for r in compare.run(some, rows, [DATA], labels)}
    assert (got["cpu"].largest_difference, got["cpu"].equal_bits) == (0.0, True)
    assert (got["pynq-z2"].largest_difference, got["pynq-z2"].equal_bits) == (0.0, True)
    assert got["float"].equal_bits is None
    wanted = np.abs(programs["cpu"](DATA).astype(np.float64) - scores).max()
    assert got["float"].largest_difference == pytest.approx(wanted, rel=1e-3)
    assert got["float"].accuracy == 0.75
    assert (got["zeros"].equal_bits, got["zeros"].accuracy) == (False, np.mean(labels == 0))
    assert got["board"].error.startswith("not run: ToolNotFound: ")
    columns, cells, _ = compare.table(list(got.values()))
    assert cells[1][columns.index("equal bits")] == "yes"
    assert cells[3][columns.index("equal bits")] == "no"


@pytest.mark.parametrize("labels", [np.zeros(3, int), np.zeros((40, 1), int), np.zeros(40)])
def test_labels_are_classes(labels: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InputError, match="one whole number, the class, for each sample"):
        ranked(np.zeros((40, 3), np.float32), labels, (1,))


def test_infinities_and_nan_differ_from_numbers_only() -> None:
    a = np.array([np.nan, np.inf, 1.0], np.float32)
    floats = [
        compare.Results((x,), False) for x in (a, np.array([np.nan, np.inf, 1.5], np.float32), np.zeros(3, np.float32))
    ]
    assert compare.difference_of(floats[0], floats[1]) == (0.5, None)
    assert compare.difference_of(floats[0], floats[2]) == (np.inf, None)
    assert compare.difference_of(floats[0], compare.Results((a[:2],), False)) == (None, None)


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantized layer as an ONNX file; x.npy, y.npy beside it."""
    folder = tmp_path_factory.mktemp("model")
    make = helper.make_node
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make("DequantizeLinear", ["q", "s", "z"], ["f"]),
        make("DequantizeLinear", ["w", "s", "z"], ["g"]),
        make("Gemm", ["f", "g"], ["h"], transB=1),
        make("QuantizeLinear", ["h", "t", "z"], ["r"]),
        make("DequantizeLinear", ["r", "t", "z"], ["y"]),
    ]
    arrays = {
        "s": np.float32(0.05), "t": np.float32(0.1), "z": np.int8(3),
        "w": RNG.integers(-90, 90, (3, 6)).astype(np.int8),
    }  # fmt: skip
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, k]) for n, k in (("x", 6), ("y", 3))]
    initializers = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "dense", ports[:1], ports[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "dense.onnx")
    np.save(folder / "x.npy", DATA)
    np.save(folder / "y.npy", np.zeros(len(DATA), np.int64))
    return folder / "dense.onnx"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(a) for a in arguments])
    return (code, *capsys.readouterr())


def test_compile_for_several_targets(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "compile", model, "-t", "cpu,pynq-z2, cuda:sm_80", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    names = ["dense.cpu.cuvil", "dense.cuda-sm_80.cuvil", "dense.pynq-z2.cuvil"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == names
    assert out.count("artifact: ") == 3
    assert "tightest resource" in out
    code, out, err = run(capsys, "compare", *(tmp_path / "out" / n for n in names), "--json")
    rows = json.loads(out)["programs"]
    assert ([r["label"] for r in rows], code) == (names, 0)
    assert all(r["latency_s"] > 0 and r["compile_s"] is None and r["equal_bits"] is None for r in rows)


def test_a_target_that_fails_is_reported(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "compile", model, "-t", f"{board(tmp_path, 'a')},cpu", "-o", tmp_path / "out")
    assert code == FAILED
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["dense.cpu.cuvil"]
    assert "DoesNotFit" in out
    assert "on target tiny" in err
    code, out, _ = run(capsys, "compile", model, "-t", "cpu,nowhere", "-o", tmp_path / "out", "--json")
    found = json.loads(out)
    assert (code, list(found["artifacts"]), found["programs"][1]["label"]) == (FAILED, ["cpu"], "nowhere")
    assert found["programs"][1]["error"].startswith("ProfileError: nowhere")


def test_compare_targets_of_a_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["-i", model.parent / "x.npy", "--labels", model.parent / "y.npy"]
    code, out, err = run(capsys, "compare", model, "-t", "cpu,pynq-z2", *data, "--json")
    assert (code, err) == (0, "")
    cpu, zynq = json.loads(out)["programs"]
    assert (zynq["equal_bits"], zynq["largest_difference"], zynq["interface"]) == (True, 0.0, "sim")
    assert 0 <= cpu["accuracy"] == zynq["accuracy"] <= 1
    assert cpu["compile_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.cuvil"], "two .cuvil files or more"),
        (["a.onnx", "b.onnx"], "a model needs --target"),
        (["a.cuvil", "b.cuvil", "--precision", "int8"], "go with --target"),
        (["a.onnx", "b.onnx", "-t", "cpu"], "--target goes with one model"),
        (["a.cuvil", "b.cuvil", "--labels", "y.npy"], "give them with --input"),
        (["a.cuvil", "a.cuvil"], "the same file is given twice"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "compare", *arguments)
    assert (code, message in err) == (USAGE, True)


def test_reports_and_sources_are_of_one_target(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "compile", model, "-t", "cpu,pynq-z2", "--sources", "s")
    assert (code, "go with one target" in err) == (USAGE, True)
