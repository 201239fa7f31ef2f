"""CPU target: one C99 file, compiled to a shared library. Constants and scratch memory cross by pointer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from cuvil_hw.adapters.base import Golden, Offer, SettingKind
from cuvil_hw.adapters.cpu.build import options
from cuvil_hw.adapters.cpu.device import ABI_VERSION, INTERFACES, LIBRARY, machine_of
from cuvil_hw.adapters.cpu.form import Laid, LoopNest, register_tiles
from cuvil_hw.adapters.cpu.layout import place
from cuvil_hw.adapters.cpu.record import Constant, CpuRecord
from cuvil_hw.adapters.cpu.steps import Steps
from cuvil_hw.adapters.sequential.alike import share, shared_by
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.contract.record import info_of, seal
from cuvil_hw.errors import Refusal, Unsupported
from cuvil_hw.lower.emit import Tables
from cuvil_hw.ops.base import Op
from cuvil_hw.render.c.cfamily import render_functions, render_tables, symbols
from cuvil_hw.render.c.lang import C99
from cuvil_hw.render.c.names import Names, comment_lines
from cuvil_hw.runtime.compilers import ARCHES, CCompiler
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.memory import buffer_bytes
from cuvil_hw.schedule.resources import Rule
from cuvil_hw.schedule.space import Objective
from cuvil_hw.target.opt_level import LEVELS, level_of
from cuvil_hw.target.profile import Profile
from cuvil_hw.types import TensorType

SOURCE = "model.c"
LANES = (8, 16, 32, 64)
MORE_LANES = (4, *LANES, 128)
MAX_ELEMENTS = (1 << 31) - 1


class CpuAdapter:
    """See adapters/base.py for the contract."""

    name = "cpu"
    interface = "hw"
    interfaces = INTERFACES
    float_ends = False
    residual_epilogue = True
    runs_loops = True
    integer_weights = True
    axes: ClassVar[Mapping[str, Rule]] = {}
    objective: Objective = "sum"
    alignment = 64  # a cache line, and the widest vector
    settings: ClassVar[Mapping[str, SettingKind]] = {"arch": tuple(ARCHES), "cc": str, "march": str, "run": str}

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        largest = max((prod(t.shape) for t in (*inputs, *outputs)), default=0)
        if largest > MAX_ELEMENTS:
            return f"a tensor of {largest:,} elements; the generated code indexes with 32 bits"
        return None

    def offer(self, graph: KernelGraph, profile: Profile) -> Offer:
        """Numbers of accumulators side by side, and tiles of registers for sums of products; a kernel without a
        reduction has one way to run."""
        placed, lanes = place(graph, profile), MORE_LANES if level_of(profile) == max(LEVELS) else LANES
        finite = cache(lambda name: bool(np.isfinite(graph.constant(name)).all()))

        def forms(kernel: Kernel) -> list[LoopNest]:
            names = (*kernel.inputs, kernel.output)
            own = {n: placed.layouts[n] for n in names if n in placed.layouts}
            packed = {n: placed.packed[n] for n in names if n in placed.packed}
            vector = placed.vectors[kernel.name]
            plain = [LoopNest(kernel, vector, n, own, packed) for n in (lanes if kernel.reduce else (0,))]
            return [*plain, *register_tiles(kernel, vector, Laid(own, packed), profile, finite)]

        return Offer([forms(kernel) for kernel in graph.kernels])

    def lower(self, design: Design, profile: Profile) -> ModuleOp:
        """One function of role "kernel" for all kernels that compute the same, arguments: the inputs, then the output;
        `cuvil.kernels` names them."""
        graph = design.graph
        _check_sizes(graph)
        tables, names = Tables(_store(graph)), Names(frozenset())
        functions: dict[Hashable, FuncOp] = {}
        sharing: dict[Hashable, list[str]] = {}
        for form in design.forms(LoopNest):
            key, name = form.alike(graph.buffers), form.kernel.name
            sharing.setdefault(key, []).append(name)
            if key not in functions:
                functions[key] = form.emit(graph.buffers, tables, names.new(name), len(functions))
        for key, function in functions.items():
            share(function, sharing[key])
        return ModuleOp([*tables.ops, *functions.values()])

    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        """`info`: what device.py needs: ABI version, architecture, scratch bytes, constants in the order of their
        pointers, each with the order of its dimensions in memory."""
        graph, memory = design.graph, design.memory
        layouts = {name: order for form in design.forms(LoopNest) for name, order in form.layouts.items()}
        packed = {name: how for form in design.forms(LoopNest) for name, how in form.packed.items()}
        constants = [b for b in graph.buffers.values() if b.role == "const"]
        compiler, march = CCompiler.chosen(profile.settings), profile.setting("march", "")
        record = CpuRecord(
            abi_version=ABI_VERSION,
            abi={"machine": machine_of(compiler), "system": "linux"},
            machine=machine_of(compiler),
            march=march,
            workspace_bytes=memory.size_bytes,
            constants=tuple(
                Constant(
                    digest=b.digest,
                    order=tuple(layouts.get(b.name, range(b.type.rank))),
                    bytes=buffer_bytes(b),
                    lanes=packed[b.name].lanes if b.name in packed else 0,
                    pairs=b.name in packed and packed[b.name].pairs,
                )
                for b in constants
            ),
        )
        info = info_of(record)
        text = "\n".join(
            part
            for part in (
                *comment_lines(f"{graph.name}: generated by cuvil-hw."),
                C99.preamble,
                render_tables(module, C99, _store(graph)),
                render_functions(module, C99),
                _entry(module, graph, memory.offset_bytes, [b.name for b in constants]),
                _seal(info, graph),
            )
            if part
        )
        link = ("-fPIC", "-shared", "-Wl,--build-id=none", "-o", LIBRARY, SOURCE, "-lm")
        command = Command(
            (*compiler.command, *options(compiler, profile.settings), *link), "compile the generated C", compiler.remedy
        )
        return BuildPlan(
            files={SOURCE: text.encode()},
            commands=(command,),
            products=(LIBRARY,),
            info=info,
        )

    def built(self, products: Mapping[str, bytes]) -> list[str]:
        return [f"library: {len(products[LIBRARY]):,} bytes of code; constants lie beside it"]


def _seal(info: Mapping[str, Any], graph: KernelGraph) -> str:
    """Which record the code was generated with (contract/record.py)."""
    return f'const char cuvil_record[] = "{seal(info, *graph.ports())}";\n'


def _store(graph: KernelGraph) -> ConstantStore:
    """The graph's constants, where tables can be added."""
    constants = graph.constants
    if not isinstance(constants, ConstantStore):
        raise TypeError("the constants of a kernel graph must be a ConstantStore")
    return constants


def _check_sizes(graph: KernelGraph) -> None:
    big = [b for b in graph.buffers.values() if b.type.size > MAX_ELEMENTS]
    if big:
        reason = f"{big[0].type.size:,} elements; the generated code indexes with 32 bits"
        raise Unsupported([Refusal("tensor", reason, len(big), tuple(b.name for b in big))], graph.name)


def _entry(module: ModuleOp, graph: KernelGraph, offsets: Mapping[str, int], constants: Sequence[str]) -> str:
    """cuvil_run: gives every kernel its pointers, in order."""
    functions = symbols(module, C99)
    # Pointers are named after buffers, out of the way of the functions.
    names = Names(C99.keywords | frozenset(functions.values()) | {"inputs", "outputs", "constants", "workspace"})
    local = {b: names.new(b) for b in graph.buffers}
    lines = []
    used = {n for k in graph.kernels for n in (*k.inputs, k.output)} | {b for loop in graph.loops for b in loop.bases}
    for group, members in (("inputs", graph.inputs), ("constants", constants)):
        lines += [f"const void *{local[b]} = {group}[{i}];" for i, b in enumerate(members) if b in used]
    lines += [f"void *{local[b]} = outputs[{i}];" for i, b in enumerate(graph.outputs)]
    lines += [f"void *{local[b]} = (char *)workspace + {at};" for b, at in offsets.items() if b in used]
    parameters = {"inputs": graph.inputs, "constants": constants, "workspace": offsets}
    lines += [f"(void){name};" for name, needed in parameters.items() if not needed]
    symbol_of = {name: f.sym_name.data for f in module.ops if isinstance(f, FuncOp) for name in shared_by(f)}
    calls = [
        f"{functions[symbol_of[k.name]]}({', '.join(local[b] for b in (*k.inputs, k.output))});" for k in graph.kernels
    ]
    lines += Steps(calls, local, used, names).lines(graph.loops, 0, len(calls))
    body = "\n".join(f"  {line}" for line in [*lines, "return 0;"])
    return f"""int cuvil_abi_version(void) {{
  return {ABI_VERSION};
}}

// Runs one sample. Re-entrant: all memory is the caller's. Returns 0.
int cuvil_run(const void *const *inputs, void *const *outputs, const void *const *constants, void *workspace) {{
{body}
}}
"""
