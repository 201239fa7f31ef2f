"""What an adapter demands of a profile, and of the device that is asked for: before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cuvil_hw.adapters import registry
from cuvil_hw.adapters.base import Adapter, ChecksProfile, SettingKind
from cuvil_hw.errors import CuvilError, ProfileError
from cuvil_hw.target.opt_level import LEVELS, SETTING
from cuvil_hw.target.profile import Profile, Setting, draft
from cuvil_hw.target.profile_file import ProfileFault, ProfileFile, fail, near, scan
from cuvil_hw.target.schemes import parse_precision

# Settings that the compiler itself reads, whatever the adapter.
SHARED: dict[str, SettingKind] = {"precision": str, SETTING: tuple(LEVELS)}


def adapter_for(profile: Profile, interface: str | None) -> Adapter:
    """The profile's adapter. Raises ProfileError for settings that it doesn't know and rules other than its own (with
    file and line where the profile is a file), CuvilError for an interface that its devices don't have or an adapter
    that there isn't."""
    adapter = registry.load_adapter(profile.adapter)
    wrong = list(_stated(profile, adapter, None))
    if wrong:
        path = Path(profile.source)
        if path.suffix in (".yaml", ".yml") and path.is_file():
            document, _ = scan(path)
            fail(path, list(_stated(profile, adapter, document)))
        raise ProfileError(profile.source, None, wrong[0].key, wrong[0].text)
    if interface is not None and interface not in adapter.interfaces:
        have = ", ".join(adapter.interfaces)
        raise CuvilError(f"{profile.name} has no interface {interface!r}; it has {have}")
    return adapter


def check_file(path: Path) -> Profile:
    """The profile in a file. Raises ProfileError with everything that is wrong with it, each with its line and key."""
    if path.suffix not in (".yaml", ".yml"):
        raise ProfileError(str(path), None, "file", "a target profile is a .yaml file")
    profile, document, problems = draft(path)
    if profile.adapter and not any(p.key == "extends" for p in problems):
        problems += _demands(profile, document, {p.key for p in problems})
    fail(path, problems)
    return profile


def _demands(profile: Profile, document: ProfileFile, known: set[str]) -> Iterator[ProfileFault]:
    """`known`: keys that were found wrong before."""
    place = document.values.get("adapter") or document.values.get("extends")
    line = place.line if place is not None else None
    try:
        adapter = registry.load_adapter(profile.adapter)
    except CuvilError as e:
        yield ProfileFault(line, "adapter", str(e))
        return
    have = {axis.name for axis in profile.axes} | {k.split(".")[1] for k in known if k.startswith("resources.")}
    missing = [name for name in adapter.axes if name not in have]
    if missing:
        first = min(document.lines.values(), default=line)
        listed = ", ".join(sorted(axis.name for axis in profile.axes)) or "none"
        text = f"adapter {profile.adapter} needs a limit for {', '.join(missing)}; the profile has {listed}"
        yield ProfileFault(first, f"resources.{missing[0]}", text)
    yield from (p for p in _stated(profile, adapter, document) if p.key not in known)


def _stated(profile: Profile, adapter: Adapter, document: ProfileFile | None) -> Iterator[ProfileFault]:
    """What in a profile contradicts the adapter's own statements."""
    for axis in profile.axes:
        rule = adapter.axes.get(axis.name, axis.rule)
        if axis.rule != rule:
            line = document.lines.get(axis.name) if document is not None else None
            text = f"use of {axis.name} adds up by {rule} on {profile.adapter} targets, found {axis.rule}"
            yield ProfileFault(line, f"resources.{axis.name}.rule", text)
    wrong = list(_settings(profile, adapter, document))
    yield from wrong
    if not wrong and isinstance(adapter, ChecksProfile):
        for key, text in adapter.contradictions(profile):
            yield ProfileFault(_line(key, document), key, text)


def _line(key: str, document: ProfileFile | None) -> int | None:
    """Where a key stands in a file, or where the file says what it inherits it from."""
    if document is None:
        return None
    own = document.settings if key.startswith("settings.") else document.values
    place = own.get(key.removeprefix("settings.")) or document.values.get("extends")
    return place.line if place is not None else None


def _settings(profile: Profile, adapter: Adapter, document: ProfileFile | None) -> Iterator[ProfileFault]:
    """What is wrong with a profile's settings, by the adapter's declaration."""
    declared: dict[str, SettingKind] = {**SHARED, **adapter.settings}
    for key, value in profile.settings.items():
        line = _line(f"settings.{key}", document)
        if key not in declared:
            hint = f"{near(key, tuple(declared))} (known: {', '.join(sorted(declared))})"
            yield ProfileFault(line, f"settings.{key}", f"adapter {profile.adapter} has no such setting{hint}")
            continue
        text = _mismatch(value, declared[key])
        if not text and key == "precision":
            try:
                parse_precision(str(value))
            except CuvilError as e:
                text = str(e)
        if text:
            yield ProfileFault(line, f"settings.{key}", text)


def _mismatch(value: Setting, kind: SettingKind) -> str:
    """Why a value isn't of a kind; "" when it is."""
    if isinstance(kind, tuple):
        if any(type(value) is type(one) and value == one for one in kind):
            return ""
        return f"{value!r} is not one of {', '.join(map(str, kind))}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (type(value) is kind or (kind is float and number)):
        names = {str: "text", int: "a whole number", float: "a number", bool: "a truth value", tuple: "a list"}
        return f"{value!r} is not {names[kind]}"
    if number and value <= 0:  # type: ignore[operator]  # a number, as was asked above
        return f"must be above 0, found {value}"
    return ""
