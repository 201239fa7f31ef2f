"""Expressions, constraints, domains and sizes: what open shapes are made of."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cuvil
from cuvil_hw.errors import CuvilError, InputError
from cuvil_hw.extent.constraint import Compare, Constraint, parse_expr, parse_rule
from cuvil_hw.extent.dim import Dim, Open
from cuvil_hw.extent.domain import Domain, bind, solvable
from cuvil_hw.extent.polynomial import Polynomial, symbol, whole
from cuvil_hw.extent.size import Size, broadcast, clamped, recording
from cuvil_hw.extent.solve import Question, check_possible, typical
from cuvil_hw.extent.spec import domain_of, shape_of
from cuvil_hw.ops import base
from cuvil_hw.ops.nn import Conv
from cuvil_hw.ops.shape import BroadcastTo, Concat, Reshape
from cuvil_hw.types import TensorType

B, S = symbol("B"), symbol("S")


def texts() -> st.SearchStrategy[str]:
    leaf = st.sampled_from(["B", "S", "0", "1", "2", "3", "7"])

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pair = st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
        divided = st.tuples(inner, st.sampled_from(["//", "%"]), st.sampled_from(["1", "2", "3", "4", "8"]))
        extreme = st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})")
        return st.one_of(pair, divided.map(lambda t: f"({t[0]} {t[1]} {t[2]})"), extreme)

    return st.recursive(leaf, grow, max_leaves=8)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts(), st.integers(0, 12), st.integers(0, 12))
def test_an_expression_has_the_value_that_python_gives_its_text(text: str, b: int, s: int) -> None:
    sizes = {"B": b, "S": s}
    wanted = eval(compile(ast.parse(text, mode="eval"), "text", "eval"), {"min": min, "max": max}, sizes)
    expr = parse_expr(text)
    assert expr.value(sizes) == wanted
    assert parse_expr(str(expr)).value(sizes) == wanted  # what is stored in artifacts


@pytest.mark.parametrize(
    ("expr", "shown"),
    [
        (2 * S + 1, "2*S + 1"),
        ((4 * S + 6) // 4, "S + 1"),
        ((S + 7) // 4, "((S + 3) // 4) + 1"),
        ((4 * S + 5) % 4, "1"),
        (S.largest(S - 1), "S"),
        ((6 * B * S) // (2 * B), "3*S"),
        (B * S - S * B, "0"),
        (-S + B, "B - S"),
    ],
)
def test_normal_form(expr: Polynomial, shown: str) -> None:
    assert str(expr) == shown


def test_constraints_are_parsed_and_hold_as_python_says() -> None:
    rule = parse_rule("S % 4 == 0 and not (B == 3 or 1 < S <= 4*B)")
    for b in range(6):
        for s in range(20):
            wanted = s % 4 == 0 and not (b == 3 or 1 < s <= 4 * b)
            assert rule.holds({"B": b, "S": s}) == wanted


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("S**2 < 1", 1, "compute sizes"),
        ("S < 2.5", 5, "only integers"),
        ("B < S // B", 10, "positive number"),
        ("S + 1", 1, "a comparison is expected"),
        ("B < S.real", 5, "only integers"),
        ("B < f(S)", 5, "only integers"),
        ("B in S", 6, "compare sizes"),
        ("é < S[0]", 5, "only integers"),
        ("S <= = 2", 6, "invalid syntax"),
    ],
)
def test_a_wrong_constraint_names_the_place(text: str, column: int, why: str) -> None:
    with pytest.raises(CuvilError, match=rf"column {column}: .*{why}") as error:
        Constraint(text)
    mark = str(error.value).splitlines()[-1]
    assert mark.index("^") == 2 + column - 1


def test_constraints_are_never_run() -> None:
    for text in ("__import__('os').getpid() == 1", "(lambda: 1)() == 1", "[S for S in B] == 1", "S == (B := 2)"):
        with pytest.raises(CuvilError):
            Constraint(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dim("2B"),
        lambda: Dim("B", min=-1),
        lambda: Dim("B", min=5, max=4),
        lambda: Dim("B", min=1, max=8, sizes=(9,)),
        lambda: Dim("B", min=True),
        lambda: Dim("B") // 0,
        lambda: Dim("B") + 1.5,  # type: ignore[operator]
        lambda: domain_of({"x": (Dim("B", 1, 4), Dim("B", 1, 8))}, ()),
        lambda: domain_of({"x": (3, 4)}, ["B < 4"]),
        lambda: shape_of((Dim("B"), 4), (2, 3), "x"),
        lambda: shape_of((Dim("B"),), (2, 3), "x"),
        lambda: shape_of({2: Dim("B")}, (2, 3), "x"),
    ],
)
def test_contradictory_dimensions_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(CuvilError):
        make()


def test_arithmetic_of_dimensions() -> None:
    h, w = cuvil.Dim("H", min=1, max=8), cuvil.Dim("W", min=1, max=8)
    made = 2 * (h + 1) - w % 3
    assert isinstance(made, Open)
    assert str(made) == "2*H - (W % 3) + 2"
    assert made.dims == (h, w)
    assert domain_of({"x": (made, 3)}, ["H <= W"]).dims == (h, w)


DOMAIN = Domain((Dim("B", 1, 8), Dim("S", 2, 64)), (Constraint("S <= 16*B"),))
SHAPES = {"x": (B, 2 * S + 1), "y": (B, S)}


def test_sizes_follow_from_the_inputs() -> None:
    assert bind(SHAPES, {"x": (3, 21), "y": (3, 10)}, DOMAIN) == {"B": 3, "S": 10}
    # y alone would do; x is only compared
    assert bind({"x": (B * S,), "y": (B, S)}, {"x": (6,), "y": (2, 3)}, DOMAIN) == {"B": 2, "S": 3}


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"x": (3, 21), "y": (4, 10)}, ["input 'y', dimension 0", "has 4", "expected 3 = B", "input 'x'"]),
        ({"x": (3, 20), "y": (3, 10)}, ["input 'x', dimension 1", "20 is not 2*S + 1"]),
        ({"x": (9, 21), "y": (9, 10)}, ["B = 9", "at most 8", "input 'x', dimension 0"]),
        ({"x": (2, 67), "y": (2, 33)}, ["constraint S <= 16*B", "B = 2, S = 33"]),
        ({"x": (0, 21), "y": (0, 10)}, ["B = 0", "at least 1"]),
        ({"x": (3, 21, 1), "y": (3, 10)}, ["input 'x'", "(3, 21, 1)", "(B, 2*S + 1)"]),
    ],
)
def test_wrong_sizes_name_input_dimension_value_and_rule(shapes: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        bind(SHAPES, shapes, DOMAIN)
    assert all(word in str(error.value) for word in words), error.value


def test_a_dimension_must_follow_from_the_inputs() -> None:
    with pytest.raises(CuvilError, match="dimension S can't be told"):
        solvable({"x": (B, B * S)}, DOMAIN)
    with pytest.raises(CuvilError, match="there is no dimension Q"):
        solvable(SHAPES, Domain(DOMAIN.dims, (Constraint("S < Q"),)))


def test_listed_sizes_are_combined_and_keep_the_rules() -> None:
    dims = (Dim("B", 1, 8, (1, 4)), Dim("S", 2, 64, (8, 32)))
    listed = Domain(dims, DOMAIN.constraints).listed({})
    assert listed == ({"B": 1, "S": 8}, {"B": 4, "S": 8}, {"B": 4, "S": 32})
    with pytest.raises(CuvilError, match="no combination"):
        Domain(dims, (Constraint("S > 32"),)).listed({})
    assert Domain((dims[0], Dim("S", 2, 64))).listed({"B": 7, "S": 5}) == ({"B": 1, "S": 5}, {"B": 4, "S": 5})
    with pytest.raises(CuvilError, match="100 combinations"):
        Domain((Dim("B", 1, 10, tuple(range(1, 11))), Dim("S", 1, 10, tuple(range(1, 11))))).listed({})


def test_contradiction_is_told_in_words_and_no_larger_than_needed() -> None:
    dims = (Dim("B", 1, 8), Dim("S", 2, 64))
    with pytest.raises(CuvilError) as error:
        check_possible(Domain(dims, (Constraint("S > 10*B"), Constraint("S < B"), Constraint("B != 3"))))
    text = str(error.value)
    assert "constraint S > 10*B" in text
    assert "constraint S < B" in text
    assert "B != 3" not in text
    check_possible(DOMAIN)


def test_typical_sizes_keep_the_rules_and_broadcast_nothing() -> None:
    sizes = typical(DOMAIN)
    assert DOMAIN.refusal(sizes) is None
    assert min(sizes.values()) >= 2
    assert len(set(sizes.values())) == 2
    assert typical(Domain((Dim("B", 1, 1),))) == {"B": 1}


@pytest.mark.parametrize(
    ("rule", "always"),
    [
        ("2*(S // 2) <= S", True),
        ("2*(S // 2) == S", False),
        ("(4*S) % 4 == 0", True),
        ("max(B, S) >= B", True),
        ("B*S >= S", True),
        ("B*S == S", False),
        ("S <= 128", True),
        ("S <= 63", False),
    ],
)
def test_z3_agrees_with_trying_every_size(rule: str, always: bool) -> None:
    found = parse_rule(rule)
    assert isinstance(found, Compare)
    allowed = [{"B": b, "S": s} for b in range(1, 9) for s in range(2, 65) if DOMAIN.refusal({"B": b, "S": s}) is None]
    assert all(found.holds(sizes) for sizes in allowed) == always
    assert Question(DOMAIN).always(found) == always
    counterexample = Question(DOMAIN).find(found.negated())
    assert (counterexample is None) == always
    if counterexample is not None:
        assert counterexample in allowed
        assert not found.holds(counterexample)


def test_excluded_regions_are_not_found_again() -> None:
    question = Question(Domain((Dim("B", 1, 6),)))
    seen = []
    while (sizes := question.find()) is not None:
        seen.append(sizes["B"])
        question.exclude([Compare("==", B, whole(sizes["B"]))])
    assert sorted(seen) == [1, 2, 3, 4, 5, 6]


# -- sizes that remember -------------------------------------------------------------------------------------------


def test_shape_rules_written_for_ints_run_on_sizes_and_say_what_they_asked() -> None:
    b, s = Size(4, B), Size(9, S)
    with recording() as assumptions:
        (y,) = base.infer(Conv((2, 2), (1, 1, 1, 1), (1, 1), 1), [
            TensorType((b, 3, s, s), "f32"), TensorType((8, 3, 3, 3), "f32")])  # fmt: skip
    assert y.shape == (4, 8, 5, 5)
    assert [str(e.expr) for e in y.shape if isinstance(e, Size)] == ["B", "(S + 1) // 2", "(S + 1) // 2"]
    assert "S - 1 >= 0" in map(str, assumptions.found)
    with recording() as assumptions:
        base.infer(Reshape((b, 2 * s)), [TensorType((b, s, 2), "f32")])
        base.infer(BroadcastTo((b, s)), [TensorType((1, s), "f32")])
    assert all(Question(DOMAIN).always(rule) for rule in assumptions.found)  # nothing that could fail
    with recording() as assumptions, pytest.raises(CuvilError):
        base.infer(Concat(1), [TensorType((b, s), "f32"), TensorType((s, s), "f32")])
    assert [str(rule) for rule in assumptions.found] == ["S != B"]


def test_sizes_are_ints_outside_a_trace() -> None:
    s = Size(9, S)
    assert (s + 1, s == 9, hash(s), bool(s), f"{s}", {9: "x"}[s]) == (10, True, hash(9), True, "9", "x")
    assert np.zeros(s).shape == (9,)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.none() | st.integers(-12, 12),
    st.none() | st.integers(-12, 12),
    st.sampled_from([-3, -2, -1, 1, 2, 3]),
    st.integers(0, 9),
)
def test_slices_as_python_clamps_them(start: int | None, stop: int | None, step: int, extent: int) -> None:
    taken = range(extent)[start:stop:step]
    for size in (extent, Size(extent, S)):
        first, count = clamped(start, stop, step, size)
        assert count == len(taken)
        assert not count or first == taken.start


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(st.sampled_from([1, 1, 2, 3]), max_size=3), min_size=1, max_size=3))
def test_broadcasting_as_numpy_does(shapes: list[list[int]]) -> None:
    sized = [[Size(e, symbol(f"D{e}")) for e in shape] for shape in shapes]
    try:
        wanted = np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        with pytest.raises(ValueError):
            broadcast(*sized)
        return
    assert broadcast(*sized) == wanted
