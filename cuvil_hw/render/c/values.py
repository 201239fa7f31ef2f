"""The values of one function: the text of each, where it is written, and the variables that hold the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import IndexType, VectorType
from xdsl.ir import Operation, SSAValue

from cuvil_hw.ir.annotations import Name, text_of
from cuvil_hw.render.c.expressions import Expressions
from cuvil_hw.render.c.inline import Inline
from cuvil_hw.render.c.lang import Lang
from cuvil_hw.render.c.names import Names
from cuvil_hw.render.c.scalar import PLUS, PRIMARY, TIMES, Code, CType, declared, integer, value_type

INDEX = IndexType()


@dataclass(frozen=True, slots=True)
class NamedMemory:
    """A memory in the text. `flat`: indexed by one number, row by row; `lanes`: what stands between name and index."""

    name: str
    shape: tuple[int, ...]
    element: CType
    flat: bool
    lanes: str = ""


@dataclass
class ValueTexts:
    """The texts of one function's values.

    Attributes:
        codes: texts that may be written many times.
        pending: expressions that wait for their only use.
        variables: names of values that are assigned more than once.
    """

    op: func.FuncOp
    lang: Lang
    symbols: Mapping[str, str]
    expressions: Expressions
    written: set[int]
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    codes: dict[SSAValue, Code] = field(default_factory=dict)
    pending: dict[SSAValue, Code] = field(default_factory=dict)
    variables: dict[SSAValue, str] = field(default_factory=dict)
    memories: dict[SSAValue, NamedMemory] = field(default_factory=dict)
    inline: Inline = field(default_factory=Inline)

    def __post_init__(self) -> None:
        self.names = Names(self.lang.keywords | frozenset(self.symbols.values()))

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def use(self, value: SSAValue) -> Code:
        """The text of a value, where it is used."""
        if value in self.pending:
            return self.pending.pop(value)
        return self.codes[value]

    def exact(self, value: SSAValue) -> Code:
        return self.expressions.exact(self.use(value), value.type)

    def place(self, op: Operation, code: Code) -> None:
        """Keep the code of an op's result: for its only use, or in a variable."""
        value = op.results[0]
        uses = list(value.uses)
        if not uses:
            return
        if code.atom:
            self.codes[value] = code
        elif len(uses) == 1 and self.inline.home(uses[0].operation) is self.inline.home(op):
            self.pending[value] = code
        else:
            self.define(value, code)

    def define(self, value: SSAValue, code: Code) -> None:
        """A constant variable that holds `code` from here on."""
        name = self.names.new(self._hint(value))
        kind = declared(value.type, self.lang)
        self.line(f"const {kind} {name} = {code.text};")
        self.codes[value] = Code(name, PRIMARY, value_type(value.type, self.lang))

    def carried(self, op: Operation) -> str | None:
        """The variable that a vector is for the next step of the loop, where nothing but `op` reads its old value: it
        is assigned at once, so that compilers, which keep the order of such statements, need few registers for what it
        is made of."""
        uses = list(op.results[0].uses)
        if len(uses) != 1 or not isinstance(op.results[0].type, VectorType):
            return None
        end, loop = uses[0].operation, op.parent_op()
        if not isinstance(end, scf.YieldOp) or not isinstance(loop, scf.ForOp) or end.parent_op() is not loop:
            return None
        old = loop.body.block.args[1 + uses[0].index]
        return self.variables.get(old) if all(use.operation is op for use in old.uses) else None

    def _hint(self, value: SSAValue) -> str:
        op = value.owner
        if isinstance(op, Operation):
            given = text_of(op, Name)
            if given:
                return given
            if isinstance(op, memref.LoadOp):
                return f"{self.memories[op.memref].name}_v"
        return value.name_hint or ("i" if value.type == INDEX else "t")

    def flush(self, changed: set[str]) -> None:
        """Read what is about to be overwritten into variables."""
        for value, code in list(self.pending.items()):
            if code.reads & changed:
                del self.pending[value]
                self.define(value, code)

    def element(self, buffer: SSAValue, indices: Sequence[SSAValue]) -> str:
        memory = self.memories[buffer]
        codes = [self.exact(i) for i in indices]
        if not memory.flat:
            return memory.name + memory.lanes + "".join(f"[{c.text}]" for c in codes)
        total: Code = integer(0)
        for extent, code in zip(memory.shape, codes, strict=True):
            scaled = self.expressions.ring("*", TIMES, total, integer(extent), INDEX)
            total = self.expressions.ring("+", PLUS, scaled, code, INDEX)
        return f"{memory.name}[{total.text}]"

    def peek(self, value: SSAValue) -> Code:
        return self.pending.get(value) or self.codes[value]
