"""How many low bits of each value anything depends on: hardware makes no others."""

from __future__ import annotations

from collections.abc import Iterator

from cuvil_hw.adapters.streaming.rtl.graph import Signal
from cuvil_hw.adapters.streaming.rtl.pipeline import Staged


def demanded(plan: Staged) -> dict[Signal, int]:
    """The width of each node, at most that of its range."""
    wide = dict.fromkeys(plan.nodes, 1)
    for channel, (want, lanes) in plan.writes.items():
        for node in (want, *lanes):
            _more(wide, node, channel.bits)
    for write in plan.stored:
        for node in (write.want, write.address):
            _more(wide, node, node.bits)
        for _, node in write.lanes:
            _more(wide, node, write.ram.bits)
    changed = True
    while changed:  # round registers
        changed = False
        for node in reversed(plan.nodes):
            for arg, bits in _asked(node, wide[node]):
                _more(wide, arg, bits)
        for r in plan.registers:
            changed = _more(wide, r.next, wide[r.now]) or changed
    return wide


def _more(wide: dict[Signal, int], node: Signal, bits: int) -> bool:
    bits = min(bits, node.bits)
    if bits <= wide.get(node, 1):
        return False
    wide[node] = bits
    return True


def _asked(node: Signal, bits: int) -> Iterator[tuple[Signal, int]]:
    """What a node asks of its arguments so that its low `bits` bits are right."""
    match node.op:
        case "sum" | "mul" | "and" | "or" | "xor" | "wrap" | "within":
            yield from ((a, bits) for a in node.args)
        case "select":
            yield from ((a, bits) for a in node.args[1:])
        case "shl":
            yield node.args[0], bits
            yield node.args[1], node.args[1].bits
        case "shr" if node.args[1].value is not None:
            yield node.args[0], bits + node.args[1].value
        case _:
            yield from ((a, a.bits) for a in node.args)
