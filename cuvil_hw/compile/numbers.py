"""Prepares the numbers of a program: simplify, quantize if asked for, convert to integer arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from cuvil_hw.compile.precision import CONVERT, Precision, choose_precision, other_floats, quantized_dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Program
from cuvil_hw.passes.pipeline import FLOAT, INTEGER, SIMPLIFY, NarrowFloats, observed, run_passes, run_pipeline
from cuvil_hw.passes.quantize.calibrate import Statistics, check_varies, collect, in_order, without_data
from cuvil_hw.passes.quantize.fidelity import fidelity
from cuvil_hw.passes.quantize.ptq import out_of_range, place
from cuvil_hw.target.profile import Profile


def simplify(program: Program) -> None:
    """Fold constants, remove ops without effect, fold batch norms into the weights of the layers before them."""
    run_pipeline(program, SIMPLIFY)


def quantize(program: Program, precision: Precision, calibration: Any) -> Program:
    """The program in its precision: with quantize/dequantize pairs, or with floats of 16 bits; as it is for f32. Raises
    InputError."""
    if precision.narrow:
        narrow = program.clone()
        run_passes(narrow, [NarrowFloats(precision.narrow)])
        return narrow
    if precision.scheme is None:
        return program

    scheme = precision.scheme
    if calibration is None:
        calibration = without_data(program)
    elif not isinstance(calibration, Statistics):
        calibration = collect(program, in_order(calibration, program), histograms=scheme.needs_histograms)
    if scheme.needs_data:
        check_varies(program, calibration)
    program.notes["precision"] = out_of_range(program, calibration, scheme)
    pairs = place(program, calibration, scheme)
    placed = pairs.program
    if not quantized_dtypes(placed):
        if other := other_floats(program):
            raise CuvilError(f"{program.name} computes in {other}, and only f32 can be quantized; {CONVERT}")
        raise CuvilError(
            f"{program.name}: precision {precision.label} was asked for, but nothing in the model can be quantized "
            "(it has no convolution, linear layer, sum or product); use precision='float32' where floats run"
        )
    placed.notes.update(program.notes)
    with observed(None):  # what it compiles is another program
        placed.notes["quantization"] = fidelity(program, pairs, calibration, precision.label)
    return placed


def shared_statistics(program: Program, calibration: Any, precision: str | None, profiles: Iterable[Profile]) -> Any:
    """Statistics that serve all profiles that quantize; `calibration` unchanged if none does. Raises InputError."""
    schemes = []
    for profile in profiles:
        # A precision that contradicts the model is the error of the target that it is chosen for.
        with suppress(CuvilError):
            schemes.append(choose_precision(program, precision, True, profile).scheme)
    needed = [s for s in schemes if s is not None]
    if isinstance(calibration, Statistics) or not needed:
        return calibration
    return collect(program, in_order(calibration, program), histograms=any(s.needs_histograms for s in needed))


def make_integer(program: Program, precision: Precision, integer_weights: bool = False) -> None:
    """Turn ops between quantize/dequantize pairs into integer ops, with accumulators as narrow as the weights allow.
    Integer weights in a float program become floats, unless the target takes `integer_weights` beside floats."""
    kept = ["integer-weights"] if integer_weights else []
    run_pipeline(program, [INTEGER, *kept] if precision.quantized else [*kept, FLOAT])
