"""How long a node's logic takes, in nanoseconds: one table of numbers for a family. Analytic, not checked by a tool."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from cuvil_hw.adapters.streaming.rtl.graph import Signal


@dataclass(frozen=True)
class Delays:
    """`period`: that a stage may take; `register`: from the edge to its output; `memory`: as `register`, of a memory;
    `level`: a table of logic and the way to the next; `carry`: a bit of an adder; `multiply`: a multiplier block."""

    period: float = 7.5
    register: float = 0.7
    memory: float = 2.2
    level: float = 0.8
    carry: float = 0.03
    multiply: float = 4.0

    @classmethod
    def at(cls, clock_hz: float) -> Delays:
        """Stages for a clock: a quarter of its period is left for what the table doesn't know."""
        return cls(period=0.75e9 / clock_hz)

    def of(self, node: Signal) -> float:
        """From a node's arguments to its value."""
        match node.op:
            case "const" | "leaf" | "wrap" | "within" | "load" | "not":
                return 0.0
            case "sum":
                return self.level + self.carry * node.bits
            case "lt":
                return self.level + self.carry * max(a.bits for a in node.args)
            case "eq":
                return self._levels(sum(a.bits for a in node.args if a.value is None), 6)
            case "mul":
                return self._product(node)
            case "and" | "or" | "xor" if node.hi == 1 and node.lo == 0:
                return self.level / 2  # a table of six inputs takes several
            case "shr" | "shl":
                by = node.args[1]
                return 0.0 if by.value is not None else self._levels(1 << by.bits, 4)
        return self.level

    def _levels(self, inputs: int, each: int) -> float:
        return self.level * max(ceil(log2(max(inputs, 2)) / log2(each)), 1)

    def _product(self, node: Signal) -> float:
        a, b = node.args
        if b.value is not None:
            parts = bin(abs(b.value)).count("1")
            if parts == 1 and b.value > 0:
                return 0.0
            sums = (self.level + self.carry * node.bits) * max(parts - 1, 1).bit_length()
            return min(sums, self._blocks(a.bits, b.bits, node.bits))
        least = min(a.bits, b.bits)
        if least <= 2:
            return self.level * least + self.carry * node.bits
        return self._blocks(a.bits, b.bits, node.bits)

    def _blocks(self, a: int, b: int, bits: int) -> float:
        """A wide product takes several blocks and the sums of theirs."""
        blocks = ceil(a / 18) * ceil(b / 18)
        return self.multiply + (blocks.bit_length() - 1) * (self.level + self.carry * bits)
