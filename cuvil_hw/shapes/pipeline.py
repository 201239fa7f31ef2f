"""The steps of `cuvil.compile` for open shapes: calibration once, then the usual way for each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cuvil_hw import api
from cuvil_hw.adapters.base import Adapter
from cuvil_hw.frontend.open_model import OpenModel
from cuvil_hw.ir.program import Program
from cuvil_hw.profile import Profile
from cuvil_hw.quant.calibrate import Statistics
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.dynamic import DynamicExecutable
from cuvil_hw.shapes.calibrated import moved, sizes_of
from cuvil_hw.shapes.compile import compile_open


def compile_model(
    model: OpenModel,
    profile: Profile,
    adapter: Adapter,
    calibration: Any,
    precision: str | None,
    interface: str | None,
    step: Callable[[str], None],
) -> DynamicExecutable:
    """For every size of a domain: listed ones now, others when they are called. Raises as `cuvil.compile` does."""

    def program_at(sizes: Mapping[str, int]) -> Program:
        program = model.program(sizes, model.look(sizes).source)
        api.simplify(program)
        return program

    shared = program_at(sizes_of(calibration, model)) if calibration is not None else None
    if shared is not None:
        calibration = api.shared_statistics(shared, calibration, precision, [profile])

    @api.collecting_later()
    def make(program: Program) -> Artifact:
        step("simplify")
        api.simplify(program)
        own = calibration
        if shared is not None and isinstance(calibration, Statistics):
            own = moved(calibration, shared, program)
        return api.compile_program(program, profile, adapter, own, precision, interface, step).artifact

    # A fabric is configured with what the vendor's tools built ahead.
    fabric = any(axis.rule == "sum" for axis in profile.axes)
    ahead_only = fabric and (interface or adapter.interface) == "hw"
    return compile_open(model, make, ahead_only=ahead_only, interface=interface)
