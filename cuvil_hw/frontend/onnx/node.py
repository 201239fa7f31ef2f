"""The view of one ONNX node that a converter gets: attributes, operands, and methods that emit level1 ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto
from xdsl.ir import Operation, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.extent import size
from cuvil_hw.frontend.shared import arrays
from cuvil_hw.frontend.shared.refusals import Refused
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Builder
from cuvil_hw.ops import base
from cuvil_hw.ops.integer import Dequantize
from cuvil_hw.ops.loop import LoopBegin
from cuvil_hw.ops.shape import BroadcastTo, Reshape, Transpose
from cuvil_hw.types import TensorType

Array = npt.NDArray[Any]

# Element types that level1 has; the others (strings, complex, float8, …) are refused.
DTYPES: dict[int, str] = {
    getattr(TensorProto, record.onnx): record.name
    for record in map(dtypes.record, (*dtypes.WHOLE, "i4", "u4", "i2", "u2"))
    if hasattr(TensorProto, record.onnx)  # 2 bits came with onnx 1.20
}

# Folding stops where a result would be larger than this and larger than its operands, …
LARGEST_FOLD = 1 << 24
# … and where all that was folded has become this many elements. What isn't folded is an op of the program.
MOST_FOLDED = 1 << 28
# Elements of a constant that the importer makes itself, such as Range's or the matrix of a DFT.
MOST_MADE = 1 << 25


def element_name(elem_type: int) -> str:
    """ONNX' own name of an element type, for messages."""
    return str(TensorProto.DataType.Name(elem_type)) if elem_type in TensorProto.DataType.values() else str(elem_type)


def decode(tensor: TensorProto) -> tuple[Array, str]:
    """(array in the container of its dtype, dtype). Raises Refused for element types that level1 doesn't have,
    CuvilError for bytes that don't fit the shape."""
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None:
        raise Refused(f"element type {element_name(tensor.data_type)} of constant {tensor.name or 'tensor'!r}")
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as e:
        where = f"constant {tensor.name or 'tensor'!r}"
        raise CuvilError(f"{where}: its data doesn't fit its shape {list(tensor.dims)}: {e}") from e
    if array.dtype.name == "bfloat16":
        array = array.view(dtypes.BF16)
    return np.ascontiguousarray(dtypes.convert(array, dtype)).reshape(array.shape), dtype


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the ONNX graph.

    Attributes:
        array: its elements, if they are known at import.
        ssa: its value in the program, if it has been emitted.
        narrow: the value before a broadcast that gives `array`.
        quantized: a constant and the op that gives this value from it.
        sizes: `array` with the expressions from which its elements were computed, if open dimensions are among them.
    """

    type: TensorType
    array: Array | None = None
    ssa: SSAValue | None = None
    narrow: Value | None = None
    quantized: tuple[Value, Dequantize] | None = None
    sizes: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def dtype(self) -> str:
        return self.type.dtype


class OnnxEmitter:
    """Emits ops into a Builder. Ops on known values are evaluated instead; constants are added at their first use."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._placed: dict[Value, SSAValue] = {}
        self._folded = 0

    def may_fold(self, elements: int, largest: int) -> bool:
        """Whether results of `elements` elements may be computed at import; counts them. `largest`: elements of the
        largest operand."""
        if elements > max(LARGEST_FOLD, largest) or self._folded + elements > MOST_FOLDED:
            return False
        self._folded += elements
        return True

    def const(self, array: Any, dtype: str, shape: Sequence[int] | None = None) -> Value:
        """A known value. `shape`: its extents, where they may be open dimensions."""
        data = dtypes.convert(array, dtype) if dtype == "bf16" else np.asarray(array, dtypes.to_numpy(dtype))
        return Value(TensorType(tuple(shape or data.shape), dtype), data, sizes=arrays.symbolic(array))

    def op(self, op: base.Op, values: Sequence[Value], loc: str) -> tuple[Value, ...]:
        types = base.infer(op, [v.type for v in values])
        known = [v.array for v in values if v.array is not None]
        if len(known) == len(values) and not isinstance(op, Dequantize | LoopBegin):
            sizes = self._sizes(op, values)
            if isinstance(op, BroadcastTo):
                wide = np.broadcast_to(known[0], op.shape)
                return (Value(types[0], wide, narrow=values[0].narrow or values[0], sizes=sizes),)
            with size.unrecorded():
                small = self.may_fold(sum(t.size for t in types), max(base.stored(a) for a in known))
            if small:
                results = base.evaluate(op, known)
                made = [base.container(a, t.dtype) for t, a in zip(types, results, strict=True)]
                return tuple(Value(t, a, sizes=sizes) for t, a in zip(types, made, strict=True))
        with size.unrecorded():  # constants in the IR have plain extents
            results_ssa = self.builder.ops(op, *[self.ssa(v, loc) for v in values], loc=loc)
        if isinstance(operation := results_ssa[0].owner, Operation):
            level1.annotate_shapes(operation, types)
        if isinstance(op, Dequantize) and values[0].array is not None:
            # Many elements stay integers, which passes need; one is also a number, such as a bound or a padding value.
            number = base.evaluate(op, known)[0] if types[0].size == 1 else None
            return (Value(types[0], number, ssa=results_ssa[0], quantized=(values[0], op)),)
        return tuple(Value(t, ssa=s) for t, s in zip(types, results_ssa, strict=True))

    def _sizes(self, op: base.Op, values: Sequence[Value]) -> Array | None:
        """The result with what its elements were computed from; None when no open dimension is in it."""
        if all(v.sizes is None for v in values):
            return None
        known = [v.array if v.sizes is None else v.sizes for v in values]
        found = arrays.evaluate(op, [a for a in known if a is not None], dtypes.is_float(values[0].dtype))
        if found is None:
            self.pin(values)
        return found if found is not None and arrays.holds_sizes(found) else None

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """What is emitted meanwhile is taken back where Refused is raised."""
        placed = dict(self._placed)
        try:
            with self.builder.attempt():
                yield
        except Refused:
            self._placed = placed
            raise

    def pin(self, values: Sequence[Value]) -> None:
        """Only the numbers of these values are used."""
        for v in values:
            if v.sizes is not None:
                size.pin(v.sizes.reshape(-1).tolist())

    def ssa(self, value: Value, loc: str = "") -> SSAValue:
        """The value in the program; a known value is added as a constant there, once."""
        if value.ssa is not None:
            return value.ssa
        if value not in self._placed:
            self.pin((value,))
            if value.narrow is not None:
                source = self.ssa(value.narrow, loc)
                self._placed[value] = self.builder.op(BroadcastTo(value.shape), source, loc=loc)
            else:
                self._placed[value] = self.builder.const(value.array, value.dtype, loc)
        return self._placed[value]

    def placeholder(self, kind: TensorType) -> Value:
        """Stands for the result of a refused node, so that later nodes can still be checked."""
        operation = level1.const_splat(0, kind)
        self.builder.block.add_op(operation)
        return Value(kind, ssa=operation.results[0])


@dataclass(frozen=True)
class OnnxNode:
    """One ONNX node. `inputs`: None for an absent optional operand. `wanted`: which outputs are used."""

    proto: onnx.NodeProto
    inputs: tuple[Value | None, ...]
    wanted: tuple[bool, ...]
    loc: str
    emitter: OnnxEmitter

    # operands
    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def get(self, i: int) -> Value | None:
        return self.inputs[i] if i < len(self.inputs) else None

    def __getitem__(self, i: int) -> Value:
        value = self.get(i)
        if value is None:
            raise CuvilError(f"{self.loc}: operand {i} is missing")
        return value

    @property
    def values(self) -> tuple[Value, ...]:
        """All operands; none may be absent."""
        return tuple(self[i] for i in range(len(self.inputs)))

    def known(self, i: int, what: str) -> Array:
        """The elements of an operand that must be known at import."""
        value = self[i]
        array = value.array
        if array is None and value.quantized is not None and value.quantized[0].array is not None:
            array = base.evaluate(value.quantized[1], [value.quantized[0].array])[0]
        if array is None:
            self.refuse(f"{what} must be constant, but follow from values known only at run time")
        self.emitter.pin((self[i],))
        return array

    def known_ints(self, i: int, what: str) -> tuple[int, ...]:
        sizes = self[i].sizes
        if sizes is not None:
            return tuple(sizes.reshape(-1).tolist())
        return tuple(int(v) for v in self.known(i, what).reshape(-1))

    def known_scalar(self, i: int, what: str) -> Any:
        """The only element of a known operand, as a Python number."""
        sizes = self[i].sizes
        array = self.known(i, what) if sizes is None else sizes
        if array.size != 1:
            self.refuse(f"{what}: one value expected, not {array.shape}")
        return dtypes.numbers(array).item()

    # attributes
    def attr(self, name: str, default: Any = None) -> Any:
        for a in self.proto.attribute:
            if a.name == name:
                value = onnx.helper.get_attribute_value(a)
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return default

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        value = self.attr(name)
        return tuple(default) if value is None else tuple(int(v) for v in value)

    def integer(self, name: str, default: int) -> int:
        return int(self.attr(name, default))

    def number(self, name: str, default: float) -> float:
        """A float attribute; ONNX keeps them in single precision, the default too."""
        return float(np.float32(self.attr(name, default)))

    def axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front."""
        if not -rank <= axis < rank:
            self.refuse(f"axis {axis} is outside rank {rank}")
        return axis % rank if rank else 0

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        return tuple(sorted({self.axis(a, rank) for a in axes}))

    def refuse(self, reason: str) -> NoReturn:
        raise Refused(reason)

    def affordable(self, what: str, *extents: int, most: int = MOST_MADE) -> None:
        """Refuses a constant of these extents if it is too large, before memory is allocated."""
        if (elements := prod(map(int, extents))) > most:
            self.refuse(f"{what} would have {elements:,} elements, computed at import; {most:,} are the most")

    # emission
    def emit(self, op: base.Op, *values: Value) -> Value:
        return self.emitter.op(op, values, self.loc)[0]

    def emits(self, op: base.Op, *values: Value) -> tuple[Value, ...]:
        """All results of an op."""
        return self.emitter.op(op, values, self.loc)

    def const(self, array: Any, dtype: str, shape: Sequence[int] | None = None) -> Value:
        return self.emitter.const(array, dtype, shape)

    def like(self, number: float, x: Value) -> Value:
        """A constant of x's dtype, broadcast to x's shape."""
        return self.expand(self.const(number, x.dtype), x.shape)

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        return x if size.same(x.shape, tuple(shape)) else self.emit(BroadcastTo(tuple(shape)), x)

    def broadcast(self, *values: Value) -> list[Value]:
        """The operands at their common shape, by NumPy's rule."""
        try:
            shape = size.broadcast(*(v.shape for v in values))
        except ValueError:
            self.refuse(f"shapes {', '.join(str(v.shape) for v in values)} don't broadcast")
        return [self.expand(v, shape) for v in values]

    def binary(self, op: base.Op, a: Value, b: Value) -> Value:
        return self.emit(op, *self.broadcast(a, b))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        if size.same(x.shape, tuple(shape)):
            return x
        if prod(shape) != x.type.size:
            self.refuse(f"can't reshape {x.shape} to {tuple(shape)}")
        return self.emit(Reshape(tuple(shape)), x)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Dequantized constants stay `const → dequantize`: the integers are transposed."""
        if sorted(perm) != list(range(x.rank)):
            self.refuse(f"perm {tuple(perm)} isn't a permutation of the {x.rank} dimensions of {x.shape}")
        if tuple(perm) == tuple(range(x.rank)):
            return x
        if x.quantized is not None:
            stored, dq = x.quantized
            axis = list(perm).index(dq.axis) if len(dq.scale) > 1 or len(dq.zero_point) > 1 else dq.axis
            return self.emit(Dequantize(dq.scale, dq.zero_point, axis), self.transpose(stored, perm))
        return self.emit(Transpose(tuple(perm)), x)


Result = Value | Sequence[Value]
Converter = Callable[[OnnxNode, int], Result]
