"""The options that decide what is compiled, the same for `cuvil compile` and `cuvil lock`, and their record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cuvil_hw.cli.model import Example, ModelFile
from cuvil_hw.cli.several import complete_targets
from cuvil_hw.errors import CuvilError

TARGET = "A built-in target (see `cuvil targets list`) or a .yaml file; several: a,b,c."
Target = typer.Option("--target", "-t", help=TARGET, autocompletion=complete_targets)
Examples = Annotated[list[Path] | None, Example]
Calibration = Annotated[
    Path | None, typer.Option(help="Representative inputs for quantization: .npy (N, …), or .npz by input name.")
]
Precision = Annotated[str | None, typer.Option(help="float32, float16, bfloat16, int8 (int2…int8) or fixed<W,I>.")]
Name = Annotated[str | None, typer.Option(help="Name of the program.")]
Shape = Annotated[
    list[str] | None,
    typer.Option(help="Shape of an input that the file leaves open: name=1,3,224,224; with --dim also name=B,3,S."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(help="A dimension that stays open: batch=1:64, x[0]=1:64; batch=1:64:1,8 compiles 1 and 8 ahead."),
]
Constraints = Annotated[
    list[str] | None, typer.Option(help='A rule between open dimensions: "H % 4 == 0", "S <= 2*batch".')
]
Constants = Annotated[
    list[str] | None, typer.Option(help="An input that becomes a constant: name=16000, name=1,2 or name=FILE.npy.")
]
State = Annotated[
    list[str] | None, typer.Option(help="State kept between calls: an input and the output that it becomes: in=out")
]
MaxTrips = Annotated[
    int | None, typer.Option(help="Bound of loops whose end depends on values; a call that needs more is an error.")
]
Interface = Annotated[
    str | None, typer.Option(help="Device that the artifact opens: hw, sim, sim-count, sim-cycles or null.")
]
Golden = Annotated[
    int | None,
    typer.Option(help="Keep so many golden vectors in the artifact, for `cuvil test` and `cuvil serve`.", min=0),
]


@dataclass(frozen=True, slots=True)
class Asked:
    """A compilation as the command line gives it."""

    model: str
    target: str
    calibration: str | None = None
    example: tuple[str, ...] = ()
    precision: str | None = None
    name: str | None = None
    shape: tuple[str, ...] = ()
    dim: tuple[str, ...] = ()
    constraint: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    max_trips: int | None = None
    interface: str | None = None
    golden: int | None = None

    @classmethod
    def of(cls, model: Path, target: str, **options: Any) -> Asked:
        """From what typer gives: paths and lists of them, None for what isn't given."""
        plain = {k: _plain(v) for k, v in options.items() if v is not None and v != []}
        return cls(str(model), target, **plain)

    @classmethod
    def read(cls, asked: Mapping[str, Any]) -> Asked:
        """From a lock. Raises CuvilError for what `to_json` didn't write."""
        try:
            return cls(**{k: _plain(v) for k, v in asked.items()})
        except TypeError as e:
            raise CuvilError(f"the lock's part asked is of another version ({e}); lock again") from e

    def to_json(self) -> dict[str, Any]:
        """What was given; every value is a text, a number or a list of texts."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if v not in (None, ())}

    def options(self) -> dict[str, Any]:
        """What was given, without model and target, and without files: those count by what is in them."""
        files = ("model", "target", "calibration", "example", "constant")
        found = {k: v for k, v in self.to_json().items() if k not in files}
        numbers = [text for text in self.constant if not text.endswith(".npy")]
        return found | ({"constant": numbers} if numbers else {})

    def inputs(self) -> dict[str, Path]:
        """Files of arrays by what they are for."""
        found = {f"example {n}": Path(path) for n, path in enumerate(self.example)}
        for text in self.constant:
            name, _, path = text.rpartition("=")
            if path.endswith(".npy"):
                found[f"constant {name}"] = Path(path)
        return found | ({"calibration": Path(self.calibration)} if self.calibration else {})


def lock_of(asked: Asked, opened: ModelFile) -> dict[str, Any]:
    """The lock of a compilation (entry/lock.py). Raises CuvilError for files that can't be read."""
    from cuvil_hw.entry.lock import record
    from cuvil_hw.target.profile import load_profile

    files = [opened.file]
    if opened.file.suffix == ".onnx":
        from cuvil_hw.frontend.onnx.load import files as files_of

        files = files_of(opened.file)
    return {
        **record(opened.model, files, load_profile(asked.target), asked.options(), asked.inputs()),
        "asked": asked.to_json(),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(str, value))
    return str(value) if isinstance(value, Path) else value
