"""The bits of elements as another type: `Tensor.view(dtype)`, `ndarray.view`, ONNX's BitCast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")

import cuvil  # noqa: E402
from cuvil_hw import ops  # noqa: E402
from cuvil_hw.errors import Unsupported  # noqa: E402
from cuvil_hw.ops.base import ShapeError, infer  # noqa: E402
from cuvil_hw.types import TensorType  # noqa: E402
from tests.support.python_runner import agrees  # noqa: E402
from tests.support.torch_oracle import check, rand  # noqa: E402

FLOATS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.float16: torch.int16}


@pytest.mark.parametrize("dtype", FLOATS)
def test_same_width(dtype: Any) -> None:
    x = torch.cat([rand(6), torch.tensor([0.0, -0.0, torch.inf, -torch.inf])]).to(dtype).reshape(2, 5)
    whole = FLOATS[dtype]
    check(lambda x: (x.view(whole), x.view(whole).view(dtype), (x.view(whole) & 3).sum(-1)), x)
    check(lambda x: x.view(dtype), x.view(whole))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int8, torch.uint8, torch.int64])
def test_other_widths(dtype: Any) -> None:
    """The last axis grows or shrinks; what stands first in memory are the lower bits."""
    bits = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 16), dtype=np.uint8))
    check(lambda x: x.view(dtype).view(torch.uint8), bits)
    x = rand(2, 8).to(torch.float64).mul(40).to(dtype)
    for other in (torch.uint8, torch.int16, torch.int32, torch.int64):
        check(lambda x, other=other: (x.view(other), x.view(other).view(dtype)), x)


def test_what_has_no_bits_is_refused() -> None:
    for f in (lambda x: (x > 0).view(torch.uint8), lambda x: x.view(torch.uint8).view(torch.bool)):
        with pytest.raises(Unsupported, match=r"booleans; write x != 0, or x.to\(torch.uint8\)"):
            check(f, rand(3))
    for given, to in (("f32", "i64"), ("f32", "bool"), ("i12", "i16"), ("i8", "i7")):
        with pytest.raises(ShapeError, match="bits"):
            infer(ops.Bitcast(to), [TensorType((2,), given)])


@pytest.mark.parametrize("to", [torch.int16, torch.int32, torch.uint8, torch.float16, torch.float32], ids=str)
def test_bfloat16_has_bits_too(to: torch.dtype) -> None:
    check(lambda x: (x + 1).to(torch.bfloat16).view(to), rand(4))
    if to.itemsize == 2:
        check(lambda x: (x + 1).to(torch.bfloat16).view(to), rand())


def fast_inverse_root(x: Any) -> Any:
    """With the famous constant: a shift of a float's bits."""
    guess = (0x5F3759DF - (x.view(np.int32) >> 1)).view(np.float32)
    return guess * (1.5 - 0.5 * x * guess * guess)


def halves(x: Any) -> Any:
    return x.view(np.uint16), x.view("<i8"), x.view()[1:], x.view(np.float32).view(x.dtype)


def test_arrays_of_numpy() -> None:
    agrees(fast_inverse_root, (np.linspace(0.1, 9, 8, dtype=np.float32),))
    agrees(halves, (np.arange(8, dtype=np.int32) * 99_999_999,))


@pytest.mark.needs("gcc")
def test_a_compiled_function() -> None:
    x = np.linspace(0.1, 9, 8, dtype=np.float32)
    np.testing.assert_array_equal(cuvil.compile(fast_inverse_root)(x), fast_inverse_root(x))


@pytest.mark.parametrize(("given", "to"), [("f4", "i4"), ("u4", "f4"), ("f8", "u8"), ("i8", "f8"), ("f2", "i2")])
def test_onnx(given: str, to: str) -> None:
    onnx = pytest.importorskip("onnx")
    from cuvil_hw.frontend import load
    from cuvil_hw.ir.program import evaluate

    kinds = [onnx.helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in (given, to)]
    node = onnx.helper.make_node("BitCast", ["x"], ["y"], to=kinds[1])
    ports = [onnx.helper.make_tensor_value_info(n, k, [5]) for n, k in zip("xy", kinds, strict=True)]
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:])
    program = load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 26)]))
    x = np.array([1, 2.5, 3, 0, 100]).astype(given)
    (got,) = evaluate(program, [x])
    assert got.dtype == np.dtype(to)
    assert got.tobytes() == x.tobytes()
