"""From a fused program to kernels: each group's ops are composed into one expression."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import Operation, SSAValue

from cuvil_hw.contract.loops import Carried, Sliced, StepLoop
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.guarded import settled
from cuvil_hw.expr.nodes import Expr, Iter, Load, Reduce, Tensor, Whole, const, index, parallel, placeholder
from cuvil_hw.expr.radix import split_iterators
from cuvil_hw.expr.traverse import substitute, walk
from cuvil_hw.ir import level1
from cuvil_hw.ir.loops import LevelLoop, arranged
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.base import compute
from cuvil_hw.schedule.kernel import Buffer, Kernel, KernelGraph
from cuvil_hw.schedule.memory import buffer_bytes
from cuvil_hw.types import TensorType


def kernel_graph(program: Program) -> KernelGraph:
    """The kernels of a program whose every op sits in a group (passes/fuse.py). Raises CuvilError otherwise."""
    return _Graph(program).made()


class _Graph:
    """Kernels, buffers and loops, as they are found.

    Attributes:
        tensors: each value as a function of an index.
        where: the buffer of each value that has one.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = _Names()
        self.buffers: dict[str, Buffer] = {}
        self.tensors: dict[SSAValue, Tensor] = {}
        self.where: dict[SSAValue, str] = {}
        self.result_names = [name for name, _ in program.outputs]
        self.returned = list(program.block.last_op.operands) if program.block.last_op else []
        self.kernels: list[Kernel] = []
        self.loops: list[StepLoop] = []

    def made(self) -> KernelGraph:
        program, buffers = self.program, self.buffers
        ports = zip(program.block.args, program.inputs, strict=True)
        inputs = tuple(self.declare(arg, name, "input") for arg, (name, _) in ports)
        self.add(arranged(program.block), 1)
        outputs: list[str] = []
        for value, name in zip(self.returned, self.result_names, strict=True):
            made = self.where.get(value)
            if made is not None and buffers[made].role == "output" and made not in outputs:
                outputs.append(made)
                continue
            out = self.names.new(name)  # an input, a constant or a repeated value is returned: copy it
            buffers[out] = Buffer(out, level1.type_of(value), "output")
            self.copy(value, out, 1)
            outputs.append(out)
        return KernelGraph(
            program.name, buffers, tuple(self.kernels), inputs, tuple(outputs), program.constants, tuple(self.loops)
        )

    def declare(self, value: SSAValue, hint: str, role: str, digest: str = "") -> str:
        name = self.names.new(hint)
        self.buffers[name] = Buffer(name, level1.type_of(value), role, digest)
        self.where[value], self.tensors[value] = name, placeholder(name, self.buffers[name].type)
        return name

    def result(self, value: SSAValue, hint: str) -> str:
        """The buffer of a computed value, an output where the program returns it."""
        returned = value in self.returned
        name = self.result_names[self.returned.index(value)] if returned else hint
        return self.declare(value, name, "output" if returned else "temp")

    def copy(self, value: SSAValue, out: str, runs: int) -> None:
        kernel = _kernel(self.names.new(f"copy_{out}"), out, self.tensors[value], ("identity",), "", self.buffers)
        self.kernels.append(replace(kernel, runs=runs))

    def held(self, value: SSAValue) -> str:
        """The buffer of a value; one of its own for a splat."""
        if value not in self.where:
            array = np.full(self.tensors[value].shape, level1.splat_value(value.owner))  # type: ignore[arg-type]
            self.declare(value, "c", "const", self.program.constants.add(array, self.tensors[value].dtype))
        return self.where[value]

    def add(self, items: Sequence[Operation | LevelLoop], runs: int) -> None:
        """`runs`: how often the items run for one sample."""
        for item in items:
            match item:
                case LevelLoop():
                    self.loop(item, runs)
                case level1.ConstOp(handle=None):
                    kind = level1.type_of(item.results[0])
                    self.tensors[item.results[0]] = Tensor(kind, _constant(level1.splat_value(item), kind.dtype))
                case level1.ConstOp():
                    assert item.handle is not None
                    self.declare(item.results[0], "c", "const", item.handle.data)
                case level1.GroupOp():
                    self.group(item, runs)
                case level1.TensorOp():
                    raise CuvilError(f"{item.spec.mnemonic} at {level1.loc_of(item)} is in no fusion group")

    def group(self, operation: level1.GroupOp, runs: int) -> None:
        for value in operation.operands if _whole(operation) else ():
            self.held(value)  # an op that is computed whole reads buffers
        tensor = _compose(operation, [self.tensors[v] for v in operation.operands])
        label = self.names.new(operation.label.data)
        out = self.result(operation.results[0], f"{label}_out")
        ops = tuple(o.spec.mnemonic for o in operation.body.block.ops if isinstance(o, level1.TensorOp))
        kernel = _kernel(label, out, tensor, ops, level1.loc_of(operation), self.buffers)
        self.kernels.append(replace(kernel, runs=runs))

    def loop(self, loop: LevelLoop, runs: int) -> None:
        """Its states and slices become views, and what a step gives is written where the next step, or the caller,
        reads it."""
        first, hint = len(self.kernels), f"loop{len(self.loops)}"
        self.loops.append(StepLoop(0, 0, 1, (), ()))  # the place of one around others is before them
        place, steps = len(self.loops) - 1, loop.first.steps
        sliced, reads = [], []
        number = loop.begin.results[0]
        if {u.operation for u in number.uses} != {loop.end}:
            counted = self.names.new("steps")
            digest = self.program.constants.add(np.arange(steps, dtype=np.int64), "i64")
            self.buffers[counted] = Buffer(counted, TensorType((steps,), "i64"), "const", digest)
            view = self.declare(number, "step", "view")
            sliced.append(Sliced(view, counted, buffer_bytes(self.buffers[view]), False))
        for n, (whole, element) in enumerate(loop.sliced):
            base, view = self.held(whole), self.declare(element, f"{hint}_slice", "view")
            sliced.append(Sliced(view, base, buffer_bytes(self.buffers[view]), bool(loop.first.reverse[n])))
        for value, before, _, _ in loop.carried:
            reads.append((self.held(value), self.declare(before, f"{hint}_state", "view")))
        self.add(loop.body, runs * steps)
        step = _Step(first, runs * steps, {k.output for k in self.kernels[first:] if k.runs == runs * steps})
        carried = []
        for (initial, read), (_, _, after, last) in zip(reads, loop.carried, strict=True):
            written = self.written(after, f"{hint}_next", step)
            final = self.result(last, f"{hint}_last")
            even, odd = (self.spare(self.buffers[final], f"{hint}_{n}") for n in ("even", "odd"))
            carried.append(Carried(read, written, initial, final, even, odd))
        for n, (element, whole) in enumerate(loop.stacked):
            view = self.written(element, f"{hint}_each", step)
            base = self.result(whole, f"{hint}_all")
            sliced.append(Sliced(view, base, buffer_bytes(self.buffers[view]), bool(loop.last.reverse[n])))
        if len(self.kernels) == first:
            raise CuvilError(f"the loop at {level1.loc_of(loop.begin)} computes nothing")
        self.loops[place] = StepLoop(first, len(self.kernels) - 1, steps, tuple(sliced), tuple(carried))

    def written(self, value: SSAValue, hint: str, step: _Step) -> str:
        """A view that a kernel of the step writes with `value`: its own buffer, if a kernel computes one that isn't
        taken yet, else a copy."""
        name = self.where.get(value, "")
        if name in step.free:
            step.free.remove(name)
            self.buffers[name] = replace(self.buffers[name], role="view")
            self.kernels[step.first :] = [_reading(k, self.buffers[name]) for k in self.kernels[step.first :]]
        else:
            name = self.names.new(hint)
            self.buffers[name] = Buffer(name, level1.type_of(value), "view")
            self.copy(value, name, step.runs)
        return name

    def spare(self, like: Buffer, hint: str) -> str:
        name = self.names.new(hint)
        self.buffers[name] = Buffer(name, like.type, "temp")
        return name


@dataclass(frozen=True, slots=True)
class _Step:
    """Of a loop: number of its first kernel, how often each runs, and the results of kernels that may still become
    views."""

    first: int
    runs: int
    free: set[str]


def _reading(kernel: Kernel, buffer: Buffer) -> Kernel:
    """The kernel, with `buffer` for its operand of that name."""
    if buffer.name not in kernel.inputs:
        return kernel
    return replace(kernel, operands=tuple(buffer if b.name == buffer.name else b for b in kernel.operands))


def _constant(value: float | int | bool, dtype: str) -> Callable[..., Expr]:
    return lambda *i: const(value, dtype)


def _whole(group: level1.GroupOp) -> bool:
    """The group is one composite op, which the adapter takes as it is."""
    first = group.body.block.first_op
    return isinstance(first, level1.TensorOp) and first.op.composite


def _elements(operation: level1.TensorOp, operands: list[Tensor]) -> list[Tensor]:
    """A composite op's results. `operands` are buffers."""
    loads = [t.at(*[index(0)] * t.type.rank) for t in operands]
    buffers = tuple(e.buffer for e in loads if isinstance(e, Load))
    assert len(buffers) == len(operands), "fusion leaves what a composite op reads outside its group"

    def result(number: int, kind: TensorType) -> Tensor:
        return Tensor(kind, lambda *i: Whole(kind.dtype, operation.op, buffers, i, number))

    return [result(n, level1.type_of(r)) for n, r in enumerate(operation.results)]


def _compose(group: level1.GroupOp, operands: list[Tensor]) -> Tensor:
    """The group's result as one function of the operands."""
    tensors: dict[SSAValue, Tensor] = dict(zip(group.body.block.args, operands, strict=True))
    for operation in group.body.block.ops:
        if isinstance(operation, level1.TensorOp):
            values = [tensors[v] for v in operation.operands]
            results = _elements(operation, values) if operation.op.composite else compute(operation.op, values)
            for value, tensor in zip(operation.results, results, strict=True):
                tensors[value] = _memoised(tensor)
        elif isinstance(operation, level1.YieldOp):
            return tensors[operation.values[0]]
    raise CuvilError(f"group {group.label.data} has no yield")


def _memoised(tensor: Tensor) -> Tensor:
    """The same index gives the same node, so that a shared value is computed once."""
    known: dict[tuple[Expr, ...], Expr] = {}

    def at(*i: Expr) -> Expr:
        if i not in known:
            known[i] = tensor.at(*i)
        return known[i]

    return Tensor(tensor.type, at)


def _kernel(
    name: str, out: str, tensor: Tensor, ops: tuple[str, ...], loc: str, buffers: Mapping[str, Buffer]
) -> Kernel:
    iterators = tuple(parallel(f"i{d}", e) for d, e in enumerate(tensor.shape))
    body = tensor.at(*[index(0) if i.extent == 1 else i for i in iterators])
    units: dict[Iter, Expr] = {e: index(0) for e in walk(body) if isinstance(e, Iter) and e.extent == 1}
    body = split_iterators(settled(substitute(body, units) if units else body))
    reduces = [e for e in walk(body) if isinstance(e, Reduce)]
    if len(reduces) > 1:
        raise CuvilError(f"kernel {name} has {len(reduces)} reductions; the fusion pass must not group them")
    read = [e.buffers if isinstance(e, Whole) else (e.buffer,) for e in walk(body) if isinstance(e, Load | Whole)]
    inputs = tuple(dict.fromkeys(name for names in read for name in names))
    operands = tuple(buffers[b] for b in inputs)
    return Kernel(name, inputs, out, tensor.type, iterators, body, ops, loc, operands)


class _Names:
    """Unique C identifiers."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def new(self, hint: str) -> str:
        base = re.sub(r"\W", "_", hint, flags=re.ASCII) or "v"
        base = f"v{base}" if base[0].isdigit() or base[0] == "_" else base
        base = f"v_{base}" if _FOREIGN.match(base) else base
        name, n = base, 0
        while name in self._used or name in RESERVED:
            n += 1
            name = f"{base}_{n}"
        self._used.add(name)
        return name


# Words that some C-family language reserves, and names that generated code uses itself.
RESERVED = frozenset(
    """
    auto break case char const continue default do double else enum extern float for goto if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    bool true false class new delete this template typename using namespace public private protected virtual
    operator try catch throw kernel global local constant half vec top main acc patch out in x w and or not xor
    bitand bitor compl asm export NULL INT MIN MAX min max abs exp log sqrt tanh erf sin cos floor ceil round
    pow weights workspace
    """.split()
)
# Kinds of names that headers of C, C++, the vendors and our simulators define as types, functions or macros.
_FOREIGN = re.compile(
    r"""(\w+_t | u?int\d* | u?(char|short|long|half|float|double)\d* | u(char|short|int|long)\d* | errno | dim3
    | linux | unix | std | std(in|out|err) | cuvil | hls | sycl | cl | queue | pipe | channel
    | (ap|hls|cl|sycl|cuvil|cuda|cu|cn|cnrt|mlu|bang|hip|pthread|get|read|write|mem|async)_\w*
    | (cuda|cn|thread|block|grid|task|cluster|core|warp)[A-Z]\w*
    | (U?INT|FLT|DBL|LDBL|S?CHAR|UCHAR|U?SHRT|U?LONG|U?LLONG|HUGE|M|FP|FE|E|SIG|EXIT|RAND|SEEK|BUF|AP|HLS|CL|SYCL
       |CUVIL|CUDA|CU|CN|CNRT|MLU|BANG|MAX|MIN|NRAM|SRAM|WRAM|GDRAM)_\w*
    | NAN | EOF | INFINITY | BUFSIZ | TRUE | FALSE | NRAM2\w* | GDRAM2\w* )\Z""",
    re.VERBOSE | re.ASCII,
)
