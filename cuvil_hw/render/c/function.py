"""One level2 function → text.

A value that is used once is written where it is used, unless something in between writes the memory that it reads.
Loop-carried values become variables that are assigned at the end of the body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from xdsl.dialects import arith, func, gpu, memref, scf, vector
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Block, Operation, Region, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import annotations as notes
from cuvil_hw.ir.lanes import SplatPairOp
from cuvil_hw.ir.level2 import (
    AddProductsOp,
    AxisReadOp,
    AxisType,
    AxisWriteOp,
    CopyOp,
    LoadWordOp,
    MultiplyPairOp,
    StreamOp,
    StreamReadOp,
    StreamType,
    StreamWriteOp,
)
from cuvil_hw.render.c.inline import writes
from cuvil_hw.render.c.memories import MemoryTexts
from cuvil_hw.render.c.names import comment_lines
from cuvil_hw.render.c.scalar import (
    INT,
    PRIMARY,
    UNARY,
    Code,
    CType,
    bare,
    declared,
    port_element,
    spelled,
    table_type,
    value_type,
    width,
)  # fmt: skip
from cuvil_hw.render.c.values import NamedMemory
from cuvil_hw.render.c.vectors import splat_pair


@dataclass
class Function(MemoryTexts):
    """Renders one function. `text` may be called once. `streams`: names of streams that are declared at file scope."""

    calls_begun: bool = False
    streams: Mapping[SSAValue, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        MemoryTexts.__post_init__(self)
        for stream in dict.fromkeys(self.streams.values()):
            self.names.new(stream)

    @property
    def role(self) -> str:
        return notes.text_of(self.op, notes.Role) or "kernel"

    def signature(self) -> str:
        first = self.lang.first_param.get(self.role, "")
        params = [self._parameter(i, arg) for i, arg in enumerate(self.op.body.block.args)]
        params = [p for p in (first, *params) if p]
        results = self.op.function_type.outputs.data
        linkage = self.lang.linkage.get(self.role)
        if linkage is None:
            have = ", ".join(self.lang.linkage)
            raise CuvilError(f"{self.lang.name} has no functions of role {self.role!r}; it has: {have}")
        threads = notes.number_of(self.op, notes.Threads)
        if threads is not None:
            linkage = linkage.replace("{threads}", str(threads))
        if results:
            if len(results) > 1:
                what = f"function {self.op.sym_name.data} returns {len(results)} values"
                raise CuvilError(f"{what}; return one, or use memory")
            linkage = linkage.replace("void", declared(results[0], self.lang))
        return f"{linkage} {self.symbols[self.op.sym_name.data]}({', '.join(params)})"

    def _parameter(self, position: int, arg: SSAValue) -> str:
        hints = notes.noted(self.op, notes.Args)
        if arg in self.streams:
            self.codes[arg] = Code(self.streams[arg], PRIMARY, INT)
            return ""
        given = hints.data[position] if hints is not None else arg.name_hint
        name = self.names.new(given or f"arg{position}")
        if isinstance(arg.type, MemRefType):
            shape = tuple(arg.type.get_shape())
            element = value_type(arg.type.element_type, self.lang)
            self.memories[arg] = NamedMemory(name, shape, element, True)
            const = "" if position in self.written else "const "
            size = max(prod(shape), 1)
            kind = declared(arg.type.element_type, self.lang)
            return self.lang.pointer.format(const=const, type=kind, name=name, size=size)
        if isinstance(arg.type, StreamType | AxisType):
            self.codes[arg] = Code(name, PRIMARY, INT)
            if isinstance(arg.type, AxisType):
                template = self._supported(self.lang.axis_param, "AXI4-Stream ports")
                return template.format(bits=arg.type.bits.data, name=name)
            return self.lang.stream_param.format(word=self._word(arg.type), name=name)
        self.codes[arg] = Code(name, PRIMARY, value_type(arg.type, self.lang))
        return f"{declared(arg.type, self.lang)} {name}"

    def text(self) -> str:
        signature = self.signature()
        head = comment_lines(notes.text_of(self.op, notes.Comment))
        if self.role == "dataflow":
            for arg in self.op.body.block.args:
                if isinstance(arg.type, AxisType):
                    self._template(self.lang.port.format(name=self.codes[arg].text))
            self._template(self.lang.dataflow[0])
        end = self.block(self.op.body.block)
        if self.calls_begun:
            self._template(self.lang.dataflow[3])
        if end is not None and end.operands:
            code = self.expressions.as_type(self.use(end.operands[0]), end.operands[0].type)
            self.line(f"return {code.text};")
        return "\n".join([*head, f"{signature} {{", *self.lines, "}", ""])

    def _word(self, type: StreamType) -> str:
        template = self._supported(self.lang.word, "streams")
        return template.format(type=declared(type.element, self.lang), lanes=type.lanes.data)

    # -- statements --------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> Operation | None:
        """All ops but the terminator, which is returned."""
        for op in block.ops:
            if isinstance(op, scf.YieldOp | func.ReturnOp):
                return op
            self.statement(op)
        return None

    def statement(self, op: Operation) -> None:
        match op:
            case arith.ConstantOp():
                self.codes[op.result] = self.expressions.constant(op)
            case memref.GetGlobalOp():
                kind = op.memref.type
                assert isinstance(kind, MemRefType)
                name = self.symbols[op.name_.root_reference.data]
                element = table_type(kind.element_type, notes.text_of(op, notes.Stored), self.lang)
                memory = NamedMemory(name, tuple(kind.get_shape()), element, False)
                self.memories[op.memref] = memory
                self._annotate(op, name)
            case memref.AllocaOp() | memref.AllocOp():
                self._declare(op)
            case memref.LoadOp():
                memory = self.memories[op.memref]
                inner = frozenset().union(*(self.peek(i).reads for i in op.indices)) if op.indices else frozenset()
                text = self.element(op.memref, list(op.indices))
                own = memory.element
                right = own.signed or own.kind not in ("int", "arbitrary") or own.bits < width(op.res.type)
                self.place(op, Code(text, PRIMARY, own, right, reads=inner | {memory.name}))
            case memref.StoreOp():
                self._store(op)
            case vector.LoadOp():
                memory = self.memories[op.base]
                inner = frozenset().union(*(self.peek(i).reads for i in op.indices)) if op.indices else frozenset()
                text = self._lanes_at(op.result.type, op.base, op.indices, constant=True)
                self.place(op, Code(text, UNARY, value_type(op.result.type, self.lang), reads=inner | {memory.name}))
            case SplatPairOp():
                memory = self.memories[op.memref]
                inner = frozenset().union(*(self.peek(i).reads for i in op.indices))
                first = self.element(op.memref, list(op.indices))
                text = splat_pair(op.output.type, first, self.lang, self.expressions.helpers)
                self.place(op, Code(text, UNARY, value_type(op.output.type, self.lang), reads=inner | {memory.name}))
            case vector.StoreOp():
                value = self.use(op.vector)
                target = self._lanes_at(op.vector.type, op.base, op.indices, constant=False)
                self.flush({self.memories[op.base].name})
                self.assign(target, value, op.vector)
            case MultiplyPairOp():
                self._product_pair(op)
            case AddProductsOp():
                x, y = (self.memories[v].name for v in (op.x, op.y))
                self.flush({y})
                self.line(f"{self.symbols[op.symbol]}({x}, {y});")
            case arith.MuliOp() if notes.text_of(op, notes.Multiplier) in self.lang.product:
                self._product(op)
            case scf.ForOp():
                self._for(op)
            case scf.IfOp():
                self._if(op)
            case func.CallOp():
                self._call(op)
            case StreamOp() if op.output in self.streams:
                self.codes[op.output] = Code(self.streams[op.output], PRIMARY, INT)
            case StreamOp():
                name = self.names.new(notes.text_of(op, notes.Name) or "fifo")
                fifo, depth = op.output.type, op.depth.value.data
                assert isinstance(fifo, StreamType)
                self._template(self.lang.stream_local.format(word=self._word(fifo), depth=depth, name=name))
                if made_of := notes.text_of(op, notes.Fifo):
                    self._template(self.lang.fifo.format(name=name, kind=made_of))
                self.codes[op.output] = Code(name, PRIMARY, INT)
            case StreamReadOp() | StreamWriteOp():
                word, stream = self.memories[op.word].name, self.codes[op.stream].text
                reads = isinstance(op, StreamReadOp)
                if reads:
                    self.flush({word})
                self.line((self.lang.stream_read if reads else self.lang.stream_write).format(word=word, stream=stream))
            case AxisReadOp() | AxisWriteOp():
                self._axis(op)
            case LoadWordOp():
                memory = self.memories[op.memref]
                inner = frozenset().union(*(self.peek(i).reads for i in op.indices))
                text = self._supported(self.lang.word_load, "words of four bytes")
                text = text.format(self.element(op.memref, list(op.indices)))
                self.place(op, Code(text, UNARY, INT, reads=inner | {memory.name}))
            case gpu.BarrierOp():
                self.flush({memory.name for memory in self.memories.values()})
                self.line(self._supported(self.lang.barrier, "threads that meet"))
            case CopyOp():
                self._copy(op)
            case memref.DeallocOp():
                pass
            case _:
                code = self.expressions.op(op, [self.use(v) for v in op.operands])
                if (carried := self.carried(op)) is None:
                    self.place(op, code)
                else:
                    self.assign(carried, code, op.results[0])
                    self.codes[op.results[0]] = Code(carried, PRIMARY, code.type)

    def _store(self, op: memref.StoreOp) -> None:
        memory = self.memories[op.memref]
        value = self.use(op.value)
        target = self.element(op.memref, list(op.indices))
        self.flush({memory.name})
        self.assign(target, value, op.value)

    def _product(self, op: arith.MuliOp) -> None:
        """A product in a variable of its own, so that it can be said what multiplies."""
        code = self.expressions.op(op, [self.use(v) for v in op.operands])
        whole = code.exact and code.type.kind == "arbitrary" and code.type.bits <= 64
        kind = code.type if whole else value_type(op.result.type, self.lang)
        name = self.names.new(self._hint(op.result))
        template = self.lang.product[notes.text_of(op, notes.Multiplier)]
        for line in template.format(type=spelled(kind, self.lang), name=name, x=code.text).split("\n"):
            self.line(line)
        self.codes[op.result] = Code(name, PRIMARY, kind)

    def _product_pair(self, op: MultiplyPairOp) -> None:
        statement, *results = self.lang.product_pair
        shared, low, high = (self.exact(v).text for v in op.operands)
        a, b, s = (p.value.data for p in (op.shared_bits, op.other_bits, op.apart))
        name = self.names.new("product")
        statement = self._supported(statement, "pairs of products")
        self.line(statement.format(name=name, a=a, b=b, s=s, shared=shared, low=low, high=high))
        for value, text in zip(op.results, results, strict=True):
            self.codes[value] = Code(text.format(name=name), PRIMARY, CType("arbitrary", s))

    def assign(self, target: str, code: Code, value: SSAValue) -> None:
        """`target = code`, which wraps by itself; `x = x + y` as `x += y`."""
        if code.text == target:
            return
        half = getattr(value.type, "bitwidth", 0) == 16 and code.type.kind == "float"
        if code.split is not None and code.split[1] == target and code.split[0] in "+-*/&|^" and not half:
            self.line(f"{target} {code.split[0]}= {bare(code.split[2])};")
        else:
            self.line(f"{target} = {code.text};")

    def _for(self, op: scf.ForOp) -> None:
        names = []
        arguments = list(op.body.block.args)
        for init, arg in zip(op.iter_args, arguments[1:], strict=True):
            if init in self.variables and len(list(init.uses)) == 1:
                names.append(self.variables[init])  # nobody else wants its old value: go on with it
                continue
            code = self.use(init)
            name = self.names.new(arg.name_hint or "acc")
            self.line(f"{declared(arg.type, self.lang)} {name} = {code.text};")
            names.append(name)
        lower, upper, step = (self._bound(v) for v in (op.lb, op.ub, op.step))
        self.flush(self._changed(op.body))
        if self._is_pipeline(op, lower, upper):
            self._hints(op)
            self.codes[arguments[0]] = lower
            self.block(op.body.block)
            return
        with self.names.scope():
            name = self.names.new(notes.text_of(op, notes.Name) or arguments[0].name_hint or "i")
            by = f"++{name}" if step.literal == 1 else f"{name} += {step.text}"
            kind = declared(arguments[0].type, self.lang)
            trips = (upper.literal or 0) - (lower.literal or 0)
            if notes.noted(op, notes.Unroll) and trips >= self.lang.vector_lanes:
                self._template(self.lang.lanes)
            if self.lang.hints_first:
                self._hints(op)
            self.line(f"for ({kind} {name} = {lower.text}; {name} < {upper.text}; {by}) {{")
            self.depth += 1
            if not self.lang.hints_first:
                self._hints(op)
            self.codes[arguments[0]] = Code(name, PRIMARY, value_type(arguments[0].type, self.lang))
            for arg, variable in zip(arguments[1:], names, strict=True):
                self._variable(arg, variable)
            end = self.block(op.body.block)
            self._assign_all(names, list(end.operands) if end is not None else [])
            self.depth -= 1
        self.line("}")
        for result, variable in zip(op.results, names, strict=True):
            self._variable(result, variable)

    def _is_pipeline(self, op: scf.ForOp, lower: Code, upper: Code) -> bool:
        """Whether a pipelined loop is all that the function does, in a single step: tools drop such a loop with what it
        asks for, so the function itself is made the pipeline."""
        once = lower.literal is not None and upper.literal == lower.literal + 1 and not op.iter_args
        alone = op.parent is self.op.body.block and notes.noted(op, notes.Pipeline) is not None
        return self.lang.pipelined_functions and once and alone

    def _hints(self, op: scf.ForOp) -> None:
        pipeline = notes.number_of(op, notes.Pipeline)
        if pipeline is not None:
            for hint in self.apart:
                self._template(hint)
            self._template(self.lang.pipeline.format(ii=pipeline))
        if notes.noted(op, notes.Unroll):
            self._template(self.lang.unroll)

    def _variable(self, value: SSAValue, name: str) -> None:
        self.codes[value] = Code(name, PRIMARY, value_type(value.type, self.lang))
        self.variables[value] = name

    def _bound(self, value: SSAValue) -> Code:
        """A loop bound, computed before the loop."""
        code = self.exact(value)
        if code.atom:
            return code
        self.define(value, code)
        return self.codes[value]

    def _assign_all(self, names: Sequence[str], values: Sequence[SSAValue]) -> None:
        """Assign all variables as if at once."""
        codes = [self.use(v) for v in values]
        for i, (name, code) in enumerate(zip(names, codes, strict=True)):
            later = [c.text for c in codes[i + 1 :]]
            if code.text != name and any(re.search(rf"\b{name}\b", t) for t in later):
                kept = self.names.new(f"next_{name}")
                self.line(f"const {declared(values[i].type, self.lang)} {kept} = {code.text};")
                codes[i] = replace(code, text=kept, prec=PRIMARY, split=None)
        for name, code, value in sorted(
            zip(names, codes, values, strict=True), key=lambda x: x[1].text.startswith("next_")
        ):
            self.assign(name, code, value)

    def _changed(self, region: Region) -> set[str]:
        """Names of the memories in scope that the region writes."""
        values = [v for op in region.walk() for v in writes(op)]
        return {self.memories[v].name for v in values if v in self.memories}

    def _if(self, op: scf.IfOp) -> None:
        if self.inline.is_expression(op):
            cond = self.exact(op.cond)
            then, other = self._side(op.true_region.block), self._side(op.false_region.block)
            self.place(op, self.expressions.choose(cond, then, other, op.results[0].type))
            return
        cond = self.exact(op.cond)
        self.flush(self._changed(op.true_region) | self._changed(op.false_region))
        names = []
        for result in op.results:
            name = self.names.new(notes.text_of(op, notes.Name) or result.name_hint or "t")
            self.line(f"{declared(result.type, self.lang)} {name};")
            names.append(name)
        self.line(f"if ({cond.text}) {{")
        self._branch(op.true_region.block, names)
        ops = list(op.false_region.block.ops) if op.false_region.blocks else []
        if any(not isinstance(o, scf.YieldOp) or o.operands for o in ops):
            self.line("} else {")
            self._branch(op.false_region.block, names)
        self.line("}")
        for result, name in zip(op.results, names, strict=True):
            self._variable(result, name)

    def _side(self, block: Block) -> Code:
        end = self.block(block)
        assert end is not None
        return self.use(end.operands[0])

    def _branch(self, block: Block, names: Sequence[str]) -> None:
        self.depth += 1
        with self.names.scope():
            end = self.block(block)
            self._assign_all(names, list(end.operands) if end is not None else [])
        self.depth -= 1

    def _call(self, op: func.CallOp) -> None:
        args = []
        for value in op.arguments:
            if isinstance(value.type, MemRefType):
                args.append(self.memories[value].name)
            elif value in self.streams:
                continue
            elif isinstance(value.type, StreamType):
                args.append(self.codes[value].text)
            else:
                args.append(self.expressions.as_type(self.use(value), value.type).text)
        self.flush({self.memories[v].name for v in op.arguments if v in self.memories})
        name = self.symbols[op.callee.root_reference.data]
        call = f"{name}({', '.join(args)})"
        if self.role == "dataflow":
            self._process(notes.text_of(op, notes.Name) or name, call)
        elif op.results:
            result = op.results[0]
            self.define(result, Code(call, PRIMARY, value_type(result.type, self.lang)))
        else:
            self.line(f"{call};")

    def _process(self, name: str, call: str) -> None:
        """One of the concurrent calls of a dataflow function."""
        if not self.calls_begun:
            self._template(self.lang.dataflow[1])
            self.calls_begun = True
        self.line(self.lang.dataflow[2].format(name=name, call=call))

    def _axis(self, op: AxisReadOp | AxisWriteOp) -> None:
        reads = isinstance(op, AxisReadOp)
        port, stream = self.codes[op.port].text, self.codes[op.stream].text
        kind, bus = op.stream.type, op.port.type
        assert isinstance(kind, StreamType)
        assert isinstance(bus, AxisType)
        bits, count, lanes = bus.bits.data, op.count.value.data, kind.lanes.data
        element = port_element(op.dtype.data, self.lang)
        container = 8 * dtypes.to_numpy(op.dtype.data).itemsize
        template = self.lang.axis_read if reads else self.lang.axis_write
        if lanes == count and count * container <= bits:
            template = (self.lang.axis_word_read if reads else self.lang.axis_word_write) or template
        self._supported(template, "AXI4-Stream ports")
        ends = f", {self.codes[op.ends].text}" if op.ends is not None else ""
        call = template.format(bits=bits, type=element, lanes=lanes, count=count, port=port, stream=stream, ends=ends)
        self._process(f"{'read' if reads else 'write'}_{port}", call)
