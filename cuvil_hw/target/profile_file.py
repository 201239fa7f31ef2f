"""Reads one profile file as checked data: YAML nodes → values with their line numbers. Finds all problems of a file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuvil_hw.errors import ProfileError
from cuvil_hw.errors.quoting import visible
from cuvil_hw.schedule.resources import RULES

if TYPE_CHECKING:
    from yaml import Node

SCHEMA = "cuvil-profile/1"
_TEXT_KEYS = ("schema", "name", "adapter", "description", "part", "board", "source", "extends")
KEYS = (*_TEXT_KEYS, "aliases", "clock_mhz", "resources", "settings")
AXIS_KEYS = ("limit", "use", "rule", "unit")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_PLAIN_TAGS = ("str", "int", "float", "bool", "null")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ProfileFault:
    line: int | None
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Located:
    """A value and the line (from 1) it stands on."""

    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """The content of one file.

    Attributes:
        values: top-level scalars and aliases.
        resources: fields by axis; None removes an inherited axis.
        settings: values by key; None removes an inherited setting.
        lines: line of each axis.
    """

    path: Path
    values: Mapping[str, Located]
    resources: Mapping[str, Mapping[str, Located] | None] = field(default_factory=dict)
    settings: Mapping[str, Located] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)


def fail(path: Path, problems: Sequence[ProfileFault]) -> None:
    """Raise one ProfileError for the first problem (by line) that lists the others too; does nothing if there is
    none."""
    if not problems:
        return
    first, *rest = sorted(problems, key=lambda p: p.line or 0)
    more = "".join(f"\n  {path}{f':{p.line}' if p.line else ''}: {p.key}: {p.text}" for p in rest)
    tail = f"\n{len(rest)} more problem(s) in this profile:{more}" if rest else ""
    raise ProfileError(str(path), first.line, first.key, first.text + tail)


def near(word: str, known: Sequence[str]) -> str:
    """ "; did you mean …?" or ""."""
    match = get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {match[0]}?" if match else ""


def scan(path: Path) -> tuple[ProfileFile, list[ProfileFault]]:
    """The content of one file without what it extends, and its problems; wrong values are left out.

    Raises ProfileError if there is no file, or no YAML map in it.
    """
    root = _compose(path)
    problems: list[ProfileFault] = []
    top = _mapping(root, "", KEYS, problems)
    values: dict[str, Located] = {}
    for key, node in top.items():
        if key in _TEXT_KEYS:
            _put(values, key, _text(node, key, problems))
        elif key == "clock_mhz":
            _put(values, key, _number(node, key, problems, positive=True))
        elif key == "aliases":
            _put(values, key, _aliases(node, problems))
    for key in ("schema", "name"):
        if key not in top:
            problems.append(
                ProfileFault(None, key, "missing" + (f"; write `schema: {SCHEMA}`" if key == "schema" else ""))
            )
    if "schema" in values and values["schema"].value != SCHEMA:
        text = f"{values['schema'].value!r} is not known, expected {SCHEMA}"
        problems.append(ProfileFault(values["schema"].line, "schema", text))
    for key in ("name", "adapter"):
        if key in values and not _WORD.match(values[key].value):
            text = f"{values[key].value!r} is not a name (letters, digits, '.', '_', '-')"
            problems.append(ProfileFault(values[key].line, key, text))
    resources, lines = _resources(top.get("resources"), problems)
    settings = _settings(top.get("settings"), problems)
    return ProfileFile(path, values, resources, settings, lines), problems


def read(path: Path) -> ProfileFile:
    """`scan` of a file that must be right. Raises ProfileError with all problems."""
    document, problems = scan(path)
    fail(path, problems)
    return document


def _compose(path: Path) -> Node:
    import yaml

    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ProfileError(str(path), None, "file", "no such file") from None
    except OSError as error:
        raise ProfileError(str(path), None, "file", f"cannot be read: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise ProfileError(str(path), None, "file", f"larger than {_MAX_BYTES} bytes; this is not a profile")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProfileError(str(path), line, "file", "not UTF-8 text; save it as UTF-8") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(p for p in (error.context, error.problem) if p)
        raise ProfileError(str(path), mark.line + 1 if mark else None, "file", f"not valid YAML: {problem}") from error
    except yaml.YAMLError as error:
        raise ProfileError(str(path), None, "file", f"not valid YAML: {error}") from error
    except RecursionError:
        raise ProfileError(str(path), None, "file", "not a profile: nested too deeply") from None
    if root is None:
        raise ProfileError(str(path), None, "file", f"empty; a profile starts with `schema: {SCHEMA}`")
    if not isinstance(root, yaml.MappingNode):
        raise ProfileError(str(path), _line(root), "file", f"expected `key: value` lines, found {_kind(root)}")
    return root


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _kind(node: Node) -> str:
    import yaml

    if isinstance(node, yaml.MappingNode):
        return "a map"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    tag = str(node.tag).rpartition(":")[2]
    kinds = {"str": "text", "int": "a whole number", "float": "a number", "bool": "a truth value", "null": "nothing"}
    return f"{kinds.get(tag, tag)} ({node.value})" if tag != "null" else kinds[tag]


def _scalar(node: Node) -> Any:
    """The plain value of a scalar node; the node itself if a profile can't hold it."""
    import yaml

    if not isinstance(node, yaml.ScalarNode) or str(node.tag).rpartition(":")[2] not in _PLAIN_TAGS:
        return node
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError, LookupError):  # `!!int ""`, `!!float "x"`, `!!bool "maybe"`
        return node


def _mapping(
    node: Node | None, where: str, known: Sequence[str] | None, problems: list[ProfileFault]
) -> dict[str, Node]:
    """Keys → nodes of a map; duplicate, non-text and (when `known` is given) unknown keys become problems."""
    import yaml

    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        problems.append(ProfileFault(_line(node), where, f"expected a map, found {_kind(node)}"))
        return {}
    result: dict[str, Node] = {}
    first: dict[str, int] = {}
    for key_node, value in node.value:
        key = _scalar(key_node)
        line = _line(key_node)
        if not isinstance(key, str):
            problems.append(ProfileFault(line, where or "file", f"a key must be text, found {_kind(key_node)}"))
            continue
        name = f"{where}.{key}" if where else key
        if key in first:
            problems.append(ProfileFault(line, name, f"given twice, first on line {first[key]}"))
            continue
        first[key] = line
        if known is not None and key not in known:
            problems.append(ProfileFault(line, name, f"unknown key{near(key, known)} (known: {', '.join(known)})"))
            continue
        if known is None and not _WORD.match(key):
            problems.append(ProfileFault(line, name, f"{key!r} is not a name (letters, digits, '.', '_', '-')"))
            continue
        result[key] = value
    return result


def _put(values: dict[str, Located], key: str, value: Located | None) -> None:
    if value is not None:
        values[key] = value


def _text(node: Node, key: str, problems: list[ProfileFault]) -> Located | None:
    value = _scalar(node)
    if isinstance(value, str) and value.strip():
        if visible(value.strip()) == value.strip():
            return Located(value.strip(), _line(node))
        problems.append(ProfileFault(_line(node), key, f"control characters in {value!r}; write it as one plain line"))
        return None
    found = "empty text" if isinstance(value, str) else _kind(node)
    quote = "; put it in quotes" if isinstance(value, int | float) else ""
    problems.append(ProfileFault(_line(node), key, f"expected text, found {found}{quote}"))
    return None


def _number(node: Node, key: str, problems: list[ProfileFault], *, positive: bool = False) -> Located | None:
    value = _scalar(node)
    line = _line(node)
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = ""
        if isinstance(value, str) and re.fullmatch(r"\d+(\.\d*)?e\d+", value):
            hint = f"; YAML reads this form as text, write {float(value):.1f}"
        problems.append(ProfileFault(line, key, f"expected a number, found {_kind(node)}{hint}"))
        return None
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        problems.append(ProfileFault(line, key, f"must be finite, found {node.value}"))
    elif number < 0 or (positive and number == 0):
        problems.append(
            ProfileFault(line, key, f"must be {'above 0' if positive else '0 or more'}, found {node.value}")
        )
    else:
        return Located(number, line)
    return None


def _aliases(node: Node, problems: list[ProfileFault]) -> Located | None:
    import yaml

    items = [_scalar(n) for n in node.value] if isinstance(node, yaml.SequenceNode) else [node]
    if all(isinstance(i, str) and _WORD.match(i) for i in items):
        return Located(tuple(items), _line(node))
    problems.append(ProfileFault(_line(node), "aliases", "expected a list of names, like [myboard, mb]"))
    return None


def _resources(
    node: Node | None, problems: list[ProfileFault]
) -> tuple[dict[str, Mapping[str, Located] | None], dict[str, int]]:
    resources: dict[str, Mapping[str, Located] | None] = {}
    lines: dict[str, int] = {}
    for axis, value in _mapping(node, "resources", None, problems).items():
        where = f"resources.{axis}"
        lines[axis] = _line(value)
        if _scalar(value) is None:
            resources[axis] = None
            continue
        if isinstance(_scalar(value), int | float | str):
            text = f"expected a map, found {_kind(value)}; write `{axis}: {{limit: {value.value}}}`"
            problems.append(ProfileFault(_line(value), where, text))
            continue
        fields: dict[str, Located] = {}
        for key, item in _mapping(value, where, AXIS_KEYS, problems).items():
            name = f"{where}.{key}"
            if key in ("limit", "use"):
                number = _number(item, name, problems, positive=key == "use")
                if key == "use" and number is not None and number.value > 1:
                    text = f"must be a share above 0 and at most 1, found {item.value}"
                    problems.append(ProfileFault(_line(item), name, text))
                _put(fields, key, number)
                continue
            word = _text(item, name, problems)
            if key == "rule" and word is not None and word.value not in RULES:
                text = f"unknown rule {word.value!r}{near(word.value, RULES)} (known: {', '.join(RULES)})"
                problems.append(ProfileFault(word.line, name, text))
            _put(fields, key, word)
        resources[axis] = fields
    return resources, lines


def _settings(node: Node | None, problems: list[ProfileFault]) -> dict[str, Located]:
    import yaml

    settings: dict[str, Located] = {}
    for key, value in _mapping(node, "settings", None, problems).items():
        where, line = f"settings.{key}", _line(value)
        items = [_scalar(n) for n in value.value] if isinstance(value, yaml.SequenceNode) else [_scalar(value)]
        if any(not isinstance(i, str | int | float | None) for i in items) or (len(items) > 1 and None in items):
            problems.append(ProfileFault(line, where, "expected text, a number, a truth value or a list of these"))
        elif any(isinstance(i, float) and not math.isfinite(i) for i in items):
            problems.append(ProfileFault(line, where, f"must be finite, found {value.value}"))
        else:
            settings[key] = Located(tuple(items) if isinstance(value, yaml.SequenceNode) else items[0], line)
    return settings
