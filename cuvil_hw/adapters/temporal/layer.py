"""Which kernels the shared engine runs, and as what: convolutions (also linear layers and pools) and sums of maps."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.classify import classify
from cuvil_hw.adapters.streaming.analysis.stage import Stage, WindowDim, channels
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.adapters.temporal.requantized import Reader, Requantized
from cuvil_hw.contract.device import Array
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Reduce, State
from cuvil_hw.schedule.kernel import Kernel, KernelGraph

Kind = Literal["dense", "depthwise", "largest"]


@dataclass(frozen=True, slots=True)
class WeightArray:
    """A constant (output channels, taps…, input channels), less `zero`: the dimensions of `digest`'s array in `order`.
    `digest` is "" where all are 1."""

    digest: str
    order: tuple[int, ...]
    zero: int = 0


@dataclass(frozen=True)
class Convolution:
    """target[y, x, o] = requantized(Σ weights[o, ky, kx, c]·(source[…] - zero)). `rows`, `cols`: the window along both
    dimensions; `fill`: source less zero point outside; `weights`: None for "largest"."""

    kernel: Kernel = field(repr=False)
    kind: Kind
    source: str
    rows: WindowDim
    cols: WindowDim
    channels_in: int
    channels_out: int
    zero: int
    fill: int
    weights: WeightArray | None
    finish: Requantized = field(repr=False)

    @property
    def numbers(self) -> Hashable:
        """All that decides about time: layers for which it is equal take as long."""
        dtypes_ = self.kernel.operand(self.source).type.dtype, self.kernel.type.dtype
        shape = self.kind, self.rows, self.cols, self.channels_in, self.channels_out
        return shape, dtypes_, self.weights is None, bool(self.finish.table)


@dataclass(frozen=True)
class Sum:
    """target = requantized(first·factor + second·factor + offset), element by element; `second` may be missing."""

    kernel: Kernel = field(repr=False)
    sources: tuple[str, ...]
    finish: Requantized = field(repr=False)


def layer_of(kernel: Kernel, graph: KernelGraph) -> Convolution | Sum | str:
    """What the engine runs, or why it doesn't."""
    if not kernel.type.rank or not kernel.type.size:
        return "no channels"
    channel = kernel.iterators[physical(kernel.type.rank)[-1]]
    reader = Reader(graph, channel if channel.extent > 1 else None)
    stage = classify(reader.without_table(kernel))
    if stage.kind == "buffered" or not stage.plain or stage.order != physical(kernel.type.rank):
        return "its input isn't read in windows"
    if any(dtypes.is_float(b.type.dtype) for b in (*kernel.operands,)) or dtypes.is_float(kernel.type.dtype):
        return "floats"
    if any(dtypes.record(kernel.operand(s).type.dtype).bits > 8 for s in kernel.sources):
        return "inputs of more than 8 bits"
    finish = reader.requantized(kernel.body)
    if finish is None:
        return "what follows its sums is more than a rescale, a clip and a table"
    if not -(1 << 31) <= finish.low <= finish.high < 1 << 31:
        return "results of more than 32 bits"
    return _sum(kernel, finish) if stage.kind == "map" else _convolution(kernel, stage, finish, reader)


def _sum(kernel: Kernel, finish: Requantized) -> Sum | str:
    if not all(isinstance(t, Load) for t in finish.terms) or len(finish.terms) > 2:
        return "elementwise, but no sum of two scaled maps"
    if any(f.ndim for f in (*finish.factors, finish.offset, finish.shift)):
        return "elementwise with numbers of each channel"
    if dtypes.to_numpy(kernel.type.dtype).itemsize != 1:
        return "elementwise with results of more than 8 bits"
    return Sum(kernel, tuple(t.buffer for t in finish.terms if isinstance(t, Load)), finish)


def _convolution(kernel: Kernel, stage: Stage, finish: Requantized, reader: Reader) -> Convolution | str:
    reduce = kernel.reduce
    if finish.terms != (reduce,) or reduce is None or stage.term is None:
        return "its sums are used twice"
    made = _term(stage.term, reduce, stage, reader)
    if made is None:
        return "its sum isn't one of products of bytes"
    kind, zero, weights = made
    init = reader.linear(reduce.init[0])
    if init is None or init.factors:
        return "its sum starts at a computed value"
    moving = [d for d in stage.dims if not d.unit]
    rows, cols = [WindowDim(1, 1)] * (2 - len(moving)) + moving
    fill = int(stage.pad_value) - zero
    if kind == "largest":
        if init.high > -256 and init.high > dtypes.int_range(kernel.operand(kernel.sources[0]).type.dtype)[0] - zero:
            return "its maximum starts above the least value"
        fill = max(fill, -256)  # padding is the least value: no byte less its zero point is below
    else:
        offset = finish.offset + init.offset * finish.factors[0]
        finish = Requantized(finish.terms, finish.factors, offset, *_rest(finish))
    if not -256 <= fill < 256:
        return "its padding isn't a byte"
    source = kernel.sources[0]
    ends = channels(kernel.operand(source).type), channels(kernel.type)
    return Convolution(kernel, kind, source, rows, cols, *ends, zero, fill, weights, finish)


def _rest(f: Requantized) -> tuple[Array, bool, int, int, int, tuple[int, ...]]:
    return f.shift, f.even, f.zero, f.low, f.high, f.table


def _term(update: Expr, reduce: Reduce, stage: Stage, reader: Reader) -> tuple[Kind, int, WeightArray | None] | None:
    """(kind, zero point of the source, weights) of one step of the sum."""
    match update:
        case Apply(op="max", args=(State(), term)) if stage.kind == "depthwise":
            zero = _byte(term, reader)
            return None if zero is None else ("largest", zero, None)
        case Apply(op="add", args=(State(), Apply(op="mul", args=(a, b)))):
            for x, w in ((a, b), (b, a)):
                weights = _weights(w, stage, reader)
                if weights is not None and (zero := _byte(x, reader)) is not None:
                    return ("dense" if stage.kind == "dense" else "depthwise"), zero, weights
        case Apply(op="add", args=(State(), term)) if stage.kind == "depthwise":
            zero = _byte(term, reader)
            return None if zero is None else ("depthwise", zero, WeightArray("", ()))
    return None


def _byte(e: Expr, reader: Reader) -> int | None:
    """z of load - z, where that fits nine bits."""
    made = reader.linear(e)
    if made is None or len(made.factors) != 1 or made.offset.ndim:
        return None
    ((term, factor),) = made.factors.items()
    if not isinstance(term, Load) or factor.ndim or int(factor) != 1:
        return None
    return -int(made.offset) if made.low >= -256 and made.high < 256 else None


def _weights(e: Expr, stage: Stage, reader: Reader) -> WeightArray | None:
    """Where the constant lies: every dimension is indexed by one iterator, or has one element."""
    zero = 0
    match e:
        case Apply(op="sub", args=(inner, Const(value=value))):
            e, zero = inner, int(value)
    load = e.args[0] if isinstance(e, Apply) and e.op == "cast" else e
    if not isinstance(load, Load) or reader.graph.buffers[load.buffer].role != "const":
        return None
    array = reader.graph.constant(load.buffer).astype(np.int64) - zero
    if not dtypes.is_int(load.dtype) or array.min() < -128 or array.max() > 127:
        return None
    dims: dict[Iter, int] = {}
    spare = []
    for d, i in enumerate(load.index):
        if isinstance(i, Iter) and i not in dims and i.extent == array.shape[d]:
            dims[i] = d
        elif isinstance(i, Const) and array.shape[d] == 1:
            spare.append(d)
        else:
            return None
    channel = reader.channel
    wanted = [channel, *(t for t in stage.taps if t is not None and t.extent > 1), stage.channel]
    order = [dims.pop(i) for i in wanted if i is not None and i in dims]
    expected = channels(stage.kernel.type) * stage.tap_count * (stage.channels_in if stage.kind == "dense" else 1)
    if dims or prod(array.shape) != expected:
        return None
    return WeightArray(reader.graph.buffers[load.buffer].digest, (*order, *spare), zero)
