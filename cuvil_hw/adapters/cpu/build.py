"""How the generated C is compiled: the same for a program's own library and for those that leave Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuvil_hw.runtime.compilers import CCompiler
from cuvil_hw.target.opt_level import DEFAULT, SETTING

# These two only let the compiler forget errno and floating-point traps, which nobody reads here.
QUIET = ("-fno-math-errno", "-fno-trapping-math")


def options(compiler: CCompiler, settings: Mapping[str, Any], march: str | None = None) -> tuple[str, ...]:
    """The compiler's options under a profile's settings; `march`: instead of theirs."""
    level, wanted = settings.get(SETTING, DEFAULT), str(settings.get("march", "")) if march is None else march
    return ("-std=c99", *compiler.optimised(level), *compiler.exact(), *QUIET, *compiler.instructions(wanted))
