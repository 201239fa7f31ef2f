"""Optimisation levels: how much a compilation tries. They never change what an integer program computes.

| level | fusion | schedules of a layer | C compiler (cpu) |
|---|---|---|---|
| 0 | none: every op is a kernel of its own | the adapter's first | -O0 |
| 1 | yes | the adapter's first | -O1 |
| 2 | yes | the solver chooses | the default |
| 3 | yes | the solver chooses among more | the default, loops unrolled |

Where resources are limited (FPGAs), the solver always chooses: the first schedule may not fit.
"""

from __future__ import annotations

from dataclasses import replace

from cuvil_hw.errors import CuvilError
from cuvil_hw.target.profile import Profile

DEFAULT = 2
LEVELS = range(4)
SETTING = "opt_level"


def check_level(level: object) -> None:
    """Raises CuvilError unless `level` is 0 to 3 or None (the profile's own)."""
    if level is not None and (isinstance(level, bool) or not isinstance(level, int) or level not in LEVELS):
        raise CuvilError(f"opt_level is {level!r}; there are 0 (no fusion), 1 (no search), 2 and 3 (wider search)")


def at_level(profile: Profile, level: int | None) -> Profile:
    """The profile with this level; None keeps the profile's own. Raises CuvilError for anything else."""
    check_level(level)
    if level is None:
        return profile
    if level == level_of(profile):
        return profile
    return replace(profile, settings={**profile.settings, SETTING: level})


def level_of(profile: Profile) -> int:
    return profile.setting(SETTING, DEFAULT)


def searches(profile: Profile) -> bool:
    """Whether the solver has schedules to choose from."""
    return level_of(profile) >= DEFAULT or bool(profile.axes)
