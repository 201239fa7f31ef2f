"""Memories in the text: how they are declared, and what moves more than one element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType, VectorType
from xdsl.ir import Attribute, Operation, SSAValue

from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import annotations as notes
from cuvil_hw.ir.level2 import CopyOp
from cuvil_hw.render.c.scalar import PLUS, UNARY, Code, at, declared, value_type
from cuvil_hw.render.c.values import NamedMemory, ValueTexts
from cuvil_hw.render.c.vectors import defined, in_memory


@dataclass
class MemoryTexts(ValueTexts):
    """How memories of a function are declared and indexed. `apart`: lines to print before each loop, which say which
    accesses never meet.
    """

    apart: list[str] = field(default_factory=list)

    def _template(self, text: str) -> None:
        if text:
            self.line(text)

    def _supported(self, template: str, what: str) -> str:
        if not template:
            raise CuvilError(f"{self.lang.name} has no {what}")
        return template

    def _declare(self, op: memref.AllocaOp | memref.AllocOp) -> None:
        kind = op.memref.type
        assert isinstance(kind, MemRefType)
        shape, name = tuple(kind.get_shape()), self.names.new(notes.text_of(op, notes.Name) or "buffer")
        element = declared(kind.element_type, self.lang)
        if isinstance(kind.element_type, VectorType):
            defined(kind.element_type, self.lang, self.expressions.helpers)
        lanes = ""
        if notes.noted(op, notes.StreamWord) and self.lang.word:
            lanes = self.lang.word_lanes
            text = f"{self.lang.word.format(type=element, lanes=shape[0])} {name};"
        else:
            text = f"{element} {name}{''.join(f'[{max(n, 1)}]' for n in shape)};"
        space = notes.text_of(op, notes.Space)
        if space and space not in self.lang.spaces:
            have = ", ".join(self.lang.spaces) or "none"
            raise CuvilError(f"{self.lang.name} has no memory space {space!r} for {name}; it has: {have}")
        text = self.lang.spaces[space].format(text) if space else text
        text = self.lang.placed.get(notes.text_of(op, notes.Bind), "") + text
        self.line(text)
        self.memories[op.memref] = NamedMemory(name, shape, value_type(kind.element_type, self.lang), False, lanes)
        self._annotate(op, name)

    def _annotate(self, op: Operation, name: str) -> None:
        bind = notes.text_of(op, notes.Bind)
        if bind and self.lang.bind:
            if bind not in self.lang.bind:
                raise CuvilError(f"{self.lang.name} can't bind {name} to {bind!r}; it has: {', '.join(self.lang.bind)}")
            many = (notes.number_of(op, notes.ReadPorts) or 0) > 2
            kind = "ram_2p" if not isinstance(op, memref.GetGlobalOp) else "rom_np" if many else "rom_2p"
            self._template(self.lang.bind[bind].format(name=name, kind=kind))
        if notes.noted(op, notes.Independent):
            self._template(self.lang.independent.format(name=name))
            self.apart.append(self.lang.apart.format(name=name))
        steps = notes.number_of(op, notes.Distance)
        if steps is not None:
            self._template(self.lang.distance.format(name=name, steps=steps))
            self.apart.append(self.lang.apart_steps.format(name=name, steps=steps))
        for dims, template in (
            (notes.noted(op, notes.ArrayPartition), self.lang.partition),
            (notes.noted(op, notes.Reshape), self.lang.reshape),
        ):
            for dim in dims.data if dims is not None else ():
                self._template(template.format(name=name, dim=dim + 1))

    def _lanes_at(self, kind: Attribute, base: SSAValue, indices: Sequence[SSAValue], *, constant: bool) -> str:
        first = self.element(base, list(indices))
        return in_memory(kind, first, self.lang, self.expressions.helpers, constant=constant)

    def _copy(self, op: CopyOp) -> None:
        template = self._supported(self.lang.copy, "copies between memories")
        count = self.exact(op.count)
        ends: dict[str, str] = {}
        for end, value, first in (("source", op.source, op.source_at), ("target", op.target, op.target_at)):
            ends[end] = self._pointer(self.memories[value], self.exact(first))
            owner = value.owner
            space = notes.text_of(owner, notes.Space) if isinstance(owner, Operation) else ""
            ends[f"{end}_space"] = self.lang.copy_spaces[space]
        size = self.memories[op.source].element.bits // 8 or 1
        total = str(count.literal * size) if count.literal is not None else f"{at(count, UNARY)} * {size}"
        several = ""
        if op.segments.value.data > 1:
            strides = {k: getattr(op, k).value.data * size for k in ("source_stride", "target_stride")}
            several = self.lang.copy_segments.format(more=op.segments.value.data - 1, **strides)
        self.flush({self.memories[op.target].name})
        self.line(template.format(bytes=total, several=several, **ends))

    def _pointer(self, memory: NamedMemory, offset: Code) -> str:
        start = memory.name if memory.flat or len(memory.shape) == 1 else f"&{memory.name}{'[0]' * len(memory.shape)}"
        return start if offset.literal == 0 else f"{start} + {at(offset, PLUS)}"
