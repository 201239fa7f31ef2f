"""The whole contract between Cuvil and a target. An adapter is one folder with these methods.

Adapters know nothing of front ends or of each other; the shared partitioner and solver decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Array
from cuvil_hw.ops.base import Op
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import Buffer, KernelGraph
from cuvil_hw.schedule.measured import Measured
from cuvil_hw.schedule.resources import Rule
from cuvil_hw.schedule.space import Estimate, Objective
from cuvil_hw.schedule.timing import DesignTiming
from cuvil_hw.target.profile import Profile
from cuvil_hw.types import TensorType

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

# What a setting of a profile may be: one of some values, or anything of a type. Numbers are above 0.
SettingKind = tuple[str | int, ...] | type[str] | type[int] | type[float] | type[bool] | type[tuple[object, ...]]


@dataclass(frozen=True)
class Golden:
    """Inputs of the device program and the outputs that the NumPy meaning gives for them, for testbenches.

    Each array has shape (N, *port shape), in the order of the graph's inputs and outputs. `make` gives both; it is
    called when an adapter asks for them.
    """

    make: Callable[[], tuple[tuple[Array, ...], tuple[Array, ...]]] = lambda: ((), ())

    @cached_property
    def _made(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        return self.make()

    @property
    def inputs(self) -> tuple[Array, ...]:
        return self._made[0]

    @property
    def outputs(self) -> tuple[Array, ...]:
        return self._made[1]


class Form(Protocol):
    """One way to run one kernel: a frozen dataclass with all that was decided for it, so that nothing is worked out
    again when it is emitted. Two forms of a kernel are equal when they run the same (fields that follow from the others
    are left out of the comparison)."""

    def describe(self) -> str:
        """One line for the report; also decides between forms that are equally good."""

    def estimate(self, profile: Profile) -> Estimate:
        """Seconds, cycles, use per axis of the profile. Pure and fast (called for every form)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What an adapter offers for a graph.

    Attributes:
        forms: of each kernel, in the graph's order, at least one; their order doesn't matter, duplicates are
            dropped.
        overhead: use per axis of what joins the kernels (ports, forks, buffers between them), whatever is chosen.
        paced: cycles that a sample takes there, whatever is chosen: nothing is unrolled beyond it. For the objective
            "slowest".
    """

    forms: Sequence[Iterable[Form]]
    overhead: Mapping[str, float] = field(default_factory=dict)
    paced: int = 0


class Adapter(Protocol):
    name: str

    @property
    def interface(self) -> str:
        """Of the device that programs run on unless another is asked for: "hw", "sim" or "null"."""

    @property
    def axes(self) -> Mapping[str, Rule]:
        """The resources for which a profile must give limits, and how use of them adds up: "max" where each kernel has
        the resource for itself, "sum" where all kernels share it, "live" for memory of tensors."""

    @property
    def interfaces(self) -> tuple[str, ...]:
        """Of all the devices that the entry point in `cuvil.devices` opens; asking for another fails before anything is
        compiled."""

    @property
    def settings(self) -> Mapping[str, SettingKind]:
        """The settings that a profile may have beside `precision` and `opt_level`, by name; others are refused."""

    @property
    def float_ends(self) -> bool:
        """Whether ops on floats before the integers of a quantized model, and after them, are the processor's: True
        where floats cost the target much more than integers. What `refuses` names is never the target's."""

    @property
    def objective(self) -> Objective:
        """ "slowest": all kernels run at once, each on what streams out of those before it; intermediate results lie
        nowhere. "sum": kernels run one after another in the graph's order, and results between them lie in an arena."""

    @property
    def alignment(self) -> int:
        """Bytes, a power of two: intermediate results start at multiples in the arena that the device allocates."""

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        """None when this target can run `op` on such tensors; else the reason, shown to the user."""

    def offer(self, graph: KernelGraph, profile: Profile) -> Offer:
        """Every way to run each kernel. What a form must know of the graph, such as constants, it is told here; a form
        that is offered runs when it is chosen."""

    def lower(self, design: Design, profile: Profile) -> ModuleOp:
        """The level2 module of the whole program, from the chosen forms. Must verify."""

    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        """Files and commands; runs nothing, needs no tool. Intermediate results lie where `design.memory` says."""


@runtime_checkable
class Measures(Protocol):
    """What an adapter may have beside `Adapter`'s; without it the estimates stay."""

    def measure(self, plan: BuildPlan, profile: Profile) -> Measured:
        """What the target's own tools say of a plan's sources. Raises ToolNotFound when the tools are missing, then the
        estimates stay; BuildFailed when they refuse the sources."""


@runtime_checkable
class ReadsProducts(Protocol):
    """What an adapter may have beside `Adapter`'s; without it the products say nothing."""

    def built(self, products: Mapping[str, bytes]) -> Sequence[str]:
        """Lines for the report about the products of a plan, such as the clock that place and route reached."""


@runtime_checkable
class ChecksProfile(Protocol):
    """What an adapter may have, too: knowledge of the parts that its profiles name."""

    def contradictions(self, profile: Profile) -> Iterable[tuple[str, str]]:
        """(key, problem) for everything in a profile that can't be together, such as ("clock_mhz", "more than …").
        Called for a profile whose settings are of the declared kinds, when it is checked and before compiling."""


@runtime_checkable
class Times(Protocol):
    """What an adapter may have beside `Adapter`'s; without it the figures of the forms stay."""

    def timing(self, module: ModuleOp, design: Design, profile: Profile) -> DesignTiming:
        """Sizes what joins the processes of a lowered module, in place, and says how long a sample takes. Afterwards
        `plan` finds it in its design."""


@runtime_checkable
class ProvesTime(Protocol):
    """What an adapter may have beside `Times`: what a sample takes at worst, for time slots (schedule/slots.py)."""

    def worst_cases(self, module: ModuleOp, design: Design, profile: Profile) -> Mapping[str, int]:
        """Cycles by layer, "" for the whole program, of a lowered module after `timing`. Raises CuvilError where that
        can't be known, with the reason."""


@runtime_checkable
class OwnPasses(Protocol):
    """What an adapter may have beside `Adapter`'s: passes of its own over the program that it is given."""

    @property
    def level1_passes(self) -> Sequence[ModulePass]:
        """Run on the device's part of a program before its layers become kernels. They keep what it computes."""

    @property
    def level2_passes(self) -> Sequence[ModulePass]:
        """Run on what `lower` gave."""


@runtime_checkable
class IntegerWeights(Protocol):
    """What an adapter may have, too; one without it takes floats."""

    @property
    def integer_weights(self) -> bool:
        """Whether the target runs `linear` of floats and integer weights about as fast as of floats alone: then
        weights stay as narrow as the model has them."""


@runtime_checkable
class Epilogues(Protocol):
    """What an adapter may have beside `Adapter`'s; without it such an op is a kernel of its own."""

    @property
    def residual_epilogue(self) -> bool:
        """Whether the elementwise ops behind a kernel with a reduction may read another computed tensor, such as a skip
        connection, and still be part of that kernel: True where kernels run one after another, and what one writes and
        the next reads passes through memory."""


@runtime_checkable
class RunsLoops(Protocol):
    """What an adapter may have, too; without it the steps of loops are unrolled, and the report says so."""

    @property
    def runs_loops(self) -> bool:
        """Whether the target repeats the kernels of a loop (`KernelGraph.loops`), as one does that runs kernels one
        after another."""


@runtime_checkable
class FoldsChannels(Protocol):
    """What an adapter may have, too; without it layers have the channels of the model."""

    def channels(self, count: int) -> int:
        """To how many channels `count` are padded where layers of integers alone see them, since a number of channels
        is computed at once that divides them."""


@runtime_checkable
class Pads(Protocol):
    """What an adapter may have beside `Adapter`'s; without it intermediate results lie densely."""

    def buffer_bytes(self, buffer: Buffer) -> int:
        """Bytes of a buffer in the target's memory, where rows or pixels are padded."""


@runtime_checkable
class Styles(Protocol):
    """What an adapter may have beside `Adapter`'s: several ways to build a whole program."""

    def styles(self, profile: Profile) -> Sequence[Style]:
        """At least one. Of those into whose limits the program fits the one in which a sample takes fewest cycles is
        built, the first of equals; the report names it and says why."""


@dataclass(frozen=True, slots=True)
class Style:
    """`reason`: why it is tried, in words that may follow "temporal:"; "" when the report needs none. `least_cycles`:
    of a sample, whatever is chosen, where that is known at once: the style isn't tried where an earlier one is as
    fast."""

    name: str
    adapter: Adapter
    reason: str = ""
    least_cycles: Callable[[KernelGraph, Profile], int] | None = None


def styles_of(adapter: Adapter, profile: Profile) -> Sequence[Style]:
    """The ways to build a program that the adapter has under a profile, in the order in which they are tried."""
    return adapter.styles(profile) if isinstance(adapter, Styles) else (Style("", adapter),)


@runtime_checkable
class WholeComposites(Protocol):
    """What an adapter may have beside `Adapter`'s; without it composite ops reach it as smaller ones."""

    @property
    def whole_composites(self) -> Sequence[str]:
        """Names of composite ops, such as "softmax", that it takes whole: each is a kernel whose body is one `Whole`
        (`kernel.whole`: op and operand buffers), which the adapter prices and lowers itself."""
