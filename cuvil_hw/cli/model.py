"""What stands for a model on the command line: an .onnx file, `file.py:Net`, or a .pt2 file of torch.export.save."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cuvil_hw.cli.output import read_array
from cuvil_hw.errors import CuvilError, ToolNotFound, needs_python, pip_install

if TYPE_CHECKING:
    from types import ModuleType

HELP = "An .onnx file; FILE.py:NAME (runs the file: a torch module, its class, or a function that makes one); a .pt2."
EXAMPLE = "x.npy, once per input: gives the shapes of a PyTorch model's inputs, or of those an .onnx file leaves open."
TRUST = "Load a .pt2 file: torch.export.load may run what such a file holds, so only give one that you trust."
Trust = typer.Option("--trust", help=TRUST)
Example = typer.Option("--example", "-e", help=EXAMPLE, show_default="the first sample of --calibration")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """`model` and `example_inputs` as cuvil.compile takes them; `file`: what the model was read from."""

    model: Any
    example_inputs: Any
    file: Path


def open_model(given: Path, examples: Sequence[Path] | None, calibration: Any, trust: bool) -> ModelFile:
    """Raises CuvilError where there is no model, or none of that name; ToolNotFound without PyTorch."""
    arrays = [read_array(path) for path in examples or ()]
    example = None if not arrays else arrays[0] if len(arrays) == 1 else tuple(arrays)
    name, colon, attribute = str(given).rpartition(":")
    if colon and name.endswith(".py"):
        return ModelFile(_module(Path(name), attribute), _example(example, calibration, given), Path(name))
    if given.suffix == ".py":
        raise CuvilError(f"{given}: name the model in it, as in {given}:Net")
    if given.suffix == ".pt2":
        return ModelFile(_exported(given, trust), example, given)
    return ModelFile(str(given), example, given)


def _example(example: Any, calibration: Any, model: Path) -> Any:
    if example is not None:
        return example
    if calibration is None:
        raise CuvilError(
            f"{model}: a PyTorch model needs example inputs: give --example x.npy, once per input, or --calibration"
        )
    if isinstance(calibration, dict):
        return {name: array[:1] for name, array in calibration.items()}
    return calibration[:1]


def _module(path: Path, attribute: str) -> Any:
    """The torch module that a Python file gives, in eval mode. The file runs, as it would by `python file.py` (but its
    __name__ is its own)."""
    needs_python("compile a PyTorch model")
    torch = _torch()
    if not path.is_file():
        raise CuvilError(f"{path}: there is no such file")
    module = _run(path)
    found = getattr(module, attribute, None)
    if found is None:
        here = {n: v for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__}
        names = [n for n, v in here.items() if isinstance(v, torch.nn.Module | type)]
        listed = f"; it has {', '.join(names)}" if names else ""
        raise CuvilError(f"{path}: defines no {attribute!r}{listed}")
    if not isinstance(found, torch.nn.Module) and callable(found):
        try:
            found = found()
        except Exception as e:
            remedy = "write a function without parameters that makes the model, and name that"
            raise CuvilError(f"{path}: {attribute}() raised {type(e).__name__}: {e}; {remedy}") from e
    if not isinstance(found, torch.nn.Module):
        raise CuvilError(f"{path}: {attribute} gives a {type(found).__name__}, not a torch.nn.Module")
    return found.eval()


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"cuvil_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise CuvilError(f"{path}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as dataclasses and torch look classes up by it
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise CuvilError(f"{path}: running it raised {type(e).__name__}: {e}; --debug shows where") from e
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _exported(path: Path, trust: bool) -> Any:
    """The ExportedProgram in a .pt2 file. `trust`: required, because torch.export.load unpickles tensors and constants
    that the file marks so, and evaluates its symbolic expressions: a malicious file can run any code."""
    if not path.is_file():
        raise CuvilError(f"{path}: there is no such file")
    if not trust:
        raise CuvilError(
            f"{path}: torch.export.load may run code that a .pt2 file holds (it unpickles); give --trust if the file "
            "is yours, or export the model to ONNX"
        )
    needs_python("compile a PyTorch model")
    torch = _torch()
    try:
        return torch.export.load(str(path))
    except Exception as e:
        remedy = "save it with torch.export.save"
        raise CuvilError(f"{path}: torch.export.load raised {type(e).__name__}: {e}; {remedy}") from e


def _torch() -> Any:
    try:
        import torch.export
    except ModuleNotFoundError as e:
        raise ToolNotFound("Python package torch", "read a PyTorch model", pip_install("torch")) from e
    return torch
