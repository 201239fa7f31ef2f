"""The temporal style, apart from what a family, its projects and its devices are: see docs/design.md."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar

from xdsl.dialects.builtin import ModuleOp

from cuvil_hw.adapters.base import Golden, Offer, SettingKind
from cuvil_hw.adapters.sequential.alike import form_of, share
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric, Use, multiplier_blocks
from cuvil_hw.adapters.temporal import loop
from cuvil_hw.adapters.temporal.engine import BoardMemory, Engine, Tilings, engines, start_cycles, sum_cost
from cuvil_hw.adapters.temporal.form import EnginePass, Form, VectorLoop
from cuvil_hw.adapters.temporal.layer import Convolution, Sum, layer_of
from cuvil_hw.adapters.temporal.memory import ALIGNMENT, padded_bytes
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.lower.emit import Tables
from cuvil_hw.ops.base import Op
from cuvil_hw.render.c.names import Names
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import Buffer, Kernel, KernelGraph
from cuvil_hw.schedule.resources import Rule
from cuvil_hw.schedule.space import Objective
from cuvil_hw.target.profile import Profile
from cuvil_hw.types import TensorType

if TYPE_CHECKING:
    from xdsl.dialects.func import FuncOp


class Temporal(ABC):
    """See adapters/base.py for the contract. A target adds its family (`fabric`), its memory and `plan`."""

    name: str
    interface = "sim"
    interfaces: ClassVar[tuple[str, ...]]
    settings: ClassVar[Mapping[str, SettingKind]]
    float_ends = True
    axes: ClassVar[Mapping[str, Rule]]
    objective: Objective = "sum"
    alignment = ALIGNMENT

    @abstractmethod
    def fabric(self, profile: Profile) -> Fabric:
        """The family of a profile. Raises ProfileError."""

    @abstractmethod
    def memory(self, profile: Profile) -> BoardMemory:
        """The board's memory, as the fabric sees it. Raises ProfileError."""

    @abstractmethod
    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        """See the contract."""

    def buffer_bytes(self, buffer: Buffer) -> int:
        return padded_bytes(buffer)

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        if any(t.size == 0 for t in (*inputs, *outputs)):
            return f"{op.mnemonic} has a tensor without elements"
        return None

    def offer(self, graph: KernelGraph, profile: Profile) -> Offer:
        """One form of each kernel, for the fastest engine that fits: all sizes of a list are tried. Where none fits,
        the one that is nearest."""
        fabric, memory = self.fabric(profile), self.memory(profile)
        layers = [layer_of(k, graph) for k in graph.kernels]
        nests, tilings = _nests(graph, layers, fabric), Tilings(memory)
        best: tuple[int, list[Form], dict[str, float]] | None = None
        nearest: tuple[float, Engine] | None = None
        for engine in sorted(engines(), key=lambda e: e.floor(layers)):
            over = _excess(profile, engine, nests, fabric)
            nearest = min(nearest or (over, engine), (over, engine), key=lambda n: n[0])
            if over > 1 or (best is not None and engine.floor(layers) >= best[0]):
                continue
            forms = forms_on(engine, graph, layers, memory, fabric, tilings)
            use = _use(forms, engine, fabric)
            if (
                _share(profile, _axes(use, engine, fabric)) > 1
            ):  # a kernel that this engine doesn't hold joins the vector unit
                continue
            total = sum(f.cost.cycles if isinstance(f, EnginePass) else f.cycles for f in forms)
            if best is None or total < best[0]:
                best = total, forms, _axes(use, engine, fabric)
        if best is None:
            assert nearest is not None
            forms = forms_on(nearest[1], graph, layers, memory, fabric)
            best = 0, forms, _axes(_use(forms, nearest[1], fabric), nearest[1], fabric)
        return Offer([[f] for f in best[1]], best[2])

    def least_cycles(self, graph: KernelGraph, profile: Profile) -> int:
        """Of a sample on any engine that the profile's multipliers allow: each pass is read from memory, and each
        product takes a multiplier for a cycle."""
        budgets = {a.name: a.budget for a in profile.axes}
        each = multiplier_blocks(self.fabric(profile), *Engine.FACTORS)
        most = max(e.outputs * e.inputs for e in engines())
        products = max(1, min(most, int(budgets.get("dsp", most * each) / each)))
        sums = sum(k.type.size * prod(i.extent for i in k.reduction_iters) for k in graph.kernels if k.reduce)
        return sums // products + len(graph.kernels) * start_cycles(self.memory(profile))

    def lower(self, design: Design, profile: Profile) -> ModuleOp:
        """The functions of the vector unit; the engine is written by hand (hls/cuvil_engine.h)."""
        return functions(design, self.fabric(profile))[0]


def forms_of(design: Design) -> list[Form]:
    """The chosen form of every kernel, in their order."""
    chosen = [design.choice.candidate(k.name).form for k in design.graph.kernels]
    return [form for form in chosen if isinstance(form, EnginePass | VectorLoop)]


def functions(design: Design, fabric: Fabric) -> tuple[ModuleOp, dict[str, int]]:
    """The vector unit's functions, one for all kernels that compute the same; its number for each such kernel."""
    graph = design.graph
    tables, names = Tables(graph.constants), Names(frozenset())
    made: dict[Hashable, FuncOp] = {}
    numbers: dict[str, int] = {}
    sharing: dict[Hashable, list[str]] = {}
    for form in forms_of(design):
        if not isinstance(form, VectorLoop):
            continue
        key = form_of(form.kernel)
        if key not in made:
            made[key] = loop.lowered(
                form.kernel, graph.buffers, tables, names.new(form.kernel.name), len(made), fabric.floats
            )
        sharing.setdefault(key, []).append(form.kernel.name)
        numbers[form.kernel.name] = list(made).index(key)
    for key, function in made.items():
        share(function, sharing[key])
    return ModuleOp([*tables.ops, *made.values()]), numbers


def forms_on(
    engine: Engine,
    graph: KernelGraph,
    layers: Sequence[Convolution | Sum | str],
    memory: BoardMemory,
    fabric: Fabric,
    tilings: Tilings | None = None,
) -> list[Form]:
    """How each kernel runs where the engine has this size."""
    known = tilings or Tilings(memory)
    return [_form(k, layer, engine, memory, fabric, known) for k, layer in zip(graph.kernels, layers, strict=True)]


def _form(
    kernel: Kernel,
    layer: Convolution | Sum | str,
    engine: Engine,
    memory: BoardMemory,
    fabric: Fabric,
    tilings: Tilings,
) -> Form:
    if isinstance(layer, Sum):
        return EnginePass(engine, layer, sum_cost(layer, engine, memory))
    if isinstance(layer, Convolution):
        made = tilings.best(layer, engine)
        if made is not None:
            return EnginePass(engine, *made)
        layer = "the window of one output doesn't fit the engine's memory"
    cores = fabric.floats
    return VectorLoop(kernel, layer, loop.cycles(kernel, cores) + start_cycles(memory), loop.around(kernel, cores))


def _nests(graph: KernelGraph, layers: Sequence[Convolution | Sum | str], fabric: Fabric) -> Use:
    """The vector unit that is needed whatever the engine."""
    refused = [(k, layer) for k, layer in zip(graph.kernels, layers, strict=True) if isinstance(layer, str)]
    return _use([VectorLoop(k, why, 0, 0) for k, why in refused], None, fabric)


def _excess(profile: Profile, engine: Engine, nests: Use, fabric: Fabric) -> float:
    """The fullest axis' use of its budget, by the engine and the functions that are there anyway."""
    use = Use()
    use.add(nests)
    use.add(engine.use(fabric))
    return _share(profile, _axes(use, engine, fabric))


def _axes(use: Use, engine: Engine, fabric: Fabric) -> dict[str, float]:
    return {**use.axes(fabric), **({"uram": float(engine.urams)} if engine.uram else {})}


def _share(profile: Profile, use: Mapping[str, float]) -> float:
    """Axes that a profile leaves out aren't limited; but only one that says so has UltraRAM."""
    budgets = {"uram": 0.0, **{a.name: a.budget for a in profile.axes}}
    shares = [n / budgets[axis] if budgets[axis] else float("inf") for axis, n in use.items() if n and axis in budgets]
    return max(shares, default=0.0)


def _use(forms: Sequence[Form], engine: Engine | None, fabric: Fabric) -> Use:
    """The engine, where a kernel uses it, and each function of the vector unit once."""
    use = Use()
    if engine is not None and any(isinstance(f, EnginePass) for f in forms):
        use.add(engine.use(fabric))
    seen = set()
    for form in forms:
        if isinstance(form, VectorLoop) and (key := form_of(form.kernel)) not in seen:
            seen.add(key)
            use.add(loop.use_of(form.kernel, fabric))
    return use
