"""Analytic time of a kernel on a CPU core. It ranks schedules and tells orders of magnitude; it is no measurement."""

from __future__ import annotations

from cuvil_hw import dtypes
from cuvil_hw.adapters.cpu.layout import vectorizable
from cuvil_hw.profile import Profile
from cuvil_hw.schedule.kernel import Kernel
from cuvil_hw.schedule.space import Estimate, Schedule

# Cycles of one scalar operation, reciprocal throughput. Order of magnitude of the tables that Agner Fog publishes for
# cores with two vector pipes; calls into the C library as measured for glibc's scalar functions.
_CYCLES = {"div": 4.0, "rem": 8.0, "floordiv": 8.0, "mod": 8.0, "sqrt": 5.0}
_CALLS = {"exp": 20.0, "log": 20.0, "tanh": 30.0, "erf": 30.0, "sin": 25.0, "cos": 25.0, "pow": 40.0, "sigmoid": 25.0}
_LATENCY = 4.0  # of a dependent addition
_PIPES = 2.0
VECTOR_BITS = {"x86-64": 128, "x86-64-v2": 128, "x86-64-v3": 256, "x86-64-v4": 512}


def estimate(kernel: Kernel, schedule: Schedule, profile: Profile) -> Estimate:
    """Cycles of the arithmetic, with as many lanes as the schedule and the machine's registers allow."""
    bits = VECTOR_BITS.get(profile.setting("march", ""), 128)
    element = 8 * dtypes.to_numpy(kernel.reduce.dtype if kernel.reduce else kernel.type.dtype).itemsize
    wanted = int(schedule.option("lanes", "1"))
    extents = [i.extent for i in vectorizable(kernel)] if kernel.reduce else [kernel.type.size]
    lanes = min(wanted, max(extents, default=1)) if kernel.reduce else max(extents, default=1)
    width = min(lanes, bits // element)
    # One accumulator waits for itself; independent ones overlap.
    chains = max(1.0, lanes / max(width, 1))
    stall = max(1.0, _LATENCY / (chains * _PIPES)) if kernel.reduce else 1.0
    tail = -(-max(extents, default=1) // max(lanes, 1)) * lanes / max(max(extents, default=1), 1) if kernel.reduce else 1.0
    cycles = 0.0
    for (op, _), count in kernel.op_counts().items():
        if op in _CALLS:
            cycles += _CALLS[op] * count
        else:
            cycles += _CYCLES.get(op, 1.0) * count / max(width, 1) / _PIPES * stall * tail
    cycles += kernel.type.size / max(width, 1)
    return Estimate(seconds=cycles / profile.clock_hz, cycles=max(1, round(cycles)))
