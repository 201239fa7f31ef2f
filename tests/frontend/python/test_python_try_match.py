"""`try` where nothing is raised, and `match`, in compiled functions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("xdsl")

from cuvil_hw.errors import Unsupported
from cuvil_hw.frontend.python.check import check
from tests.support.python_runner import agrees

ARRAYS = [(np.array(v),) for v in itertools.product((7, 1, -5, 0, 30), (-1, 2, 0), (9, -2))]


def all_clauses(x):
    try:
        y = x + 1
        if x[0] > 0:
            y = y * 2
    except (ValueError, TypeError) as error:
        return x, str(error)
    else:
        y = y + 1
    finally:
        y = y * 3
    return y


def jumps(x):
    total = x[0] * 0
    for k in range(3):
        try:
            if x[k] > 5:
                break
            if x[k] > 0:
                continue
            total = total + x[k]
            if x[k] < -4:
                return total, -1
        except Exception:
            total = 100
        else:
            total = total - 7
        finally:
            total = total + 1
    return total, k


def last_word(x):
    try:
        if x[0] > 0:
            return x
    finally:
        if x[1] > 0:
            return x * 5  # noqa: B012
    return x - 1


def other_kinds(x):
    try:
        assert x[0] > 0, "small"
        y = 10 // int(x[1])
    except KeyError:
        y = 5
    return y * x


def patterns(x):
    match x.shape:
        case (n,):
            y = x * n
        case (_, m):
            y = x * m
        case _:
            y = x
    match "a", [1, 2, 3]:
        case "b", _:
            y = y * 7
        case str(), [1, *rest, _] if len(rest) == 1:
            y = y + rest[0]
        case _:
            y = y * 9
    return y


def values(x):
    match int(x[0]):
        case 7:
            return x
        case 1 | 2 | 3:
            y = x + 10
        case k if k > 20:
            y = x * k
        case k:
            y = x - k
    match x[1] > 0:
        case True:  # NumPy's true is another object
            y = y * 2
        case _:
            y = y + 1
    return y


def in_loops(x):
    for k in range(4):
        match k:
            case 0:
                x = x + 1
            case 1:
                if x[0] > 0:
                    continue
                x = x * 5
            case 2 if x[1] > 0:
                break
            case None | 3:
                x = x - 3
    return x, k


def identity(x):
    large = int(x[0]) > 2
    y = x * 2 if large is True else x
    if large is not False:
        y = y + 1
    match large:
        case True:
            y = y + 3
        case False:
            y = y - 3
    return y


@pytest.mark.parametrize("f", [all_clauses, jumps, last_word, other_kinds])
def test_try_where_nothing_is_raised(f) -> None:
    agrees(f, *ARRAYS)


@pytest.mark.parametrize("f", [patterns, in_loops, identity])
def test_match(f) -> None:
    agrees(f, *ARRAYS)


def test_match_on_values_and_shapes() -> None:
    agrees(values, *ARRAYS, (np.array([2, 1, 3]),))
    agrees(patterns, (np.ones((2, 3)),))
    agrees(patterns, (np.ones((2, 3, 1)),))


def index(x):
    try:
        return x[int(x[1])]
    except IndexError:
        return x[0]


def lookup(x):
    try:
        y = {}["a"]
    except KeyError:
        y = x
    return y


def division(x):
    try:
        y = 1 // int(x[0])
    except ArithmeticError:
        y = 5
    return y


def positive(x):
    if x[0] <= 0:
        raise ValueError("not positive")
    return x


def deep(x):
    try:
        x = positive(x)
    except (TypeError, ValueError):
        x = -x
    return x


def asserted(x):
    try:
        assert x[0] > 0
    except:  # noqa: E722
        x = x + 1
    return x


@pytest.mark.parametrize(
    ("f", "why"),
    [(index, "out of bounds"), (lookup, "KeyError: 'a'"), (division, "by zero"), (deep, "not positive"),
     (asserted, "assertion")],
)  # fmt: skip
def test_handlers_that_would_run_are_refused(f, why: str) -> None:
    with pytest.raises(Unsupported, match=rf"try ×1 at test_python_try_match\.py:\d+: a handler for .*{why}"):
        agrees(f, *ARRAYS)


def test_refusals_inside_pass_handlers() -> None:
    def f(x):
        try:
            return np.linalg.inv(x)
        except Exception:
            return x

    with pytest.raises(Unsupported, match=r"np\.linalg\.inv"):
        agrees(f, (np.eye(2),))


def test_patterns_that_are_not_compiled_are_refused_by_line() -> None:
    def f(x):
        match x:
            case {"a": y}:
                return y
            case complex(real=0):
                return x
            case (1, y) | (y, 2):
                return y

    with pytest.raises(Unsupported) as e:
        check(f)
    for text in ("on a mapping", "on attributes of a class", "names inside |"):
        assert text in str(e.value)
