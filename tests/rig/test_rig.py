"""Boards under test: the rig file, ways to a board, what is found wrong, and JUnit. Boards here are this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import cuvil
from cuvil_hw.cli.main import main
from cuvil_hw.errors import CuvilError, ToolNotFound
from cuvil_hw.report.junit import junit
from cuvil_hw.rig.reach import reached
from cuvil_hw.rig.rig_file import RigBoard, read_rig
from cuvil_hw.rig.suite import BoardCheck, case_of, run
from cuvil_hw.runtime.on_board import CHECKS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.needs("gcc")
Write = Callable[[str], Path]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs for processors."""
    folder = tmp_path_factory.mktemp("programs")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3)).eval()
    cuvil.compile(net, "x86_64-linux-gnu", torch.zeros(1, 5), name="mlp").save(folder / "mlp.cuvil")
    return folder


@pytest.fixture
def rig(tmp_path: Path) -> Write:
    def write(boards: str) -> Path:
        path = tmp_path / "rig.yaml"
        path.write_text(f"schema: cuvil-rig/1\nboards:\n{boards}", encoding="utf-8")
        return path

    return write


def board(reach: str, more: str = "") -> str:
    return (
        f"  - name: here\n    profile: x86_64-linux-gnu\n    {reach}\n    python: {sys.executable}\n"
        f"    environment: {{PYTHONPATH: '{ROOT}'}}\n{more}"
    )


def test_every_check_passes_on_this_machine(programs: Path, rig: Write) -> None:
    heard: list[BoardCheck] = []
    results = run(read_rig(rig(board("local: true"))), [programs / "mlp.cuvil"], said=heard.append)
    assert [(r.check, r.status) for r in results] == [(c, "passed") for c in CHECKS], results
    assert heard == results
    assert results[-1].figures["samples_per_s"] > 0


def test_a_board_that_computes_otherwise_is_found(programs: Path, rig: Write, tmp_path: Path) -> None:
    """Other weights under the same IR: what is sent and expected stays, what the device gives doesn't."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3)).eval()
    other = cuvil.compile(net, "x86_64-linux-gnu", torch.zeros(1, 5), name="mlp")
    other.save(tmp_path / "other.cuvil")
    wrapper = tmp_path / "python"  # a "board" that runs the other program
    wrapper.write_text(
        f'#!/bin/sh\nshift 3\nexec {sys.executable} -m cuvil_hw.runtime.on_board {tmp_path / "other.cuvil"} "$1"\n',
        encoding="utf-8",
    )
    wrapper.chmod(0o700)
    path = rig(board("local: true").replace(f"python: {sys.executable}", f"python: {wrapper}"))
    results = {r.check: r for r in run(read_rig(path), [programs / "mlp.cuvil"])}
    assert results["opens"].status == "passed"
    assert results["results"].status == "failed"
    assert "elements differ, first at" in results["results"].why
    assert main(["hil", str(programs / "mlp.cuvil"), "--rig", str(path)]) == 1


ONE = "  - name: a\n    profile: cpu\n"
HERE = ONE + "    local: true\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (ONE, ":3: boards.0: is reached by exactly one of ssh, labgrid, local, simulated; it has none"),
        (HERE + "    ssh: b\n", "it has ssh, local"),
        (ONE + "    ssh: -oProxyCommand=x\n", "boards.0.ssh: is '-oProxyCommand=x'"),
        (HERE + "    clock: 3\n", ":6: boards.0.clock: is not known"),
        (HERE + "    power: {on: usbrelay}\n", "power: maps on, off and cycle"),
        (HERE + "    timeout_s: 0\n", "timeout_s: is 0"),
        (HERE + HERE, "'a' is used twice"),
        ("  - profile: cpu\n    local: true\n", "boards.0.name: is missing"),
        ("  []\n", "boards: lists no board"),
        ("  - [\n", "is no YAML"),
    ],
)
def test_wrong_rig_files_say_where(rig: Write, text: str, fault: str) -> None:
    path = rig(text)
    with pytest.raises(CuvilError) as e:
        read_rig(path)
    assert fault in str(e.value)
    assert str(path) in str(e.value)


def test_what_is_chosen_must_be_there(programs: Path, rig: Write) -> None:
    found = read_rig(rig(board("local: true", "    features: [camera]\n")))
    with pytest.raises(CuvilError, match="no board 'z2'; there are: here"):
        run(found, [programs / "mlp.cuvil"], boards=["z2"])
    with pytest.raises(CuvilError, match="was compiled for x86_64-linux-gnu; the boards chosen are: none"):
        run(found, [programs / "mlp.cuvil"], features=["dma"])
    assert [b.name for b in found.choose([], ["camera"])] == ["here"]
    with pytest.raises(CuvilError, match="is no file"):
        run(found, [programs / "missing.cuvil"])


def test_a_python_that_fails_is_an_error_with_its_last_line(programs: Path, rig: Write) -> None:
    found = read_rig(rig(board("local: true").replace(f"python: {sys.executable}", "python: /bin/false")))
    (result,) = run(found, [programs / "mlp.cuvil"])
    assert (result.check, result.status) == ("opens", "error")
    assert "ended with 1" in result.why


def test_a_program_that_never_ends_is_stopped(programs: Path, rig: Write, tmp_path: Path) -> None:
    sleeps = tmp_path / "python"
    sleeps.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    sleeps.chmod(0o700)
    text = board("local: true", "    timeout_s: 0.3\n").replace(f"python: {sys.executable}", f"python: {sleeps}")
    (result,) = run(read_rig(rig(text)), [programs / "mlp.cuvil"])
    assert result.status == "error"
    assert "no end after 0.3 s" in result.why


def fake(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/calls\n{body}', encoding="utf-8")
    path.chmod(0o700)


REMOTE = 'while [ "$1" != -- ]; do shift; done; shift\nexec sh -c "$1"\n'


@pytest.mark.parametrize("reach", ["ssh", "labgrid"])
def test_over_a_remote_shell(
    reach: str, programs: Path, rig: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ssh, scp and labgrid-client stand for themselves by programs that do the same on this machine."""
    tools = tmp_path / "tools"
    tools.mkdir()
    if reach == "ssh":
        fake(tools, "ssh", REMOTE)
        fake(tools, "scp", 'for last; do :; done\nwhile [ $# -gt 2 ]; do shift; done\nexec cp "$1" "${last#*:}"\n')
    else:
        body = f'shift 2\ncase "$1" in ssh) {REMOTE.strip()};; scp) exec cp "$2" "${{3#:}}";; esac\n'
        fake(tools, "labgrid-client", body.replace("\nexec", "; exec"))
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    results = run(read_rig(rig(board(f"{reach}: bench-3"))), [programs / "mlp.cuvil"])
    assert [r.status for r in results] == ["passed"] * len(CHECKS), results
    calls = (tools / "calls").read_text(encoding="utf-8").splitlines()
    if reach == "labgrid":
        words = [c.removeprefix("labgrid-client -p bench-3 ").split()[0:2] for c in calls]
        assert words[0] == ["acquire"]
        assert words[1] == ["power", "on"]
        assert words[-2:] == [["power", "off"], ["release"]]
    made = next(c for c in calls if "mktemp" in c)
    removed = next(c for c in calls if "rm -rf" in c)
    assert calls.index(made) < calls.index(removed)
    assert not Path(removed.rsplit(" ", 1)[1]).exists()


def test_power_goes_off_again_whatever_happens(tmp_path: Path) -> None:
    log = tmp_path / "log"
    power = {k: ("sh", "-c", f"echo {k} >> {log}") for k in ("on", "off")}
    given = RigBoard("a", "cpu", "local", power=power)
    with pytest.raises(ZeroDivisionError), reached(given):
        raise ZeroDivisionError
    assert log.read_text(encoding="utf-8").split() == ["on", "off"]


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolNotFound, match="pip install labgrid"), reached(RigBoard("a", "cpu", "labgrid", "bench-3")):
        pass


def test_junit_counts_what_happened() -> None:
    found = [
        BoardCheck("a", "kws", "opens", "passed", figures={"open_s": 1.5}),
        BoardCheck("a", "kws", "batch", "failed", "3 of 4 elements differ\x1b"),
        BoardCheck("b", "kws", "opens", "error", "no bitstream"),
        BoardCheck("b", "kws", "batch", "skipped", "the program doesn't open"),
    ]
    root = ElementTree.fromstring(junit([case_of(c) for c in found]))
    a, b = root
    assert (a.attrib["tests"], a.attrib["failures"], a.attrib["errors"]) == ("2", "1", "0")
    assert (b.attrib["failures"], b.attrib["errors"], b.attrib["skipped"]) == ("0", "1", "1")
    assert [e.tag for case in root.iter("testcase") for e in case] == ["system-out", "failure", "error", "skipped"]


def test_pytest_runs_them_as_tests(programs: Path, rig: Write, tmp_path: Path) -> None:
    path = rig(board("local: true"))
    plugin = ("-p", "cuvil_hw.rig.pytest_plugin", "-p", "no:cacheprovider", "--cuvil-rig", str(path))
    place = ("--rootdir", str(tmp_path), f"--junit-xml={tmp_path}/out.xml", str(programs / "mlp.cuvil"))
    argv = [sys.executable, "-m", "pytest", "-q", *plugin, *place]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [c.attrib["name"] for c in ElementTree.parse(tmp_path / "out.xml").getroot().iter("testcase")]
    assert names == [f"here-{c}" for c in CHECKS]


def test_command_gives_json_and_junit(
    programs: Path, rig: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.xml"
    program = str(programs / "mlp.cuvil")
    assert main(["hil", program, "--rig", str(rig(board("local: true"))), "--junit", str(out), "--json"]) == 0
    given = json.loads(capsys.readouterr().out)
    assert given["passed"] is True
    assert [c["check"] for c in given["checks"]] == list(CHECKS)
    assert ElementTree.parse(out).getroot()[0].attrib["tests"] == str(len(CHECKS))


def test_vectors_are_what_the_ir_means(programs: Path) -> None:
    from cuvil_hw.rig.suite import cases

    with cases([programs / "mlp.cuvil"], samples=4) as (case,):
        with np.load(case.vectors, allow_pickle=False) as arrays:
            x, y = arrays["x0"], arrays["y0"]
        with zipfile.ZipFile(case.path) as archive:
            assert "manifest.json" in archive.namelist()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3)).eval()
    np.testing.assert_allclose(y, net(torch.from_numpy(x)).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.needs("g++")
@pytest.mark.skipif(not (ROOT / ".venv-pynq").exists(), reason="the board's environment is made by `make board`")
def test_a_simulated_board_runs_them(rig: Write, tmp_path: Path) -> None:
    """The driver, the DMA and the emitted HLS C++ behind it, in the environment of a board."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3)).eval()
    data = torch.randn(64, 12).numpy()
    cuvil.compile(net, "pynq-z2", data[:1], data, "int8", name="mlp").save(tmp_path / "mlp.cuvil")
    python = ROOT / ".venv-pynq" / "bin" / "python"
    text = f"  - {{name: z2, profile: pynq-z2, simulated: true, python: '{python}'}}\n"
    results = run(read_rig(rig(text)), [tmp_path / "mlp.cuvil"])
    assert [(r.check, r.status) for r in results] == [(c, "passed") for c in CHECKS], results
    assert shutil.which("g++")
