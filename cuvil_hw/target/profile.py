"""Target profiles: what a board or machine offers, as validated YAML. Every error cites file, line and key.

The format is described in docs/profiles.md.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, overload

from cuvil_hw.contract import registry
from cuvil_hw.data import folder
from cuvil_hw.errors import ProfileError
from cuvil_hw.schedule.resources import RULES, Resource
from cuvil_hw.target.profile_file import Located, ProfileFault, ProfileFile, fail, near, read, scan

Setting = str | int | float | bool | tuple[str | int | float | bool, ...]
T = TypeVar("T", str, int, float, bool, tuple[str, ...], tuple[int, ...])

# (rule, use, unit) by axis name. FPGA fill targets as published for FINN (util/platforms.py): above these, placement
# and routing tend to fail or to miss the clock.
KNOWN_AXES: Mapping[str, tuple[str, float, str]] = {
    "lut": ("sum", 0.70, "LUT"),
    "lut4": ("sum", 0.70, "LUT4"),
    "ff": ("sum", 0.50, "FF"),
    "bram18": ("sum", 0.80, "BRAM18"),
    "uram": ("sum", 0.80, "URAM"),
    "lutram": ("sum", 0.70, "LUT"),
    "dsp": ("sum", 0.80, "DSP"),
    "dsp18": ("sum", 0.80, "MULT18X18"),
    "alm": ("sum", 0.70, "ALM"),
    "m20k": ("sum", 0.80, "M20K"),
    "mlab": ("sum", 0.80, "MLAB"),
    "ddr": ("live", 1.0, "B"),
}

# Bits that one unit of an axis holds, of memories on a chip that constants lie in.
MEMORY_BITS: Mapping[str, int] = {"bram18": 18 << 10, "uram": 288 << 10, "m20k": 20 << 10, "mlab": 640}

MOST_EXTENDED = 32  # profiles, each of which extends the next

_HOSTS = {
    "x86_64": "x86_64-linux-gnu",
    "amd64": "x86_64-linux-gnu",
    "aarch64": "aarch64-linux-gnu",
    "arm64": "aarch64-linux-gnu",
}


@dataclass(frozen=True, slots=True)
class Profile:
    """A target as data.

    Attributes:
        adapter: name of the adapter that compiles for it.
        part, board: the vendor's names ("" if there is none).
        clock_hz: clock frequency that estimates assume, in Hz.
        axes: limited resources.
        settings: options that only the adapter understands.
        source: name of the built-in profile, or path of the file.
        origin: where its numbers come from.
    """

    name: str
    aliases: tuple[str, ...]
    adapter: str
    description: str
    part: str
    clock_hz: float
    axes: tuple[Resource, ...]
    settings: Mapping[str, Setting] = field(default_factory=dict, hash=False)
    source: str = ""
    board: str = ""
    origin: str = ""

    def axis(self, name: str) -> Resource:
        """The axis called `name`; ProfileError when the profile doesn't list it."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        have = ", ".join(a.name for a in self.axes) or "none"
        raise ProfileError(self.source, None, f"resources.{name}", f"no such resource in this profile; it has: {have}")

    @overload
    def setting(self, key: str) -> Setting: ...
    @overload
    def setting(self, key: str, default: T) -> T: ...
    def setting(self, key: str, default: Setting | None = None) -> Setting:
        """The value of a setting. Without `default` the key must be there; with one, the value must have its type
        (an int is taken where a float is asked for). ProfileError otherwise."""
        value = self.settings.get(key)
        if value is None:
            if default is None:
                problem = f"needed by adapter {self.adapter}; the profile has: {', '.join(self.settings) or 'none'}"
                raise ProfileError(self.source, None, f"settings.{key}", problem)
            return default
        if default is None or type(value) is type(default):
            return value
        if isinstance(default, float) and type(value) is int:
            return float(value)
        want, got = type(default).__name__, type(value).__name__
        raise ProfileError(self.source, None, f"settings.{key}", f"{value!r} is {got}, expected {want}")

    def digest(self) -> str:
        """SHA-256 (hex) of everything that can change a build; descriptions, aliases and the file's path are left
        out."""
        content = {
            "name": self.name,
            "adapter": self.adapter,
            "part": self.part,
            "board": self.board,
            "clock_hz": float(self.clock_hz),
            "axes": sorted([a.name, float(a.limit), a.rule, float(a.utilisation), a.unit] for a in self.axes),
            "settings": dict(self.settings),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def load_profile(target: str | Path | Profile) -> Profile:
    """A built-in profile by name or alias ("cpu": this machine's), the profile in a .yaml/.yml file, or a member of a
    family that a plug-in knows ("cuda:sm_75").

    A Profile is returned as it is. Raises ProfileError for an unknown name or a file that is missing or wrong.
    """
    if isinstance(target, Profile):
        return target
    given: object = target  # annotations stop no caller
    if not isinstance(given, str | Path):
        expected = "the name of a target, the path of a .yaml file, or a Profile"
        raise ProfileError(repr(target), None, "target", f"is a {type(given).__name__}, expected {expected}")
    if isinstance(target, Path) or target.endswith((".yaml", ".yml")):
        read_in, _, problems = draft(Path(target))
        fail(Path(target), problems)
        return read_in
    path = _builtin_path(target)
    if path is not None:
        return _builtin(path)
    family, _, member = target.partition(":")
    if member and family in registry.names(registry.PROFILES):
        profile: Profile = registry.find(registry.PROFILES, family).load()(member)
        return profile
    raise ProfileError(target, None, "target", _unknown(target))


def builtin_profiles() -> list[Profile]:
    """All profiles that come with the package, by name."""
    return [_builtin(path) for path in _builtin_files()]


def usual_profile(adapter: str) -> Profile | None:
    """The built-in target that stands for an adapter: the one that has the adapter's name, else the first with an
    alias, else the first; None if the adapter has none."""
    with suppress(ProfileError):
        profile = load_profile(adapter)
        if profile.adapter == adapter:
            return profile
    found = sorted((p for p in builtin_profiles() if p.adapter == adapter), key=lambda p: not p.aliases)
    return found[0] if found else None


def draft(path: Path) -> tuple[Profile, ProfileFile, list[ProfileFault]]:
    """(profile, file, problems): the profile as far as it can be read, its file, and everything that is wrong with it.

    Raises ProfileError if there is nothing to read, or if a file that it extends is wrong.
    """
    problems: list[ProfileFault] = []
    chain = _chain(path, problems)
    return _assemble(chain, str(path), problems), chain[-1], problems


@cache
def _builtin(path: Path) -> Profile:
    profile, _, problems = draft(path)
    fail(path, problems)
    return replace(profile, source=path.stem)


def _builtin_files() -> list[Path]:
    return sorted(folder("targets").glob("*.yaml"))


@cache
def _builtin_aliases(path: Path) -> tuple[str, ...]:
    aliases = read(path).values.get("aliases")
    return aliases.value if aliases else ()


def _builtin_path(name: str) -> Path | None:
    """The file of a built-in name or alias; None when there is no such target."""
    if name == "cpu":
        host = _HOSTS.get(platform.machine().lower()) if platform.system() == "Linux" else None
        if host is None:
            machine = f"{platform.system()} {platform.machine()}"
            problem = f"there is no built-in profile for this machine ({machine}); pass a profile file"
            raise ProfileError(name, None, "target", problem)
        name = host
    files = _builtin_files()
    by_name = next((f for f in files if f.stem == name), None)
    return by_name or next((f for f in files if name in _builtin_aliases(f)), None)


def _unknown(name: str) -> str:
    known = ["cpu", *(word for f in _builtin_files() for word in (f.stem, *_builtin_aliases(f)))]
    close = get_close_matches(name.lower(), known, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"unknown target; {hint}known: {', '.join(sorted(known))}; or give a path that ends in .yaml"


def _chain(path: Path, problems: list[ProfileFault]) -> tuple[ProfileFile, ...]:
    """The file and everything it extends, most basic first. What is wrong with the file itself becomes `problems`;
    a mistake in what it extends is a ProfileError that names that one."""
    files: list[ProfileFile] = []
    while True:
        document, found = scan(path)
        if files:
            fail(path, found)
        else:
            problems += found
        files.insert(0, document)
        parent = document.values.get("extends")
        if parent is None:
            return tuple(files)
        base, wrong = _base(path, parent.value)
        if len(files) > MOST_EXTENDED:
            wrong = f"more than {MOST_EXTENDED} profiles deep; let it extend one of them directly"
        elif base is not None and any(f.path.resolve() == base.resolve() for f in files):
            wrong = f"circular: {' → '.join([*(f.path.name for f in reversed(files)), base.name])}"
        if base is None or wrong:
            problem = ProfileFault(parent.line, "extends", wrong)
            if document is not files[-1]:
                fail(path, [problem])
            problems.append(problem)
            return tuple(files)
        path = base


def _base(path: Path, extends: str) -> tuple[Path | None, str]:
    """The file that `path` extends; or None, and why."""
    if extends.endswith((".yaml", ".yml")):
        base = path.parent / extends
        return (base, "") if base.is_file() else (None, f"no such file: {base}")
    found = _builtin_path(extends)
    return (found, "") if found is not None else (None, _unknown(extends))


def _assemble(chain: tuple[ProfileFile, ...], source: str, problems: list[ProfileFault]) -> Profile:
    """Later files override earlier ones key by key; `name` and `aliases` are never inherited. Adds to `problems` what
    is missing; nothing about keys that were found wrong before."""
    last = chain[-1]
    known = {p.key for p in problems}
    values: dict[str, Located] = {}
    fields: dict[str, dict[str, Located]] = {}
    lines: dict[str, int] = {}
    settings: dict[str, Setting] = {}

    def wrong(line: int | None, key: str, text: str) -> None:
        if key not in known and "extends" not in known:
            problems.append(ProfileFault(line, key, text))

    for document in chain:
        values.update(document.values)
        for axis, entry in document.resources.items():
            if entry is None:
                if fields.pop(axis, None) is None:
                    wrong(document.lines[axis], f"resources.{axis}", "removes an axis that isn't inherited")
            else:
                fields[axis] = {**fields.get(axis, {}), **entry}
                lines[axis] = document.lines[axis]
        for key, located in document.settings.items():
            if located.value is not None:
                settings[key] = located.value
            elif settings.pop(key, None) is None:
                wrong(located.line, f"settings.{key}", "removes a setting that isn't inherited")
    for key in ("adapter", "clock_mhz"):
        if key not in values:
            wrong(None, key, "missing" if len(chain) == 1 else "missing here and in what it extends")
    axes = tuple(_axis(name, entry, lines[name], wrong) for name, entry in fields.items())

    def text(key: str) -> str:
        return str(values[key].value) if key in values else ""

    return Profile(
        name=text("name"),
        aliases=last.values["aliases"].value if "aliases" in last.values else (),
        adapter=text("adapter"),
        description=text("description"),
        part=text("part"),
        clock_hz=values["clock_mhz"].value * 1e6 if "clock_mhz" in values else 0.0,
        axes=axes,
        settings=settings,
        source=source,
        board=text("board"),
        origin=text("source"),
    )


def _axis(
    name: str, entry: Mapping[str, Located], line: int, wrong: Callable[[int | None, str, str], None]
) -> Resource:
    rule, use, unit = KNOWN_AXES.get(name, ("", 1.0, ""))
    if "limit" not in entry:
        wrong(line, f"resources.{name}.limit", "missing")
    if "rule" not in entry and not rule:
        text = f"missing: {name} is not a well-known axis{near(name, tuple(KNOWN_AXES))} (rules: {', '.join(RULES)})"
        wrong(line, f"resources.{name}.rule", text)

    def get(key: str, default: object) -> Any:
        return entry[key].value if key in entry else default

    return Resource(name, get("limit", 0.0), get("rule", rule), get("use", use), get("unit", unit))
