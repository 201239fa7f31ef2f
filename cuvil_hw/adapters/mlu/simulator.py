"""Builds what stands in for a card: the vendor's libraries by ABI, and a model's kernels compiled by g++ for the host.

Both come from sim/mlu and are kept in the cache of builds. They agree with public documents, not with silicon.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuvil_hw import data
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.runtime.cache import cached_build
from cuvil_hw.runtime.compilers import EXACT

CORE = "mlu_core.o"
_REMEDY = "install it (Debian and Ubuntu: apt install g++)"
# Unique symbols are one in a process, whatever library they are in, and keep it from being unloaded.
_OWN = "-fno-gnu-unique"
_HOST = ("-std=c++17", "-O2", "-fPIC", "-w", _OWN)
_KERNELS_LEVEL = "-O2"
# Every access to memory calls the simulated core (mlu_core.cpp), which no sanitizer's runtime takes part in. No option
# may change a result: contraction would fuse a·b + c.
_KERNELS = (
    "-g1",
    "-gdwarf-4",
    "-fsanitize=thread",
    "-fsanitize=bounds",
    *EXACT,
    _OWN,
    "-fvisibility=hidden",
)


@dataclass(frozen=True, slots=True)
class Chip:
    """Sizes of a simulated card, from the profile's resources and settings."""

    arch: int
    cnrt: int
    nram_bytes: int
    wram_bytes: int
    sram_bytes: int
    gdram_bytes: int
    clusters: int
    cores: int

    def defines(self) -> tuple[str, ...]:
        sizes = {
            "ARCH": self.arch, "NRAM_BYTES": self.nram_bytes, "WRAM_BYTES": self.wram_bytes,
            "SRAM_BYTES": self.sram_bytes, "GDRAM_BYTES": f"{self.gdram_bytes}LL", "CLUSTERS": self.clusters,
            "CORES": self.cores,
        }  # fmt: skip
        return tuple(f"-DCUVIL_MLU_{key}={value}" for key, value in sizes.items())

    def language(self) -> tuple[str, ...]:
        """Options of g++ that define the macros of the vendor's compiler."""
        sizes = {"NRAM": self.nram_bytes, "WRAM": self.wram_bytes, "SRAM": self.sram_bytes}
        return (f"-D__BANG_ARCH__={self.arch}", *(f"-D__MLU_{k}_SIZE__={v // 1024}" for k, v in sizes.items()))


def chip(profile: Mapping[str, Any]) -> Chip:
    """The chip of a profile given as data (see Profile)."""
    limits = {a["name"]: int(a["limit"]) for a in profile.get("axes", ())}
    settings = profile.get("settings", {})
    return Chip(
        arch=int(settings.get("arch", 372)),
        cnrt=int(settings.get("cnrt", 6)),
        nram_bytes=limits.get("nram", 0),
        wram_bytes=limits.get("wram", 0),
        sram_bytes=limits.get("sram", 0),
        gdram_bytes=limits.get("gdram", 0),
        clusters=int(settings.get("clusters", 1)),
        cores=int(settings.get("cores_per_cluster", 4)),
    )


def build_libraries(card: Chip) -> Path:
    """A folder with libcnrt.so, libcndrv.so and the simulated core. Raises ToolNotFound, BuildFailed."""
    folder = data.folder("sim") / "mlu"
    files = {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.suffix in (".h", ".cpp")}
    # By its place: a plain name would find the driver of another simulated card that this process has loaded.
    own = "-Wl,-soname,$ORIGIN/libcndrv.so"
    driver = ("g++", *_HOST, "-shared", *card.defines(), "device.cpp", "cndrv.cpp", own, "-o", "libcndrv.so", "-ldl")
    link = ("-L.", "-lcndrv", "-o", "libcnrt.so")
    runtime = ("g++", *_HOST, "-shared", *card.defines(), f"cnrt{card.cnrt}.cpp", *link)
    core = ("g++", *_HOST, "-fvisibility=hidden", "-c", "mlu_core.cpp", "-o", CORE)
    commands = tuple(Command(argv, "simulate an MLU", _REMEDY) for argv in (driver, runtime, core))
    return cached_build(BuildPlan(files, commands, ("libcndrv.so", "libcnrt.so", CORE)))


def build_module(source: bytes, name: str, symbols: Sequence[str], card: Chip, libraries: Path) -> Path:
    """The shared library of a model's kernels, from its BANG C. Raises ToolNotFound, BuildFailed."""
    headers = data.folder("sim") / "mlu"
    entries = ", ".join(f"CUVIL_MLU_ENTRY({s})" for s in symbols)
    wrapper = f'#include "{name}"\n#include "mlu_entries.h"\n\nCUVIL_MLU_MODULE({entries})\n'
    core = (libraries / CORE).read_bytes()
    files = {name: source, "module.cpp": wrapper.encode(), CORE: core}
    flags = (*_HOST, _KERNELS_LEVEL, *_KERNELS, *card.language(), f"-I{headers}")
    compile_ = ("g++", *flags, "-c", "module.cpp", "-o", "module.o")
    link = ("g++", "-shared", "-Wl,-Bsymbolic", "module.o", CORE, "-o", "model.so", "-lm", "-ldl")
    commands = tuple(Command(argv, "simulate an MLU", _REMEDY) for argv in (compile_, link))
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(headers.glob("*.h")))).hexdigest()
    return cached_build(BuildPlan(files, commands, ("model.so",)), extra_key=digest) / "model.so"
