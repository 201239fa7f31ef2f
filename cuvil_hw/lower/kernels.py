"""From a fused program to kernels: each group's ops are composed into one expression."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
from xdsl.ir import SSAValue

from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Expr, Iter, Load, Reduce, Tensor, Whole, const, index, parallel, placeholder
from cuvil_hw.expr.radix import split_iterators
from cuvil_hw.expr.traverse import substitute, walk
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.base import compute
from cuvil_hw.schedule.kernel import Buffer, Kernel, KernelGraph
from cuvil_hw.types import TensorType


def kernel_graph(program: Program) -> KernelGraph:
    """The kernels of a program whose every op sits in a group (passes/fuse.py). Raises CuvilError otherwise."""
    names = _Names()
    buffers: dict[str, Buffer] = {}
    tensors: dict[SSAValue, Tensor] = {}
    where: dict[SSAValue, str] = {}

    def declare(value: SSAValue, hint: str, role: str, digest: str = "") -> str:
        name = names.new(hint)
        buffers[name] = Buffer(name, level1.type_of(value), role, digest)
        where[value], tensors[value] = name, placeholder(name, buffers[name].type)
        return name

    inputs = tuple(
        declare(arg, name, "input") for arg, (name, _) in zip(program.block.args, program.inputs, strict=True)
    )
    kernels: list[Kernel] = []
    result_names = [name for name, _ in program.outputs]
    returned = list(program.block.last_op.operands) if program.block.last_op else []
    for operation in program.ops():
        match operation:
            case level1.ConstOp(handle=None):
                kind = level1.type_of(operation.results[0])
                tensors[operation.results[0]] = Tensor(kind, _constant(level1.splat_value(operation), kind.dtype))
            case level1.ConstOp():
                assert operation.handle is not None
                declare(operation.results[0], "c", "const", operation.handle.data)
            case level1.GroupOp():
                for value in operation.operands if _whole(operation) else ():
                    if value not in where:  # a splat: an op that is computed whole reads buffers
                        array = np.full(tensors[value].shape, level1.splat_value(value.owner))  # type: ignore[arg-type]
                        declare(value, "c", "const", program.constants.add(array, tensors[value].dtype))
                tensor = _compose(operation, [tensors[v] for v in operation.operands])
                result = operation.results[0]
                role = "output" if result in returned else "temp"
                label = names.new(operation.label.data)
                out = declare(
                    result, result_names[returned.index(result)] if role == "output" else f"{label}_out", role
                )
                ops = tuple(o.spec.mnemonic for o in operation.body.block.ops if isinstance(o, level1.TensorOp))
                kernels.append(_kernel(label, out, tensor, ops, level1.loc_of(operation), buffers))
            case level1.TensorOp():
                raise CuvilError(f"{operation.spec.mnemonic} at {level1.loc_of(operation)} is in no fusion group")
    outputs: list[str] = []
    for value, name in zip(returned, result_names, strict=True):
        made = where.get(value)
        if made is not None and buffers[made].role == "output" and made not in outputs:
            outputs.append(made)
            continue
        out = names.new(name)  # an input, a constant or a repeated value is returned: copy it
        buffers[out] = Buffer(out, level1.type_of(value), "output")
        kernels.append(_kernel(f"copy_{out}", out, tensors[value], ("identity",), "", buffers))
        outputs.append(out)
    return KernelGraph(program.name, buffers, tuple(kernels), inputs, tuple(outputs), program.constants)


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
    body = split_iterators(substitute(body, units) if units else body)
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
