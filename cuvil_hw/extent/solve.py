"""Questions to z3: whether any sizes satisfy the rules, whether a guard holds for all of them, and counterexamples.

z3's integers are unbounded, so nothing wraps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cuvil_hw.errors import CuvilError, ToolNotFound, pip_install
from cuvil_hw.extent.constraint import Compare, Rule
from cuvil_hw.extent.domain import Domain
from cuvil_hw.extent.polynomial import IntegerCall, Polynomial, symbol, whole

TIMEOUT_MS = 5000
Found = dict[str, int]


class Unknown(Exception):
    """z3 found no answer within its time limit."""


def _z3() -> Any:
    try:
        import z3
    except ModuleNotFoundError as e:
        raise ToolNotFound("Python package z3-solver", "check open dimensions", pip_install("compiler")) from e
    return z3


class Question:
    """The sizes of a domain as a z3 problem, for questions that build on one another; not shared between threads."""

    def __init__(self, domain: Domain) -> None:
        self._z3 = _z3()
        self._context = self._z3.Context()
        self._domain = domain
        self._symbols: dict[str, Any] = {d.name: self._z3.Int(d.name, self._context) for d in domain.dims}
        self._solver = self._z3.Solver(ctx=self._context)
        self._solver.set("timeout", TIMEOUT_MS)
        for _, formula in self._rules():
            self._solver.add(formula)

    def _rules(self) -> list[tuple[str, Any]]:
        found = []
        for dim in self._domain.dims:
            x = self._symbols[dim.name]
            found.append((f"{dim.name} ≥ {dim.min}", x >= dim.min))
            if dim.max is not None:
                found.append((f"{dim.name} ≤ {dim.max}", x <= dim.max))
        return found + [(f"constraint {c}", self._rule(c.rule)) for c in self._domain.constraints]

    def contradiction(self) -> tuple[str, ...]:
        """Rules of the domain that contradict each other, in words; empty if they can all hold."""
        solver = self._z3.Solver(ctx=self._context)
        solver.set("timeout", TIMEOUT_MS)
        rules = self._rules()
        for i, (_, formula) in enumerate(rules):
            solver.assert_and_track(formula, self._z3.Bool(f"rule {i}", self._context))
        if solver.check() != self._z3.unsat:
            return ()
        core = {str(name) for name in solver.unsat_core()}
        return tuple(words for i, (words, _) in enumerate(rules) if f"rule {i}" in core)

    def exclude(self, region: Iterable[Rule]) -> None:
        """Exclude all sizes that satisfy every rule of `region` from now on."""
        self._solver.add(self._z3.Not(self._all(region)))

    def find(self, *wanted: Rule, small: bool = True) -> Found | None:
        """Sizes that satisfy the rules, small ones if possible; None if there are none. Raises Unknown."""
        bounds: list[Any] = []
        top = max((d.min for d in self._domain.dims), default=1)
        steps = [max(top, 2) * (1 << k) for k in range(5)] if small else []
        for limit in steps:
            bounds.append(self._z3.And(*(x <= limit for x in self._symbols.values()), self._context))
        for bound in [*bounds, None]:
            self._solver.push()
            try:
                for rule in wanted:
                    self._solver.add(self._rule(rule))
                if bound is not None:
                    self._solver.add(bound)
                answer = self._solver.check()
                if answer == self._z3.sat:
                    model = self._solver.model()
                    return {n: model.eval(x, model_completion=True).as_long() for n, x in self._symbols.items()}
                if bound is None and answer == self._z3.unknown:
                    raise Unknown(self._solver.reason_unknown())
            finally:
                self._solver.pop()
        return None

    def always(self, rule: Compare) -> bool:
        """Whether a rule holds for all remaining sizes of the domain; False also if z3 can't tell."""
        try:
            return self.find(rule.negated(), small=False) is None
        except Unknown:
            return False

    def _all(self, rules: Iterable[Rule]) -> Any:
        return self._z3.And(*(self._rule(r) for r in rules), self._z3.BoolVal(True, self._context))

    def _rule(self, rule: Rule) -> Any:
        if isinstance(rule, Compare):
            a, b = self._expr(rule.a), self._expr(rule.b)
            return {
                "==": lambda: a == b,
                "!=": lambda: a != b,
                "<": lambda: a < b,
                "<=": lambda: a <= b,
                ">": lambda: a > b,
                ">=": lambda: a >= b,
            }[rule.op]()
        parts = [self._rule(p) for p in rule.parts]
        if rule.op == "not":
            return self._z3.Not(parts[0])
        return self._z3.And(*parts) if rule.op == "and" else self._z3.Or(*parts)

    def _expr(self, expr: Polynomial) -> Any:
        total = self._z3.IntVal(0, self._context)
        for monomial, coefficient in expr.terms:
            product = self._z3.IntVal(coefficient, self._context)
            for atom in monomial:
                product = product * (self._symbols[atom] if isinstance(atom, str) else self._call(atom))
            total = total + product
        return total

    def _call(self, call: IntegerCall) -> Any:
        a, b = self._expr(call.a), self._expr(call.b)
        if call.op in ("min", "max"):
            return self._z3.If(a <= b if call.op == "min" else a >= b, a, b)
        if call.b.constant is None or call.b.constant <= 0:
            # z3 rounds division by negative numbers another way; the divisor of an extent is positive.
            self._solver.add(b > 0)
        return a / b if call.op == "//" else a % b


def check_possible(domain: Domain) -> None:
    """Raises CuvilError if no sizes satisfy the rules; names the smallest contradictory set of rules that z3 finds."""
    core = Question(domain).contradiction()
    if core:
        raise CuvilError(f"no sizes are possible: {' and '.join(core)} contradict each other; loosen one of them")


def typical(domain: Domain) -> Found:
    """The sizes to examine a model at first: if possible not 0 or 1 (which broadcast), all different, and multiples of
    16 or 4 (which windows and strides divide)."""
    question = Question(domain)
    names = [d.name for d in domain.dims]
    large: list[Rule] = [Compare(">=", symbol(n), whole(2)) for n in names]
    apart: list[Rule] = [Compare("!=", symbol(a), symbol(b)) for i, a in enumerate(names) for b in names[:i]]
    even = [[*(Compare("==", symbol(n) % k, whole(0)) for n in names), *large, *apart] for k in (16, 4)]
    for wanted in (*even, [*large, *apart], large, []):
        try:
            found = question.find(*wanted)
        except Unknown:
            continue
        if found is not None:
            return found
    raise CuvilError(f"z3 finds no sizes within {domain} in {TIMEOUT_MS / 1000:g} s; state simpler constraints")
