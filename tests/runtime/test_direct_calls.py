"""Calls on the shortest way, through call.c: results and errors are those of the general way; programs are closed and
used by many threads at once."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw import ops
from cuvil_hw.ir.program import Builder
from cuvil_hw.runtime import shim
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.types import TensorType as T

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]
X = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def program() -> Iterator[Executable]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    with cuvil.compile(model, "cpu", X) as made:
        made.open()
        assert made._direct is not None, "there are Python headers and a compiler here"
        yield made


@pytest.fixture(scope="module")
def general(program: Executable) -> Iterator[Executable]:
    """The same program without the shim."""
    with pytest.MonkeyPatch.context() as patch, Executable(program.artifact) as made:
        patch.setenv(shim.VARIABLE, "ctypes")
        made.open()
        assert made._direct is None
        yield made


class Foreign:
    """An array of another library, such as JAX or CuPy."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def misaligned() -> Any:
    memory = np.zeros(X.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(X.shape)
    memory[...] = X
    return memory


ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "array": lambda: (X,),
    "read-only": lambda: (np.frombuffer(X.tobytes(), np.float32).reshape(1, 16),),
    "strided": lambda: (np.repeat(X, 2, axis=1)[:, ::2],),
    "misaligned": lambda: (misaligned(),),
    "big endian": lambda: (X.astype(">f4"),),
    "double": lambda: (X.astype(np.float64),),
    "several": lambda: (np.concatenate([X, 2 * X]),),
    "none at all": lambda: (X[:0],),
    "integers": lambda: (np.zeros((1, 16), np.int32),),
    "list": lambda: (X.tolist(),),
    "scalar": lambda: (1.0,),
    "shape": lambda: (X.reshape(16),),
    "masked": lambda: (np.ma.masked_array(X),),
    "nothing": tuple,
    "too many": lambda: (X, X),
    "tensor": lambda: (torch.from_numpy(X),),
    "foreign": lambda: (Foreign(X),),
    "None": lambda: (None,),
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_results_and_errors_are_those_of_the_general_way(program: Executable, general: Executable, what: str) -> None:
    def outcome(run: Executable) -> tuple[Any, ...]:
        try:
            made = run(*ARGUMENTS[what]())
        except cuvil.CuvilError as e:
            return type(e), str(e)
        return type(made), made.dtype, made.shape, np.asarray(made).tobytes()

    assert outcome(program) == outcome(general)


def test_outputs_are_fresh_and_may_be_several() -> None:
    builder = Builder([("a", T((2, 3), "i32")), ("b", T((2, 3), "i32"))])
    total = builder.op(ops.Add(), builder.input(0), builder.input(1))
    a, b = np.arange(6, dtype=np.int32).reshape(2, 3), np.full((2, 3), 7, np.int32)
    with cuvil.compile(builder.finish([("sum", total), ("less", builder.op(ops.Neg(), total))])) as program:
        for _ in range(3):
            first, second = program(a, b), program(b, a)
            assert not any(np.shares_memory(x, y) for x in first for y in (*second, a, b))
            for made in (first, second, program(b=b, a=a), program(a=a, b=b)):
                np.testing.assert_array_equal(made[0], a + b)
                np.testing.assert_array_equal(made[1], -(a + b))


def test_bound_arrays(program: Executable, general: Executable) -> None:
    for run in (program, general):
        x, y = X.copy(), np.empty((1, 8), np.float32)
        call = run.bind(x, out=y)
        for k in range(3):
            x[...] = X * k
            assert call() is y
            np.testing.assert_array_equal(y, general(X * k))
        tensor = torch.from_numpy(X.copy())
        call = run.bind(tensor)
        tensor *= 2
        np.testing.assert_array_equal(call(), general(2 * X))
        np.testing.assert_array_equal(run.bind(Foreign(X))(), general(X))
        three = np.concatenate([X, -X, X / 2])
        np.testing.assert_array_equal(run.bind(three)(), general(three))
        for out in (
            np.empty((8,), np.float32),
            np.empty((1, 8)),
            [y, y],
            np.empty((1, 16), np.float32)[:, ::2],
            [None],
        ):
            with pytest.raises(cuvil.InputError, match="out "):
                run.bind(x, out=out)
        with pytest.raises(cuvil.InputError, match="expected"):
            run.bind(np.zeros((1, 17), np.float32))


def test_state_is_kept_by_bound_calls() -> None:
    builder = Builder([("x", T((4,), "i32")), ("total", T((4,), "i32"))])
    total = builder.op(ops.Add(), builder.input(0), builder.input(1))
    with cuvil.compile(builder.finish([("y", total), ("next", total)]), state={"total": "next"}) as program:
        x, y = np.ones(4, np.int32), np.zeros(4, np.int32)
        call = program.bind(x, out=y)
        assert [int(call()[0]) for _ in range(3)] == [1, 2, 3]


def test_many_threads_get_the_same_bits_in_the_same_memory(program: Executable) -> None:
    inputs = [np.random.default_rng(n).standard_normal((1, 16)).astype(np.float32) for n in range(64)]
    wanted = [program(x).tobytes() for x in inputs]

    def many(n: int, calls: int = 300) -> int:
        return sum(program(inputs[n]).tobytes() != wanted[n] for _ in range(calls))

    with ThreadPoolExecutor(64) as pool:
        assert sum(pool.map(many, range(64))) == 0
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert sum(pool.map(many, range(64))) == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 << 10  # KiB


def test_closed_while_threads_call(program: Executable) -> None:
    wanted = program(X).tobytes()
    twin = Executable(program.artifact)
    twin.open()
    started, wrong, errors = threading.Barrier(9), [], []

    def work() -> None:
        started.wait()
        try:
            while True:
                if twin(X).tobytes() != wanted:
                    wrong.append(1)
        except cuvil.DeviceError as e:
            errors.append(str(e))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    bound = twin.bind(X)
    started.wait()
    twin.close()
    for thread in threads:
        thread.join(60)
    assert (wrong, len(errors)) == ([], 8)
    assert all("is closed" in text for text in errors)
    with pytest.raises(cuvil.DeviceError, match="is closed"):
        bound()


def test_without_headers_calls_go_through_ctypes(program: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim.sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    shim._module.cache_clear()
    try:
        with Executable(program.artifact) as twin:
            np.testing.assert_array_equal(twin(X), program(X))
            assert twin._direct is None
    finally:
        shim._module.cache_clear()
