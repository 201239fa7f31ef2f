"""Entry of the command `cuvil`: runs the app and turns every outcome into an exit code.

0: done. 1: a CuvilError, printed as one short message. 2: wrong usage. 70: a bug in Cuvil. 130: interrupted. Options
that every command has are read here, wherever they stand.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cuvil_hw.errors import CuvilError, pip_install
from cuvil_hw.telemetry.logs import shown

FAILED, USAGE, BUG, INTERRUPTED = 1, 2, 70, 130
_BUG = (
    "this is a bug in Cuvil; please report it to the authors of cuvil-hw, with the output of the same command with "
    "--debug and of `cuvil doctor`"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (`argv`, without the program's name; None: this process') and return its exit code."""
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        return _no_cli("typer")
    try:
        import cuvil_hw.cli.app  # noqa: F401
        from cuvil_hw.cli.output import say
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("cuvil"):
            raise
        return _no_cli(e.name.partition(".")[0])
    line = sys.argv[1:] if argv is None else list(argv)
    arguments, common = _common(line)
    say(line, quiet=common.quiet, bars=not common.verbose)
    try:
        with _logging(common.verbose):
            code = _run(arguments, common.debug)
        sys.stdout.flush()
        return code
    except OSError as e:
        if not _unwritable(e):
            raise
        # The reader has gone, or the disk is full; the interpreter must not try to flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(e, BrokenPipeError):
            print(f"error: standard output: {e.strerror}; free space, or send it elsewhere", file=sys.stderr)
        return FAILED


def _run(arguments: list[str], debug: bool) -> int:
    """The command's outcome as an exit code. Raises OSError when standard output can't be written."""
    import typer

    from cuvil_hw.cli.app import app
    from cuvil_hw.cli.output import print_error

    as_json = "--json" in arguments
    usage_error, click_error = typer.BadParameter.__mro__[1:3]
    try:
        code = app(arguments, standalone_mode=False, prog_name="cuvil")
        sys.stdout.flush()
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except CuvilError as e:
        _trace(debug)
        print_error(e, as_json)
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as e:
        if _unwritable(e):
            raise
        _trace(debug)
        if isinstance(e, usage_error):
            if not str(e):  # a group without a command has shown its help
                return USAGE
            print_error(e, as_json, usage=True)
            return USAGE
        if isinstance(e, click_error):
            print_error(e, as_json)
            return FAILED
        print_error(e, as_json, remedy=_BUG)
        return BUG


def _unwritable(error: Exception) -> bool:
    """Whether standard output failed: errors of files that have a name are the commands' own."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    return error.errno in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


@dataclass(frozen=True, slots=True)
class Common:
    """Options of every command. `verbose`: how often it is given."""

    debug: bool = False
    quiet: bool = False
    verbose: int = 0


_VERBOSE = {"-v": 1, "--verbose": 1, "-vv": 2}
_QUIET = ("-q", "--quiet")


def _common(arguments: Sequence[str]) -> tuple[list[str], Common]:
    """The options of every command may stand anywhere before "--"; the rest of the line."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    head = arguments[:end]
    common = Common("--debug" in head, any(a in _QUIET for a in head), sum(_VERBOSE.get(a, 0) for a in head))
    rest = [a for a in head if a != "--debug" and a not in _QUIET and a not in _VERBOSE]
    return [*rest, *arguments[end:]], common


@contextmanager
def _logging(verbose: int) -> Iterator[None]:
    """What Cuvil logs, on standard error: steps and tools, and with `verbose` 2 details. With 0, as Python has it."""
    if not verbose:
        yield
        return
    with shown(logging.INFO if verbose == 1 else logging.DEBUG):
        yield


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc(file=sys.stderr)


def _no_cli(package: str) -> int:
    print(f"cuvil: the command line needs {package}; {pip_install('cli')}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
