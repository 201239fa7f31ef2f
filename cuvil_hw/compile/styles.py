"""Which of an adapter's styles a program is built in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cuvil_hw.adapters.base import Style
from cuvil_hw.compile.partition import Partition
from cuvil_hw.errors import CuvilError, DoesNotFit
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.space import Choice, Proposals
from cuvil_hw.target.profile import Profile

Arranged = tuple[Partition, KernelGraph, Proposals, Choice]


def fastest(
    styles: Sequence[Style], profile: Profile, attempt: Callable[[Style, bool], Arranged]
) -> tuple[Style, Arranged]:
    """The style in which a sample takes fewest cycles, of those into whose limits the program fits; its reason says
    what the others take or lack. `attempt`: arranges the program in a style; True: its error says where else it would
    fit, which takes long to find. Raises DoesNotFit as the first style does, with a note on each other."""
    best: tuple[Style, Arranged] | None = None
    failed: list[tuple[Style, DoesNotFit]] = []
    others: list[str] = []
    for style in styles:
        if best is not None and style.least_cycles is not None:
            least = style.least_cycles(best[1][1], profile)
            if least >= best[1][3].objective:
                others.append(f"the {style.name} style takes at least {least:,} cycles a sample")
                continue
        try:
            made = attempt(style, False)
        except DoesNotFit as e:
            failed.append((style, e))
            others.append(f"the {style.name} style {e}")
            continue
        slower = best
        if best is None or made[3].objective < best[1][3].objective:
            best = style, made
        else:
            slower = style, made
        if slower is not None:
            others.append(f"the {slower[0].name} style takes {slower[1][3].objective:,.0f} cycles a sample")
    if best is not None:
        taken = f"takes {best[1][3].objective:,.0f} cycles a sample by estimate"
        reasons = (best[0].reason, *((taken, *others) if others else ()))
        return replace(best[0], reason="; ".join(r for r in reasons if r)), best[1]
    if not failed:
        raise CuvilError(f"adapter {profile.adapter} has no style for {profile.name}; repair it")
    try:
        attempt(failed[0][0], True)
    except DoesNotFit as e:
        for style, error in failed[1:]:
            e.add_note(f"the {style.name} style {error}")
        raise
    raise failed[0][1]
