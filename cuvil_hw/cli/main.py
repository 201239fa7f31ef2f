"""Entry of the command `cuvil`: runs the app and turns every outcome into an exit code.

0: done. 1: a CuvilError, printed as one short message. 2: wrong usage. 70: a bug in Cuvil. 130: interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence

from cuvil_hw.errors import CuvilError, pip_install

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
        import cuvil_hw.cli.app
        import cuvil_hw.cli.output  # noqa: F401
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("cuvil"):
            raise
        return _no_cli(e.name.partition(".")[0])
    arguments, debug = _without_debug(sys.argv[1:] if argv is None else list(argv))
    try:
        code = _run(arguments, debug)
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


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """`--debug` may stand anywhere before "--"."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    head = [a for a in arguments[:end] if a != "--debug"]
    return [*head, *arguments[end:]], len(head) != end


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc(file=sys.stderr)


def _no_cli(package: str) -> int:
    print(f"cuvil: the command line needs {package}; {pip_install('cli')}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
