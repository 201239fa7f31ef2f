"""The registry of bitstreams: which file implements which design on which part.

A registry is a JSON list of entries that hold digests, never paths. The one that ships with the package
(bitstreams/registry.json) names known good bitstreams; the user's own, below `home()`, also keeps the files, named by
their content, and so does the machine's, below `shared_home()`, which all users read: boards are driven by root, and
programs are often made by somebody else. Files are checked against their digests each time before they are used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cuvil_hw import data
from cuvil_hw.adapters.zynq import hwh
from cuvil_hw.adapters.zynq.ports import StreamPort
from cuvil_hw.contract import canonical
from cuvil_hw.contract.files import replace
from cuvil_hw.errors import CuvilError, DeviceError

SCHEMA = "cuvil-bitstreams/1"
_HEX64 = re.compile(r"[0-9a-f]{64}")
_TEXT = re.compile(r"[ -~]{1,200}")
_UNSET_ID = 0xFFFF_FFFF  # what Vivado writes when nobody chose a user ID


@dataclass(frozen=True, slots=True)
class Entry:
    """One bitstream. `design`: digest of the design (ports.design_digest); `part`: as in the profile; `tool`: what
    built it; `shell`: the block design around the core; `bit`, `hwh`: SHA-256 of the two files."""

    design: str
    part: str
    tool: str
    shell: str
    bit: str
    hwh: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.design, self.part, self.tool, self.shell


@dataclass(frozen=True, slots=True)
class Bitstream:
    """An entry and its files' bytes, verified."""

    entry: Entry
    bit: bytes
    hwh: bytes

    @property
    def stem(self) -> str:
        """A file name that no other content has."""
        return f"cuvil-{self.entry.bit[:24]}-{self.entry.hwh[:24]}"


@dataclass(frozen=True, slots=True)
class BitHeader:
    """What the head of a .bit says. `user_id`: None when the file doesn't tell, or nobody chose one."""

    design: str
    user_id: int | None
    tool: str
    part: str


def home() -> Path:
    """The user's registry: $CUVIL_HOME/bitstreams, else cuvil/bitstreams in the XDG data folder."""
    chosen = os.environ.get("CUVIL_HOME")
    if chosen:
        return Path(chosen).absolute() / "bitstreams"
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.local/share").expanduser()) / "cuvil" / "bitstreams"


def shared_home() -> Path:
    """The registry that all users of the machine read: in the first of the XDG data folders, /usr/local/share where
    $XDG_DATA_DIRS says nothing else. Who may write there may register for all."""
    first = os.environ.get("XDG_DATA_DIRS", "").partition(":")[0]
    return (Path(first) if os.path.isabs(first) else Path("/usr/local/share")) / "cuvil" / "bitstreams"


def everywhere() -> list[tuple[Path, Entry]]:
    """Entries of all registries that this user reads, by their folder: the user's own first, each oldest first. Raises
    CuvilError for one that is malformed, or that others than root may write into."""
    return [(top, e) for top in dict.fromkeys((home(), shared_home())) for e in _listed(top)]


def shipped() -> tuple[Entry, ...]:
    """Known good bitstreams, by digest. Raises CuvilError for a broken installation."""
    return _read(data.folder("bitstreams") / "registry.json")


def registered() -> tuple[Entry, ...]:
    """The user's entries, oldest first. Raises CuvilError when the registry is malformed."""
    return _listed(home())


def find(design: str, part: str) -> Bitstream | None:
    """The newest bitstream of a design for a part, its files verified; None when there is none. What the user has
    registered goes before what is there for all.

    Raises DeviceError when a file was changed or is gone, CuvilError as `everywhere`."""
    matches = [(top, e) for top, e in everywhere() if (e.design, e.part) == (design, part)]
    if not matches:
        return None
    nearest = matches[0][0]
    return load(*[(e, top) for top, e in matches if top == nearest][-1])


def load(entry: Entry, top: Path | None = None) -> Bitstream:
    """The files of an entry registered below `top` (None: the user's own). Raises DeviceError unless each has the
    digest that was registered."""
    top = top if top is not None else home()
    return Bitstream(entry, _file(top, entry.bit, ".bit"), _file(top, entry.hwh, ".hwh"))


def add(
    bit: bytes,
    hardware: bytes,
    *,
    design: str,
    part: str,
    ports: tuple[tuple[StreamPort, ...], tuple[StreamPort, ...]] = ((), ()),
    masters: Sequence[str] = (),
    shell: str,
    tool: str | None = None,
    shared: bool = False,
) -> Entry:
    """Register a bitstream for a design, after checking that the two files and the design go together. An entry of the
    same design, part, tool and shell is replaced. `ports` or `masters`: of the design, streams or AXI
    masters; `tool`: None takes what the .hwh says; `shared`: for all users.

    Raises DeviceError when they don't fit, CuvilError when the registry can't be written."""
    head = bit_header(bit)
    if head.part and not hwh.short_part(part).startswith(hwh.short_part(head.part)):
        raise DeviceError(f"the .bit is for {head.part}, the design for {part}; synthesise the project for {part}")
    if head.user_id is not None and head.user_id != int(design[:8], 16):
        raise DeviceError(
            f"the .bit was built for design {head.user_id:08x}…, this is design {design[:8]}…; "
            "build it from this artifact's project"
        )
    found = hwh.read(hardware)
    if masters:
        hwh.wire_masters(found, masters, part)
    else:
        hwh.wire(found, *ports, part)
    entry = Entry(design, part, tool or found.tool, shell, _sha256(bit), _sha256(hardware))
    try:
        _check(asdict(entry), "the new entry")
    except ValueError as e:
        raise CuvilError(f"{e}; give another --tool or --shell") from e
    for known in shipped():
        if known.key == entry.key and known != entry:
            raise DeviceError(f"a bitstream of {design[:12]}… for {part} is known by digest, and these files differ")
    top = shared_home() if shared else home()
    with _locked(top, shared):
        kept = [e for e in _listed(top) if e.key != entry.key]
        _make(top / "files", shared)
        for content, digest, suffix in ((bit, entry.bit, ".bit"), (hardware, entry.hwh, ".hwh")):
            _write(top / "files" / f"{digest}{suffix}", content, shared)
        listing = {"schema": SCHEMA, "entries": [asdict(e) for e in (*kept, entry)]}
        _write(top / "registry.json", canonical.dump(listing), shared)
    return entry


def verify() -> dict[Entry, str | None]:
    """Every registered entry, of all users too, and what is wrong with its files (None: nothing)."""
    result: dict[Entry, str | None] = {}
    for top, entry in everywhere():
        try:
            load(entry, top)
            result.setdefault(entry, None)
        except DeviceError as e:
            result[entry] = str(e)
    return result


def bit_header(data: bytes) -> BitHeader:
    """The head of a .bit file. Raises DeviceError when it isn't one, or when it was cut off."""
    fields: dict[int, str] = {}
    try:
        at = 2 + int.from_bytes(data[:2], "big") + 2
        while (tag := data[at]) != 0x65:
            size = int.from_bytes(data[at + 1 : at + 3], "big")
            fields[tag] = data[at + 3 : at + 3 + size].rstrip(b"\0").decode("ascii")
            at += 3 + size
        length = int.from_bytes(data[at + 1 : at + 5], "big")
    except (IndexError, UnicodeDecodeError) as e:
        raise DeviceError("the .bit file has no valid header; take the one that Vivado's write_bitstream made") from e
    if at + 5 + length != len(data) or length == 0:
        have = len(data) - at - 5
        raise DeviceError(f"the .bit file holds {have} bytes of configuration, its header says {length}; copy it again")
    name, *options = fields.get(0x61, "").split(";")
    pairs = dict(o.split("=", 1) for o in options if "=" in o)
    try:
        user_id = int(pairs["UserID"], 16)
    except (KeyError, ValueError):
        user_id = _UNSET_ID
    return BitHeader(name, None if user_id == _UNSET_ID else user_id, pairs.get("Version", ""), fields.get(0x62, ""))


def _listed(top: Path) -> tuple[Entry, ...]:
    """The entries of one registry; none where there is none."""
    path = top / "registry.json"
    try:
        there = path.exists()
        if there and top == shared_home():
            # The folder above too: who may write there may put another in this one's place.
            for part in (top.parent, top, path, top / "files"):
                _check_owner(part)
    except OSError as e:
        raise CuvilError(f"{path}: {e.strerror or e}; make it readable or remove it") from e
    return _read(path) if there else ()


def _check_owner(path: Path) -> None:
    """Raises CuvilError unless only root, or this user, may change what all users run."""
    if not path.exists():
        return  # files that are gone are missed when one is loaded
    found = path.stat()
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or found.st_uid not in (0, os.getuid()):
        raise CuvilError(
            f"{path}: bitstreams for all users must belong to root and not be writable by others; repair it "
            f"(chown root, chmod go-w) or remove {shared_home()}"
        )


def _read(path: Path) -> tuple[Entry, ...]:
    try:
        root = canonical.parse(path.read_bytes())
        if not isinstance(root, dict) or set(root) != {"schema", "entries"} or root["schema"] != SCHEMA:
            raise ValueError(f"it isn't an object of 'schema' ({SCHEMA}) and 'entries'")
        if not isinstance(root["entries"], list):
            raise ValueError("'entries' isn't a list")
        entries = tuple(_check(e, f"entry {n}") for n, e in enumerate(root["entries"]))
    except (OSError, ValueError) as e:
        raise CuvilError(f"{path}: not a registry of bitstreams: {e}; repair or remove it") from e
    if len({e.key for e in entries}) != len(entries):
        raise CuvilError(f"{path}: two entries have the same design, part, tool and shell; remove one")
    return entries


def _check(value: Any, where: str) -> Entry:
    """Raises ValueError unless `value` is exactly an entry."""
    names = set(Entry.__dataclass_fields__)
    if not isinstance(value, Mapping) or set(value) != names:
        raise ValueError(f"{where} doesn't have exactly the keys {', '.join(sorted(names))}")
    for name in sorted(names):
        pattern, what = (_HEX64, "64 hex digits") if name in ("design", "bit", "hwh") else (_TEXT, "a short text")
        if not isinstance(value[name], str) or not pattern.fullmatch(value[name]):
            raise ValueError(f"{where}: {name} isn't {what}")
    return Entry(**value)


def _file(top: Path, digest: str, suffix: str) -> bytes:
    path = top / "files" / f"{digest}{suffix}"
    try:
        content = path.read_bytes()
    except OSError as e:
        raise DeviceError(f"{path}: {e.strerror or e}; add the bitstream again") from e
    if _sha256(content) != digest:
        raise DeviceError(f"{path}: was changed after it was registered, its SHA-256 differs; add the bitstream again")
    return content


def _write(path: Path, content: bytes, shared: bool) -> None:
    try:
        replace(path, content, durable=True, mode=0o644 if shared else None)
    except OSError as e:
        raise CuvilError(f"{path}: could not be written: {e.strerror or e}; free space or set CUVIL_HOME") from e


def _make(folder: Path, shared: bool) -> None:
    """The folder, and those above it that are missing, with permissions that don't depend on the umask."""
    try:
        for missing in (*reversed(folder.parents), folder):
            if not missing.is_dir():
                missing.mkdir(0o700, exist_ok=True)
                missing.chmod(0o755 if shared else 0o700)
    except OSError as e:
        raise CuvilError(f"{folder}: {e.strerror or e}; {_remedy(shared)}") from e


def _remedy(shared: bool) -> str:
    return "register for all users as root (sudo)" if shared else "set CUVIL_HOME to a folder of your own"


@contextmanager
def _locked(top: Path, shared: bool) -> Iterator[None]:
    _make(top, shared)
    try:
        fd = os.open(top / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise CuvilError(f"{top}: {e.strerror or e}; {_remedy(shared)}") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
