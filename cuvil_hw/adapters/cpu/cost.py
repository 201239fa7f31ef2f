"""Analytic time of a kernel on a CPU core. It ranks schedules and tells orders of magnitude; it is no measurement."""

from __future__ import annotations

from cuvil_hw import dtypes
from cuvil_hw.adapters.cpu.layout import vectorizable
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


def estimate(kernel: Kernel, lanes: int, profile: Profile, rows: int = 0, inside: float = 0.0) -> Estimate:
    """Cycles of the arithmetic, with as many of the `lanes` at once as the machine's registers allow. `rows`: of a tile
    in registers, where a share `inside` of the work is done (0: without such tiles)."""
    bits = vector_bits(profile)
    reduce = kernel.reduce
    width = max(1, bits // (8 * dtypes.to_numpy(reduce.dtype if reduce else kernel.type.dtype).itemsize))
    if reduce is None:
        lanes, waste, stall = min(width, max(kernel.type.size, 1)), 1.0, 1.0
    else:
        extent = max((i.extent for i in vectorizable(kernel)), default=1)
        tile = max(1, min(lanes, extent))
        lanes = min(tile, width)
        # The last vector of a tile may be partly empty; one accumulator waits for itself, independent ones overlap.
        vectors = -(-tile // lanes)
        waste = vectors * lanes / tile
        alone = _THROUGH_MEMORY * max(1.0, _LATENCY * _PIPES / vectors)
        # A step loads its vectors and a number a row, two loads a cycle, beside a product and a sum for each register.
        loads = (rows + vectors) / (2 * rows * vectors) if rows else 0.0
        together = max(1.0, _LATENCY * _PIPES / (max(rows, 1) * vectors), loads)
        stall = inside * together + (1 - inside) * alone
    cycles = kernel.type.size / lanes
    for (op, _), count in kernel.op_counts().items():
        cost = column(op, "cpu", "a CPU")
        cycles += cost.cycles * count if isinstance(cost, CallCost) else cost * count / lanes / _PIPES * stall * waste
    return Estimate(seconds=cycles / profile.clock_hz, cycles=max(1, round(cycles)))
