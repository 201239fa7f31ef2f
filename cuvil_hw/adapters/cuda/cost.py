"""Analytic time and use of a kernel on a GPU, for one sample. It ranks schedules; it is no measurement."""

from __future__ import annotations

from math import prod

from cuvil_hw.adapters.cuda.arch import WARP
from cuvil_hw.adapters.cuda.tile import Sizes
from cuvil_hw.adapters.sequential.product import MatrixProduct
from cuvil_hw.dtypes import to_numpy
from cuvil_hw.expr.nodes import affine
from cuvil_hw.expr.scalar import column
from cuvil_hw.expr.traverse import walk
from cuvil_hw.schedule.kernel import Kernel
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import Profile

_LOAD = 4.0  # in additions: loads and stores go through a quarter of the lanes
_LAUNCH_S = 2e-6  # between kernels of one graph, as published for graph replay
_BARRIER_CYCLES = 40.0
_LATENCY_CYCLES = 30.0  # of a step of a reduction that waits for its loads, when they hit a cache
_STRIDED = 4.0  # more lines of memory for lanes that read far from one another
_REGISTERS = 32.0  # addresses, counters, epilogue
# Threads that hide latency, of those that fit an SM.
_ENOUGH = 0.5


# Lane cycles in all, threads in all, and use of `shared`, `registers` and `threads` by a block.
Work = tuple[float, float, dict[str, float]]


def estimate(kernel: Kernel, work_of: Work, profile: Profile) -> Estimate:
    """Seconds, cycles of the core clock, and use."""
    work, threads, use = work_of
    sms, lanes = profile.setting("sms", 1), profile.setting("lanes_per_sm", 64)
    resident = profile.setting("threads_per_sm", 1024) * sms
    share = min(1.0, max(threads, 1.0) / (resident * _ENOUGH))
    cycles = work / (sms * lanes * share)
    moved = (_bytes(kernel) / (profile.setting("bandwidth_gb_s", 100) * 1e9)) * profile.clock_hz
    total = max(cycles, moved) + _LAUNCH_S * profile.clock_hz
    return Estimate(total / profile.clock_hz, max(1, round(total)), use)


def _weight(op: str) -> float:
    """Lane cycles of one operation."""
    return float(column(op, "gpu", "a GPU"))


def _epilogue(kernel: Kernel) -> float:
    """Lane cycles of what is computed once per output."""
    reduce = kernel.reduce
    steps = prod(i.extent for i in kernel.reduction_iters) if reduce else 1
    counts = kernel.op_counts().items()
    once = [(op, n) for (op, _), n in counts if not reduce or n < kernel.type.size * max(steps, 1)]
    return kernel.type.size * _LOAD + sum(_weight(op) * n for op, n in once)


def threads(kernel: Kernel, block: int) -> Work:
    """An output per thread, `block` threads of a block."""
    work = kernel.type.size * _LOAD + sum(_weight(op) * n for (op, _), n in kernel.op_counts().items())
    steps = prod(i.extent for i in kernel.reduction_iters)
    loads = max(len(kernel.loads()), 1)
    work += kernel.type.size * steps * loads * _LOAD
    if kernel.reduce is not None:
        work += kernel.type.size * steps * _LATENCY_CYCLES / 8
    return work, float(kernel.type.size), {"shared": 0.0, "registers": _REGISTERS, "threads": float(block)}


def warps(kernel: Kernel, block: int, words: bool) -> Work:
    """An output per warp; `words`: four products at once."""
    work, outputs, use = threads(kernel, block)
    if words:
        work /= 3.0
    elif not _coalesced(kernel):
        work *= _STRIDED
    steps = prod(i.extent for i in kernel.reduction_iters)
    waste = -(-steps // WARP) * WARP / max(steps, 1)
    return work * waste + kernel.type.size * WARP * 5 * _LOAD, outputs * WARP, use


def _coalesced(kernel: Kernel) -> bool:
    """Do neighbouring lanes, which take neighbouring steps, read neighbouring elements?"""
    inner = kernel.reduction_iters[-1:]
    reads = [load.index for load in kernel.loads()]
    moving = [index[-1] for index in reads if any(i in walk(x) for x in index for i in inner)]
    return all(affine(last)[0].get(i) == 1 for last in moving for i in inner)


def tiles(kernel: Kernel, shape: MatrixProduct, s: Sizes) -> Work:
    """A sum of products by tiles."""
    across, down = -(-shape.columns.extent // s.columns), -(-shape.rows.extent // s.rows)
    tiles = across * down * prod(i.extent for i in shape.batch)
    chunks = -(-shape.steps // s.k)
    per_step = s.row_each * s.column_each + (s.row_each + s.column_each) * _LOAD
    if s.dot4:
        sides = (shape.product.left.bytes, shape.product.right.bytes)
        corrected = any(side is not None and side.byte_zero for side in sides)
        per_step = (per_step + (s.row_each * s.column_each if corrected else 0)) / 4
    staging = (s.rows + s.columns) * s.k / s.threads * (2 * _LOAD + 12)
    per_thread = chunks * (s.k * per_step + staging + 2 * _BARRIER_CYCLES)
    work = tiles * s.threads * per_thread + _epilogue(kernel)
    use = {
        "shared": float(shared_bytes(shape, s)),
        "registers": _REGISTERS + s.row_each * s.column_each + s.row_each + s.column_each,
        "threads": float(s.threads),
    }
    return work, float(tiles * s.threads), use


def shared_bytes(shape: MatrixProduct, s: Sizes) -> int:
    """Shared memory of one block, in bytes."""
    element = 1 if s.dot4 else to_numpy(shape.product.left.value.dtype).itemsize
    return (s.rows + s.columns) * s.pitch * element


def _bytes(kernel: Kernel) -> float:
    """Bytes that must come from and go to memory at least once."""
    types = [*(b.type for b in kernel.operands), kernel.type]
    return float(sum(t.size * to_numpy(t.dtype).itemsize for t in types))
