"""Packed sequences: recurrent layers between pack_padded_sequence and pad_packed_sequence, as in eager mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
from torch import nn  # noqa: E402
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402
from tests.support.torch_oracle import leaves, rand  # noqa: E402

LENGTHS = torch.tensor([2, 5, 1])


class Packs(nn.Module):
    """Padded inputs through a layer that gets them packed. `options`: of packing and padding; `lengths`: constants."""

    def __init__(
        self, layer: nn.Module, first: bool = False, sort: bool = True, lengths: Any = None, **pad: Any
    ) -> None:
        super().__init__()
        self.layer, self.first, self.sort, self.lengths, self.pad = layer, first, sort, lengths, pad

    def forward(self, x: Any, lengths: Any = None, hx: Any = None) -> Any:
        lengths = self.lengths if lengths is None else lengths
        packed = pack_padded_sequence(x, lengths, batch_first=self.first, enforce_sorted=not self.sort)
        y, h = self.layer(packed, hx)
        return pad_packed_sequence(y, batch_first=self.first, **self.pad), h


def agrees(model: nn.Module, *inputs: Any, others: tuple[Any, ...] = ()) -> None:
    """Also for other inputs than those of the trace."""
    program = load(model.eval(), inputs)
    guards = {g.output for g in program.calling.guards}
    for given in (inputs, *others):
        with torch.no_grad():
            want = leaves(model(*given))
        made = dict(
            zip((n for n, _ in program.outputs), evaluate(program, [v.numpy() for v in leaves(given)]), strict=True)
        )
        assert all(made[g] for g in guards)
        got = [v for n, v in made.items() if n not in guards]
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.LSTM(3, 4),
        lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2),
        lambda: nn.GRU(3, 4, num_layers=2, bias=False, dropout=0.5),
        lambda: nn.GRU(3, 4, bidirectional=True),
        lambda: nn.RNN(3, 4),
        lambda: nn.RNN(3, 4, nonlinearity="relu", bidirectional=True),
    ],
)
def test_layers(layer: Any) -> None:
    torch.manual_seed(0)
    x = rand(5, 3, 3)
    agrees(
        Packs(layer(), total_length=5),
        x,
        LENGTHS,
        others=((x * 2, torch.tensor([5, 3, 5])), (x, torch.tensor([1, 2, 1]))),
    )


def test_padding() -> None:
    torch.manual_seed(0)
    x = rand(3, 5, 3)
    for pad in ({}, {"total_length": 7}, {"total_length": 5, "padding_value": -1.5}):
        agrees(Packs(nn.GRU(3, 2, batch_first=True), first=True, **pad), x, LENGTHS)
    agrees(Packs(nn.GRU(3, 2), sort=False), x, torch.tensor([3, 3, 2, 2, 1]))


def test_an_initial_state_goes_with_its_sequence() -> None:
    torch.manual_seed(0)
    x, h = rand(5, 3, 3), rand(1, 3, 4, seed=1)
    agrees(Packs(nn.LSTM(3, 4), total_length=5), x, LENGTHS, (h, rand(1, 3, 4, seed=2)))
    agrees(Packs(nn.GRU(3, 4), total_length=5), x, LENGTHS, h)


@pytest.mark.parametrize("lengths", [[2, 5, 1], torch.tensor([2, 5, 1])])
def test_constant_lengths(lengths: Any) -> None:
    torch.manual_seed(0)
    agrees(Packs(nn.GRU(3, 4), lengths=lengths), rand(5, 3, 3))
    agrees(Packs(nn.GRU(3, 4), lengths=lengths, total_length=6), rand(6, 3, 3))
    with pytest.raises(cuvil.Unsupported, match=r"always fails: pad_packed_sequence gives.*give total_length=6"):
        load(Packs(nn.GRU(3, 4), lengths=lengths), rand(6, 3, 3))


class Tagger(nn.Module):
    """Words of packed sequences are embedded and scored one by one, and counted."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer, self.score = nn.Embedding(9, 3), nn.GRU(3, 4), nn.Linear(4, 2)

    def forward(self, words: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(words, lengths, enforce_sorted=False)
        y, _ = self.layer(PackedSequence(self.embed(packed.data), *packed[1:]))
        scores = PackedSequence(self.score(y.data), *y[1:])
        return pad_packed_sequence(scores, total_length=words.shape[0])[0], scores.data.mean(), packed.data.sum()


def test_what_is_done_row_by_row() -> None:
    torch.manual_seed(0)
    words = torch.randint(0, 9, (5, 3), generator=torch.Generator().manual_seed(0))
    agrees(Tagger(), words, LENGTHS, others=((words, torch.tensor([1, 1, 4])),))


@pytest.mark.needs("gcc")
def test_wrong_lengths_are_guarded() -> None:
    torch.manual_seed(0)
    model, x = Packs(nn.LSTM(3, 4)).eval(), rand(5, 3, 3)
    with cuvil.compile(model, "cpu", example_inputs=(x, LENGTHS)) as program, torch.no_grad():
        for got, want in zip(leaves(program(x, LENGTHS)), leaves(model(x, LENGTHS)), strict=True):
            torch.testing.assert_close(got, want)
        for wrong in ([0, 5, 1], [6, 5, 1]):
            with pytest.raises(RuntimeError):
                model(x, torch.tensor(wrong))
            with pytest.raises(cuvil.GuardError, match="takes lengths from 1 to 5, the largest first"):
                program(x, torch.tensor(wrong))
        with pytest.raises(cuvil.GuardError, match="as many steps as the longest sequence has; give total_length=5"):
            program(x, torch.tensor([2, 4, 1]))
    unsorted = load(Packs(nn.GRU(3, 4), sort=False, total_length=5), (x, torch.tensor([5, 2, 1])))
    *_, first, _ = (*evaluate(unsorted, [x.numpy(), np.array([1, 5, 2])]), None)
    assert not first


def test_what_is_not_followed_says_what_to_do() -> None:
    x = rand(5, 3, 3)
    for model in (Packs(nn.GRU(3, 4), total_length=3), Packs(Inner(3, 4))):
        with pytest.raises(
            cuvil.CuvilError, match=r"total_length is left out or the steps.*give padded tensors, and mask"
        ):
            load(model, (x, LENGTHS))


class Inner(nn.GRU):
    """A layer with a forward of its own, which knows packed sequences by torch's alone."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return super().forward(input, hx)
