"""The steps of `cuvil.compile` for open shapes: calibration once, then the usual way for each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cuvil_hw.adapters.base import Adapter
from cuvil_hw.compile.collecting import collecting_later
from cuvil_hw.compile.numbers import shared_statistics, simplify
from cuvil_hw.compile.open.calibrated import moved, sizes_of
from cuvil_hw.compile.open.sizes import compile_open
from cuvil_hw.frontend.shared.open_model import OpenModel
from cuvil_hw.ir.program import Program
from cuvil_hw.passes.quantize.calibrate import Statistics
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.dynamic import DynamicExecutable
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.target.profile import Profile


def compile_model(
    model: OpenModel,
    profile: Profile,
    adapter: Adapter,
    calibration: Any,
    precision: str | None,
    interface: str | None,
    step: Callable[[str], None],
    compile_program: Callable[..., Executable],
) -> DynamicExecutable:
    """Compile the listed sizes now and others when they are called, each with `compile_program`, as for fixed shapes.
    Raises as `cuvil.compile` does."""

    def program_at(sizes: Mapping[str, int]) -> Program:
        program = model.program(sizes, model.look(sizes).source)
        simplify(program)
        return program

    shared = program_at(sizes_of(calibration, model)) if calibration is not None else None
    if shared is not None:
        calibration = shared_statistics(shared, calibration, precision, [profile])

    @collecting_later()
    def make(program: Program) -> Artifact:
        step("simplify")
        simplify(program)
        own = calibration
        if shared is not None and isinstance(calibration, Statistics):
            own = moved(calibration, shared, program)
        return compile_program(program, profile, adapter, own, precision, interface, step).artifact

    # A fabric is configured with what the vendor's tools built ahead.
    ahead_only = adapter.objective == "slowest" and (interface or adapter.interface) == "hw"
    return compile_open(model, make, ahead_only=ahead_only, interface=interface)
