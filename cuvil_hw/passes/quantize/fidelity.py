"""What quantization costs: compares the integer program with the float one on calibration data, layer by layer.

The integers are those of the device: a copy of the program gets every quantized value as an additional output, becomes
integer as it does for a target, and is evaluated in NumPy, which gives the bits of every target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import ArrayAttr, FunctionType, StringAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.base import evaluate
from cuvil_hw.ops.integer import Dequantize
from cuvil_hw.passes.pipeline import INTEGER, run_pipeline
from cuvil_hw.passes.quantize.calibrate import FloatValues, Statistics, numbered
from cuvil_hw.passes.quantize.ptq import Placed
from cuvil_hw.runtime.evaluation import POOR_DB, Noise, Reference, is_scores, lost

Array = npt.NDArray[Any]
ORIGIN = "simulated (meaning in NumPy, calibration data)"
WORK = 2e9  # multiplications and elements computed at most, beyond the first sample
MOST, SHOWN = 64, 3


def fidelity(program: Program, placed: Placed, stats: Statistics, label: str) -> dict[str, Any]:
    """For a report: {"samples", "origin", "inputs", "layers", "outputs", "warnings"}; empty where `stats` hold no
    samples of the program's shapes, such as those of a file. `program`: the float program that `placed` was made of;
    `label`: the precision."""
    shapes = [kind.shape for _, kind in program.given]  # statistics may come from the same model at other sizes
    fitting = [sample for sample in stats.kept if [a.shape for a in sample] == shapes]
    samples = fitting[: max(1, min(MOST, int(WORK // max(work(program), 1))))]
    if not samples:
        return {}
    tapped, grids = _tapped(placed)
    run_pipeline(tapped, INTEGER)
    floats, integers = FloatValues(program), FloatValues(tapped)
    value_of = {number: value for value, number in numbered(program).items()}
    end = program.block.last_op
    ends = list(end.operands) if end is not None else []
    noise = {number: Noise() for number, _ in grids}
    outputs = [Noise() for _ in ends]
    for seen, made in zip(floats.all_values(samples), integers.all_values(samples), strict=True):
        results = integers.results(made)
        for wanted, got, total in zip(floats.results(seen), results, outputs, strict=False):
            total.add(wanted, got)
        for (number, grid), q in zip(grids, results[len(ends) :], strict=True):
            noise[number].add(seen[value_of[number]], evaluate(grid, [q])[0])
    layers = [
        {**_named(program, value_of[number]), "sqnr_db": total.decibels, "silent": not total.signal}
        for number, total in noise.items()
    ]
    found = [
        {"name": name, "sqnr_db": total.decibels, "same_largest": total.same_largest if is_scores(kind.shape) else None}
        for (name, kind), total in zip(program.outputs, outputs, strict=True)
        if dtypes.is_float(kind.dtype) and name not in program.calling.kept_outputs
    ]
    doubts = [*stats.doubts, *_poor(found, layers, label, len(samples))]
    return {
        "samples": len(samples),
        "origin": ORIGIN,
        "inputs": list(_input_ranges(program, placed)),
        "layers": layers,
        "outputs": found,
        "warnings": doubts,
    }


def float_model(program: Program) -> Reference:
    """A function that evaluates a float program on samples, one after another; for `Executable.evaluate`."""
    values, kept = FloatValues(program), program.calling.kept_outputs
    names = [name for name, _ in program.outputs]

    def run(samples: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
        for seen in values.all_values(samples):
            yield [a for name, a in zip(names, values.results(seen), strict=True) if name not in kept]

    return run


def work(program: Program) -> int:
    """Multiplications of the layers plus elements of all other results, in one run."""
    total = 0
    for o in program.block.ops:
        if isinstance(o, level1.TensorOp):
            size = sum(level1.type_of(r).size for r in o.results)
            total += size + o.op.count_products([level1.type_of(v) for v in o.operands], size)
    return total


def _tapped(placed: Placed) -> tuple[Program, list[tuple[int, Dequantize]]]:
    """A copy in which each quantized value is an output, and of each its number in the float program and its grid."""
    program = placed.program.clone()
    copy_of = dict(zip(numbered(placed.program), numbered(program), strict=True))
    taps = [(n, copy_of[q], Dequantize((g.scale,), (g.zero,))) for n, (q, g) in placed.taps.items()]
    end = program.block.last_op
    assert isinstance(end, ReturnOp), "a block ends in return"
    names = [*(n for n, _ in program.outputs), *(f"tap {n}" for n, _, _ in taps)]
    values: list[SSAValue] = [*end.operands, *(q for _, q, _ in taps)]
    program.block.insert_op_before(ReturnOp(*values), end)
    end.detach()  # type: ignore[no-untyped-call]
    end.erase()
    main = program.main
    main.function_type = FunctionType.from_lists([a.type for a in program.block.args], [v.type for v in values])
    main.attributes["output_names"] = ArrayAttr([StringAttr(n) for n in names])
    return program, [(n, grid) for n, _, grid in taps]


def _input_ranges(program: Program, placed: Placed) -> Iterator[dict[str, Any]]:
    """The range of real numbers that each input's integers cover."""
    kept = program.calling.kept_inputs
    for number, (name, _) in enumerate(program.inputs):  # arguments are the first values
        if number in placed.taps and name not in kept:
            grid = placed.taps[number][1]
            lo, hi = ((end - grid.zero) * grid.scale for end in dtypes.int_range(grid.dtype))
            yield {"name": name, "lo": lo, "hi": hi}


def _named(program: Program, value: SSAValue) -> dict[str, str]:
    operation = value.owner
    while isinstance(operation, level1.TensorOp) and operation.spec.moves:  # named by what made it
        value = operation.operands[0]
        operation = value.owner
    if isinstance(operation, level1.TensorOp):
        return {"layer": level1.loc_of(operation), "op": operation.spec.mnemonic}
    names = dict(zip(program.block.args, (n for n, _ in program.inputs), strict=True))
    return {"layer": next((n for v, n in names.items() if v is value), ""), "op": "input"}


def _poor(outputs: Sequence[dict[str, Any]], layers: Sequence[dict[str, Any]], label: str, samples: int) -> list[str]:
    """Warnings: outputs that are far from float, and layers whose values stayed zero during calibration."""
    found = []
    poor = [o for o in outputs if o["sqnr_db"] is not None and o["sqnr_db"] < POOR_DB]
    if poor:
        worst = sorted((e for e in layers if e["sqnr_db"] is not None), key=lambda e: e["sqnr_db"])[:SHOWN]
        names = ", ".join(f"{e['op']} {e['layer']} ({e['sqnr_db']:.1f} dB)" for e in worst)
        for o in poor:
            same = o["same_largest"]
            agree = f", and the same largest element in {same:.0%}" if same is not None else ""
            found.append(
                f"{label}: output {o['name']} has {o['sqnr_db']:.1f} dB signal to noise on {samples} calibration "
                f"samples (an error of {lost(o['sqnr_db'])} of the signal{agree}), {POOR_DB:g} dB or more are usual; "
                f"the noisiest layers: {names}; use more bits or precision='float32', or retrain with quantization"
            )
    silent = [e for e in layers if e["silent"]]
    if silent:
        names = ", ".join(f"{e['op']} {e['layer']}" for e in silent[:SHOWN]) + (", …" if len(silent) > SHOWN else "")
        found.append(
            f"{label}: always 0 in calibration, so that there is no range to go by and other inputs give wrong "
            f"results: {names}; give calibration data that reaches these layers"
        )
    return found
