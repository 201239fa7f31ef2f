"""What the ATen converters share: the table, and the emitter through which they append level1 ops.

A converter is a function `(e, *args)`: `e` the Emitter, `args` those of the ATen schema in order, defaults too.
A tensor argument is a Value; a converter returns one per result, None for a result that it doesn't compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.frontend.shared.refusals import Refused
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Builder
from cuvil_hw.ops import base
from cuvil_hw.ops.cast import Cast
from cuvil_hw.ops.shape import BroadcastTo, Reshape
from cuvil_hw.types import TensorType

# A tensor that depends on no input stays a torch tensor (a view costs nothing) until an op needs it.
Value = SSAValue | torch.Tensor
Result = Value | None
Converter = Callable[..., Result | Sequence[Result]]

DTYPES: dict[torch.dtype, str] = {getattr(torch, dtypes.record(name).torch): name for name in dtypes.WHOLE}

F = TypeVar("F", bound=Converter)

TABLE: dict[str, Converter] = {}


def converts(*targets: str) -> Callable[[F], F]:
    """Enter a converter for ATen overloads such as "relu" (that is "aten.relu.default") or "add.Tensor"."""

    def enter(f: F) -> F:
        for target in targets:
            name = f"aten.{target}" if "." in target else f"aten.{target}.default"
            if name in TABLE:
                raise ValueError(f"two converters for {name}")
            TABLE[name] = f
        return f

    return enter


def dtype_name(dtype: torch.dtype) -> str:
    """Raises Refused for types that level1 hasn't (complex, quantized, …)."""
    if dtype not in DTYPES:
        hint = "; give and take real and imaginary parts, with torch.view_as_real" if dtype.is_complex else ""
        raise Refused(f"dtype {str(dtype).removeprefix('torch.')} is not supported{hint}")
    return DTYPES[dtype]


def type_of_tensor(t: torch.Tensor) -> TensorType:
    """Type of a real or fake tensor. A fake one may say what its extents are in open dimensions (`extents`, Size).
    Raises Refused for dynamic extents and foreign dtypes."""
    return TensorType(extents_of(t), dtype_name(t.dtype))


def array_of(t: torch.Tensor) -> Any:
    """The elements of a tensor, in the NumPy container of its dtype."""
    held = t.detach().cpu().contiguous()
    bits = held.dtype == torch.bfloat16  # which NumPy lacks
    return held.view(torch.int16).numpy().view(dtypes.BF16) if bits else held.numpy()


def extents_of(t: torch.Tensor) -> tuple[int, ...]:
    """The shape of a tensor; open dimensions are Size. Raises Refused where an extent depends on values."""
    extents = tuple(getattr(t, "extents", t.shape))
    if any(map(from_data, extents)):
        raise Refused(
            "its shape depends on values known only at run time; compute all rows and choose with torch.where, weigh "
            "them with the mask (transformers: model.set_experts_implementation('batched_mm')), or use a form with a "
            "bound (torch.nonzero_static; of unique elements: sort, and compare neighbours)"
        )
    if not all(isinstance(extent, int) for extent in extents):
        raise Refused(f"shape {tuple(t.shape)} depends on values or was left open; compiled shapes are fixed")
    return extents


PACKED = (
    "packed sequences are followed from pack_padded_sequence to pad_packed_sequence in one module, where total_length "
    "is left out or the steps of what was packed; else give padded tensors, and mask outputs behind each length"
)


def from_data(extent: Any) -> bool:
    """Whether an extent depends on values that only a run knows."""
    return isinstance(extent, torch.SymInt) and bool(free_unbacked_symbols(extent))


@dataclass
class AtenEmitter:
    """Appends the ops of one node of the graph.

    Attributes:
        loc: the node's place in the user's model.
        results: types of the node's results.
        emitted: constants that are in the IR already, by id of the tensor.
        labels: names of parameters and buffers, by id of the tensor.
    """

    builder: Builder
    loc: str = ""
    results: tuple[TensorType, ...] = ()
    emitted: dict[int, tuple[torch.Tensor, SSAValue]] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)

    @property
    def out(self) -> TensorType:
        """Type of the node's (first) result."""
        return self.results[0]

    def refuse(self, reason: str) -> NoReturn:
        raise Refused(reason)

    def type(self, v: Value) -> TensorType:
        return type_of_tensor(v) if isinstance(v, torch.Tensor) else level1.type_of(v)

    def shape(self, v: Value) -> tuple[int, ...]:
        return self.type(v).shape

    def ssa(self, v: Value) -> SSAValue:
        """The value as IR; a constant is emitted at its first use."""
        if not isinstance(v, torch.Tensor):
            return v
        if id(v) not in self.emitted:
            array = array_of(v)
            value = self.builder.const(array, dtype_name(v.dtype), loc=self.labels.get(id(v), ""))
            self.emitted[id(v)] = (v, value)  # holds the tensor: an id is only unique while its object lives
        return self.emitted[id(v)][1]

    def op(self, op: base.Op, *values: Value) -> SSAValue:
        return self.builder.op(op, *map(self.ssa, values), loc=self.loc)

    def ops(self, op: base.Op, *values: Value) -> tuple[SSAValue, ...]:
        return self.builder.ops(op, *map(self.ssa, values), loc=self.loc)

    def splat(self, value: float | int | bool, kind: TensorType) -> SSAValue:
        """A tensor of one value. Raises Refused where an integer type doesn't hold it."""
        if not dtypes.is_float(kind.dtype):
            low, high = dtypes.int_range(kind.dtype)
            if kind.dtype != "bool" and not low <= value <= high:
                raise Refused(f"the number {value} is outside {kind.dtype} [{low}, {high}]")
            value = bool(value) if kind.dtype == "bool" else int(value)
        operation = level1.const_splat(value, kind)
        self.builder.block.add_op(operation)
        return operation.results[0]

    def cast(self, v: Value, dtype: str) -> Value:
        if self.type(v).dtype == dtype:
            return v
        if isinstance(v, torch.Tensor):
            return v.to(next(t for t, name in DTYPES.items() if name == dtype))
        return self.op(Cast(dtype), v)

    def reshape(self, v: Value, shape: Iterable[int]) -> Value:
        shape = tuple(shape)
        if self.shape(v) == shape:
            return v
        return v.reshape(shape) if isinstance(v, torch.Tensor) else self.op(Reshape(shape), v)

    def broadcast(self, v: Value, shape: Iterable[int]) -> Value:
        shape = tuple(shape)
        if self.shape(v) == shape:
            return v
        if isinstance(v, torch.Tensor) and v.numel() == 1:
            return self.splat(v.item(), TensorType(shape, dtype_name(v.dtype)))
        return self.op(BroadcastTo(shape), v)

    def wrapped(self, v: Value | float | int | bool, dtype: str) -> Value | float | int | bool:
        """A Python integer beside a tensor of integers, modulo 2^width, as torch computes and compares."""
        if isinstance(v, bool) or not isinstance(v, int) or dtype == "bool" or dtypes.is_float(dtype):
            return v
        low, high = dtypes.int_range(dtype)
        return (v - low) % (high - low + 1) + low

    def operand(self, v: Value | float | int | bool, kind: TensorType) -> Value:
        """A tensor or Python number as a tensor of exactly `kind`: cast, then broadcast."""
        if isinstance(v, bool | int | float):
            return self.splat(v, kind)
        return self.broadcast(self.cast(v, kind.dtype), kind.shape)

    def stand_in(self, v: Any) -> Any:
        """What torch's promotion rules look at: a tensor of the same type without data, or the number itself."""
        if not isinstance(v, SSAValue):
            return v
        kind = level1.type_of(v)
        dtype = next(t for t, name in DTYPES.items() if name == kind.dtype)
        return torch.empty(kind.shape, dtype=dtype, device="meta")

    def common_dtype(self, a: Any, b: Any) -> str:
        """torch's type promotion of two tensors or numbers."""
        return dtype_name(torch.result_type(self.stand_in(a), self.stand_in(b)))


def extended(values: int | Sequence[int], n: int) -> tuple[int, ...]:
    """ATen's int-or-list arguments at full length: [2] or 2 → (2, 2)."""
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * n if len(values) == 1 else values


def axis_of(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def axes_of(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted non-negative axes; None or [] means all."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    return tuple(sorted({axis_of(d, rank) for d in ((dims,) if isinstance(dims, int) else dims)}))
