"""Where results are written: devices, pipes and links stay what they are, inputs stay whole, a full disk is said."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cuvil
from cuvil_hw.cli.main import main
from cuvil_hw.cli.output import read_array, read_arrays
from cuvil_hw.contract import files
from cuvil_hw.errors import CuvilError
from cuvil_hw.report.file import write_bytes
from tests.support.onnx_oracle import floats, node_model

Write = Callable[[Path, bytes], None]


@pytest.fixture(scope="module")
def program() -> cuvil.Executable:
    found = cuvil.compile(node_model("Relu", [floats(1, 3)], {}, 13, set(), 1), "cpu")
    assert isinstance(found, cuvil.Executable)
    return found


@pytest.fixture(params=["write_bytes", "save"])
def write(request: pytest.FixtureRequest, program: cuvil.Executable) -> Write:
    """Both ways in which something is written; `save` has its own bytes."""
    return write_bytes if request.param == "write_bytes" else lambda path, data: program.save(path)


def test_devices_stay_devices(tmp_path: Path, write: Write) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    for path in (Path("/dev/null"), link):
        write(path, b"gone")
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert link.is_symlink()
    assert os.listdir(tmp_path) == ["link"]
    with pytest.raises(CuvilError, match="No space left"):
        write(Path("/dev/full"), b"x")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_node_of_ones_own_stays(tmp_path: Path, write: Write) -> None:
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        node.write_bytes(b"")
    except OSError:
        pytest.skip("no device nodes in this container")
    write(node, b"gone")
    assert stat.S_ISCHR(node.stat().st_mode)


def test_pipes_are_written_through(tmp_path: Path, write: Write) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write(pipe, b"x" * 300_000)
    reader.join(timeout=30)
    assert len(got) == 1
    assert len(got[0]) > 1000
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_to_a_file_stays_and_its_file_is_replaced_at_once(tmp_path: Path, write: Write) -> None:
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to("there/real")
    with real.open("rb") as reader:
        write(link, b"new")
        assert reader.read() == b"old"  # a reader that was there sees the old file whole
    assert link.is_symlink()
    assert real.read_bytes() != b"old"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path / "there")) == ["real"]
    hanging = tmp_path / "hanging"
    hanging.symlink_to("there/fresh")
    write(hanging, b"new")
    assert hanging.is_symlink()
    assert (tmp_path / "there" / "fresh").is_file()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "full")

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(CuvilError, match="could not be written"):
        write_bytes(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("path", ["", "a\0b", "no/such/folder", "n" * 300])
def test_places_that_are_none(path: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CuvilError, match="could not be written"):
        write(Path(path), b"x")


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, program: cuvil.Executable, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(node_model("Relu", [floats(1, 3)], {}, 13, set(), 1).SerializeToString())
    program.save("m.cuvil")
    np.save("x.npy", floats(1, 3))
    os.symlink("x.npy", "alias.npy")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ["compile", "m.onnx", "-t", "cpu", "-o", "m.onnx"],
        ["compile", "m.onnx", "-t", "cpu", "--report", "m.onnx"],
        ["compile", "m.onnx", "-t", "cpu", "--calibration", "x.npy", "-o", "x.npy"],
        ["compile", "m.onnx", "-t", "cpu", "--constant", "x0=x.npy", "-o", "./x.npy"],
        ["run", "m.cuvil", "-i", "x.npy", "-o", "x.npy"],
        ["run", "m.cuvil", "-i", "x0=x.npy", "-o", "alias.npy"],
        ["report", "m.cuvil", "--html", "m.cuvil"],
    ],
)
def test_no_input_is_overwritten(folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert main(command) == 2
    assert "would be overwritten, and is an input" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_results_are_npy_or_npz(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("y.csv", "y", "y.txt"):
        assert main(["run", "m.cuvil", "-i", "x.npy", "-o", name]) == 2
        assert "written as .npy" in capsys.readouterr().err
        assert not (folder / name).exists()
    assert main(["run", "m.cuvil", "-i", "x.npy", "-o", "/dev/null"]) == 0
    assert main(["run", "m.cuvil", "-i", "x.npy", "-o", "y.npy"]) == 0
    np.testing.assert_array_equal(np.load("y.npy"), np.maximum(np.load("x.npy"), 0))


def test_a_full_standard_output_is_no_bug(folder: Path) -> None:
    for command in (["targets", "list"], ["report", "m.cuvil", "--json"], ["run", "gone.cuvil", "--json"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "cuvil_hw.cli.main", *command], cwd=folder, stdout=full, stderr=subprocess.PIPE,
                text=True, check=False, timeout=120, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )  # fmt: skip
        assert done.returncode == 1, done.stderr
        assert done.stderr.startswith("error: standard output: No space left")
        assert "Traceback" not in done.stderr
        assert "bug" not in done.stderr


# -- arrays in files --------------------------------------------------------------------------------------------------


def header(shape: str, dtype: str = "<f4", magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text = text.ljust(118 - len(magic) + 8) + b"\n"
    return magic + len(text).to_bytes(2, "little") + text


FALSE = (
    header("(1099511627776,)"), header("(4611686018427387904, 4611686018427387904)"), header("(-1,)"),
    header("(2.5,)"), header("'x'"), header("(3,)") + bytes(11), header("(3,)", "|O"), header("(3,)", "zz"),
    header("(" * 200), b"\x93NUMPY", b"\x93NUMPY\x09\x00", b"", b"PK\x03\x04", b"\x80\x04N.",
    header("(3,)", magic=b"\x93NUMPY\x03\x00"),
)  # fmt: skip


@pytest.mark.parametrize("content", FALSE)
@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_npy_files_with_false_headers(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for read in (read_array, read_arrays):
        with pytest.raises(CuvilError, match=rf"{name}: not a NumPy array file"):
            read(path)


def test_damaged_archives_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=floats(20, 3))
    good = path.read_bytes()
    for at in range(0, len(good), 7):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        try:
            read_arrays(path)
        except CuvilError:
            continue


# -- how long a device took -------------------------------------------------------------------------------------------


@pytest.mark.needs("g++")
def test_device_seconds_are_those_of_the_design(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the lock or changing over to a library that was built meanwhile is not the device's time."""
    from cuvil_hw.adapters.zynq.simulator import LoadedSimulation

    clamp = node_model("Max", [np.zeros((1, 8), np.int8), np.zeros((1, 8), np.int8)], {}, 13, {1}, 1)
    simulated = cuvil.compile(clamp, "pynq-z2", interface="sim")
    x = np.ones((1, 8), np.int8)
    simulated.run(x)
    original = LoadedSimulation._run_part

    def late(*args: object) -> object:
        time.sleep(0.3)
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(LoadedSimulation, "_run_part", late)
    assert simulated.run(x).device_seconds < 0.2
    simulated.close()


def test_two_dots_go_up_from_where_a_link_leads(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("link").symlink_to(tmp_path / "data" / "a")
    for name in ("link/../m", "link/../m"):  # a new file, and one that is there
        write(Path(name), b"x")
        assert os.listdir("..") in (["data", "here"], ["here", "data"])
        assert os.listdir(".") == ["link"]
        assert sorted(os.listdir("../data")) == ["a", "m"]
    with pytest.raises(CuvilError, match="No such file or directory"):
        write(Path("missing/../m"), b"x")
    assert os.listdir(".") == ["link"]


@pytest.mark.parametrize("name", ["out/", "out/.", "out/..", "there/"])
def test_a_folder_is_not_made_a_file(
    name: str, tmp_path: Path, program: cuvil.Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    for save in (program.save, lambda path: write_bytes(path, b"x")):
        with pytest.raises(CuvilError, match=r"could not be written.*(Is a directory)"):
            save(name)
    assert os.listdir() == ["there"]


def test_permissions_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "file"
    old = os.umask(0o077)
    try:
        for mode in (0o644, 0o640):
            files.replace(path, b"x", mode=mode)
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(old)
