"""Models on the command line: .onnx with an example, Python files, exported programs; options that commands share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import cuvil
from cuvil_hw.cli.main import FAILED, USAGE, main
from cuvil_hw.cli.output import as_options

NET = """
import torch
from torch import nn
from helper import WIDTH

class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        torch.manual_seed(1)
        self.drop, self.dense = nn.Dropout(0.9), nn.Linear(WIDTH, classes)

    def forward(self, x, y):
        return self.dense(self.drop(x) * y)

class Wide(Net):
    def __init__(self, classes):
        super().__init__(classes)

def wide():
    return Wide(5)

ready = Net()
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "helper.py").write_text("WIDTH = 4\n")
    draw = np.random.default_rng(0)
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", draw.normal(size=(1, 4)).astype(np.float32))
    np.savez(tmp_path / "data.npz", **{n: draw.normal(size=(40, 4)).astype(np.float32) for n in ("x", "y")})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    return code, *capsys.readouterr()


EXAMPLE = ["--example", "x.npy", "-e", "y.npy"]


@pytest.mark.parametrize(("name", "classes"), [("Net", 3), ("wide", 5), ("ready", 3)])
def test_a_python_file(folder: Path, capsys: pytest.CaptureFixture[str], name: str, classes: int) -> None:
    code, _, err = run(capsys, "compile", f"net.py:{name}", "-t", "cpu", *EXAMPLE, "-o", "net.cuvil")
    assert code == 0, err
    inputs = [np.load(f"{n}.npy") for n in ("x", "y")]
    torch.manual_seed(1)
    dense = torch.nn.Linear(4, classes)
    want = dense(torch.tensor(inputs[0] * inputs[1])).detach().numpy()  # in eval mode: nothing is dropped
    with cuvil.load("net.cuvil") as program:
        np.testing.assert_allclose(program(*inputs), want, rtol=1e-5, atol=1e-6)


def test_calibration_is_an_example_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "check", "net.py:Net", "-t", "pynq-z2", "--calibration", "data.npz", "--json")
    assert code == 0, err
    assert json.loads(out)["targets"][0]["fits"] is True
    code, out, err = run(
        capsys, "compare", "net.py:Net", "-t", "pynq-z2,cpu", "--calibration", "data.npz", "--precision", "int8",
        "--interface", "sim-count", "--json",
    )  # fmt: skip
    # The simulator of the board counts, the processor has no such device.
    assert code == FAILED
    errors = {row["label"]: row["error"] for row in json.loads(out)["programs"]}
    assert errors["pynq-z2"] == ""
    assert "no interface 'sim-count'" in errors["cpu"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["net.py"], "net.py: name the model in it, as in net.py:Net"),
        (["net.py:Nett"], "defines no 'Nett'; it has Net, Wide, ready"),
        (["net.py:Wide", *EXAMPLE], "Wide() raised TypeError"),
        (["net.py:number", *EXAMPLE], "number gives a int, not a torch.nn.Module"),
        (["net.py:Net"], "give --example x.npy, once per input, or --calibration"),
        (["gone.py:Net", *EXAMPLE], "gone.py: there is no such file"),
        (["broken.py:Net", *EXAMPLE], "running it raised ZeroDivisionError"),
        (["net.pt2"], "give --trust if the file is yours"),
        (["gone.pt2", "--trust"], "gone.pt2: there is no such file"),
        (["broken.pt2", "--trust"], "torch.export.load raised"),
    ],
)
def test_what_is_no_model(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    for name in ("net.pt2", "broken.pt2"):
        (folder / name).write_bytes(b"PK")
    code, _, err = run(capsys, "check", "-t", "cpu", *arguments)
    assert code == FAILED
    assert said in " ".join(err.split())


def test_a_pt2_file_runs_nothing_unless_it_is_trusted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(1)
    module = torch.nn.Linear(4, 3).eval()
    x = torch.tensor(np.load("x.npy"))
    torch.export.save(torch.export.export(module, (x,)), "dense.pt2")
    assert run(capsys, "compile", "dense.pt2", "-t", "cpu")[0] == FAILED
    code, _, err = run(capsys, "compile", "dense.pt2", "-t", "cpu", "--trust")
    assert code == 0, err
    with cuvil.load("dense.cuvil") as program:
        np.testing.assert_allclose(program(x.numpy()), module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def graph(*dims: object) -> onnx.ModelProto:
    """y = x + n; `dims`: of x and y; n is an integer."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n in ("x", "y")]
    number = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    nodes = [
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    made = helper.make_graph(nodes, "g", [ends[0], number], ends[1:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])


def test_examples_fix_the_shapes_that_an_onnx_file_leaves_open() -> None:
    model = graph("b", "t")
    x, n = np.ones((2, 5), np.float32), np.array(3)
    for example in ((x, n), {"x": x}, (torch.tensor(x), torch.tensor(n))):
        program = cuvil.compile(model, "cpu", example)
        assert [p.shape for p in program.inputs] == [(2, 5), ()]
        assert np.array_equal(program(x, n), x + 3)
    fixed = cuvil.compile(model, "cpu", x, constants={"n": 3})
    assert np.array_equal(fixed(x), x + 3)
    with pytest.raises(cuvil.InputError, match=r"1 given, .*g.* has 2 inputs: x, n"):
        cuvil.compile(model, "cpu", x)
    with pytest.raises(cuvil.InputError, match="has no input 'z'; it has x, n"):
        cuvil.compile(model, "cpu", {"z": x})
    with pytest.raises(cuvil.InputError, match=r"input 'x' of .* is f32, the example is int64"):
        cuvil.compile(model, "cpu", (n, n))


def test_examples_and_constants_of_onnx_files_in_every_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(graph("b", "t"), "g.onnx")
    given = ["g.onnx", "-t", "cpu", "-e", "x.npy", "--constant", "n=3"]
    assert run(capsys, "compile", *given)[0] == 0
    code, out, err = run(capsys, "check", *given, "--json")
    assert code == 0, err
    assert json.loads(out)["inputs"] == {"x": "f32[1, 4]"}
    code, _, err = run(capsys, "compare", *given, "--input", "x.npy")
    assert code == 0, err
    code, _, err = run(capsys, "compare", "g.cuvil", "g.cuvil", "--max-trips", "3")
    assert code == USAGE
    assert "go with --target and a model" in " ".join(err.split())


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("or give precision='float32' (--precision float32), if", "or give --precision float32, if"),
        ("use precision='fixed<16,6>' where", "use --precision fixed<16,6> where"),
        ("shapes= names 'z'; the inputs are x", "--shape names 'z'; the inputs are x"),
        ("pass shapes={input name: (extent, …)}", "pass --shape NAME=EXTENTS"),
        ("give compile(…, max_trips=N), or a constant (constants=)", "give --max-trips N, or a constant (--constant)"),
        ("compile it with a larger max_trips", "compile it with a larger --max-trips"),
        ("example_inputs: 1 given", "--example: 1 given"),
    ],
)
def test_errors_speak_of_options(message: str, said: str) -> None:
    assert said in as_options(message)


def test_the_option_that_was_typed_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(graph("b", "t"), "g.onnx")
    code, _, err = run(capsys, "compile", "g.onnx", "-t", "cpu", "-e", "x.npy")
    assert code == FAILED
    assert "--example: 1 given" in " ".join(err.split())
