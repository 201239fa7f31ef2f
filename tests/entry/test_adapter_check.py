"""The conformance kit says of every adapter that breaks the contract how; the built-in ones keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from cuvil.testing import check_adapter
from cuvil_hw.adapters import registry
from cuvil_hw.adapters.base import Offer
from cuvil_hw.adapters.cpu.adapter import CpuAdapter
from cuvil_hw.adapters.cpu.form import LoopNest
from cuvil_hw.errors import CuvilError
from cuvil_hw.schedule.space import Estimate

pytestmark = pytest.mark.needs("gcc", "ortools")
numbers = count()


@pytest.mark.must_run
@pytest.mark.needs("g++")
@pytest.mark.parametrize(
    ("target", "interface"),
    [("cpu", None), ("cpu", "null"), ("h100", None), ("mlu270", None), ("pynq-z2", None), ("agilex", "sim-sycl")],
)
def test_the_built_in_adapters_keep_the_contract(target: str, interface: str | None) -> None:
    check_adapter(target, interface)


class Endless(LoopNest):
    def estimate(self, profile: Any) -> Estimate:
        return Estimate(float("nan"), 1)


class Moody(LoopNest):
    def estimate(self, profile: Any) -> Estimate:
        return Estimate(1e-6, next(numbers))


class Mumbling(LoopNest):
    def describe(self) -> str:
        return "loops"


@dataclass
class Loose:
    kernel: Any = field(compare=False)
    __hash__ = object.__hash__

    def describe(self) -> str:
        return "loose"

    def estimate(self, profile: Any) -> Estimate:
        return Estimate(1e-6, 1)


def offering(kind: Callable[..., Any]) -> type[CpuAdapter]:
    class Adapter(CpuAdapter):
        def offer(self, graph: Any, profile: Any) -> Offer:
            made = super().offer(graph, profile).forms
            return Offer([[kind(f.kernel, f.vector, f.lanes, f.layouts, f.packed) for f in forms] for forms in made])

    return Adapter


class Forgetful(CpuAdapter):
    def offer(self, graph: Any, profile: Any) -> Offer:
        return Offer(super().offer(graph, profile).forms[1:])


class Crooked(CpuAdapter):
    alignment = 48


class Fickle(CpuAdapter):
    def plan(self, *args: Any) -> Any:
        plan = super().plan(*args)
        return replace(plan, files={**plan.files, "notes.txt": str(next(numbers)).encode()})


class Wrong(CpuAdapter):
    """Computes another tanh than was asked for."""

    old, new = b"1.0f - 2.0f /", b"1.0f - 3.0f /"

    def plan(self, *args: Any) -> Any:
        plan = super().plan(*args)
        return replace(plan, files={n: text.replace(self.old, self.new) for n, text in plan.files.items()})


class Speechless(CpuAdapter):
    def refuses(self, *args: Any) -> str | None:
        return " "


class Shy(CpuAdapter):
    def refuses(self, *args: Any) -> str | None:
        return "too shy"


class Unlimited(CpuAdapter):
    axes = {"flash": "sum"}  # noqa: RUF012


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        (offering(Endless), "estimates seconds of Endless as nan"),
        (offering(Moody), "estimates Moody otherwise when it is asked again"),
        (offering(Mumbling), "describes forms of conv_0 alike"),
        (offering(lambda kernel, *_: Loose(kernel)), "offers Loose, which is no frozen dataclass"),
        (Forgetful, r"offers forms for \d of \d kernels"),
        (Crooked, "aligns to 48 bytes, no power of two"),
        (Fickle, "makes other bytes of the same program"),
        (Wrong, r"is off by [\d.]+ in floats: output y"),
        (Speechless, "refuses an op without a reason"),
        (Shy, "refuses every network: integers, floats"),
        (Unlimited, "needs a limit for flash, which x86_64-linux-gnu hasn't"),
    ],
)
def test_what_breaks_the_contract_is_said(
    adapter: type[CpuAdapter], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "load_adapter", lambda name: adapter())
    with pytest.raises(AssertionError, match=f"adapter cpu {said}"):
        check_adapter("cpu")


def test_a_target_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CuvilError, match="unknown target"):
        check_adapter("tpu-1")
