"""Python functions: control flow, NumPy and torch, in-place changes, captured values; against a run of Python."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuvil_hw.frontend.python.trace import Trace, tracing  # noqa: E402
from cuvil_hw.frontend.python.values import Cond, Phi, truth  # noqa: E402
from tests.support.python_runner import agrees  # noqa: E402

W = np.array([1.0, 2.0, 3.0], np.float32)
T = torch.tensor([1.0, -1.0, 2.0])
SCALE = 3
CONFIG = {"k": 2, "w": W}
LINEAR = torch.nn.Linear(3, 3)
VALUES = ([0.5, 1.5, -0.25], [-1.5, -4.5, 0.75], [4.0, 0.0, 2.5], [0.0, -0.0, 0.25])


def tensors() -> list[tuple[torch.Tensor]]:
    return [(torch.tensor(v),) for v in VALUES]


def arrays() -> list[tuple[np.ndarray]]:
    return [(np.array(v, np.float32),) for v in VALUES]


def both_ways(x):
    if x.sum() > 0:
        y = x * 2
    elif x[0] > -1:
        y = x - 1
    else:
        y = -x
    return y


def early_returns(x):
    if x.sum() > 0:
        return x + 1
    if x[0] > 0:
        return x + 2
    for i in range(3):
        if x[i] < -1:
            return x * i
    return x


def loop_with_break(x):
    s = x.sum() * 0
    for i in range(3):
        if x[i] > 1:
            continue
        if x[i] < -2:
            break
        s = s + x[i]
    else:
        s = s + 100
    return s


def growing(x):
    i = 0
    y = abs(x) + 1
    while y.sum() < 20:
        i += 1
        if i % 2 == 0:
            continue
        y = y + i
        if y.max() > 7:
            break
    else:
        y = y * 2
    return y, i


def endless_until(x):
    def step(v):
        moved = v + SCALE
        return moved if moved.sum() > 3 else v + 1

    i = 0
    while True:
        x = step(x)
        i += 1
        if x.max() > 10:
            break
        if i > 4:
            return -x, i
    return x, i


def logic(x):
    if 0 < x.sum() < 2 and not (x > 1).any():
        return x
    if x[0] > 3 or x[1] > 3:
        return -x
    return x * 0 if x[2] > 0 else x + 1


def numbers(x):
    m = float(x.max())
    k = int(abs(x).sum())
    count = 0
    for _ in range(k):
        count += 2
        if count > 7:
            break
    return m * 2 + count, k // 2, k % 3, math.sqrt(abs(m)), count, x.sum().item() > 1, -k // 2


def searching(x):
    best, where = x[0], 0
    for i, v in enumerate(x):
        if v > best:
            best, where = v, i
    k = int(x.argmax())
    return best + 0, where, x[k] * 1, x[k - 1] * k, W[k], max(x[0] * 1, x[1] * 1), sum(x), any(v > 1 for v in x)


def changes(x):
    y = x
    y[0] = 7
    x += 1
    if x[1] > 1:
        z = x
    else:
        z = x * 2
    z[2] = 9
    if z[1] > 0:
        x[0] = -1
    return z * 1, y.sum()


def swapped(x):
    x[0], x[2] = x[2] + 0, x[0] + 0
    d = {"a": x[0] * 1}
    d["a"] += x[1]
    parts = [x * 1]
    parts.append(x + 1)
    del parts[0]
    return d, parts, tuple(p for p in parts)


def checked(x):
    assert x.sum() > -10, "too small"
    if x[0] > 3:
        raise ValueError("too large")
    return x + 1


def closures(x):
    double = functools.partial(scaled, by=2)
    both = functools.reduce(lambda a, b: a + b, map(double, [x, x + 1]))
    return apply(lambda v: v - CONFIG["k"], both), LINEAR(both) + T[1:].sum(), fib(x, 5)


def scaled(x, by):
    return x * by if x.sum() > by else x


def apply(f, *args, **kwargs):
    return f(*args, **kwargs)


def fib(x, n):
    return x if n < 2 else fib(x, n - 1) + fib(x, n - 2)


def numpy_functions(x):
    out = np.zeros(3, np.float32)
    for i, v in enumerate(x):
        out[i] = v * 2 if v > 0 else -v
    ints = x.astype(np.int32)
    ordered = np.concatenate([x, np.where(x > 0, x, 0)])[::-1]
    sums = x.mean(), np.sum(ints), np.mean(ints), np.std(x), np.cumsum(x), np.argmax(x), x.sum(axis=0, keepdims=True)
    types = np.float64(2) * x, x * 1.5, np.arange(3) * x, ints // 2, ints % -2, x // 2, x % 2, ints / 2, x**2
    others = np.sign(x), np.rint(x * 0.5), np.maximum(x, np.nan), np.outer(x, W), x @ W, np.stack([x, x]).T
    padded = np.pad(x, (1, 0), constant_values=2), np.pad(ints, 2, mode="reflect"), np.pad([x, x], ((0, 1), (2, 0)))
    rounded = np.fix(x), np.floor(x > 0), np.heaviside(x * np.nan, 1), np.mean([x, x + 1], axis=0), np.add([x, x], x)
    return out, ordered, sums, types, others, padded, rounded, CONFIG["w"] * x


def torch_functions(x):
    y = torch.zeros(3)
    for i in range(3):
        y[i] = x[i] * (i + 1)
        if y[i] > 1:
            y[i] -= 1
    y.clamp_(min=-3)
    return y, torch.stack(list(x)), torch.where(x > 0, x, 0.0), x.numpy().sum() * 1, torch.from_numpy(np.array(W)) + x


@pytest.mark.parametrize(
    "f",
    [both_ways, early_returns, loop_with_break, growing, endless_until, logic, numbers, changes, swapped, checked],
)
def test_arrays_and_tensors(f) -> None:
    agrees(f, *tensors())
    agrees(f, *arrays())


@pytest.mark.parametrize("f", [closures, torch_functions])
def test_tensors(f) -> None:
    agrees(f, *tensors())


@pytest.mark.parametrize("f", [searching, numpy_functions])
def test_arrays(f) -> None:
    agrees(f, *arrays())


def made_arrays(x):
    whole = np.full(shape=(3,), fill_value=x.sum())
    return (
        np.full_like(x, 1.7, np.int16),
        np.full_like(x, fill_value=2.5, dtype=np.float64, shape=(2, 3)),
        np.full((2, 3), x, np.int32),
        np.full(np.int64(3), x[0], "f8"),
        np.array(x, ndmin=3),
        np.array(object=x[0].item(), dtype=np.float32, ndmin=1),
        np.array([x[0], 2.0], np.float64),
        np.asarray(x, np.float16),
        np.ascontiguousarray(x[1]),
        np.copy(x, "C"),
        whole,
    )


def copies_and_views(x):
    table = x.reshape(3, 1) * np.ones((3, 2), np.float32)
    view, copied, turned = np.array(table, copy=None, ndmin=3), np.array(table, ndmin=3), np.ascontiguousarray(table.T)
    same, columns = np.ascontiguousarray(table), np.full((3, 2), x[0], order="F")
    again, rows = np.asarray(columns, order="F"), np.asarray(columns, order="C")
    table[0, 1] = 9
    turned[1, 2] = -1
    same[2, 0] = 7
    columns[1, 1] = 5
    return table, view, copied, turned, again, rows


@pytest.mark.parametrize("f", [made_arrays, copies_and_views])
def test_arrays_are_made_as_numpys_arguments_say(f) -> None:
    agrees(f, *arrays())


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda x: np.asarray([1.0], like=x), "like="),
        (lambda x: np.full_like(x, 1, device="cuda"), "device="),
    ],
)
def test_what_making_arrays_can_not_heed_is_refused(make, named: str) -> None:
    from cuvil_hw.errors import Unsupported

    with pytest.raises(Unsupported, match=named):
        agrees(make, *arrays())


@pytest.mark.parametrize(
    "make", [lambda x: np.array(x, np.float64, copy=False), lambda x: np.full_like(x), lambda x: np.copy(x, "Z")]
)
def test_wrong_calls_raise_as_numpys_do(make) -> None:
    with pytest.raises((ValueError, TypeError)) as numpys:
        make(np.ones(3, np.float32))
    with pytest.raises(type(numpys.value)):
        agrees(make, *arrays())


def test_reversed_and_stepped_slices_of_arrays() -> None:
    def f(x):
        return x[::-1], x[:, ::-2], x[::-1, 1:], x[-1, None], x[..., 0], x[1, 2] + 1, x[np.array([0, 1, 0])]

    agrees(f, (np.arange(12, dtype=np.int16).reshape(3, 4),))


def test_integer_division_of_arrays_by_zero_is_numpys() -> None:
    def f(x, y):
        return x // y, x % y, x << 1, ~x, -x, x.sum(), x.prod(), np.abs(x)

    x, y = np.array([7, -7, 5, -128], np.int8), np.array([2, 2, 0, 3], np.int8)
    with np.errstate(divide="ignore"):
        agrees(f, (x, y))


def test_ops_name_the_lines_of_the_function() -> None:
    traced = agrees(both_ways, *tensors())
    first = both_ways.__code__.co_firstlineno
    text = traced.program.text()
    for line in (1, 2, 4, 6):
        assert f"test_python_functions.py:{first + line}" in text
    assert "/python/" not in text


def test_a_loop_that_needs_more_trips_raises() -> None:
    def f(x):
        while x.sum() < 100:
            x = x * 2
        return x

    from cuvil_hw.errors import GuardError
    from cuvil_hw.frontend.python import load
    from tests.support.python_runner import on_reference

    traced = load.trace_function(f, load.arguments(f, (torch.ones(2),), {}), 3, "f")
    assert on_reference(traced, load.arguments(f, (torch.full((2,), 7.0),), {})).tolist() == [56.0, 56.0]
    with pytest.raises(GuardError, match=r"test_python_functions\.py:\d+: a loop needs more than 3 trips"):
        on_reference(traced, load.arguments(f, (torch.full((2,), 6.0),), {}))


def test_choices_that_share_parts_are_looked_at_once() -> None:
    with tracing(Trace(4)) as trace:
        flag = Cond(trace.conditions.atom(torch.tensor(True)))
        choice = flag
        for _ in range(60):
            choice = Phi(trace.conditions.atom(torch.tensor(True)), choice, choice)
        assert truth(choice) == flag.node
