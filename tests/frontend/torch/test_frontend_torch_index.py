"""Advanced indexing, compared with eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")

from cuvil_hw.errors import Unsupported  # noqa: E402
from tests.support.torch_oracle import check, rand  # noqa: E402

I = torch.tensor([[0, -1], [2, 1]])
J = torch.tensor([1, 0])
K = torch.tensor([[3], [-4]])


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, i, j, k: x[i, j],  # neighbours in front
        lambda x, i, j, k: x[:, i, j],  # neighbours behind: their shape stays in place
        lambda x, i, j, k: x[:, i, j, k],
        lambda x, i, j, k: x[i, :, k],  # apart: their shape comes first
        lambda x, i, j, k: x[j, :, :, k],
        lambda x, i, j, k: x[i, j, :, None, 1],
        lambda x, i, j, k: x[:, :, k],
    ],
)
def test_index_tensors(pick: Any) -> None:
    x = rand(3, 3, 4, 5)
    check(lambda x: pick(x, I, J, K), x)  # constant indices
    check(pick, x, I, J, K)


def test_an_index_that_is_an_element_of_a_tensor() -> None:
    w = rand(3, 4)
    check(lambda x: w[:, x.argmax(1)[0]] + x[0, 0], rand(1, 4))
    check(lambda x, i: x[:, i[1]], rand(2, 5), torch.tensor([0, -2]))


def test_masks_have_no_static_shape() -> None:
    with pytest.raises(Unsupported, match="shape"):
        check(lambda x: x[x[:, 0] > 0], rand(2, 2))


def test_distinct_elements_that_a_sum_uses_up() -> None:
    for x in (rand(4, 2), torch.ones(4, 2), torch.tensor([[1.0, 2], [1, 3], [0, 1], [2, 2]])):
        check(lambda x: (torch.unique(x[:, 0]).exp() * 2).sum() * x, x)


def test_what_depends_on_data_is_refused_once_with_a_way_that_works() -> None:
    """And not again for everything that is made of it."""

    def routed(x: Any) -> Any:
        kinds = torch.unique(x, dim=0)
        return (kinds.exp() * 2).sum() * x

    with pytest.raises(Unsupported, match=r"aten\.unique_dim\.default ×1.*unique_consecutive.*sorted") as caught:
        check(routed, rand(4, 2))
    assert len(caught.value.refusals) == 1


def test_memory_read_by_strides() -> None:
    check(lambda x: (x * 2).as_strided((2, 3, 4), (2, 5, 1), 1), rand(5, 5))
    check(lambda x: x.t().as_strided((2, 2), (1, 2)), rand(4, 6))
    check(lambda x: (x.transpose(0, 1) + 1).as_strided((2, 3), (1, 2)), rand(4, 6, 2))
    with pytest.raises(Unsupported, match="memory of a tensor that is part of another"):
        check(lambda x: x[1:].as_strided((2, 2), (1, 2)), rand(4, 6))
