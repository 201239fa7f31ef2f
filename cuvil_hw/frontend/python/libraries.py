"""Which libraries' functions may be called: those that compute on arrays, or only move Python values about."""

from __future__ import annotations

import re
import sys
from typing import Any

from cuvil_hw.frontend.python.source import is_library, of_user
from cuvil_hw.frontend.python.trace import refuse

_ALLOWED = frozenset(
    [
        "builtins",
        "torch",
        "numpy",
        "math",
        "operator",
        "functools",
        "itertools",
        "collections",
        "copy",
        "typing",
        "dataclasses",
        "enum",
        "abc",
        "_operator",
        "_functools",
        "_collections",
        "_collections_abc",
        "__builtin__",
        "numbers",
        "types",
        "string",
        "re",
        "cuvil",
        "cuvil_hw",
        "einops",
    ]
)
_IMPURE = {
    "random": "draws random numbers; pass them as an argument",
    "time": "reads the clock; pass the time as an argument",
    "datetime": "reads the clock; pass the time as an argument",
    "os": "reaches the operating system; do it outside of the function",
    "io": "reads or writes files; pass the data as an argument",
    "pathlib": "reads or writes files; pass the data as an argument",
    "sys": "reaches the interpreter; do it outside of the function",
    "logging": "writes a log; do it outside of the function",
    "scipy": "is no array library that can be compiled; use torch's or NumPy's function",
}
POSITIONS = frozenset(["nonzero", "argwhere", "flatnonzero", "where"])  # what they find is used like masks
BOUNDED = (
    "the shape of its result depends on the values; use where with three arguments, masks, or a form with a bound, as "
    "torch.nonzero_static(x, size=…, fill_value=…)"
)
_DISTINCT = frozenset(["unique", "unique_consecutive"])  # of torch: followed
# Functions of NumPy and torch.
DATA_SHAPE = frozenset(
    [
        "nonzero",
        "argwhere",
        "flatnonzero",
        "unique",
        "unique_all",
        "unique_values",
        "unique_counts",
        "unique_inverse",
        "unique_consecutive",
        "extract",
        "compress",
        "union1d",
        "intersect1d",
        "setdiff1d",
        "setxor1d",
        "trim_zeros",
        "histogram",
        "bincount",
        "piecewise",
        "delete",
    ]
)
# Functions of NumPy and torch that change settings of the process.
_SETS = re.compile(r"set_|seterr|setbufsize|manual_seed|enable_\w+_sdp|use_deterministic_algorithms")
_IMPURE_BUILTINS = {
    "print": "a compiled program can't print; return the value",
    "open": "a compiled program can't read or write files; pass the data as an argument",
    "input": "a compiled program can't ask; pass the value as an argument",
    "eval": "code in a text can't be compiled",
    "exec": "code in a text can't be compiled",
    "compile": "code in a text can't be compiled",
    "setattr": "a compiled function can't change attributes; return the new value",
    "delattr": "a compiled function can't change attributes; return the new value",
    "globals": "a compiled function has no variables at run time",
    "locals": "a compiled function has no variables at run time",
    "vars": "a compiled function has no variables at run time",
    "breakpoint": "a compiled program can't stop",
}


def root(function: Any) -> str:
    """The library that a function is of, or that the object is of to which it is bound."""
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None)
    if owner is not None and not isinstance(owner, type(sys)) and not isinstance(function, type):
        module = type(owner).__module__ if not isinstance(owner, type) else owner.__module__
    if not isinstance(module, str):
        module = type(function).__module__
    return module.partition(".")[0]


def reason(function: Any) -> str | None:
    """Why a function can't be called in a compiled function; None: it can."""
    name = getattr(function, "__name__", "")
    if getattr(function, "__module__", None) == "builtins" and name in _IMPURE_BUILTINS:
        return _IMPURE_BUILTINS[name]
    if of_user(function) or of_user(getattr(function, "__func__", None)):
        return None
    module = getattr(function, "__module__", None) or type(getattr(function, "__self__", function)).__module__
    owner = getattr(function, "__self__", None)
    home = module.partition(".")[0] if isinstance(module, str) else ""
    if home in ("numpy", "torch") and name in DATA_SHAPE - POSITIONS and not (home == "torch" and name in _DISTINCT):
        return BOUNDED
    if home in ("numpy", "torch") and _SETS.match(name) and not isinstance(function, type) and _alone(owner):
        return "changes a setting of the process, and would do so only when it is compiled; do it outside"
    if (isinstance(module, str) and module.startswith(("numpy.random", "torch.random"))) or _of_numpy_random(owner):
        return _IMPURE["random"]
    found = root(function)
    if found.lstrip("_") in _IMPURE:
        return _IMPURE[found.lstrip("_")]
    if found in _ALLOWED or not _is_library_module(found):
        return None
    return f"is of {found}, which can't be compiled; call it outside of the function and pass the result"


def _alone(owner: Any) -> bool:
    """Whether what a function is bound to says that it is no method."""
    return owner is None or isinstance(owner, type(sys))


def _of_numpy_random(owner: Any) -> bool:
    return type(owner).__module__.startswith("numpy.random")


def _is_library_module(name: str) -> bool:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)  # of a namespace
    return module is not None and (file is None or is_library(file))


def check(function: Any) -> None:
    """Raises Unsupported for the user's line that runs now."""
    why = reason(function)
    if why is not None:
        name = getattr(function, "__qualname__", type(function).__name__)
        refuse(f"{root(function).lstrip('_')}.{name}".removeprefix("builtins."), why)
