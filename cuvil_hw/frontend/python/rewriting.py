"""Functions as they are called while a function is traced: in their rewritten form, which is made once it is needed."""

from __future__ import annotations

import functools
import types
from typing import Any

from cuvil_hw.frontend.python.helpers import helper_function, helpers
from cuvil_hw.frontend.python.loops import content, has_loop, loops
from cuvil_hw.frontend.python.rewrite import rewritten
from cuvil_hw.frontend.python.source import Function, of_user, read, rebuilt
from cuvil_hw.frontend.python.trace import current


@helper_function
def made(function: Any, name: str = "<lambda>") -> Any:
    """Mark a function that belongs to rewritten code, so that it isn't rewritten again."""
    if isinstance(function, Function):
        function.__name__ = name
        function.__dict__["__cuvil__"] = True
    return function


def converted(function: Any) -> Any:
    """The rewritten form of a user's function; anything else unchanged."""
    wrapped = getattr(function, "__cuvil_wrapped__", None)
    if wrapped is not None:
        return converted(wrapped)
    if isinstance(function, types.MethodType):
        inner = converted(function.__func__)
        return function if inner is function.__func__ else types.MethodType(inner, function.__self__)
    if isinstance(function, functools.partial):
        return functools.partial(helpers.call, function.func, *function.args, **function.keywords)
    if not of_user(function) or function.__dict__.get("__cuvil__"):
        return function
    return made_of(function)


def made_of(function: Function) -> Any:
    """The rewritten form of any function, the user's or not."""
    current().reads.function(function)
    source = read(function)
    return made(rebuilt(function, source, rewritten(source.node), helpers), function.__name__)


def rewritten_loops(function: Any) -> Any:
    """The function with loops over what nonzero found rewritten, its own or those of functions that it wraps."""
    if not isinstance(function, Function) or not loops(function):
        return function
    if has_loop(function):
        return made_of(function)
    cells = tuple(types.CellType(rewritten_loops(content(c))) for c in function.__closure__ or ())
    copy = Function(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
