"""What rewritten control flow does while a function is traced: if a condition is known, one side runs, else both."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from cuvil_hw.errors import CuvilError
from cuvil_hw.frontend.python import hits
from cuvil_hw.frontend.python.arrays import Array
from cuvil_hw.frontend.python.conditions import FALSE, TRUE
from cuvil_hw.frontend.python.helpers import helper_function
from cuvil_hw.frontend.python.number import Number
from cuvil_hw.frontend.python.outside import origin
from cuvil_hw.frontend.python.trace import current, raised_at, refuse, refuse_handler, where, wrong
from cuvil_hw.frontend.python.values import NEVER, Cond, Phi, is_flag, merged, select, settle, truth

MANY = 100_000  # trips of a loop that no tensor ends: more are taken for an endless loop
Later = Callable[[], Any]


class Decision:
    """A decision. `first` and `second` enter its sides and return whether the side can run at all."""

    def __init__(self, node: int) -> None:
        self.node, self.outer = node, current().mask
        self.entered = [False, False]

    def first(self) -> bool:
        return self._enter(0, self.node)

    def second(self) -> bool:
        current().mask = self.outer
        return self._enter(1, current().conditions.negate(self.node))

    def _enter(self, side: int, node: int) -> bool:
        trace = current()
        mask = trace.conditions.both(trace.mask, node)
        if mask == FALSE:
            return False
        trace.mask = mask
        self.entered[side] = True
        return True

    def merge(self, names: tuple[str, ...], then: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        """Leave the decision; returns the variables after it."""
        trace = current()
        trace.mask = trace.conditions.both(self.outer, trace.assumed)
        if not self.entered[0]:
            return other
        if not self.entered[1]:
            return then
        return tuple(merged(self.node, a, b) for a, b in zip(then, other, strict=True))


@helper_function
def branch(test: Any) -> Decision:
    return Decision(truth(test))


# What Python's own operations raise; others are a fault of the trace, or are raised by `raise`.
_RAISED = (IndexError, KeyError, ZeroDivisionError, ValueError, OverflowError, UnboundLocalError)


@helper_function
def failed(error: Exception) -> bool:
    """Whether to raise now what the traced code raised. If the code runs only under a condition, the error becomes a
    check instead: a call that gets here raises it, and the rest assumes that this call doesn't."""
    trace = current()
    if trace.mask == TRUE or not isinstance(error, _RAISED):
        return True
    text = f": {error}" if str(error) else ""
    trace.demand(FALSE, f"{raised_at(error) or where()}: {type(error).__name__}{text}", type(error))
    trace.assumed = trace.conditions.both(trace.assumed, trace.conditions.negate(trace.mask))
    trace.mask = FALSE
    return False


@helper_function
@contextmanager
def attempt(*types: Later) -> Iterator[None]:
    """The body of a `try` whose handlers take exceptions of `types`. Refuses an exception that a handler would take:
    which handler runs, and what the body did before, would depend on values, or on errors that only the trace
    raises."""
    trace = current()
    taken: list[type[BaseException]] = []
    for later in types:
        kinds = later()
        taken += kinds if isinstance(kinds, tuple) else [kinds]
    trace.handled.append(tuple(taken))
    try:
        yield
    except CuvilError:
        raise
    except Exception as error:
        if isinstance(error, tuple(taken)):
            text = f": {error}" if str(error) else ""
            refuse_handler(f"{raised_at(error) or where()}: {type(error).__name__}{text}")
        raise
    finally:
        trace.handled.pop()


def _under(node: int, later: Later) -> Any:
    """Evaluate under a condition."""
    trace = current()
    outer = trace.mask
    trace.mask = trace.conditions.both(outer, node)
    try:
        return later()
    except Exception as error:
        if failed(error):
            raise
        return NEVER
    finally:
        trace.mask = trace.conditions.both(outer, trace.assumed)


def _joined(parts: Iterable[Later], stop: int) -> Cond:
    """Several conditions in order, each evaluated under those before it, until one can only be `stop`."""
    conditions = current().conditions
    result = conditions.negate(stop)
    for part in parts:
        going = result if stop == FALSE else conditions.negate(result)
        if current().never(going):
            break
        node = _under(going, lambda part=part: truth(part()))  # type: ignore[misc]
        if node is NEVER:
            break
        result = conditions.both(result, node) if stop == FALSE else conditions.either(result, node)
    return Cond(result)


@helper_function
def all_of(*parts: Later) -> Cond:
    return _joined(parts, FALSE)


@helper_function
def any_of(*parts: Later) -> Cond:
    return _joined(parts, TRUE)


@helper_function
def none_of(*values: Any) -> Cond:
    conditions = current().conditions
    node = FALSE
    for value in values:
        node = conditions.either(node, truth(value))
    return Cond(conditions.negate(node))


def as_value(cond: Cond) -> Any:
    """A condition as Python's True or False, or as a number that is read from a tensor."""
    trace = current()
    if trace.always(cond.node):
        return True
    if trace.never(cond.node):
        return False
    return Number(trace.conditions.tensor(cond.node), bool)


@helper_function
def not_(test: Any) -> Any:
    return as_value(none_of(test))


@helper_function
def and_(*parts: Later) -> Any:
    return _value_of(parts, False)


@helper_function
def or_(*parts: Later) -> Any:
    return _value_of(parts, True)


def _value_of(parts: tuple[Later, ...], stop: bool) -> Any:
    """Python's `and`, `or`: the value that decided."""
    value = parts[0]()
    for i in range(1, len(parts)):
        node = truth(value)
        going = current().conditions.negate(node) if stop else node
        if current().never(going):
            return value
        rest = _under(going, lambda i=i: _value_of(parts[i:], stop))  # type: ignore[misc]
        if rest is NEVER:
            return value
        if current().always(going):
            return rest
        if is_flag(value) and is_flag(rest) and type(value) is not type(rest):
            conditions = current().conditions
            both = conditions.choose(going, truth(rest), truth(value))
            return Number(conditions.tensor(both), bool)
        return select(going, rest, value, "the result of and, or")
    return value


@helper_function
def choose(test: Any, then: Later, other: Later) -> Any:
    """`then if test else other`."""
    trace, node = current(), truth(test)
    if trace.always(node):
        return then()
    if trace.never(node):
        return other()
    a, b = _under(node, then), _under(trace.conditions.negate(node), other)
    return select(node, a, b, "the value of the conditional expression")


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Is": lambda a, b: _identical(a, b),
    "IsNot": lambda a, b: not_(_identical(a, b)),
    "In": lambda a, b: _within(a, b),
    "NotIn": lambda a, b: not_(_within(a, b)),
}


def _identical(a: Any, b: Any) -> Any:
    """`a is b`. Python's True and False are one object each, which a flag that is read from a tensor stands for."""
    for flag, other in ((a, b), (b, a)):
        if isinstance(flag, Number) and flag.kind is bool and isinstance(other, bool):
            return flag if other else not_(flag)
    if {origin(a), origin(b)} == {"argument", "outside"}:
        refuse("is", "asks whether an argument is an array from outside of the function; pass a flag that says so")
    return a is b


def _within(a: Any, b: Any) -> Any:
    """`a in b`."""
    current().reads.used([a, b])
    if isinstance(b, list | tuple) and any(isinstance(x, torch.Tensor | Array | Number) for x in (a, *b)):
        return as_value(any_of(*(lambda x=x: a == x for x in b)))
    if isinstance(b, Array):
        return as_value(Cond(truth((b == a).any())))
    if isinstance(a, torch.Tensor | Array | Number) and not isinstance(b, torch.Tensor):
        refuse("in", f"looks for a value that depends on tensors in a {type(b).__name__}")
    return operator.contains(b, a)


@helper_function
def compare(left: Any, names: tuple[str, ...], *rest: Later) -> Any:
    """A chain of comparisons: each operand once, and only while all before hold."""
    if len(names) == 1:
        return _COMPARISONS[names[0]](left, rest[0]())
    values = [left]

    def part(i: int) -> Any:
        values.append(rest[i]())
        return _COMPARISONS[names[i]](values[i], values[i + 1])

    return and_(*(lambda i=i: part(i) for i in range(len(names))))


@dataclass(frozen=True)
class Item:
    """One iteration of a loop. `going`: the condition that the loop gets here; `exists`: that there is an item;
    `value`: the item."""

    going: Cond
    exists: Any
    value: Any


class Trips:
    """The iterations of a loop.

    A loop that a tensor may end runs as long as possible, at most `max_trips` times; a call that needs more fails.
    `apart`: an item that doesn't exist is skipped; otherwise the loop ends there.
    """

    def __init__(self, values: Iterator[tuple[Any, Any]], fixed: bool, apart: bool = False) -> None:
        self.values, self.fixed, self.going, self.counted, self.all = values, fixed, Cond(TRUE), 0, 0
        self.apart = apart

    def __iter__(self) -> Iterator[Item]:
        for exists, value in self.values:
            yield Item(self.going, exists, value)

    def over(self, branch: Decision) -> bool:
        trace = current()
        if self.apart:
            return False
        if trace.never(branch.node):
            return True
        self.all += 1
        if not trace.always(branch.node):
            self.counted += 1
        if self.counted > trace.max_trips and not self.fixed:
            trace.demand(
                trace.conditions.negate(branch.node),
                f"{where()}: a loop needs more than {trace.max_trips} trips, which is what it was compiled for; "
                "compile with a larger max_trips",
            )
            return True
        if self.all > MANY:
            wrong(f"a loop made {MANY:,} trips while it was traced, and no tensor ends it")
        self.going = Cond(branch.node)
        return False


@helper_function
def trips() -> Trips:
    def forever() -> Iterator[tuple[Any, Any]]:
        while True:
            yield True, None

    return Trips(forever(), fixed=False)


@dataclass(frozen=True)
class TracedRange:
    """A range whose stop is read from a tensor."""

    start: Any
    stop: Any
    step: int

    def __iter__(self) -> Iterator[Any]:
        refuse("range", "its length is read from a tensor; iterate over it with a plain for statement")


@helper_function
def items(values: Any) -> Trips:
    """The trips of `for item in values`."""
    if isinstance(values, TracedRange):
        return Trips(_counting(values), fixed=False)
    if (found := hits.trips(values)) is not None:
        return Trips(found, fixed=True, apart=True)
    return Trips(((True, v) for v in listed(values)), fixed=True)


def _counting(r: TracedRange) -> Iterator[tuple[Any, Any]]:
    at = r.start
    while True:
        yield (at < r.stop if r.step > 0 else at > r.stop), at
        at = at + r.step


@helper_function
def listed(values: Any) -> Any:
    if isinstance(values, Array | torch.Tensor) and not values.ndim:
        raise TypeError("iteration over a 0-d array or tensor")
    if isinstance(values, Array | torch.Tensor) and not isinstance(values.shape[0], int):
        refuse(
            "a loop",
            "goes through what was selected by values, so that how often it runs depends on them; go through what "
            "nonzero found itself, or through all rows with the mask as a condition",
        )
    current().reads.used(values)
    return values


@helper_function
def sequence(value: Any, least: int, exactly: bool) -> bool:
    """Whether a pattern of a `match` that stands for a sequence has as many elements as `value`."""
    current().reads.used(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        return False
    return len(value) == least if exactly else len(value) >= least


@helper_function
def starred(value: Any, before: int, after: int) -> list[Any]:
    """What `*name` in such a pattern stands for."""
    return list(value[before : len(value) - after])


@helper_function
def static(test: Any) -> bool:
    """The condition of a comprehension."""
    node = truth(test)
    if current().always(node):
        return True
    if not current().never(node):
        refuse("the condition of a comprehension", "depends on tensors, and so would the length; use where")
    return False


@helper_function
def check(test: Any, message: Later | None = None) -> None:
    """`assert`."""
    trace, node = current(), truth(test)
    if trace.always(node):
        return
    text = str(message()) if message is not None else ""
    if trace.never(node) and trace.mask == TRUE:
        raise AssertionError(text) if text else AssertionError
    trace.demand(node, f"{where()}: assertion failed{f': {text}' if text else ''}", AssertionError)


@helper_function
def raises(error: Later) -> Any:
    """`raise`: returns the exception if it is certainly raised. Otherwise adds a check at run time; the rest assumes
    that this path isn't taken."""
    trace, made = current(), error()
    if trace.mask == TRUE:
        return made
    kind = made if isinstance(made, type) else type(made)
    text = "" if isinstance(made, type) else str(made)
    trace.demand(FALSE, f"{where()}: {kind.__name__}{f': {text}' if text else ''}", kind)
    trace.assumed = trace.conditions.both(trace.assumed, trace.conditions.negate(trace.mask))
    return None


@helper_function
def result(value: Any) -> Any:
    return settle(value, "the result")


__all__ = [
    "Phi",
    "all_of",
    "and_",
    "any_of",
    "attempt",
    "branch",
    "check",
    "choose",
    "compare",
    "failed",
    "items",
    "listed",
    "none_of",
    "not_",
    "or_",
    "raises",
    "result",
    "sequence",
    "starred",
    "static",
    "trips",
]
