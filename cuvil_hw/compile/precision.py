"""Chooses the precision of a compilation from what the user asked for, what the model already is, and what the target
runs."""

from __future__ import annotations

from dataclasses import dataclass

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Adapter
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.cast import Cast
from cuvil_hw.ops.integer import Dequantize, Quantize, Rescale
from cuvil_hw.target.profile import Profile
from cuvil_hw.target.schemes import Int8, NarrowFloat, Scheme, parse_precision
from cuvil_hw.types import TensorType

CONVERT = "convert the model to f32 first, such as model.float()"


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision of one compilation.

    Attributes:
        label: for people.
        scheme: how to quantize; None: nothing is quantized.
        quantized: whether the program then computes with integers.
        narrow: "f16" or "bf16", which all f32 values become; "": they stay.
    """

    label: str
    scheme: Scheme | None
    quantized: bool
    narrow: str = ""


def choose_precision(program: Program, wanted: str | None, has_calibration: bool, profile: Profile) -> Precision:
    """The precision of this compilation.

    Raises CuvilError when what is wanted contradicts the model, or when quantization has no data to go by: a range is
    never guessed.
    """
    stored = quantized_dtypes(program)
    if stored:
        return _of_quantized(program, stored, wanted)
    preferred = str(profile.settings.get("precision", "float32"))
    if wanted is None and not has_floats(program):
        return Precision("integers", None, True)
    if wanted is None:
        wanted = preferred
        if has_calibration and not isinstance(parse_precision(preferred), Scheme):
            raise CuvilError(
                f"calibration was given, but {program.name} stays {preferred} on {profile.name}; "
                "give a precision too, e.g. precision='int8' (--precision int8), or leave calibration out"
            )
    scheme = parse_precision(wanted)
    if isinstance(scheme, NarrowFloat):
        return _narrow(program, scheme, has_calibration)
    if scheme is not None and scheme.needs_data and not has_calibration:
        need = f"{profile.name} is made for integers" if wanted == preferred else f"precision {wanted} was asked for"
        if other := other_floats(program):
            raise CuvilError(f"{program.name} computes in {other}, {need}, and only f32 can be quantized; {CONVERT}")
        raise CuvilError(
            f"{program.name} is a float model and {need}, so it has to be quantized: give calibration=… "
            "(--calibration FILE; representative inputs, 100 samples or more), or a model that is quantized already "
            "(QDQ); or give precision='float32' (--precision float32), if it shall compute in floats as it is"
        )
    if scheme is None and has_calibration and preferred != "float32":
        raise CuvilError("precision float32 quantizes nothing; leave calibration out, or give another precision")
    return Precision("float32" if scheme is None else wanted, scheme, scheme is not None)


def _narrow(program: Program, wanted: NarrowFloat, has_calibration: bool) -> Precision:
    if "f32" not in _dtypes(program):
        have = ", ".join(sorted(_dtypes(program))) or "nothing"
        raise CuvilError(
            f"precision {wanted.name} turns f32 into {wanted.dtype}, but {program.name} computes in {have}; "
            f"leave precision out, or {CONVERT}"
        )
    if has_calibration:
        raise CuvilError(f"precision {wanted.name} quantizes nothing; leave calibration out, or give another precision")
    return Precision(wanted.name, None, False, wanted.dtype)


def check_narrow(precision: Precision, adapter: Adapter, profile: Profile) -> None:
    """Raises CuvilError when the precision is a float that the target doesn't run."""
    if not precision.narrow:
        return
    wide = TensorType((1,), "f32")
    why = adapter.refuses(Cast(precision.narrow), [wide], [wide.with_dtype(precision.narrow)], profile)
    if why is not None:
        raise CuvilError(
            f"precision {precision.label} can't be had on {profile.name}: {why}; use precision='float32' "
            "(--precision float32), or quantize with precision='int8' (--precision int8) and calibration data"
        )


def _of_quantized(program: Program, stored: tuple[str, ...], wanted: str | None) -> Precision:
    bits = {dtype.lstrip("iu") for dtype in stored}
    same = bits.pop() if len(bits) == 1 else ""
    label = f"int{same}" if same and int(same) <= 8 else f"as given ({', '.join(stored)})"
    if wanted is not None:
        scheme = parse_precision(wanted)
        if not isinstance(scheme, Int8) or str(scheme.bits) != same:
            raise CuvilError(
                f"{program.name} is quantized already ({', '.join(stored)}), precision {wanted} can't be had from it; "
                "leave precision out, or give the float model"
            )
    return Precision(label, None, True)


def other_floats(program: Program) -> str:
    """The float types of a program that has no f32; empty for other programs."""
    found = set(filter(dtypes.is_float, _dtypes(program)))
    return "" if "f32" in found else ", ".join(sorted(found))


def has_floats(program: Program) -> bool:
    """Whether any value of the program is a float."""
    return any(map(dtypes.is_float, _dtypes(program)))


def _dtypes(program: Program) -> set[str]:
    values = [*program.block.args, *(r for op in program.block.ops for r in op.results)]
    return {level1.type_of(v).dtype for v in values}


def quantized_dtypes(program: Program) -> tuple[str, ...]:
    """Integer dtypes of operands and results of quantize, dequantize and rescale, except constants; empty for a float
    program."""

    found = set()
    for operation in program.block.ops:
        if isinstance(operation, level1.TensorOp) and not isinstance(operation.operands[0].owner, level1.ConstOp):
            if issubclass(operation.spec, Quantize | Rescale):
                found.add(level1.type_of(operation.results[0]).dtype)
            elif issubclass(operation.spec, Dequantize):
                found.add(level1.type_of(operation.operands[0]).dtype)
    return tuple(sorted(found))
