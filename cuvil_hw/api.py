"""`compile`: the steps from a model to an artifact, in order. A good first file to read: each step names its module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from xdsl.context import Context

from cuvil_hw.adapters.base import (
    Adapter,
    Epilogues,
    FoldsChannels,
    Form,
    IntegerWeights,
    Measures,
    OwnPasses,
    Pads,
    ReadsProducts,
    Style,
    Times,
    WholeComposites,
    styles_of,
)
from cuvil_hw.adapters.target_check import adapter_for
from cuvil_hw.compile.arguments import MAX_NAME, check_arguments, named_targets
from cuvil_hw.compile.collecting import collecting_later
from cuvil_hw.compile.dump import Dump
from cuvil_hw.compile.elsewhere import surroundings
from cuvil_hw.compile.golden import golden as golden_of
from cuvil_hw.compile.golden import kept
from cuvil_hw.compile.numbers import make_integer, quantize, shared_statistics, simplify
from cuvil_hw.compile.open.pipeline import compile_model
from cuvil_hw.compile.pack import pack
from cuvil_hw.compile.partition import Partition, split, without_loops
from cuvil_hw.compile.precision import check_narrow, choose_precision
from cuvil_hw.compile.slots import in_slots, slots_of
from cuvil_hw.compile.styles import Arranged, fastest
from cuvil_hw.contract.build import BuildPlan, telling
from cuvil_hw.contract.registry import ADAPTERS, blaming
from cuvil_hw.errors import CuvilError, ToolNotFound, needs_compiler, needs_python
from cuvil_hw.extent.constraint import Constraint
from cuvil_hw.frontend import load, load_open, opens_shapes
from cuvil_hw.frontend.shared.state import keep_state
from cuvil_hw.ir.legal import legal
from cuvil_hw.ir.program import Program
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.ops.base import Op
from cuvil_hw.passes import pad_channels
from cuvil_hw.passes.pipeline import Decompose, FoldConstants, Fuse, apply, observe, observed, run_passes
from cuvil_hw.passes.quantize.fidelity import float_model
from cuvil_hw.runtime.cache import build
from cuvil_hw.runtime.dynamic import DynamicExecutable
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.schedule import memory, solver
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.measured import Measured, corrected
from cuvil_hw.schedule.slots import Slots, TimeSlot
from cuvil_hw.schedule.space import Candidate, Choice, KernelChoices, Proposals, Surroundings
from cuvil_hw.target.opt_level import at_level, level_of, searches
from cuvil_hw.target.profile import Profile, load_profile
from cuvil_hw.telemetry.logs import FIELDS
from cuvil_hw.telemetry.spans import stage, stages
from cuvil_hw.types import TensorType

# progress(what is being done, steps done, steps in all)
Progress = Callable[[str, int, int], None]
_log = logging.getLogger("cuvil.compile")
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


@collecting_later()
def compile(
    model: Any,
    target: str | Path | Profile,
    example_inputs: Any = None,
    calibration: Any = None,
    precision: str | None = None,
    *,
    name: str | None = None,
    shapes: Mapping[Any, Any] | None = None,
    constraints: Sequence[str | Constraint] | str | Constraint = (),
    constants: Mapping[str, Any] | None = None,
    state: Mapping[str, str] | None = None,
    max_trips: int | None = None,
    opt_level: int | None = None,
    timing: Slots | None = None,
    interface: str | None = None,
    progress: Progress | None = None,
    dump: str | Path | None = None,
    golden: int = 0,
) -> Executable | DynamicExecutable:
    """Compile a model for a target.

    Args:
        model: a torch.nn.Module, an ExportedProgram, an onnx.ModelProto or the path of an .onnx file.
        target: name or alias of a built-in profile, the path of a profile (.yaml), or a Profile.
        example_inputs: what an nn.Module's forward is called with: one array, a tuple with one entry per positional
            argument, or a mapping by parameter name; entries may be nested. They fix shapes, dtypes and Python values.
            For an ONNX model they only fix shapes that the file leaves open.
        calibration: representative inputs for quantization: an array (N, *shape of one input), a tuple or mapping of
            such arrays (one per input), an iterable of samples, or saved Statistics. Where inputs are nested, each
            sample has the form of `example_inputs`.
        precision: "float32"; "float16" or "bfloat16" (all f32 values become such, ports stay f32); "int8" (also int2 to
            int7); or "fixed<W,I>" (W bits, I of them before the binary point).
            None: a model that is already quantized stays as it is; a float model is quantized to the profile's
            precision if `calibration` is given, and stays float otherwise (an error if the target needs integers).
        name: of the program, used in file names.
        shapes: shapes by input name, for ONNX files and ExportedPrograms that leave some open. If an entry holds a Dim
            (any kind of model), or an ExportedProgram has symbolic sizes that nothing fixes, the result accepts every
            size within the bounds (docs/dynamic-shapes.md).
        constraints: rules between open dimensions, such as "S <= 2*B".
        constants: ONNX only: a number or array by the name of an input, which becomes a constant, such as {"sr":
            16000}.
        state: {input: output}: the value of `output` becomes `input` in the next call, such as {"state": "stateN"}. The
            program keeps it, starting from zeros, until `reset()`. Buffers that a torch module updates are always kept.
        max_trips: number of iterations compiled for a loop that ends by computed values; a call that needs more raises
            GuardError.
        opt_level: 0 to 3 (target/opt_level.py); None: the profile's, usually 2.
        timing: a time slot that the program keeps at worst, or slots by layer: see `cuvil.timing`.
        interface: the device that the result opens: "hw", "sim" or "null"; None: the target's default.
        progress: called as progress(step, steps done, steps in all) before each of STEPS, and before each command of a
            build ("build: place and route the design").
        dump: a folder that gets the IR after every pass, in numbered .mlir files.
        golden: so many golden vectors are kept in the artifact (random inputs of a fixed seed, and what NumPy computes
            from them), which `cuvil test` and `cuvil serve` check a device with. Fixed shapes only, and no state.

    Returns:
        An Executable; a DynamicExecutable if shapes are open.

    Raises:
        ProfileError: the profile is unknown or wrong, also in settings that its adapter doesn't know.
        Unsupported: parts of the model can't be compiled; lists all of them.
        DoesNotFit: the target's resources are too small; names layer, axis, need, limit and the nearest fit.
        MissesSlot: a time slot is too short; names layer, cycles and slot.
        InputError: the calibration data are wrong. ToolNotFound, BuildFailed: a product can't be built here.
        CuvilError: anything else that is wrong with the arguments; base class of those above.
    """
    needs_python("compile a model")
    check_arguments(name=name, shapes=shapes, constraints=constraints, constants=constants, state=state,
                    max_trips=max_trips, opt_level=opt_level, interface=interface, progress=progress,
                    dump=dump, golden=golden)  # fmt: skip
    profile = at_level(load_profile(target), opt_level)
    step = _steps(profile.name, progress)
    adapter, slots = adapter_for(profile, interface), slots_of(model, timing)
    with stages("cuvil.compile", target=profile.name, model=name), observed(Dump(dump) if dump is not None else None):
        step("import the model")
        if opens_shapes(model, example_inputs, shapes, constraints):
            if state or slots or golden:
                needing = "state, time slots and golden vectors need fixed shapes"
                raise CuvilError(f"{needing}; give shapes without Dim or constraints")
            opened = load_open(model, example_inputs, shapes, constraints, name, constants, max_trips)
            return compile_model(opened, profile, adapter, calibration, precision, interface, step, compile_program)
        program = import_model(model, example_inputs, shapes, name, constants, state, max_trips)
        observe("import", program.module)
        step("simplify")
        simplify(program)
        made = compile_program(program, profile, adapter, calibration, precision, interface, step, slots)
        return kept(made, golden)


@collecting_later()
def compile_all(
    model: Any,
    targets: str | Path | Profile | Iterable[str | Path | Profile],
    example_inputs: Any = None,
    calibration: Any = None,
    precision: str | None = None,
    *,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    state: Mapping[str, str] | None = None,
    max_trips: int | None = None,
    interface: str | None = None,
    golden: int = 0,
    progress: Callable[[str], Progress] | None = None,
    done: Callable[[str, Executable | CuvilError], None] | None = None,
) -> dict[str, Executable]:
    """Compile a model for several targets, with one import and one calibration. Each result equals that of `compile`,
    to the byte.

    Args:
        targets: one target or several, as in `compile`.
        progress: called with each target's name; returns the `progress` function of `compile` for that target.
        done: called with a target's name and its Executable, or the error that stopped it; the other targets are
            compiled nevertheless. Without `done` the first error is raised.

    All other arguments are those of `compile`; shapes must be fixed.

    Returns:
        The Executable of each target, by the name that was given, or by the profile's name for paths and Profiles.

    Raises:
        CuvilError: two targets have one name; else as `compile`.
    """
    needs_python("compile a model")
    check_arguments(name=name, shapes=shapes, constants=constants, state=state, max_trips=max_trips,
                    interface=interface, progress=progress, done=done, golden=golden)  # fmt: skip
    if opens_shapes(model, example_inputs, shapes, ()):
        raise CuvilError("several targets at once take fixed shapes; for open ones, call cuvil.compile for each target")
    wanted = named_targets(targets, done)
    program = import_model(model, example_inputs, shapes, name, constants, state, max_trips)
    simplify(program)
    if calibration is not None:
        calibration = shared_statistics(program, calibration, precision, wanted.values())
    made = {}
    for label, profile in wanted.items():
        step = _steps(label, progress(label) if progress is not None else None)
        try:
            adapter = adapter_for(profile, interface)
            copied = program.clone()
            with stages("cuvil.compile", target=label, model=name):
                one = compile_program(copied, profile, adapter, calibration, precision, interface, step)
            made[label] = kept(one, golden)
        except CuvilError as e:
            if done is None:
                e.add_note(f"on target {label}")
                raise
            done(label, e)
        else:
            if done is not None:
                done(label, made[label])
    return made


def compile_program(
    program: Program,
    profile: Profile,
    adapter: Adapter,
    calibration: Any,
    precision: str | None,
    interface: str | None,
    step: Callable[[str], None],
    slots: Mapping[str, TimeSlot] | None = None,
) -> Executable:
    """The steps after import: from a simplified program, which is changed in place, to an Executable.

    `step` is called with the name of each step before it starts; `slots`: by layer, "" for the program.
    """
    chosen = choose_precision(program, precision, calibration is not None, profile)
    with blaming(ADAPTERS, profile.adapter):
        check_narrow(chosen, adapter, profile)
    step("quantize")
    floats, program = program, quantize(program, chosen, calibration)
    observe("quantize", program.module)
    step("make arithmetic integer")
    make_integer(program, chosen, isinstance(adapter, IntegerWeights) and adapter.integer_weights)
    style, parts, graph, proposals, choice = arrange(program, styles_of(adapter, profile), profile, step)
    adapter, expected, fits = style.adapter, golden_of(parts.core), False
    while not fits:
        step("plan memory")
        design = plan_memory(graph, choice, proposals, adapter, profile)
        with blaming(ADAPTERS, profile.adapter):
            step("lower")
            module = adapter.lower(design, profile)
            observe("lower", module)
            apply(adapter.level2_passes if isinstance(adapter, OwnPasses) else (), module, Context())
            legal(module)
            if isinstance(adapter, Times):
                design = replace(design, timing=adapter.timing(module, design, profile))
            design = replace(design, slots=in_slots(slots or {}, adapter, module, design, profile))
            step("write sources")
            plan = adapter.plan(module, design, profile, expected)
            measured = measure(adapter, plan, profile)
        proposals, choice, fits = corrected(proposals, choice, measured, profile.axes)
        design = replace(design, choice=choice)
        if not fits:
            choice = choose(proposals, profile)
    program.notes["style"] = (f"{style.name} style: {style.reason}",) if style.reason else ()
    program.notes["measured"] = measured.notes
    step("build")
    with telling(lambda purpose: step(f"build: {purpose}")):
        plan, products = build(plan)
    found = tuple(adapter.built(products)) if isinstance(adapter, ReadsProducts) else ()
    program.notes["built"] = (*filter(None, (plan.instead,)), *found)
    step("pack")
    artifact = pack(program, parts, design, chosen, plan, products, profile, adapter, interface)
    executable = Executable(artifact)
    if chosen.scheme is not None or chosen.narrow:
        executable.float_model = float_model(floats)
    return executable


def arrange(
    program: Program, styles: Sequence[Style], profile: Profile, step: Callable[[str], None] = lambda _: None
) -> tuple[Style, Partition, KernelGraph, Proposals, Choice]:
    """The program in the style in which a sample takes fewest cycles, with the schedules chosen. Raises DoesNotFit;
    Unsupported."""

    def attempt(style: Style, explain: bool) -> Arranged:
        step("divide between device and processor")
        parts = divide(program, style.adapter, profile)
        observe("divide", parts.core.module)
        step("fuse layers")
        graph = fuse(parts.core, style.adapter, level_of(profile) > 0)
        step("propose schedules")
        proposals = propose(graph, style.adapter, profile)
        step("choose schedules")
        chosen = choose(proposals if explain else replace(proposals, surroundings=Surroundings), profile)
        return parts, graph, proposals, chosen

    style, arranged = fastest(styles, profile, attempt)
    return style, *arranged


def _steps(target: str, progress: Progress | None) -> Callable[[str], None]:
    """A function to call with each of STEPS as it starts, and with "step: what of it" for parts of one: it logs that
    and reports it to `progress`."""

    def step(what: str) -> None:
        stage(what)
        _log.info("%s: %s", target, what, extra={FIELDS: {"target": target, "step": what}})
        if progress is not None:
            progress(what, STEPS.index(what.partition(":")[0]), len(STEPS))

    return step


def import_model(
    model: Any,
    example_inputs: Any,
    shapes: Mapping[str, Sequence[int]] | None,
    name: str | None,
    constants: Mapping[str, Any] | None = None,
    state: Mapping[str, str] | None = None,
    max_trips: int | None = None,
) -> Program:
    """The level1 program of a model, verified. Raises CuvilError, Unsupported, ToolNotFound."""
    program = keep_state(load(model, example_inputs, shapes, constants, max_trips), state or {})
    # A file's own name for its model is cut; one that the caller gave is checked before.
    return replace(program, name=program.name[:MAX_NAME] if name is None else name)


def divide(program: Program, adapter: Adapter, profile: Profile) -> Partition:
    """Split the program into host steps and the device program. Ops that the target refuses run on the processor, as do
    ops that the adapter would rather leave to it (`float_ends`); both only next to inputs or outputs. Raises
    Unsupported."""

    def refuses(op: Op, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> str | None:
        return adapter.refuses(op, inputs, outputs, profile)

    with blaming(ADAPTERS, profile.adapter):
        return split(without_loops(program, adapter), refuses, profile.name, float_ends=adapter.float_ends)


def fuse(core: Program, adapter: Adapter, together: bool = True) -> KernelGraph:
    """Turn `core` into kernels: run the adapter's own passes, expand composite ops, put every op into one group, and
    make each group a kernel. `together`: pad channels as the adapter asks, fuse neighbouring ops; False gives every op
    its own kernel. Changes `core`."""
    run_passes(core, adapter.level1_passes if isinstance(adapter, OwnPasses) else ())
    if together and isinstance(adapter, FoldsChannels):
        pad_channels.run(core, adapter.channels)
        observe("pad channels", core.module)
    epilogues = isinstance(adapter, Epilogues) and adapter.residual_epilogue
    kept = tuple(adapter.whole_composites) if isinstance(adapter, WholeComposites) else ()
    run_passes(core, [Decompose(keep=kept), FoldConstants(), Fuse(alone=not together, epilogues=epilogues)])
    return kernel_graph(core)


def propose(graph: KernelGraph, adapter: Adapter, profile: Profile) -> Proposals:
    """Every form that the adapter offers for each kernel, with its cost."""
    with blaming(ADAPTERS, profile.adapter):
        offer = adapter.offer(graph, profile)
        if len(offer.forms) != len(graph.kernels):
            raise CuvilError(f"adapter {profile.adapter} offers for {len(offer.forms)} of {len(graph.kernels)} kernels")
        named = zip(graph.kernels, offer.forms, strict=True)
        kernels = tuple(KernelChoices(k.name, k.loc or k.name, _candidates(k, forms, profile)) for k, forms in named)
    hints = partial(surroundings, graph, profile, lambda other: propose(graph, adapter, other))
    return Proposals(kernels, adapter.objective, offer.overhead, offer.paced, hints)


def _candidates(kernel: Kernel, offered: Iterable[Form], profile: Profile) -> tuple[Candidate, ...]:
    try:
        forms = list(dict.fromkeys(offered))[: None if searches(profile) else 1]
        found = tuple(Candidate(f, f.estimate(profile).times(kernel.runs)) for f in forms)
    except CuvilError as e:
        e.add_note(f"at layer {kernel.name} ({kernel.loc or 'no source location'})")
        raise
    if not found:
        raise CuvilError(f"adapter {profile.adapter} has no form for layer {kernel.name} ({kernel.loc})")
    return found


def choose(proposals: Proposals, profile: Profile) -> Choice:
    """The fastest design within the profile's limits. Raises DoesNotFit, which also names the smallest built-in target
    that is large enough."""
    kernels, axes, fixed = proposals.kernels, profile.axes, proposals.overhead
    with needs_compiler("choose schedules"):
        try:
            return solver.choose(
                kernels,
                axes,
                target=profile.name,
                objective=proposals.objective,
                fixed=fixed,
                paced=proposals.paced,
                surroundings=proposals.surroundings,
            )
        except ValueError as e:
            raise CuvilError(f"adapter {profile.adapter} made a proposal that can't be: {e}; repair it") from e


def plan_memory(graph: KernelGraph, choice: Choice, proposals: Proposals, adapter: Adapter, profile: Profile) -> Design:
    """A place for every intermediate result, unless they stream. Raises DoesNotFit when the target's memory is too
    small."""
    streams = proposals.objective == "slowest"
    bytes_of = adapter.buffer_bytes if isinstance(adapter, Pads) else memory.buffer_bytes
    planned = (
        memory.plan_memory(graph, alignment=adapter.alignment, bytes_of=bytes_of) if not streams else memory.NO_ARENA
    )
    live = memory.check_live(graph, planned, profile.axes, target=profile.name)
    return Design(graph, choice, planned, live, proposals.overhead)


def measure(adapter: Adapter, plan: BuildPlan, profile: Profile) -> Measured:
    """What the target's own tools (such as a GPU's compiler) report of the sources. If the tools are missing, the
    estimates stay and a note in the report says so."""
    if not isinstance(adapter, Measures):
        return Measured()
    try:
        return adapter.measure(plan, profile)
    except ToolNotFound as e:
        why = f"{e.tool} not found, needed to {e.purpose}; cuvil doctor says what to install"
        return Measured(notes=(f"not measured, estimates stay: {why}",))
