"""What to tell of torch's errors and nodes: the user's line, and the reason in one line."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import DynamicOutputShapeException

# Files whose lines are nobody's model: torch, generated code, this package.
_NOT_THE_USERS = (str(Path(torch.__file__).parent), "<", str(Path(__file__).parents[2]) + os.sep)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LONGEST = 300  # characters of a reason


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's log: what it writes there with a traceback, a failing shape rule or a dimension that turns out
    to be fixed, is a finding here, and an error tells it in one line."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    # It prints the graph of a failed trace to stderr.
    exporting: Any = importlib.import_module("torch.export._trace")
    exporting.print = lambda *args, **kwargs: None
    try:
        yield
    finally:
        vars(exporting).pop("print", None)
        logger.setLevel(level)


def is_the_users(file: str) -> bool:
    """Whether a file isn't torch's, generated or Cuvil's own."""
    return not file.startswith(_NOT_THE_USERS)


def user_line(frames: Iterable[tuple[str, int]]) -> str:
    """The last (file, line) that is the user's, such as `model.py:12`; empty where there is none."""
    outside = [(file, line) for file, line in frames if is_the_users(file)]
    return f"{Path(outside[-1][0]).name}:{outside[-1][1]}" if outside else ""


def line_of(node: torch.fx.Node) -> str:
    """The user's line that a node comes from; empty where torch doesn't know it."""
    return user_line((file, int(line)) for file, line in _FRAME.findall(node.meta.get("stack_trace") or ""))


def way_to(node: torch.fx.Node) -> str:
    """The user's last two lines on the way to a node: `utils.py:3, called at model.py:12`."""
    frames = [(f, int(n)) for f, n in _FRAME.findall(node.meta.get("stack_trace") or "") if is_the_users(f)]
    return ", called at ".join(user_line([frame]) for frame in reversed(frames[-2:]))


def raised_at(error: BaseException) -> str:
    """The user's line that raised; empty where none did."""
    return user_line((frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__))


def reason(error: BaseException) -> str:
    """The first paragraph of a message, on one line; torch's later ones are hints about torch."""
    if isinstance(error, DynamicOutputShapeException):
        return f"{error}: the shape of its result depends on the values; use torch.where with three arguments, or masks"
    text = " ".join(str(error).strip().split("\n\n")[0].split())
    return (text[:_LONGEST] + " …" if len(text) > _LONGEST else text) or type(error).__name__


def called(target: Any) -> str:
    """The function that a node calls, as users write it: `aten.pow.Scalar`, `math.floor`, `operator.ge`, `round`."""
    if not isinstance(target, BuiltinFunctionType | FunctionType):
        return str(target)
    module = (target.__module__ or "").lstrip("_")
    return target.__name__ if module == "builtins" or not module else f"{module}.{target.__name__}"
