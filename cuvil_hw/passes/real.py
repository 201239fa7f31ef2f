"""A quantized value as integerize.py sees it: an integer tensor and the real numbers that it represents."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ops.integer import Dequantize, Quantize
from cuvil_hw.ops.interval import Interval
from cuvil_hw.passes.edit import producer, spec
from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class Real:
    """(q - zero) · scale, where scale and zero have one value, or one per channel along `axis`."""

    q: SSAValue
    scale: tuple[float, ...]
    zero: tuple[int, ...]
    axis: int

    @property
    def type(self) -> TensorType:
        return level1.type_of(self.q)

    @property
    def bits(self) -> int:
        width = dtypes.int_width(self.type.dtype)
        assert width is not None, "the verifier lets only integers be dequantized"
        return width[1]

    @property
    def per_tensor(self) -> bool:
        return len(self.scale) == 1 and len(set(self.zero)) == 1

    @property
    def common_zero(self) -> int | None:
        """The zero point if all channels share it, else None."""
        return self.zero[0] if len(set(self.zero)) == 1 else None

    @property
    def interval(self) -> Interval:
        return Interval.of(self.type.dtype)

    def like(self, other: Real) -> bool:
        """Whether equal integers represent equal real numbers in both."""
        same = (self.scale, self.zero, self.type.dtype) == (other.scale, other.zero, other.type.dtype)
        return same and (self.per_tensor or self.axis == other.axis)

    def dequantize(self) -> Dequantize:
        return Dequantize(self.scale, self.zero, self.axis)


def real(value: SSAValue) -> Real | None:
    """What `value` represents, if a dequantize op produced it; else None."""
    operation = producer(value, "dequantize")
    if operation is None:
        return None
    op = operation.op
    assert isinstance(op, Dequantize)
    return Real(operation.operands[0], op.scale, op.zero_point, op.axis)


def quantizer(operation: Operation | None) -> Quantize | None:
    """The op dataclass when `operation` quantizes per tensor."""
    op = spec(operation)
    return op if isinstance(op, Quantize) and len(op.scale) == 1 and len(set(op.zero_point)) == 1 else None
