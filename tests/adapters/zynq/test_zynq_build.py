"""The project's build.py: which tool of which generation it runs, with stand-ins that only say how they were called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuvil_hw import data

CONFIG = "--config hls_config.cfg --work_dir hls_component"


def run(tmp_path: Path, tools: tuple[str, ...], *args: str, status: int = 0) -> tuple[int, list[str], str]:
    """(exit code, calls with CUVIL_COSIM, what was said) with only `tools` on PATH, which end with `status`."""
    project, tools_folder, log = tmp_path / "project", tmp_path / "bin", tmp_path / "log"
    for folder in (project, tools_folder):
        folder.mkdir()
    (project / "build.py").write_bytes((data.folder("hls") / "project" / "build.py").read_bytes())
    for tool in tools:
        stand_in = tools_folder / tool
        stand_in.write_text(f'#!/bin/sh\necho "{tool} $* cosim=$CUVIL_COSIM in $PWD" >> "{log}"\nexit {status}\n')
        stand_in.chmod(0o755)
    env = {**os.environ, "PATH": str(tools_folder)}
    done = subprocess.run(
        [sys.executable, project / "build.py", *args], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    lines = log.read_text().splitlines() if log.exists() else []
    assert all(line.endswith(f" in {project}") for line in lines)
    return done.returncode, [line.removesuffix(f" in {project}") for line in lines], done.stderr


@pytest.mark.parametrize(
    ("tools", "args", "calls"),
    [
        (("vitis_hls",), (), ["vitis_hls -f run_hls.tcl cosim=0"]),
        (("vitis_hls",), ("--cosim",), ["vitis_hls -f run_hls.tcl cosim=1"]),
        (("vitis_hls", "vitis-run"), (), ["vitis-run --mode hls --tcl run_hls.tcl cosim=0"]),
        (
            ("v++", "vitis-run"),
            ("--component", "--cosim"),
            [
                f"vitis-run --mode hls --csim {CONFIG} cosim=1",
                f"v++ -c --mode hls {CONFIG} cosim=1",
                f"vitis-run --mode hls --cosim {CONFIG} cosim=1",
                f"vitis-run --mode hls --package {CONFIG} cosim=1",
            ],
        ),
    ],
)
def test_every_generation(tmp_path: Path, tools: tuple[str, ...], args: tuple[str, ...], calls: list[str]) -> None:
    assert run(tmp_path, tools, *args)[:2] == (0, calls)


@pytest.mark.parametrize(
    ("tools", "args", "said"),
    [
        ((), (), "neither vitis-run nor vitis_hls is on PATH"),
        (("vitis_hls",), ("--component",), "v++ and vitis-run are not on PATH: source settings64.sh of Vitis 2023.2"),
    ],
)
def test_a_tool_that_is_missing(tmp_path: Path, tools: tuple[str, ...], args: tuple[str, ...], said: str) -> None:
    code, calls, heard = run(tmp_path, tools, *args)
    assert (code, calls) == (1, [])
    assert said in heard


def test_a_step_that_fails_is_the_last(tmp_path: Path) -> None:
    code, calls, _ = run(tmp_path, ("v++", "vitis-run"), "--component", status=3)
    assert (code, calls) == (3, [f"vitis-run --mode hls --csim {CONFIG} cosim=0"])
