"""What is said of a program that doesn't fit its target: how much its constants take, and where it fits."""

from __future__ import annotations

from collections.abc import Callable

from cuvil_hw import dtypes
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.resources import Resource
from cuvil_hw.schedule.search import fits
from cuvil_hw.schedule.space import Proposals, Surroundings
from cuvil_hw.target.profile import MEMORY_BITS, Profile, builtin_profiles


def surroundings(graph: KernelGraph, profile: Profile, propose: Callable[[Profile], Proposals]) -> Surroundings:
    """`propose`: what the same program may become on another target of the same adapter."""
    return Surroundings(_constants(graph, profile), _smallest(profile, propose))


def _constants(graph: KernelGraph, profile: Profile) -> str:
    held = sum(a.limit * MEMORY_BITS[a.name] for a in profile.axes if a.name in MEMORY_BITS)
    taken = sum(b.type.size * dtypes.record(b.type.dtype).bits for b in graph.buffers.values() if b.role == "const")
    return f"the constants are {taken / 1e6:,.3g} Mbit, the memories on the chip {held / 1e6:,.3g} Mbit" if held else ""


def _smallest(profile: Profile, propose: Callable[[Profile], Proposals]) -> str:
    """The smallest built-in target of the adapter on which the program fits, by this target's axes."""
    known = [p for p in builtin_profiles() if p.adapter == profile.adapter and p.name != profile.name]
    if not known:
        return ""

    def size(other: Profile) -> float:
        """Of each resource as a share of the largest target's, summed."""
        return sum(a.limit / _largest(a, known) for a in other.axes if _largest(a, known) > 0)

    for other in sorted(known, key=size):
        found = propose(other)
        if fits(found.kernels, other.axes, found.overhead):
            return f"it fits {other.name}, the smallest of the built-in targets that are large enough"
    return (
        f"no built-in target of adapter {profile.adapter} is large enough ({', '.join(sorted(p.name for p in known))})"
    )


def _largest(axis: Resource, known: list[Profile]) -> float:
    return max((a.limit for p in known for a in p.axes if a.name == axis.name), default=0.0)
