"""The project of a design for ECP5: SystemVerilog, constraints and the commands that make the bitstream."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from string import Template
from typing import TYPE_CHECKING

from cuvil_hw import data, dtypes
from cuvil_hw.adapters.ecp5.parts import PINS, Divisors, Ecp5Part, divisors, required
from cuvil_hw.adapters.ecp5.record import AXIS_BITS, BITSTREAM, Ecp5Record
from cuvil_hw.adapters.streaming.project.project import facts, project_name
from cuvil_hw.adapters.streaming.project.rtl import rtl_files
from cuvil_hw.adapters.streaming.rtl.delays import Delays
from cuvil_hw.contract import programs
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.record import info_of
from cuvil_hw.errors import pip_install
from cuvil_hw.errors.quoting import markdown, shell
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.target.profile import Profile

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

BAUD = 1_000_000
SILENCE_S = 0.05  # a request that stops for so long is dropped by the board
# Shares of the clock's period that logic between two registers may take: routing takes the rest. The second is for a
# design that place and route found too slow with the first.
LOGIC_SHARES = (0.5, 0.3)
ROUTED, CHECKED = "routed.json", "checked.json"
_REMEDY = f"install it ({pip_install('ecp5')})"


def plan(module: ModuleOp, design: Design, profile: Profile) -> BuildPlan:
    """The plan; where it makes a bitstream, one with deeper pipelines to build when it misses the clock. Raises
    ProfileError."""
    first = _plan(module, design.graph, profile, LOGIC_SHARES[0])
    if not first.products:
        return first
    second = _plan(module, design.graph, profile, LOGIC_SHARES[1])
    return replace(first, otherwise=replace(second, instead="second attempt, with deeper pipelines"))


def _plan(module: ModuleOp, graph: KernelGraph, profile: Profile, share: float) -> BuildPlan:
    name, part = project_name(graph), required(profile)
    period = 1e9 / profile.clock_hz
    files = rtl_files(module, graph.constants, name, AXIS_BITS, Delays(period=share * period), required=True)
    known_by = identity(files)
    files |= board_files(name, graph, profile, known_by)
    info = info_of(Ecp5Record(**facts(graph), identity=known_by.hex(), baud=profile.setting("baud", BAUD)))
    build = profile.setting("bitstream", "now") == "now"
    commands = tuple(_commands(name, part, profile, optional=not build))
    files["README.md"] = _readme(name, profile, commands)
    return BuildPlan(files, commands, (BITSTREAM, ROUTED, CHECKED) if build else (), info)


def line_cycles(graph: KernelGraph, profile: Profile) -> int:
    """Cycles in which the serial line moves a sample, 10 bits a byte: a design that is faster than its line only
    takes more of the part. 0 where the profile asks for the fastest one (sized_for: core)."""
    if profile.setting("sized_for", "line") == "core":
        return 0
    types = [graph.buffers[b].type for b in (*graph.inputs, *graph.outputs)]
    moved = sum(t.size * dtypes.to_numpy(t.dtype).itemsize for t in types)
    return int(moved * 10 * profile.clock_hz / profile.setting("baud", BAUD))


def identity(files: Mapping[str, bytes]) -> bytes:
    """Eight bytes by which a board is known to hold these modules."""
    digest = hashlib.sha256()
    for file in sorted(f for f in files if f.endswith((".sv", ".hex"))):
        digest.update(f"{file}\0".encode() + hashlib.sha256(files[file]).digest())
    return digest.digest()[:8]


def board_files(name: str, graph: KernelGraph, profile: Profile, known_by: bytes) -> dict[str, bytes]:
    """The design with its serial line, the board's top around it, and the places of its pins."""
    templates = data.folder("rtl") / "ecp5"
    ins, outs = graph.inputs, graph.outputs
    ports = [
        f".{way}_axis_{port}_t{signal}({way}_t{signal}[{index}])"
        for way, names in (("s", ins), ("m", outs))
        for n, port in enumerate(names)
        for signal, index in (("data", f"{n * AXIS_BITS} +: {AXIS_BITS}"), ("valid", str(n)), ("ready", str(n)))
    ]
    ties = [f".s_axis_{p}_tlast(1'b1), .s_axis_{p}_tkeep('1)" for p in ins] + [
        f".m_axis_{p}_tlast(), .m_axis_{p}_tkeep()" for p in outs
    ]
    oscillator = profile.setting("oscillator_mhz", 0.0) * 1e6
    pll = divisors(oscillator, profile.clock_hz) if oscillator and oscillator != profile.clock_hz else None
    values = {
        "name": name,
        "inputs": str(len(ins)),
        "outputs": str(len(outs)),
        "axis": str(AXIS_BITS),
        "ports": ",\n        ".join([*ports, *ties]),
        "identity": known_by.hex(),
        "bit_clocks": str(round(profile.clock_hz / profile.setting("baud", BAUD))),
        "silence": str(round(profile.clock_hz * SILENCE_S)),
        "clock": _clock(pll, oscillator or profile.clock_hz, profile.clock_hz),
    }
    made = {
        f"rtl/{name}_{file}.sv": Template((templates / f"{file}.sv").read_text()).substitute(values).encode()
        for file in ("serial", "board")
    }
    return {**made, f"{name}.lpf": _constraints(profile, oscillator or profile.clock_hz).encode()}


def _clock(pll: Divisors | None, given_hz: float, made_hz: float) -> str:
    if pll is None:
        return "wire clk = clk_in;\n    wire locked = 1'b1;"
    text = Template((data.folder("rtl") / "ecp5" / "pll.sv").read_text())
    return text.substitute(
        source=pll.source, feedback=pll.feedback, target=pll.target, phase=pll.target // 2,
        given=f"{given_hz / 1e6:g}", made=f"{made_hz / 1e6:g}",
    ).rstrip()  # fmt: skip


def _constraints(profile: Profile, given_hz: float) -> str:
    """Lattice's preferences. Without pins, place and route chooses them."""
    lines = [f'FREQUENCY PORT "clk_in" {given_hz / 1e6:g} MHZ;']
    for key, port in zip(PINS, ("clk_in", "rx", "tx"), strict=True):
        if pin := profile.setting(key, ""):
            lines += [f'LOCATE COMP "{port}" SITE "{pin}";', f'IOBUF PORT "{port}" IO_TYPE=LVCMOS33;']
    return "\n".join([*lines, ""])


def _commands(name: str, part: Ecp5Part, profile: Profile, optional: bool) -> Iterator[Command]:
    sources = 'read_verilog -sv -defer -DCUVIL_ROM_DIR="rtl/" rtl/*.sv'
    # Yosys puts products into multiplier blocks as far as it can: in logic they would be slower than the rest.
    script = f"{sources}; synth_ecp5 -top {name}_board -json design.json"
    yield Command((_found("yosys"), "-q", "-p", script), "synthesise the design", _REMEDY, optional)
    clock = f"{profile.clock_hz / 1e6:g}"
    place = (
        _found("nextpnr-ecp5"), "-q", f"--{part.option}", "--package", part.package, "--speed", str(part.speed),
        "--json", "design.json", "--lpf", f"{name}.lpf", "--lpf-allow-unconstrained", "--freq", clock, "--seed", "1",
        "--timing-allow-fail", "--textcfg", "design.config", "--report", ROUTED,
    )  # fmt: skip
    yield Command(place, "place and route the design", _REMEDY, optional)
    check = (sys.executable, "-m", "cuvil_hw.adapters.ecp5.routed", ROUTED, clock, CHECKED)
    yield Command(check, "check the timing after routing", "install cuvil-hw", optional)
    pack = (_found("ecppack"), "--compress", "design.config", "--bit", BITSTREAM)
    yield Command(pack, "pack the bitstream", _REMEDY, optional)


def _found(program: str) -> str:
    """The native program where there is one, else the one of the Python package."""
    return program if programs.find(program) is not None else f"{programs.WHEELS}{program}"


def _readme(name: str, profile: Profile, commands: Sequence[Command]) -> bytes:
    """Names programs as they are called natively: what is written doesn't depend on this machine's."""
    lines = []
    for command in commands:
        program = "python3" if command.argv[0] == sys.executable else command.argv[0].removeprefix(programs.WHEELS)
        lines.append("    " + " ".join(map(shell, (program, *command.argv[1:]))))
    if loader := profile.setting("loader", ""):
        lines += ["", "## Load", "", f"    openFPGALoader -b {shell(loader)} {BITSTREAM}"]
    text = (
        f"# {name} for {markdown(profile.name)}\n\n`rtl/{name}_top.sv` is the design with AXI4-Stream ports, "
        f"`rtl/{name}_serial.sv` the design behind a serial line, `rtl/{name}_board.sv` the top of the bitstream, "
        f"`{name}.lpf` its pins.\n\n## Build\n\n"
    )
    return (text + "\n".join([*lines, ""])).encode()
