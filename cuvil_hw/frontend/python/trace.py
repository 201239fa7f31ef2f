"""State of a trace: the conditions under which code runs now, checks, and what must not change."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, NoReturn

import torch

from cuvil_hw.errors import CuvilError, Refusal, Unsupported
from cuvil_hw.frontend.python.conditions import FALSE, TRUE, Conditions
from cuvil_hw.frontend.python.reads import STRIDES, Reads
from cuvil_hw.frontend.python.source import is_library


@dataclass
class RuntimeCheck:
    """A check at run time: `ok` is a bool tensor without dimensions; if it is false, the call raises `error`."""

    ok: torch.Tensor
    message: str
    error: type[Exception] | None = None


@dataclass(frozen=True)
class Merge:
    """`result` is `then` where the condition `node` holds, else `other`; it follows later changes of either."""

    node: int
    then: torch.Tensor
    other: torch.Tensor
    result: torch.Tensor


@dataclass
class Trace:
    """Everything known while a function is traced.

    Attributes:
        mask: the condition under which Python would run the current code.
        assumed: what must hold because otherwise an exception was raised earlier.
        frozen: memory that the function may not change, with the reason.
        merges: values merged after branches, in order.
        selected, roots: for a selected tensor, what selected it and the tensors that it may be.
        owned: containers that the function created, by id, each with the mask at that time.
        outside: arrays from outside, by id, and their stand-ins.
        flags: truth of tensors, by id and version.
        reads: what was read from outside.
        given: the stand-ins of array arguments.
        laid: tensors of which an operation made a view or a copy, as their strides say; what it made; and the number
            of changes of both until then.
        hits: what nonzero found, by id.
        handled: exceptions that the handlers of each enclosing `try` take.
    """

    max_trips: int
    conditions: Conditions = field(default_factory=Conditions)
    mask: int = TRUE
    assumed: int = TRUE
    checks: list[RuntimeCheck] = field(default_factory=list)
    frozen: dict[int, str] = field(default_factory=dict)
    outside: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    owned: dict[int, tuple[Any, int]] = field(default_factory=dict)
    flags: dict[tuple[int | str, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    selected: dict[tuple[int, int, int], Merge] = field(default_factory=dict)
    merges: list[Merge] = field(default_factory=list)
    roots: dict[int, dict[int, tuple[torch.Tensor, int]]] = field(default_factory=dict)
    hits: dict[int, Any] = field(default_factory=dict)
    handled: list[tuple[type[BaseException], ...]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    reads: Reads = field(default_factory=Reads)
    given: list[Any] = field(default_factory=list)
    laid: list[tuple[torch.Tensor, torch.Tensor, int]] = field(default_factory=list)

    def never(self, node: int) -> bool:
        """Whether a condition can't hold here."""
        return self.conditions.both(self.mask, node) == FALSE

    def always(self, node: int) -> bool:
        """Whether a condition must hold here."""
        return self.conditions.implies(self.mask, node)

    def lay(self, given: torch.Tensor, made: torch.Tensor) -> None:
        """`made` shares memory with `given`, or doesn't, as the strides of `given` say."""
        self.laid.append((given, made, given._version + made._version))

    def depend_on_strides(self, tensor: torch.Tensor, what: str) -> None:
        """The trace holds for tensors with these strides only."""
        of_argument = any(memory(getattr(x, "tensor", x)) == memory(tensor) for x in self.given)
        self.reads.facts.add(what if of_argument else STRIDES)

    def settle(self) -> None:
        """The end of the trace."""
        self.reads.settle()
        for given, made, changes in self.laid:
            if given._version + made._version != changes:
                self.depend_on_strides(given, "a change of what reshape or the like gave")

    def demand(self, ok: torch.Tensor | int, message: str, error: type[Exception] | None = None) -> None:
        """A check at run time of what must hold wherever the code at hand runs. `ok`: a tensor or a condition."""
        node = ok if isinstance(ok, int) else self.conditions.atom(ok)
        node = self.conditions.choose(self.mask, node, TRUE)
        if node != TRUE:
            if error is not None and any(issubclass(error, types) for types in self.handled):
                refuse_handler(message)
            self.checks.append(RuntimeCheck(self.conditions.tensor(node), message, error))


class _Stack(threading.local):
    """Each thread traces for itself."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []


_stack = _Stack()


def is_tracing() -> bool:
    return bool(_stack.traces)


def current() -> Trace:
    return _stack.traces[-1]


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    _stack.traces.append(trace)
    try:
        yield trace
    finally:
        _stack.traces.pop()


def where() -> str:
    """`model.py:12`: the user's line that runs now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else ""


def raised_at(error: BaseException) -> str:
    """`model.py:12`: the innermost line of the user's that raised."""
    places = [(f.f_code.co_filename, line) for f, line in walk_tb(error.__traceback__)]
    mine = [f"{Path(file).name}:{line}" for file, line in places if not is_library(file) and file != "<string>"]
    return mine[-1] if mine else ""


def refuse(what: str, reason: str) -> NoReturn:
    """Raises Unsupported for the user's line that runs now."""
    raise Unsupported([Refusal(what, reason, where=(where(),))], "function")


def refuse_handler(what: str) -> NoReturn:
    """Raises Unsupported for what a handler around the code at hand takes."""
    refuse("try", f"a handler for what may be raised in it ({what}) isn't compiled; test before with if, or use where")


def wrong(message: str) -> NoReturn:
    """Raises CuvilError for the user's line that runs now."""
    raise CuvilError(f"{where()}: {message}")


def memory(tensor: torch.Tensor) -> int:
    """What tensors that share memory have in common."""
    return int(tensor.untyped_storage()._cdata)
