"""Numbers in a model that a narrower type can't hold, found without running it.

Two types are checked: int32, in which most quantized runtimes keep biases and sums, and f16. Each message also says
what Cuvil does in that case, since a hazard in another runtime need not be one here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xdsl.ir import Operation, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.compile.precision import quantized_dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.passes.accumulators import bounds
from cuvil_hw.passes.edit import const_array, integer_form, mnemonic, static_array
from cuvil_hw.passes.pipeline import INTEGER, run_pipeline
from cuvil_hw.passes.quantize.calibrate import ObservedRange, Statistics, numbered
from cuvil_hw.passes.real import real

INT32 = 2.0**31
F16_MAX = float(np.finfo(np.float16).max)
F16_LEAST = float(np.finfo(np.float16).smallest_subnormal) / 2  # rounds to zero, ties to even
# An input whose values span less than this is taken for one that doesn't occur.
LEAST_RANGE = 0.1
VANISHING = 0.01  # share of a constant's elements that may become zero unmentioned


@dataclass(frozen=True, slots=True)
class Hazard:
    """A number that a narrower type can't hold.

    Attributes:
        kind: "int32 bias", "int32 sum", "fp16 range" or "not finite".
        severity: "error" if no compilation can be right, else "warning".
        where: the layer's source.
        what: the numbers, their effect, and what to do.
    """

    kind: str
    severity: str
    where: str
    what: str


def hazards(program: Program, statistics: Statistics | None = None) -> tuple[Hazard, ...]:
    """The hazards of a simplified program, in the order of its layers. `statistics`: of the same program; without them
    only constants are checked."""
    ranges = _ranges(program, statistics)
    found = [*_not_finite(program), *_f16(program, ranges)]
    found += _stored(program) if quantized_dtypes(program) else _biases(program, ranges)
    return tuple(found)


def _ranges(program: Program, statistics: Statistics | None) -> Mapping[SSAValue, ObservedRange]:
    if statistics is None:
        return {}
    return {v: statistics.ranges[n] for v, n in numbered(program).items() if n in statistics.ranges}


def _constants(program: Program) -> Iterator[tuple[Operation, npt.NDArray[np.floating]]]:
    """Every float constant once, each with one op that reads it."""
    for constant in program.block.ops:
        if isinstance(constant, level1.ConstOp):
            array = const_array(program, constant.results[0])
            use = constant.results[0].first_use
            if array is not None and array.dtype.kind == "f" and array.size and use is not None:
                yield use.operation, array


def _not_finite(program: Program) -> Iterator[Hazard]:
    for reader, array in _constants(program):
        if np.isnan(array).any():
            yield Hazard(
                "not finite", "error", _where(reader),
                f"a constant of {_name(reader)} holds {int(np.isnan(array).sum())} NaN; check the model's weights",
            )  # fmt: skip


def _f16(program: Program, ranges: Mapping[SSAValue, ObservedRange]) -> Iterator[Hazard]:
    for reader, array in _constants(program):
        size = np.abs(array[np.isfinite(array)].astype(np.float64))
        large, small = int((size > F16_MAX).sum()), int(((size > 0) & (size <= F16_LEAST)).sum())
        if large:
            yield Hazard(
                "fp16 range", "warning", _where(reader),
                f"{large} of {array.size} elements of a constant of {_name(reader)} reach {size.max():.6g}; beyond "
                f"{F16_MAX:g} f16 has infinity only; clip them, or keep this layer in f32",
            )  # fmt: skip
        if small > VANISHING * int((size > 0).sum()):
            yield Hazard(
                "fp16 range", "warning", _where(reader),
                f"{small} of {array.size} elements of a constant of {_name(reader)}, such as "
                f"{size[size > 0].min():.6g}, become 0 in f16, whose least value is {2 * F16_LEAST:.3g}; "
                "rescale them, or keep this layer in f32",
            )  # fmt: skip
    for value, seen in ranges.items():
        if seen.absmax > F16_MAX:
            owner = value.owner if isinstance(value.owner, Operation) else None
            yield Hazard(
                "fp16 range", "warning", _where(owner) if owner else "an input",
                f"{f'the result of {_name(owner)}' if owner else 'the input'} reached {seen.absmax:.6g} in calibration;"
                f" beyond {F16_MAX:g} f16 has infinity only; keep this layer in f32, or scale its input",
            )  # fmt: skip


def _biases(program: Program, ranges: Mapping[SSAValue, ObservedRange]) -> Iterator[Hazard]:
    """Biases of a float model that int8 quantization can't hold in int32 on the scale of input times weight."""
    for operation in program.block.ops:
        if integer_form(operation) != "layer" or len(operation.operands) < 3:
            continue
        w, b = const_array(program, operation.operands[1]), const_array(program, operation.operands[2])
        if w is None or b is None or not w.size or not (np.isfinite(w).all() and np.isfinite(b).all()):
            continue
        tops = np.abs(w.astype(np.float64)).reshape(w.shape[0], -1).max(axis=1)
        # of the input, in steps of 8 bits: below it |bias| takes more than 31 bits on input scale · weight scale
        least = np.divide(np.abs(b) * 127 * 255, tops * INT32, out=np.zeros_like(tops), where=tops > 0)
        seen = ranges.get(operation.operands[0])
        span = max(seen.hi, 0.0) - min(seen.lo, 0.0) if seen is not None else LEAST_RANGE
        bad = np.flatnonzero(least > span)
        if not bad.size:
            continue
        worst = int(least.argmax())
        known = f"it spans {span:.6g} in calibration" if seen is not None else "calibration data would tell"
        yield Hazard(
            "int32 bias", "warning", _where(operation),
            f"as int8 the bias of {_channels(bad, len(tops))} overflows int32: {b[worst]:.6g} beside weights up to "
            f"{tops[worst]:.6g}, unless the input spans more than {least[worst]:.6g} ({known}); Cuvil then coarsens "
            "the weight scale, which costs weight bits; retrain with bounded batch norms, or use fixed<W,I>",
        )  # fmt: skip


def _stored(program: Program) -> Iterator[Hazard]:
    """Biases and sums of a quantized model beyond int32."""
    yield from _stored_biases(program)
    integer = program.clone()
    try:
        run_pipeline(integer, INTEGER)
    except CuvilError as e:
        yield Hazard("int32 bias", "error", "", str(e))
        return
    for operation in integer.block.ops:
        acc = getattr(operation.op, "acc", "") if isinstance(operation, level1.TensorOp) else ""
        if not acc or not isinstance(operation, level1.TensorOp):
            continue
        if (dtypes.int_width(acc) or (True, 0))[1] > 32:
            reach = bounds(integer, operation, {})
            yield Hazard(
                "int32 sum", "warning", _where(operation),
                f"sums of {_name(operation)} can reach {max(reach.hi, -reach.lo):,}, beyond int32: runtimes that "
                f"accumulate in int32 may wrap there; Cuvil's accumulator here is {acc}",
            )  # fmt: skip


def _stored_biases(program: Program) -> Iterator[Hazard]:
    for operation in program.block.ops:
        if integer_form(operation) != "layer" or len(operation.operands) < 3:
            continue
        x, w = (real(v) for v in operation.operands[:2])
        bias = static_array(program, operation.operands[2])
        if x is None or w is None or bias is None or not x.per_tensor:
            continue
        with np.errstate(all="ignore"):  # a scale of 0 is no hazard of int32
            steps = bias.astype(np.float64) / (x.scale[0] * np.asarray(w.scale))
        over = np.flatnonzero(np.abs(steps) >= INT32)
        if over.size:
            yield Hazard(
                "int32 bias", "warning", _where(operation),
                f"the bias of {_channels(over, bias.size)} is {steps.flat[np.abs(steps).argmax()]:.6g} steps of input "
                "scale times weight scale, beyond int32: runtimes that keep it in int32 give other numbers; Cuvil adds "
                "it to the sums when it rounds them",
            )  # fmt: skip


def _channels(which: npt.NDArray[np.intp], of: int) -> str:
    shown = ", ".join(str(int(c)) for c in which[:4]) + (", …" if len(which) > 4 else "")
    return f"channel{'s' if len(which) > 1 else ''} {shown} ({len(which)} of {of})"


def _name(operation: Operation) -> str:
    return mnemonic(operation) or "the outputs"


def _where(operation: Operation) -> str:
    return level1.loc_of(operation)
