"""bfloat16 in models: inside, as weights, inputs and outputs; against eager."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")
pytest.importorskip("xdsl")

import cuvil  # noqa: E402
from cuvil_hw import dtypes  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402
from tests.support.torch_oracle import Call, rand  # noqa: E402

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]

SLOPES = torch.tensor([0.7, 0.33, 0.123])


def alibi(mask: Any) -> Any:
    """As Falcon has it."""
    steps = ((mask.cumsum(-1) - 1) * mask)[:, None, :]
    return (SLOPES[..., None].bfloat16() * steps).reshape(-1, 1, mask.shape[-1]).float()


def mixed(x: Any) -> Any:
    y = x.bfloat16()
    z = (y * 3 + y.exp()).transpose(0, 1)
    return z.float(), (z > y.T), torch.cat([z, y.T]).sum(0).to(torch.float32)


def numbers() -> Any:
    """Every pattern of the upper half of a float with ties and what is beside them."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = np.concatenate([high | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).astype(np.uint32)
    return torch.from_numpy(bits.view(np.float32))


def same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(got, want.numpy())


def test_rounding_by_the_meaning_and_compiled() -> None:
    x, module = numbers(), Call(lambda v: v.bfloat16().float())
    same(evaluate(load(module, x), [x.numpy()])[0], module(x))
    with cuvil.compile(module, "cpu", example_inputs=x) as program:
        same(program(x.numpy()), module(x))


@pytest.mark.parametrize(("f", "x"), [(alibi, torch.tensor([[1] * 300, [1] * 150 + [0] * 150])), (mixed, rand(7, 7))])
def test_inside_a_model(f: Any, x: Any) -> None:
    want = f(x)
    got = evaluate(load(Call(f), x), [x.numpy()])
    for g, w in zip(got, want if isinstance(want, tuple) else [want], strict=True):
        same(g, w)


def bits(x: Any) -> Any:
    return x.view(torch.int16).numpy().view(np.uint16)


class Layers(torch.nn.Module):
    """Everything that has weights of its own, and what is made of several ops."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 8)
        self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, words: Any, x: Any) -> tuple[Any, Any, Any]:
        h = self.embedding(words) + x
        y = torch.nn.functional.gelu(self.linear(self.norm(h)))
        return y, torch.softmax(y @ h.transpose(1, 2), -1).sum(-1), (y > 0)


@pytest.mark.parametrize("target", ["cpu", "h100", "mlu270"])
def test_ports_and_weights(target: str) -> None:
    torch.manual_seed(3)
    module, words, x = Layers().eval().bfloat16(), torch.tensor([[1, 6, 0]]), rand(1, 3, 8).bfloat16()
    want = module(words, x)
    with cuvil.compile(module, target, example_inputs=(words, x)) as program:
        assert [p.dtype for p in program.inputs] == ["i64", "bf16"]
        assert [p.dtype for p in program.outputs] == ["bf16", "bf16", "bool"]
        assert "bf16" in {dtypes.from_numpy(a.dtype) for a in program.artifact.constants().values()}
        got = program(words, x)
        for g, w in zip(got[:2], want[:2], strict=True):
            assert g.dtype == torch.bfloat16
            torch.testing.assert_close(g.float(), w.float(), rtol=2**-7, atol=2**-9)


def test_what_callers_give_and_get() -> None:
    module, x = Call(lambda v: (v * 3, v.view(torch.int16))), rand(4, 5).bfloat16()
    want, seen = module(x)
    with cuvil.compile(module, "cpu", example_inputs=x) as program:
        for given in (x, x.t().contiguous().t(), bits(x), bits(x).view(ml_dtypes.bfloat16), bits(x).astype(">u2")):
            got, view = program(given)
            if isinstance(given, torch.Tensor):
                assert torch.equal(got, want)
                got = bits(got)
            else:
                assert got.dtype == ml_dtypes.bfloat16
            np.testing.assert_array_equal(got.view(np.uint16), bits(want))
            np.testing.assert_array_equal(np.asarray(view), seen.numpy())
        assert program([[1.5] * 5] * 4)[0].tolist() == [[4.5] * 5] * 4
        for given, why in (
            (
                x.float().numpy(),
                "has dtype float32, expected bf16; give a torch.bfloat16 tensor, an array of ml",
            ),
            (x.float(), "has dtype float32, expected bf16"),
            (bits(x).astype(np.int32), "has dtype int32, expected bf16"),
            ([[0.1] * 5] * 4, "holds numbers that bf16 can't represent exactly"),
        ):
            with pytest.raises(cuvil.InputError, match=why):
                program(given)


def test_without_ml_dtypes_callers_get_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Call(lambda v: v + 1), rand(3).bfloat16()
    with cuvil.compile(module, "cpu", example_inputs=x) as program:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        got = program(bits(x))
        assert got.dtype == np.uint16
        np.testing.assert_array_equal(got, bits(module(x)))


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((3,), 0.5).bfloat16())

    def forward(self, x: Any) -> Any:
        self.total += x
        return self.total * 2


def test_state() -> None:
    module, x = Counter(), rand(3).bfloat16()
    with cuvil.compile(module, "cpu", example_inputs=x) as program:
        for _ in range(3):
            assert torch.equal(program(x), module(x))


def test_saved_and_loaded(tmp_path: Any) -> None:
    torch.manual_seed(4)
    module, x = torch.nn.Linear(6, 3).bfloat16(), rand(2, 6).bfloat16()
    with cuvil.compile(module, "cpu", example_inputs=x) as program:
        program.save(tmp_path / "m.cuvil")
        want = program(x)
    with cuvil.load(tmp_path / "m.cuvil") as program:
        assert torch.equal(program(x), want)


def test_fabrics_refuse_it() -> None:
    module, x = torch.nn.Linear(6, 3).bfloat16(), rand(2, 6).bfloat16()
    for target in ("pynq-z2", "agilex"):
        with pytest.raises(cuvil.CuvilError, match=r"bf16.*f32"):
            cuvil.compile(module, target, example_inputs=x, precision="float32")


@pytest.mark.needs("gcc")
def test_writes_into_an_input_given_by_its_bits() -> None:
    class Writes(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x.add_(1)
            return x * 2

    x = torch.ones(3, dtype=torch.bfloat16)
    bits = x.view(torch.uint16).numpy().copy()
    cuvil.compile(Writes(), "cpu", example_inputs=x)(bits)
    assert torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).tolist() == [2, 2, 2]
