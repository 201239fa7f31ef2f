"""Clocks and random numbers that a model reads while it is traced: what they give then is fixed in the program."""

from __future__ import annotations

import datetime
import random
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from cuvil_hw.frontend.torch.errors import is_the_users

_CLOCKS = ("time", "posix", "nt")
_READ = frozenset(
    [
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
        "process_time_ns", "localtime", "gmtime", "ctime", "urandom", "getrandom",
    ]
)  # fmt: skip
_LIBRARIES = tuple(str(Path(sysconfig.get_path(p))) + "/" for p in ("stdlib", "purelib", "platlib"))
_NOTHING = (lambda: None).__code__
State = Callable[[], Any]


@contextmanager
def watched(module: torch.nn.Module) -> Iterator[None]:
    """Warn of every line that reads a clock or draws numbers from Python's or NumPy's generators. (Torch's own draws
    are operations of the graph, and refused there.)"""
    found: dict[str, None] = {}
    # Packages that hold the model's own code count; what torch itself uses (sympy draws numbers) doesn't.
    files = {getattr(type(m).forward, "__code__", _NOTHING).co_filename for m in module.modules()}

    def called(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and (what := _impure(function)) and (line := _line(frame, files)):
            found[f"{line}: {what}"] = None

    # While the forward runs, and no longer: each call of a function is looked at, which takes as long as the call.
    before = sys.getprofile()
    begins = module.register_forward_pre_hook(lambda *_: sys.setprofile(called), prepend=True)
    ends = module.register_forward_hook(lambda *_: _set_profile(before), always_call=True)
    states = {name: (read, read()) for name, read in _generators(module)}
    try:
        yield
    finally:
        begins.remove()
        ends.remove()
        _set_profile(before)
    for name, (read, was) in states.items():
        if repr(read()) != repr(was):
            found[f"{name} draws random numbers"] = None
    if found:
        warnings.warn(
            f"{type(module).__name__} reads what isn't the same at each call: {'; '.join(found)}. What it read while "
            "it was traced is a constant of the program; pass it as an input",
            stacklevel=2,
        )


def unwatched(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of one of torch's functions; what happens inside is torch's, and not looked at. (Operators of higher
    order call the model's own code again.)"""
    if torch.compiler.is_dynamo_compiling():  # the body of a torch.cond: Dynamo follows no profile
        return function(*args, **kwargs)
    watching = sys.getprofile()
    if not isinstance(watching, FunctionType) or isinstance(function, torch._ops.HigherOrderOperator):
        return function(*args, **kwargs)
    sys.setprofile(None)
    try:
        return function(*args, **kwargs)
    finally:
        sys.setprofile(watching)


def _set_profile(profile: Any) -> None:
    """Put back what `sys.getprofile` gave: a Profile of C, such as cProfile's, isn't called but enabled."""
    if profile is None or callable(profile):
        sys.setprofile(profile)
    else:
        profile.enable()


def _impure(function: Any) -> str:
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, random.Random):
        return f"random.{name} draws random numbers"
    # Only modules are asked for their names: an attribute of an object may be the model's own code.
    if isinstance(owner, ModuleType) and owner.__name__ in _CLOCKS and name in _READ:
        return f"{owner.__name__}.{name} reads " + ("random bytes" if "random" in name else "the clock")
    if isinstance(owner, type) and issubclass(owner, datetime.date) and name in ("now", "utcnow", "today"):
        return f"{owner.__name__}.{name} reads the clock"
    return ""


def _line(frame: FrameType | None, files: set[str]) -> str:
    """`model.py:12`, where the call is the model's; random's own Python code is passed through."""
    while frame is not None and frame.f_code.co_filename == random.__file__:
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else "<"
    if frame is None or not is_the_users(file) or (file.startswith(_LIBRARIES) and file not in files):
        return ""
    return f"{Path(file).name}:{frame.f_lineno}"


def _generators(module: torch.nn.Module) -> Iterator[tuple[str, State]]:
    """NumPy's generators within reach: the global one, attributes of modules and globals of their forwards."""
    yield "np.random", lambda: np.random.get_state()
    for m in module.modules():
        scope = getattr(type(m).forward, "__globals__", {})
        names = getattr(getattr(type(m).forward, "__code__", None), "co_names", ())
        held = {**{n: scope[n] for n in names if n in scope}, **vars(m)}
        for name, value in held.items():
            if isinstance(value, np.random.Generator):
                yield f"{name} of {type(m).__name__}", lambda g=value: g.bit_generator.state  # type: ignore[misc]
            elif isinstance(value, np.random.RandomState):
                yield f"{name} of {type(m).__name__}", lambda g=value: g.get_state()  # type: ignore[misc]
