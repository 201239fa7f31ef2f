"""Compute capabilities: what NVIDIA states for each, and a target profile for any of them (`cuda:sm_75`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuvil_hw.errors import ProfileError
from cuvil_hw.schedule.resources import Resource
from cuvil_hw.target.profile import Profile

# The same for every compute capability here.
THREADS_PER_BLOCK = 1024
REGISTERS_PER_THREAD = 255
GRID_BLOCKS = (1 << 31) - 1  # gridDim.x; y and z stop at 65,535 and are never used
WARP = 32
# What a block may declare without asking the driver for more.
STATIC_SHARED_BYTES = 48 << 10
# A part that isn't named has some number of SMs and some clock; these only rank schedules.
_NOMINAL_SMS, _NOMINAL_CLOCK_HZ, _NOMINAL_BANDWIDTH_GB_S = 40, 1.5e9, 500


@dataclass(frozen=True, slots=True)
class Capability:
    """What a compute capability has. `shared_bytes`: most shared memory of one block; `lanes_per_sm`: float32 results
    per clock and SM.
    """

    shared_bytes: int
    threads_per_sm: int
    lanes_per_sm: int


# CUDA C++ Programming Guide, "technical specifications per compute capability" and "arithmetic instructions".
CAPABILITIES: Mapping[str, Capability] = {
    "sm_75": Capability(64 << 10, 1024, 64),
    "sm_80": Capability(163 << 10, 2048, 64),
    "sm_86": Capability(99 << 10, 1536, 128),
    "sm_87": Capability(163 << 10, 1536, 128),
    "sm_89": Capability(99 << 10, 1536, 128),
    "sm_90": Capability(227 << 10, 2048, 128),
    "sm_100": Capability(227 << 10, 2048, 128),
    "sm_120": Capability(99 << 10, 1536, 128),
}


def profile_of(variant: str) -> Profile:
    """The profile behind `cuda:{variant}`: limits of that compute capability; SMs, clock and bandwidth are nominal.

    Raises ProfileError for a variant that isn't known."""
    name = f"cuda:{variant}"
    capability = CAPABILITIES.get(variant)
    if capability is None:
        raise ProfileError(name, None, "target", f"unknown compute capability; known: {', '.join(CAPABILITIES)}")
    return Profile(
        name=f"cuda-{variant}",
        aliases=(name,),
        adapter="cuda",
        description=f"NVIDIA GPU of compute capability {variant.removeprefix('sm_')}",
        part=variant,
        clock_hz=_NOMINAL_CLOCK_HZ,
        axes=(
            Resource("shared", capability.shared_bytes, "max", unit="B"),
            Resource("registers", REGISTERS_PER_THREAD, "max", unit="per thread"),
            Resource("threads", THREADS_PER_BLOCK, "max", unit="per block"),
            Resource("spills", 0, "max", unit="B per thread"),
        ),
        settings={
            "sms": _NOMINAL_SMS,
            "lanes_per_sm": capability.lanes_per_sm,
            "threads_per_sm": capability.threads_per_sm,
            "bandwidth_gb_s": _NOMINAL_BANDWIDTH_GB_S,
        },
        source=name,
        origin="CUDA C++ Programming Guide, technical specifications per compute capability; the rest is nominal",
    )
