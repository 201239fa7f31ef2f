"""`check`: inspects a model before it is compiled and reports all findings at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuvil_hw import api
from cuvil_hw.compile import numbers
from cuvil_hw.compile.arguments import check_arguments, check_targets
from cuvil_hw.compile.precision import quantized_dtypes
from cuvil_hw.entry.check.coverage import Coverage, coverage
from cuvil_hw.entry.check.hazards import Hazard, hazards
from cuvil_hw.errors import Refusal, Unsupported
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.shape import BroadcastTo
from cuvil_hw.passes.quantize.calibrate import Statistics, collect, in_order
from cuvil_hw.target.profile import Profile, builtin_profiles, load_profile, usual_profile
from cuvil_hw.types import TensorType


@dataclass(frozen=True, slots=True)
class Layer:
    """One op of the imported program. `where`: its source in the model; `broadcast`: it repeats elements of an operand
    by the implicit broadcasting of the model's framework."""

    where: str
    op: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    broadcast: bool


@dataclass(frozen=True, slots=True)
class Check:
    """The findings about a model.

    Attributes:
        inputs, outputs: types by name.
        refused: what no target can run; if not empty, `layers`, `hazards` and `targets` are empty.
        assumed: extents that the model leaves open and that were taken as 1.
        stale: shapes stated in the file that differ from those that its operators give.
        asked: the caller named the targets.
    """

    name: str
    inputs: tuple[tuple[str, TensorType], ...] = ()
    outputs: tuple[tuple[str, TensorType], ...] = ()
    assumed: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    refused: tuple[Refusal, ...] = ()
    hazards: tuple[Hazard, ...] = ()
    targets: tuple[Coverage, ...] = ()
    asked: bool = True

    @property
    def errors(self) -> int:
        """How many findings keep the model from being compiled. A target that fails counts if the caller named targets;
        if not, only when all of them fail."""
        wrong = sum(h.severity == "error" for h in self.hazards)
        failing = sum(not t.ok for t in self.targets)
        counts = self.asked or failing == len(self.targets)
        return len(self.refused) + wrong + (failing if counts else 0)

    @property
    def warnings(self) -> int:
        own = sum(h.severity == "warning" for h in self.hazards)
        return len(self.stale) + own + sum(len(t.warnings) for t in self.targets)

    @property
    def broadcasts(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.broadcast)


def check(
    model: Any,
    targets: str | Path | Profile | Iterable[str | Path | Profile] | None = None,
    example_inputs: Any = None,
    calibration: Any = None,
    precision: str | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    state: Mapping[str, str] | None = None,
    max_trips: int | None = None,
) -> Check:
    """Report what compiling a model would meet, without running any tool. What can't be compiled is part of the result.

    Args:
        targets: as in `compile_all`; None: one for each kind of hardware (`usual_targets`).
        model, example_inputs, calibration, precision, shapes, constants, state, max_trips: as in `compile`.

    Raises:
        CuvilError: there is no model to inspect: the file is missing, damaged or invalid, or shapes contradict each
            other.
        ProfileError: a target is unknown or wrong.
    """
    check_arguments(shapes=shapes, constants=constants, state=state, max_trips=max_trips)
    if targets is not None and not isinstance(targets, str | Path | Profile):
        check_targets(targets)
    named = (targets,) if isinstance(targets, str | Path | Profile) else targets
    profiles = usual_targets() if named is None else [load_profile(t) for t in named]
    try:
        program = api.import_model(model, example_inputs, shapes, None, constants, state, max_trips)
    except Unsupported as e:
        return Check(str(model) if isinstance(model, str | Path) else type(model).__name__, refused=e.refusals)
    layers = tuple(_layers(program))
    numbers.simplify(program)
    statistics = _statistics(program, calibration)
    return Check(
        program.name,
        program.inputs,
        program.outputs,
        tuple(program.notes.get("assumed", ())),
        tuple(program.notes.get("contradictions", ())),
        layers,
        hazards=hazards(program, statistics),
        targets=tuple(coverage(program, p, precision, statistics) for p in profiles),
        asked=targets is not None,
    )


def usual_targets() -> list[Profile]:
    """One built-in profile for each adapter, the one that people mean by the adapter's name."""
    adapters = sorted({p.adapter for p in builtin_profiles()})
    return [p for p in map(usual_profile, adapters) if p is not None]


def _statistics(program: Program, calibration: Any) -> Statistics | None:

    if calibration is None or isinstance(calibration, Statistics):
        return calibration
    if quantized_dtypes(program):
        return None
    return collect(program, in_order(calibration, program), histograms=True)


def _layers(program: Program) -> Iterable[Layer]:
    for operation in program.block.ops:
        if isinstance(operation, level1.TensorOp):
            operands, results = (tuple(map(level1.type_of, v)) for v in (operation.operands, operation.results))
            repeats = isinstance(operation.op, BroadcastTo)
            yield Layer(level1.loc_of(operation), operation.spec.mnemonic, operands, results, repeats)
