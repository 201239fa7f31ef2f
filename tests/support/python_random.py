"""Random small Python functions with nested control flow, as text. Values stay multiples of small powers of two, so
that every order of the same arithmetic gives the same float32 bits, and conditions never depend on rounding."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

LONGEST = 9  # lines of a function's body: tracing takes time with every operation
VECTORS, SCALARS, COUNTERS = ("a", "b", "c"), ("p", "q"), ("n", "m")


@dataclass
class Writer:
    rng: random.Random
    lines: list[str] = field(default_factory=list)
    loops: int = 0

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def vector(self) -> str:
        pick, v = self.rng.random(), lambda: self.rng.choice(VECTORS)
        if pick < 0.3:
            return f"{v()} {self.rng.choice('+-')} {v()}"
        if pick < 0.45:
            return f"{v()} * 0.5 + {self.rng.choice((*SCALARS, *COUNTERS))}"
        if pick < 0.55:
            return f"abs({v()})"
        if pick < 0.65:
            return f"({v()} - 1 if {self.test()} else {v()} + 0.25)"
        if pick < 0.75:
            return f"helper({v()}, {self.rng.choice(COUNTERS)})"
        if pick < 0.85:
            return f"shift({v()})"
        return f"{v()} - {self.rng.choice(('1', '0.5', '2'))}"

    def scalar(self) -> str:
        v = self.rng.choice(VECTORS)
        return self.rng.choice(
            (f"{v}.sum() * 0.25", f"{v}[{self.rng.randrange(3)}] + 0.5", f"{v}.max() - 1", f"max({v}[0], {v}[2]) + 0.5")
        )

    def atom(self) -> str:
        v, s, n = self.rng.choice(VECTORS), self.rng.choice(SCALARS), self.rng.choice(COUNTERS)
        bound = self.rng.choice(("-1", "0", "0.5", "2"))
        return self.rng.choice(
            (
                f"{v}.sum() > {bound}",
                f"{s} < {bound}",
                f"{v}[{self.rng.randrange(3)}] >= {s}",
                f"{n} < 2",
                f"-1 < {s} <= 2",
                f"not {v}.max() > {bound}",
                "flag",
            )
        )

    def test(self) -> str:
        joined = self.rng.random()
        if joined < 0.6:
            return self.atom()
        return f"{self.atom()} {self.rng.choice(('and', 'or'))} {self.atom()}"

    def block(self, depth: int, budget: int, in_loop: bool) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.statement(depth, budget, in_loop)

    def statement(self, depth: int, budget: int, in_loop: bool) -> None:
        kind = self.rng.random()
        if budget == 0 or kind < 0.4:
            self.simple(depth)
        elif kind < 0.65:
            self.put(depth, f"if {self.test()}:")
            self.block(depth + 1, budget - 1, in_loop)
            if self.rng.random() < 0.3:
                self.put(depth, f"elif {self.test()}:")
                self.block(depth + 1, budget - 1, in_loop)
            if self.rng.random() < 0.5:
                self.put(depth, "else:")
                self.block(depth + 1, budget - 1, in_loop)
        elif kind < 0.75 and self.loops < 2:
            self.loop(depth, budget, "for")
        elif kind < 0.83 and self.loops < 2:
            self.loop(depth, budget, "while")
        elif kind < 0.93 and in_loop:
            self.put(depth, f"if {self.test()}:")
            self.put(depth + 1, self.rng.choice(("break", "continue")))
        else:
            self.put(depth, f"if {self.test()}:")
            self.put(depth + 1, f"return {self.vector()}, {self.rng.choice(COUNTERS)}")

    def simple(self, depth: int) -> None:
        kind, v, n = self.rng.random(), self.rng.choice(VECTORS), self.rng.choice(COUNTERS)
        if kind < 0.4:
            self.put(depth, f"{v} = {self.vector()}")
        elif kind < 0.55:
            self.put(depth, f"{self.rng.choice(SCALARS)} = {self.scalar()}")
        elif kind < 0.7:
            self.put(depth, f"{n} = {n} + {self.rng.choice(('1', '2'))}")
        elif kind < 0.85:
            self.put(depth, f"{v}[{self.rng.randrange(3)}] = {self.scalar()}")
        elif kind < 0.95:
            self.put(depth, f"{v} {self.rng.choice('+-')}= {self.rng.choice((*SCALARS, '0.5', 'b'))}")
        else:
            self.put(depth, f"{v}, {n} = {v} + {n}, {n}")

    def loop(self, depth: int, budget: int, kind: str) -> None:
        self.loops += 1
        k = f"k{self.loops}"
        if kind == "for":
            self.put(depth, f"for {k} in range({self.rng.randint(2, 3)}):")
        else:
            self.put(depth, f"{k} = 0")
            self.put(depth, f"while {k} < {self.rng.randint(2, 3)} and {self.atom()}:")
            self.put(depth + 1, f"{k} += 1")
        self.block(depth + 1, budget - 1, True)
        if self.rng.random() < 0.4:
            self.put(depth + 1, f"if {self.test()}:")
            self.put(depth + 2, self.rng.choice(("break", "continue")))
        self.put(depth + 1, f"{self.rng.choice(VECTORS)} = {self.rng.choice(VECTORS)} + {k}")
        if self.rng.random() < 0.3:
            self.put(depth, "else:")
            self.simple(depth + 1)
        self.loops -= 1


def function(seed: int, name: str) -> str:
    """The text of `def name(a, b, flag)`: `a` and `b` float32 vectors of 3, `flag` a Python bool; it returns a vector
    and an integer. It calls `helper` and `shift`, which HEADER defines."""
    rng = random.Random(seed)
    while True:
        writer = Writer(rng)
        for _ in range(rng.randint(1, 3)):
            writer.statement(1, 2, False)
        if 4 <= len(writer.lines) <= LONGEST:
            break
    body = "\n".join(writer.lines)
    return f"""def {name}(a, b, flag):
    c = a - b
    p, q = a.sum() * 0.5, b[1] + 0.25
    n, m = 0, 1
{body}
    return a + b * 0.5 + c + p * q * 0.5, n + m
"""


HEADER = """
def helper(x, n):
    if x.sum() > n:
        return x - n
    return x + 0.5


shift = (lambda by: lambda x: x + by if x.max() < 2 else x - by)(0.25)
"""
