"""The solver against brute force, its determinism, its work on big instances, and the exact text of DoesNotFit."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil_hw.errors import DoesNotFit, ToolNotFound
from cuvil_hw.schedule import search
from cuvil_hw.schedule.resources import Resource
from cuvil_hw.schedule.solver import choose
from cuvil_hw.schedule.space import Candidate, Choice, Estimate, KernelChoices, Surroundings
from cuvil_hw.target.profile import load_profile

pytest.importorskip("ortools")


@dataclass(frozen=True)
class Unrolled:
    times: int

    def describe(self) -> str:
        return f"unroll o={self.times}"


def kernel(name: str, *rows: tuple[int, dict[str, float]]) -> KernelChoices:
    """Rows are (cycles, use); candidate i is unrolled i times."""
    candidates = tuple(
        Candidate(Unrolled(i), Estimate(cycles / 1e8, cycles, use)) for i, (cycles, use) in enumerate(rows, 1)
    )
    return KernelChoices(name, f"net.py:{len(name)}", candidates)


def spend(picks: Sequence[Candidate], axis: Resource) -> float:
    return sum(c.estimate.use.get(axis.name, 0.0) for c in picks)


def fullest(picks: Sequence[Candidate], axes: Sequence[Resource]) -> int:
    """Share of the fullest axis' budget, in whole 1/1000 rounded up."""
    return max(math.ceil(round(1000 * spend(picks, a) / a.budget, 6)) for a in axes if a.rule == "sum")


def shares(picks: Sequence[Candidate], axes: Sequence[Resource], objective: str) -> float:
    total = sum(spend(picks, a) / a.limit for a in axes if a.rule == "sum")
    return total + (fullest(picks, axes) / 1000 if objective == "slowest" else 0)


def brute(kernels: Sequence[KernelChoices], axes: Sequence[Resource], objective: str) -> tuple[int, float] | None:
    """(cycles, sum of shares) of the best design, by looking at all of them; of a design whose kernels run at once, the
    share of the fullest axis counts once more."""
    best = None
    for picks in itertools.product(*(k.candidates for k in kernels)):
        if any(spend(picks, a) > a.budget for a in axes if a.rule == "sum"):
            continue
        if any(c.estimate.use.get(a.name, 0.0) > a.budget for c in picks for a in axes if a.rule == "max"):
            continue
        cycles = [c.estimate.cycles for c in picks]
        key = (
            max(cycles) if objective == "slowest" else sum(cycles),
            shares(picks, axes, objective),
        )
        best = key if best is None or key < best else best
    return best


AXES = (
    Resource("lut", 40, "sum", 0.5),
    Resource("dsp", 10, "sum"),
    Resource("nram", 6, "max"),
    Resource("ddr", 1, "live"),
)
ROW = st.tuples(
    st.integers(1, 12),
    st.fixed_dictionaries(
        {
            "lut": st.integers(0, 14),
            "dsp": st.sampled_from([0, 0.5, 1, 2.25, 4]),
            "nram": st.integers(0, 8),
            "ddr": st.just(9),
        }
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=4), st.sampled_from(["slowest", "sum"]))
def test_equals_brute_force(rows: list[list[tuple[int, dict[str, float]]]], objective: str) -> None:
    kernels = [kernel(f"k{i}", *r) for i, r in enumerate(rows)]
    best = brute(kernels, AXES, objective)
    if best is None:
        with pytest.raises(DoesNotFit) as caught:
            choose(kernels, AXES, target="t", objective=objective)
        assert caught.value.need > caught.value.limit
        assert caught.value.layer in {k.name for k in kernels}
        return
    choice = choose(kernels, AXES, target="t", objective=objective)
    picks = [c for _, c in choice.picked]
    assert choice.objective == choice.bound == best[0]
    assert shares(picks, AXES, objective) == pytest.approx(best[1], abs=1e-4)
    assert choice.use["lut"] == spend(picks, AXES[0]) <= 20
    assert choice.use["dsp"] <= 10
    assert choice.use["nram"] <= 6
    assert "ddr" not in choice.use


def folded(seed: int, count: int, options: int) -> list[KernelChoices]:
    """Layers of random work; unrolling trades cycles for dsp, lut and bram18 as real foldings do."""
    rng = random.Random(seed)
    kernels = []
    for i in range(count):
        work, base, rows = rng.randrange(10**4, 10**7), rng.randrange(100, 900), []
        for _ in range(options):
            fold = rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128])
            on_dsp = rng.random() < 0.5
            lut = base + fold * rng.randrange(*((10, 30) if on_dsp else (60, 90)))
            rows.append(
                (
                    -(-work // fold),
                    {
                        "lut": float(lut),
                        "ff": lut * 1.2,
                        "dsp": float(fold if on_dsp else 0),
                        "bram18": float(rng.randrange(1, 9)),
                    },
                )
            )
        kernels.append(kernel(f"layer{i}", *rows))
    return kernels


def test_big_network_takes_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of vww's size: few CP-SAT problems, each a fraction of the 6,000 candidates."""
    sizes: list[int] = []
    inner = search._solve

    def counted(problem: search.Problem, *args: object, **kwargs: object) -> search.Answer:
        sizes.append(sum(map(len, problem.options)))
        return inner(problem, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "_solve", counted)
    kernels = folded(1, 60, 100)
    axes = load_profile("zcu104").axes
    choice = choose(kernels, axes, target="zcu104", objective="slowest")
    assert choice.objective == choice.bound
    assert all(choice.use[a.name] <= a.budget for a in axes)
    assert len(sizes) <= 12
    assert max(sizes, default=0) <= 1500


def test_same_answer_every_time_whatever_the_order_of_proposals() -> None:
    kernels = folded(2, 12, 30)
    axes = load_profile("pynq-z2").axes
    first = choose(kernels, axes, target="t", objective="slowest")
    assert choose(kernels, axes, target="t", objective="slowest") == first
    turned = [replace(k, candidates=k.candidates[::-1]) for k in kernels]
    assert choose(turned, axes, target="t", objective="slowest") == first


def test_nothing_is_unrolled_beyond_the_bottleneck() -> None:
    slow = kernel("slow", (100, {"dsp": 4}))
    quick = kernel("quick", (90, {"dsp": 1}), (10, {"dsp": 5}), (200, {"dsp": 0}))
    choice = choose([slow, quick], [Resource("dsp", 100, "sum")], target="t", objective="slowest")
    assert (choice.objective, choice.candidate("quick").estimate.cycles, choice.use["dsp"]) == (100, 90, 5)
    assert choice.style == "spatial"
    summed = choose([slow, quick], [Resource("dsp", 100, "sum")], target="t", objective="sum")
    assert (summed.objective, summed.style) == (110, "temporal")


@pytest.mark.parametrize("turn", [1, -1])
def test_of_designs_with_equal_sums_the_smallest(turn: int) -> None:
    kernels = [kernel("a", (1, {"dsp": 5}), (2, {"dsp": 2})), kernel("b", (1, {"dsp": 5}), (2, {"dsp": 4}))][::turn]
    choice = choose(kernels, [Resource("dsp", 9, "sum")], target="t", objective="sum")
    assert (choice.objective, choice.bound, choice.use["dsp"]) == (3, 3, 7)


def test_a_spare_resource_is_not_saved_at_any_price() -> None:
    """Moving 32 of 140 multipliers into 15,455 LUTs would make LUTs the fullest, at a lower share than multipliers."""
    axes = load_profile("pynq-z2").axes
    rest = kernel("rest", (100, {"dsp": 108, "lut": 9000}))
    layer = kernel("layer", (100, {"dsp": 32, "lut": 800}), (100, {"dsp": 0, "lut": 16255}))
    choice = choose([rest, layer], axes, target="t", objective="slowest")
    assert (choice.use["dsp"], choice.use["lut"]) == (140, 9800)


def test_a_nearly_full_resource_is_relieved_by_one_with_room() -> None:
    axes = load_profile("pynq-z2").axes
    rest = kernel("rest", (100, {"dsp": 140, "lut": 9000}))
    layer = kernel("layer", (100, {"dsp": 32, "lut": 800}), (100, {"dsp": 0, "lut": 4800}))
    choice = choose([rest, layer], axes, target="t", objective="slowest")
    assert (choice.use["dsp"], choice.use["lut"]) == (140, 13800)


def scale(axes: Sequence[Resource], name: str, share: float) -> list[Resource]:
    return [replace(a, limit=a.limit * share) if a.name == name else a for a in axes]


def bram_bound() -> list[KernelChoices]:
    return [
        kernel("conv1", (800, {"bram18": 4, "lut": 900}), (400, {"bram18": 60, "lut": 1000})),
        kernel("conv2", (900, {"bram18": 12, "lut": 900}), (450, {"bram18": 100, "lut": 1100})),
        kernel("dense", (300, {"bram18": 5, "lut": 400})),
    ]


def test_half_of_an_axis_changes_the_folding() -> None:
    axes = load_profile("pynq-z2").axes
    full = choose(bram_bound(), axes, target="t", objective="slowest")
    half = choose(bram_bound(), scale(axes, "bram18", 0.5), target="t", objective="slowest")
    assert (full.objective, full.use["bram18"]) == (450, 165)
    assert (half.objective, half.use["bram18"]) == (800, 109)
    assert full.picked != half.picked


def test_two_percent_names_layer_axis_and_numbers() -> None:
    axes = scale(load_profile("pynq-z2").axes, "bram18", 0.02)
    with pytest.raises(DoesNotFit) as caught:
        choose(
            bram_bound(),
            axes,
            target="tiny",
            objective="slowest",
            fixed={"bram18": 2},
            surroundings=lambda: Surroundings("the constants are 9 Mbit", "it fits pynq-z2"),
        )
    e = caught.value
    assert (e.layer, e.axis, e.need, e.limit, e.target) == ("conv2", "bram18", 23.0, 4.48, "tiny")
    assert str(e) == (
        "does not fit tiny: needs 23 bram18 where 4.48 may be used (80% of 5.6), tightest at layer conv2; the "
        "constants are 9 Mbit; nearest fit: even the smallest folding needs that much (12 bram18 in conv2 (net.py:5), "
        "fixed overhead 2); it fits pynq-z2"
    )
    with pytest.raises(DoesNotFit, match=r"it takes a target with at least 29 bram18 \(at use 0.8\)"):
        choose(bram_bound(), axes, target="tiny", objective="slowest", fixed={"bram18": 2})


def test_all_that_is_short_is_named() -> None:
    axes = [Resource("bram18", 10, "sum"), Resource("lut", 1000, "sum")]
    with pytest.raises(DoesNotFit, match=r"needs 2,200 lut where 1,000.*; also 21 bram18 where 10; nearest fit: "):
        choose(bram_bound(), axes, target="t", objective="slowest")


def test_advice_names_the_use_that_would_do_and_is_true() -> None:
    axes = [Resource("bram18", 24, "sum", 0.8), Resource("lut", 10_000, "sum", 0.7)]
    with pytest.raises(DoesNotFit, match=r"fits with `use: 0.88` for bram18$"):
        choose(bram_bound(), axes, target="t", objective="slowest")
    choice = choose(bram_bound(), [replace(axes[0], utilisation=0.88), axes[1]], target="t", objective="slowest")
    assert choice.use["bram18"] == 21
    with pytest.raises(DoesNotFit):
        choose(bram_bound(), [replace(axes[0], utilisation=0.87), axes[1]], target="t", objective="slowest")


def test_axes_that_only_conflict() -> None:
    kernels = [kernel(n, (10, {"lut": 10, "dsp": 0}), (10, {"lut": 0, "dsp": 10})) for n in ("a", "b", "c")]
    axes = [Resource("lut", 12, "sum"), Resource("dsp", 14, "sum")]
    with pytest.raises(DoesNotFit, match=r"the least of it with which all other resources suffice") as caught:
        choose(kernels, axes, target="t", objective="slowest")
    # 20 more of lut or of dsp would do; lut is the one that is shorter.
    assert (caught.value.axis, caught.value.need, caught.value.limit) == ("lut", 20, 12)
    assert "at least 20 lut (at use 1)" in caught.value.nearest


def test_a_starved_axis_is_named_rather_than_the_one_that_could_replace_it() -> None:
    kernels = [kernel(n, (10, {"lut": 1, "bram18": 10}), (10, {"lut": 60, "bram18": 0})) for n in ("a", "b")]
    axes = [Resource("lut", 100, "sum"), Resource("bram18", 2, "sum")]
    with pytest.raises(DoesNotFit) as caught:
        choose(kernels, axes, target="t", objective="slowest")
    assert (caught.value.axis, caught.value.need, caught.value.limit) == ("bram18", 10, 2)


def test_several_axes_that_are_short_together() -> None:
    logic = [kernel(n, (10, {"lut": 10}), (10, {"dsp": 10})) for n in ("a", "b", "c")]
    memory = [kernel(n, (10, {"ff": 10}), (10, {"uram": 10})) for n in ("d", "e", "f")]
    axes = [Resource(name, 10, "sum") for name in ("lut", "dsp", "ff", "uram")]
    with pytest.raises(DoesNotFit, match=r"every resource suffices by itself, but not all together"):
        choose([*logic, *memory], axes, target="t", objective="slowest")


def test_one_kernel_too_big_for_an_axis_of_its_own() -> None:
    kernels = [kernel("fine", (5, {"nram": 10})), kernel("huge", (5, {"nram": 300}), (9, {"nram": 150}))]
    with pytest.raises(DoesNotFit, match=r"schedule `unroll o=2` of huge \(net.py:4\) comes closest") as caught:
        choose(kernels, [Resource("nram", 100, "max")], target="mlu", objective="sum", fixed={"nram": 8})
    e = caught.value
    assert (e.layer, e.axis, e.need, e.limit) == ("huge", "nram", 158, 100)
    assert "at least 158 nram" in e.nearest


def test_resource_of_which_there_is_none() -> None:
    with pytest.raises(DoesNotFit) as caught:
        choose([kernel("k", (5, {"uram": 1}))], load_profile("zynq").axes, target="z", objective="slowest")
    assert (caught.value.axis, caught.value.need, caught.value.limit) == ("uram", 1, 0)


def test_fixed_overhead_is_counted_once() -> None:
    axes = [Resource("lut", 10, "sum")]
    kernels = [kernel("a", (9, {"lut": 2}), (3, {"lut": 5})), kernel("b", (4, {"lut": 1}))]
    choice = choose(kernels, axes, target="t", objective="slowest", fixed={"lut": 4})
    assert (choice.objective, choice.use["lut"]) == (4, 10)
    assert choose(kernels, axes, target="t", objective="slowest", fixed={"lut": 5}).objective == 9
    with pytest.raises(DoesNotFit, match=r"needs 11 lut where 10"):
        choose(kernels, axes, target="t", objective="slowest", fixed={"lut": 8})
    with pytest.raises(DoesNotFit, match=r"layer fixed overhead"):
        choose([], axes, target="t", objective="slowest", fixed={"lut": 11})
    assert choose([], axes, target="t", objective="slowest") == Choice((), 0, 0, {"lut": 0}, "spatial")


def test_a_budget_filled_exactly_fits_despite_float_noise() -> None:
    kernels = [kernel(f"k{i}", (1, {"lut": 0.1}), (9, {"lut": 0.0})) for i in range(10)]
    assert choose(kernels, [Resource("lut", 1, "sum")], target="t", objective="slowest").objective == 1
    assert (
        choose([kernel("k", (1, {"lut": 37240}))], load_profile("zynq").axes, target="t", objective="slowest").objective
        == 1
    )


def test_or_tools_is_only_needed_for_hard_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ortools", "ortools.sat", "ortools.sat.python"):
        monkeypatch.setitem(sys.modules, module, None)
    assert choose(bram_bound(), [], target="cpu", objective="sum").objective == 400 + 450 + 300
    with pytest.raises(ToolNotFound, match=r"OR-tools not found.*pip install .*\[compiler\]"):
        choose(bram_bound(), [Resource("bram18", 70, "sum")], target="t", objective="sum")


@pytest.mark.parametrize(
    ("kernels", "problem"),
    [
        ([kernel("a", (1, {})), kernel("a", (1, {}))], "two kernels are named 'a'"),
        ([KernelChoices("a", "", ())], "'a' has no candidate"),
        ([kernel("a", (1, {"lut": float("nan")}))], "form 'unroll o=1': lut is nan"),
        ([kernel("a", (-1, {}))], "cycles is -1"),
    ],
)
def test_mistakes_of_an_adapter(kernels: list[KernelChoices], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        choose(kernels, AXES, target="t", objective="slowest")
