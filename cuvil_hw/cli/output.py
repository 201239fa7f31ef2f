"""Prints results and errors of every command, for people and as JSON; shows progress on a terminal."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cuvil_hw.errors import CuvilError
from cuvil_hw.errors.quoting import lines, shell, visible
from cuvil_hw.report import text

T = TypeVar("T", contravariant=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Exactly one JSON object on standard output. Numbers that aren't finite become strings: JSON has none."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    # JSON itself escapes only the first 32 control characters.
    sys.stdout.write("".join(c if c == "\n" or visible(c) == c else f"\\u{ord(c):04x}" for c in text) + "\n")


def plain(value: Any) -> Any:
    """`value` as JSON values."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


_SHORT = 24  # characters of a text that isn't folded in a table that may be split
# How the Python interface spells what the command line has as options, longest first.
_AS_OPTIONS = tuple(
    (re.compile(pattern), option)
    for pattern, option in (
        (r"compile\(…, max_trips=N\)", "--max-trips N"),
        (r"\bmax_trips\b", "--max-trips"),
        (r"\bshapes=\{+[^}]*\}+", "--shape NAME=EXTENTS"),
        (r"\bshapes=", "--shape"),
        (r"\bconstants=", "--constant"),
        (r"\bexample_inputs\b", "--example"),
        (r"\bprecision='([\w<>,]+)'(?: \(--precision [\w<>,]+\))?", r"--precision \1"),
    )
)


def as_options(message: str) -> str:
    """A message of the library in the words of the command line."""
    for pattern, option in _AS_OPTIONS:
        message = pattern.sub(option, message)
    return message


def print_error(error: Exception, as_json: bool, *, usage: bool = False, remedy: str = "") -> None:
    """One short message on standard error, or one JSON object on standard output."""
    own = isinstance(error, CuvilError)
    formatted = getattr(error, "format_message", None)
    message = formatted() if callable(formatted) else str(error) or type(error).__name__
    if not own and formatted is None:
        message = f"{type(error).__name__}: {message}"
    message = lines("\n".join([message, *getattr(error, "__notes__", ())]))
    if own:
        message = as_options(message)
    if remedy:
        message += f"\n{remedy}"
    if as_json:
        fields = {k: v for k, v in vars(error).items() if not k.startswith("_")} if own else {}
        kind = "UsageError" if usage else type(error).__name__
        print_json({"error": {"type": kind, "message": message, **fields}})
        return
    command = getattr(getattr(error, "ctx", None), "command_path", "cuvil")
    hint = f"\ntry: {command} --help" if usage else ""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {escape(message)}{escape(hint)}")


class _Visible(Console):
    """Text in what is printed never controls the terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(lines(o) if isinstance(o, str) else o for o in objects), **options)


@dataclass(slots=True)
class _Said:
    """What `say` was told. `bars`: progress bars may be drawn; `line`: the command line."""

    quiet: bool = False
    bars: bool = True
    line: str = ""


_said = _Said()


def say(line: Sequence[str], *, quiet: bool, bars: bool) -> None:
    """How much this command `line` prints; JSON and errors are printed anyway."""
    _said.quiet, _said.bars, _said.line = quiet, bars and not quiet, " ".join(map(shell, ["cuvil", *line]))


def command_line() -> str:
    """The command line that runs, as a shell takes it."""
    return _said.line


def console() -> Console:
    """Standard output, unless --quiet; colours only on a terminal, and never where NO_COLOR is set."""
    return _Visible(highlight=False, quiet=_said.quiet)


class Views(Protocol[T]):
    """A module that knows how something looks as text: all of it, and its parts."""

    def render(self, value: T, /) -> str: ...
    def head(self, value: T, /) -> str: ...
    def tables(self, value: T, /) -> Sequence[text.Table]: ...
    def closing(self, value: T, /) -> Sequence[str]: ...


def show_views(views: Views[T], value: T) -> None:
    """Plain text for files and pipes; on a terminal tables that fit it."""
    out = console()
    if not out.is_terminal:
        out.print(views.render(value), markup=False, soft_wrap=True)
        return
    out.print(views.head(value), style="bold", markup=False)
    for table in views.tables(value):
        out.print()
        show_table(*table)
    out.print()
    for line in views.closing(value):
        out.print(line, markup=False)


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool] = (), *, split: bool = False
) -> None:
    """A table. Off a terminal its rows stay whole lines, so that other programs can read them. `split`: on a narrow
    terminal it becomes several, each with the first column."""
    numeric = numeric or [False] * len(columns)
    out = console()
    if _said.quiet:
        return
    if not out.is_terminal:
        sys.stdout.write(text.table(columns, rows, numeric) + "\n")
        return
    blocks = split_columns(columns, rows, numeric, out.width) if split else [list(range(len(columns)))]
    for number, block in enumerate(blocks):
        table = Table(header_style="bold", box=None, pad_edge=False)
        for i in block:
            right = numeric[i]
            table.add_column(
                escape(columns[i]), justify="right" if right else "left", overflow="fold", no_wrap=right and split
            )
        for row in rows:
            table.add_row(*(escape(visible(row[i])) for i in block))
        if number:
            out.print()
        out.print(table)


def split_columns(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int
) -> list[list[int]]:
    """Which columns stand in which table of `width` characters: each has the first one, and others by their order as
    long as no number and no short text has to be folded."""
    whole = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    need = [w if right else min(w, _SHORT) for w, right in zip(whole, numeric, strict=True)]
    blocks = [[0]]
    for i in range(1, len(columns)):
        if len(blocks[-1]) > 1 and sum(need[j] + 2 for j in (*blocks[-1], i)) - 2 > width:
            blocks.append([0])
        blocks[-1].append(i)
    return blocks


@contextmanager
def progress(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on standard error while it is a terminal; else nothing is printed."""
    if not sys.stderr.isatty() or not _said.bars:
        yield lambda step, done, total: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[title]}"), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", title=escape(visible(title)), total=None)
        yield lambda step, done, total: bar.update(task, description=escape(step), completed=done, total=total)


def read_array(path: Path) -> np.ndarray[Any, Any]:
    """The array in a .npy file. Raises CuvilError; nothing is unpickled."""
    found = read_arrays(path)
    if not isinstance(found, np.ndarray):
        raise CuvilError(f"{path}: holds several arrays; give each as a .npy file")
    return found


def read_arrays(path: Path) -> np.ndarray[Any, Any] | dict[str, np.ndarray[Any, Any]]:
    """The array in a .npy file, or those in a .npz file by name. Raises CuvilError; nothing is unpickled."""
    if not path.is_file():
        raise CuvilError(f"{path}: no such file")
    try:
        with path.open("rb") as f:
            _check_header(f, path.stat().st_size)
            found = np.load(f, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return found
            with found:
                return {name: found[name] for name in found.files}
    except Exception as e:  # NumPy raises a dozen kinds: of the header's text, the archive, its compression
        why = "holds Python objects, which are never loaded" if "allow_pickle" in str(e) else str(e) or repr(e)
        raise CuvilError(f"{path}: not a NumPy array file (.npy, .npz): {why}; write it with numpy.save") from e


def _check_header(f: BinaryIO, size: int) -> None:
    """Raises ValueError for a .npy file whose header asks for more memory than its elements take in the file."""
    start = f.read(6)
    f.seek(0)
    if start != b"\x93NUMPY":
        return
    version = np.lib.format.read_magic(f)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version in readers:
        shape, _, dtype = readers[version](f)
        needed, there = math.prod(shape) * dtype.itemsize, size - f.tell()
        if not dtype.hasobject and needed > there:
            raise ValueError(f"its header says {dtype}{list(shape)}, {needed:,} bytes, but {there:,} follow")
    f.seek(0)


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Raises BadParameter for a file that a command is to write and also reads."""
    read = [path for path in inputs if path is not None and path.is_file()]
    for path in outputs:
        if path is not None and path.is_file():
            for other in read:
                if path.samefile(other):
                    raise typer.BadParameter(f"{path} would be overwritten, and is an input; choose another name")
