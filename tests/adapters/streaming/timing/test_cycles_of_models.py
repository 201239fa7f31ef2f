"""Models compiled for a Zynq board and simulated with clocks: bits of the meaning, and time that fits the formula."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cuvil_hw.adapters.agilex import sycl
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.zynq import cycles, simbuild
from cuvil_hw.cli.main import main
from cuvil_hw.errors import CuvilError, DeviceError
from cuvil_hw.runtime.executable import Executable
from tests.adapters.streaming.timing.test_fpga_fifo import residual
from tests.support import fpga_runner, programs

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++")]


@pytest.fixture(scope="module")
def program() -> Iterator[Executable]:
    made = Executable(programs.program("zynq").artifact, "sim-cycles")
    yield made
    made.close()


def test_a_run_has_the_bits_of_the_simulator_and_simulated_seconds(program: Executable) -> None:
    x = programs.data(0, 5)
    with programs.program("zynq") as plain:
        wanted = plain(x)
    run = program.run(x)
    for got, expected in zip(run.outputs, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        np.testing.assert_array_equal(got, expected)
    found = program.timing()
    assert found.period == 1
    clock = found.clock_hz
    # Five samples: the first, and four more; those before the steady state may come faster.
    assert found.first_cycles / clock < run.device_seconds <= (found.first_cycles + 4 * found.cycles) / clock * 1.001
    assert program.run(programs.data(1, 5)).device_seconds == run.device_seconds  # no value has a say


def test_time_is_no_less_than_the_formula_says_and_equal_with_room_everywhere(program: Executable) -> None:
    slowest = max(layer["cycles"] for layer in program.report["layers"])
    found = program.timing()
    deep = program.timing({s.name: 4096 for s in found.streams if not s.name.startswith("port ")})
    assert deep.cycles <= found.cycles
    assert deep.cycles >= slowest * 0.99
    assert deep.bottlenecks
    for p in found.processes:
        assert p.busy + p.waits_for_words + p.waits_for_room == p.cycles
    for s in found.streams:
        assert 0 < s.mean <= s.most <= s.depth or s.words == 0


def test_the_command(program: Executable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.cuvil"
    program.save(path)
    assert main(["timing", str(path), "--html", str(tmp_path / "t.html")]) == 0
    text = capsys.readouterr().out
    assert "cycles per sample:" in text
    assert "Processes" in (tmp_path / "t.html").read_text(encoding="utf-8")
    assert main(["timing", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["cycles"] == program.timing().cycles
    section = (Path(__file__).parents[4] / "docs" / "cli.md").read_text().partition("## cuvil timing")[2]
    assert [key for key in data if f"`{key}`" not in section.partition("\n## ")[0]] == []
    name = next(s["name"] for s in data["streams"] if not s["name"].startswith("port "))
    assert main(["timing", str(path), "--depth", f"{name}=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cycles"] >= data["cycles"]
    assert main(["timing", str(path), "--depth", "nothing=1"]) == 1
    assert main(["timing", str(path), "--depth", "nothing"]) == 2


def test_agilex_has_clocks_too() -> None:
    """The same rules over pipes, without DMA engines: kernels read and write the host's memory, a word a cycle."""
    x = programs.data(0, 70)  # more than one call takes
    artifact = programs.program("agilex-sycl").artifact
    with programs.program("agilex-sycl") as plain, Executable(artifact, "sim-cycles") as program:
        np.testing.assert_array_equal(program(x), plain(x))
        run, found = program.run(x[:5]), program.timing()
        names = [s.name for s in found.streams]
        shallow = program.timing(dict.fromkeys(names, 1))
        with pytest.raises(CuvilError, match="no stream 'x'; it has "):
            program.timing({"x": 2})
        assert program.timing() == found
    assert found.period == 1
    assert run.device_seconds == (found.first_cycles + 4 * found.cycles) / found.clock_hz
    assert shallow.cycles > found.cycles
    assert found.bottlenecks
    assert [p.name for p in found.processes][-1].startswith("write_")
    assert {s.writer for s in found.streams} | {s.reader for s in found.streams} == {p.name for p in found.processes}


def test_loops_of_sycl_get_ticks_and_samples_on_their_line() -> None:
    text = b"""for (int sample = 0; sample < samples; ++sample) {
  [[intel::initiation_interval(3)]]
  [[intel::ivdep(rows)]]
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
"""
    clocked = sycl.with_clocks(text).splitlines()
    assert clocked[0].endswith(b"++sample) { ::cuvil::sim::next_sample();")
    assert clocked[3].endswith(b"++i) { ::cuvil::sim::tick(3);")
    assert clocked[4] == text.splitlines()[4]
    assert len(clocked) == 5


def test_other_targets_have_no_clocks() -> None:
    with programs.program("cpu") as program, pytest.raises(CuvilError, match="'sim-cycles'"):
        program.timing()


def test_a_bypass_one_word_too_short_is_named_with_its_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Depths less by what pipelines need are enough where nothing but the pragmas takes time; one word less isn't."""
    net = residual()
    inputs = fpga_runner.samples(net, np.random.default_rng(0), 3)
    wanted = fpga_runner.meaning(net, inputs)
    graph = fpga_runner.graph_of(net)
    choice = fpga_runner.random_choice(graph, random.Random(3))
    with fpga_runner.loaded(graph, choice, simbuild.BOUNDED) as simulation:
        timed = cycles.LoadedCycles(simulation._library.path, simulation._program, 1.0)
        for name, depth in _bypasses(graph, choice).items():
            short = timed.timing({name: depth}).streams
            most = next(s.most for s in short if s.name == name)
            enough = next(d for d in range(most, 0, -1) if not _finishes(timed, name, d - 1))
            assert _finishes(timed, name, enough)
            with pytest.raises(DeviceError, match=f"'{name}' has {enough} words instead of {enough - 1}"):
                timed.timing({name: enough - 1})
        assert not fpga_runner.difference(net, timed.run(inputs)[0], wanted)
        timed.close()


def _bypasses(graph: object, choice: object) -> dict[str, int]:
    net = dataflow.build_network(graph, fpga_runner.forms_of(choice))  # type: ignore[arg-type]
    return {name: depth for name, depth in dataflow.fifo_depths(net).items() if depth > 2}


def _finishes(timed: cycles.LoadedCycles, name: str, depth: int) -> bool:
    if depth < 1:
        return False
    try:
        timed.timing({name: depth})
    except DeviceError:
        return False
    return True
