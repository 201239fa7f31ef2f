"""torch.cond, while_loop, scan, map, checks of values: against eager PyTorch, through the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
from torch import nn  # noqa: E402
from torch._higher_order_ops import associative_scan, map, scan, while_loop  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw.errors import GuardError, Unsupported  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402
from cuvil_hw.runtime.executable import Executable  # noqa: E402

HERE = Path(__file__).name


def line_of(text: str) -> str:
    """`file.py:12` of the only line of this file that ends in `# text`."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return f"{HERE}:{number}"


def rand(*shape: int, seed: int = 0) -> Any:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.1


def zero() -> Any:
    return torch.zeros((), dtype=torch.int64)


def agree(module: nn.Module, *calls: tuple[Any, ...], max_trips: int | None = None) -> Executable:
    """Compiled for the first of `calls`; each gives what eager PyTorch gives."""
    program = cuvil.compile(module, "cpu", example_inputs=calls[0], max_trips=max_trips)
    for call in calls:
        torch.testing.assert_close(program(*call), module(*call), rtol=1e-5, atol=1e-5)
    return program


def at(x: Any, i: Any) -> Any:
    return x.gather(0, i.reshape(1))[0]


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.yes, self.no = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda v: (self.yes(v).relu(), v + 1), lambda v: (self.no(v), v * 2), (x,))


class Guarded(nn.Module):
    """An index that is outside wherever its branch isn't taken."""

    def forward(self, x: Any, i: Any) -> Any:
        def inner(x: Any, i: Any) -> Any:
            return torch.cond(at(x, i) > 0.5, lambda x, i: x * 2, lambda x, i: x - at(x, i + 0), (x, i))

        return torch.cond(i < 4, inner, lambda x, i: x.clone(), (x, i))


class Known(nn.Module):
    """A condition known at compile time: one branch only."""

    def forward(self, x: Any) -> Any:
        return torch.cond(torch.ones((), dtype=torch.bool), lambda v: v.sin(), lambda v: v.cos(), (x,))


def test_both_branches_are_computed_and_one_is_taken() -> None:
    agree(Branch().eval().requires_grad_(False), (rand(2, 3),), (-rand(2, 3),))
    i = torch.tensor
    agree(Guarded(), (rand(4), i(2)), (rand(4), i(99)), (-rand(4), i(1)), (rand(4), i(3)))


def test_a_known_condition_takes_its_branch() -> None:
    text = load(Known(), rand(3)).text()
    assert "level1.sin" in text
    assert "level1.cos" not in text
    agree(Known(), (rand(3),))


class Counted(nn.Module):
    """Ends by a counter or by a value."""

    def forward(self, x: Any) -> Any:
        return while_loop(lambda i, y: (y.sum() < 100) & (i < 8), lambda i, y: (i + 1, y * 2 + x), (zero(), x.clone()))


class Unbounded(nn.Module):
    def forward(self, x: Any) -> Any:
        return while_loop(lambda i, y: y.sum() < 100, lambda i, y: (i + 1, y * 2 + x), (zero(), x.clone()))  # loop


class Numbered(nn.Module):
    """A Python number as the counter."""

    def forward(self, x: Any) -> Any:
        return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 2), (0, x.clone()))[1]


class Gathering(nn.Module):
    """Indices that are outside as soon as the loop has ended."""

    def forward(self, n: Any, x: Any) -> Any:
        return while_loop(
            lambda i, y, n: i < n, lambda i, y, n: (i + 1, y + at(x, i), n.clone()), (zero(), x.sum() * 0, n.clone())
        )


class Nested(nn.Module):
    def forward(self, x: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            return i + 1, while_loop(lambda j, z: (j < i) & (z.sum() < 50), lambda j, z: (j + 1, z * 1.5), (zero(), y))[
                1
            ]

        return while_loop(lambda i, y: (y.sum() < 40) & (i < 4), body, (zero(), x.clone()))


def test_a_loop_that_a_counter_bounds_needs_no_bound() -> None:
    program = agree(Counted(), (rand(4, 3),), (rand(4, 3) * 1e-3,), (rand(4, 3) * 1e3,), (rand(4, 3) * 10,))
    assert program.artifact.manifest.calling.guards == ()
    agree(Numbered(), (rand(2),))


def test_a_loop_without_bound_is_refused_with_its_line() -> None:
    with pytest.raises(Unsupported, match=r"while_loop.*max_trips=N.*counter") as caught:
        load(Unbounded(), rand(3))
    assert line_of("loop") in str(caught.value)


def test_a_loop_that_needs_more_trips_than_compiled_raises() -> None:
    x = rand(4, 3)
    program = agree(Unbounded(), (x,), (x * 1e3,), (x * 3,), max_trips=6)
    assert [p.name for p in program.outputs] == ["out0", "out1"]
    with pytest.raises(GuardError, match=r"at .*:\d+ hadn't ended after 6 trips; compile it with a larger max_trips"):
        program(x * 1e-3)
    torch.testing.assert_close(program(x), Unbounded()(x))  # the next call works


def test_exactly_the_bound_is_enough() -> None:
    x = rand(5)
    program = agree(Gathering(), *((torch.tensor(n), x) for n in range(6)), max_trips=5)
    with pytest.raises(GuardError, match="after 5 trips"):
        program(torch.tensor(6), x)
    wide = load(Gathering(), (torch.tensor(0), x), max_trips=9)  # the reference raises for an index outside
    assert evaluate(wide, [np.array(3), np.ones(5, np.float32)])[1] == 3


def test_loops_in_loops() -> None:
    agree(Nested(), (rand(2),), (rand(2) * 30,), (rand(2) * 9,))


@pytest.mark.parametrize("bound", [0, -1, True])
def test_a_bound_is_a_positive_number(bound: int) -> None:
    with pytest.raises(cuvil.CuvilError, match="positive number of trips"):
        load(Unbounded(), rand(3), max_trips=bound)


class Scans(nn.Module):
    def forward(self, x: Any) -> Any:
        forth = scan(lambda c, v: (c * 0.5 + v, c * v), torch.zeros(3), x)
        back = scan(lambda c, v: (c + v, c - v), torch.ones(4), x, dim=1, reverse=True)
        return forth, back


class Associative(nn.Module):
    def forward(self, x: Any) -> Any:
        product = associative_scan(
            lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, x + 1), 0, combine_mode="generic"
        )
        return product, associative_scan(torch.maximum, x, 1, reverse=True, combine_mode="generic")


class Maps(nn.Module):
    def forward(self, x: Any) -> Any:
        return map(lambda row, k: (row.cumsum(0) + k, row.sum()), x, torch.ones(3))


class Wrapped(nn.Module):
    """no_grad and checkpoint have no meaning for inference."""

    def forward(self, x: Any) -> Any:
        y = x * 2
        with torch.no_grad():
            y = y + torch.erf(y)
        return torch.utils.checkpoint.checkpoint(lambda v: v.tanh() + 1, y, use_reentrant=False)


@pytest.mark.parametrize("module", [Scans(), Associative(), Maps(), Wrapped()], ids=lambda m: type(m).__name__)
def test_scans_maps_and_wrappers(module: nn.Module) -> None:
    agree(module, (rand(4, 3),), (rand(4, 3, seed=1),))


class Checked(nn.Module):
    def forward(self, x: Any) -> Any:
        torch._assert_async((x > 0).all(), "positive numbers, please")  # check
        torch._check(x.sum().item() > 0.5)
        return x + 1


def test_the_models_own_checks_raise() -> None:
    program = agree(Checked(), (rand(3),))
    with pytest.raises(GuardError, match="failed: positive numbers, please") as caught:
        program(torch.tensor([1.0, 0.0, 1.0]))
    assert line_of("check") in str(caught.value)
    with pytest.raises(GuardError, match=r"0\.5"):
        program(torch.full((3,), 0.1))
    torch.testing.assert_close(program(torch.ones(3)), torch.full((3,), 2.0))
