"""Random functions with nested control flow: compiled, they give and change what they do in Python, to the bit."""

from __future__ import annotations

import copy
import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cuvil  # noqa: E402
from cuvil_hw.frontend.python import load, result  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402
from tests.support.python_random import HEADER, function  # noqa: E402

SEEDS = range(64)
ON_CPU = 5
TOGETHER = (0, 12, 24, 38, 50, 62)
CALLS = 4


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """The functions need a file: that is where their source is read from."""
    path = tmp_path_factory.mktemp("random") / "random_functions.py"
    calls = ", ".join(f"f{seed}(a.copy(), b.copy(), flag)" for seed in TOGETHER)
    together = f"\ndef together(a, b, flag):\n    return {calls}\n"
    text = "\n".join(function(seed, f"f{seed}") for seed in SEEDS)
    path.write_text(HEADER + text + together, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("random_functions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def arguments(seed: int, call: int):
    rng = np.random.default_rng((seed, call))
    arrays = [rng.integers(-8, 9, 3).astype(np.float32) * np.float32(0.25) for _ in range(2)]
    given = [torch.from_numpy(a) for a in arrays] if seed % 2 else arrays
    return (*given, bool(seed % 3))


def on_reference(traced: load.Traced, args):
    """Run on the reference; what the program changes is changed in `args`."""
    arrays = [np.asarray(a) for a in args[:2]]
    names = [n for n, _ in traced.program.outputs]
    outputs = {n: np.array(v) for n, v in zip(names, evaluate(traced.program, arrays), strict=True)}
    calling = traced.program.calling
    assert all(outputs[g.output].all() for g in calling.guards)
    for write in calling.writes:
        arrays[("a", "b").index(write.input)][...] = outputs[write.output]
    visible = [v for n, v in outputs.items() if n not in calling.kept_outputs]
    return result.rebuilt(traced, visible, list(args[:2]))


def same(got, want, seed: int) -> None:
    assert [type(v) for v in got] == [type(v) for v in want], seed
    assert np.array_equal(np.asarray(got[0]), np.asarray(want[0])), seed
    assert got[1:] == want[1:], seed


def agree(run, f, seed: int) -> None:
    for call in range(CALLS):
        args = arguments(seed, call)
        mine = copy.deepcopy(args)
        want, got = f(*args), run(mine)
        same(got, want, seed)
        changed = [np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(args[:2], mine[:2], strict=True)]
        assert all(changed), (seed, args, mine)


@pytest.mark.parametrize("seed", SEEDS)
def test_reference(functions, seed: int) -> None:
    f = functions[f"f{seed}"]
    given = load.arguments(f, arguments(seed, 0), {})
    traced = load.trace_function(f, given, 8, f"f{seed}")
    agree(lambda args: on_reference(traced, args), f, seed)


def test_cpu(functions) -> None:
    f = functions[f"f{ON_CPU}"]
    compiled = cuvil.compile(f, "cpu", max_trips=8)
    agree(lambda args: compiled(*args), f, ON_CPU)
    assert len(compiled.executables) == 1


def test_several_in_one_program_on_cpu(functions) -> None:
    f = functions["together"]
    compiled = cuvil.compile(f, "cpu", max_trips=8)
    for call in range(CALLS):
        args = arguments(0, call)
        for seed, got, want in zip(TOGETHER, compiled(*args), f(*args), strict=True):
            same(got, want, seed)
    assert len(compiled.executables) == 1
