"""Processes: forked from one that has a program open, spawned beside it, and ended in every way."""

from __future__ import annotations

import multiprocessing
import multiprocessing.reduction
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw.contract import build
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.errors import CuvilError, DeviceError
from cuvil_hw.runtime import forks, opened
from cuvil_hw.runtime.forks import OneProcess
from tests.support.programs import DEVICES, data, program, saved, script

pytestmark = [
    pytest.mark.needs("g++"),
    pytest.mark.must_run,
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),  # that is what this is about
]
RUNS = 4


def _answers(exe: Any, seed: int, pipe: Any) -> None:
    try:
        pipe.send([exe(data(seed + n)) for n in range(RUNS)])
    except BaseException as e:
        pipe.send(f"{type(e).__name__}: {e}")
    pipe.close()


def _loads(path: str, interface: str, seed: int, pipe: Any) -> None:
    with cuvil.load(path, interface) as exe:
        _answers(exe, seed, pipe)


@pytest.mark.parametrize("device", DEVICES)
def test_forked_children_and_their_parent_at_once(device: str) -> None:
    """Each opens a device of its own: rows of one never come out in another."""
    context = multiprocessing.get_context("fork")
    with program(device) as exe:
        expected = {seed: exe(data(seed)) for seed in range(3 * RUNS)}
        children = []
        for n in range(2):
            receive, send = context.Pipe(duplex=False)
            child = context.Process(target=_answers, args=(exe, n * RUNS, send))
            child.start()
            send.close()
            children.append((n, child, receive))
        for seed in range(2 * RUNS, 3 * RUNS):
            np.testing.assert_array_equal(exe(data(seed)), expected[seed])
        for n, child, receive in children:
            assert receive.poll(60), "a child hangs"
            answers = receive.recv()
            assert not isinstance(answers, str), answers
            for k, answer in enumerate(answers):
                np.testing.assert_array_equal(answer, expected[n * RUNS + k])
            child.join(30)
            assert child.exitcode == 0
        np.testing.assert_array_equal(exe(data(0)), expected[0])


def test_spawned_children_on_every_device(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    children = []
    for device in DEVICES:
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=_loads, args=(*map(str, saved(device, tmp_path)), 0, send))
        child.start()
        send.close()
        children.append((device, child, receive))
    for device, child, receive in children:
        assert receive.poll(120), f"{device} hangs"
        answers = receive.recv()
        assert not isinstance(answers, str), f"{device}: {answers}"
        with program(device) as exe:
            for k, answer in enumerate(answers):
                np.testing.assert_array_equal(answer, exe(data(k)))
        child.join(30)
        assert child.exitcode == 0


def test_forked_while_other_threads_are_inside() -> None:
    """Whatever they hold at that moment is free in the child."""
    exe, stop = program("zynq-count"), threading.Event()
    expected = exe(data(0))

    def work() -> None:
        while not stop.is_set():
            exe(data(1))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    status = 0 if np.array_equal(exe(data(0)), expected) else 2
                finally:
                    os._exit(status)
            assert _ended(pid) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        exe.close()


def _ended(pid: int, seconds: float = 60) -> int:
    """Exit code of a child; -9 when it had to be stopped."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -9


EXIT = """
import os, sys
import cuvil, numpy as np
x = np.ones((4, 2, 6, 6), "f")
exe = cuvil.load(*sys.argv[1:])
first = exe(x)
folder = exe._open()._folder.path
pid = os.fork()
if not pid:
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
assert folder.is_dir() and any(folder.iterdir()), "the child removed its parent's files"
assert (exe(x) == first).all()
"""


@pytest.mark.parametrize("device", [d for d in ("cpu", "agilex") if d in DEVICES])
def test_a_child_that_ends_leaves_its_parents_files(device: str, tmp_path: Path) -> None:
    done = script(EXIT, *map(str, saved(device, tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")


DAEMON = """
import sys, threading, time
import cuvil, numpy as np
exe = cuvil.load(*sys.argv[1:3])
x = np.zeros((int(sys.argv[3]), 2, 6, 6), "f")
started = threading.Semaphore(0)
def work():
    while True:
        started.release()
        try:
            exe(x)
        except cuvil.CuvilError:
            return
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(6):
    started.acquire()
time.sleep(0.05)
"""


@pytest.mark.parametrize("device", DEVICES)
def test_daemon_threads_inside_a_call_at_the_end(device: str, tmp_path: Path) -> None:
    samples = {"cpu": 3000, "null": 100}.get(device, 64)
    done = script(DAEMON, *map(str, saved(device, tmp_path)), str(samples))
    assert done.returncode == 0, done.stderr


def test_a_call_that_outlasts_the_process(tmp_path: Path) -> None:
    """What it uses stays: the process takes it along."""
    text = DAEMON.replace("for _ in range(6):", "for _ in range(3):")
    done = script(text, *map(str, saved("cpu", tmp_path)), "1000000")
    assert done.returncode == 0, done.stderr


def test_hardware_that_does_not_survive_fork_is_refused_in_the_child() -> None:
    card = OneProcess("the card")
    card.enter()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            card.enter()
        except DeviceError as e:
            status = 0 if "the card was in use by process" in str(e) and "spawn" in str(e) else 2
        finally:
            os._exit(status)
    assert _ended(pid) == 0
    card.enter()


def test_a_lock_that_another_thread_holds_is_free_in_the_child() -> None:
    turn = forks.Turn()
    with turn.lock:
        pid = os.fork()
        if not pid:
            os._exit(0 if turn.lock.acquire(timeout=1) else 1)
        assert _ended(pid) == 0


def test_a_program_is_not_pickled() -> None:
    with pytest.raises(TypeError, match=r"isn't pickled; save it, and cuvil.load it in the other process"):
        multiprocessing.reduction.ForkingPickler.dumps(program("null"))


def test_temporary_folders_that_can_not_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    from cuvil_hw.runtime import scratch

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    made = scratch.make_folder("x-")
    assert str(made).startswith(os.environ["CUVIL_CACHE"]), "the cache's folder takes its place"
    made.rmdir()
    monkeypatch.setenv("CUVIL_CACHE", "/proc/none")
    with pytest.raises(CuvilError, match=r"no usable temporary folder: .*nowhere.*set TMPDIR"):
        scratch.make_folder("x-")


def test_a_folder_that_forbids_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuvil_hw.runtime import scratch

    monkeypatch.setattr(scratch, "noexec", lambda folder: True)
    (tmp_path / "x.so").write_bytes(b"\x7fELF")
    # What the loader says of such a folder can't be provoked without mounting one.
    monkeypatch.setattr(scratch, "whole", lambda path: None)
    with pytest.raises(DeviceError, match=r"x.so can't be loaded: .*mounted noexec.*set TMPDIR or CUVIL_CACHE"):
        scratch.load_library(tmp_path / "x.so", "p")


def test_everything_is_freed_once() -> None:
    exe = program("null")
    exe.open()
    handle = exe._open()
    folder = handle._folder.path
    assert folder.is_dir()
    handle.end(0.0)
    assert not folder.exists()
    with pytest.raises(DeviceError, match="is closed"):
        exe(data(0))
    exe.close()
    assert opened.END_S > 0


def test_a_forked_process_stops_no_command_of_its_parent(tmp_path: Path) -> None:
    """Threads of the child may get the identifiers of the parent's threads."""
    (tmp_path / "go").touch()
    waits = "import os, time\nwhile os.path.exists('go'): time.sleep(0.01)\nopen('made', 'w').close()"
    plan = BuildPlan({}, (Command((sys.executable, "-c", waits), "wait", "install Python"),), ("made",))
    made: list[dict[str, bytes]] = []
    builder = threading.Thread(target=lambda: made.append(plan.execute(tmp_path)))
    builder.start()
    while builder.ident not in build._running:
        time.sleep(0.01)
    child = multiprocessing.get_context("fork").Process(target=build.stop, args=(builder.ident,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    (tmp_path / "go").unlink()
    builder.join(30)
    assert made == [{"made": b""}]
