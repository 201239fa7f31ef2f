"""Compiled functions are never stale: what they read from outside is read again at each call."""

from __future__ import annotations

import functools
import os
import sys
from contextlib import contextmanager, nullcontext
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cuvil  # noqa: E402
from cuvil_hw import api  # noqa: E402
from cuvil_hw.entry import decorator  # noqa: E402
from cuvil_hw.frontend.python import load  # noqa: E402
from cuvil_hw.frontend.python.captured import digest, fingerprint  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402
from tests.support.captured_random import HEADER, KINDS, loaded, stale  # noqa: E402

SEEDS = range(20)


def test_random_state_changed_between_calls(tmp_path) -> None:
    assert stale(SEEDS, tmp_path) == []


class _Reference:
    """An executable that computes by the ops' meaning: these tests are about which program runs."""

    def __init__(self, program) -> None:
        self.program = program

    def run(self, *arrays):
        values = [x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in arrays]
        return type("Run", (), {"outputs": [np.array(v) for v in evaluate(self.program, values)]})


@pytest.fixture
def reference(monkeypatch):
    compiled = []

    def compile(program, *args, **kwargs):
        compiled.append(program)
        return _Reference(program)

    monkeypatch.setattr(api, "compile", compile)
    monkeypatch.setattr(decorator.api, "compile", compile)
    return compiled


def test_every_kind_of_state_in_one_function(tmp_path, reference) -> None:
    parts = [(k, str(i)) for i, k in enumerate(KINDS) if k.setup]
    setups = "\n".join(k.setup.replace("$", i) for k, i in parts)
    values = "".join(f"    y = y + {k.value.replace('$', i)}\n" for k, i in parts)
    made = loaded(HEADER + setups + f"\n\ndef f(x):\n    y = x * 1\n{values}    return y\n", tmp_path, "all_kinds")
    compiled, x = cuvil.compile(made.f), torch.tensor([1.0, 2.0])
    for _ in range(2):
        assert torch.allclose(compiled(x), made.f(x), rtol=1e-5)
    assert len(reference) == 1
    for kind, i in parts:
        exec(kind.changes[0].replace("$", i), vars(made))
    assert torch.allclose(compiled(x), made.f(x), rtol=1e-5)
    assert len(reference) == 2


class Settings:
    factor = 1.0
    unused = 0


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self._scale = torch.nn.Linear(2, 2, bias=False), 1.0

    def forward(self, x):
        return self.linear(x) * self._scale * Settings.factor


def test_what_is_not_read_may_change(reference, monkeypatch) -> None:
    compiled = cuvil.compile(lambda x: x * Settings.factor)
    x = torch.ones(2)
    assert compiled(x).tolist() == [1, 1]
    monkeypatch.setattr(Settings, "unused", 5)
    monkeypatch.setattr(Settings, "factor", 1.0)
    assert compiled(x).tolist() == [1, 1]
    assert len(reference) == 1
    monkeypatch.setattr(Settings, "factor", 10)
    assert compiled(x).tolist() == [10, 10]


def test_a_module_follows_its_weights_and_hooks(reference, monkeypatch) -> None:
    layer, x = Layer(), torch.tensor([1.0, 2.0])
    forward = layer.forward
    compiled = cuvil.compile(layer)

    def check(count: int) -> None:
        assert torch.allclose(compiled(x), forward(x))
        assert len(reference) == count

    check(1)
    layer.linear.weight.data.mul_(2)
    check(2)
    layer.linear.weight.detach().numpy()[0, 0] = 7
    check(3)
    layer._scale = 3.0
    check(4)
    handle = layer.linear.register_forward_hook(lambda module, given, made: made + 1)
    check(5)
    handle.remove()
    check(5)
    monkeypatch.setattr(Settings, "factor", 2.0)
    check(6)


def test_settings_of_torch_are_part_of_a_call(reference) -> None:
    compiled = cuvil.compile(lambda x, w: (x @ w, torch.ones(2)))
    x, w = torch.ones(2, 2), torch.full((2, 2), 1 + 2**-10)
    plain = compiled(x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = compiled(x, w)[0]
        assert narrow.dtype == torch.bfloat16
        assert torch.equal(narrow, x @ w)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(x, w)[1].dtype == torch.float64
    finally:
        torch.set_default_dtype(before)
    again = compiled(x, w)
    assert torch.equal(again[0], plain[0])
    assert again[1].dtype == before
    assert len(reference) == 3


def test_partial_objects_and_arguments_that_are_objects(reference) -> None:
    def scaled(x, k=1, *, config):
        return x * k * config.k

    config = type("Config", (), {"k": 2})()
    compiled = cuvil.compile(functools.partial(scaled, config=config))
    x = torch.ones(2)
    assert compiled(x).tolist() == [2, 2]
    config.k = 5
    assert compiled(x).tolist() == [5, 5]
    direct = cuvil.compile(scaled)
    assert direct(x, config=config).tolist() == [5, 5]
    config.k = 6
    assert direct(x, config=config).tolist() == [6, 6]


def test_digests_of_large_arrays_tell_changes_apart() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(1 << 16).astype(np.float32)
    changed = [values, -values, values[::-1], np.roll(values, 1), np.roll(values, 1 << 13)]
    for pair in ((0, 2), (1, 3), (7, 40007), (0, 1), (65534, 65535)):
        for change in (lambda v: -v, lambda v: v[::-1], lambda v: v * 2):
            other = values.copy()
            other[list(pair)] = change(other[list(pair)])
            changed.append(other)
    assert len({digest(v) for v in changed}) == len(changed)
    assert digest(values) == digest(values.copy())


@pytest.mark.parametrize("shape", [0, (3, 0), 2, ()])
def test_arrays_of_objects_are_told_apart_by_what_they_hold(shape) -> None:
    def of(array):
        return fingerprint(array, {})

    one, other = np.full(shape, 1, object), np.full(shape, 2, object)
    assert of(one) == of(one.copy())
    assert (of(one) == of(other)) == (one.size == 0)
    pair = np.zeros(1, [("a", object), ("b", "i4")])
    assert of(pair[0]) == of(pair.copy()[0])


def test_lists_that_the_function_fills_are_its_own(reference) -> None:
    def f(x):
        parts, named = [], {}
        for i in range(3):
            parts.append(x + i)
            named.update({i: x * i})
        return torch.stack(parts).sum(0) + named[2]

    compiled = cuvil.compile(f)
    for _ in range(2):
        assert compiled(torch.ones(2)).tolist() == [8, 8]
    assert len(reference) == 1


class Own(np.ndarray):
    """An array whose operations may be its own, as np.matrix's are."""


@pytest.mark.parametrize("array", [np.ones(2).view(Own), np.ma.masked_array([1.0, 2.0], [0, 1])])
def test_arrays_with_operations_of_their_own_are_refused(array) -> None:
    with pytest.raises(cuvil.CuvilError, match=r"x is a .*np.asarray"):
        cuvil.compile(lambda x: x * x)(array)
    with pytest.raises(cuvil.Unsupported, match=r"array .*is a .*np.asarray"):
        cuvil.compile(lambda x: x * array)(np.ones(2))


class Threads:
    """Its operator runs as it is: it isn't rewritten."""

    def __radd__(self, x):
        return x + torch.get_num_threads()


THREADS = Threads()


def settings(x):
    values = [len(sys.argv), len(os.environ), torch.get_num_threads(), np.geterr()["divide"] == "warn"]
    for on in (
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.mha.get_fastpath_enabled(),
    ):
        values.append(2 if on else 3)
    with torch.no_grad():
        return x.new_tensor([*values, 1 if torch.is_grad_enabled() else 2])


def operators(x):
    return x + THREADS


@contextmanager
def switched(switch, value):
    """A setting of the process, changed for a while."""
    switch(value)
    try:
        yield
    finally:
        switch(not value if isinstance(value, bool) else value - 1)


CHANGES = {
    "grad": torch.no_grad,
    "errors": lambda: np.errstate(divide="raise"),
    "arguments": lambda: mock.patch.object(sys, "argv", [*sys.argv, "more"]),
    "environment": lambda: mock.patch.dict(os.environ, {"CUVIL_TEST_CAPTURED": "1"}),
    "threads": lambda: switched(torch.set_num_threads, torch.get_num_threads() + 1),
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True),
    "tf32": lambda: switched(lambda v: setattr(torch.backends.cuda.matmul, "allow_tf32", v), True),
    "fast path": lambda: switched(torch.backends.mha.set_fastpath_enabled, False),
}


def test_settings_of_the_process_are_read_again() -> None:
    x = torch.ones(2)
    given = load.arguments(settings, (x,), {})
    reads = load.trace_function(settings, given, 8, "settings").reads
    for name, change in CHANGES.items():
        with change():
            assert not reads.unchanged(), name
        assert reads.unchanged(), name


def test_a_program_has_the_settings_of_its_call(reference) -> None:
    x = torch.ones(2)
    compiled = cuvil.compile(settings), cuvil.compile(operators)
    for change in (nullcontext, CHANGES["grad"], CHANGES["threads"]):
        with change():
            for fast in compiled:
                assert fast(x).tolist() == fast.__wrapped__(x).tolist()
    assert len(reference) == 5


def reads_cudnn(x):
    return x + (1 if torch.backends.cudnn.enabled else 2)


def sets_threads(x):
    torch.set_num_threads(1)
    return x


def sets_errors(x):
    np.seterr(divide="ignore")
    return x


def reads_state(x):
    return x + torch.get_rng_state().sum()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (reads_cudnn, "torch.backends.cudnn.enabled .* isn't the same while a function is compiled"),
        (sets_threads, "torch.set_num_threads .* test_captured.py:.* changes a setting of the process"),
        (sets_errors, "np.seterr .* changes a setting of the process"),
        (reads_state, "torch.get_rng_state .* random"),
    ],
)
def test_settings_that_are_refused(function, why) -> None:
    with pytest.raises(cuvil.Unsupported, match=why):
        cuvil.compile(function)(torch.ones(2))
