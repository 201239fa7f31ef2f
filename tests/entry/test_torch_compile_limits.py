"""What the backend `cuvil` of torch.compile refuses, and its options."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

from cuvil_hw.errors import CuvilError, Unsupported  # noqa: E402
from tests.support.dynamo_oracle import agree, compiled, net, rand, same  # noqa: E402

HERE = Path(__file__).name
pytestmark = pytest.mark.needs("gcc")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return f"{HERE}:{number}"


def test_a_write_into_memory_of_another_input_is_refused() -> None:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        return y + 1

    fast, _ = compiled(f)
    x = rand(4)
    with pytest.raises(Unsupported, match="shares"):
        fast(x[:3], x[1:])
    agree(f, fast, rand(3), rand(3))

    def turns(x: Any) -> Any:
        return x.t_() + 1

    agree(turns, compiled(turns)[0], rand(2, 3))


def test_a_backward_pass_is_an_error_not_a_wrong_gradient() -> None:
    model = net()
    x = rand(1, 3, 4, 4)
    y = compiled(model)[0](x)
    assert y.requires_grad
    with pytest.raises(CuvilError, match="inference only"):
        y.sum().backward()
    assert all(p.grad is None for p in model.parameters())
    fast, _ = compiled(lambda x: (x * 2, x.detach() + 1, x > 0))
    a, b, c = fast(x.requires_grad_())
    assert (a.requires_grad, b.requires_grad, c.requires_grad) == (True, False, False)
    with torch.no_grad():
        assert not fast(x)[0].requires_grad
    with torch.inference_mode():
        same(fast(x.detach())[0], x.detach() * 2)

    def write(x: Any) -> Any:
        y = x * 1
        y.mul_(2)
        return y

    agree(write, compiled(write)[0], rand(3).requires_grad_())


def test_training_mode_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    with torch.no_grad(), pytest.raises(Unsupported, match=r"dropout|random|bernoulli"):
        compiled(model.train())[0](rand(2, 4))
    with torch.no_grad(), pytest.raises(Unsupported, match="batch norm"):
        compiled(net().train())[0](rand(2, 3, 4, 4))


def test_what_is_unsupported_raises_with_the_users_line() -> None:
    def f(x: Any) -> Any:
        y = x + 1
        return torch.linalg.svdvals(y)  # decomposition

    fast, made = compiled(f)
    for _ in range(2):
        with pytest.raises(Unsupported) as e:
            fast(rand(3, 3))
        assert line_of("decomposition") in str(e.value)
    assert not made
    assert counters["cuvil"]["refused"] == 1


def test_eager_only_when_asked_for_and_then_it_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Any) -> Any:
        return torch.linalg.svdvals(x) + 1

    fast, _ = compiled(f, options={"fallback": "eager"})
    with caplog.at_level(logging.WARNING, "cuvil"):
        agree(f, fast, rand(3, 3))
        agree(f, fast, rand(3, 3, seed=1))
    (record,) = [r for r in caplog.records if r.name == "cuvil"]
    assert "svd" in record.getMessage()
    assert counters["cuvil"]["eager_calls"] == 2


def test_options_are_checked() -> None:
    with pytest.raises(Exception, match=r"no option 'targets'; its options are target, precision"):
        compiled(lambda x: x + 1, options={"targets": "cpu"})[0](rand(2))
    with pytest.raises(Exception, match="fallback is 'cpu'"):
        compiled(lambda x: x + 1, options={"fallback": "cpu"})[0](rand(2))
    with pytest.raises(CuvilError, match="pynq-z9"):
        compiled(lambda x: x + 1, options={"target": "pynq-z9"})[0](rand(2))


def test_precision_is_that_of_cuvil_compile() -> None:
    model = net()
    data = np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype(np.float32)
    fast, made = compiled(model, options={"precision": "int8", "calibration": data})
    x = torch.from_numpy(data[:1])
    with torch.no_grad():
        got, want = fast(x), model(x)
    assert "quantize" in made[0].ir
    assert 0 < (got - want).abs().max() < 0.1 * want.abs().max()


def test_random_numbers_are_refused() -> None:
    with pytest.raises(Unsupported, match="random"):
        compiled(lambda x: x + torch.rand(3))[0](rand(3))


def test_grad_mode_switches_inside() -> None:
    def f(x: Any) -> Any:
        with torch.no_grad():
            y = x * 2
        return y + x

    agree(f, compiled(f)[0], rand(3))


def test_autocast_is_refused_not_ignored() -> None:
    def f(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x.t()

    with pytest.raises(Unsupported, match=r"autocast on cpu to torch\.bfloat16"):
        compiled(f)[0](rand(2, 2))
    with torch.autocast("cpu"), pytest.raises(Unsupported, match="autocast"):
        compiled(lambda x: x @ x.t())[0](rand(2, 2))

    def off(x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return x @ x.t()

    agree(off, compiled(off)[0], rand(2, 2))


def test_a_number_that_only_counts_needs_no_program_of_its_own() -> None:
    """Arithmetic with a changing number, in tensors and beside them; one that makes shapes is still compiled in."""

    def f(x: Any, n: int) -> Any:
        return x * n + max(n - 5, 0), (x > n) & (x < 2 * n), n * 2 + 1

    fast, made = compiled(f)
    for n in (3, 4, 9, -2, 40):
        agree(f, fast, rand(3) * 5, n)
    assert len(made) <= 3

    def g(x: Any, n: int) -> Any:
        return x[:n] + n

    fast, made = compiled(g)
    for n in (2, 3, 4):
        agree(g, fast, rand(5), n)
    assert len(made) == 3


class Recurrent(nn.Module):
    """Dynamo gives up a function that calls nn.LSTM, unless torch._dynamo.config.allow_rnn is set."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(3, 3), nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.lstm(self.first(x))[0]


def branches(x: Any) -> Any:
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y - 1


def test_what_dynamo_leaves_to_pytorch_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Recurrent().eval(), rand(2, 5, 3)
    cases = [
        (model, "all of forward", "does not support RNN, GRU, or LSTM; Set torch._dynamo.config.allow_rnn=True", 0),
        (model.lstm, "all of LSTM", "allow_rnn", 0),
        (branches, "a part of branches", "Data-dependent branching", 2),
    ]
    for f, what, why, programs in cases:
        torch._dynamo.reset()
        counters.clear()
        caplog.clear()
        fast, made = compiled(f)
        with torch.no_grad(), caplog.at_level(logging.WARNING, "cuvil"):
            for _ in range(2):
                same(fast(x)[0], f(x)[0])
        (text,) = [r.getMessage() for r in caplog.records if r.name == "cuvil"]
        assert text.startswith(what)
        assert why in text
        assert "cuvil.compile" in text
        assert (len(made), counters["cuvil"]["left_to_pytorch"]) == (programs, 1)
        torch._dynamo.reset()
        with torch.no_grad(), pytest.raises(torch._dynamo.exc.Unsupported, match=r"LSTM|branching"):
            torch.compile(f, backend="cuvil", fullgraph=True)(x)


def test_lstm_is_compiled_where_dynamo_may_trace_it(caplog: pytest.LogCaptureFixture) -> None:
    model = Recurrent().eval()
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad(), caplog.at_level(logging.WARNING, "cuvil"):
        fast, made = compiled(model)
        torch.testing.assert_close(fast(rand(2, 5, 3)), model(rand(2, 5, 3)))
    assert len(made) == 1
    assert not caplog.records


def test_breaks_of_other_backends_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cuvil"):
        torch.compile(branches, backend="eager")(rand(3))
    assert not caplog.records


def test_shapes_that_depend_on_values_are_refused_with_a_way(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Any) -> Any:
        return x[x > 0] * 2

    x = torch.tensor([1.0, -2.0, 3.0])
    with caplog.at_level(logging.WARNING, "cuvil"):
        same(compiled(f)[0](x), f(x))
    (text,) = [r.getMessage() for r in caplog.records]
    assert "aten.nonzero" in text
    assert "capture_dynamic" not in text  # that leads to the refusal below
    torch._dynamo.reset()
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),  # which breaks no graph there
        pytest.raises(Unsupported, match=r"result of the graph.*return a tensor and the mask"),
    ):
        compiled(f)[0](x)
