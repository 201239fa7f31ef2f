"""What is written down runs: code in documents, the demo, the benchmark."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cuvil_hw.target.profile import load_profile
from tests.support.checkout import path_with_entry_points

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of one language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found, f"{document} has no {language} block"
    return found


def write_boards(document: str, folder: Path) -> list[Path]:
    """Each YAML block as the file that it would be."""
    paths = []
    for text in blocks(document, "yaml"):
        name = re.search(r"^name: (\S+)", text, re.MULTILINE)
        assert name is not None
        paths.append(folder / f"{name[1]}.yaml")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


@pytest.mark.needs("torch", "transformers", "xdsl", "ortools", "g++", "gcc")
@pytest.mark.parametrize("document", ["README.md", "docs/quickstart.md", "docs/add-an-op.md"])
def test_python_in_documents_runs(document: str, tmp_path: Path) -> None:
    if document == "docs/quickstart.md":
        write_boards(document, tmp_path)
    # A process of its own: a new op stays registered for as long as the process lives.
    script = tmp_path / "document.py"
    script.write_text("\n".join(blocks(document, "python")), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": path_with_entry_points(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if document == "README.md":
        assert "pynq-z2" in done.stdout
        assert (tmp_path / "mlp.cuvil").is_file()
    if document == "docs/quickstart.md":
        assert "does not fit too-small" in done.stdout
        assert (tmp_path / "net.html").read_text(encoding="utf-8").startswith("<!")
        assert (tmp_path / "hls" / "run_hls.tcl").is_file()


@pytest.mark.needs("onnx", "xdsl", "ortools", "typer", "g++")
def test_commands_in_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from cuvil_hw.cli.main import main

    draw = np.random.default_rng(0)
    weights = numpy_helper.from_array(draw.standard_normal((8, 4)).astype(np.float32), "w")
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c]) for n, c in (("x", 8), ("y", 4))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", kinds[:1], kinds[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    np.save("calibration.npy", draw.standard_normal((100, 8)).astype(np.float32))
    np.save("x.npy", np.load("calibration.npy")[:5])
    np.save("labels.npy", (np.load("x.npy") @ numpy_helper.to_array(weights)).argmax(1))
    (commands,) = blocks("README.md", "sh")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "cuvil"
        if arguments[0] == "serve":  # runs until it is stopped; tests/serve
            continue
        assert main(arguments) == 0, f"{line}\n{capsys.readouterr()}"
    assert np.load("y.npy").shape == (5, 4)
    wanted = np.load("x.npy") @ numpy_helper.to_array(weights)
    assert np.abs(np.load("y.npy") - wanted).max() < 0.2
    assert {p.name for p in tmp_path.iterdir()} >= {"model.cuvil", "model.html", "model.svg", "hls"}
    assert (tmp_path / "hls" / "run_hls.tcl").is_file()


@pytest.mark.parametrize("document", ["README.md", "docs/quickstart.md", "docs/profiles.md"])
def test_boards_in_documents_are_valid(document: str, tmp_path: Path) -> None:
    if document == "docs/profiles.md":
        first = tmp_path / "board.yaml"
        first.write_text(blocks(document, "yaml")[0], encoding="utf-8")
        paths = [first]
    else:
        paths = write_boards(document, tmp_path)
    base = load_profile("pynq-z2")
    for path in paths:
        profile = load_profile(path)
        assert profile.adapter == "zynq"
        assert [a.name for a in profile.axes] == [a.name for a in base.axes]
        assert profile.digest() != base.digest()


def test_the_plugin_is_what_its_document_shows() -> None:
    document, plugin = "docs/add-a-target.md", ROOT / "tests" / "plugin"
    (table,) = blocks(document, "python")
    (entries,) = blocks(document, "toml")
    (board,) = blocks(document, "yaml")
    assert table.split("\n\n", 1)[1].strip() in (plugin / "cuvil_toy" / "lang.py").read_text(encoding="utf-8")
    assert entries.strip() in (plugin / "pyproject.toml").read_text(encoding="utf-8")
    lines = (plugin / "boards" / "toy-1.yaml").read_text(encoding="utf-8").splitlines()
    assert [line for line in board.splitlines() if line not in lines] == []


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # dataclasses look their module up
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.slow
@pytest.mark.must_run
@pytest.mark.needs("torch", "sklearn", "xdsl", "ortools", "g++", "gcc")
@pytest.mark.share(target=2)
@pytest.mark.parametrize("target", ["pynq-z2", "cpu"])
def test_the_demo(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = module("examples/digits_zynq.py")
    monkeypatch.setattr(demo, "EPOCHS", 4)
    out = tmp_path / "out"
    arguments = ["--target", target, "--out", str(out)]
    assert demo.main(arguments) == 0
    said = capsys.readouterr().out
    assert re.search(r"accuracy +9\d\.\d\d% torch float, 9\d\.\d\d% .*; 450 test images", said)
    assert "within the budget on every axis" in said
    assert {p.name for p in out.iterdir()} == {
        "digits.cuvil",
        "report.html",
        "hls" if target == "pynq-z2" else "src",
    }
    assert "top-1 accuracy" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.needs("torch", "sklearn", "xdsl")
def test_the_demo_ends_with_an_error_where_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = module("examples/digits_zynq.py")
    monkeypatch.setattr(demo, "EPOCHS", 1)
    out = ["--out", str(tmp_path)]
    assert demo.main(["--precision", "float99", *out]) == 1
    assert "error: " in capsys.readouterr().err
    assert demo.main(["--target", "pynq-z3", *out]) == 1
    assert "did you mean pynq-z2" in capsys.readouterr().err
    monkeypatch.setattr(demo, "MOST_POINTS_LOST", -1.0)
    assert demo.main(["--target", "cpu", *out]) == 1
    assert "NOT within" in capsys.readouterr().out


@pytest.mark.must_run
@pytest.mark.needs("torch", "xdsl", "ortools", "g++", "gcc")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cpu_c99", r"int8 .* dB against PyTorch.*\n.*net\.int8\.cuvil"),
        ("cuda_kernels", r"(\d+) kernels of \1 layers: linear"),
        ("agilex_streams", r"alm .* of +487,200 \(analytic\)"),
        ("mlu_bang", r"kept between calls: hidden, cell"),
    ],
)
def test_an_example_of_each_target(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each compares its target with PyTorch, and ends with 1 where they differ."""
    monkeypatch.chdir(tmp_path)
    example = module(f"examples/{name}.py")
    assert example.main([]) == 0
    assert re.search(said, capsys.readouterr().out)


@pytest.mark.needs("torch", "xdsl", "ortools", "g++")
def test_an_example_notices_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = module("examples/mlu_bang.py")
    monkeypatch.setattr(example, "LARGEST_DIFFERENCE", -1.0)
    monkeypatch.setattr(example, "STEPS", 1)
    assert example.main([]) == 1


@pytest.mark.must_run
@pytest.mark.needs("torch", "xdsl", "ortools", "g++", "gcc")
def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells run one after another, and what ends one shows itself as in a notebook. It is kept without results."""
    notebook = json.loads((ROOT / "examples" / "two_targets.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell["id"], "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
            if hasattr(value, "_repr_html_"):
                shown.append(value._repr_html_())
    assert len(shown) == 2
    assert all("<iframe" in html and "pynq-z2" in html for html in shown)
    assert {path.name for path in tmp_path.iterdir()} == {"net.pynq-z2.cuvil", "net.cpu.cuvil"}


def test_the_benchmarks_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    bench = module("benchmarks/zynq_sim.py")
    arrays = bench.data(50)
    wanted = bench.of_float(arrays)
    assert wanted.shape == (50, 5)
    background = ((2.0, 6.0), (4.0,), ((1.0, 0.5),))

    def results(ours: float, peer: float) -> tuple[object, object]:
        """Cuvil's figures and the peer's, each as fast as told."""
        fast = (4.0,), (1.0 / ours, 3.0), (1.0 / ours,), (1e3 * ours,), (2e3,)
        return (
            bench.Result("cuvil b", "1", *fast, wanted + 0.5, *background),
            bench.Result("peer", "1", (8.0,), (20.0 / peer, 30.0), (20.0 / peer,), (5.0 * peer,), (10.0,), wanted),
        )

    ours, peer = results(1.0, 1.0)
    ratios = bench.compare(ours, peer)
    assert (ratios["compile_ratio"], ratios["compile_cpu_ratio"], ratios["fresh_ratio"]) == (20.0, 20.0, 2.0)
    assert (ratios["samples_ratio"], ratios["samples_cpu_ratio"], ratios["whole_ratio"]) == (200.0, 200.0, 10.0)
    figures = bench.show([ours, peer], wanted, 50)
    assert figures["passed"]
    assert figures["tools"]["cuvil b"]["rms"] == pytest.approx(0.5)
    assert figures["tools"]["cuvil b"]["same_class"] == 1.0
    assert capsys.readouterr().out.count("pass") == 3
    assert not bench.show([*results(0.1, 1.0)], wanted, 50)["passed"]
    assert capsys.readouterr().out.count("FAIL") == 3


@pytest.mark.slow
@pytest.mark.needs("torch", "hls4ml", "xdsl", "ortools", "g++")
def test_the_benchmark_runs_both_tools(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    few = ["--samples", "200", "--rounds", "1", "--repeats", "1", "--target", "pynq-z2"]
    command = [sys.executable, str(ROOT / "benchmarks" / "zynq_sim.py"), "--json", str(figures), *few]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert figures.is_file(), done.stderr
    tools = json.loads(figures.read_text(encoding="utf-8"))["tools"]
    assert set(tools) == {"cuvil pynq-z2", "hls4ml io_parallel", "hls4ml io_stream"}
    for measured in tools.values():
        assert measured["rms"] < 0.1
        assert measured["samples_s"][0] > 0
