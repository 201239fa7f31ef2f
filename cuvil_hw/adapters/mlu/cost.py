"""Analytic time of a kernel under a tiling. It ranks schedules; it is no measurement, and nothing ran on an MLU."""

from __future__ import annotations

from math import prod

from cuvil_hw.adapters.mlu.tile import Tile
from cuvil_hw.expr.scalar import column
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import Profile

# Nominal cycles: of one scalar operation on values in NRAM, of one scalar read from GDRAM, and of starting one copy.
# Cambricon publishes none of them.
_SCALAR_CYCLES = 4.0
_FAR_CYCLES = 200.0
_COPY_CYCLES = 500.0


def estimate(tile: Tile, profile: Profile) -> Estimate:
    """The busiest core's tiles one after the other: its copies at its share of the bandwidth, then its arithmetic."""
    cores = cores_of(profile)
    bytes_per_cycle = profile.setting("bandwidth_gb_s", 100.0) * 1e9 / profile.clock_hz / cores
    busy = -(-tile.count // cores)
    counts = tile.kernel.op_counts().items()
    ops = sum(column(op, "mlu", "an MLU") * n for (op, _), n in counts) + tile.kernel.type.size
    shared = sum(r.bytes for r in tile.staged if r.fixed)
    moved = tile.output_bytes + sum(r.bytes for r in tile.staged if not r.fixed)
    copies = 1 + sum(not r.fixed for r in tile.staged)
    far = sum(r.direct for r in tile.regions) * tile.elements * prod(i.extent for i in tile.kernel.reduction_iters)
    each = moved / bytes_per_cycle + copies * _COPY_CYCLES + ops / max(tile.count, 1) * _SCALAR_CYCLES
    each += far * _FAR_CYCLES
    cycles = busy * each + shared / bytes_per_cycle
    return Estimate(cycles / profile.clock_hz, max(1, round(cycles)), {"nram": float(tile.nram_bytes)})


def cores_of(profile: Profile) -> int:
    return profile.setting("clusters", 1) * profile.setting("cores_per_cluster", 4)
