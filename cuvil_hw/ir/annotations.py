"""What level2 says beside its ops, as typed attributes: pragmas of loops, where memories lie, roles of functions.

An annotation stands in the attributes of an op under its own name, `cuvil.pipeline = #cuvil.pipeline<1>`. None changes
what a module computes; each says by `ON` which ops it belongs to, and by `check` what it must agree with there.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import IntegerType, MemRefType
from xdsl.ir import Attribute, Data, Operation, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError

A = TypeVar("A", bound="Annotation")
MEMORIES = (memref.AllocaOp, memref.AllocOp, memref.GetGlobalOp)


class Annotation(Attribute, ABC):
    """Something that level2 says beside its ops. `ON`: the ops that may carry it; empty: all may."""

    ON: ClassVar[tuple[type[Operation], ...]] = ()

    def check(self, op: Operation) -> None:
        """Raises VerifyException when the annotation doesn't fit `op`, which is one of `ON`."""


def annotate(op: Operation, *annotations: Annotation) -> None:
    op.attributes.update({a.name: a for a in annotations})


def noted(op: Operation, kind: type[A]) -> A | None:
    """The annotation of a kind that `op` carries. Raises CuvilError for something else under its name."""
    found = op.attributes.get(kind.name)
    if found is not None and not isinstance(found, kind):
        raise CuvilError(f"{op.name}: {kind.name} is {found}, not a #{kind.name}")
    return found


def text_of(op: Operation, kind: type[Text]) -> str:
    found = noted(op, kind)
    return "" if found is None else found.data


def number_of(op: Operation, kind: type[NumberAnnotation]) -> int | None:
    found = noted(op, kind)
    return None if found is None else found.data


# -- what they hold ----------------------------------------------------------------------------------------------------


class Flag(ParametrizedAttribute, Annotation):
    """An annotation without a value: it is there or not."""


class NumberAnnotation(Data[int], Annotation):
    LEAST: ClassVar[int] = 1
    MOST: ClassVar[int] = (1 << 31) - 1

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> int:
        with parser.in_angle_brackets():
            return parser.parse_integer(allow_boolean=False)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(str(self.data))

    def verify(self) -> None:
        if not isinstance(self.data, int) or not self.LEAST <= self.data <= self.MOST:
            raise VerifyException(f"{self.name} is a number from {self.LEAST} to {self.MOST}, not {self.data!r}")


class Text(Data[str], Annotation):
    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        with parser.in_angle_brackets():
            return parser.parse_str_literal()

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(self.data)


class Word(Text):
    """A text that is one of `CHOICES`; printed without quotes."""

    CHOICES: ClassVar[tuple[str, ...]]

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        with parser.in_angle_brackets():
            return parser.parse_identifier()

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(self.data)

    def verify(self) -> None:
        if self.data not in self.CHOICES:
            raise VerifyException(f"{self.name} is one of {', '.join(self.CHOICES)}, not {self.data!r}")


class _List(Annotation, ABC):
    @classmethod
    @abstractmethod
    def item(cls, parser: AttrParser) -> Any: ...

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Any:
        with parser.in_angle_brackets():
            return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: cls.item(parser)))


class Texts(_List, Data[tuple[str, ...]]):
    @classmethod
    def item(cls, parser: AttrParser) -> str:
        return parser.parse_str_literal()

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets(), printer.in_square_brackets():
            printer.print_list(self.data, printer.print_string_literal)


class Dims(_List, Data[tuple[int, ...]]):
    """Dimensions of a memory, from 0."""

    ON = MEMORIES

    @classmethod
    def item(cls, parser: AttrParser) -> int:
        return parser.parse_integer(allow_boolean=False, allow_negative=False)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets(), printer.in_square_brackets():
            printer.print_list(self.data, lambda n: printer.print_string(str(n)))

    def verify(self) -> None:
        if not self.data or len(set(self.data)) < len(self.data):
            raise VerifyException(f"{self.name} names dimensions, each once, not {list(self.data)}")

    def check(self, op: Operation) -> None:
        kind = op.results[0].type
        assert isinstance(kind, MemRefType)
        if max(self.data) >= (rank := len(kind.get_shape())):
            raise VerifyException(f"{self.name} names dimension {max(self.data)} of a memory with {rank}")


# -- names and comments ------------------------------------------------------------------------------------------------


@irdl_attr_definition
class Name(Text):
    """What the text calls the result of an op, a loop's variable, or a process."""

    name = "cuvil.name"


@irdl_attr_definition
class Comment(Text):
    """Comment lines that are printed above a function."""

    name = "cuvil.comment"
    ON = (func.FuncOp,)


# -- functions ---------------------------------------------------------------------------------------------------------


@irdl_attr_definition
class Role(Word):
    """ "kernel": computes from memories to a memory; "process": one of the concurrent parts of a streaming design;
    "dataflow": joins processes by streams."""

    name = "cuvil.role"
    ON = (func.FuncOp,)
    CHOICES = ("kernel", "process", "dataflow")


@irdl_attr_definition
class Args(Texts):
    """Names of a function's arguments."""

    name = "cuvil.args"
    ON = (func.FuncOp,)

    def check(self, op: Operation) -> None:
        assert isinstance(op, func.FuncOp)
        if len(self.data) != (count := len(op.function_type.inputs)):
            raise VerifyException(f"{self.name} has {len(self.data)} names for {count} arguments")


@irdl_attr_definition
class Threads(NumberAnnotation):
    """How many threads of a block run a kernel."""

    name = "cuvil.threads"
    ON = (func.FuncOp,)
    MOST = 1024


@irdl_attr_definition
class Kernels(Texts):
    """Names of the kernels that share this function."""

    name = "cuvil.kernels"
    ON = (func.FuncOp,)


@irdl_attr_definition
class Port(Flag):
    """A process that moves samples between the host's memory and a stream."""

    name = "cuvil.port"
    ON = (func.FuncOp,)


# -- constants ---------------------------------------------------------------------------------------------------------


@irdl_attr_definition
class Handle(Text):
    """Which array of the constant store a table holds, by digest."""

    name = "cuvil.handle"
    ON = (memref.GlobalOp,)

    def verify(self) -> None:
        if not re.fullmatch(r"[0-9a-f]+", self.data):
            raise VerifyException(f"{self.name} is a digest in hexadecimal, not {self.data!r}")


class _TypeName(Text):
    def verify(self) -> None:
        try:
            dtypes.to_numpy(self.data)
        except ValueError as e:
            raise VerifyException(f"{self.name} is an element type such as i8 or f32, not {self.data!r}") from e


@irdl_attr_definition
class ElementType(_TypeName):
    """An element type with its sign, as integers of level2 have none."""

    name = "cuvil.dtype"
    ON = (memref.GlobalOp,)


@irdl_attr_definition
class Stored(_TypeName):
    """An integer type that holds every element of a table, where its own is wider: the fewest bits to keep."""

    name = "cuvil.stored"
    ON = (memref.GlobalOp, memref.GetGlobalOp)

    def check(self, op: Operation) -> None:
        kind = op.type if isinstance(op, memref.GlobalOp) else op.results[0].type
        assert isinstance(kind, MemRefType)
        element, width = kind.element_type, dtypes.int_width(self.data)
        if width is None or not isinstance(element, IntegerType) or width[1] > element.width.data:
            raise VerifyException(f"{self.name} is an integer type of at most the bits of {element}, not {self.data}")


# -- loops -------------------------------------------------------------------------------------------------------------


@irdl_attr_definition
class Pipeline(NumberAnnotation):
    """Cycles between the starts of two iterations (the initiation interval)."""

    name = "cuvil.pipeline"
    ON = (scf.ForOp,)


@irdl_attr_definition
class Unroll(Flag):
    """A loop over lanes: all iterations run at once."""

    name = "cuvil.unroll"
    ON = (scf.ForOp,)


# -- products ----------------------------------------------------------------------------------------------------------


@irdl_attr_definition
class Multiplier(Word):
    """What computes a product on a fabric: multiplier blocks or logic."""

    name = "cuvil.multiplier"
    ON = (arith.MuliOp,)
    CHOICES = ("dsp", "lut")


# -- memories ----------------------------------------------------------------------------------------------------------


@irdl_attr_definition
class StreamWord(Flag):
    """A memory that holds one word of a stream."""

    name = "cuvil.word"
    ON = (memref.AllocaOp,)

    def check(self, op: Operation) -> None:
        kind = op.results[0].type
        assert isinstance(kind, MemRefType)
        if len(kind.get_shape()) != 1:
            raise VerifyException(f"{self.name} is a memory of lanes, which has one dimension, not {kind}")


@irdl_attr_definition
class Bind(Word):
    """What a memory is made of on a fabric."""

    name = "cuvil.bind"
    ON = MEMORIES
    CHOICES = ("registers", "lutram", "bram", "uram")


@irdl_attr_definition
class Fifo(Word):
    """What the FIFO of a stream is made of on a fabric: shift registers or a memory."""

    name = "cuvil.fifo"
    CHOICES = ("srl", "lutram", "bram", "uram")


@irdl_attr_definition
class ReadPorts(NumberAnnotation):
    """Places of a table that are read at once."""

    name = "cuvil.read_ports"
    ON = (memref.GetGlobalOp,)


@irdl_attr_definition
class Space(Word):
    """Where a memory lies when not with the thread: "shared" by the threads of a block, "nram" of a core."""

    name = "cuvil.space"
    ON = (memref.AllocaOp,)
    CHOICES = ("shared", "nram")


@irdl_attr_definition
class ArrayPartition(Dims):
    """Dimensions whose elements lie in memories of their own."""

    name = "cuvil.partition"


@irdl_attr_definition
class Reshape(Dims):
    """Dimensions whose elements lie side by side in one word of the memory."""

    name = "cuvil.reshape"


@irdl_attr_definition
class Independent(Flag):
    """Iterations of a loop never meet in this memory."""

    name = "cuvil.independent"
    ON = MEMORIES


@irdl_attr_definition
class Distance(NumberAnnotation):
    """Iterations of the loop around meet in this memory only so many steps apart."""

    name = "cuvil.distance"
    ON = MEMORIES
    LEAST = 2


ANNOTATIONS: tuple[type[Annotation], ...] = (
    Name, Comment, Role, Args, Threads, Kernels, Port, Handle, ElementType, Stored, Pipeline, Unroll, Multiplier,
    StreamWord, Bind, Fifo, ReadPorts, Space, ArrayPartition, Reshape, Independent, Distance,
)  # fmt: skip
