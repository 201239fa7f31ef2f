"""The command `cuvil`: exit codes, what goes to which stream, JSON, and error texts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from cuvil_hw.cli import run as run_command
from cuvil_hw.cli.app import app
from cuvil_hw.cli.compile import parse_constant
from cuvil_hw.cli.main import BUG, FAILED, INTERRUPTED, USAGE, main
from cuvil_hw.errors import pip_install
from cuvil_hw.report.report import Report
from cuvil_hw.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(5)
W, B = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=3).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, inputs, calibration data and programs for both targets."""
    place = tmp_path_factory.mktemp("cli")
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1, name="dense"),
        helper.make_node("Relu", ["h"], ["y"], name="act"),
    ]
    constants = [onnx.numpy_helper.from_array(a, n) for a, n in ((W, "w"), (B, "b"))]
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k]) for n, k in (("x", 4), ("y", 3))]
    graph = helper.make_graph(nodes, "small", shapes[:1], shapes[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), place / "small.onnx")
    np.save(place / "x.npy", RNG.normal(size=(5, 4)).astype(np.float32))
    np.save(place / "data.npy", RNG.normal(size=(100, 4)).astype(np.float32))
    np.savez(place / "data.npz", x=np.load(place / "data.npy"))
    assert main(["compile", str(place / "small.onnx"), "-t", "cpu", "-o", str(place / "cpu.cuvil")]) == 0
    zynq = ["-t", "pynq-z2", "-o", str(place / "zynq.cuvil"), "--calibration", str(place / "data.npz")]
    assert main(["compile", str(place / "small.onnx"), *zynq]) == 0
    return place


def cuvil(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command line in this process."""
    capsys.readouterr()
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """The error of a command that fails, from its JSON; nothing else may be printed."""
    code, out, err = cuvil(capsys, *arguments, "--json")
    assert (code in (FAILED, USAGE), err) == (True, "")
    value = json.loads(out)
    assert list(value) == ["error"]
    error: dict[str, Any] = value["error"]
    return error


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_version_and_help() -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["--version"]).stdout == f"cuvil {VERSION}\n"
    top = runner.invoke(app, ["--help"])
    assert top.exit_code == 0
    for word in ("compile", "run", "report", "targets", "opt", "graph", "doctor", "cuvil run model.cuvil --input"):
        assert word in top.stdout
    for command in (["compile"], ["run"], ["report"], ["targets", "check"], ["opt"], ["graph"]):
        assert "Example: cuvil" in runner.invoke(app, [*command, "--help"]).stdout


def test_compile_writes_artifact_report_and_sources(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ["--report", "r.html", "--sources", "src", "--name", "little"]
    code, out, err = cuvil(capsys, "compile", folder / "small.onnx", "-t", "cpu", *extra)
    assert (code, err) == (0, "")
    assert "artifact: small.cuvil" in out
    assert "little for x86_64-linux-gnu" in out or "little for aarch64-linux-gnu" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.html", "small.cuvil", "src"]
    assert "cuvil_run" in (tmp_path / "src" / "model.c").read_text(encoding="utf-8")
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_compile_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = cuvil(capsys, "compile", folder / "small.onnx", "-t", "cpu", "--json", "--shape", "x=2,4")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["artifact"] == "small.cuvil"
    assert result["report_data"]["schema"] == "cuvil-report/1"
    assert result["report_data"]["layers"][0]["output"] == "2x3xf32"


def test_numbers_and_files_as_constants(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.eye(2))
    assert parse_constant("sr=16000") == ("sr", 16000)
    assert parse_constant("a=b=-1,2.5") == ("a=b", [-1, 2.5])
    assert np.array_equal(parse_constant(f"m={tmp_path / 'c.npy'}")[1], np.eye(2))


def test_run_on_the_processor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = cuvil(capsys, "run", folder / "cpu.cuvil", "--input", folder / "x.npy", "-o", "y.npy")
    assert (code, err) == (0, "")
    wanted = np.maximum(np.load(folder / "x.npy") @ W.T + B, 0)
    np.testing.assert_allclose(np.load("y.npy"), wanted, rtol=1e-5, atol=1e-6)
    assert "y: 5x3 float32" in out
    assert f"argmax: {', '.join(map(str, wanted.argmax(1)))}" in out
    assert "5 sample(s) on hw" in out


@pytest.mark.needs("g++")
def test_run_on_the_simulator_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = cuvil(capsys, "run", folder / "zynq.cuvil", "-i", f"x={folder / 'x.npy'}", "-o", "y.npz", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["interface"], result["samples"], result["written"]) == ("sim", 5, "y.npz")
    (y,) = result["outputs"]
    assert (y["name"], y["shape"], y["dtype"]) == ("y", [5, 3], "float32")
    wanted = np.maximum(np.load(folder / "x.npy") @ W.T + B, 0)
    np.testing.assert_allclose(y["values"], wanted, atol=0.1)
    assert y["argmax"] == np.argmax(y["values"], axis=1).tolist()
    np.testing.assert_array_equal(np.load("y.npz")["y"], np.float32(y["values"]))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "input 'x' is missing"),
        (["no.npy"], "no.npy: no such file"),
        (["z=x.npy"], "there is no input 'z'; the inputs are: x"),
        (["text.npy"], "text.npy: not a NumPy array file (.npy, .npz)"),
        (["objects.npy"], "objects.npy: not a NumPy array file (.npy, .npz): holds Python objects, which are never"),
        (["data.npz"], "data.npz: holds several arrays; give each as a .npy file"),
        (["wide.npy"], "input 'x': has shape (5, 9), expected (1, 4)"),
    ],
)
def test_inputs_that_run_refuses(
    folder: Path, tmp_path: Path, inputs: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x.npy", "data.npz"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "text.npy").write_text("1 2 3", encoding="utf-8")
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("wide.npy", np.zeros((5, 9), np.float32))
    options = [word for path in inputs for word in ("--input", path)]
    code, out, err = cuvil(capsys, "run", folder / "cpu.cuvil", *options)
    assert (code, out) == (FAILED, "")
    assert err.startswith(f"error: {said}")
    assert "Traceback" not in err


def test_scores_are_told_from_other_outputs() -> None:
    described = run_command._describe("y", np.array([[1.0, 3.0], [np.nan, 0.0]]))
    assert described["argmax"] == [1, 0]
    for other in (np.zeros((1, 3, 4, 4)), np.zeros(5), np.zeros((4, 1)), np.zeros((0, 3)), np.float32(3)):
        assert "argmax" not in run_command._describe("y", np.asarray(other))


def test_report_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = cuvil(capsys, "report", folder / "zynq.cuvil", "--html", "r.html")
    assert (code, err) == (0, "")
    for word in ("small for pynq-z2 (xc7z020clg400-1), int8", 'onnx node "dense" (Gemm)', "lut", "written: r.html"):
        assert word in out
    report = json.loads(cuvil(capsys, "report", folder / "zynq.cuvil", "--json")[1])
    line = f"cuvil report {folder / 'zynq.cuvil'} --html r.html"
    assert Path("r.html").read_text(encoding="utf-8") == Report(report).html(line)


def test_damaged_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((folder / "cpu.cuvil").read_bytes())
    data[100] ^= 1
    (tmp_path / "bad.cuvil").write_bytes(data)
    error = error_of(capsys, "report", "bad.cuvil")
    assert error["type"] == "ArtifactError"
    assert "bad.cuvil: damaged" in error["message"]
    assert error_of(capsys, "run", "none.cuvil")["type"] == "ArtifactError"


def test_targets(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = cuvil(capsys, "targets", "list")
    assert (code, err) == (0, "")
    assert {"pynq-z2", "zcu104", "x86_64-linux-gnu"} <= {line.split()[0] for line in out.splitlines()}
    listed = json.loads(cuvil(capsys, "targets", "list", "--json")[1])["targets"]
    shown = json.loads(cuvil(capsys, "targets", "show", "zynq", "--json")[1])
    assert shown in listed
    assert shown["resources"]["lut"] == {"limit": 53200, "use": 0.7, "budget": 37240, "unit": "LUT", "rule": "sum"}
    assert "37,240" in cuvil(capsys, "targets", "show", "pynq-z2")[1]
    error = error_of(capsys, "targets", "show", "pynq")
    assert (error["type"], error["key"]) == ("ProfileError", "target")
    assert "did you mean zynq or pynq-z2?" in error["message"]


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ("extends: pynq-z2\nclock_mhz: fast\n", 4, "clock_mhz", "clock_mhz"),
        ("adapter: foo\nclock_mhz: 100\n", 3, "adapter", "no plug-in 'foo' in cuvil.adapters; there are: agilex, cpu"),
        (
            "adapter: zynq\nclock_mhz: 100\nresources:\n  lut: {limit: 9}\n",
            6,
            "resources.ff",
            "adapter zynq needs a limit for ff, bram18, dsp; the profile has lut",
        ),
    ],
)
def test_check_cites_file_line_and_key(
    tmp_path: Path, text: str, line: int, key: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(f"schema: cuvil-profile/1\nname: mine\n{text}", encoding="utf-8")
    error = error_of(capsys, "targets", "check", "mine.yaml")
    assert (error["type"], error["file"], error["line"], error["key"]) == ("ProfileError", "mine.yaml", line, key)
    code, _, err = cuvil(capsys, "targets", "check", "mine.yaml")
    assert code == FAILED
    assert err.startswith(f"error: mine.yaml:{line}: {key}: ")
    assert said in err


def test_check_of_a_good_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("schema: cuvil-profile/1\nname: mine\nextends: pynq-z2\n", encoding="utf-8")
    assert cuvil(capsys, "targets", "check", "mine.yaml")[:2] == (0, "mine.yaml: valid, mine for adapter zynq\n")
    assert json.loads(cuvil(capsys, "targets", "check", "mine.yaml", "--json")[1])["valid"] is True
    assert "a target profile is a .yaml file" in error_of(capsys, "targets", "check", "mine.yml.txt")["message"]


def test_graph(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model in ("small.onnx", "zynq.cuvil"):
        assert cuvil(capsys, "graph", folder / model, "-o", "g.svg")[:2] == (0, "written: g.svg\n")
        assert "linear" in Path("g.svg").read_text(encoding="utf-8")
    assert json.loads(cuvil(capsys, "graph", folder / "small.onnx", "-o", "g.dot", "--json")[1])["operations"] == 2
    assert Path("g.dot").read_text(encoding="utf-8").startswith("digraph")
    assert error_of(capsys, "graph", folder / "small.onnx", "-o", "g.png")["type"] == "UsageError"


def text_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A file of level1 text, as `opt` prints it."""
    from cuvil_hw import ops
    from cuvil_hw.ir.program import Builder
    from cuvil_hw.types import TensorType

    b = Builder([("x", TensorType((4,), "f32"))])
    y = b.op(ops.Relu(), b.op(ops.Add(), b.input(0), b.op(ops.BroadcastTo((4,)), b.op(ops.Neg(), b.input(0)))))
    path = folder / "model.mlir"
    path.write_text(b.finish([("y", b.op(ops.Reshape((4,)), y))]).text(), encoding="utf-8")
    return path


def test_opt_lowers_to_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[1] / "ir" / "hardware" / "accumulate.mlir"
    assert "hw.module @sums" in cuvil(capsys, "opt", path, "--to", "hardware")[1]
    text = cuvil(capsys, "opt", path, "--to", "verilog")[1]
    assert "// file: sums.sv" in text
    assert "module model_top" in text
    assert cuvil(capsys, "opt", path, "--to", "vhdl")[0] == 2
    assert cuvil(capsys, "opt", path, "--to", "hardware", "--interpret", "top")[0] == 2


def test_opt(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = text_of(tmp_path, capsys)
    code, out, err = cuvil(capsys, "opt", path)
    assert (code, err, out.strip()) == (0, "", path.read_text(encoding="utf-8").strip())
    folded = cuvil(capsys, "opt", path, "--pass", "fold")[1]
    assert "reshape" in out
    assert "reshape" not in folded
    both = cuvil(capsys, "opt", path, "-p", "fold", "-p", "fuse")[1]
    assert "cuvil.level1.group" in both
    with path.open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert cuvil(capsys, "opt", "-", "--pipeline", "default")[1] == both
    assert json.loads(cuvil(capsys, "opt", path, "-p", "fold", "--json")[1])["text"] in folded


def test_opt_lists_passes(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(cuvil(capsys, "opt", "--list", "--json")[1])
    assert all(listed["passes"].values())
    used = {p.partition("{")[0] for steps in listed["pipelines"].values() for p in steps}
    assert used <= set(listed["passes"])
    assert "integerize" in cuvil(capsys, "opt", "--list")[1]


def test_opt_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = text_of(tmp_path, capsys)
    assert "unknown pass 'fold2'; there are: fold," in error_of(capsys, "opt", path, "-p", "fold2")["message"]
    assert "unknown pass 'fast'; there are: fold," in error_of(capsys, "opt", path, "--pipeline", "fast")["message"]
    assert error_of(capsys, "opt", path, "--pipeline", "default", "-p", "fold")["type"] == "UsageError"
    path.write_text("func.func @main(", encoding="utf-8")
    assert "level1 text is not valid" in error_of(capsys, "opt", path)["message"]
    assert "can't be read as text" in error_of(capsys, "opt", "none.mlir")["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compile"], "Missing argument 'model'."),
        (["compile", "m", "-tcpu", "--constant", "sr=fast"], "--constant is 'sr=fast', expected name=number, name=1,"),
        (["compile", "m", "-tcpu", "--shape", "1,2"], "--shape is '1,2', expected name=extents such as input=1,"),
        (["targets", "nope"], "No such command 'nope'."),
        (["compile", "m.onnx", "--nope"], "No such option: --nope"),
    ],
)  # fmt: skip
def test_wrong_usage_is_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = cuvil(capsys, *arguments)
    assert (code, out) == (USAGE, "")
    assert err.startswith("error: ")
    assert said in err
    assert err.endswith(f"try: cuvil {arguments[0]} --help\n")
    error = error_of(capsys, *arguments)
    assert error["type"] == "UsageError"
    assert said in error["message"]


def test_errors_of_a_design_keep_their_fields(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = "schema: cuvil-profile/1\nname: tiny\nextends: pynq-z2\nresources:\n  lut: {limit: 100}\n"
    (tmp_path / "tiny.yaml").write_text(head, encoding="utf-8")
    options = ["-t", "tiny.yaml", "--calibration", str(folder / "data.npy")]
    error = error_of(capsys, "compile", folder / "small.onnx", *options)
    assert (error["type"], error["axis"], error["limit"], error["target"]) == ("DoesNotFit", "lut", 70.0, "tiny")
    assert error["need"] > 70
    assert error["layer"] in error["message"]
    assert not list(tmp_path.glob("*.cuvil"))


def test_refusals_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["i"], name="where"), helper.make_node("Det", ["x"], ["d"], name="det")]
    ends = [helper.make_tensor_value_info(n, t, s) for n, t, s in (
        ("x", TensorProto.FLOAT, [3, 3]), ("i", TensorProto.INT64, None), ("d", TensorProto.FLOAT, None))]  # fmt: skip
    graph = helper.make_graph(nodes, "refused", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "refused.onnx")
    error = error_of(capsys, "compile", folder / "refused.onnx", "-t", "cpu")
    assert error["type"] == "Unsupported"
    assert {(r["op"], r["count"]) for r in error["refusals"]} == {("NonZero", 1), ("Det", 1)}
    assert error["refusals"][0]["where"] == ["where"]


def test_a_bug_is_70_and_says_how_to_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by [bold]zero[/bold]")

    monkeypatch.setattr("cuvil_hw.cli.targets.builtin_profiles", broken)
    code, out, err = cuvil(capsys, "targets", "list")
    assert (code, out) == (BUG, "")
    assert err.startswith("error: ZeroDivisionError: by [bold]zero[/bold]\nthis is a bug in Cuvil; please report it")
    assert "Traceback" not in err
    code, _, err = cuvil(capsys, "targets", "list", "--debug")
    assert (code, "Traceback" in err) == (BUG, True)
    code, out, err = cuvil(capsys, "targets", "list", "--json")
    assert (code, json.loads(out)["error"]["type"], err) == (BUG, "ZeroDivisionError", "")


def test_debug_shows_the_traceback_of_an_error_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = cuvil(capsys, "--debug", "compile", "none.onnx", "-t", "cpu")
    assert code == FAILED
    assert "Traceback" in err
    assert err.rstrip().endswith("error: none.onnx: no such file")


def test_interrupted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cuvil_hw.cli.targets.builtin_profiles", interrupt)
    assert cuvil(capsys, "targets", "list") == (INTERRUPTED, "", "interrupted\n")


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_cli_extra(
    package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == package or n.startswith("cuvil_hw.cli.")]:
        if name != "cuvil_hw.cli.main":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, out, err = cuvil(capsys, "targets", "list")
    assert (code, out) == (FAILED, "")
    assert err == f"cuvil: the command line needs {package}; {pip_install('cli')}\n"


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cuvil_hw.cli.main", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)


def test_in_a_shell(folder: Path) -> None:
    done = shell("run", str(folder / "cpu.cuvil"), "--input", str(folder / "x.npy"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["samples"] == 5
    failed = shell("run", str(folder / "cpu.cuvil"), "--interface", "warp", "--input", str(folder / "x.npy"))
    assert (failed.returncode, failed.stdout) == (FAILED, "")
    assert "has no interface 'warp'" in failed.stderr


def test_colours_only_where_wanted(folder: Path) -> None:
    wrong = ("compile", "none.onnx", "-t", "cpu")
    assert shell(*wrong).stderr == "error: none.onnx: no such file\n"
    assert "\x1b[1;31merror:" in shell(*wrong, FORCE_COLOR="1", NO_COLOR="").stderr
    assert "\x1b[31m" not in shell(*wrong, FORCE_COLOR="1", NO_COLOR="1").stderr


def test_a_reader_that_leaves_early_is_no_bug() -> None:
    command = f"{sys.executable} -m cuvil_hw.cli.main targets list --json"
    with subprocess.Popen(
        command.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, FAILED)
