"""`cuvil.compile`: compiles a model ahead of time, or a Python function or method when it is called; also a
decorator."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from cuvil_hw import api
from cuvil_hw.compile.arguments import check_arguments, check_function
from cuvil_hw.contract.imported import imported_class
from cuvil_hw.errors import CuvilError, GuardError, ToolNotFound, needs_python, pip_install
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.target.profile import Profile
from cuvil_hw.target.profile_file import near

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    from cuvil_hw.extent.constraint import Constraint
    from cuvil_hw.frontend.python.load import Arguments, Traced
    from cuvil_hw.runtime.dynamic import DynamicExecutable
    from cuvil_hw.schedule.slots import Slots

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
Target = str | Path | Profile


@dataclass(frozen=True)
class _Variant:
    """One compilation of a function.

    `facts`: strides and the like, which count where the function reads them. `kept`: objects whose ids are part of
    `key`, kept alive so that the ids stay unique. `executable`: None if the result doesn't depend on any array.
    """

    key: Any
    facts: tuple[Any, ...]
    kept: Mapping[tuple[int, bool], Any]
    traced: Traced
    executable: Any

    def takes(self, given: Arguments) -> bool:
        """Whether arguments of the same key are the same in what the function reads of arrays."""
        return not self.traced.reads.facts or self.facts == _facts(given)


@dataclass(frozen=True)
class CompileOptions:
    """The options with which a function is compiled; see `compile`."""

    target: Target = "cpu"
    max_trips: int | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


class CompiledFunction(Generic[P, R]):
    """A Python function that is compiled when it is called: once for each combination of shapes and dtypes of arrays,
    values of all other arguments, and values that it reads from outside.

    `__wrapped__` is the function itself; `executables` are the programs compiled so far. Calls may be made by several
    threads, but compile one at a time.
    """

    __wrapped__: Callable[P, R]
    __name__: str

    def __init__(self, function: Callable[P, R], options: CompileOptions) -> None:
        functools.update_wrapper(self, function)
        self.__cuvil_wrapped__ = function
        self.options = options
        self._variants: list[_Variant] = []
        self._compiling = RLock()

    @property
    def executables(self) -> tuple[Executable, ...]:
        return tuple(v.executable for v in self._variants if v.executable is not None)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        load, result = _front_end()
        if load.is_tracing():  # called by a function that is compiled now: a part of it
            part: R = load.call(self.__wrapped__, *args, **kwargs)
            return part
        given = load.arguments(self.__wrapped__, args, kwargs)
        variant = self._variant(given)
        _check_written(variant.traced, given)
        try:
            outputs = () if variant.executable is None else variant.executable.run(*given.arrays).outputs
        except GuardError as e:
            raise _as_python(e, variant.traced) from None
        made: R = result.rebuilt(variant.traced, outputs, given.arrays)
        return made

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compiled {self.__wrapped__!r} for {self.options.target}>"

    def _variant(self, given: Arguments) -> _Variant:
        kept: dict[tuple[int, bool], Any] = {}
        key = _key(given, kept)
        with self._compiling:
            for variant in reversed(self._variants):
                if variant.key == key and variant.traced.reads.unchanged() and variant.takes(given):
                    return variant
            traced = _traced(self.__wrapped__, given, self.options)
            executable = None
            if traced.program.outputs:
                executable = api.compile(traced.program, self.options.target, **self.options.others)
            variant = _Variant(key, _facts(given), kept, traced, executable)
            self._variants.append(variant)
            return variant


if TYPE_CHECKING:

    class CommonOptions(TypedDict, total=False):
        """See `cuvil_hw.api.compile`."""

        name: str | None
        max_trips: int | None
        opt_level: int | None
        timing: Slots | None
        interface: str | None
        progress: api.Progress | None
        dump: str | Path | None
        golden: int

    class FunctionOptions(CommonOptions, total=False):
        """Options for functions; there is no more to say, since shapes, constants and state are in the function's
        code."""

        calibration: Any
        precision: str | None

    class ModelOptions(CommonOptions, total=False):
        """Options for models; calibration and precision may also be positional."""

        shapes: Mapping[Any, Any] | None
        constraints: Sequence[str | Constraint] | str | Constraint
        constants: Mapping[str, Any] | None
        state: Mapping[str, str] | None


@overload
def compile(
    model: None = None, target: Target = "cpu", **options: Unpack[FunctionOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def compile(model: C, target: Target = "cpu", **options: Unpack[FunctionOptions]) -> C: ...
@overload
def compile(
    model: types.FunctionType, target: Target, example_inputs: Any, **options: Unpack[FunctionOptions]
) -> Executable: ...
@overload
def compile(model: Callable[P, R], target: Target = "cpu", **options: Unpack[FunctionOptions]) -> Callable[P, R]: ...
@overload
def compile(
    model: Any,
    target: Target,
    example_inputs: Any = None,
    calibration: Any = None,
    precision: str | None = None,
    **options: Unpack[ModelOptions],
) -> Executable | DynamicExecutable: ...
def compile(
    model: Any = None, target: Target | None = None, example_inputs: Any = None, *args: Any, **options: Any
) -> Any:
    """Compile a model, or a Python function.

    A model with a target gives an Executable; `cuvil_hw.api.compile` describes models, arguments and errors. So does a
    Python function with `example_inputs`: a tuple of its arguments, a mapping by name, or its only argument.

    Without `example_inputs`, a function, a method, a torch module or its class gives a callable in its place. It is
    compiled when called, once for each combination of shapes, dtypes and Python values, and returns what Python would.
    As a decorator, with or without options:

        @cuvil.compile
        def f(x): ...

        @cuvil.compile(target="cpu", opt_level=3)
        def g(x): ...

    Args:
        model: a model, function, method, torch module or module class; left out in `@cuvil.compile(…)`.
        target: as in `cuvil_hw.api.compile`; "cpu" by default for functions.
        example_inputs: arguments to compile for now, instead of at the first call.
        max_trips: number of iterations compiled for a loop whose end depends on tensors; 32 by default.
        precision, calibration, opt_level, timing, interface, name, dump, golden: as in `cuvil_hw.api.compile`.

    Raises:
        Unsupported: for functions, lists every construct that can't be compiled, by line.
        CuvilError: and its subclasses, as in `cuvil_hw.api.compile`.

    A call raises GuardError when a loop needs more iterations than were compiled, and otherwise what the function
    itself would raise.
    """
    if model is None:
        if example_inputs is not None or args:
            raise CuvilError("example_inputs is given, but no function or model to compile")
        return lambda function: compile(function, "cpu" if target is None else target, **options)
    if not _is_function(model) and not (_is_module(model) and target is None and example_inputs is None):
        return api.compile(model, "cpu" if target is None else target, example_inputs, *args, **options)
    names = ("calibration", "precision")
    others = {**dict(zip(names, args, strict=False)), **options}
    known = inspect.signature(api.compile).parameters
    for option in others:
        if option not in known:
            raise TypeError(f"cuvil.compile has no option {option!r}{near(option, tuple(known))}")
    check_function(others)
    check_arguments(**{name: value for name, value in others.items() if name not in names})
    chosen = CompileOptions("cpu" if target is None else target, others.pop("max_trips", None), others)
    if example_inputs is not None:
        return _ahead(model, example_inputs, chosen)
    if isinstance(model, type):
        return _class(model, chosen)
    if _is_module(model):
        model.forward = CompiledFunction(model.forward, chosen)
        return model
    if isinstance(model, types.MethodType) and not isinstance(model.__func__, types.FunctionType):
        raise CuvilError(f"{model!r} can't be compiled: it is no Python function")
    return CompiledFunction(model, chosen)


def _signature() -> inspect.Signature:
    """The signature with all options, for help() and editors."""
    known = dict(inspect.signature(api.compile).parameters)
    first = ("model", "target")
    shown = [known[n].replace(default=None) if n in first else known[n] for n in known]
    return inspect.Signature(shown, return_annotation="Any")


compile.__signature__ = _signature()  # type: ignore[attr-defined]


def _is_function(model: Any) -> bool:
    """Whether it is compiled when called: plain functions, methods, functools.partial, objects with a Python
    `__call__`, and classes of torch modules."""
    if isinstance(model, types.FunctionType | types.MethodType | functools.partial):
        return True
    return isinstance(model, type) and _is_module(model)


def _is_module(model: Any) -> bool:
    module = imported_class("torch.nn", "Module")
    if module is None:
        return False
    return issubclass(model, module) if isinstance(model, type) else isinstance(model, module)


def _class(model: type, options: CompileOptions) -> type:
    """A class derived from a torch module's class; the forward of its instances is compiled."""
    model.forward = CompiledFunction(model.forward, options)  # type: ignore[attr-defined]
    return model


def _front_end() -> tuple[Any, Any]:
    needs_python("compile a Python function")
    try:
        from cuvil_hw.frontend.python import load, result
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] not in ("torch", "xdsl"):
            raise
        raise ToolNotFound(f"Python package {e.name}", "compile a Python function", pip_install("torch")) from e
    return load, result


def _traced(function: Callable[..., Any], given: Arguments, options: CompileOptions) -> Traced:
    load, _ = _front_end()
    trips = load.MAX_TRIPS if options.max_trips is None else options.max_trips
    name = options.others.get("name") or getattr(function, "__name__", "function").strip("<>")
    traced: Traced = load.trace_function(function, given, trips, name)
    return traced


def _ahead(function: Callable[..., Any], examples: Any, options: CompileOptions) -> Any:
    load, result = _front_end()
    names = set(inspect.signature(function).parameters)
    named = isinstance(examples, Mapping) and set(examples) <= names
    args = () if named else tuple(examples) if isinstance(examples, tuple) else (examples,)
    given = load.arguments(function, args, examples if named else {})
    traced = _traced(function, given, options)
    return api.compile(result.called_as(function, given, traced), options.target, **options.others)


def _key(given: Arguments, kept: dict[tuple[int, bool], Any]) -> Any:
    from cuvil_hw.frontend.python.captured import fingerprint
    from cuvil_hw.frontend.python.reads import environment

    first: dict[int, int] = {}
    for i in given.inputs:
        first.setdefault(id(given.leaves[i]), i)
    arrays = set(given.inputs)
    leaves = tuple(
        (type(x).__name__, tuple(x.shape), str(x.dtype), first[id(x)]) if i in arrays else fingerprint(x, kept)
        for i, x in enumerate(given.leaves)
    )
    return given.spec, leaves, environment()


def _facts(given: Arguments) -> tuple[Any, ...]:
    """What a function may read of arrays besides shapes, dtypes and values."""
    load, _ = _front_end()
    return tuple((load.strides(x), getattr(x, "requires_grad", False)) for x in given.arrays)


def _check_written(traced: Traced, given: Arguments) -> None:
    """Raises CuvilError where an array that the function writes into shares memory with another one that it reads: the
    program wouldn't see the write there."""
    writes = traced.program.calling.writes
    if not writes:
        return
    by_name = dict(zip(given.names, given.arrays, strict=True))
    others = [*by_name.items(), *(("an array from outside of the function", x) for x in traced.reads.arrays)]
    for write in writes:
        mine = by_name[write.input]
        for name, other in others:
            if (other is not mine or name not in by_name) and _overlap(mine, other):
                raise CuvilError(f"{write.input} is written into, and {name} shares its memory; pass a copy of one")


def _overlap(*arrays: Any) -> bool:
    a, b = (x if isinstance(x, np.ndarray) else _Memory(x) for x in arrays)
    work: Any = 1000  # typed as if it were 0 or -1
    try:
        return np.shares_memory(np.asarray(a), np.asarray(b), max_work=work)
    except RuntimeError:  # too hard to say
        return True


class _Memory:
    """Where a tensor lies, of any dtype, as NumPy understands it; its values aren't read."""

    def __init__(self, tensor: Any) -> None:
        size = tensor.element_size()
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(s * size for s in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
        }


def _as_python(error: GuardError, traced: Traced) -> Exception:
    """The exception that Python itself would raise, such as AssertionError or ZeroDivisionError."""
    text = str(error)
    for message, kind in traced.errors.items():
        if text.endswith(message):
            return kind(message)
    return error


__all__ = ["CompiledFunction", "compile"]
