"""`cuvil.accelerate` on Hugging Face models of small configurations with random weights, against those models."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

import cuvil  # noqa: E402
from cuvil_hw.entry import accelerate as module  # noqa: E402
from cuvil_hw.errors import ArtifactError, CuvilError, Unsupported  # noqa: E402
from cuvil_hw.runtime import artifact as container  # noqa: E402

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]

IDS = torch.randint(1, 90, (2, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def settled(model: Any) -> Any:
    """Weights large enough to matter: transformers starts with a deviation of 0.02."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=rng) * 0.2)
    return model.eval()


BERT = {
    "vocab_size": 90,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


def bert(layers: int = 2) -> Any:
    return settled(BertModel(BertConfig(num_hidden_layers=layers, **BERT)))


def gpt2() -> Any:
    config = GPT2Config(
        vocab_size=90, n_embd=16, n_layer=2, n_head=2, n_positions=24, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    return settled(GPT2LMHeadModel(config))


def distilbert() -> Any:
    config = DistilBertConfig(vocab_size=90, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=16)
    return settled(DistilBertForSequenceClassification(config))


def vit() -> Any:
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
        num_labels=5,
    )
    return settled(ViTForImageClassification(config))


def agree(model: Any, fast: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        want, got = model(**inputs), fast(**inputs)
    assert type(got) is type(want)
    pairs = [(got[k], want[k]) for k in want] if hasattr(want, "keys") else list(zip(got, want, strict=True))
    if hasattr(want, "keys"):
        assert list(got) == list(want)
    for g, w in pairs:
        close(g, w)
    return got


def close(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))
    elif isinstance(want, tuple):
        for g, w in zip(got, want, strict=True):
            close(g, w)
    elif hasattr(want, "layers"):  # a cache of keys and values
        for g, w in zip(got.layers, want.layers, strict=True):
            close((g.keys, g.values), (w.keys, w.values))
    else:
        assert got == want


PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (bert, {"input_ids": IDS, "attention_mask": MASK}),
        (distilbert, {"input_ids": IDS, "attention_mask": MASK}),
        (vit, {"pixel_values": PIXELS}),
        (gpt2, {"input_ids": IDS, "attention_mask": MASK}),
    ],
)
def test_a_model_stays_what_it_is(build: Callable[[], Any], inputs: dict[str, Any]) -> None:
    model = build()
    fast = cuvil.accelerate(model)
    assert isinstance(fast, type(model))
    assert fast.config is model.config
    assert inspect.signature(fast.forward) == inspect.signature(model.forward)
    assert fast.state_dict().keys() == model.state_dict().keys()
    agree(model, fast, **inputs)
    (program,) = fast.cuvil_programs
    assert program.name == type(model).__name__
    assert len(program.inputs) == len(inputs)  # weights are inside
    changed = {k: v.flip(0) for k, v in inputs.items()}
    agree(model, fast, **changed)
    assert len(fast.cuvil_programs) == 1
    assert "forward" not in vars(model)
    assert not hasattr(model, "cuvil_programs")


def test_each_kind_of_call_is_compiled_once() -> None:
    model = bert(layers=1)
    fast = cuvil.accelerate(model)
    segments = (IDS > 40).long()
    calls: list[dict[str, Any]] = [
        {"input_ids": IDS},
        {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": segments},
        {"input_ids": IDS[:1, :5]},
        {"input_ids": IDS, "output_hidden_states": True},
        {"input_ids": IDS, "return_dict": False},
    ]
    for inputs in [*calls, *calls[::-1]]:
        agree(model, fast, **inputs)
    assert len(fast.cuvil_programs) == len(calls)
    with torch.no_grad():
        close(fast(IDS, MASK).pooler_output, model(IDS, MASK).pooler_output)


def test_generate() -> None:
    """Two programs: the prompt, then one token with the cache. Padded prompts, too."""
    model = gpt2()
    fast = cuvil.accelerate(model)
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    mask = torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
    for ids in (IDS, IDS.flip(0)):
        want = model.generate(ids, attention_mask=mask, **options)
        assert want.shape == (2, 13)
        got = fast.generate(ids, attention_mask=mask, cache_implementation="static", **options)
        assert torch.equal(got, want)
    assert len(fast.cuvil_programs) == 2


@pytest.mark.parametrize("kind", ["Mistral", "Gemma2"])
def test_a_sliding_window_needs_three_programs(kind: str) -> None:
    """The prompt, tokens until the window is full, tokens beyond; none for a token of its own."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=90, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=32, max_position_embeddings=32, sliding_window=6, bos_token_id=0, eos_token_id=0,
        pad_token_id=0,
    )  # fmt: skip
    model = settled(getattr(transformers, f"{kind}ForCausalLM")(config))
    fast = cuvil.accelerate(model)
    options: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    for ids in (IDS[:1, :3], IDS[1:, 1:4]):
        want = model.generate(ids, **options)
        assert want.shape == (1, 11)
        assert torch.equal(fast.generate(ids, cache_implementation="static", **options), want)
    assert len(fast.cuvil_programs) == 3


def test_weights_may_change_and_copies_have_their_own() -> None:
    model = distilbert()
    fast = cuvil.accelerate(model)
    agree(model, fast, input_ids=IDS)
    with torch.no_grad():
        model.classifier.weight.mul_(-2)
    agree(model, fast, input_ids=IDS)
    other = copy.deepcopy(fast)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.1)
    plain = distilbert()
    plain.load_state_dict(other.state_dict())
    agree(plain, other, input_ids=IDS)
    agree(model, fast, input_ids=IDS)


def test_training_is_refused() -> None:
    fast = cuvil.accelerate(distilbert())
    result = fast(input_ids=IDS, labels=torch.tensor([0, 1]))
    assert result.loss.requires_grad
    with pytest.raises(CuvilError, match="inference only"):
        result.loss.backward()
    fast.train()
    with pytest.raises(CuvilError, match=r"call \.eval\(\)"):
        fast(input_ids=IDS)


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:  # decided by values
            return x * 2
        return x - 1


def test_python_that_decides_on_values_is_refused_with_its_line_or_broken() -> None:
    with pytest.raises(Unsupported, match=r"test_accelerate\.py:\d+: .*[Dd]ata-dependent"):
        cuvil.accelerate(Branch().eval())(torch.ones(2))
    fast = cuvil.accelerate(Branch().eval(), whole=False)
    assert fast(torch.ones(2)).tolist() == [2, 2]
    assert fast(-torch.ones(2)).tolist() == [-2, -2]


def test_more_kinds_than_the_limit_are_an_error_not_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIGNATURES", 2)
    fast = cuvil.accelerate(nn.Linear(2, 2).eval())
    with torch.no_grad():
        fast(torch.ones(1, 2))
        fast(torch.ones(2, 2))
        with pytest.raises(CuvilError, match="more than 2 ways"):
            fast(torch.ones(3, 2))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(CuvilError, match="this is the class Linear"):
        cuvil.accelerate(nn.Linear)
    with pytest.raises(CuvilError, match="this is str"):
        cuvil.accelerate("bert-base-uncased")
    with pytest.raises(CuvilError, match="already"):
        cuvil.accelerate(cuvil.accelerate(nn.Linear(1, 1)))


LAYERS = "nn.Sequential(nn.Embedding(90, 8), nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).eval()"
FRESH = f"""
import logging, sys
import torch
from torch import nn
import cuvil
from cuvil_hw import api

path = sys.argv[1]
logging.getLogger("cuvil").addHandler(logging.FileHandler(path + ".log"))


def compiled(*args):
    raise AssertionError("compiled again")


api.compile_program = compiled
model = {LAYERS}
state = torch.load(path + ".pt", weights_only=True)
model.load_state_dict(state["weights"])
fast = cuvil.accelerate(model, programs=path)
with torch.no_grad():
    for ids, wanted in zip(state["ids"], state["wanted"], strict=True):
        torch.testing.assert_close(fast(ids), wanted, rtol=1e-4, atol=1e-5)
assert len(fast.cuvil_programs) == 2
"""


def test_another_process_takes_saved_programs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def misses() -> int:
        found = len([r for r in caplog.records if "has no program" in r.message])
        caplog.clear()
        return found

    def check(fast: Any, ids: Any) -> None:
        with torch.no_grad():
            close(fast(ids), model(ids))

    model = eval(LAYERS)
    fast, path = cuvil.accelerate(model), tmp_path / "layers.cuvil"
    with pytest.raises(CuvilError, match="call it once"):
        fast.save(path)
    lengths = [IDS, IDS[:1, :5]]
    for ids in lengths:
        check(fast, ids)
    fast.save(path)
    stored = container.read(path)
    assert len(stored.files[container.WEIGHTS]) < 1.5 * len(fast.cuvil_programs[0].artifact.files[container.WEIGHTS])
    with torch.no_grad():
        wanted = [model(ids) for ids in lengths]
    torch.save({"weights": model.state_dict(), "ids": lengths, "wanted": wanted}, f"{path}.pt")
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(f"{path}.log").read_text() == ""

    # What the file hasn't is compiled, and said: another length, other weights.
    again = cuvil.accelerate(model, programs=path)
    check(again, IDS)
    assert misses() == 0
    check(again, IDS[:, :3])
    assert misses() == 1
    with torch.no_grad():
        model[1].weight.mul_(-2)
    check(again, IDS)
    assert misses() == 1
    again.save(path)
    check(cuvil.accelerate(model, programs=path), IDS)
    assert misses() == 0


def test_programs_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "linear.cuvil"
    model = nn.Linear(3, 2).eval()
    fast = cuvil.accelerate(model)
    x = torch.ones(1, 3)
    with torch.no_grad():
        fast(x)
    fast.save(path)
    with pytest.raises(ArtifactError, match=r"accelerated model.*programs="):
        cuvil.load(path)
    with pytest.raises(CuvilError, match="accelerated for pynq-z2"):
        cuvil.accelerate(model, "pynq-z2", programs=path)
    cuvil.compile(model, "cpu", x).save(tmp_path / "plain.cuvil")
    with pytest.raises(ArtifactError, match=r"cuvil\.load"):
        cuvil.accelerate(model, programs=tmp_path / "plain.cuvil")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "damaged.cuvil").write_bytes(data)
    with pytest.raises(ArtifactError, match="damaged"):
        cuvil.accelerate(model, programs=tmp_path / "damaged.cuvil")
    with pytest.raises(CuvilError, match="calibration can't be recognized"):
        cuvil.accelerate(model, precision="int8", calibration=iter([x]), programs=path)


class Keeper(nn.Linear):
    def save(self, path: Any) -> str:
        return f"its own: {path}"


def test_a_model_keeps_its_own_save(tmp_path: Path) -> None:
    fast: Any = cuvil.accelerate(Keeper(3, 2).eval())
    with torch.no_grad():
        fast(torch.ones(1, 3))
    assert fast.save("x") == "its own: x"
    fast.cuvil_save(tmp_path / "keeper.cuvil")
    assert (tmp_path / "keeper.cuvil").is_file()


class Demanding(nn.Module):
    def forward(self, x: Any, mask: Any = None) -> Any:
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(x.shape[0])
        return x * mask[:, None]


def test_what_a_model_raises_only_where_it_is_compiled() -> None:
    fast = module.accelerate(Demanding().eval())
    with pytest.raises(Unsupported, match=r"test_accelerate\.py:\d+: raises TypeError.*give them, such as"):
        fast(torch.ones(2, 3))
    assert fast(torch.ones(2, 3), torch.zeros(2)).tolist() == [[0.0] * 3] * 2


class Converting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        self.layer = self.layer.to(x.dtype)
        return self.layer(x)


def test_a_forward_that_converts_weights() -> None:
    model = Converting().eval()
    x = torch.ones(2, 3)
    with torch.no_grad():
        fast = module.accelerate(model)
        torch.testing.assert_close(fast(x), model(x))
        with pytest.raises(Unsupported, match=r"convert weights before the model is accelerated: layer\.to"):
            fast(x.double())
    assert model.layer.weight.dtype == torch.float32
