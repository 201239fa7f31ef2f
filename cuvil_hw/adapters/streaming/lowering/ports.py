"""Ports in the host's memory: AXI4-Stream ports of a streaming design become processes over memories, at level2.

For languages whose kernels see the host's memory (OpenCL, SYCL). Each process then handles `samples` samples of one
call, one after the other; the memories hold them one behind the other, every element in its container.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, FunctionType, IndexType, IntegerType, MemRefType, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import Args, Comment, Name, Port, Role, annotate, noted, text_of
from cuvil_hw.ir.level2 import AxisReadOp, AxisWriteOp, StreamOp, StreamType
from cuvil_hw.lower.emit import Emitter, Tables
from cuvil_hw.render.c.names import Names

_HELD = (arith.ConstantOp, memref.GetGlobalOp, memref.AllocaOp)


def memory_ports(module: ModuleOp) -> ModuleOp:
    """Rewrite a module of `dataflow.lower` in place: every function takes `samples` first, ports are memories."""
    functions = [op for op in module.body.block.ops if isinstance(op, func.FuncOp)]
    top = next((f for f in functions if text_of(f, Role) == "dataflow"), None)
    if top is None:
        raise CuvilError("the module has no function of role dataflow; lower it with dataflow.lower")
    for f in functions:
        if f is not top:
            _repeat(f)
    old = top.body.block
    names = Names(frozenset(f.sym_name.data for f in functions))
    calls: list[tuple[str, list[SSAValue]]] = []
    dtype_of: dict[SSAValue, str] = {}
    made = []
    for op in old.ops:
        if isinstance(op, AxisReadOp | AxisWriteOp):
            reads = isinstance(op, AxisReadOp)
            name = names.new(f"{'read' if reads else 'write'}_{op.port.name_hint}")  # hints lose a number at their end
            made.append(_port(name, op, reads))
            dtype_of[op.port] = op.dtype.data
            calls.append((name, [op.port, op.stream]))
        elif isinstance(op, func.CallOp):
            calls.append((op.callee.root_reference.data, list(op.arguments)))
    kinds = [IndexType(), *(_memory(dtype_of[a]) for a in old.args)]
    block = Block(arg_types=kinds)
    block.args[0].name_hint = "samples"
    values: dict[SSAValue, SSAValue] = {}
    for new, arg in zip(block.args[1:], old.args, strict=True):
        new.name_hint = arg.name_hint
        values[arg] = new
    for op in list(old.ops):
        if isinstance(op, StreamOp):
            op.detach()  # type: ignore[no-untyped-call]
            block.add_op(op)
    for name, args in calls:
        block.add_op(func.CallOp(name, [block.args[0], *(values.get(a, a) for a in args)], []))
    block.add_op(func.ReturnOp())
    new_top = func.FuncOp(top.sym_name.data, FunctionType.from_lists(kinds, []), Region(block))
    new_top.attributes.update(top.attributes)
    said = noted(top, Args)
    if said is not None:
        annotate(new_top, Args(("samples", *said.data)))
    top.detach()  # type: ignore[no-untyped-call]
    top.erase(safe_erase=False)
    for f in (*made, new_top):
        module.body.block.add_op(f)
    return module


def _container(dtype: str) -> Any:
    return level2.signless(dtype) if dtypes.is_float(dtype) else IntegerType(8 * dtypes.to_numpy(dtype).itemsize)


def _memory(dtype: str) -> MemRefType[Any]:
    return MemRefType(_container(dtype), [DYNAMIC_INDEX])


def _repeat(f: func.FuncOp) -> None:
    """Run the body of a process once per sample. Its memories stay outside: each sample writes before it reads. So do
    the first values of registers, to which they return by the end of a sample."""
    block = f.body.block
    samples = block.insert_arg(IndexType(), 0)
    samples.name_hint = "samples"
    inner = Block(arg_types=[IndexType()])
    held: list[Operation] = []
    for op in list(block.ops):
        if isinstance(op, _HELD) or (isinstance(op, memref.StoreOp) and not op.indices):
            held.append(op)
        elif not isinstance(op, func.ReturnOp):
            op.detach()  # type: ignore[no-untyped-call]
            inner.add_op(op)
    inner.add_op(scf.YieldOp())
    zero, one = arith.ConstantOp.from_int_and_width(0, IndexType()), arith.ConstantOp.from_int_and_width(1, IndexType())
    loop = scf.ForOp(zero, samples, one, [], Region(inner))
    annotate(loop, Name("sample"))
    end = block.last_op
    assert end is not None
    block.insert_ops_before([zero, one, loop], end)
    f.update_function_type()  # type: ignore[no-untyped-call]


def _port(name: str, op: AxisReadOp | AxisWriteOp, reads: bool) -> func.FuncOp:
    stream, dtype, count = op.stream.type, op.dtype.data, op.count.value.data
    assert isinstance(stream, StreamType)
    lanes = stream.lanes.data
    kinds = [IndexType(), _memory(dtype), stream]
    block = Block(arg_types=kinds)
    hints = ("samples", op.port.name_hint or "port", "out" if reads else "in")
    for arg, hint in zip(block.args, hints, strict=True):
        arg.name_hint = hint
    samples, memory, fifo = block.args
    e = Emitter(block, Tables(ConstantStore()))
    word = e.alloca((lanes,), dtype, "word", word=True)
    narrow, wide = level2.signless(dtype), _container(dtype)

    def lane(place: SSAValue, at: Callable[[SSAValue], SSAValue]) -> Callable[[SSAValue, Any], None]:
        """`place`: of the word's first element in its tensor, whose last word may be filled in part."""

        def one(i: SSAValue, _: Any) -> None:
            if not count % lanes:
                move(i)
                return
            there = e.compare("lt", e.put(arith.AddiOp(place, i)), e.const(count, "index"))
            e.branch(there, lambda: move(i), (lambda: e.store(e.const(0, dtype), word, i)) if reads else None)

        def move(i: SSAValue) -> None:
            value = e.load(memory, at(i)) if reads else e.load(word, i)
            if narrow != wide:
                value = e.put(_resized(value, narrow, wide, dtype, reads))
            if reads:
                e.store(value, word, i)
            else:
                e.store(value, memory, at(i))

        return one

    def step(sample: SSAValue, n: SSAValue) -> None:
        base = e.put(arith.MuliOp(sample, e.const(count, "index")))
        place = e.put(arith.MuliOp(n, e.const(lanes, "index")))
        start = e.put(arith.AddiOp(base, place))
        if not reads:
            e.do(level2.StreamReadOp(fifo, word))
        e.loop(lanes, "l", lane(place, lambda i: e.put(arith.AddiOp(start, i))), unroll=True)
        if reads:
            e.do(level2.StreamWriteOp(fifo, word))

    def sample(i: SSAValue, _: Any) -> None:
        e.loop(-(-count // lanes), "n", lambda n, _: step(i, n), pipeline=1)

    e.loop(samples, "sample", sample)
    e.do(func.ReturnOp())
    f = func.FuncOp(name, FunctionType.from_lists(kinds, []), Region(block))
    comment = Comment(f"{count} {dtype} {'from' if reads else 'to'} the host's memory")
    annotate(f, Role("process"), Port(), comment)
    return f


def _resized(value: SSAValue, narrow: Any, wide: Any, dtype: str, reads: bool) -> Operation:
    """Spare high bits of a container are ignored on the way in; on the way out they follow the sign."""
    if reads:
        return arith.TruncIOp(value, narrow)
    width = dtypes.int_width(dtype)
    signed = width is not None and width[0]
    return arith.ExtSIOp(value, wide) if signed else arith.ExtUIOp(value, wide)
