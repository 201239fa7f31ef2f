"""`compile`: the way of a model from front end to artifact. Read it top to bottom as the contents of the project."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Adapter, Golden
from cuvil_hw.build import BuildPlan
from cuvil_hw.errors import CuvilError, DoesNotFit, InputError, ToolNotFound
from cuvil_hw.precision import Precision, choose_precision
from cuvil_hw.profile import Profile, builtin_profiles, load_profile
from cuvil_hw.report.build import build_report
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.cache import cached_build
from cuvil_hw.runtime.device import Array, Port
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.manifest import Manifest
from cuvil_hw.runtime.registry import load_adapter
from cuvil_hw.schedule import memory, solver
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.measured import Measured, corrected
from cuvil_hw.schedule.memory import MemoryPlan
from cuvil_hw.schedule.space import Candidate, Choice, KernelChoices
from cuvil_hw.types import TensorType

if TYPE_CHECKING:
    from cuvil_hw.ir.program import Program
    from cuvil_hw.partition import Partition

# progress(what is being done, steps done, steps in all)
Progress = Callable[[str, int, int], None]
STEPS = (
    "import the model",
    "simplify",
    "quantize",
    "make arithmetic integer",
    "divide between device and processor",
    "fuse layers",
    "propose schedules",
    "choose schedules",
    "plan memory",
    "lower",
    "write sources",
    "build",
    "pack",
)
GOLDEN_SAMPLES = 2


@dataclass(frozen=True, slots=True)
class Design:
    """A program with its schedules: what an adapter lowers and plans."""

    graph: KernelGraph
    choice: Choice
    memory: MemoryPlan
    live_bytes: float
    overhead: Mapping[str, float]


def compile(
    model: Any,
    target: str | Path | Profile,
    example_inputs: Any = None,
    calibration: Any = None,
    precision: str | None = None,
    *,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    interface: str | None = None,
    progress: Progress | None = None,
) -> Executable:
    """Compile a model for a target.

    `model`: a torch.nn.Module, an ExportedProgram, an onnx.ModelProto or the path of an .onnx file. `target`: name or
    alias of a built-in profile, the path of a profile (.yaml), or a Profile. `example_inputs`: for an nn.Module, one
    array per argument of its forward; they fix shapes and dtypes. `calibration`: representative inputs for
    quantization: (N, *shape of one input), a tuple or mapping of such arrays, an iterable of samples, or saved
    Statistics. `precision`: "float32", "int8" (int2…int8) or "fixed<W,I>"; None takes a quantized model as it is,
    quantizes a float model to the profile's precision if `calibration` is given, and leaves it float where the target
    runs floats. `name`: of the program. `shapes`: for ONNX, by input name. `interface`: of the device that the result
    opens ("hw", "sim", "null"); None: the target's usual one. `progress`: called before each of STEPS.

    Raises ProfileError, Unsupported (with all refused ops), DoesNotFit (layer, axis, need, limit, nearest fit),
    InputError (wrong calibration data), ToolNotFound or BuildFailed (a product can't be built here), CuvilError.
    """
    step = _steps(progress)
    profile = load_profile(target)
    adapter = load_adapter(profile.adapter)
    step("import the model")
    program = import_model(model, example_inputs, shapes, name)
    step("simplify")
    simplify(program)
    chosen = choose_precision(program, precision, calibration is not None, profile)
    step("quantize")
    program = quantize(program, chosen, calibration)
    step("make arithmetic integer")
    make_integer(program, chosen)
    step("divide between device and processor")
    parts = divide(program, adapter, profile)
    step("fuse layers")
    graph = fuse(parts.core)
    step("propose schedules")
    kernels = propose(graph, adapter, profile)
    overhead = adapter.overhead(graph, profile)
    expected, fits = golden(parts.core), False
    while not fits:
        step("choose schedules")
        choice = choose(kernels, profile, overhead)
        step("plan memory")
        design = plan_memory(graph, choice, overhead, profile)
        step("lower")
        module = adapter.lower(graph, choice, profile)
        module.verify()
        step("write sources")
        plan = adapter.plan(module, graph, choice, profile, expected)
        measured = measure(adapter, plan, profile)
        kernels, choice, fits = corrected(kernels, choice, measured, profile.axes)
        design = replace(design, choice=choice)
    program.notes["measured"] = measured.notes
    step("build")
    products = build(plan)
    step("pack")
    artifact = pack(program, parts, design, chosen, plan, products, profile, adapter, interface)
    return Executable(artifact)


def _steps(progress: Progress | None) -> Callable[[str], None]:
    def step(what: str) -> None:
        if progress is not None:
            progress(what, STEPS.index(what), len(STEPS))

    return step


@contextmanager
def needs_compiler(purpose: str) -> Iterator[None]:
    """Says what to install when the base install alone is there."""
    try:
        yield
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if package not in ("xdsl", "ortools"):
            raise
        raise ToolNotFound(f"Python package {package}", purpose, "pip install 'cuvil-hw[compiler]'") from e


def import_model(
    model: Any, example_inputs: Any, shapes: Mapping[str, Sequence[int]] | None, name: str | None
) -> Program:
    """The level1 program of a model, verified. Raises CuvilError, Unsupported, ToolNotFound."""
    with needs_compiler("compile a model"):
        from cuvil_hw.frontend import load

        program = load(model, example_inputs, shapes)
    return program if name is None else replace(program, name=name)


def simplify(program: Program) -> None:
    """Constants folded, what does nothing removed, batch norms in the weights of the layers before them."""
    from cuvil_hw.passes import run_pipeline

    run_pipeline(program, ["fold", "batch-norm"])


def quantize(program: Program, precision: Precision, calibration: Any) -> Program:
    """The program with quantize/dequantize pairs; as it is when there is nothing to quantize. Raises InputError."""
    if precision.scheme is None:
        return program
    from cuvil_hw.quant.calibrate import Statistics, collect, without_data
    from cuvil_hw.quant.ptq import out_of_range
    from cuvil_hw.quant.ptq import quantize as place_pairs

    scheme = precision.scheme
    if calibration is None:
        calibration = without_data(program)
    elif not isinstance(calibration, Statistics):
        by_range = getattr(scheme, "ranges", "minmax") == "minmax"
        calibration = collect(program, _in_order(calibration, program), histograms=not by_range)
    program.notes["precision"] = out_of_range(program, calibration, scheme)
    return place_pairs(program, calibration, scheme)


def _in_order(calibration: Any, program: Program) -> Any:
    """Arrays given by name in the order of the program's inputs. Raises InputError."""
    if not isinstance(calibration, Mapping):
        return calibration
    names = [name for name, _ in program.inputs]
    if set(calibration) != set(names):
        given = ", ".join(sorted(map(str, calibration)))
        raise InputError(f"calibration names {given}; the inputs of {program.name} are {', '.join(names)}")
    arrays = tuple(calibration[name] for name in names)
    return arrays[0] if len(arrays) == 1 else arrays


def make_integer(program: Program, precision: Precision) -> None:
    """Pairs around ops become integer ops with accumulators as narrow as the weights allow; weights kept as integers
    in a float program become floats."""
    from cuvil_hw.passes import run_pipeline

    run_pipeline(program, ["integerize", "accumulators"] if precision.quantized else ["fold-dequantize"])


def divide(program: Program, adapter: Adapter, profile: Profile) -> Partition:
    """What the target refuses at the borders of the program runs on the processor. Raises Unsupported."""
    from cuvil_hw.ops.base import Op
    from cuvil_hw.partition import split

    def refuses(op: Op, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> str | None:
        return adapter.refuses(op, inputs, outputs, profile)

    return split(program, refuses, profile.name)


def fuse(core: Program) -> KernelGraph:
    """Composite ops expanded, every op in one group, every group a kernel. Changes `core`."""
    from cuvil_hw.passes import run_pipeline
    from cuvil_hw.schedule.graph import kernel_graph

    run_pipeline(core, ["decompose", "fold", "fuse"])
    return kernel_graph(core)


def propose(graph: KernelGraph, adapter: Adapter, profile: Profile) -> tuple[KernelChoices, ...]:
    """Every schedule that the adapter offers for each kernel, with its cost."""
    return tuple(KernelChoices(k.name, k.loc or k.name, _candidates(k, adapter, profile)) for k in graph.kernels)


def _candidates(kernel: Kernel, adapter: Adapter, profile: Profile) -> tuple[Candidate, ...]:
    try:
        schedules = dict.fromkeys(adapter.schedules(kernel, profile))
        found = tuple(Candidate(s, adapter.estimate(kernel, s, profile)) for s in schedules)
    except CuvilError as e:
        e.add_note(f"at layer {kernel.name} ({kernel.loc or 'no source location'})")
        raise
    if not found:
        raise CuvilError(f"adapter {profile.adapter} has no schedule for layer {kernel.name} ({kernel.loc})")
    return found


def choose(kernels: Sequence[KernelChoices], profile: Profile, overhead: Mapping[str, float]) -> Choice:
    """The fastest design within the profile's limits. Raises DoesNotFit, which also names built-in targets that do."""
    # Kernels that share one fabric are all there at once and stream; else they run one after another.
    shared = any(axis.rule == "sum" for axis in profile.axes)
    objective: solver.Objective = "max" if shared else "sum"
    with needs_compiler("choose schedules"):
        try:
            return solver.choose(kernels, profile.axes, target=profile.name, objective=objective, fixed=overhead)
        except DoesNotFit:
            from cuvil_hw.schedule.diagnose import does_not_fit

            others = {
                p.name: p.axes for p in builtin_profiles() if p.adapter == profile.adapter and p.name != profile.name
            }
            raise does_not_fit(
                kernels, profile.axes, target=profile.name, fixed=overhead, alternatives=others
            ) from None


def plan_memory(graph: KernelGraph, choice: Choice, overhead: Mapping[str, float], profile: Profile) -> Design:
    """A place for every intermediate result. Raises DoesNotFit when the target's memory is too small."""
    planned = memory.plan_memory(graph)
    live = memory.check_live(graph, planned, profile.axes, target=profile.name)
    return Design(graph, choice, planned, live, overhead)


def golden(core: Program) -> Golden:
    """Inputs of the device program drawn over the range of their dtypes (fixed seed), and what NumPy gives for them.

    Empty for a program that computes floats: only integers have the same bits everywhere. Zeros take the place of
    inputs that the program refuses, such as an index outside its table.
    """
    from cuvil_hw.ir.program import evaluate

    if any(dtypes.is_float(kind.dtype) for _, kind in (*core.inputs, *core.outputs)):
        return Golden()
    draw = np.random.default_rng(0)
    inputs = [_draw(draw, kind) for _, kind in core.inputs]
    try:
        runs = [evaluate(core, [stack[i] for stack in inputs]) for i in range(GOLDEN_SAMPLES)]
    except CuvilError:
        inputs = [np.zeros_like(stack) for stack in inputs]
        runs = [evaluate(core, [stack[i] for stack in inputs]) for i in range(GOLDEN_SAMPLES)]
    return Golden(tuple(inputs), tuple(np.stack(results) for results in zip(*runs, strict=True)))


def _draw(draw: np.random.Generator, kind: TensorType) -> Array:
    low, high = dtypes.int_range(kind.dtype)
    drawn = draw.integers(
        low, high, (GOLDEN_SAMPLES, *kind.shape), np.uint64 if high >= 1 << 63 else np.int64, endpoint=True
    )
    return drawn.astype(dtypes.to_numpy(kind.dtype))


def measure(adapter: Adapter, plan: BuildPlan, profile: Profile) -> Measured:
    """What the target's own tools say of the sources, where the adapter can ask them. Without the tools the estimates
    stay, and a note of the report says so."""
    ask = getattr(adapter, "measure", None)
    if ask is None:
        return Measured()
    try:
        return cast(Measured, ask(plan, profile))
    except ToolNotFound as e:
        return Measured(notes=(f"not measured, estimates stay: {e}",))


def build(plan: BuildPlan) -> dict[str, bytes]:
    """The plan's products, from the cache of builds where it has them. Raises ToolNotFound, BuildFailed."""
    if not plan.products:
        return {}
    folder = cached_build(plan)
    return {name: (folder / name).read_bytes() for name in plan.products}


def pack(
    program: Program,
    parts: Partition,
    design: Design,
    precision: Precision,
    plan: BuildPlan,
    products: Mapping[str, bytes],
    profile: Profile,
    adapter: Adapter,
    interface: str | None,
) -> Artifact:
    """Everything that running needs, in one artifact. Equal compilations give equal bytes."""
    from cuvil_hw.ir.graphviz import graph_of

    graph = design.graph
    manifest = Manifest(
        model=program.name,
        adapter=profile.adapter,
        profile=profile_data(profile),
        inputs=_ports(program.inputs),
        outputs=_ports(program.outputs),
        device_inputs=_ports([(n, graph.buffers[n].type) for n in graph.inputs]),
        device_outputs=_ports([(n, graph.buffers[n].type) for n in graph.outputs]),
        prologue=parts.prologue,
        epilogue=parts.epilogue,
        interface=interface or str(getattr(adapter, "interface", "hw")),
        info=plan.info,
        abi=_abi(plan),
    )
    report = build_report(
        model=program.name,
        target={"name": profile.name, "adapter": profile.adapter, "part": profile.part, "board": profile.board},
        precision=precision.label,
        kernels=graph,
        choice=design.choice,
        axes=profile.axes,
        clock_hz=profile.clock_hz,
        fixed=design.overhead,
        memory=design.memory,
        live_bytes=design.live_bytes,
        prologue=parts.prologue,
        epilogue=parts.epilogue,
        graph=graph_of(parts.core),
        notes=[
            *(f"assumed: {text}" for text in program.notes.get("assumed", ())),
            *program.notes.get("precision", ()),
            *program.notes.get("measured", ()),
        ],
    )
    return container.assemble(
        manifest,
        level1=program.text() + "\n",
        report=report,
        constants={**constants(program, graph), **parts.constants},
        sources=plan.files,
        products=products,
    )


def constants(program: Program, graph: KernelGraph) -> dict[str, Array]:
    """The arrays that the level1 text and the device program name, by digest."""
    from cuvil_hw.ir import level1

    named = [op.handle.data for op in program.block.ops if isinstance(op, level1.ConstOp) and op.handle is not None]
    named += [buffer.digest for buffer in graph.buffers.values() if buffer.role == "const"]
    return {digest: graph.constants[digest] for digest in named}


def profile_data(profile: Profile) -> dict[str, Any]:
    """A profile as JSON data for a manifest. Where its file lies is left out: equal profiles give equal artifacts."""
    return asdict(replace(profile, source=profile.name))


def _ports(named: Iterable[tuple[str, TensorType]]) -> tuple[Port, ...]:
    return tuple(Port(name, kind.shape, kind.dtype) for name, kind in named)


def _abi(plan: BuildPlan) -> dict[str, str]:
    """What a host must be to run the products itself, where the adapter says so in its plan."""
    abi = plan.info.get("abi", {})
    if not isinstance(abi, Mapping):
        raise CuvilError(f"the plan's abi is {abi!r}, not a mapping of machine and system; repair the adapter")
    return {str(key): str(value) for key, value in abi.items()}
