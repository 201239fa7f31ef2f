"""Kernels without shared memory: one output element per thread, or per warp.

    per thread: for (i = own number; i < all elements of all samples; i += all threads) output[i] = body
    per warp:   the same with warps; lanes take every 32nd step of the reduction and add up by shuffles

With `words`, four steps that read neighbouring bytes are one 8-bit dot product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.dialects import arith, func, gpu
from xdsl.dialects.builtin import DYNAMIC_INDEX, FunctionType, IndexType, MemRefType
from xdsl.ir import Block, Region, SSAValue

from cuvil_hw.adapters.cuda.arch import WARP
from cuvil_hw.adapters.sequential.nest import Lowering, Nest, comment, hoisted, identity, memory_type
from cuvil_hw.adapters.sequential.product import Bytes, Product
from cuvil_hw.expr.nodes import Apply, Expr, Iter, Reduce, State
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import Args, Role, Threads, annotate
from cuvil_hw.lower.emit import Emitter, Env, Tables
from cuvil_hw.schedule.kernel import Buffer, Kernel

SAMPLE = "sample"
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
INDEX = IndexType()


def batched_type(buffer: Buffer) -> MemRefType[Any]:
    """Samples of a buffer side by side; a constant has none."""
    one = memory_type(buffer, tuple(range(buffer.type.rank)))
    return one if buffer.role == "const" else MemRefType(one.element_type, [DYNAMIC_INDEX, *one.get_shape()])


def begin(
    kernel: Kernel, buffers: Mapping[str, Buffer], tables: Tables, layer: int
) -> tuple[Block, dict[str, SSAValue], Emitter]:
    """The block of a kernel's function: arguments are its inputs, its output, and the number of samples."""
    names = [*kernel.inputs, kernel.output]
    block = Block(arg_types=[*(batched_type(buffers[n]) for n in names), INDEX])
    memories: dict[str, SSAValue] = dict(zip(names, block.args[:-1], strict=True))
    return block, memories, Emitter(block, tables, layer)


def finish(kernel: Kernel, block: Block, symbol: str, threads: int) -> func.FuncOp:
    block.add_op(func.ReturnOp())
    op = func.FuncOp(symbol, FunctionType.from_lists([a.type for a in block.args], []), Region(block))
    annotate(op, Role("kernel"), Threads(threads), Args((*kernel.inputs, kernel.output, "samples")), comment(kernel))
    return op


def lower_threads(
    kernel: Kernel, threads: int, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int
) -> func.FuncOp:
    """The function of a kernel with an output per thread."""
    block, memories, emitter = begin(kernel, buffers, tables, layer)
    Elements(kernel, Nest(), buffers, memories, emitter, threads, block.args[-1]).run()
    return finish(kernel, block, symbol, threads)


def lower_warps(
    kernel: Kernel, threads: int, words: Product | None, buffers: Mapping[str, Buffer], tables: Tables, symbol: str,
    layer: int,
) -> func.FuncOp:  # fmt: skip
    """The function of a kernel with an output per warp; `words`: its sum of products, where it reads words of bytes."""
    block, memories, emitter = begin(kernel, buffers, tables, layer)
    Elements(kernel, Nest(), buffers, memories, emitter, threads, block.args[-1]).run_warps(words)
    return finish(kernel, block, symbol, threads)


@dataclass(frozen=True, slots=True)
class Elements(Lowering):
    threads: int
    samples: SSAValue

    def place(self, buffer: Buffer, index: Sequence[SSAValue], env: Env) -> Sequence[SSAValue]:
        return index if buffer.role == "const" else (env.iters[SAMPLE], *index)

    def run(self) -> None:
        def element(i: SSAValue, _: tuple[SSAValue, ...]) -> None:
            iters = self.position(i)
            reduce = self.kernel.reduce
            if reduce is None:
                self.store(self.env(iters))
            else:
                self.tile(reduce, iters, None, 0)

        first, step = self.number(), self.times(self.dim(gpu.GridDimOp), self.threads)
        self.e.loop(self.times(self.samples, self.kernel.type.size), "i", element, start=first, step=step)

    def run_warps(self, words: Product | None) -> None:
        lane = self.e.put(arith.RemUIOp(self.dim(gpu.ThreadIdOp), self.e.const(WARP, "index")), "lane")
        first = self.e.put(arith.DivUIOp(self.number(), self.e.const(WARP, "index")))
        step = self.times(self.dim(gpu.GridDimOp), self.threads // WARP)
        body: Callable[[SSAValue, tuple[SSAValue, ...]], None] = lambda i, _: self._warp(i, lane, words)  # noqa: E731
        self.e.loop(self.times(self.samples, self.kernel.type.size), "i", body, start=first, step=step)

    # -- pieces ------------------------------------------------------------------------------------------------------

    def dim(self, op: Any) -> SSAValue:
        return self.e.put(op(gpu.DimensionAttr(gpu.DimensionEnum.X)))

    def times(self, a: SSAValue, n: int) -> SSAValue:
        return self.e.put(arith.MuliOp(a, self.e.const(n, "index")))

    def number(self) -> SSAValue:
        """Of this thread in the whole grid."""
        block = self.times(self.dim(gpu.BlockIdOp), self.threads)
        return self.e.put(arith.AddiOp(block, self.dim(gpu.ThreadIdOp)))

    def position(self, flat: SSAValue) -> dict[str, SSAValue]:
        """Sample and iterators of an element, from its number among all of all samples."""
        return digits(self.e, flat, self.kernel.iterators, SAMPLE)

    def _warp(self, i: SSAValue, lane: SSAValue, words: Product | None) -> None:
        e, reduce, iters = self.e, self.kernel.reduce, self.position(i)
        assert reduce is not None
        combine, result = COMBINE[reduce.kind], reduce.init[0].dtype
        dtype = "i32" if words else result
        start = identity(reduce.kind, dtype)
        assert start is not None
        acc = e.alloca([], dtype, "acc")
        e.store(e.const(start, dtype), acc)
        if words:
            self._dots(words, iters, lane, acc)
        else:
            self._lane_steps(reduce, iters, lane, acc)
        total = e.load(acc)
        distance = WARP // 2
        while distance:
            other = e.put(level2.ShuffleXorOp(total, e.const(distance, "i32")))
            total = self._apply(dtype, combine, total, other)
            distance //= 2
        last = e.convert(total, dtype, result)

        def first_lane() -> None:
            env = self.env(iters)
            self.store(env, self._apply(result, combine, e.value(reduce.init[0], env), last))

        e.branch(e.compare("eq", lane, e.const(0, "index")), first_lane)

    def _apply(self, dtype: str, op: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.e.value(Apply(dtype, op, (State(dtype, 0), State(dtype, 1))), Env(states=(a, b)))

    def _lane_steps(self, reduce: Reduce, iters: Mapping[str, SSAValue], lane: SSAValue, acc: SSAValue) -> None:
        e = self.e
        guards, update = hoisted(reduce, None)

        def step(r: SSAValue, _: tuple[SSAValue, ...]) -> None:
            env = self.env({**iters, **digits(e, r, reduce.iters)})
            guarded(e, guards, env, lambda: e.store(e.value(update[0], with_states(env, e.load(acc))), acc))

        e.loop(prod(i.extent for i in reduce.iters), "k", step, start=lane, step=WARP)

    def _dots(self, product: Product, iters: Mapping[str, SSAValue], lane: SSAValue, acc: SSAValue) -> None:
        e, reduce = self.e, product.reduce
        words = [*reduce.iters[:-1], Iter("index", "word", reduce.iters[-1].extent // 4, "reduction")]

        def step(r: SSAValue, _: tuple[SSAValue, ...]) -> None:
            where = digits(e, r, words)
            where[reduce.iters[-1].name] = self.times(where.pop("word"), 4)
            env = self.env({**iters, **where})

            def add() -> None:
                sides = [self._word(side, env) for side in (product.left.bytes, product.right.bytes)]
                e.store(dot(e, product, sides[0], sides[1], e.load(acc)), acc)

            guarded(e, product.guards, env, add)

        e.loop(prod(i.extent for i in words), "k", step, start=lane, step=WARP)

    def _word(self, side: Bytes | None, env: Env) -> SSAValue:
        assert side is not None
        e, buffer = self.e, self.buffers[side.load.buffer]
        where = self.place(buffer, [e.value(i, env) for i in side.load.index], env)
        word = e.put(level2.LoadWordOp(self.memories[buffer.name], where))
        return e.put(arith.XOrIOp(word, splat(e, -128))) if side.offset else word


def dot(e: Emitter, product: Product, left: SSAValue, right: SSAValue, acc: SSAValue) -> SSAValue:
    """acc + four products of (byte - byte zero) on both sides; one of the zeros is 0."""
    assert product.left.bytes is not None
    assert product.right.bytes is not None
    value = e.put(level2.Dot4Op(left, right, acc))
    for zero, other in ((product.left.bytes.byte_zero, right), (product.right.bytes.byte_zero, left)):
        if zero == -128:  # its negative is no byte
            value = e.put(level2.Dot4Op(splat(e, 127), other, value))
            value = e.put(level2.Dot4Op(splat(e, 1), other, value))
        elif zero:
            value = e.put(level2.Dot4Op(splat(e, -zero), other, value))
    return value


def splat(e: Emitter, byte: int) -> SSAValue:
    """A word of four equal bytes."""
    word = (byte & 0xFF) * 0x01010101
    return e.const(word - (1 << 32) if word >> 31 else word, "i32")


def digits(e: Emitter, flat: SSAValue, iters: Sequence[Iter], outermost: str = "") -> dict[str, SSAValue]:
    """Mixed-radix digits of a number, last iterator fastest. `outermost`: name of an unbounded digit before them."""
    result: dict[str, SSAValue] = {}
    rest, several = flat, [i for i in iters if i.extent != 1]
    for n, it in enumerate(reversed(several)):
        if n == len(several) - 1 and not outermost:
            result[it.name] = rest
            break
        extent = e.const(it.extent, "index")
        result[it.name] = e.put(arith.RemUIOp(rest, extent), it.name)
        rest = e.put(arith.DivUIOp(rest, extent))
    if outermost:
        result[outermost] = rest
    return {**{i.name: e.const(0, "index") for i in iters if i.extent == 1}, **result}


def guarded(e: Emitter, conditions: Sequence[Expr], env: Env, body: Callable[[], None]) -> None:
    """`if (all conditions) body`."""
    if not conditions:
        body()
        return
    cond = e.value(conditions[0], env)
    for c in conditions[1:]:
        cond = e.put(arith.AndIOp(cond, e.value(c, env)))
    e.branch(cond, body)


def with_states(env: Env, *states: SSAValue) -> Env:
    return Env(env.iters, env.load, env.lookup, env.reduce, states)
