"""Instructions of the small machine that runs the control of a process (`machine.py`), and a builder of programs.

An instruction is a row (op, a, b, c, d, e) of numbers. Operands are registers (64 bits, signed), memories, streams or
places in the program, each counted from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

COLUMNS = 6

READ, WRITE = 0, 1  # stream a
TICK, TICKS = 2, 3  # a cycles pass; register a times b cycles, if positive
END, JUMP, IF_ZERO, IF_GE, NEXT = 4, 5, 6, 7, 8  # go to a; to b if a = 0; to c if a ≥ b; a ← a + b, to d if below c
# Register a ← …
MOVE, LOAD, SELECT = 9, 10, 12  # b; memory b at c; c where b, else d
STORE = 11  # memory a at b ← c
COMPARE = 13  # of b and c, by predicate d of MLIR, on e bits
SIGNED, UNSIGNED = 14, 15  # the low c bits of b, as a number of that width (SIGNED, one bit: 0 or 1, -1 where d)
# b with c, kept to d bits
ADD, SUB, MUL, AND, OR, XOR, SHL, SHRS, SHRU, MIN, MAX, DIVS, REMS, FLOORDIV, CEILDIV = range(16, 31)


@dataclass
class Control:
    """Control of one process for one sample. `registers`, `memories`: first values."""

    rows: list[list[int]] = field(default_factory=list)
    registers: list[int] = field(default_factory=list)
    memories: list[list[int]] = field(default_factory=list)
    constants: dict[int, int] = field(default_factory=dict)

    def put(self, op: int, *operands: int) -> int:
        """Append an instruction; its place."""
        self.rows.append([op, *operands, *[0] * (COLUMNS - 1 - len(operands))])
        return len(self.rows) - 1

    @property
    def here(self) -> int:
        return len(self.rows)

    def register(self, value: int = 0) -> int:
        self.registers.append(value)
        return len(self.registers) - 1

    def constant(self, value: int) -> int:
        """A register that holds `value` and isn't written."""
        if value not in self.constants:
            self.constants[value] = self.register(value)
        return self.constants[value]

    def memory(self, values: list[int]) -> int:
        self.memories.append(values)
        return len(self.memories) - 1
