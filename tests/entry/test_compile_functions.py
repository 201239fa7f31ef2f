"""cuvil.compile on functions, methods and classes: signatures, captured values, levels, ahead of time, refusals."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cuvil  # noqa: E402
from cuvil_hw.entry.decorator import CompiledFunction  # noqa: E402

CAPTURED = np.ones(3, np.float32)
LIST: list[object] = []


def test_a_decorated_function_compiles_once_for_each_signature() -> None:
    calls = []

    @cuvil.compile
    def f(x, n=2):
        "Doubles."
        return {"y": x * n, "n": n}

    assert (f.__name__, f.__doc__, type(f)) == ("f", "Doubles.", CompiledFunction)
    x = torch.ones(3)
    for args in ((x,), (x * 5,), (x, 3), (x.numpy(),)):
        got, want = f(*args), f.__wrapped__(*args)
        assert type(got["y"]) is type(want["y"])
        assert np.array_equal(got["y"], want["y"])
        assert got["n"] == want["n"]
        calls.append(len(f.executables))
    assert calls == [1, 1, 2, 3]


def test_what_a_function_reads_from_outside_is_watched() -> None:
    class Scaled:
        def __init__(self) -> None:
            self.w, self.k = torch.ones(3), 3

        @cuvil.compile(target="cpu", opt_level=1)
        def apply(self, x):
            return x * self.w * self.k if x.sum() > 0 else x

    scaled, x = Scaled(), torch.ones(3)
    assert scaled.apply(x).tolist() == [3, 3, 3]
    scaled.w[0] = 7
    assert scaled.apply(x).tolist() == [21, 3, 3]
    scaled.k = 2
    assert scaled.apply(-x).tolist() == [-1, -1, -1]
    assert scaled.apply(x).tolist() == [14, 2, 2]


def test_a_call_changes_its_arguments_and_raises_as_python_does() -> None:
    @cuvil.compile
    def f(x):
        assert x.sum() > 0, "positive wanted"
        x[0] = 5
        return x, float(x.sum())

    x = np.ones(3, np.float32)
    y, total = f(x)
    assert y is x
    assert (x.tolist(), total) == ([5, 1, 1], 7.0)
    with pytest.raises(AssertionError, match=r"test_compile_functions\.py:\d+: assertion failed: positive wanted"):
        f(-x)
    with pytest.raises(TypeError, match="missing a required argument"):
        f()


def test_module_classes_and_ahead_of_time(tmp_path) -> None:
    @cuvil.compile
    class Signed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, x):
            y = self.linear(x)
            return y if y.sum() > 0 else -y

    model, x = Signed(), torch.randn(3)
    want = model.linear(x).detach().numpy()
    assert np.allclose(model(x).numpy(), want if want.sum() > 0 else -want, rtol=1e-5, atol=1e-6)

    def halved(x, n):
        while x.max() > n:
            x = x / 2
        return {"x": x, "n": n}

    program = cuvil.compile(halved, "cpu", example_inputs=(np.ones(2, np.float32), 3), max_trips=4)
    program.save(tmp_path / "halved.cuvil")
    x = np.array([1, 40], np.float32)
    for each in (program, cuvil.load(tmp_path / "halved.cuvil")):
        got = each(x, 3)
        assert (got["x"].tolist(), got["n"]) == ([0.0625, 2.5], 3)
        with pytest.raises(cuvil.CuvilError, match="more than 4 trips"):
            each(x * 2, 3)


def test_levels_show_in_the_sources_and_keep_the_bits() -> None:
    class Net(torch.nn.Module):
        def forward(self, x, w):
            return torch.relu(x @ w + 3) - 1

    # Sums of small integers are exact in any order.
    x, w = torch.randint(-99, 99, (5, 40)).float(), torch.randint(-99, 99, (40, 70)).float()
    programs = [cuvil.compile(Net(), "cpu", example_inputs=(x, w), opt_level=level) for level in range(4)]
    assert len({p(x, w).numpy().tobytes() for p in programs}) == 1
    kernels = [p.sources["model.c"].count("static void ") for p in programs]
    assert kernels[0] > kernels[1] == kernels[2]
    assert len({p.artifact.files[n] for p in programs for n in p.artifact.files if n.endswith(".so")}) == 4
    with pytest.raises(cuvil.CuvilError, match="opt_level is 4"):
        cuvil.compile(Net(), "cpu", example_inputs=(x, w), opt_level=4)


def many(x):
    global LIST
    x.note = 1
    CAPTURED[0] = 2
    LIST.append(x)
    try:
        y = random.random()
    except ValueError:
        y = 0.0
    print(y)
    return helper(x) + time.time()


def helper(x):
    yield x


def test_all_that_is_refused_is_told_at_once_by_line() -> None:
    with pytest.raises(cuvil.Unsupported) as told:
        cuvil.compile(many)(torch.ones(3))
    first = many.__code__.co_firstlineno
    where = [int(r.where[0].rpartition(":")[2]) - first for r in told.value.refusals]
    assert where == sorted(where)
    assert where[:7] == [1, 2, 3, 4, 6, 9, 10]
    assert where[-1] == helper.__code__.co_firstlineno + 1 - first
    assert {r.op for r in told.value.refusals} >= {"global", "print", "yield", "random.random", "time.time"}


def unassigned(x):
    if x.sum() > 0:
        y = 1
    return x + y


def disagreeing(x):
    return x if x.sum() > 0 else x[:2]


def filtered(x):
    return [v for v in x if v > 0]


def masked(x):
    return x[x > 0]


def appended(x):
    found = []
    if x.sum() > 0:
        found.append(x)
    return found


def shown(x):
    return f"{x.sum()}"


def descending(x):
    return descending(x - 1) if x.sum() > 0 else x


def unclear(x):
    return x if x > 0 else -x


REFUSED = [
    (unassigned, "'y' may have no value here", 3),
    (disagreeing, "same shape and dtype", 1),
    (filtered, "condition of a comprehension", 1),
    (masked, "computed mask selects", 1),
    (appended, "known at run time only", 3),
    (shown, "a text can't hold|can't hold values", 1),
    (descending, "write it as a while loop", 1),
    (unclear, "the truth of an array of shape", 1),
]


@pytest.mark.parametrize(("f", "text", "line"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_what_depends_on_values_is_refused_with_its_line(f, text: str, line: int) -> None:
    for x in (torch.ones(3), np.ones(3, np.float32)):
        with pytest.raises(cuvil.CuvilError, match=text) as told:
            cuvil.compile(f)(x)
        assert f"test_compile_functions.py:{f.__code__.co_firstlineno + line}" in str(told.value)


def test_a_function_without_source_is_refused() -> None:
    made: dict[str, object] = {}
    exec("def f(x):\n    return x", made)
    with pytest.raises(cuvil.CuvilError, match="has no source to read"):
        cuvil.compile(made["f"])(torch.ones(3))
