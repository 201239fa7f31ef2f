"""What conditions say of indices: compared with the numbers at all places where the conditions hold."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from cuvil_hw.expr.guarded import conjuncts, ranges_of, settled, split, within
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Select, all_of, const, index, inside, parallel
from cuvil_hw.expr.traverse import walk

I, J, K, L = parallel("i", 6), parallel("j", 5), parallel("k", 3), parallel("l", 3)
ROW, COLUMN = I * 2 + K - 2, J + L - 1


def number(e: Expr, at: dict[Expr, int]) -> Any:
    match e:
        case Iter():
            return at[e]
        case Const():
            return e.value
        case Load():
            return (e.buffer, *(number(i, at) for i in e.index))
        case Select():
            return number(e.then if number(e.cond, at) else e.other, at)
        case Apply(op=op, args=(a, b)):
            x, y = number(a, at), number(b, at)
            done = {
                "add": lambda: x + y, "mul": lambda: x * y, "floordiv": lambda: x // y, "mod": lambda: x % y,
                "ge": lambda: x >= y, "lt": lambda: x < y, "and": lambda: x and y,
            }  # fmt: skip
            return done[op]()
    raise AssertionError(e)


def places() -> list[dict[Expr, int]]:
    return [dict(zip((I, J, K, L), at, strict=True)) for at in product(range(6), range(5), range(3), range(3))]


def divides(e: Expr) -> bool:
    return any(isinstance(x, Apply) and x.op in ("floordiv", "mod") for x in walk(e))


@pytest.mark.parametrize("flat", [ROW * 5 + COLUMN, COLUMN * 11 + ROW, ROW * 5 + COLUMN + 110])
def test_quotients_that_conditions_decide_are_computed(flat: Expr) -> None:
    size = 55
    read = Load("f32", "x", (flat // size, flat % size))
    for other in (const(0.0, "f32"), read):
        body = Select("f32", all_of([inside(ROW, 11), inside(COLUMN, 5)]), read, other)
        done = settled(body)
        assert divides(body)
        assert isinstance(done, Select)
        assert not divides(done.then)
        assert divides(done.other) == divides(other), "the other side keeps what only the first one may know"
        assert all(number(done, at) == number(body, at) for at in places())


def test_what_stays_undecided_stays() -> None:
    body = Select("f32", inside(COLUMN, 5), Load("f32", "x", ((ROW * 5 + COLUMN) // 55,)), const(0.0, "f32"))
    assert settled(body) is body


def test_an_index_as_a_sum_of_others() -> None:
    flat = ROW * 5 + COLUMN + I * 100
    parts, rest = split(flat, [COLUMN, ROW, J * 2])
    assert parts == [(COLUMN, 1)] or parts == [(ROW, 5), (COLUMN, 1)]
    total = rest
    for part, factor in parts:
        total = total + part * factor
    assert all(number(total, at) == number(flat, at) for at in places())


def test_ranges_hold_where_their_conditions_do() -> None:
    conditions = conjuncts(all_of([inside(ROW, 11), inside(COLUMN, 5)]))
    ranges = ranges_of(conditions)
    low, high = within(ROW * 5 + COLUMN, ranges)
    here = [number(ROW * 5 + COLUMN, at) for at in places() if all(number(c, at) for c in conditions)]
    assert (low, high) == (0, 54)
    assert low <= min(here)
    assert max(here) <= high
    assert within(index(7), ranges) == (7, 7)
