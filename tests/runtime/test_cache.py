"""The build cache: keyed by content, built once, verified at every use, never half-written."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.errors import BuildFailed, CuvilError, ToolNotFound
from cuvil_hw.runtime import cache

# Each build leaves a line outside of its folder, so that builds can be counted.
SCRIPT = 'echo run >> "$1"; sleep "$2"; cp in out; mkdir sub; cp in sub/more'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("CUVIL_CACHE", str(folder))
    return folder


def plan(log: Path, content: bytes = b"1", sleep: str = "0") -> BuildPlan:
    command = Command(("sh", "-c", SCRIPT, "sh", str(log), sleep), "test", "install sh")
    return BuildPlan({"in": content}, (command,), ("out", "sub/more"))


def builds(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_built_once_and_private(tmp_path: Path, home: Path) -> None:
    log = tmp_path / "log"
    first = cache.cached_build(plan(log))
    assert (first / "out").read_bytes() == b"1"
    assert (first / "sub/more").read_bytes() == b"1"
    assert cache.cached_build(plan(log)) == first
    assert builds(log) == 1
    assert home.stat().st_mode & 0o777 == 0o700
    assert first.stat().st_mode & 0o077 == 0
    assert cache.info().entries == 1
    assert cache.info().size_bytes > 2
    assert cache.clear() == 1
    assert cache.info().entries == 0
    cache.cached_build(plan(log))
    assert builds(log) == 2


def test_key_covers_all_that_products_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = plan(tmp_path / "log")
    tool = tmp_path / "bin" / "mytool"
    tool.parent.mkdir()

    def install(version: str) -> None:
        tool.write_text(f"#!/bin/sh\necho {version}\n")
        tool.chmod(0o755)
        os.utime(tool, ns=(0, len(version)))

    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    install("1.0")
    with_tool = replace(base, commands=(*base.commands, Command(("mytool",), "test", "")))
    keys = {cache.build_key(base), cache.build_key(base, "headers"), cache.build_key(with_tool)}
    keys.add(cache.build_key(replace(base, files={"in": b"2"})))
    keys.add(cache.build_key(replace(base, products=("out",))))
    install("1.0.1")
    keys.add(cache.build_key(with_tool))
    monkeypatch.setenv("CPATH", "/elsewhere")
    keys.add(cache.build_key(base))
    monkeypatch.setattr(cache, "VERSION", "99")
    keys.add(cache.build_key(base))
    assert len(keys) == 8


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: (e / "out").write_bytes(b"2"),
        lambda e: (e / "out").unlink(),
        lambda e: (e / "entry.json").unlink(),
        lambda e: (e / "entry.json").write_text("{"),
        lambda e: (e / "entry.json").write_text("{}"),
        lambda e: (e / "entry.json").write_text("[1]"),
        lambda e: ((e / "out").rename(e / "moved"), (e / "out").symlink_to(e / "moved")),
        lambda e: (shutil.rmtree(e), e.write_text("a file")),
    ],
)
def test_a_damaged_entry_is_rebuilt(tmp_path: Path, damage: Any) -> None:
    log = tmp_path / "log"
    entry = cache.cached_build(plan(log))
    damage(entry)
    assert (cache.cached_build(plan(log)) / "out").read_bytes() == b"1"
    assert not (entry / "out").is_symlink()
    assert builds(log) == 2
    cache.cached_build(plan(log))
    assert builds(log) == 2


def test_processes_at_once_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import importlib.util as u\n"
        "s = u.spec_from_file_location('t', sys.argv[2]); t = u.module_from_spec(s); s.loader.exec_module(t)\n"
        "print((t.cache.cached_build(t.plan(Path(sys.argv[3]), sleep='0.5')) / 'out').read_bytes())"
    )
    root = str(Path(__file__).parents[2])
    argv = [sys.executable, "-c", code, root, __file__, str(log)]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [p.communicate(timeout=60)[0].strip() for p in running] == ["b'1'"] * 3
    assert builds(log) == 1


def test_leftovers_of_a_killed_build_go_away(tmp_path: Path, home: Path) -> None:
    log = tmp_path / "log"
    entry = cache.cached_build(plan(log))
    shutil.rmtree(entry)
    (home / f".{entry.name}-dead").mkdir()
    cache.cached_build(plan(log))
    assert sorted(os.listdir(home)) == [entry.name, f"{entry.name}.lock"]


def test_failed_builds_leave_nothing(tmp_path: Path, home: Path) -> None:
    failing = BuildPlan({}, (Command(("sh", "-c", "exit 1"), "test", ""),), ("out",))
    with pytest.raises(BuildFailed):
        cache.cached_build(failing)
    with pytest.raises(ToolNotFound, match="no-such-tool-y"):
        cache.cached_build(BuildPlan({}, (Command(("no-such-tool-y",), "test", "get it"),)))
    assert [n for n in os.listdir(home) if not n.endswith(".lock")] == []


def test_full_disk_leaves_nothing(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdopen

    def full(fd: int, *args: Any, **kwargs: Any) -> Any:
        if "entry" in os.readlink(f"/proc/self/fd/{fd}"):
            os.close(fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, *args, **kwargs)

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(CuvilError, match=r"No space left.*free space"):
        cache.cached_build(plan(tmp_path / "log"))
    assert [n for n in os.listdir(home) if not n.endswith(".lock")] == []


def test_a_lock_that_never_comes_free(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    entry = cache.cached_build(plan(tmp_path / "log"))
    monkeypatch.setattr(cache, "LOCK_TIMEOUT_S", 0.1)
    with open(home / f"{entry.name}.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CuvilError, match=r"\.lock: another process held it"):
            cache.cached_build(plan(tmp_path / "log"))


def test_a_cache_that_others_can_write_is_refused(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(CuvilError, match="another user; set CUVIL_CACHE"):
        cache.root()


def test_chosen_cache_that_can_not_be_used_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUVIL_CACHE", str(tmp_path / "file"))
    with pytest.raises(CuvilError, match=r"can't be written.*set CUVIL_CACHE"):
        cache.root()


def test_default_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("CUVIL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.root() == tmp_path / "home/.cache/cuvil"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.root() == tmp_path / "xdg/cuvil"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        private = cache.root()
    assert private.stat().st_mode & 0o777 == 0o700
    assert str(private) in caplog.text
    assert "can't be written" in caplog.text
    assert cache.root() == private
