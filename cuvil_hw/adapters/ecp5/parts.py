"""Parts of Lattice's ECP5 family as place and route names them, and their phase-locked loop.

Sizes and limits: data sheet FPGA-DS-02012. Names of parts are LFE5U-85F-6BG381C: device, speed grade, package,
temperature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from cuvil_hw.errors import ProfileError
from cuvil_hw.target.profile import Profile

_BALL = re.compile(r"[A-Z]{1,2}[1-9][0-9]?")
_NAME = re.compile(r"LFE5(UM5G|UM|U)-(12|25|45|85)F-([678])BG(256|285|381|554|756)[CI]?", re.IGNORECASE)
# nextpnr's option for each device. A 12F is a 25F with another identity.
_OPTIONS = {"U": "", "UM": "um-", "UM5G": "um5g-"}
# LUTs of four inputs, blocks of 18 Kb, multipliers of 18×18 bits.
SIZES = {"12": (12_000, 32, 28), "25": (24_288, 56, 28), "45": (43_848, 108, 72), "85": (83_640, 208, 156)}
# Hz: of the loop's oscillator, and of the phase comparison (table of the PLL's limits).
_VCO = (400_000_000, 800_000_000)
_COMPARED = (10_000_000, 400_000_000)
_MOST_FEEDBACK, _MOST_INPUT, _MOST_OUTPUT = 80, 128, 128


@dataclass(frozen=True, slots=True)
class Ecp5Part:
    """`option`: nextpnr's for the device, such as "85k"; `package`: "CABGA381"; `speed`: 6, 7 or 8, 8 the fastest."""

    option: str
    package: str
    speed: int
    size: str


def part_of(name: str) -> Ecp5Part | None:
    """None for a name that isn't of this family."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    series, size, speed, balls = match.groups()
    kind = {"285": "CSFBGA"}.get(balls, "CABGA")
    return Ecp5Part(f"{_OPTIONS[series.upper()]}{size}k", f"{kind}{balls}", int(speed), size)


@dataclass(frozen=True, slots=True)
class Divisors:
    """Of EHXPLLL: output = input * feedback / source; its oscillator runs at output * target."""

    source: int
    feedback: int
    target: int


def divisors(given_hz: float, wanted_hz: float) -> Divisors | None:
    """Those that make `wanted_hz` exactly, with the oscillator near the middle of its range; None when none do."""
    given, wanted = Fraction(given_hz), Fraction(wanted_hz)
    if given == 0 or not wanted:
        return None
    ratio = wanted / given
    found = [
        (abs(wanted * target - sum(_VCO) // 2), source, target)
        for source in range(ratio.denominator, _MOST_INPUT + 1, ratio.denominator)
        if ratio * source <= _MOST_FEEDBACK and _COMPARED[0] <= given / source <= _COMPARED[1]
        for target in range(1, _MOST_OUTPUT + 1)
        if _VCO[0] <= wanted * target <= _VCO[1]
    ]
    if not found:
        return None
    _, source, target = min(found, key=lambda f: (f[1], f[0]))
    return Divisors(source, int(ratio * source), target)


def contradictions(profile: Profile) -> Iterable[tuple[str, str]]:
    """What of a profile can't be true together, as (key, problem)."""
    part = part_of(profile.part)
    if part is None:
        yield "part", f"{profile.part!r} is not an ECP5 part that place and route knows, such as LFE5U-85F-6BG381C"
        return
    for axis, most in zip(("lut4", "ff", "bram18", "dsp18"), (SIZES[part.size][0], *SIZES[part.size]), strict=True):
        limit = next((a.limit for a in profile.axes if a.name == axis), 0)
        if limit > most:
            yield f"resources.{axis}.limit", f"{limit:,.10g} where an ECP5-{part.size}F has {most:,}"
    oscillator = profile.setting("oscillator_mhz", 0.0) * 1e6
    pins = [key for key in PINS if profile.setting(key, "")]
    for key in pins:
        if not _BALL.fullmatch(pin := profile.setting(key, "")):
            yield f"settings.{key}", f"{pin!r} is not a ball of a package, such as G2 or AA12"
    if oscillator and len(pins) != len(PINS):
        missing = next(key for key in PINS if key not in pins)
        yield f"settings.{missing}", "a board with an oscillator needs the pins of its clock and of its serial line"
    if pins and not oscillator:
        yield "settings.oscillator_mhz", "is missing: what runs at the pin of the clock"
    if oscillator and oscillator != profile.clock_hz and divisors(oscillator, profile.clock_hz) is None:
        problem = (
            f"no setting of the PLL makes {profile.clock_hz / 1e6:g} MHz of {oscillator / 1e6:g} MHz; choose a multiple"
        )
        yield "clock_mhz", problem


PINS = ("clock_pin", "rx_pin", "tx_pin")


def required(profile: Profile) -> Ecp5Part:
    """The profile's part. Raises ProfileError."""
    for key, problem in contradictions(profile):
        raise ProfileError(profile.source, None, key, problem)
    part = part_of(profile.part)
    assert part is not None
    return part
