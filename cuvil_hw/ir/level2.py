"""Level2: stock dialects (func, scf, memref, arith, math, vector-free) plus the few ops that none of them has.

`stream` makes a FIFO, `stream_read`/`stream_write` move one word (a memref of its lanes), `axis_read`/`axis_write` join
a port of the design to a stream, `saturate` clips an integer to the range of its result type, counted by simulators.
`copy` moves runs of elements between memories. `load_word`, `dot4` and `shuffle_xor` are a GPU's; `widen`,
`splat_pair`, `add_pairs` and `rescale` a processor's, on vectors.
What is said beside ops (initiation intervals, where memories lie, roles of functions) is in annotations.py; what a
whole module may hold, in legal.py; what it computes, in interpret.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects import memref
from xdsl.dialects.arith import FloatingPointLikeBinaryOperation
from xdsl.dialects.builtin import (
    AnyFloat,
    IndexType,
    IntAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    VectorType,
    i32,
)
from xdsl.ir import Attribute, Dialect, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    param_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from cuvil_hw import dtypes
from cuvil_hw.ir.annotations import ANNOTATIONS, ElementType
from cuvil_hw.ir.lanes import AddPairsOp, RescaleOp, SplatPairOp
from cuvil_hw.ir.level1 import element_type


@irdl_attr_definition
class StreamType(ParametrizedAttribute, TypeAttribute):
    """A FIFO of words of `lanes` elements."""

    name = "cuvil.stream"
    element: Attribute = param_def()
    lanes: IntAttr = param_def()

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            element = parser.parse_attribute()
            parser.parse_punctuation(",")
            return [element, IntAttr(parser.parse_integer())]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.element)
            printer.print_string(f", {self.lanes.data}")

    def verify(self) -> None:
        if not isinstance(self.element, IntegerType | AnyFloat) or self.lanes.data < 1:
            raise VerifyException(f"{self.name} has words of one or more numbers, not {self.lanes.data} {self.element}")


def stream_type(element: Attribute, lanes: int) -> StreamType:
    return StreamType(element, IntAttr(lanes))


@irdl_op_definition
class StreamOp(IRDLOperation):
    """A FIFO of `depth` words; `words`, if given: how many cross it for one sample."""

    name = "cuvil.level2.stream"
    depth = prop_def(IntegerAttr)
    words = opt_prop_def(IntegerAttr)
    output = result_def(StreamType)

    def __init__(self, type: StreamType, depth: int, words: int | None = None) -> None:
        numbers = {"depth": depth, "words": words}
        super().__init__(
            result_types=[type], properties={k: IntegerAttr(v, i32) for k, v in numbers.items() if v is not None}
        )

    def verify_(self) -> None:
        if self.depth.value.data < 1:
            raise VerifyException(f"{self.name}: a FIFO holds at least one word, not {self.depth.value.data}")


@irdl_attr_definition
class AxisType(ParametrizedAttribute, TypeAttribute):
    """An AXI4-Stream port of `bits` data bits: a tensor crosses as the bytes of its array, in streaming order."""

    name = "cuvil.axis"
    bits: IntAttr = param_def()

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            return [IntAttr(parser.parse_integer())]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(str(self.bits.data))

    def verify(self) -> None:
        if self.bits.data < 8 or self.bits.data & (self.bits.data - 1):
            raise VerifyException(f"{self.name} has a power of two of bits, at least 8, not {self.bits.data}")


def axis_type(bits: int) -> AxisType:
    return AxisType(IntAttr(bits))


@irdl_op_definition
class AxisReadOp(IRDLOperation):
    """A process that turns one tensor of `count` elements from a port into words of a stream, the last one filled up
    with zeros. `ends`, if given: a stream that gets a flag a tensor, whether a packet of the port ended with it."""

    name = "cuvil.level2.axis_read"
    port = operand_def(AxisType)
    stream = operand_def(StreamType)
    ends = opt_operand_def(StreamType)
    count = prop_def(IntegerAttr)
    dtype = prop_def(ElementType)

    def __init__(self, port: SSAValue, stream: SSAValue, count: int, dtype: str, ends: SSAValue | None = None) -> None:
        super().__init__(
            operands=[port, stream, ends], properties={"count": IntegerAttr(count, i32), "dtype": ElementType(dtype)}
        )

    def verify_(self) -> None:
        _check_tensor(self)


@irdl_op_definition
class AxisWriteOp(IRDLOperation):
    """The reverse of axis_read, which drops what is beyond `count`: a packet ends with the tensor where `ends` says so,
    with every one without it."""

    name = "cuvil.level2.axis_write"
    stream = operand_def(StreamType)
    port = operand_def(AxisType)
    ends = opt_operand_def(StreamType)
    count = prop_def(IntegerAttr)
    dtype = prop_def(ElementType)

    def __init__(self, stream: SSAValue, port: SSAValue, count: int, dtype: str, ends: SSAValue | None = None) -> None:
        super().__init__(
            operands=[stream, port, ends], properties={"count": IntegerAttr(count, i32), "dtype": ElementType(dtype)}
        )

    def verify_(self) -> None:
        _check_tensor(self)


def _check_tensor(op: AxisReadOp | AxisWriteOp) -> None:
    """Elements are of `dtype`, and `ends` carries flags. The stream's last word may be filled in part."""
    kind, count = op.stream.type, op.count.value.data
    assert isinstance(kind, StreamType)
    if signless(op.dtype.data) != kind.element:
        raise VerifyException(f"{op.name}: elements of {op.dtype.data} don't fit stream {kind}")
    if count < 0:
        raise VerifyException(f"{op.name}: a tensor of {count} elements")
    if op.ends is not None and op.ends.type != stream_type(IntegerType(1), 1):
        raise VerifyException(f"{op.name}: ends of packets are flags (i1), not {op.ends.type}")


def _check_word(op: IRDLOperation, stream: SSAValue, word: SSAValue) -> None:
    s, w = stream.type, word.type
    if not isinstance(s, StreamType) or not isinstance(w, MemRefType):
        raise VerifyException(f"{op.name}: takes a stream and a word")
    if w.element_type != s.element or list(w.get_shape()) != [s.lanes.data]:
        raise VerifyException(f"{op.name}: word {w} doesn't fit stream {s}")


@irdl_op_definition
class StreamReadOp(IRDLOperation):
    """word ← stream; waits while the stream is empty."""

    name = "cuvil.level2.stream_read"
    stream = operand_def(StreamType)
    word = operand_def(MemRefType)

    def __init__(self, stream: SSAValue, word: SSAValue) -> None:
        super().__init__(operands=[stream, word])

    def verify_(self) -> None:
        _check_word(self, self.stream, self.word)


@irdl_op_definition
class StreamWriteOp(IRDLOperation):
    """stream ← word; waits while the stream is full."""

    name = "cuvil.level2.stream_write"
    stream = operand_def(StreamType)
    word = operand_def(MemRefType)

    def __init__(self, stream: SSAValue, word: SSAValue) -> None:
        super().__init__(operands=[stream, word])

    def verify_(self) -> None:
        _check_word(self, self.stream, self.word)


@irdl_op_definition
class SaturateOp(IRDLOperation):
    """Clip a signed integer to the range of `dtype` and narrow it. `layer` indexes the simulator's counters."""

    name = "cuvil.level2.saturate"
    value = operand_def(IntegerType)
    dtype = prop_def(ElementType)
    layer = prop_def(IntegerAttr)
    output = result_def(IntegerType)

    def __init__(self, value: SSAValue, dtype: str, layer: int, result: Attribute) -> None:
        super().__init__(
            operands=[value],
            result_types=[result],
            properties={"dtype": ElementType(dtype), "layer": IntegerAttr(layer, i32)},
        )

    def verify_(self) -> None:
        width = dtypes.int_width(self.dtype.data)
        if width is None or not isinstance(self.output.type, IntegerType) or self.output.type.width.data != width[1]:
            raise VerifyException(f"saturate to {self.dtype.data} can't give {self.output.type}")


@irdl_op_definition
class MultiplyPairOp(IRDLOperation):
    """Two products with one factor in common, made by one multiplier of a fabric: `shared` has `shared_bits` bits, the
    two others `other_bits`, the products `apart` bits, all signed."""

    name = "cuvil.level2.multiply_pair"
    shared = operand_def(IntegerType)
    low = operand_def(IntegerType)
    high = operand_def(IntegerType)
    shared_bits = prop_def(IntegerAttr)
    other_bits = prop_def(IntegerAttr)
    apart = prop_def(IntegerAttr)
    low_product = result_def(IntegerType)
    high_product = result_def(IntegerType)

    def __init__(self, shared: SSAValue, low: SSAValue, high: SSAValue, bits: tuple[int, int, int]) -> None:
        names = ("shared_bits", "other_bits", "apart")
        super().__init__(
            operands=[shared, low, high],
            result_types=[shared.type, shared.type],
            properties={n: IntegerAttr(b, i32) for n, b in zip(names, bits, strict=True)},
        )

    def verify_(self) -> None:
        if len({v.type for v in (*self.operands, *self.results)}) != 1:
            raise VerifyException(f"{self.name}: factors and products have one type")


@irdl_op_definition
class AddProductsOp(IRDLOperation):
    """Adds to each element of `y` a sum of the elements of `x`, each times a constant of its own: additions of a
    `graph`, a table as ir/adders.py makes it."""

    name = "cuvil.level2.add_products"
    graph = operand_def(MemRefType)
    x = operand_def(MemRefType)
    y = operand_def(MemRefType)

    def __init__(self, graph: SSAValue, x: SSAValue, y: SSAValue) -> None:
        super().__init__(operands=[graph, x, y])

    def verify_(self) -> None:
        for memory in (self.x, self.y):
            kind = memory.type
            if (
                not isinstance(kind, MemRefType)
                or kind.get_num_dims() != 1
                or not isinstance(kind.element_type, IntegerType)
            ):
                raise VerifyException(f"{self.name}: adds integers of arrays of one dimension, not {kind}")
        if not isinstance(self.graph.owner, memref.GetGlobalOp):
            raise VerifyException(f"{self.name}: its graph is a table of the module")

    @property
    def symbol(self) -> str:
        """Of the table."""
        assert isinstance(self.graph.owner, memref.GetGlobalOp)
        return str(self.graph.owner.name_.root_reference.data)


@irdl_op_definition
class LoadWordOp(IRDLOperation):
    """Four neighbouring elements, kept in bytes, as one 32-bit word, the first in its low bits. The first one's offset
    in memory is a multiple of 4."""

    name = "cuvil.level2.load_word"
    memref = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    output = result_def(IntegerType(32))

    def __init__(self, memory: SSAValue, indices: Sequence[SSAValue]) -> None:
        super().__init__(operands=[memory, list(indices)], result_types=[i32])

    def verify_(self) -> None:
        kind = self.memref.type
        element = kind.element_type if isinstance(kind, MemRefType) else None
        if not isinstance(element, IntegerType) or not 1 < element.width.data <= 8:
            raise VerifyException(f"{self.name}: reads integers that are kept in bytes, not {kind}")


@irdl_op_definition
class Dot4Op(IRDLOperation):
    """accumulator + Σ of the four products of signed bytes of two words, modulo 2^32."""

    name = "cuvil.level2.dot4"
    a = operand_def(IntegerType(32))
    b = operand_def(IntegerType(32))
    accumulator = operand_def(IntegerType(32))
    output = result_def(IntegerType(32))

    def __init__(self, a: SSAValue, b: SSAValue, accumulator: SSAValue) -> None:
        super().__init__(operands=[a, b, accumulator], result_types=[i32])


@irdl_op_definition
class WidenOp(IRDLOperation):
    """The lanes of a vector of integers of `dtype`, each as a wider integer or as a float."""

    name = "cuvil.level2.widen"
    value = operand_def(VectorType[IntegerType])
    dtype = prop_def(ElementType)
    output = result_def(VectorType)

    def __init__(self, value: SSAValue, dtype: str, result: VectorType[Attribute]) -> None:
        super().__init__(operands=[value], result_types=[result], properties={"dtype": ElementType(dtype)})

    def verify_(self) -> None:
        given, made = self.value.type, self.output.type
        assert isinstance(given, VectorType)
        assert isinstance(made, VectorType)
        narrow, wide = given.element_type, made.element_type
        wider = not isinstance(wide, IntegerType) or wide.width.data > getattr(narrow, "bitwidth", 64)
        if narrow != signless(self.dtype.data) or given.get_shape() != made.get_shape() or not wider:
            raise VerifyException(f"widen of {self.dtype.data} can't give {made} from {given}")


@irdl_op_definition
class ShuffleXorOp(IRDLOperation):
    """The value that lane (own lane xor `lanes`) of the warp has; every lane of the warp takes part."""

    name = "cuvil.level2.shuffle_xor"
    value = operand_def()
    lanes = operand_def(IntegerType(32))
    output = result_def()

    def __init__(self, value: SSAValue, lanes: SSAValue) -> None:
        super().__init__(operands=[value, lanes], result_types=[value.type])


@irdl_op_definition
class CopyOp(IRDLOperation):
    """`segments` runs of `count` elements from one memory to another, in the machine's own copy instruction. Positions
    and the distances between runs are in elements, counted row by row."""

    name = "cuvil.level2.copy"
    source = operand_def(MemRefType)
    source_at = operand_def(IndexType)
    target = operand_def(MemRefType)
    target_at = operand_def(IndexType)
    count = operand_def(IndexType)
    segments = prop_def(IntegerAttr)
    source_stride = prop_def(IntegerAttr)
    target_stride = prop_def(IntegerAttr)

    def __init__(
        self,
        source: tuple[SSAValue, SSAValue],
        target: tuple[SSAValue, SSAValue],
        count: SSAValue,
        segments: int = 1,
        source_stride: int = 0,
        target_stride: int = 0,
    ) -> None:
        numbers = {"segments": segments, "source_stride": source_stride, "target_stride": target_stride}
        super().__init__(
            operands=[*source, *target, count], properties={k: IntegerAttr(v, i32) for k, v in numbers.items()}
        )

    def verify_(self) -> None:
        a, b = self.source.type, self.target.type
        if not isinstance(a, MemRefType) or not isinstance(b, MemRefType) or a.element_type != b.element_type:
            raise VerifyException(f"{self.name}: both memories hold the same type, not {a} and {b}")
        if self.segments.value.data < 1:
            raise VerifyException(f"{self.name}: copies at least one run, not {self.segments.value.data}")


@irdl_op_definition
class RemFOp(FloatingPointLikeBinaryOperation):
    """MLIR's arith.remf (C fmod), which xDSL's arith dialect doesn't have yet."""

    name = "arith.remf"


def dialect() -> Dialect:
    return Dialect(
        "cuvil",
        [
            StreamOp,
            StreamReadOp,
            StreamWriteOp,
            AxisReadOp,
            AxisWriteOp,
            SaturateOp,
            MultiplyPairOp,
            AddProductsOp,
            LoadWordOp,
            Dot4Op,
            WidenOp,
            SplatPairOp,
            AddPairsOp,
            RescaleOp,
            ShuffleXorOp,
            CopyOp,
            RemFOp,
        ],
        [StreamType, AxisType, *ANNOTATIONS],
    )


def signless(dtype: str) -> Any:
    """Level2 element type of a dtype: floats as they are, integers signless (signedness is in the ops), bool as i1,
    bf16 as its bits (it is only moved and converted, by integers: lower/emit.py)."""
    if dtype == "index":
        return IndexType()
    width = dtypes.int_width("i16" if dtype == "bf16" else dtype)
    return IntegerType(width[1]) if width else element_type(dtype)
