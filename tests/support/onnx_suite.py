"""ONNX's own backend tests: cases, their import, and the reference. onnx_targets.py runs them on targets.

A case passes when every data set gives what it says, within the tolerance that the case itself states. Operands that
Cuvil wants to be constant (axes, shapes, scales, …) are made initializers, as few as will do: exporters write them so.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.program import Program, evaluate

SUITES = ("node", "simple", "pytorch-converted", "pytorch-operator")
# Left out: ONNX's reference places the corners on extent times scale, 2.4 of 4 pixels; ONNX Runtime and PyTorch place
# them on the whole extent of the result, as we do (docs/numerics.md).
CONTRADICTED = {"resize_downsample_scales_linear_align_corners", "resize_downsample_scales_cubic_align_corners"}
NARROW = ("int2", "uint2", "int4", "uint4")  # ml_dtypes of one element a byte
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """`op`: the operator that it is about. `data`: (inputs, outputs) by data set; None stands for no tensor."""

    suite: str
    name: str
    op: str
    model: onnx.ModelProto
    data: tuple[tuple[tuple[Array | None, ...], tuple[Array | None, ...]], ...]
    rtol: float
    atol: float

    @property
    def inputs(self) -> list[str]:
        return [i.name for i in self.model.graph.input]

    @property
    def integer(self) -> bool:
        """Whether all its ports are integers or bool."""
        arrays = [a for inputs, outputs in self.data for a in (*inputs, *outputs)]
        return all(a is not None and a.dtype.kind in "iub" for a in arrays)


def _array(value: Any) -> Array | None:
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic):
        return None
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":  # of ml_dtypes
        return array.view(np.uint16).view(dtypes.BF16)
    return array.astype(array.dtype.name[:-1] + "8") if array.dtype.name in NARROW else array


def _read(folder: Path, prefix: str) -> tuple[Array | None, ...]:
    files = sorted(folder.glob(f"{prefix}_*.pb"), key=lambda p: int(p.stem.removeprefix(f"{prefix}_")))
    found = []
    for file in files:
        try:
            found.append(_array(onnx.TensorProto.FromString(file.read_bytes())))
        except Exception:  # a sequence or an optional: protobuf has several ways to say so
            found.append(None)
    return tuple(found)


@cache
def cases(suite: str) -> tuple[Case, ...]:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about the infinities that the suite makes on purpose
        loaded = load_model_tests(kind=suite)
    for case in loaded:
        if case.model_dir is None:
            model = case.model
            data = tuple((tuple(map(_array, i)), tuple(map(_array, o))) for i, o in case.data_sets)
        else:
            model = onnx.load(Path(case.model_dir) / "model.onnx")
            sets = sorted(Path(case.model_dir).glob("test_data_set_*"))
            data = tuple((_read(s, "input"), _read(s, "output")) for s in sets)
        name = case.name.removeprefix("test_")
        if name in CONTRADICTED:
            continue
        found.append(Case(suite, name, _operator(model), model, data, case.rtol, case.atol))
    by_name = {c.name: c.op for c in found}
    return tuple(replace(c, op=by_name.get(c.name.removesuffix("_expanded"), c.op)) for c in found)


def _operator(model: onnx.ModelProto) -> str:
    kinds = [f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in model.graph.node]
    return next((k for k in kinds if k not in ("Constant", "Cast")), kinds[0])


def constant(case: Case, names: Sequence[str]) -> onnx.ModelProto | None:
    """The model with some inputs as initializers; None when that can't be."""
    if not names:
        return case.model
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for i, info in enumerate(model.graph.input):
        if info.name in names:
            values = [inputs[i] for inputs, _ in case.data]
            if any(v is None or not np.array_equal(v, values[0]) for v in values):
                return None
            kind = info.type.tensor_type.elem_type
            if onnx.helper.tensor_dtype_to_np_dtype(kind).name not in (*NARROW, values[0].dtype.name):
                return None
            model.graph.initializer.append(
                onnx.helper.make_tensor(info.name, kind, values[0].shape, values[0].reshape(-1))
            )
    return model


@dataclass(frozen=True)
class Imported:
    """A case as a program. `constants`: operands made constant."""

    case: Case
    model: onnx.ModelProto
    program: Program
    constants: tuple[str, ...]


def imported(case: Case) -> Imported | str:
    """With as few operands constant as will do; else why not."""

    def attempt(names: Sequence[str]) -> Imported | str:
        model = constant(case, names)
        if model is None:
            return "can't be made constant"
        try:
            return Imported(case, model, load_onnx(model), tuple(names))
        except CuvilError as e:
            return str(e)

    result = attempt(())
    why = result
    if not isinstance(result, str) or "must be constant" not in result:
        return result
    names = [n for n in case.inputs[1:] if n]
    best = attempt(names)
    if isinstance(best, str):
        names = case.inputs
        best = attempt(names)
    if isinstance(best, str):
        return f"{why}\n{best}"
    for name in list(names):
        fewer = attempt([n for n in names if n != name])
        if not isinstance(fewer, str):
            best, names = fewer, [n for n in names if n != name]
    return best


def tolerance(case: Case, want: Array) -> tuple[float, float]:
    """The case's own, but not below what its expected values can mean: 1e-3 is one unit in the last place of f16 and
    less than one of bf16, where two correct roundings may be two apart; and a sum's zero has noise of one unit in the
    last place of its terms."""
    narrow = want.dtype in (np.float16, dtypes.BF16)
    unit = 2.0**-7 if want.dtype == dtypes.BF16 else 0.0
    want = dtypes.numbers(want)
    if want.dtype.kind != "f":
        return case.rtol, case.atol
    unit = unit or float(np.finfo(want.dtype).eps)
    finite = np.abs(want[np.isfinite(want)].astype(np.float64))
    rtol = max(case.rtol, 2 * unit) if narrow else case.rtol
    return rtol, max(case.atol, unit * float(finite.max(initial=0.0)))


def differs(case: Case, results: Sequence[Array], expected: Sequence[Array | None]) -> str:
    """What is wrong with the results; empty when nothing is."""
    if len(results) != len(expected):
        return f"{len(results)} outputs, {len(expected)} expected"
    for given, want in zip(results, expected, strict=True):
        have = given.view(np.uint16).view(dtypes.BF16) if given.dtype.name == "bfloat16" else given
        if want is None or have.shape != want.shape or have.dtype != want.dtype:
            return f"{have.dtype}{have.shape}, expected {want.dtype if want is not None else want}{np.shape(want)}"
        try:
            rtol, atol = tolerance(case, want)
            np.testing.assert_allclose(dtypes.numbers(have), dtypes.numbers(want), rtol=rtol, atol=atol)
        except AssertionError as e:
            return str(e)
    return ""


def arrays(item: Imported, inputs: Sequence[Array | None]) -> dict[str, Array]:
    """The run-time inputs by name."""
    given = dict(zip(item.case.inputs, inputs, strict=False))
    found: dict[str, Array] = {}
    for name, _ in item.program.inputs:
        value = given[name]
        assert value is not None, f"{item.case.name}: input {name} is no tensor, yet the model was accepted"
        found[name] = value
    return found


def on_reference(item: Imported) -> tuple[str, str]:
    """(outcome, why)"""
    for inputs, outputs in item.case.data:
        try:
            results = evaluate(item.program, list(arrays(item, inputs).values()))
        except CuvilError as e:
            return "refused", str(e)
        wrong = differs(item.case, results, outputs)
        if wrong:
            return "wrong", wrong
    return "passed", ""
