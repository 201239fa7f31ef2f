"""Why a kernel fills buffers instead of streaming, in words for the report."""

from __future__ import annotations

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Load, Reduce, State
from cuvil_hw.expr.traverse import walk
from cuvil_hw.schedule.kernel import Kernel


def reason(kernel: Kernel) -> str:
    """The first thing that no streaming form has."""
    sources, reduce = kernel.sources, kernel.reduce
    if not sources:
        return "nothing streams in"
    loads = kernel.loads()
    by_data = [n for e in loads for i in e.index for n in walk(i) if isinstance(n, Reduce | State | Load)]
    if any(not isinstance(n, Load) or n.buffer in sources for n in by_data):
        return "data decide which element is read"
    if reduce is None:
        return "its elements come from places that are no nest of loops"
    if reduce.kind.startswith("arg") or len(reduce.update) > 1:
        return "several running values"
    inner = {e for u in reduce.update for e in walk(u) if isinstance(e, Load) and e.buffer in sources}
    if any(e not in inner for e in loads if e.buffer in sources):
        return "a stream is read beside the reduction"
    if len(inner) > 1:
        floats = any(dtypes.is_float(e.dtype) for e in inner)
        return "a product of streams of floats" if floats else "a product of streams that isn't one of matrices"
    return "its window doesn't move along one or two dimensions"
