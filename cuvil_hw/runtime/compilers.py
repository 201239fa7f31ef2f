"""The C and C++ compilers of this machine, with options under which their code computes exactly what the source
says."""

from __future__ import annotations

import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from cuvil_hw.errors import CuvilError, pip_install

# No option may change a result. Contraction would fuse a·b + c; signed overflow wraps as NumPy's does.
_SAME = ("-ffp-contract=off", "-fwrapv")
# Two passes of GCC 12.2 go wrong with small integers, AVX2 and -fwrapv (tests/conformance/test_compilers.py):
# - Superword-level parallelism, part of -O2 since GCC 12: a comparison that is stored as 0 or 1 counts as 0 or -1 in a
#   maximum or sum beside it.
# - The vectoriser of loops, where few lanes were unrolled before it: sums under a condition take the condition of one
#   term for its neighbour's. So short loops stay whole until then.
_GCC_SAME = (*_SAME, "-fno-tree-slp-vectorize", "-fdisable-tree-cunrolli")
_LAUNCHERS = ("ccache", "distcc", "sccache")
# For the simulators, which g++ compiles.
EXACT = _GCC_SAME
# Zig names processors where GCC and Clang name instruction sets; what isn't here it calls as they do.
_ZIG_CPUS = {"armv8-a": "generic", "armv8.2-a+dotprod": "generic+v8_2a+dotprod", "armv7-a+neon": "cortex_a9",
             "rv64gc": "baseline_rv64"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arch:
    """A family of processors under Linux.

    Attributes:
        machine: how `platform.machine` calls it.
        triplet: how Debian's cross compilers are called, and zig's target.
        emulator: qemu's program that runs its code on another machine.
    """

    machine: str
    triplet: str
    emulator: str


ARCHES: Mapping[str, Arch] = {
    "x86_64": Arch("x86_64", "x86_64-linux-gnu", "qemu-x86_64"),
    "aarch64": Arch("aarch64", "aarch64-linux-gnu", "qemu-aarch64"),
    "armv7": Arch("armv7l", "arm-linux-gnueabihf", "qemu-arm"),
    "riscv64": Arch("riscv64", "riscv64-linux-gnu", "qemu-riscv64"),
}


@dataclass(frozen=True, slots=True)
class CCompiler:
    """A C compiler by its command, such as `gcc`, `clang`, `aarch64-linux-gnu-gcc` or `zig cc`."""

    command: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> CCompiler:
        """Raises CuvilError for text that is no command."""
        try:
            words = tuple(shlex.split(text))
        except ValueError as e:
            raise CuvilError(f"settings.cc: {text!r} is no command: {e}") from None
        if not words:
            raise CuvilError("settings.cc: names no compiler; write one such as gcc, clang or 'zig cc'")
        return cls(words)

    @classmethod
    def chosen(cls, settings: Mapping[str, Any]) -> CCompiler:
        """The compiler that a profile's settings name by `cc`; else the first one here for their `arch`: this system's,
        Debian's cross compiler, zig. If there is none, the first of these, which then isn't found. Raises CuvilError
        for a name that is no command."""
        if settings.get("cc"):
            return cls.of(str(settings["cc"]))
        name = settings.get("arch", "")
        arch = ARCHES.get(str(name))
        if name and arch is None:
            raise CuvilError(f"settings.arch: {name!r} is not one of {', '.join(ARCHES)}")
        candidates = list(_compilers(arch))
        return next((c for c in candidates if shutil.which(c.command[0])), candidates[0])

    @property
    def words(self) -> tuple[str, ...]:
        """The parts of the command, without folders."""
        return tuple(word.rsplit("/", 1)[-1] for word in self.command)

    @property
    def program(self) -> str:
        """The compiler itself, without a launcher such as ccache before it."""
        return next((word for word in self.words if word not in _LAUNCHERS), self.words[0])

    @property
    def machine(self) -> str:
        """The architecture that the compiler's code runs on, as `platform.machine` names it: aarch64 for
        aarch64-linux-gnu-gcc; "" for this machine's."""
        words = self.words
        given = [b for a, b in pairwise(words) if a in ("-target", "--target")]
        given += [word.partition("=")[2] for word in words if word.startswith("--target=")]
        if given:
            return _machine(given[-1].partition("-")[0])
        prefix = self.program.split("-")
        return _machine(prefix[0]) if len(prefix) >= 3 else ""

    @property
    def is_zig(self) -> bool:
        return any(word in ("zig", "ziglang", "python-zig") for word in self.words)

    @property
    def is_clang(self) -> bool:
        return "clang" in self.program or self.is_zig

    def exact(self) -> tuple[str, ...]:
        return _SAME if self.is_clang else _GCC_SAME

    def optimised(self, level: int) -> tuple[str, ...]:
        """The compiler's options for an optimisation level of Cuvil, 0 to 3 (target/opt_level.py)."""
        if level < 2:
            return (f"-O{level}",)
        if self.is_clang:
            return ("-O2",) if level == 2 else ("-O3",)
        # -O3 unrolls loops of up to 16 lanes before it vectorises, which spoils them (measured: 1.7 to 10 times slower
        # on vww_96_float with GCC 12); this asks for its vectoriser and for unrolling after it. Scheduling before
        # registers are given out, which x86 leaves to the processor, puts independent vectors between the steps of long
        # chains (measured on a Zen 1: gelu 364 to 222 us for 65,536 elements, BERT-tiny 4.26 to 3.70 ms).
        fast = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fpeel-loops", "-fschedule-insns",
                "-fsched-pressure")  # fmt: skip
        return fast if level == 2 else (*fast, "-funroll-loops")

    def instructions(self, march: str) -> tuple[str, ...]:
        """The option that selects an instruction set. `march`: as GCC and Clang name it; zig writes underscores."""
        if not march:
            return ()
        return (f"-march={_ZIG_CPUS.get(march, march.replace('-', '_'))}" if self.is_zig else f"-march={march}",)

    @property
    def static(self) -> tuple[str, ...]:
        """The command that links executables which need no library of their machine's."""
        words = (word.replace("-linux-gnu", "-linux-musl") for word in self.command) if self.is_zig else self.command
        return (*words, "-static")

    @property
    def archiver(self) -> tuple[str, ...]:
        """What makes static libraries of its objects."""
        if self.is_zig:
            return (*self.command[: len(self.command) - self.words[::-1].index("cc") - 1], "ar")
        start = self.program.removesuffix("gcc")
        return (f"{start}ar" if start.endswith("-") else "ar",)

    @property
    def remedy(self) -> str:
        """What to install."""
        if self.is_zig:
            return f"install zig ({pip_install('compiler-cc')} brings it) or set `cc` in the profile"
        gnu = self.program.endswith("-gcc")
        package = f"gcc-{self.program.removesuffix('-gcc')}" if gnu else self.program
        return (
            f"install {self.program} (Debian and Ubuntu: apt install {package}) or zig ({pip_install('compiler-cc')}), "
            "or set `cc` in the profile"
        )


def _compilers(arch: Arch | None) -> Iterator[CCompiler]:
    """Those of a family in order of preference; of this machine's where None."""
    if arch is None or arch.machine == platform.machine():
        yield from (CCompiler((name,)) for name in ("gcc", "cc", "clang"))
        arch = next((a for a in ARCHES.values() if a.machine == platform.machine()), None)
    else:
        yield CCompiler((f"{arch.triplet}-gcc",))
    target = ("-target", arch.triplet) if arch is not None else ()
    if find_spec("ziglang") is not None:
        yield CCompiler((sys.executable, "-m", "ziglang", "cc", *target))
    yield CCompiler(("zig", "cc", *target))


def _machine(prefix: str) -> str:
    """`platform.machine`'s name of what a compiler's prefix calls it."""
    return "armv7l" if prefix.startswith("arm") and prefix != "arm64" else prefix


def cpu_flags() -> frozenset[str]:
    """What /proc/cpuinfo says this processor can do; empty where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    lines = [x.partition(":")[2].split() for x in text.splitlines() if x.startswith(("flags", "Features"))]
    return frozenset(lines[0]) if lines else frozenset()
