"""`torch.compile(m, backend="cuvil")` against eager PyTorch: numbers, layouts, views, writes, sizes, weights."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
from torch import nn  # noqa: E402

from tests.support.checkout import path_with_entry_points  # noqa: E402
from tests.support.dynamo_oracle import agree, compiled, net, rand, same  # noqa: E402

pytestmark = pytest.mark.needs("gcc")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_entry_point_finds_the_backend_without_importing_cuvil(tmp_path: Path) -> None:
    code = """
import torch
f = torch.compile(lambda x: x * 2 + 1, backend="cuvil", options={"target": "cpu", "precision": "float32"})
assert f(torch.ones(3)).tolist() == [3, 3, 3]
assert "cuvil" in torch._dynamo.list_backends()
"""
    environment = {**os.environ, "PYTHONPATH": path_with_entry_points(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_network_is_one_program_with_its_weights_inside() -> None:
    model = net()
    fast, made = compiled(model, fullgraph=True)
    agree(model, fast, rand(2, 3, 8, 8))
    agree(model, fast, rand(2, 3, 8, 8, seed=1))
    (program,) = made
    assert [p.shape for p in program.inputs] == [(2, 3, 8, 8)]
    assert "batch_norm" not in program.ir  # folded into the convolution: weights are constants
    assert program.name == "graph_0_0"


def test_strides_of_inputs_and_results() -> None:
    model = net()
    fast, _ = compiled(model.conv)
    agree(model.conv, fast, rand(1, 3, 4, 6).to(memory_format=torch.channels_last))
    agree(model.conv, fast, rand(1, 6, 4, 3).transpose(1, 3))
    agree(model.conv, fast, rand(2, 6, 4, 6)[1:, ::2])

    def f(x: Any) -> Any:
        return (x + 1).t(), x.flip(0) * 2

    agree(f, compiled(f)[0], rand(3, 4).t())


def test_nothing_is_copied_on_the_way_in() -> None:
    """The device reads the tensor's own memory."""
    seen = []

    def f(x: Any) -> Any:
        return x * 2

    fast, made = compiled(f)
    x = rand(64)
    fast(x)
    (program,) = made
    loaded = program._open().loaded()
    run = loaded.run
    loaded.run = lambda arrays: (seen.append(arrays[0].ctypes.data), run(arrays))[1]  # type: ignore[method-assign]
    fast(x)
    assert seen == [x.data_ptr()]


def test_results_may_be_inputs_and_views_of_them() -> None:
    def f(x: Any, y: Any) -> Any:
        return x, x[1:].t(), x + y, y.view(-1), x.shape[0], None

    fast, _ = compiled(f)
    x, y = rand(3, 2), rand(3, 2, seed=1)
    got = fast(x, y)
    same(got, f(x, y))
    assert got[0] is x
    got[1][0, 0] = 7  # x[1, 0]
    assert x[1, 0] == 7
    assert got[3].data_ptr() == y.data_ptr()


def test_results_that_share_memory_in_eager_mode_do_here() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y, y.t(), y.chunk(2, 1)[1]

    x = rand(3, 4)
    y, turned, half = compiled(f)[0](x)
    same((y, turned, half), f(x))
    y[1, 3] = 9
    assert turned[3, 1] == half[1, 1] == 9


def test_writes_into_inputs() -> None:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        y[0] += x.sum()
        x[:, 1:].relu_()
        return x[1:], y * 1, x + 1

    fast, _ = compiled(f)
    agree(f, fast, rand(2, 3), rand(2))
    agree(f, fast, rand(2, 3, seed=1), rand(2, seed=2))
    agree(f, fast, rand(4, 3)[::2], rand(4)[::2])

    def only_writes(x: Any) -> None:
        x.add_(1)

    agree(only_writes, compiled(only_writes)[0], rand(2))


def test_buffers_keep_state() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))
            self.register_buffer("last", torch.zeros(2))
            self.scale = nn.Parameter(torch.tensor([2.0, 3.0]))

        def forward(self, x: Any) -> Any:
            self.count += 1
            y = self.scale * (x + self.count) + self.last
            self.last = x
            return y

    model = Counter()
    other = copy.deepcopy(model)
    fast, made = compiled(model)
    for step in range(4):
        with torch.no_grad():
            same(fast(rand(2, seed=step)), other(rand(2, seed=step)))
        same(model.count, other.count)
    assert len(made) <= 2


def test_weights_that_change_are_seen() -> None:
    model = net()
    fast, made = compiled(model)
    x = rand(1, 3, 4, 4)
    agree(model, fast, x)
    with torch.no_grad():
        model.head.weight.mul_(3)
    agree(model, fast, x)
    model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()})
    agree(model, fast, x)
    model.head.weight = nn.Parameter(torch.ones(2, 4))
    agree(model, fast, x)
    model.norm.running_mean.add_(1)
    agree(model, fast, x)
    count = len(made)
    agree(model, fast, x)
    assert len(made) == count


def test_modules_that_share_code_keep_their_own_weights() -> None:
    layers = [nn.Linear(3, 3) for _ in range(3)]

    def f(layer: Any, x: Any) -> Any:
        return layer(x)

    fast, made = compiled(f)
    for _ in range(2):
        for layer in layers:
            agree(lambda x, layer=layer: f(layer, x), lambda x, layer=layer: fast(layer, x), rand(2, 3))
    assert len(made) == 3


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_sizes(dynamic: bool | None) -> None:
    def f(x: Any, y: Any, k: Any) -> Any:
        z = torch.cat([x * k, y], 1)
        return z.softmax(-1), z.shape[1] * 2, z.reshape(-1, 2) + x.shape[0]

    fast, made = compiled(f, dynamic=dynamic)
    for n, m, k in ((2, 4, 1.5), (3, 4, 2.5), (5, 6, 2.5), (1, 2, 0.5), (3, 4, 2.5), (0, 2, 1.0)):
        agree(f, fast, rand(n, m), rand(n, 2), k)
    assert len(made) <= 6


def test_integers_that_change() -> None:
    def f(x: Any, n: int) -> Any:
        return x[:n] * n

    fast, _ = compiled(f)
    for n in (2, 3, 5, 2, 4):
        agree(f, fast, rand(6), n)


def test_graph_breaks() -> None:
    calls = []

    def f(x: Any) -> Any:
        y = x * 2
        calls.append("between")
        torch._dynamo.graph_break()
        if y.sum() > 0:  # decided by Python
            return y + 1
        return y - 1

    fast, made = compiled(f)
    with torch.no_grad():
        same(fast(torch.ones(3)), torch.full((3,), 3.0))
        same(fast(-torch.ones(3)), torch.full((3,), -3.0))
    assert len(calls) == 2
    assert len(made) >= 3


def test_dtypes_and_scalars() -> None:
    def f(x: Any, i: Any, b: Any) -> Any:
        return x.double() * 2, i // 2, b ^ (i > 1), x.sum(), i.max()

    fast, _ = compiled(f)
    agree(f, fast, rand(3), torch.tensor([-3, 2, 5]), torch.tensor([True, False, True]))
    agree(f, fast, rand(3), torch.tensor([-3, 2, 5], dtype=torch.int32), torch.tensor([True, False, True]))
    x = rand(2).bfloat16()
    assert torch.equal(compiled(lambda x: x + 1)[0](x), x + 1)


def test_results_whose_elements_share_places() -> None:
    def f(x: Any) -> Any:
        y = x + 1
        return y.expand(2, 3, 4), (x * 2).unfold(1, 3, 1)

    x = rand(3, 4)
    wide, windows = compiled(f)[0](x)
    same((wide, windows), f(x))
    windows[0, 0, 1] = 7
    assert windows[0, 1, 0] == 7


@pytest.mark.parametrize("norm_first", [False, True])
def test_fused_attention_layers(norm_first: bool) -> None:
    """What Dynamo traces of nn.TransformerEncoderLayer and nn.MultiheadAttention in inference."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first, activation="gelu").eval()
    padding, causal = torch.tensor([[False, False, True], [False, True, True]]), torch.ones(3, 3).triu(1).bool()
    x = rand(2, 3, 8)

    def f(x: Any, p: Any, c: Any) -> Any:
        alone, masked = layer(x), layer(x, src_key_padding_mask=p)
        return alone, masked, layer(x, src_mask=c, src_key_padding_mask=p), layer.self_attn(x, x, x, key_padding_mask=p)

    agree(f, compiled(f)[0], x, padding, causal)


def test_an_op_that_asks_values_but_in_python() -> None:
    """torch.istft in C++ looks at its window; its form in Python, which traces take, doesn't."""

    def f(x: Any) -> Any:
        window = torch.hann_window(16)
        spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
        return torch.istft(spectrum * 0.5, 16, 4, window=window, length=60)

    fast, made = compiled(f)
    torch.testing.assert_close(fast(rand(1, 64)), f(rand(1, 64)))
    assert len(made) == 1


def test_threads() -> None:
    model = nn.Linear(4, 4).eval()
    fast, _ = compiled(model)
    failed: list[BaseException] = []

    def call(n: int) -> None:
        try:
            agree(model, fast, rand(n % 3 + 1, 4, seed=n))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
