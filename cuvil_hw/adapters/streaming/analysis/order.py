"""In which order each tensor of a design streams: as its producer makes it, so that consumers follow where they can.

Channels last, as convolutions read images, unless something else takes fewer memories: features last for [B, T, C].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cuvil_hw.adapters.streaming.analysis.classify import classify
from cuvil_hw.adapters.streaming.analysis.operand import Order
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.schedule.kernel import KernelGraph


def stream_orders(graph: KernelGraph) -> dict[str, Order]:
    """The dimensions of each tensor that isn't constant, outermost first. What comes through a port may come in either
    order."""
    inputs = {name: physical(graph.buffers[name].type.rank) for name in graph.inputs}
    best, orders = _followed(graph, inputs)
    for name, known in inputs.items():
        shape = graph.buffers[name].type.shape
        natural = tuple(range(len(shape)))
        if best > (0, 0) and [d for d in known if shape[d] > 1] != [d for d in natural if shape[d] > 1]:
            cost, other = _followed(graph, {**inputs, name: natural})
            if cost < best:
                best, orders = cost, other
                inputs = {**inputs, name: natural}
    return orders


def whole_ports(graph: KernelGraph) -> frozenset[str]:
    """Tensors of which all that a port moves is one stream between it and one kernel: its last word may be filled in
    part."""
    readers = Counter(s for k in graph.kernels for s in k.sources)
    return frozenset([*(n for n in graph.inputs if readers[n] == 1), *(n for n in graph.outputs if not readers[n])])


def _followed(graph: KernelGraph, inputs: Mapping[str, Order]) -> tuple[tuple[int, int], dict[str, Order]]:
    """The order of every tensor for given ones of the inputs; before it how many kernels fill a buffer, and how many
    elements pass through memories that reorder them."""
    orders, ends = dict(inputs), whole_ports(graph)
    buffered = stored = 0
    for kernel in graph.kernels:
        stage = classify(kernel, None, orders, graph.constants, ends)
        orders[kernel.output] = stage.order
        buffered += stage.kind == "buffered"
        stored += _stored(stage)
    return (buffered, stored), orders


def _stored(stage: Stage) -> int:
    return sum(o.read for o in stage.operands if o.stored and not o.again)
