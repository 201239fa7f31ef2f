"""`cuvil run`: run an artifact on arrays in files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from cuvil_hw.cli.output import check_outputs, console, print_json, read_array
from cuvil_hw.cli.sign import MinRelease, SignedBy
from cuvil_hw.contract.device import Port
from cuvil_hw.report import words
from cuvil_hw.runtime.inputs import bind
from cuvil_hw.runtime.open_program import OpenPort

_FEW = 8  # elements and samples shown
_JSON_MOST = 100_000  # elements of an output in JSON; larger ones go to a file


def run_program(
    program: Annotated[Path, typer.Argument(help="A .cuvil file.", show_default=False)],
    inputs: Annotated[
        list[str] | None, typer.Option("--input", "-i", help="x.npy, or name=x.npy; once per input, in order.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the result: .npy, or .npz when there are several.")
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(
            help="Device to run on: hw, sim, null or another that the target has.",
            show_default="the artifact's",
        ),
    ] = None,
    signed_by: SignedBy = None,
    min_release: MinRelease = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a compiled program on arrays in .npy files.

    Example: cuvil run kws.cuvil --input x.npy -o y.npy
    """
    from cuvil_hw.runtime.load import load

    if output is not None and output.suffix not in (".npy", ".npz") and (output.is_file() or not output.exists()):
        raise typer.BadParameter(f"{output}: a result is written as .npy, or .npz when there are several")
    given = [Path(part) for text in inputs or () for part in (text, text.partition("=")[2]) if part]
    check_outputs([output], [program, *given])
    args, named = _inputs(inputs or ())
    with load(program, interface, trust=signed_by, min_release=min_release) as executable:
        # Files are arrays of ports, whatever structure the model's own call has.
        given = bind([Port(p.name, (), p.dtype) for p in executable.inputs], args, named)
        result = executable.run(dict(zip((p.name for p in executable.inputs), given, strict=True)))
        ports: Sequence[Port | OpenPort] = executable.outputs
    outputs = {port.name: array for port, array in zip(ports, result.outputs, strict=True)}
    if output is not None:
        _write(output, outputs)
    summary = {
        "program": executable.name,
        "interface": executable.interface,
        "samples": result.samples,
        "device_seconds": result.device_seconds,
        "outputs": [_describe(name, array) for name, array in outputs.items()],
        "counters": result.counters,
        "written": str(output) if output is not None else None,
    }
    if json:
        print_json(summary)
    else:
        _show(summary, outputs)


def _inputs(given: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Arrays by position and by name. A path that exists is a path, even with "=" in it."""
    args: list[Any] = []
    named: dict[str, Any] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if equals and not Path(text).exists():
            named[name] = read_array(Path(path))
        else:
            args.append(read_array(Path(text)))
    return args, named


def _write(path: Path, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
    from cuvil_hw.report.file import write_bytes

    buffer = io.BytesIO()
    # A .npy file has no bfloat16: its bits, as inputs may be given.
    outputs = {n: a.view(np.uint16) if a.dtype.name == "bfloat16" else a for n, a in outputs.items()}
    if path.suffix == ".npz":
        np.savez(buffer, **outputs)  # type: ignore[arg-type]
    elif len(outputs) == 1:
        np.save(buffer, next(iter(outputs.values())), allow_pickle=False)
    else:
        names = ", ".join(outputs)
        raise typer.BadParameter(f"the program has {len(outputs)} outputs ({names}); give -o a name that ends in .npz")
    write_bytes(path, buffer.getvalue())


def _describe(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    described = {"name": name, "shape": list(array.shape), "dtype": str(array.dtype)}
    if array.size <= _JSON_MOST:
        described["values"] = array.tolist()
    if _is_scores(array):
        described["argmax"] = array.reshape(-1, array.shape[-1]).argmax(axis=1).tolist()
    return described


def _is_scores(array: np.ndarray[Any, Any]) -> bool:
    """One row of scores per sample: a class can be told."""
    rows = array.reshape(array.shape[0], -1) if array.ndim > 1 and array.shape[0] else np.empty((0, 0))
    return array.ndim >= 2 and array.shape[-1] > 1 and rows.shape[-1] == array.shape[-1] and array.dtype != np.bool_


def _show(summary: dict[str, Any], outputs: dict[str, np.ndarray[Any, Any]]) -> None:
    out = console()
    for described, array in zip(summary["outputs"], outputs.values(), strict=True):
        flat = ", ".join(f"{v:.6g}" for v in array.reshape(-1)[:_FEW].tolist()) + (", …" if array.size > _FEW else "")
        shape = "x".join(map(str, array.shape)) or "scalar"
        out.print(f"{described['name']}: {shape} {array.dtype} [{flat}]", markup=False, soft_wrap=True)
        if "argmax" in described:
            classes = described["argmax"]
            more = ", …" if len(classes) > _FEW else ""
            out.print(f"  argmax: {', '.join(map(str, classes[:_FEW]))}{more}", markup=False, soft_wrap=True)
    seconds, samples = summary["device_seconds"], summary["samples"]
    each = f", {words.seconds(seconds / samples)} each" if samples else ""
    out.print(f"{samples} sample(s) on {summary['interface']} in {words.seconds(seconds)}{each}", markup=False)
    for layer, counts in summary["counters"].items():
        if words.saturated(counts):
            out.print(f"saturated in {layer}: {words.saturated(counts)}", markup=False, soft_wrap=True)
    if summary["written"]:
        out.print(f"written: {summary['written']}", markup=False, soft_wrap=True)
