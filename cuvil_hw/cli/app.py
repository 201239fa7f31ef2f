"""The typer app: every command in one place, each defined in its own file."""

from __future__ import annotations

from typing import Annotated

import typer

from cuvil_hw.cli import (
    ab,
    bitstreams,
    check,
    doctor,
    export,
    gate,
    graph,
    hil,
    lock,
    opt,
    run,
    serve,
    sign,
    synth,
    targets,
    timing,
)
from cuvil_hw.cli import compare as compare_command
from cuvil_hw.cli import compile as compile_command
from cuvil_hw.cli import report as report_command
from cuvil_hw.version import VERSION

HELP = """Compile PyTorch and ONNX models for FPGAs, processors and other devices, and run them.

Examples:

  cuvil targets list

  cuvil check model.onnx --target pynq-z2

  cuvil compile model.onnx --target pynq-z2 -o model.cuvil

  cuvil compare model.onnx --target pynq-z2,agilex,h100

  cuvil run model.cuvil --input x.npy

  cuvil test model.cuvil --input x.npy --labels labels.npy --min-accuracy 0.9 --max-use lut=0.7

  cuvil ab old.cuvil new.cuvil --data x.npy --labels y.npy

  cuvil hil model.cuvil --rig rig.yaml --junit out.xml

  cuvil serve models/ --port 8000

  cuvil report model.cuvil --html report.html

  cuvil timing model.cuvil

  cuvil synth model.cuvil

  cuvil sign model.cuvil --key release.key --release 7

  cuvil doctor
"""

app = typer.Typer(name="cuvil", help=HELP, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cuvil {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Log steps and tools on standard error; -vv: details.")
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only, and what --json asks for.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """Options of every command; all but `--version` are read by main.py, wherever they stand."""


app.command("check")(check.check_model)
app.command("compile")(compile_command.compile_model)
app.command("lock")(lock.lock_model)
app.command("compare")(compare_command.compare)
app.command("run")(run.run_program)
app.command("test")(gate.gate)
app.command("ab")(ab.ab)
app.command("hil")(hil.hardware)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("report")(report_command.show_report)
app.command("timing")(timing.show_timing)
app.command("synth")(synth.synthesise)
app.command("opt")(opt.run_passes)
app.command("graph")(graph.draw)
app.command("keygen")(sign.make_keys)
app.command("sign")(sign.sign)
app.command("verify")(sign.verify)
app.command("doctor")(doctor.examine)
app.add_typer(targets.app, name="targets")
app.add_typer(bitstreams.app, name="bitstreams")
