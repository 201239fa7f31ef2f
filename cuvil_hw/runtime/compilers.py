"""The C and C++ compilers of this machine, with options under which their code computes exactly what the source
says."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cuvil_hw.errors import CuvilError

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
            return given[-1].partition("-")[0]
        prefix = self.program.split("-")
        return prefix[0] if len(prefix) >= 3 else ""

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
        # on vww_96_float with GCC 12); this asks for its vectoriser and for unrolling after it.
        fast = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fpeel-loops")
        return fast if level == 2 else (*fast, "-funroll-loops")

    def instructions(self, march: str) -> tuple[str, ...]:
        """The option that selects an instruction set. `march`: as GCC and Clang name it; zig writes underscores."""
        if not march:
            return ()
        return (f"-march={march.replace('-', '_')}" if self.is_zig else f"-march={march}",)

    @property
    def remedy(self) -> str:
        """What to install."""
        if self.is_zig:
            return "install zig (pip install ziglang gives `python3 -m ziglang cc`) or set `cc` in the profile"
        gnu = self.program.endswith("-gcc")
        package = f"gcc-{self.program.removesuffix('-gcc')}" if gnu else self.program
        return f"install {self.program} (Debian and Ubuntu: apt install {package}) or set `cc` in the profile"


def cpu_flags() -> frozenset[str]:
    """What /proc/cpuinfo says this processor can do; empty where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    lines = [x.partition(":")[2].split() for x in text.splitlines() if x.startswith(("flags", "Features"))]
    return frozenset(lines[0]) if lines else frozenset()
