"""Analytic time of a kernel on a CPU core. It ranks schedules and tells orders of magnitude; it is no measurement."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from cuvil_hw import dtypes
from cuvil_hw.expr.scalar import CallCost, column
from cuvil_hw.schedule.kernel import Kernel
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import Profile

_LATENCY = 4.0  # of a dependent addition
_PIPES = 2.0
# Where the compiler's vectoriser keeps accumulators in memory: measured, half the speed of registers.
_THROUGH_MEMORY = 2.0
VECTOR_BITS = {"x86-64": 128, "x86-64-v2": 128, "x86-64-v3": 256, "x86-64-v4": 512}


def vector_bits(profile: Profile) -> int:
    """Bits of a vector register."""
    return VECTOR_BITS.get(profile.setting("march", ""), 128)


def vector_registers(profile: Profile) -> int:
    """How many a function may use: 32 with AVX-512 and on AArch64, 16 elsewhere."""
    march = profile.setting("march", "")
    return 32 if march == "x86-64-v4" or march.startswith("armv8") else 16


def estimate(kernel: Kernel, vector: str, lanes: int, profile: Profile) -> Estimate:
    """Cycles of the arithmetic of plain loops, with as many of the `lanes` at once as the machine's registers allow."""
    bits = vector_bits(profile)
    reduce = kernel.reduce
    width = max(1, bits // (8 * dtypes.to_numpy(reduce.dtype if reduce else kernel.type.dtype).itemsize))
    if reduce is None:
        lanes, waste, stall = min(width, max(kernel.type.size, 1)), 1.0, 1.0
    else:
        extent = next((i.extent for i in kernel.iterators if i.name == vector), 1)
        tile = max(1, min(lanes, extent))
        lanes = min(tile, width)
        # The last vector of a tile may be partly empty; one accumulator waits for itself, independent ones overlap.
        vectors = -(-tile // lanes)
        waste = vectors * lanes / tile
        stall = _THROUGH_MEMORY * max(1.0, _LATENCY * _PIPES / vectors)
    cycles = kernel.type.size / lanes
    for (op, _), count in kernel.op_counts().items():
        cost = column(op, "cpu", "a CPU")
        cycles += cost.cycles * count if isinstance(cost, CallCost) else cost * count / lanes / _PIPES * stall * waste
    return Estimate(seconds=cycles / profile.clock_hz, cycles=max(1, round(cycles)))


def of_tile(
    kernel: Kernel,
    extent: int,
    width: int,
    vectors: int,
    rows: Sequence[tuple[int, int]],
    pairs: bool,
    profile: Profile,
) -> Estimate:
    """Cycles of sums in tiles of registers over `extent` lanes: (rows of a tile, tiles)."""
    steps = prod(i.extent for i in kernel.reduction_iters) / (1 + pairs)
    done = sum(r * n for r, n in rows)
    others = kernel.type.size / max(done * extent, 1)
    lanes = width * vectors
    tiles = extent // lanes * [vectors] + ([-(-extent % lanes // width)] if extent % lanes else [])
    cycles = 0.0
    for side in tiles:
        for many, number in rows:
            # A step loads its vectors and a number a row, two loads a cycle, beside two products and sums.
            step = max(_LATENCY, many * side / _PIPES, (many + side) / _PIPES)
            cycles += number * (steps * step + many * side * 2 + _LATENCY)
    return Estimate(seconds=cycles * others / profile.clock_hz, cycles=max(1, round(cycles * others)))
