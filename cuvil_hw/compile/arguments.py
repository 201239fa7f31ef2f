"""Checks the types of arguments of `compile`, `compile_all` and `check` before any work; one clear error for each.

Whether values fit a model or target (input names, extents, levels, interfaces) is checked where that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cuvil_hw.errors import CuvilError
from cuvil_hw.extent.constraint import Constraint
from cuvil_hw.frontend import check_max_trips
from cuvil_hw.schedule.slots import by_layer
from cuvil_hw.target.opt_level import check_level
from cuvil_hw.target.profile import Profile, load_profile

MAX_NAME = 200  # characters of a program's name
MAX_GOLDEN = 1000


def check_arguments(
    *,
    name: Any = None,
    shapes: Any = None,
    constraints: Any = (),
    constants: Any = None,
    state: Any = None,
    max_trips: Any = None,
    opt_level: Any = None,
    timing: Any = None,
    interface: Any = None,
    progress: Any = None,
    done: Any = None,
    dump: Any = None,
    golden: Any = 0,
) -> None:
    """Raises CuvilError for the first argument of a wrong type. The names are those of `compile`; left-out ones aren't
    checked."""
    check_name(name)
    _want_mapping("shapes", shapes, "a shape for each input, as in {'input': (1, 3, 32, 32)}")
    _want_mapping("constants", constants, "numbers or arrays by input, such as {'sr': 16000}")
    _want_mapping("state", state, "outputs by input, such as {'state': 'stateN'}")
    plural = isinstance(constraints, Iterable) and not isinstance(constraints, Mapping | bytes)
    if not plural and not isinstance(constraints, Constraint):
        raise CuvilError(f"constraints is {_kind(constraints)}, expected text such as 'S <= 2*B', or a list of it")
    check_max_trips(max_trips)
    check_level(opt_level)
    by_layer(timing)
    if interface is not None and not isinstance(interface, str):
        raise CuvilError(f"interface is {_kind(interface)}, expected a name such as 'hw', 'sim' or 'null'")
    if not isinstance(golden, int) or not 0 <= golden <= MAX_GOLDEN:
        raise CuvilError(f"golden is {golden!r}, expected how many golden vectors to keep, 0 to {MAX_GOLDEN}")
    if dump is not None and not isinstance(dump, str | Path):
        raise CuvilError(f"dump is {_kind(dump)}, expected the path of a folder")
    for argument, value in (("progress", progress), ("done", done)):
        if value is not None and not callable(value):
            raise CuvilError(f"{argument} is {_kind(value)}, expected a function")


def check_function(given: Mapping[str, Any]) -> None:
    """Raises CuvilError for an option that only models have. `given`: options for a Python function, or for a module
    that is compiled when it is called."""
    if given.get("shapes") or given.get("constraints"):
        raise CuvilError(
            "shapes and constraints are for models compiled ahead; a function is compiled for each combination of "
            "sizes that it is called with: write @cuvil.compile without them, or give a torch module, a target and "
            "example_inputs"
        )
    if given.get("constants"):
        raise CuvilError("constants is for ONNX models; a function's constants are Python values in its code")


def check_name(name: Any) -> None:
    """Raises CuvilError for a program's name that isn't text, is empty or too long for the file names made of it."""
    if name is not None and (not isinstance(name, str) or not 0 < len(name) <= MAX_NAME):
        given = f"{len(name):,} characters" if isinstance(name, str) else _kind(name)
        raise CuvilError(f"name is {given}; a program's name has 1 to {MAX_NAME} characters")


def named_targets(
    targets: str | Path | Profile | Iterable[str | Path | Profile],
    done: Callable[[str, Any], None] | None,
) -> dict[str, Profile]:
    """The profile of each target of `compile_all` by its label in the result; `done`: as there. Raises CuvilError."""
    found: dict[str, Profile] = {}
    if not isinstance(targets, str | Path | Profile):
        check_targets(targets)
    for target in [targets] if isinstance(targets, str | Path | Profile) else targets:
        try:
            profile = load_profile(target)
        except CuvilError as e:
            if done is None:
                raise
            done(str(target), e)
            continue
        plain = isinstance(target, str) and Path(target).suffix not in (".yaml", ".yml")
        label = str(target) if plain else profile.name
        if found.get(label, profile) != profile:
            raise CuvilError(f"two targets are called {label}; give one of the profiles another name")
        found[label] = profile
    return found


def check_targets(targets: Any) -> None:
    """Raises CuvilError unless `targets` (of `compile_all` and `check`, if not a single one) is an iterable of
    targets."""
    if isinstance(targets, bytes | Mapping) or not isinstance(targets, Iterable):
        raise CuvilError(f"targets is {_kind(targets)}, expected names of targets, as in ['cpu', 'pynq-z2']")


def _want_mapping(argument: str, value: Any, example: str) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise CuvilError(f"{argument} is {_kind(value)}, expected {example}")


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"


__all__ = ["MAX_NAME", "check_arguments", "check_function", "check_name", "check_targets", "named_targets"]
