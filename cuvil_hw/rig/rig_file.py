"""A rig file: which boards there are, how they are reached, powered and shared. YAML, checked with file, line and key.

schema: cuvil-rig/1
boards:
  - name: z2-left
    profile: pynq-z2            # or the path of a profile
    ssh: xilinx@z2-left.local   # how it is reached: ssh, labgrid, local or simulated
    python: /usr/local/share/pynq-venv/bin/python3
    sudo: true                  # the driver needs it
    features: [camera]
    power: {on: [usbrelay, "1=1"], off: [usbrelay, "1=0"]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from cuvil_hw.errors import CuvilError

SCHEMA = "cuvil-rig/1"
Reach = Literal["ssh", "labgrid", "local", "simulated"]
REACHES = ("ssh", "labgrid", "local", "simulated")
_KEYS = ("name", "profile", *REACHES, "python", "sudo", "features", "power", "environment", "timeout_s")
_POWER = ("on", "off", "cycle")


@dataclass(frozen=True, slots=True)
class RigBoard:
    """One board.

    Attributes:
        profile: name or path of its target profile.
        reach: how commands get there; `address`: the host of ssh, the place of labgrid, "" for others.
        python: the board's Python, which has numpy, pyyaml, cuvil-hw and the target's driver.
        sudo: whether that Python is run through `sudo -n`.
        features: words that a run may ask for.
        power: command lines by "on", "off" and "cycle", run on this machine. labgrid has its own.
        environment: variables of the board's Python.
        timeout_s: for one program.
    """

    name: str
    profile: str
    reach: Reach
    address: str = ""
    python: str = "python3"
    sudo: bool = False
    features: tuple[str, ...] = ()
    power: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Rig:
    path: Path
    boards: tuple[RigBoard, ...]

    def choose(self, names: Sequence[str], features: Sequence[str]) -> list[RigBoard]:
        """The boards of these names (none: all) that have all `features`. Raises CuvilError for a name that no board
        has."""
        have = [b.name for b in self.boards]
        for name in names:
            if name not in have:
                raise CuvilError(f"{self.path}: there is no board {name!r}; there are: {', '.join(have)}")
        return [b for b in self.boards if (not names or b.name in names) and set(features) <= set(b.features)]


def read_rig(path: Path) -> Rig:
    """Raises CuvilError that cites file, line and key for everything that is wrong."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        content = loader.construct_document(root) if root is not None else None
    except OSError as e:
        raise CuvilError(f"{path}: {e.strerror or e}; give the path of a rig file ({SCHEMA})") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise CuvilError(f"{path}: is no YAML: {e}") from e
    lines = _lines(root)
    faults: list[str] = []

    def fault(where: tuple[Any, ...], text: str) -> None:
        line = next((lines[where[:n]] for n in range(len(where), -1, -1) if where[:n] in lines), 1)
        faults.append(f"{path}:{line}: {'.'.join(map(str, where)) or 'the file'}: {text}")

    boards: list[RigBoard] = []
    if not isinstance(content, dict):
        raise CuvilError(f"{path}:1: is no map; write `schema: {SCHEMA}` and `boards:`")
    if content.get("schema") != SCHEMA:
        fault(("schema",), f"is {content.get('schema')!r}, expected {SCHEMA}")
    for key in content:
        if key not in ("schema", "boards"):
            fault((key,), "is not known; a rig has schema and boards")
    listed = content.get("boards")
    if not isinstance(listed, list) or not listed:
        fault(("boards",), "lists no board")
        listed = []
    for n, given in enumerate(listed):
        made = _board(given, ("boards", n), fault)
        if made is not None:
            if made.name in [b.name for b in boards]:
                fault(("boards", n, "name"), f"{made.name!r} is used twice")
            boards.append(made)
    if faults:
        raise CuvilError("\n".join(faults))
    return Rig(path, tuple(boards))


def _board(given: Any, where: tuple[Any, ...], fault: Any) -> RigBoard | None:
    if not isinstance(given, dict):
        fault(where, "is no map of a board's keys")
        return None
    for key in given:
        if key not in _KEYS:
            fault((*where, key), f"is not known; a board has {', '.join(_KEYS)}")
    for key in ("name", "profile"):
        if not isinstance(given.get(key), str) or not given[key]:
            fault((*where, key), "is missing, or no text")
    reached = [k for k in REACHES if k in given]
    if len(reached) != 1:
        fault(where, f"is reached by exactly one of {', '.join(REACHES)}; it has {', '.join(reached) or 'none'}")
        return None
    reach, address = cast(Reach, reached[0]), given[reached[0]]
    if reach in ("ssh", "labgrid"):
        if not isinstance(address, str) or not address or address.startswith("-"):
            fault((*where, reach), f"is {address!r}, expected a {'host' if reach == 'ssh' else 'place'}")
    elif address is not True:
        fault((*where, reach), "is written as `true`")
    simple: dict[str, Any] = {"python": str, "sudo": bool, "timeout_s": (int, float)}
    for key, kind in simple.items():
        if key in given and (not isinstance(given[key], kind) or (key == "timeout_s" and not given[key] > 0)):
            fault((*where, key), f"is {given[key]!r}")
    features, power, environment = given.get("features", []), given.get("power", {}), given.get("environment", {})
    if not isinstance(features, list) or not all(isinstance(f, str) for f in features):
        fault((*where, "features"), "is no list of words")
    if not isinstance(power, dict) or not all(
        k in _POWER and isinstance(v, list) and v and all(isinstance(a, str) for a in v) for k, v in power.items()
    ):
        fault((*where, "power"), "maps on, off and cycle to command lines, each a list of words")
    if not isinstance(environment, dict) or not all(isinstance(v, str) for v in environment.values()):
        fault((*where, "environment"), "maps names to texts")
    try:
        return RigBoard(
            given["name"], given["profile"], reach, address if isinstance(address, str) else "",
            given.get("python", "python3"), given.get("sudo", False), tuple(features),
            {k: tuple(v) for k, v in power.items()}, dict(environment), float(given.get("timeout_s", 300.0)),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # said above


def _lines(node: Any, where: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], int]:
    """Line (from 1) of every value, by its keys."""
    import yaml

    found = {where: node.start_mark.line + 1} if node is not None else {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            found |= _lines(value, (*where, key.value))
            found[(*where, key.value)] = key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for n, value in enumerate(node.value):
            found |= _lines(value, (*where, n))
    return found
