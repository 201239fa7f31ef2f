"""The dialect `cuvil` at level1, derived from the op classes in cuvil_hw.ops.

Every op of `ops.registry` becomes an xDSL operation `cuvil.level1.<mnemonic>`: operands and results are tensors, the
op's fields are properties, the verifier is the op's shape rule. Three ops exist only here: `const` (a handle into the
constant store, or a splat), `group` (a fused region) and its `yield`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    BFloat16Type,
    BoolAttr,
    DenseArrayBase,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    Signedness,
    StringAttr,
    f64,
    i1,
    i64,
)
from xdsl.dialects.builtin import TensorType as MlirTensor
from xdsl.ir import Attribute, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsolatedFromAbove, IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from cuvil_hw import dtypes
from cuvil_hw import ops as _ops  # noqa: F401  (fills the registry)
from cuvil_hw.errors import CuvilError
from cuvil_hw.extent.domain import show
from cuvil_hw.extent.size import Size, of
from cuvil_hw.ops import base
from cuvil_hw.types import TensorType

PREFIX = "cuvil.level1."
_FLOATS: dict[str, type[Any]] = {cls.name: cls for cls in (Float16Type, BFloat16Type, Float32Type, Float64Type)}


def element_type(dtype: str) -> Attribute:
    """MLIR element type of a dtype: iN is signless, uN unsigned; bool is i1, so one-bit integers are si1."""
    if dtype == "bool":
        return i1
    if dtype in _FLOATS:
        return _FLOATS[dtype]()  # type: ignore[no-any-return]
    width = dtypes.int_width(dtype)
    if width is None:
        raise ValueError(f"unknown dtype {dtype!r}")
    signed, bits = width
    return IntegerType(
        bits, Signedness.SIGNED if bits == 1 and signed else Signedness.SIGNLESS if signed else Signedness.UNSIGNED
    )


def dtype_of(element: Attribute) -> str:
    """The dtype name of an MLIR element type; the inverse of `element_type`."""
    for name, cls in _FLOATS.items():
        if isinstance(element, cls):
            return name
    if isinstance(element, IntegerType):
        if element.width.data == 1 and element.signedness.data == Signedness.SIGNLESS:
            return "bool"
        return f"{'u' if element.signedness.data == Signedness.UNSIGNED else 'i'}{element.width.data}"
    raise CuvilError(f"element type {element} has no Cuvil dtype")


def to_mlir(t: TensorType) -> MlirTensor[Any]:
    return MlirTensor(element_type(t.dtype), list(t.shape))


def from_mlir(t: Attribute) -> TensorType:
    if not isinstance(t, MlirTensor):
        raise CuvilError(f"{t} is not a tensor type")
    return TensorType(tuple(t.get_shape()), dtype_of(t.element_type))


def type_of(value: SSAValue) -> TensorType:
    return from_mlir(value.type)


def to_attribute(kind: str, value: Any) -> Attribute:
    """A Python attribute value as an MLIR one. Floats are kept as f64, so that they print and parse exactly."""
    match kind:
        case "int":
            return IntegerAttr(value, i64)
        case "float":
            return FloatAttr(value, f64)
        case "bool":
            return BoolAttr.from_bool(value)
        case "str":
            return StringAttr(value)
        case "ints":
            return DenseArrayBase.from_list(i64, list(value))
        case _:
            return DenseArrayBase.from_list(f64, list(value))


def from_attribute(kind: str, attr: Attribute) -> Any:
    match attr:
        case IntegerAttr():
            return bool(attr.value.data) if kind == "bool" else attr.value.data
        case FloatAttr():
            return attr.value.data
        case StringAttr():
            return attr.data
        case DenseArrayBase():
            return tuple((int if kind == "ints" else float)(v) for v in attr.get_values())
    raise VerifyException(f"attribute {attr} can't be a {kind}")


class TensorOp(IRDLOperation):
    """Base class of the IR operations that are derived from ops."""

    inputs = var_operand_def(MlirTensor)
    outputs = var_result_def(MlirTensor)
    traits = traits_def(Pure())

    @property
    def spec(self) -> type[base.Op]:
        """The op class that this operation was derived from."""
        return base.registry[self.name.removeprefix(PREFIX)]

    @property
    def op(self) -> base.Op:
        """The op dataclass that this operation holds."""
        values = {
            name: from_attribute(kind, self.properties[name])
            for name, kind in base.attributes(self.spec)
            if name in self.properties
        }
        return self.spec(**values)

    def verify_(self) -> None:
        version = self.attributes.get("version", IntegerAttr(1, i64))
        if version != IntegerAttr(self.spec.version, i64):
            raise VerifyException(
                f"{self.spec.mnemonic}: version {from_attribute('int', version)} of this op is needed, "
                f"version {self.spec.version} is registered"
            )
        try:
            want = base.infer(self.op, [type_of(v) for v in self.inputs])
        except (CuvilError, TypeError) as e:
            raise VerifyException(str(e)) from e
        have = tuple(type_of(r) for r in self.outputs)
        if want != have:
            shown = [", ".join(map(str, t)) for t in (have, want)]
            raise VerifyException(f"{self.spec.mnemonic}: result type is {shown[0]}, the shape rule gives {shown[1]}")


def _derive(spec: type[base.Op]) -> type[TensorOp]:
    namespace: dict[str, Any] = {"name": PREFIX + spec.mnemonic, "__doc__": spec.__doc__, "__module__": __name__}
    for name, _ in base.attributes(spec):
        namespace[name] = opt_prop_def(Attribute)
    return irdl_op_definition(type(spec.__name__ + "Op", (TensorOp,), namespace))


@irdl_op_definition
class ConstOp(IRDLOperation):
    """A constant: `handle` names its bytes in the constant store, or `splat` is the value of every element."""

    name = PREFIX + "const"
    handle = opt_prop_def(StringAttr)
    splat = opt_prop_def(Attribute)
    output = var_result_def(MlirTensor)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        if (self.handle is None) == (self.splat is None):
            raise VerifyException("const: give exactly one of handle and splat")


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends a group: its operands are the group's results."""

    name = PREFIX + "yield"
    values = var_operand_def(MlirTensor)
    traits = traits_def(IsTerminator())


@irdl_op_definition
class GroupOp(IRDLOperation):
    """A fused group: becomes one kernel. The region's arguments stand for the operands."""

    name = PREFIX + "group"
    label = prop_def(StringAttr)
    inputs = var_operand_def(MlirTensor)
    outputs = var_result_def(MlirTensor)
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), Pure())

    def verify_(self) -> None:
        block = self.body.block
        if [a.type for a in block.args] != [v.type for v in self.inputs]:
            raise VerifyException("group: region arguments must have the operands' types")
        end = block.last_op
        if not isinstance(end, YieldOp) or [v.type for v in end.values] != [r.type for r in self.outputs]:
            raise VerifyException("group: must end in a yield of the results")


derived: dict[str, type[TensorOp]] = {name: _derive(spec) for name, spec in base.registry.items()}
_derived_from = dict(base.registry)


def operation_class(mnemonic: str) -> type[TensorOp]:
    """The operation class of an op; ops registered after import (custom ops) are derived on first use."""
    spec = base.registry[mnemonic]
    if _derived_from.get(mnemonic) is not spec:
        derived[mnemonic], _derived_from[mnemonic] = _derive(spec), spec
    return derived[mnemonic]


def create(op: base.Op, inputs: Sequence[SSAValue], loc: str = "") -> TensorOp:
    """The operation of `op` on `inputs`; result types come from its shape rule. Raises ShapeError."""
    results = base.infer(op, [type_of(v) for v in inputs])
    properties = {name: to_attribute(kind, getattr(op, name)) for name, kind in base.attributes(type(op))}
    operation = operation_class(op.mnemonic)(
        operands=[list(inputs)], result_types=[[to_mlir(t) for t in results]], properties=properties
    )
    if op.version != 1:
        operation.attributes["version"] = IntegerAttr(op.version, i64)
    set_loc(operation, loc)
    return operation


def const_handle(digest: str, type: TensorType, loc: str = "") -> ConstOp:
    operation = ConstOp(result_types=[[to_mlir(type)]], properties={"handle": StringAttr(digest)})
    set_loc(operation, loc)
    return operation


def const_splat(value: float | int | bool, type: TensorType) -> ConstOp:
    """A constant whose elements are all `value`."""
    if dtypes.is_float(type.dtype):
        with np.errstate(over="ignore"):
            attr: Attribute = FloatAttr(float(dtypes.numbers(dtypes.convert(value, type.dtype))), f64)
    else:
        attr = IntegerAttr(int(value), i64)
    return ConstOp(result_types=[[to_mlir(type)]], properties={"splat": attr})


def splat_value(operation: ConstOp) -> int | float:
    """The number that every element of a splat constant has."""
    dtype = type_of(operation.results[0]).dtype
    assert operation.splat is not None, "the verifier wants a splat where there is no handle"
    value: int | float = from_attribute("float" if dtypes.is_float(dtype) else "int", operation.splat)
    return value + (1 << 64) if dtype[0] == "u" and value < 0 else value  # attributes of 64 bits have a sign


def group(
    label: str, inputs: Sequence[SSAValue], results: Sequence[TensorType], body: Region, loc: str = ""
) -> GroupOp:
    operation = GroupOp(
        operands=[list(inputs)],
        result_types=[[to_mlir(t) for t in results]],
        regions=[body],
        properties={"label": StringAttr(label)},
    )
    set_loc(operation, loc)
    return operation


def annotate_shapes(operation: Operation, types: Sequence[TensorType]) -> None:
    """Say what the extents of the results are, where they depend on open dimensions: `shapes = ["(B, 2*S)"]`."""
    if any(isinstance(extent, Size) for t in types for extent in t.shape):
        operation.attributes["shapes"] = ArrayAttr([StringAttr(show([of(e) for e in t.shape])) for t in types])


def set_loc(operation: Operation, loc: str) -> None:
    """Where in the user's model an operation comes from: `model.py:12` or an ONNX node's name."""
    if loc:
        operation.attributes["loc"] = StringAttr(loc)


def loc_of(operation: Operation) -> str:
    attr = operation.attributes.get("loc")
    return attr.data if isinstance(attr, StringAttr) else ""


def dialect() -> Dialect:
    """The dialect object for parsers: all ops derived so far."""
    for name in base.registry:
        operation_class(name)
    return Dialect("cuvil", [*derived.values(), ConstOp, YieldOp, GroupOp], [])
