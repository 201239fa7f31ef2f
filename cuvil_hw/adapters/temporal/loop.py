"""The vector unit: what the engine doesn't run, as plain loop nests over the board's memory, one hardware function for
all kernels that compute the same. Slow, and never refused."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from xdsl.dialects import scf
from xdsl.dialects.func import FuncOp

from cuvil_hw import dtypes
from cuvil_hw.adapters.sequential.nest import Nest, apply
from cuvil_hw.adapters.streaming.analysis.cost import float_use, use_product
from cuvil_hw.adapters.streaming.analysis.exact import products
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric, Use, bits, memory
from cuvil_hw.adapters.streaming.analysis.floats import Cores, latency, recurrence
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.adapters.temporal.memory import padded
from cuvil_hw.expr.nodes import Apply, Load, Lookup
from cuvil_hw.expr.scalar import column
from cuvil_hw.expr.traverse import walk
from cuvil_hw.ir.annotations import Pipeline, annotate
from cuvil_hw.lower.emit import Tables
from cuvil_hw.schedule.kernel import Buffer, Kernel

# Nominal cycles of one element that is read or written by itself: 16 requests under way, 64 cycles each.
ACCESS_CYCLES = 4
_DRAIN_CYCLES = 80  # between one run of the innermost loop and the next


def lowered(
    kernel: Kernel, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int, cores: Cores
) -> FuncOp:
    """The function @symbol of role "kernel" on padded buffers, channels last; innermost loops at their interval."""
    names = (*kernel.inputs, kernel.output)
    placed = {**buffers, **{n: padded(buffers[n]) for n in names}}
    layouts = {n: physical(buffers[n].type.rank) for n in names if buffers[n].role != "const"}
    made = apply(kernel, Nest(layouts=layouts), placed, tables, symbol, layer)
    for op in made.walk():
        if isinstance(op, scf.ForOp) and not any(isinstance(o, scf.ForOp) for o in op.body.walk()):
            annotate(op, Pipeline(_interval(kernel, cores)))
    return made


def cycles(kernel: Kernel, cores: Cores) -> int:
    """Of the innermost loops and of what lies around them."""
    inner = prod(i.extent for i in kernel.reduction_iters)
    return kernel.type.size * inner * _interval(kernel, cores) + around(kernel, cores)


def around(kernel: Kernel, cores: Cores) -> int:
    """Cycles outside of the innermost loops: accesses, the pipeline that runs empty."""
    if kernel.reduce is None:
        return _DRAIN_CYCLES
    after = len(kernel.loads()) - len(_within(kernel)) + 1
    return kernel.type.size * (after * ACCESS_CYCLES + latency(kernel.body, cores) + _DRAIN_CYCLES)


def _interval(kernel: Kernel, cores: Cores) -> int:
    """Of the innermost loop: loads and stores share one port, and a running sum of floats waits for its adder."""
    if kernel.reduce is None:
        return ACCESS_CYCLES * (len(kernel.loads()) + 1)
    return max(1, ACCESS_CYCLES * len(_within(kernel)), recurrence(kernel.reduce, cores))


def _within(kernel: Kernel) -> set[Load]:
    """Loads of a step of the sum."""
    return {e for u in kernel.reduce.update for e in walk(u) if isinstance(e, Load)} if kernel.reduce else set()


def use_of(kernel: Kernel, fabric: Fabric) -> Use:
    """One of each operator, its tables, counters and a port's share."""
    nodes = list(walk(kernel.body))
    use = Use(lut=800.0 + 150 * len(kernel.inputs), ff=900.0 + 150 * len(kernel.inputs))
    float_use(use, nodes, fabric, 1)
    for multiplication in products(nodes, {}):
        use_product(use, multiplication, fabric, 1, "dsp")
    for n in nodes:
        match n:
            case Lookup():
                memory(use, fabric, len(n.values), bits(n.dtype))
            case Apply() if any(dtypes.is_float(e.dtype) for e in (n, *n.args)):
                pass  # counted above
            case Apply() if "index" in (n.dtype, n.args[0].dtype):
                use.lut += 32  # an address or a bound
            case Apply():
                match column(n.op, "logic", "an FPGA's integers"):
                    case "product":
                        pass  # counted above
                    case "divider":
                        use.lut += bits(n.dtype) * (bits(n.dtype) + 4)
                    case _:
                        use.lut += 1.1 * bits(n.args[0].dtype)
                        use.ff += bits(n.dtype)
    return use
