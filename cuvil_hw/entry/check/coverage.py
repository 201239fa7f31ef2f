"""What a target would do with a program: which ops run on the device, which on the processor, which are refused;
whether it fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cuvil_hw import api, dtypes
from cuvil_hw.adapters.base import styles_of
from cuvil_hw.adapters.target_check import adapter_for
from cuvil_hw.compile import numbers
from cuvil_hw.compile.precision import check_narrow, choose_precision
from cuvil_hw.errors import CuvilError, DoesNotFit, Refusal, Unsupported
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.passes.quantize.calibrate import ObservedRange, Statistics, digest, numbered
from cuvil_hw.runtime import host_work
from cuvil_hw.target.profile import Profile

ASSUMED = "ranges of values assumed, as no calibration data was given"
GOLDEN = 0.618034  # its multiples, modulo 1, all differ


@dataclass(frozen=True, slots=True)
class Coverage:
    """What one target would do with the program.

    Attributes:
        precision: in which the target would run it.
        device, processor: number of ops on each, by mnemonic.
        refused: ops that can't run, with reasons.
        fits: within the profile's limits; None if that wasn't asked.
        problem: why it doesn't fit or can't be compiled.
        note: what was assumed.
        warnings: layers that run on the processor, and quantization that is far from float.
    """

    target: str
    precision: str
    device: Mapping[str, int] = field(default_factory=dict)
    processor: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
    fits: bool | None = None
    problem: str = ""
    note: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.refused and not self.problem


def coverage(
    program: Program, profile: Profile, precision: str | None = None, statistics: Statistics | None = None
) -> Coverage:
    """Take `program` (simplified; not changed) through the steps of `compile` up to the choice of schedules; runs no
    tool.

    A float program for a target that needs integers is quantized with assumed ranges if there are no `statistics`:
    where ops run doesn't depend on ranges, and resources hardly do.
    """
    note = ""
    try:
        adapter = adapter_for(profile, None)
        try:
            chosen = choose_precision(program, precision, statistics is not None, profile)
        except CuvilError:
            if statistics is not None:
                raise
            statistics, note = assumed(program), ASSUMED
            chosen = choose_precision(program, precision, True, profile)
        check_narrow(chosen, adapter, profile)
    except CuvilError as e:
        return Coverage(profile.name, precision or "", problem=str(e))
    fits, problem = True, ""
    try:
        ready = program.clone()
        ready = numbers.quantize(ready, chosen, statistics)
        numbers.make_integer(ready, chosen)
        styles = styles_of(adapter, profile)
        style = styles[-1]
        try:
            style, _, graph, proposals, choice = api.arrange(ready, styles, profile)
            api.plan_memory(graph, choice, proposals, style.adapter, profile)
        except DoesNotFit as e:
            fits, problem = False, str(e)
        parts = api.divide(ready, style.adapter, profile)  # again: those that were arranged are fused
    except Unsupported as e:
        return Coverage(profile.name, chosen.label, refused=e.refusals, note=note)
    except CuvilError as e:
        return Coverage(profile.name, chosen.label, problem=str(e), note=note)
    device = Counter(o.spec.mnemonic for o in parts.core.block.ops if isinstance(o, level1.TensorOp))
    processor = Counter(step.op for part in (parts.prologue, parts.epilogue) for step in part.steps)
    doubts = () if note else ready.notes.get("quantization", {}).get("warnings", ())
    host = str(profile.settings.get("host", ""))
    found: dict[str, Any] = {
        "device": dict(device),
        "processor": dict(processor),
        "note": note,
        "warnings": (*host_work.warnings(parts.host, host), *doubts),
    }
    return Coverage(profile.name, chosen.label, **found, fits=fits, problem=problem)


def assumed(program: Program) -> Statistics:
    """Made-up statistics: each float value has its own range around 0, not symmetric. As with real data, no two scales
    are equal and no zero point is 0; either would save arithmetic that a calibrated program needs."""
    floats = [
        n
        for v, n in numbered(program).items()
        if dtypes.is_float(level1.type_of(v).dtype) and not isinstance(v.owner, level1.ConstOp)
    ]
    sizes = {n: 1 + n * GOLDEN % 1 for n in floats}
    return Statistics(digest(program), 0, {n: ObservedRange(-1.1 * s, 1.7 * s, ()) for n, s in sizes.items()})
