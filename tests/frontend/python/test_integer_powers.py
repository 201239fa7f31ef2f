"""Powers and divmod of integers, as PyTorch, NumPy, ONNX and Python compute them."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")

import cuvil  # noqa: E402
from cuvil_hw.errors import Unsupported  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402
from tests.support.python_runner import agrees  # noqa: E402
from tests.support.torch_oracle import check  # noqa: E402

DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def numbers(dtype: Any) -> Any:
    """Bounds of the type, small numbers, and others: products wrap."""
    info = torch.iinfo(dtype)
    some = np.random.default_rng(0).integers(info.min, info.max, 9, endpoint=True)
    small = range(-5 if info.min else 0, 12)
    return torch.tensor([info.min, info.max, info.max - 1, *small, *some.tolist()], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_of_integers_wrap(dtype: Any) -> None:
    x = numbers(dtype)
    check(lambda x: [x**n for n in (0, 1, 2, 3, 4, 7, 13, 100)], x)
    check(lambda x: [n**x for n in (2, 4, 64, 1, 0, 3, 100, 300)], x)
    check(lambda a, b: a**b, x[:, None], x)


def test_bases_below_zero_and_mixed_types() -> None:
    x = numbers(torch.int64)
    check(lambda x: [n**x for n in (-1, -2, -3)], x)
    check(lambda a, b: (a**b, b**a), numbers(torch.int8)[:, None], x)
    check(lambda x: (x**3, 2**x, x ** x.int()), torch.tensor([True, False]))
    check(lambda x: (x**2.0, 2.0**x), torch.tensor([3, -3, 5]))


def test_what_torch_does_not_allow_is_refused() -> None:
    with pytest.raises(Unsupported, match="negative integer powers"):
        check(lambda x: x**-1, torch.tensor([2, 3]))


def test_refusals_name_pythons_functions_as_users_write_them() -> None:
    for f, name in ((math.floor, "math.floor"), (round, "round"), (operator.abs, "operator.abs")):
        with pytest.raises(Unsupported, match=rf"- {name} ×1 .*number that is read from a tensor") as e:
            check(lambda x, f=f: x * f(x.sum().item()), torch.ones(3))
        assert "built-in" not in str(e.value)


def test_a_number_read_from_a_tensor_changes_its_sign() -> None:
    for x in (torch.ones(3), torch.tensor([0.25, -1.5, 1.0]), torch.zeros(3)):
        check(lambda x: x * operator.neg(x.sum().item()), x)


@pytest.mark.parametrize(("base", "exponent"), [("int64", "int64"), ("int32", "int64"), ("int64", "uint8"),
                                                ("int32", "uint64"), ("int64", "int8")])  # fmt: skip
def test_powers_of_onnx_are_exact(base: str, exponent: str) -> None:
    """Python's integers, modulo 2^width. ONNX Runtime goes through doubles: it has 3^39 wrong."""
    onnx = pytest.importorskip("onnx")
    signed = exponent[0] == "i"
    bases = (0, 1, -1, 2, -2, 3, -3, 7, 10, np.iinfo(base).min, np.iinfo(base).max)
    powers = (
        0,
        1,
        2,
        3,
        5,
        20,
        31,
        39,
        63,
        64,
        100,
        *((-1, -2, -63) if signed else (2 if exponent[-1] == "8" else 2**64 - 1,)),
    )
    a, b = (np.array([*v], t) for v, t in ((np.repeat(np.array(bases, base), len(powers)), base),
                                           (powers * len(bases), exponent)))  # fmt: skip
    want = [wrapped(exact(int(x), int(n)), base) for x, n in zip(a, b, strict=True)]
    program = load(pow_model(onnx, base, exponent, len(a)))
    assert evaluate(program, [a, b])[0].tolist() == want
    for n in (0, 2, 39):
        program = load(pow_model(onnx, base, exponent, len(a), n))
        assert evaluate(program, [a])[0].tolist() == [wrapped(exact(int(x), n), base) for x in a]


def exact(x: int, n: int) -> int:
    """A negative power gives what PyTorch gives, and ONNX Runtime but for a base of 0."""
    if n >= 0:
        return pow(x, n, 1 << 64)
    return {1: 1, -1: -1 if n % 2 else 1}.get(x, 0)


def wrapped(value: int, dtype: str) -> int:
    return int(np.array(value % (1 << 64), np.uint64).astype(dtype))


def pow_model(onnx: Any, base: str, exponent: str, count: int, fixed: int | None = None) -> Any:
    helper = onnx.helper
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in (base, exponent)]
    infos = [helper.make_tensor_value_info(n, k, [count]) for n, k in zip("ab", kinds, strict=True)]
    weights = [helper.make_tensor("b", kinds[1], [], [fixed])] if fixed is not None else []
    result = [helper.make_tensor_value_info("y", kinds[0], [count])]
    node = helper.make_node("Pow", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "g", infos[: 2 - len(weights)], result, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def powers(x: Any, n: Any) -> Any:
    return x**n, 2**n, x**5, np.power(3, n)


def quotients(x: Any, by: Any) -> Any:
    whole, rest = divmod(x, by)
    return whole, rest, divmod(x, 3), divmod(100, by), np.divmod(x, by)


def pieces(x: Any) -> Any:
    whole, rest = divmod(int(x[0]), 3)
    return x * whole + rest, x * divmod(100, int(x[1]))[1], x * divmod(float(x[1]), 0.75)[0]


def test_functions_of_arrays() -> None:
    x = np.array([7, -7, 5, 2**40, -(2**62)])
    agrees(powers, (x, np.array([3, 0, 63, 2, 1])))
    agrees(quotients, (x, np.array([2, -3, 5, -7, 10**9])), (x, np.array([-1, 1, 2, -2, 3])))
    agrees(pieces, (x,), (-x,))


@pytest.mark.needs("gcc")
def test_powers_on_the_processor() -> None:
    x, n = numbers(torch.int64), torch.arange(-3, 70)
    program = cuvil.compile(lambda a, b: (a**b, 2**b), "cpu", example_inputs=(x[:, None], n))
    for got, want in zip(program.run(x[:, None], n).outputs, (x[:, None] ** n, 2**n), strict=True):
        assert torch.equal(torch.as_tensor(got), want)
