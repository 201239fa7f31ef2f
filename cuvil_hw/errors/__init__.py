"""Every error that a user can meet. Each message says what, where, why and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cuvil_hw.errors.quoting import lines, shell, visible


class CuvilError(Exception):
    """Base of all errors raised on purpose; anything else that escapes is a bug in Cuvil."""

    def __str__(self) -> str:
        """The message. Names of a model or a file stand in it: nothing in it controls a terminal."""
        return lines(super().__str__())

    if sys.version_info < (3, 11):

        def add_note(self, note: str) -> None:
            """As later Pythons have it; a traceback doesn't show it."""
            self.__notes__ = [*getattr(self, "__notes__", ()), note]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One kind of thing a model asks for that cannot be done: how often, where, why."""

    op: str
    reason: str
    count: int = 1
    where: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(map(visible, self.where[:3])) + (", …" if len(self.where) > 3 else "")
        at = f" at {shown}" if shown else ""
        return f"{visible(self.op)} ×{self.count}{at}: {lines(self.reason)}"


class Unsupported(CuvilError):
    """The model uses something that is not supported; lists *all* such things at once."""

    def __init__(self, refusals: Sequence[Refusal], context: str = "model") -> None:
        self.refusals = tuple(refusals)
        lines = "\n".join(f"  - {r}" for r in self.refusals)
        super().__init__(f"{context}: {len(self.refusals)} unsupported kind(s) of operation\n{lines}")


class DoesNotFit(CuvilError):
    """No choice of schedules meets the profile's limits.

    Attributes:
        layer, axis: where the limit is exceeded most.
        need: of the whole design (for an axis of rule "max": of the layer), in the axis' unit.
        limit, whole: what may be used, and what there is, in the axis' unit; a profile plans to fill a share only.
        nearest: the closest change that would fit, in words.
        besides: what else is short, and what the constants take, in words; or "".
    """

    def __init__(
        self,
        *,
        layer: str,
        axis: str,
        need: float,
        limit: float,
        nearest: str,
        target: str,
        besides: str = "",
        whole: float = 0.0,
    ) -> None:
        self.layer, self.axis, self.need, self.limit = layer, axis, need, limit
        self.nearest, self.target, self.besides, self.whole = nearest, target, besides, max(whole, limit)
        share = f" ({limit / whole:.0%} of {whole:,.10g})" if whole > limit else ""
        super().__init__(
            f"does not fit {target}: needs {need:,.10g} {axis} where {limit:,.10g} may be used{share}, "
            f"tightest at layer {layer}{f'; {besides}' if besides else ''}; nearest fit: {nearest}"
        )


class MissesSlot(CuvilError):
    """Layers, or the program, take longer at worst than their time slots allow; lists all of them."""

    def __init__(self, missed: Sequence[str]) -> None:
        self.missed = tuple(missed)
        listed = "".join(f"\n  - {line}" for line in self.missed)
        super().__init__(
            f"{len(self.missed)} time slot(s) missed:{listed}\ngive a longer slot, a smaller offset, a faster clock, "
            "or a part with room for more parallel work"
        )


class ProfileError(CuvilError):
    """A target profile (YAML) is wrong: cites file, line and key."""

    def __init__(self, file: str, line: int | None, key: str, problem: str) -> None:
        self.file, self.line, self.key, self.problem = file, line, key, problem
        at = f"{file}:{line}" if line is not None else file
        super().__init__(f"{at}: {key}: {problem}")


class ToolNotFound(CuvilError):
    """A compiler, simulator or device is missing; names it and what installs or overrides it."""

    def __init__(self, tool: str, purpose: str, remedy: str) -> None:
        self.tool, self.purpose, self.remedy = tool, purpose, remedy
        super().__init__(f"{tool} not found, needed to {purpose}; {remedy}")


def needs_python(purpose: str) -> None:
    """Raise ToolNotFound on a Python that can run programs but not the compiler (xDSL needs 3.11)."""
    if sys.version_info < (3, 11):
        here = ".".join(map(str, sys.version_info[:2]))
        remedy = f"this is Python {here}, which runs programs only: compile on another machine, bring the .cuvil file"
        raise ToolNotFound("Python 3.11 or newer", purpose, remedy)


def pip_install(extra: str) -> str:
    """The shell command that installs an extra of this package: by folder in a checkout, else by name. For messages
    only: artifacts must not name paths of a machine."""
    place = Path(__file__).resolve().parents[2]
    if (place / "pyproject.toml").is_file():
        return f"pip install -e {shell(f'{place}[{extra}]')}"
    return f"pip install 'cuvil-hw[{extra}]'"


@contextmanager
def needs_compiler(purpose: str) -> Iterator[None]:
    """Says what to install when the base install alone is there. Raises ToolNotFound."""
    needs_python(purpose)
    try:
        yield
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if package not in ("xdsl", "ortools"):
            raise
        raise ToolNotFound(f"Python package {package}", purpose, pip_install("compiler")) from e


class BuildFailed(CuvilError):
    """A tool ran and failed: command, exit code and the end of its output."""

    def __init__(self, command: Sequence[str], returncode: int, output: str) -> None:
        self.command, self.returncode, self.output = tuple(command), returncode, output
        tail = "\n".join(output.splitlines()[-20:])
        super().__init__(f"{' '.join(map(shell, command))} exited with {returncode}\n{tail}")


class ArtifactError(CuvilError):
    """An artifact is damaged, of another format version, or not what was expected."""


class InputError(CuvilError):
    """A call's input has the wrong count, shape, dtype or value range; names which one."""


class GuardError(CuvilError):
    """The values of a call need something for which the program wasn't compiled, such as more iterations of a loop. The
    call has no result; the next call is not affected."""


class DeviceError(CuvilError):
    """A device or simulator failed while running a program."""
