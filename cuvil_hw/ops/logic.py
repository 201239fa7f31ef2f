"""Comparisons, logic, bits and choices: elementwise ops of two operands that do no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Expr, Tensor, binary, const, select
from cuvil_hw.expr.scalar import on_arrays
from cuvil_hw.ops.base import Array, Op
from cuvil_hw.ops.binary import BinaryOp
from cuvil_hw.ops.elementwise import check_dtype
from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class _Same(BinaryOp):
    """Ops without arithmetic, for which f16 need not be converted to f32: comparisons (to bool), logic, bits."""

    operator: ClassVar[str]

    def evaluate(self, a: Array, b: Array) -> Array:
        return np.asarray(on_arrays(self.operator)(a, b))

    def compute(self, a: Tensor, b: Tensor) -> Tensor:
        return Tensor(self.infer(a.type, b.type), lambda *i: binary(self.operator, a[i], b[i]))


@dataclass(frozen=True)
class _Comparison(_Same):
    """Comparisons with NaN are false."""

    def result_dtype(self, dtype: str) -> str:
        return "bool"


@dataclass(frozen=True)
class Equal(_Comparison):
    """a = b; also on bool; false for NaN."""

    mnemonic = "equal"
    operator = "eq"

    def check(self, dtype: str) -> None:
        if dtype != "bool":
            check_dtype(self, self.takes, dtype)


@dataclass(frozen=True)
class Less(_Comparison):
    """a < b."""

    mnemonic = "less"
    operator = "lt"


@dataclass(frozen=True)
class LessEqual(_Comparison):
    """a ≤ b."""

    mnemonic = "less_equal"
    operator = "le"


@dataclass(frozen=True)
class Greater(_Comparison):
    """a > b."""

    mnemonic = "greater"
    operator = "gt"


@dataclass(frozen=True)
class GreaterEqual(_Comparison):
    """a ≥ b."""

    mnemonic = "greater_equal"
    operator = "ge"


@dataclass(frozen=True)
class LogicalAnd(_Same):
    """Both, on bool."""

    mnemonic, takes = "logical_and", "bool"
    operator = "and"


@dataclass(frozen=True)
class LogicalOr(_Same):
    """Either, on bool."""

    mnemonic, takes = "logical_or", "bool"
    operator = "or"


@dataclass(frozen=True)
class LogicalXor(_Same):
    """One but not both, on bool."""

    mnemonic, takes = "logical_xor", "bool"
    operator = "xor"


@dataclass(frozen=True)
class BitwiseAnd(_Same):
    """And of each bit, on integers."""

    mnemonic, takes = "bitwise_and", "int"
    operator = "and"


@dataclass(frozen=True)
class BitwiseOr(_Same):
    """Or of each bit, on integers."""

    mnemonic, takes = "bitwise_or", "int"
    operator = "or"


@dataclass(frozen=True)
class BitwiseXor(_Same):
    """Exclusive or of each bit, on integers."""

    mnemonic, takes = "bitwise_xor", "int"
    operator = "xor"


@dataclass(frozen=True)
class _Shift(BinaryOp):
    """Shift of integers of 8, 16, 32 or 64 bits by b ≥ 0 bits. b ≥ the width gives 0 (or the sign). A negative b counts
    as the unsigned number with the same bits."""

    left: ClassVar[bool]

    def check(self, dtype: str) -> None:
        check_dtype(self, "int", dtype)
        check_dtype(self, "wrapping", dtype)

    def evaluate(self, a: Array, b: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        far = (b < 0) | (b >= bits)
        near = np.where(far, b.dtype.type(0), b)
        gone = np.where(a < 0, a.dtype.type(-1), a.dtype.type(0)) if a.dtype.kind == "i" and not self.left else 0
        shifted = np.left_shift(a, near) if self.left else np.right_shift(a, near)
        return np.asarray(np.where(far, gone, shifted), a.dtype)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        width = dtypes.int_width(a.dtype)
        assert width is not None
        zero = const(0, a.dtype)
        far = binary("ge", b, width[1])
        gone: Expr = zero
        if width[0]:
            far = binary("or", binary("lt", b, zero), far)
            gone = zero if self.left else select(binary("lt", a, zero), const(-1, a.dtype), zero)
        return select(far, gone, binary("shl" if self.left else "shr", a, select(far, zero, b)))


@dataclass(frozen=True)
class ShiftLeft(_Shift):
    """a · 2^b, wrapping."""

    mnemonic, left = "shift_left", True


@dataclass(frozen=True)
class ShiftRight(_Shift):
    """⌊a / 2^b⌋."""

    mnemonic, left = "shift_right", False


@dataclass(frozen=True)
class Where(Op):
    """a where cond, else b; cond is bool, a and b have any one dtype. All of one shape."""

    mnemonic: ClassVar[str] = "where"
    elementwise: ClassVar[bool] = True
    by_bits: ClassVar[bool] = True
    scales_scores = True

    def infer(self, cond: TensorType, a: TensorType, b: TensorType) -> TensorType:
        check_dtype(self, "bool", cond.dtype)
        self.want(a.dtype == b.dtype, f"dtypes differ: {a} and {b}; insert cast")
        self.want(cond.shape == a.shape == b.shape, f"shapes differ: {cond}, {a} and {b}; insert broadcast_to")
        return a

    def evaluate(self, cond: Array, a: Array, b: Array) -> Array:
        return np.where(cond, a, b)

    def compute(self, cond: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return Tensor(self.infer(cond.type, a.type, b.type), lambda *i: select(cond[i], a[i], b[i]))
