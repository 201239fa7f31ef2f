"""Entry of the command `cuvil`: runs the app and turns every outcome into an exit code.

0: done. 1: a CuvilError, printed as one short message. 2: wrong usage. 70: a bug in Cuvil. 130: interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from cuvil_hw.errors import CuvilError

FAILED, USAGE, BUG, INTERRUPTED = 1, 2, 70, 130
_BUG = (
    "this is a bug in Cuvil; please report it to the authors of cuvil-hw, with the output of the same command with "
    "--debug and of `cuvil doctor`"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (`argv`, without the program's name; None: this process') and return its exit code."""
    try:
        import typer
    except ModuleNotFoundError:
        return _no_cli("typer")
    try:
        from cuvil_hw.cli.app import app
        from cuvil_hw.cli.output import print_error
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("cuvil"):
            raise
        return _no_cli(e.name.partition(".")[0])
    arguments, debug = _without_debug(sys.argv[1:] if argv is None else list(argv))
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
    except BrokenPipeError:
        # The reader has gone; the interpreter must not try to flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as e:
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


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """`--debug` may stand anywhere before "--"."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    head = [a for a in arguments[:end] if a != "--debug"]
    return [*head, *arguments[end:]], len(head) != end


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc(file=sys.stderr)


def _no_cli(package: str) -> int:
    print(f"cuvil: the command line needs {package}; pip install 'cuvil-hw[cli]'", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
