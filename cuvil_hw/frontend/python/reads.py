"""What a trace reads from outside: recorded as it is read, and read again at each call to see whether it has changed.

Rewritten code reads names and attributes through helpers, which record them. Code of the user's that runs as it is
(operators and constructors of the user's classes, hooks, descriptors) may read all that its globals, its variables and
its arguments hold: that is recorded when such code is entered. So is all that is in an object with which a function of
a library is called.

Settings of the process are read from libraries: data of their modules (`sys.argv`, `os.environ`), and what their
functions give for no arrays (`torch.get_num_threads()`), which are called again.
"""

from __future__ import annotations

import builtins
import inspect
import re
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from cuvil_hw.frontend.python.captured import Kept, fingerprint, is_opaque, is_traced, is_users
from cuvil_hw.frontend.python.source import HELPERS, is_library, of_user

T = TypeVar("T")

_OURS = "__cv"  # prefix of variables that rewriting makes
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
# Functions that tell a setting when they are called without arguments, by their names.
_TELLS = re.compile(r"(get|is|are)_|\w+_enabled$")
STRIDES = "strides"  # of what the function computes from arguments
GRADIENTS = frozenset(["requires_grad", "is_leaf", "grad_fn"])
# What a trace is known by is no setting: torch documents that these are true while a function is compiled.
_OF_TRACES = ("torch.compiler", "torch._dynamo", "torch.jit", "torch.onnx", "torch._utils")


class _Missing:
    """Itself stands for what isn't there."""


@dataclass(frozen=True)
class _Name:
    """A global of a function, or a builtin."""

    scope: dict[str, Any]
    name: str

    def now(self) -> Any:
        return self.scope.get(self.name, getattr(builtins, self.name, _Missing))


@dataclass(frozen=True)
class _Attribute:
    owner: Any
    name: str

    def now(self) -> Any:
        try:
            return getattr(self.owner, self.name, _Missing)
        except Exception:  # a descriptor of a library may raise anything: what was read isn't there any more
            return _Missing


@dataclass(frozen=True)
class _Value:
    value: Any

    def now(self) -> Any:
        return self.value


@dataclass(frozen=True)
class _Told:
    """What a library's function tells of a setting."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def now(self) -> Any:
        try:
            return self.function(*self.args, **self.kwargs)
        except Exception:  # as above
            return _Missing


_Read = _Name | _Attribute | _Value | _Told


@dataclass
class Reads:
    """The reads in order, since one may determine what is read next. `_born`: objects that the function creates.
    `_settings`: reads of the process's settings, by name. `facts`: what was read of arrays besides shapes, dtypes and
    values: attributes about strides and gradients, and what it does otherwise with other strides."""

    facts: set[str] = field(default_factory=set)
    _made: dict[Hashable, tuple[_Read, bool, Any]] = field(default_factory=dict)
    _settings: dict[str, Hashable] = field(default_factory=dict)
    _begun: set[Hashable] = field(default_factory=set)
    _seen: Kept = field(default_factory=dict)
    _born: dict[int, Any] = field(default_factory=dict)

    @property
    def arrays(self) -> list[Any]:
        """The arrays and tensors that were read."""
        return [v for v in self._seen.values() if isinstance(v, torch.Tensor | np.ndarray) and not is_traced(v)]

    def unchanged(self) -> bool:
        """Whether every read would give the same value now."""
        return all(now == then for now, (_, _, then) in zip(self.again(), self._made.values(), strict=True))

    def again(self) -> Iterator[Any]:
        """What it is now, in the order of the reads."""
        seen: Kept = {}
        for read, deep, _ in self._made.values():
            yield fingerprint(read.now(), seen, deep)

    def name(self, scope: dict[str, Any], name: str, deep: bool = False) -> None:
        self._add(("name", id(scope), name, deep), _Name(scope, name), deep)

    def attribute(self, owner: Any, name: str) -> None:
        """`owner.name`; where reading it runs code of the user's, all that this may read."""
        if isinstance(owner, torch.Tensor | np.ndarray) or is_traced(owner):
            return
        if isinstance(owner, types.ModuleType) and _is_library(owner):
            self._setting(owner, name)
            return
        if runs_code(type(owner), name):
            self.used([owner, type(owner)])
        elif id(owner) in self._born:
            self._attribute(type(owner), name)
        else:
            self._attribute(owner, name)

    def _attribute(self, owner: Any, name: str, deep: bool = False) -> None:
        self._add(("attribute", id(owner), name, deep), _Attribute(owner, name), deep)

    def _setting(self, module: types.ModuleType, name: str) -> None:
        """Data of a library's module."""
        value = getattr(module, name, None)
        if not callable(value) and not isinstance(value, types.ModuleType | torch.dtype):
            read = _Attribute(module, name)
            self._settings[f"{module.__name__}.{name}"] = key = "attribute", id(module), name
            self._add(key, read, False)

    def told(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: T) -> T:
        """`given`: what a function of torch or NumPy gave; recorded where that is a setting: plain values for plain
        values."""
        home = getattr(function, "__module__", None) or ""
        plain = all(isinstance(a, _PLAIN) for a in (*args, *kwargs.values())) and _is_plain(given)
        if plain and not isinstance(function, type | np.ufunc) and not home.startswith(_OF_TRACES):
            key = "told", id(function), args, tuple(kwargs.items())
            self._settings[f"{home.partition('.')[0]}.{getattr(function, '__name__', '')}()"] = key
            self._add(key, _Told(function, args, kwargs), False)
        return given

    def settle(self) -> None:
        """The end of the trace: settings are as outside of the function's own `with` statements again."""
        for key in self._settings.values():
            read, deep, _ = self._made[key]
            self._made[key] = read, deep, fingerprint(read.now(), {}, deep)

    def altered(self) -> list[str]:
        """Settings that were others during the trace than they are now."""
        made = ((name, self._made[key]) for name, key in self._settings.items())
        return [name for name, (read, deep, then) in made if fingerprint(read.now(), {}, deep) != then]

    def function(self, function: Any) -> None:
        """A function that is called: its code, defaults and closure."""
        self._add(("function", id(function)), _Value(function), False)

    def used(self, value: Any) -> None:
        """Record a value that is passed to code which may read anything in it. (Values that aren't opaque were recorded
        when read.)"""
        if isinstance(value, list | tuple | set | frozenset):
            for part in value:
                self.used(part)
        elif isinstance(value, dict):
            self.used(list(value.values()))
        elif id(value) not in self._born and (is_users(value) if isinstance(value, type) else is_opaque(value)):
            self._all(value)

    def born(self, value: Any) -> None:
        """An object that the function makes is nothing from outside."""
        self._born[id(value)] = value

    def _all(self, value: Any) -> None:
        self._add(("all", id(value)), _Value(value), True)

    def _add(self, key: Hashable, read: _Read, deep: bool) -> None:
        if key in self._begun:
            return
        self._begun.add(key)
        now = read.now()
        self._made[key] = read, deep, fingerprint(now, self._seen, deep)

    def entered(self, frame: types.FrameType) -> None:
        """Record what user code that runs unchanged may read."""
        code, scope = frame.f_code, frame.f_globals
        for name, value in frame.f_locals.items():
            if name in code.co_freevars and not name.startswith(_OURS) and not is_traced(value):
                self._all(value)
            elif code.co_name == "__init__" and name == code.co_varnames[0]:
                self.born(value)
            else:
                self.used(value)
        for name in code.co_names:
            if name in scope:
                self.name(scope, name, deep=True)
                self._inside(scope[name], code.co_names)

    def _inside(self, module: Any, names: tuple[str, ...]) -> None:
        """What code reads of a module, by the names that stand in the code."""
        if not isinstance(module, types.ModuleType):
            self._tells(module)
            return
        if _is_library(module):
            for name in names:
                value = getattr(module, name, None)
                self._setting(module, name)
                if isinstance(value, types.ModuleType) and value is not module:
                    self._inside(value, tuple(n for n in names if n != name))
                else:
                    self._tells(value)
            return
        for name in names:
            if name in vars(module) and ("attribute", id(module), name, True) not in self._begun:
                self._attribute(module, name, deep=True)
                self._inside(vars(module)[name], names)

    def _tells(self, function: Any) -> None:
        """What a function of torch or NumPy tells, if it tells a setting."""
        home = getattr(function, "__module__", None) or ""
        plain = isinstance(function, types.FunctionType | types.BuiltinFunctionType)
        if plain and home.startswith(("torch", "numpy")) and _TELLS.match(function.__name__):
            self.told(function, (), {}, _Told(function, (), {}).now())


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if isinstance(value, tuple | list) else isinstance(value, _PLAIN)


def _is_library(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return is_library(file) if file else module.__name__.partition(".")[0] in sys.stdlib_module_names


def runs_code(kind: type, name: str) -> bool:
    """Whether reading an attribute of an instance runs code of the user's."""
    for special in ("__getattr__", "__getattribute__"):
        if of_user(inspect.getattr_static(kind, special, None)):
            return True
    found = inspect.getattr_static(kind, name, None)
    if isinstance(found, property):
        return of_user(found.fget)
    return of_user(inspect.getattr_static(type(found), "__get__", None))


@contextmanager
def watched(reads: Reads) -> Iterator[None]:
    """Record what code of the user's that runs as it is may read."""
    codes: dict[types.CodeType, bool] = {}

    def entered(frame: types.FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        plain = codes.get(code)
        if plain is None:
            plain = codes[code] = _runs_as_it_is(frame)
        if plain:
            sys.setprofile(None)  # reading runs code, too
            try:
                reads.entered(frame)
            finally:
                sys.setprofile(entered)

    before = sys.getprofile()
    sys.setprofile(entered)
    try:
        yield
    finally:
        sys.setprofile(before)


def _runs_as_it_is(frame: types.FrameType) -> bool:
    """Whether code is the user's, and not rewritten. Methods that a dataclass makes are of the class's module."""
    code = frame.f_code
    file = frame.f_globals.get("__file__") if code.co_filename == "<string>" else code.co_filename
    return not is_library(file or "<string>") and HELPERS not in code.co_freevars


def environment() -> tuple[Any, ...]:
    """What torch's functions read besides their arguments."""
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    return torch.get_default_dtype(), autocast, torch.get_default_device()
