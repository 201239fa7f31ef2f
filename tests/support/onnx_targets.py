"""ONNX's cases on targets: each passes or is refused; anything else is a fault, and is named.

Every case is first divided between device and processor alone, as a compilation does: what the target refuses is
counted as refused with its reason. The others are compiled together, about a hundred ops a program, as starting a
compiler costs as much as many small kernels; a program that is refused or fails is halved until the case is found.

Targets are real profiles, but with room for a hundred cases at once: resources that add up over a program are
multiplied. What one core, block or thread has (NRAM, shared memory, registers) stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeVar
from unittest import mock

from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from cuvil_hw import api
from cuvil_hw.adapters.agilex import runtime as agilex_runtime
from cuvil_hw.adapters.cuda import simulator as cuda_simulator
from cuvil_hw.adapters.mlu import simulator as mlu_simulator
from cuvil_hw.adapters.registry import load_adapter
from cuvil_hw.adapters.streaming.verilated import build as verilated
from cuvil_hw.compile import numbers
from cuvil_hw.compile.precision import has_floats, quantized_dtypes
from cuvil_hw.contract.calling import Calling, Guard
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.errors import DoesNotFit, ToolNotFound, Unsupported
from cuvil_hw.ir.program import Program
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.target.profile import Profile, load_profile
from tests.support.onnx_suite import Array, Case, Imported, arrays, differs, imported, on_reference

# Column of docs/ops.md: profile.
TARGETS = {
    "cpu": "cpu",
    "zynq": "pynq-z2",
    "agilex": "agilex",
    "cuda": "h100",
    "mlu270": "mlu270",
    "mlu370": "mlu370-x4",
}
TOGETHER = 100
# A device beside the columns: zynq's designs as SystemVerilog in Verilator. Integers only, and fewer ops together.
RTL, RTL_TOGETHER = "rtl", 30
ROOM = 1e4
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """`status`: "passed"; "refused", as Unsupported or DoesNotFit; "wrong"; "failed": any other error; "absent": tools
    of the target are. `why`: it didn't pass."""

    status: str
    why: str = ""


PASSED = Result("passed")


@dataclass(frozen=True)
class Outcome:
    """`on`: results by device, "reference", RTL or a key of TARGETS. `constants`: operands made constant."""

    case: Case
    on: Mapping[str, Result]
    constants: tuple[str, ...] = ()

    def passed(self, device: str) -> bool:
        return device in self.on and self.on[device].status == "passed"


@dataclass(frozen=True)
class Ready:
    """A simplified program. `kind`: what decides on passes: "quantized", "integers" or "floats"."""

    program: Program
    kind: str


@dataclass(frozen=True)
class ReadyCase(Ready):
    """A case with its program."""

    item: Imported


def simplified(program: Program) -> tuple[Program, str]:
    """(a simplified copy, its kind as of Ready)"""
    program = program.clone()
    numbers.simplify(program)
    return program, "quantized" if quantized_dtypes(program) else "floats" if has_floats(program) else "integers"


def ready(item: Imported) -> ReadyCase:
    return ReadyCase(*simplified(item.program), item)


def roomy(target: str) -> Profile:
    """The target with as much as a hundred cases need of what adds up over a program."""
    profile = load_profile(target)
    axes = [replace(a, limit=a.limit * ROOM) if a.rule in ("sum", "live") else a for a in profile.axes]
    # A thread may spill; only a kernel that is to be fast may not.
    return replace(profile, axes=tuple(replace(a, limit=ROOM) if a.name == "spills" else a for a in axes))


def _precision(kind: str) -> str | None:
    return "float32" if kind == "floats" else None


# Found by reading the metadata of all that is installed.
adapter_of = cache(load_adapter)


def refusal(case: Ready, profile: Profile) -> str:
    """Why the target doesn't take the case by itself; empty when it may."""
    adapter, program = adapter_of(profile.adapter), case.program.clone()
    try:
        chosen = api.choose_precision(program, _precision(case.kind), False, profile)
        numbers.make_integer(program, chosen)
        api.divide(program, adapter, profile)
    except (Unsupported, DoesNotFit) as e:
        return str(e)
    return ""


def together(cases: Sequence[Ready]) -> Program:
    """One program of independent ones; names of ports get the prefix `c<n>_`."""
    block = Block(arg_types=[a.type for c in cases for a in c.program.block.args])
    free = iter(block.args)
    results: list[SSAValue] = []
    names: dict[str, list[StringAttr]] = {"input_names": [], "output_names": []}
    guards: list[Guard] = []
    store = ConstantStore()
    for number, case in enumerate(cases):
        prefix, program = f"c{number}_", case.program
        mapped: dict[SSAValue, SSAValue] = {a: next(free) for a in program.block.args}
        for op in program.block.ops:
            if isinstance(op, ReturnOp):
                results += [mapped[v] for v in op.operands]
            else:
                block.add_op(op.clone(mapped))
        for key, ports in (("input_names", program.inputs), ("output_names", program.outputs)):
            names[key] += [StringAttr(prefix + name) for name, _ in ports]
        guards += [replace(g, output=prefix + g.output) for g in program.calling.guards]
        store._arrays.update(program.constants)
    block.add_op(ReturnOp(*results))
    kind = FunctionType.from_lists([a.type for a in block.args], [v.type for v in results])
    main = FuncOp("main", kind, Region(block))
    for key, listed in names.items():
        main.attributes[key] = ArrayAttr(listed)
    return Program(ModuleOp([main]), store, "together", calling=Calling(guards=tuple(guards)))


def compiled(cases: Sequence[Ready], profile: Profile) -> Executable:
    program = together(cases)
    adapter = adapter_of(profile.adapter)
    return api.compile_program(program, profile, adapter, None, _precision(cases[0].kind), None, lambda _: None)


def chunks(cases: Iterable[ReadyCase], most: int) -> list[list[ReadyCase]]:
    """Cases that can be one program, of at most so many ops where they are several."""
    groups: dict[str, list[list[ReadyCase]]] = {}
    for case in cases:
        found = groups.setdefault(case.kind, [[]])
        size = len(list(case.program.block.ops))
        if found[-1] and sum(len(list(c.program.block.ops)) for c in found[-1]) + size > most:
            found.append([])
        found[-1].append(case)
    return [chunk for found in groups.values() for chunk in found]


@contextmanager
def quick_builds() -> Iterator[None]:
    """Simulators built without optimising, as every program runs once."""
    patched = (
        (agilex_runtime, "BUILD_OPTIONS", ("-cl-opt-disable",)),
        (cuda_simulator, "_FAST", ("-O0",)),
        (mlu_simulator, "_KERNELS_LEVEL", "-O0"),
        (verilated, "build", partial(verilated.build, quick=True)),
    )
    with ExitStack() as stack:
        for module, name, value in patched:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def halving(items: Sequence[T], together: Callable[[Sequence[T]], list[Result]]) -> list[Result]:
    """Results of `together(items)`; where that raises, of halves of them, down to the item that it is about."""
    try:
        return together(items)
    except ToolNotFound:
        raise
    except Exception as e:  # whatever it is, it belongs to an item
        if len(items) > 1:
            half = len(items) // 2
            return halving(items[:half], together) + halving(items[half:], together)
        refused = isinstance(e, Unsupported | DoesNotFit)
        return [Result("refused", str(e)) if refused else Result("failed", f"{type(e).__name__}: {e}")]


def attempt(cases: Sequence[ReadyCase], profile: Profile, interface: str | None = None) -> list[Result]:
    """Results of cases compiled and run together. `interface`: the target's own when None."""
    with Executable(compiled(cases, profile).artifact, interface) as executable:
        return _compare(executable, cases)


def _compare(executable: Executable, cases: Sequence[ReadyCase]) -> list[Result]:
    results = [PASSED] * len(cases)
    for number in range(max(len(c.item.case.data) for c in cases)):
        given: dict[str, Array] = {}
        wanted: list[Sequence[Array | None]] = []
        for n, case in enumerate(cases):
            data = case.item.case.data
            inputs, outputs = data[min(number, len(data) - 1)]
            given.update({f"c{n}_{name}": a for name, a in arrays(case.item, inputs).items()})
            wanted.append(outputs)
        have = list(executable.run(**given).outputs)
        for n, (case, outputs) in enumerate(zip(cases, wanted, strict=True)):
            mine, have = have[: len(outputs)], have[len(outputs) :]
            wrong = differs(case.item.case, mine, outputs)
            if wrong and results[n] is PASSED:
                results[n] = Result("wrong", wrong)
    return results


def on_target(target: str, cases: Sequence[ReadyCase]) -> list[Result]:
    """Result of each case on a column of TARGETS or on RTL. Raises ToolNotFound when it can't run here."""
    profile = roomy(TARGETS["zynq" if target == RTL else target])
    interface, most = (RTL, RTL_TOGETHER) if target == RTL else (None, TOGETHER)
    results: dict[int, Result] = {}
    taken: list[ReadyCase] = []
    for case in cases:
        why = refusal(case, profile)
        if why:
            results[id(case)] = Result("refused", why)
        else:
            taken.append(case)
    with quick_builds():
        for chunk in chunks(taken, most):
            found = halving(chunk, lambda some: attempt(some, profile, interface))
            results.update({id(c): r for c, r in zip(chunk, found, strict=True)})
    return [results[id(c)] for c in cases]


def run(selected: Sequence[Case], devices: Callable[[Case], Sequence[str]]) -> list[Outcome]:
    """Outcomes in order. `devices`: of TARGETS and RTL, on which a case that passes on the reference is run; floats
    never are on RTL."""
    found: dict[str, dict[str, Result]] = {}
    constants: dict[str, tuple[str, ...]] = {}
    waiting: dict[str, list[ReadyCase]] = {}
    for case in selected:
        item = imported(case)
        first = Result("refused", item) if isinstance(item, str) else Result(*on_reference(item))
        found[case.name] = {"reference": first}
        if isinstance(item, str) or first.status != "passed":
            found[case.name] |= dict.fromkeys(devices(case), Result("refused", first.why))
            continue
        constants[case.name] = item.constants
        one = ready(item)
        for device in devices(case):
            if device != RTL or one.kind != "floats":
                waiting.setdefault(device, []).append(one)
    for device, cases in waiting.items():
        try:
            results = on_target(device, cases)
        except ToolNotFound as e:
            results = [Result("absent", str(e))] * len(cases)
        for one, result in zip(cases, results, strict=True):
            found[one.item.case.name][device] = result
    return [Outcome(c, found[c.name], constants.get(c.name, ())) for c in selected]
