"""The Zynq simulator's builds: a quick library first, the fast one in the background, what designs share made once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cuvil_hw import data
from cuvil_hw.adapters.zynq import simbuild, simulator
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import DeviceProgram, Port
from cuvil_hw.errors import BuildFailed, DeviceError
from cuvil_hw.runtime import background, cache
from cuvil_hw.runtime.background import Background
from cuvil_hw.runtime.cache import cached_build

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++")]

# y = 3 x, but a sample that holds -1 makes it read a word that isn't there.
DESIGN = r"""
#include "times.h"
void top(hls::stream<ap_axiu<64, 0, 0, 0> >& in, hls::stream<ap_axiu<64, 0, 0, 0> >& out) {
  hls::stream<cuvil::vec<ap_int<16>, 4>, 2> a("a"), b("b");
  cuvil::axis_to_stream<64, ap_int<16>, 4, 4>(in, a);
  cuvil::vec<ap_int<16>, 4> v = a.read();
  if (v[0] == -1) v = a.read();
  for (int i = 0; i < 4; ++i) v[i] = v[i] * 3;
  b.write(v);
  cuvil::stream_to_axis<64, ap_int<16>, 4, 4>(b, out);
}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceProgram]:
    """A design in an empty cache, whose fast library is made at once; no build goes on afterwards."""
    monkeypatch.setattr(simulator, "_PATIENCE_S", 0.0)
    monkeypatch.setenv("CUVIL_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "project" / "src"
    source.mkdir(parents=True)
    (source / "cuvil_hls.h").write_bytes((data.folder("hls") / "cuvil_hls.h").read_bytes())
    (source / "times.h").write_text("#include <cuvil_hls.h>\n")
    (source / "times.cpp").write_text(DESIGN)
    about = {"name": "x", "shape": [4], "dtype": "i16", "order": [0]}
    info = {
        "project": "times", "top": "top", "inputs": [about], "outputs": [about], "layers": [], "axis_bits": 64
    }  # fmt: skip
    port = Port("x", (4,), "i16")
    yield DeviceProgram("times", tmp_path / "project", (port,), (port,), info)
    background.wait_for_all()


def loaded(program: DeviceProgram) -> simulator.LoadedSimulation:
    return simulator.Simulator("test", counting=False).load(program)


def case(samples: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(samples * 4, dtype=np.int16).reshape(samples, 4)
    return x, x * np.int16(3)


def code_of(simulation: simulator.LoadedSimulation) -> bytes:
    return simulation._library.path.read_bytes()


class Held:
    """simbuild.build, whose fast library waits for `gate`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.whole = simbuild.build

    def build(self, sources: simbuild.Sources, flags: tuple[str, ...] = ()) -> Path:
        if not flags:
            assert self.gate.wait(60)
        return self.whole(sources, flags)


def test_one_run_changes_over_to_the_fast_library_with_the_same_bits(
    program: DeviceProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    monkeypatch.setattr(simbuild, "build", held.build)
    monkeypatch.setattr(simulator, "_PART_S", 0.001)
    simulation = loaded(program)
    libraries: list[bytes] = []
    part = simulator.LoadedSimulation._run_part

    def counted(self: simulator.LoadedSimulation, *given: object) -> int:
        count = part(self, *given)  # type: ignore[arg-type]
        libraries.append(code_of(self))
        if len(libraries) == 3:
            held.gate.set()
            background.wait_for_all()
        return count

    monkeypatch.setattr(simulator.LoadedSimulation, "_run_part", counted)
    x, wanted = case(5000)
    np.testing.assert_array_equal(simulation.run([x])[0][0], wanted)
    assert len(libraries) > 3
    assert libraries[0] == libraries[2] != libraries[3] == libraries[-1]
    again = loaded(program)
    assert again._faster is None
    assert code_of(again) == libraries[3]


def test_a_design_that_runs_for_a_moment_is_compiled_once(
    program: DeviceProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "_PATIENCE_S", 60.0)
    simulation = loaded(program)
    for _ in range(3):
        np.testing.assert_array_equal(simulation.run([case(20)[0]])[0][0], case(20)[1])
    background.wait_for_all()
    assert simulation._faster is None
    assert simbuild.find(simbuild.read(program)) is None
    simulation._ran_s = 61.0
    simulation.run([case(20)[0]])
    background.wait_for_all()
    assert simbuild.find(simbuild.read(program)) is not None


def test_errors_name_the_sample_of_the_whole_batch(program: DeviceProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    monkeypatch.setattr(simbuild, "build", held.build)
    simulation = loaded(program)
    x, _ = case(9)
    simulation.run([x])
    x[7, 0] = -1
    x[8, 0] = -1
    for _ in range(2):
        with pytest.raises(DeviceError, match="sample 7: stream 'a' is read while empty"):
            simulation.run([x])
        held.gate.set()
        background.wait_for_all()


def test_a_failed_build_in_the_background_is_raised_by_the_next_run(
    program: DeviceProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = simbuild.build(simbuild.read(program), simbuild.QUICK)
    (program.folder / "src" / "times.cpp").write_text(DESIGN + "#error broken\n")
    sources = simbuild.read(program)
    simulation = simulator.LoadedSimulation(quick, program, lambda: simbuild.build(sources))
    np.testing.assert_array_equal(simulation.run([case(1)[0]])[0][0], case(1)[1])
    background.wait_for_all()
    for _ in range(2):
        with pytest.raises(BuildFailed, match="broken"):
            simulation.run([case(1)[0]])


def test_closing_stops_the_build(program: DeviceProgram, tmp_path: Path) -> None:
    # Compiling this takes many times what stopping does.
    loops = "".join(f"int f{n}(int x) {{ return x * {n} + f{n - 1}(x ^ {n}); }}\n" for n in range(1, 3000))
    (program.folder / "src" / "times.cpp").write_text(DESIGN + "int f0(int x) { return x; }\n" + loops)
    sources = simbuild.read(program)
    quick = simbuild.build(sources, simbuild.QUICK)
    simulation = simulator.LoadedSimulation(quick, program, lambda: simbuild.build(sources))
    np.testing.assert_array_equal(simulation.run([case(2)[0]])[0][0], case(2)[1])
    simulation.close()
    simulation.close()
    with pytest.raises(DeviceError, match="times: is closed"):
        simulation.run([case(2)[0]])
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith(".")]


def test_a_build_that_is_stopped_leaves_no_temporary_files(
    program: DeviceProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that is killed doesn't remove its own: they lie in the build's folder and go with it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    started = tmp_path / "started"
    text = f'import os, time; open(os.environ["TMPDIR"] + "/left", "w"); open({str(started)!r}, "w"); time.sleep(60)'
    command = Command((sys.executable, "-c", text), "wait", "none")
    build = Background(lambda: cached_build(BuildPlan({}, (command,), ("x",))))
    while not started.exists():
        time.sleep(0.01)
    build.stop()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith(".")]


def test_a_process_ends_at_once_and_leaves_nothing_behind(program: DeviceProgram, tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.runtime.background import Background
from cuvil_hw.runtime.cache import cached_build, root
code = "import os, time; open({str(tmp_path / "child")!r}, 'w').write(str(os.getpid())); time.sleep(60)"
plan = BuildPlan({{}}, (Command((sys.executable, "-c", code), "wait", "-"),), ("never",))
build = Background(lambda: cached_build(plan))
child = Path({str(tmp_path / "child")!r})
while not (child.exists() and child.read_text()):
    time.sleep(0.01)
"""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)
    assert time.monotonic() - start < 50
    child = int((tmp_path / "child").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith(".")]


def test_designs_share_the_runner_and_the_precompiled_header(program: DeviceProgram, tmp_path: Path) -> None:
    first = simbuild.build(simbuild.read(program), simbuild.QUICK)
    source = program.folder / "src" / "times.cpp"
    source.write_text(DESIGN.replace("* 3", "* 5"))
    second = simbuild.build(simbuild.read(program), simbuild.QUICK)
    assert first != second
    entries = [{f.name for f in p.iterdir()} for p in (tmp_path / "cache").iterdir() if p.is_dir()]
    assert sorted(map(sorted, entries)) == sorted(
        [
            ["entry.json", "runner.o"],
            ["cuvil_hls.h", "cuvil_hls.h.gch", "entry.json"],
            ["design.so", "entry.json"],
            ["design.so", "entry.json"],
        ]
    )
    x, _ = case(3)
    outputs = [simulator.LoadedSimulation(path, program).run([x])[0][0] for path in (first, second)]
    np.testing.assert_array_equal(outputs[0], x * np.int16(3))
    np.testing.assert_array_equal(outputs[1], x * np.int16(5))


def test_another_text_of_the_shared_header_is_another_design(program: DeviceProgram) -> None:
    first = simbuild.build(simbuild.read(program), simbuild.QUICK)
    header = program.folder / "src" / "cuvil_hls.h"
    text = header.read_text()
    header.write_text(text.replace("namespace cuvil {", "#define CHANGED 1\nnamespace cuvil {", 1))
    source = program.folder / "src" / "times.cpp"
    source.write_text(DESIGN.replace("* 3", "* (3 + CHANGED)"))
    second = simbuild.build(simbuild.read(program), simbuild.QUICK)
    x, _ = case(3)
    np.testing.assert_array_equal(simulator.LoadedSimulation(first, program).run([x])[0][0], x * np.int16(3))
    np.testing.assert_array_equal(simulator.LoadedSimulation(second, program).run([x])[0][0], x * np.int16(4))


def test_without_a_precompiled_header_the_bits_are_the_same(
    program: DeviceProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(plan: object, extra_key: str = "") -> Path:
        if any(name.endswith(".gch") for name in plan.products):  # type: ignore[attr-defined]
            raise BuildFailed(("g++",), 1, "no room for it")
        return whole(plan, extra_key)  # type: ignore[arg-type]

    whole = cache.cached_build
    monkeypatch.setattr(simbuild, "cached_build", refused)
    library = simbuild.build(simbuild.read(program), simbuild.QUICK)
    x, wanted = case(3)
    np.testing.assert_array_equal(simulator.LoadedSimulation(library, program).run([x])[0][0], wanted)
