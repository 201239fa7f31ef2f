"""What ops cost that run on the processor beside a device, in NumPy, and which of them should run on the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cuvil_hw.errors import CuvilError

ORIGIN = "analytic (NumPy on {}, a factor of a few either way)"


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of NumPy on one core: multiplications (`products`) per second, `elements` per second, and seconds per
    `call`."""

    core: str
    products: float
    elements: float
    call: float


# By `host` of a profile's settings; "": it says nothing. The server's from integer linear and conv, quantize and
# softmax of cuvil_hw.ops; the boards' are not measured but taken from it by clock and width of the cores.
RATES: Mapping[str, Rates] = {
    "": Rates("a server's core", 5e7, 2e8, 8e-6),
    "arm": Rates("a 32-bit Arm core, by its clock", 5e6, 2e7, 8e-5),
    "aarch64": Rates("a 64-bit Arm core, by its clock", 1e7, 4e7, 4e-5),
}
HOSTS = tuple(name for name in RATES if name)


def rates(host: str) -> Rates:
    """The rates of a processor. Raises CuvilError if it isn't known."""
    if host not in RATES:
        raise CuvilError(f"settings.host: {host!r} is not one of {', '.join(HOSTS)}; leave it out for a server's core")
    return RATES[host]


def origin(host: str) -> str:
    """Where the figures in seconds come from."""
    return ORIGIN.format(rates(host).core)


@dataclass(frozen=True, slots=True)
class HostOp:
    """One op that runs on the processor.

    Attributes:
        where: "before" or "after" the device.
        loc: its place in the model.
        why: the reason that the device doesn't run it.
        products, elements: multiplications and result elements for one sample.
        alone: samples can't be computed together.
    """

    where: str
    op: str
    loc: str
    why: str
    products: int
    elements: int
    alone: bool

    def seconds(self, host: str) -> float:
        """Time per sample, when many are computed."""
        core = rates(host)
        return self.products / core.products + self.elements / core.elements + (core.call if self.alone else 0.0)


def entries(ops: Iterable[HostOp], host: str) -> list[dict[str, Any]]:
    """The ops as rows of a report, in order."""
    return [
        {"where": o.where, "op": o.op, "layer": o.loc, "why": o.why, "seconds": o.seconds(host), "origin": origin(host)}
        for o in ops
    ]


def warnings(ops: Iterable[HostOp], host: str) -> list[str]:
    """One warning for each reason that keeps layers off the device; it names the layers."""
    found: dict[str, list[HostOp]] = {}
    for o in ops:
        if o.products:  # a layer, which one has a device for
            found.setdefault(o.why, []).append(o)
    return [
        f"{len(layers)} layer{'s' if len(layers) > 1 else ''} on the processor, not on the device: "
        + ", ".join(f"{o.op} {o.loc}".strip() for o in layers[:8])
        + (", …" if len(layers) > 8 else "")
        + f": {why or 'between other ops that run there'}; about {sum(o.seconds(host) for o in layers) * 1e3:.3g} ms "
        "a sample"
        for why, layers in found.items()
    ]
