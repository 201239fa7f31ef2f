"""Experts' products, bags of embeddings, distances, histograms, and layers on constants, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from tests.support.torch_oracle import Call, check, rand  # noqa: E402

pytestmark = pytest.mark.must_run

TABLE = rand(10, 6)
IDS = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8]])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    """In rows, by offsets with an empty bag, without a padding word (a bag of it alone is empty)."""

    def three(w: Any, ids: Any, starts: Any) -> Any:
        return (
            F.embedding_bag(ids, w, mode=mode),
            F.embedding_bag(ids.flatten(), w, starts, mode=mode),
            F.embedding_bag(torch.where(ids > 4, ids, 3), w, mode=mode, padding_idx=3),
        )

    check(three, TABLE, IDS, torch.tensor([0, 2, 2, 5]))


def test_bags_with_weights_and_a_last_end() -> None:
    check(
        lambda w, ids, p, starts: (
            F.embedding_bag(ids, w, mode="sum", per_sample_weights=p),
            F.embedding_bag(ids.flatten(), w, starts, mode="sum", include_last_offset=True),
        ),
        TABLE, IDS, rand(3, 4), torch.tensor([0, 5, 5, 11]),
    )  # fmt: skip


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
def test_distances(p: float) -> None:
    check(
        lambda a, b: (torch.cdist(a, b, p), torch.cdist(a[:1], b, p), F.pdist(a[0], p)),
        rand(2, 5, 3), rand(2, 4, 3, seed=1),
    )  # fmt: skip


def test_distances_of_many_rows() -> None:
    """Where eager takes a product of matrices: less exact than ours."""
    check(lambda a: torch.cdist(a, a + 1), rand(30, 3))


@pytest.mark.parametrize(("bins", "low", "high"), [(4, 0, 3), (8, -1.5, 2), (1, -1, 1)])
def test_histograms(bins: int, low: float, high: float) -> None:
    """Ends of parts among the elements, and elements outside."""
    x = torch.cat([torch.arange(-3.0, 5.0), rand(40), torch.tensor([low, high])])
    check(lambda v: torch.histc(v, bins, low, high), x)


def test_a_histogram_without_bounds_names_the_way() -> None:
    with pytest.raises(cuvil.Unsupported, match="give min and max"):
        load(Call(lambda v: torch.histc(v, 4)), rand(5))


@pytest.mark.parametrize("ends", [[2, 2, 6], [0, 6, 6], [1, 2, 4]])
def test_products_of_groups(ends: list[int]) -> None:
    """An empty group, and rows behind the last one."""
    pytest.importorskip("transformers.integrations.moe")
    check(
        lambda x, w, at: torch.ops.transformers.grouped_mm_fallback(x, w, at),
        rand(6, 8), rand(3, 8, 5, seed=1), torch.tensor(ends),
    )  # fmt: skip


class Queries(nn.Module):
    """A decoder whose first operand is a parameter; `layer` (queries, x)."""

    def __init__(self, layer: Callable[[Any, Any], Any], *modules: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.queries = nn.Parameter(torch.randn(4, 1, 8))
        self.layer, self.inner = layer, nn.ModuleList(modules)

    def forward(self, x: Any) -> Any:
        return self.layer(self, x)


def test_learned_queries_in_a_decoder() -> None:
    layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.1)
    check(Queries(lambda m, x: m.inner[0](m.queries, x), layer), rand(5, 1, 8))


@pytest.mark.parametrize(
    "layer",
    [nn.MultiheadAttention(8, 2, dropout=0.3), nn.LSTM(8, 4, 2, dropout=0.2), nn.GRU(8, 4), nn.RNN(8, 4), nn.Dropout()],
)
def test_layers_on_constants_draw_nothing_in_eval_mode(layer: nn.Module) -> None:
    def forward(m: Any, x: Any) -> Any:
        q = m.queries
        made = m.inner[0](q, q, q) if isinstance(layer, nn.MultiheadAttention) else m.inner[0](q)
        return (made[0] if isinstance(made, tuple) else made).sum() + x

    check(Queries(forward, layer), rand(3))


def test_what_draws_numbers_from_constants_is_refused() -> None:
    for f in (lambda x: x + torch.rand(3), lambda x: x + F.dropout(torch.ones(3), 0.5, training=True)):
        with pytest.raises(cuvil.Unsupported, match="random"):
            load(Call(f), rand(3))
