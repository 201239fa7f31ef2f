"""Ops of level2 on a processor's vectors that are one or a few instructions there: products of bytes added up by pairs,
and requantization."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, MemRefType, VectorType, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def, var_operand_def
from xdsl.utils.exceptions import VerifyException


@irdl_op_definition
class SplatPairOp(IRDLOperation):
    """A vector whose every two lanes are the two neighbours in memory from `indices` on."""

    name = "cuvil.level2.splat_pair"
    memref = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    output = result_def(VectorType)

    def __init__(self, memory: SSAValue, indices: Sequence[SSAValue], result: VectorType[Attribute]) -> None:
        super().__init__(operands=[memory, list(indices)], result_types=[result])

    def verify_(self) -> None:
        kind, made = self.memref.type, self.output.type
        assert isinstance(kind, MemRefType)
        assert isinstance(made, VectorType)
        if made.element_type != kind.element_type or made.get_shape()[0] % 2:
            raise VerifyException(f"{self.name} can't give {made} from {kind}")


@irdl_op_definition
class AddPairsOp(IRDLOperation):
    """sums[n] + left[2n] · right[2n] + left[2n+1] · right[2n+1]: factors of 16 bits, sums of 32, which wrap."""

    name = "cuvil.level2.add_pairs"
    left = operand_def(VectorType)
    right = operand_def(VectorType)
    sums = operand_def(VectorType)
    output = result_def(VectorType)

    def __init__(self, left: SSAValue, right: SSAValue, sums: SSAValue) -> None:
        super().__init__(operands=[left, right, sums], result_types=[sums.type])

    def verify_(self) -> None:
        given, made = self.left.type, self.output.type
        assert isinstance(given, VectorType)
        assert isinstance(made, VectorType)
        lanes = made.get_shape()[0]
        wanted = VectorType(IntegerType(16), [2 * lanes])
        if made != self.sums.type or made != VectorType(i32, [lanes]) or (given, self.right.type) != (wanted, wanted):
            raise VerifyException(
                f"{self.name} can't add products of {given} and {self.right.type} to {self.sums.type}"
            )


@irdl_op_definition
class RescaleOp(IRDLOperation):
    """clip(((value · multiplier + offset) >> shift) + zero, low, high), lane by lane: products and the sum in 64 bits,
    the rest in 32. `even`: bit `shift` of the product is added to it, too."""

    name = "cuvil.level2.rescale"
    value = operand_def(VectorType)
    multiplier = operand_def(VectorType)
    offset = prop_def(IntegerAttr)
    shift = prop_def(IntegerAttr)
    zero = prop_def(IntegerAttr)
    low = prop_def(IntegerAttr)
    high = prop_def(IntegerAttr)
    even = prop_def(IntegerAttr)
    output = result_def(VectorType)

    def __init__(
        self,
        value: SSAValue,
        multiplier: SSAValue,
        offset: int,
        shift: int,
        zero: int,
        limits: tuple[int, int],
        even: bool = False,
    ) -> None:
        numbers = {"shift": shift, "zero": zero, "low": limits[0], "high": limits[1], "even": int(even)}
        super().__init__(
            operands=[value, multiplier],
            result_types=[value.type],
            properties={"offset": IntegerAttr(offset, i64), **{k: IntegerAttr(v, i32) for k, v in numbers.items()}},
        )

    def verify_(self) -> None:
        kind = self.value.type
        assert isinstance(kind, VectorType)
        if kind.element_type != i32 or self.multiplier.type != kind or not 1 <= self.shift.value.data < 64:
            raise VerifyException(f"{self.name} scales vectors of i32 alike, by a shift of 1 to 63, not {kind}")
