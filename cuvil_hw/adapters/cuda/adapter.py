"""NVIDIA GPUs: one CUDA C++ file with a kernel function per kernel, compiled by NVRTC where the program is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any, ClassVar

import numpy as np
from xdsl.dialects import gpu
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Golden, SettingKind
from cuvil_hw.adapters.cuda import cost
from cuvil_hw.adapters.cuda.arch import STATIC_SHARED_BYTES, WARP
from cuvil_hw.adapters.cuda.device import INTERFACES, open_device
from cuvil_hw.adapters.cuda.measure import measure
from cuvil_hw.adapters.cuda.record import CudaRecord, LaunchRecord
from cuvil_hw.adapters.cuda.threads import COMBINE, lower_threads
from cuvil_hw.adapters.cuda.tile import Shape, lower_tile, shape_of, sizes_of
from cuvil_hw.adapters.sequential.product import contiguous, dot4_fits, product_of
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Device
from cuvil_hw.contract.record import info_of, seal
from cuvil_hw.errors import Refusal, Unsupported
from cuvil_hw.expr.nodes import Load
from cuvil_hw.expr.traverse import walk
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Tables
from cuvil_hw.ops.base import Op
from cuvil_hw.render.c.cfamily import render_functions, render_tables, symbols
from cuvil_hw.render.c.names import Names, comment_lines
from cuvil_hw.render.langs.cuda import CUDA, HALF
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.measured import Measured
from cuvil_hw.schedule.memory import buffer_bytes
from cuvil_hw.schedule.space import Choice, Estimate, Level, Schedule
from cuvil_hw.target.profile import Profile
from cuvil_hw.types import TensorType

SOURCE = "model.cu"
# Thread numbers are ints, and a loop over them steps past its end by less than a grid.
MAX_ELEMENTS = 1 << 30
THREADS = (256, 128)
WARP_OUTPUTS = 4096  # with more outputs, threads fill the machine without help
LEAST = 8  # rows, columns and steps that make a tile
# rows, columns, k, rows and columns of each thread
TILES = ((128, 128, 16, 8, 8), (128, 128, 32, 8, 8), (64, 64, 16, 4, 4), (64, 64, 32, 4, 4), (32, 64, 32, 2, 4),
         (32, 32, 32, 2, 2), (16, 64, 32, 1, 4), (16, 16, 32, 1, 1))  # fmt: skip


class CudaAdapter:
    """See adapters/base.py for the contract."""

    name = "cuda"
    interface = "sim"
    interfaces = INTERFACES
    float_ends = False
    alignment = 256
    residual_epilogue = True
    axes = ("shared", "registers", "threads")
    settings: ClassVar[Mapping[str, SettingKind]] = {
        "sms": int,
        "lanes_per_sm": int,
        "threads_per_sm": int,
        "bandwidth_gb_s": float,
    }

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        largest = max((t.size for t in (*inputs, *outputs)), default=0)
        if largest > MAX_ELEMENTS:
            return f"a tensor of {largest:,} elements; the generated code numbers at most {MAX_ELEMENTS:,}"
        return None

    def schedules(self, kernel: Kernel, profile: Profile) -> Iterable[Schedule]:
        """One output per thread always; one per warp for long reductions; tiles for sums of products."""
        found = [Schedule(options=(("form", "thread"), ("threads", str(n)))) for n in THREADS]
        reduce = kernel.reduce
        steps = prod(i.extent for i in kernel.reduction_iters)
        if reduce is not None and reduce.kind in COMBINE and steps >= WARP and 0 < kernel.type.size <= WARP_OUTPUTS:
            product = product_of(kernel)
            dot4 = product is not None and contiguous(product, kernel)
            options = (("form", "warp"), ("threads", str(THREADS[0])), *((("dot4", "yes"),) if dot4 else ()))
            found.append(Schedule(options=options))
        shape = shape_of(kernel)
        if shape is not None and _worthwhile(shape) and _may_pad(shape, kernel):
            dot4 = dot4_fits(shape.product)
            found += [s for s in map(lambda t: _tile(t, dot4), TILES) if _static(kernel, s, profile)]  # noqa: C417
        return found

    def estimate(self, kernel: Kernel, schedule: Schedule, profile: Profile) -> Estimate:
        return cost.estimate(kernel, schedule, profile)

    def overhead(self, graph: KernelGraph, profile: Profile) -> Mapping[str, float]:
        return {}

    def lower(self, design: Design, profile: Profile) -> ModuleOp:
        """One function of role "kernel" per kernel that has something to compute; arguments: its inputs, its output,
        the number of samples."""
        graph, choice = design.graph, design.choice
        _check_sizes(graph)
        tables, names, functions = Tables(graph.constants), Names(frozenset()), []
        for number, kernel in enumerate(_working(graph)):
            schedule = _sound(kernel, choice.candidate(kernel.name).schedule, graph)
            lower = lower_tile if schedule.option("form") == "tile" else lower_threads
            functions.append(lower(kernel, schedule, graph.buffers, tables, names.new(kernel.name), number))
        module = ModuleOp([*tables.ops, *functions])
        module.verify()
        return module

    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        """`info`: architecture, launches in order (symbol, buffers, threads, how many blocks), buffers, constants."""
        graph, memory = design.graph, design.memory
        body = render_tables(module, CUDA, graph.constants) + "\n" + render_functions(module, CUDA)
        half = HALF if "half_t" in body else ""
        head = "\n".join(comment_lines(f"{graph.name}: generated by cuvil-hw."))
        record = CudaRecord(
            arch=profile.part,
            launches=_launches(module, graph, design.choice),
            arena_bytes=memory.size_bytes,
            temporaries=dict(memory.offset_bytes),
            bytes={n: buffer_bytes(b) for n, b in graph.buffers.items()},
            inputs=graph.inputs,
            outputs=graph.outputs,
            constants={n: b.digest for n, b in graph.buffers.items() if b.role == "const"},
            largest=max((b.type.size for b in graph.buffers.values()), default=1),
        )
        info = info_of(record)
        text = f"{head}\n// Record {seal(info, *graph.ports())}\n{CUDA.preamble}{half}\n{body}"
        return BuildPlan(files={SOURCE: text.encode()}, info=info)

    def measure(self, plan: BuildPlan, profile: Profile) -> Measured:
        """Registers, shared memory and spills of every kernel, from NVRTC and ptxas."""
        entries: Any = plan.info["launches"]
        found = measure(plan.files[SOURCE], profile.part)
        use = {
            str(entry["kernel"]): {
                "registers": float(found[entry["symbol"]].registers),
                "shared": float(found[entry["symbol"]].shared_bytes),
                "spills": float(found[entry["symbol"]].spill_bytes),
            }
            for entry in entries
        }
        text = "registers, shared memory and spills were measured (NVRTC and ptxas)"
        return Measured(use, (text,) if use else ())

    def open(self, profile: Profile, interface: str) -> Device:
        return open_device(asdict(profile), interface)


def _tile(sizes: tuple[int, int, int, int, int], dot4: bool) -> Schedule:
    rows, columns, k, row_each, column_each = sizes
    levels = (
        Level((("rows", rows), ("columns", columns)), "block", (("rows", "shared"), ("columns", "shared"))),
        Level((("k", k),), "serial"),
        Level((("rows", row_each), ("columns", column_each)), "thread"),
    )
    return Schedule(levels, (("form", "tile"), *((("dot4", "yes"),) if dot4 else ())))


def _worthwhile(shape: Shape) -> bool:
    """Whether staged values are used several times (a depthwise convolution's aren't)."""
    fixed = [side.extent for side in (shape.rows, shape.columns) if not side.sampled]
    return shape.steps >= LEAST and all(extent >= LEAST for extent in fixed)


def _static(kernel: Kernel, schedule: Schedule, profile: Profile) -> bool:
    """Tiles are declared in the source, which may take 48 KiB of a block's shared memory, whatever the part has."""
    return cost.estimate(kernel, schedule, profile).use["shared"] <= STATIC_SHARED_BYTES


def _may_pad(shape: Shape, kernel: Kernel) -> bool:
    """A tile multiplies what lies under padding by 0, which is no product of floats unless the other factor is finite:
    so it must be a constant, which can be looked at."""
    product = shape.product
    return not product.guards or not dtypes.is_float(product.reduce.dtype) or not product.right.batched


def _sound(kernel: Kernel, schedule: Schedule, graph: KernelGraph) -> Schedule:
    """`schedule`, or one output per thread where a tile would multiply padding by an infinite or undefined weight."""
    shape = shape_of(kernel) if schedule.option("form") == "tile" else None
    if shape is None or not shape.product.guards or not dtypes.is_float(shape.product.reduce.dtype):
        return schedule
    loads = [e for e in walk(shape.product.right.value) if isinstance(e, Load)]
    if all(np.isfinite(graph.constant(load.buffer)).all() for load in loads):
        return schedule
    return Schedule(options=(("form", "thread"), ("threads", str(THREADS[0]))))


def _working(graph: KernelGraph) -> list[Kernel]:
    return [k for k in graph.kernels if k.type.size]


def _check_sizes(graph: KernelGraph) -> None:
    big = [b for b in graph.buffers.values() if b.type.size > MAX_ELEMENTS]
    if big:
        reason = f"{big[0].type.size:,} elements; the generated code numbers at most {MAX_ELEMENTS:,}"
        raise Unsupported([Refusal("tensor", reason, len(big), tuple(b.name for b in big))], graph.name)


def _launches(module: ModuleOp, graph: KernelGraph, choice: Choice) -> tuple[LaunchRecord, ...]:
    """What runs, in order."""
    functions = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
    names = symbols(module, CUDA)
    result = []
    for kernel, function in zip(_working(graph), functions, strict=True):
        schedule = _sound(kernel, choice.candidate(kernel.name).schedule, graph)
        shape = shape_of(kernel) if schedule.option("form") == "tile" else None
        meets = any(isinstance(op, gpu.BarrierOp | level2.ShuffleXorOp) for op in function.walk())
        grid = _threads_grid(kernel, schedule) if shape is None else _tile_grid(shape, schedule)
        buffers = (*kernel.inputs, kernel.output)
        result.append(LaunchRecord(names[function.sym_name.data], kernel.name, buffers, meets, **grid))
    return tuple(result)


def _threads_grid(kernel: Kernel, schedule: Schedule) -> dict[str, Any]:
    threads = int(schedule.option("threads"))
    tile = threads // WARP if schedule.option("form") == "warp" else threads
    return {"threads": threads, "rows": kernel.type.size, "tile": tile, "times": 1, "sampled": True}


def _tile_grid(shape: Shape, schedule: Schedule) -> dict[str, Any]:
    s = sizes_of(schedule)
    batch = prod(i.extent for i in shape.batch)
    sides = [(shape.rows, s.rows), (shape.columns, s.columns)]
    if shape.columns.sampled:
        sides.reverse()
    (side, tile), (other, size) = sides
    times = -(-other.extent // size) * batch
    return {"threads": s.threads, "rows": side.extent, "tile": tile, "times": times, "sampled": not shape.sampled}
