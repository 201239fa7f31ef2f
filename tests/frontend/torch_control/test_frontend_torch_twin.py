"""The module that is given is left alone: what traces do to modules they do to twins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
from torch import nn  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.frontend.torch.twin import twin_of  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Hooking(nn.Module):
    """Records what its layers give, by hooks that the first call installs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.in_order: Any = [self.layers[1], self.layers[0]]  # a plain list
        self.seen: list[Any] = []
        self.ready = False

    def forward(self, x: Any) -> Any:
        if not self.ready:
            self.ready = True
            for layer in self.layers:
                layer.register_forward_hook(lambda m, args, out: self.seen.append(out))
        self.seen.clear()
        for layer in self.in_order:
            x = layer(x)
        return torch.stack([x, *self.seen])


def test_hooks_that_a_trace_installs_stay_out_of_the_model() -> None:
    torch.manual_seed(0)
    model, x = Hooking().eval(), torch.randn(2, 3)
    program = load(model, x)
    assert not model.ready
    assert [len(layer._forward_hooks) for layer in model.layers] == [0, 0]
    with torch.no_grad():
        want = model(x)
    assert want.shape == (3, 2, 3)
    assert [len(layer._forward_hooks) for layer in model.layers] == [1, 1]
    np.testing.assert_allclose(evaluate(program, [x.numpy()])[0], want.numpy(), rtol=1e-5, atol=1e-5)


def test_training_flags_reach_modules_in_plain_lists() -> None:
    model = Hooking()
    model.in_order = [nn.Sequential(model.layers[0], nn.Dropout(0.5)), model.layers[1]]
    model.hidden = model.in_order[0]
    model.train()
    x = torch.randn(2, 3)
    program = load(model, x)
    assert all(m.training for m in model.modules())
    want = twin_of(model)
    want.eval()
    with torch.no_grad():
        np.testing.assert_allclose(evaluate(program, [x.numpy()])[0], want(x).numpy(), rtol=1e-5, atol=1e-5)


def test_a_twin_shares_weights_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
    fast = cuvil.accelerate(model)
    fast.train()
    assert not any(m.training for m in model.modules())
    fast.eval()
    model[0].weight = nn.Parameter(torch.ones(2, 2))  # replaced, not changed
    assert fast[0].weight is model[0].weight
    with torch.no_grad():
        torch.testing.assert_close(fast(torch.ones(1, 2)), model(torch.ones(1, 2)))
        model[0].weight.mul_(2)
        torch.testing.assert_close(fast(torch.ones(1, 2)), model(torch.ones(1, 2)))


def settled(model: Any) -> Any:
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=rng) * 0.1)
    return model.eval()


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    return settled(transformers.LlamaForCausalLM(config))


def test_hidden_states_are_recorded_once_and_the_model_keeps_its_hooks() -> None:
    model, ids = llama(), torch.tensor([[3, 1, 4]])
    with torch.no_grad():
        before = model.model(ids, output_hidden_states=True).hidden_states
        assert len(before) == 3
        got = cuvil.accelerate(model)(input_ids=ids, output_hidden_states=True).hidden_states
        after = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert len(got) == len(after) == 3
    for g, a, b in zip(got, after, before, strict=True):
        torch.testing.assert_close(g, b, rtol=1e-4, atol=1e-5)
        assert torch.equal(a, b)


def test_a_model_that_was_never_run_gets_no_hooks() -> None:
    model, ids = llama(), torch.tensor([[3, 1, 4]])
    with torch.no_grad():
        cuvil.accelerate(model)(input_ids=ids, output_hidden_states=True)
    assert not any(m._forward_hooks for m in model.modules())


def test_a_wrapper_of_segformer_compiles() -> None:
    """Its encoder is always asked for hidden states, so that its first call installs hooks."""
    transformers = pytest.importorskip("transformers")
    config = transformers.SegformerConfig(
        num_encoder_blocks=1, hidden_sizes=[8], num_attention_heads=[1], depths=[1], sr_ratios=[4], patch_sizes=[7],
        strides=[4], mlp_ratios=[1], decoder_hidden_size=8, num_labels=3,
    )  # fmt: skip

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = settled(transformers.SegformerForSemanticSegmentation(config))

        def forward(self, x: Any) -> Any:
            return self.inner(x).logits

    model, x = Wrapper(), torch.randn(1, 3, 16, 16)
    got = evaluate(load(model, x), [x.numpy()])[0]
    with torch.no_grad():
        np.testing.assert_allclose(got, model(x).numpy(), rtol=1e-4, atol=1e-4)


def test_recording_in_a_model_inside_another() -> None:
    """The outer model still records when the inner one has ended, and a trace can follow."""
    capturing = pytest.importorskip("transformers.utils.output_capturing")
    twin_of(nn.Linear(2, 2))

    def record(x: Any) -> None:
        collected = capturing._active_collector.get()
        if collected is not None:
            collected.append(x)

    def forward(x: Any) -> Any:
        outer: list[Any] = []
        inner: list[Any] = []
        token = capturing._active_collector.set(outer)
        again = capturing._active_collector.set(inner)
        record(x + 1)
        capturing._active_collector.reset(again)
        record(x * 2)
        capturing._active_collector.reset(token)
        record(x)
        return outer, inner

    x = torch.arange(3.0)
    want = ([x * 2], [x + 1])
    traced = torch.compile(forward, backend="eager", fullgraph=True)
    for (outer,), (inner,) in (forward(x), traced(x), forward(x)):
        assert torch.equal(outer, want[0][0])
        assert torch.equal(inner, want[1][0])
    assert capturing._active_collector.get() is None


@pytest.mark.needs("gcc")
def test_checks_of_values_are_guards() -> None:
    """What transformers asks of values, such as whether a text has a place for each part of an image."""
    utils = pytest.importorskip("transformers.utils.import_utils")

    def ask(x: Any) -> None:
        utils.torch_compilable_check(x > 0, "positive")
        utils.torch_compilable_check(x.sum() < 9, lambda: "a small sum")

    class Checked(nn.Module):
        def forward(self, x: Any) -> Any:
            ask(x)
            return x * 2

    x = torch.ones(3)
    fast = cuvil.accelerate(Checked().eval())
    assert torch.equal(fast(x), x * 2)
    for wrong in (torch.tensor([1.0, -1.0, 1.0]), torch.full((3,), 4.0)):
        with pytest.raises(
            cuvil.GuardError, match=r"the check at .*import_utils\.py:\d+, called at test_frontend_torch_twin"
        ):
            fast(wrong)
    assert len(fast.cuvil_programs) == 1


@pytest.mark.needs("gcc")
@pytest.mark.must_run
def test_a_model_of_transformers_compiles_ahead_of_time_with_its_hidden_states() -> None:
    """torch.export runs the forward itself, where transformers takes the trace for a compilation."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(vocab_size=50, **sizes)).eval()
    ids = torch.randint(0, 50, (1, 7))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "output_hidden_states": True}
    got, want = cuvil.compile(model, "cpu", given)(**given), model(**given)
    assert len(got.hidden_states) == len(want.hidden_states) == 3
    for ours, torchs in zip(got.hidden_states, want.hidden_states, strict=True):
        assert torch.allclose(ours, torchs, atol=1e-5)
