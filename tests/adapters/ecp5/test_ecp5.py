"""The ECP5 adapter: profiles, the project, its design behind the serial line, and what place and route says."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw import dtypes
from cuvil_hw.adapters.ecp5 import hw, routed
from cuvil_hw.adapters.ecp5.parts import contradictions, divisors, part_of
from cuvil_hw.contract.build import BuildPlan, Command, telling
from cuvil_hw.errors import BuildFailed, CuvilError, DeviceError, ToolNotFound
from cuvil_hw.runtime.cache import build
from cuvil_hw.target.profile import load_profile

torch = pytest.importorskip("torch")
BOARDS = ("ulx3s-85f", "ecpix5-85f", "lfe5u-25f", "lfe5u-45f", "lfe5u-85f")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board whose bitstream is built later."""
    path = tmp_path_factory.mktemp("profile") / "later.yaml"
    path.write_text(
        "schema: cuvil-profile/1\nname: later\nextends: ulx3s-85f\nsettings: {bitstream: later, loader: ulx3s}\n"
    )
    return path


@pytest.fixture(scope="module")
def network() -> tuple[Any, np.ndarray[Any, Any]]:
    torch.manual_seed(3)
    layers = [torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(36, 3)).eval()
    return model, np.random.default_rng(5).standard_normal((12, 2, 6, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def program(profile: Path, network: tuple[Any, np.ndarray[Any, Any]]) -> Any:
    model, x = network
    return cuvil.compile(model, profile, example_inputs=torch.from_numpy(x[:1]), calibration=x, precision="int8")


@pytest.mark.parametrize("board", BOARDS)
def test_profiles_agree_with_their_parts(board: str) -> None:
    assert list(contradictions(load_profile(board))) == []


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"part": "xc7z020clg400-1"}, "part"),
        ({"clock_hz": 37_123_456.0}, "clock_mhz"),
        ({"clock_hz": 900e6}, "clock_mhz"),
        ({"settings": {"oscillator_mhz": 25, "clock_pin": "G2", "rx_pin": "M1"}}, "settings.tx_pin"),
        ({"settings": {"clock_pin": "G2", "rx_pin": "M1", "tx_pin": "L4"}}, "settings.oscillator_mhz"),
        (
            {"settings": {"oscillator_mhz": 25, "clock_pin": 'G2"; LOCATE', "rx_pin": "M1", "tx_pin": "L4"}},
            "settings.clock_pin",
        ),
    ],
)
def test_what_can_not_be_together_is_told(change: dict[str, Any], key: str) -> None:
    assert [k for k, _ in contradictions(replace(load_profile("ulx3s-85f"), **change))] == [key]


def test_sizes_beyond_the_part_are_told() -> None:
    large, small = load_profile("ulx3s-85f"), "LFE5U-25F-6BG381C"
    keys = [k for k, _ in contradictions(replace(large, part=small))]
    assert keys == [f"resources.{axis}.limit" for axis in ("lut4", "ff", "bram18", "dsp18")]


@pytest.mark.parametrize(
    ("name", "option", "package"),
    [
        ("LFE5U-85F-6BG381C", "85k", "CABGA381"),
        ("LFE5UM5G-85F-8BG554I", "um5g-85k", "CABGA554"),
        ("LFE5UM-25F-7BG285", "um-25k", "CSFBGA285"),
    ],
)
def test_names_of_parts(name: str, option: str, package: str) -> None:
    part = part_of(name)
    assert part is not None
    assert (part.option, part.package) == (option, package)


@pytest.mark.parametrize(("given", "wanted"), [(25, 50), (25, 25), (100, 50), (12, 48), (48, 60), (25, 62.5)])
def test_divisors_make_the_clock_within_the_limits_of_the_loop(given: float, wanted: float) -> None:
    found = divisors(given * 1e6, wanted * 1e6)
    assert found is not None
    assert given * found.feedback == wanted * found.source
    assert 400 <= wanted * found.target <= 800
    assert given / found.source >= 10


def test_two_builds_are_equal_and_named_after_the_layers(program: Any, profile: Path, network: Any) -> None:
    model, x = network
    again = cuvil.compile(model, profile, example_inputs=torch.from_numpy(x[:1]), calibration=x, precision="int8")
    sources = {n: d for n, d in program.artifact.files.items() if n.startswith("sources/")}
    assert sources == {n: d for n, d in again.artifact.files.items() if n.startswith("sources/")}
    for layer in program.report["layers"]:
        assert f"sources/rtl/{layer['name']}.sv" in sources
    lpf = sources["sources/Sequential.lpf"].decode()
    assert 'LOCATE COMP "clk_in" SITE "G2";' in lpf
    assert 'FREQUENCY PORT "clk_in" 25 MHZ;' in lpf


def test_what_is_written_does_not_depend_on_the_tools_of_this_machine(
    program: Any, profile: Path, network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = network
    readme = program.artifact.files["sources/README.md"].decode()
    for line in ("    yosys -q -p ", "    nextpnr-ecp5 -q ", "    ecppack ", "    openFPGALoader -b ulx3s design.bit"):
        assert f"\n{line}" in readme
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    again = cuvil.compile(model, profile, example_inputs=torch.from_numpy(x[:1]), calibration=x, precision="int8")
    assert again.artifact.files["sources/README.md"].decode() == readme


def test_a_design_is_no_larger_than_its_line_needs(program: Any, network: Any, tmp_path: Path) -> None:
    """A line of 1 Mbaud moves a byte in 500 cycles of 50 MHz; asked for the core's sake, layers unroll."""
    model, x = network
    fast = tmp_path / "fast.yaml"
    fast.write_text(
        "schema: cuvil-profile/1\nname: fast\nextends: ulx3s-85f\nsettings: {bitstream: later, sized_for: core}\n"
    )
    other = cuvil.compile(model, fast, example_inputs=torch.from_numpy(x[:1]), calibration=x, precision="int8")
    (output,) = program.artifact.manifest.device_outputs
    moved = 2 * 6 * 6 + 3 * dtypes.to_numpy(output.dtype).itemsize
    assert max(layer["cycles"] for layer in program.report["layers"]) <= moved * 500
    used, wanted = ({t["axis"]: t["used"] for t in p.report["totals"]} for p in (program, other))
    assert used["lut4"] < wanted["lut4"]
    assert other.report["timing"]["interval"] < program.report["timing"]["interval"]


@pytest.mark.parametrize("interface", ["rtl", "rtl-serial"])
@pytest.mark.needs("verilator", "g++", "make")
@pytest.mark.must_run
def test_bits_are_those_of_the_processor(program: Any, network: Any, interface: str, tmp_path: Path) -> None:
    model, x = network
    cpu = cuvil.compile(model, "cpu", example_inputs=torch.from_numpy(x[:1]), calibration=x, precision="int8")
    program.save(tmp_path / "design.cuvil")
    with cuvil.load(tmp_path / "design.cuvil", interface=interface) as device:
        np.testing.assert_array_equal(device(x), cpu(x))
        np.testing.assert_array_equal(device(x[:1]), cpu(x[:1]))
        np.testing.assert_array_equal(device(x[::2]), cpu(x[::2]))
        assert device(x[:0]).shape == (0, 3)


def test_floats_are_refused_with_the_reason(profile: Path, network: Any) -> None:
    model, x = network
    with pytest.raises(CuvilError, match=r"float|integers"):
        cuvil.compile(model, profile, example_inputs=torch.from_numpy(x[:1]), precision="float32")


def report(reached: float) -> dict[str, Any]:
    clock = "posedge $glbnet$clk"
    ends = {"from": {"cell": "line.design_.conv_1.sum_FF_Q"}, "to": {"cell": "line.design_.conv_1.next_LUT4"}}
    return {
        "fmax": {"$glbnet$clk": {"achieved": reached, "constraint": 50.0}},
        "critical_paths": [
            {"from": "<async>", "to": clock, "path": [{"delay": 99.0, **ends}]},
            {"from": clock, "to": clock, "path": [{"delay": 1.5, **ends}, {"delay": 20.25, **ends}]},
        ],
        "utilization": {"TRELLIS_COMB": {"used": 10, "available": 83640}},
    }


def test_a_missed_clock_is_an_error_that_names_the_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, made = tmp_path / "routed.json", tmp_path / "checked.json"
    file.write_text(json.dumps(report(46.0)))
    assert routed.main([str(file), "50", str(made)]) == 1
    assert "46 MHz" in (said := capsys.readouterr().out)
    assert "21.75 ns, in layer conv_1" in said
    assert not made.exists()
    file.write_text(json.dumps(report(51.0)))
    assert routed.main([str(file), "50", str(made)]) == 0
    assert json.loads(made.read_text())["used"]["lut4"] == 10
    file.write_text("{}")
    assert routed.main([str(file), "50", str(made)]) == 1


def test_the_alternative_is_built_where_a_plan_fails() -> None:
    def plan(script: str, otherwise: BuildPlan | None = None) -> BuildPlan:
        command = Command((sys.executable, "-c", script), "try", "none")
        return BuildPlan({}, (command,), ("made",), otherwise=otherwise)

    good = plan("open('made', 'w').write('2')")
    told: list[str] = []
    with telling(told.append):
        made, products = build(plan("raise SystemExit('too slow')", good))
    assert (made.files, made.commands, products) == (good.files, good.commands, {"made": b"2"})
    assert made.instead == "second attempt: too slow"
    assert told == ["try", "try"]
    with pytest.raises(BuildFailed):
        build(plan("raise SystemExit(1)", plan("raise SystemExit(2)")))


def test_a_board_without_its_tools(monkeypatch: pytest.MonkeyPatch, program: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(ToolNotFound, match="openFPGALoader"):
        hw.loader({"loader": "ulx3s"})
    with pytest.raises(CuvilError, match=r"settings\.loader"):
        hw.loader({})
    program.save(tmp_path / "design.cuvil")
    with pytest.raises(CuvilError, match="without a bitstream"):
        cuvil.load(tmp_path / "design.cuvil", interface="hw")


def test_the_serial_port_is_the_only_one_or_the_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [SimpleNamespace(device="/dev/ttyUSB0", vid=1), SimpleNamespace(device="/dev/ttyS0", vid=None)]
    monkeypatch.setattr("serial.tools.list_ports.comports", lambda: ports)
    assert hw.serial_port({}) == "/dev/ttyUSB0"
    assert hw.serial_port({"port": "/dev/board"}) == "/dev/board"
    ports.append(SimpleNamespace(device="/dev/ttyUSB1", vid=1))
    with pytest.raises(DeviceError, match=r"ttyUSB0, /dev/ttyUSB1; name the board's"):
        hw.serial_port({})


def test_a_port_that_does_not_open_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"settings\.port"):
        hw.open_line({"port": str(tmp_path / "no-such-port")}, 115200)
