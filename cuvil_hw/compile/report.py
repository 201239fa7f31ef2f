"""Collects the report of one compilation from what its steps found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cuvil_hw.report.drawing import Drawing
from cuvil_hw.report.report import SCHEMA, Report
from cuvil_hw.runtime.host import HostProgram
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.memory import MemoryPlan
from cuvil_hw.schedule.resources import Resource
from cuvil_hw.schedule.slots import SlotUse
from cuvil_hw.schedule.space import Candidate, Choice
from cuvil_hw.schedule.timing import ORIGIN, DesignTiming, WaitTime
from cuvil_hw.types import TensorType

ANALYTIC = "analytic"
APART = 0.02  # by which simulated and estimated cycles may differ before the report says why


def build_report(
    *,
    model: str,
    target: Mapping[str, Any],
    precision: str,
    kernels: KernelGraph,
    choice: Choice,
    axes: Sequence[Resource],
    clock_hz: float,
    fixed: Mapping[str, float],
    memory: MemoryPlan,
    live_bytes: float,
    prologue: HostProgram,
    epilogue: HostProgram,
    graph: Drawing,
    notes: Sequence[str] = (),
    state: Sequence[tuple[str, TensorType]] = (),
    quantization: Mapping[str, Any] | None = None,
    host: Sequence[Mapping[str, Any]] | None = None,
    timing: DesignTiming | None = None,
    slots: Sequence[SlotUse] = (),
) -> Report:
    """Collect the report of one compilation. It contains no time of day and no path, so equal compilations give equal
    reports.

    Args:
        target: name, adapter, part and board.
        fixed: use per axis besides the layers (shell, DMA).
        live_bytes: memory in use during a run.
        state: what is kept between calls.
        notes: assumptions that the user should know.
        quantization: result of `passes/quantize/fidelity.py`; its warnings become notes.
        host: the steps of both host programs with their seconds; None: not known.
        timing: of a design whose layers stream; None: the layers' estimates stand for it.
        slots: how its time slots are used.
    """
    layers = [_layer(k, choice.candidate(k.name)) for k in kernels.kernels]
    fixed, used = (_sum(use, {} if timing is None else timing.use) for use in (fixed, choice.use))
    return Report(
        {
            "schema": SCHEMA,
            "model": model,
            "target": dict(target),
            "precision": precision,
            "clock_hz": float(clock_hz),
            "style": choice.style,
            "layers": layers,
            "totals": [_total(axis, used, fixed, live_bytes) for axis in axes],
            "bottleneck": _bottleneck(layers, timing),
            "solver": {
                "objective_cycles": choice.objective,
                "bound_cycles": choice.bound,
                "gap": (choice.objective - choice.bound) / choice.objective if choice.objective > 0 else 0.0,
            },
            **_speed(layers, choice.style, clock_hz, host or (), timing),
            "timing": None if timing is None else _timing(timing, layers, slots),
            # Layers that stream keep no intermediate results.
            "memory": None
            if choice.style == "spatial"
            else {"arena_bytes": memory.size_bytes, "live_bytes": int(live_bytes), "origin": ANALYTIC},
            "host": [dict(step) for step in host]
            if host is not None
            else [
                {"where": where, "op": step.op}
                for where, program in (("before", prologue), ("after", epilogue))
                for step in program.steps
            ],
            "state": [{"name": name, "type": str(kind)} for name, kind in state],
            "accuracy": [],
            "quantization": {key: value for key, value in (quantization or {}).items() if key != "warnings"},
            "saturations": {},
            "notes": [
                *(f"warning: {text}" for text in (quantization or {}).get("warnings", ())),
                *(f"warning: {text}" for text in _apart(timing, layers)),
                *notes,
            ],
            "graph": graph.to_json(),
        }
    )


def _layer(kernel: Kernel, candidate: Candidate) -> dict[str, Any]:
    estimate = candidate.estimate
    return {
        "name": kernel.name,
        "loc": kernel.loc,
        "ops": list(kernel.ops),
        "output": str(kernel.type),
        "schedule": candidate.form.describe(),
        "cycles": int(estimate.cycles),
        "seconds": float(estimate.seconds),
        "use": {axis: float(value) for axis, value in estimate.use.items()},
        "origin": estimate.origin,
    }


def _sum(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    return {axis: a.get(axis, 0.0) + b.get(axis, 0.0) for axis in {**a, **b}}


def _total(axis: Resource, total: Mapping[str, float], fixed: Mapping[str, float], live_bytes: float) -> dict[str, Any]:
    used = float(live_bytes if axis.rule == "live" else total.get(axis.name, 0.0))
    return {
        "axis": axis.name,
        "unit": axis.unit,
        "rule": axis.rule,
        "used": used,
        "fixed": float(fixed.get(axis.name, 0.0)),
        "budget": float(axis.budget),
        "limit": float(axis.limit),
        "percent": 100.0 * used / axis.limit if axis.limit > 0 else 0.0,
        "origin": ANALYTIC,
    }


def _bottleneck(layers: Sequence[Mapping[str, Any]], timing: DesignTiming | None) -> dict[str, Any] | None:
    """What decides the time of a sample. `layer`: the slowest layer, "" if ports or converters are slower; `processes`:
    all that are as slow, or the stream whose lack of room makes the design slower than any of them."""
    if timing is not None:
        names = {layer["name"] for layer in layers}
        slowest = timing.slowest or tuple(p.name for p in timing.processes if p.cycles == timing.ideal)
        return {
            "layer": next((layer for p in slowest if (layer := _layer_of(p, names))), ""),
            "processes": [f"FIFO {timing.cause}"] if timing.cause else list(slowest),
            "cycles": _whole(timing.interval),
            "origin": ORIGIN,
        }
    if not layers:
        return None
    most = max(layer["cycles"] for layer in layers)
    slowest = tuple(layer["name"] for layer in layers if layer["cycles"] == most)
    origin = next(layer["origin"] for layer in layers if layer["cycles"] == most)
    return {"layer": slowest[0], "processes": list(slowest), "cycles": most, "origin": origin}


def _layer_of(process: str, names: Collection[str]) -> str:
    """The layer that a process belongs to: its own, or the one whose windows or epilogue it computes."""
    own = process.removesuffix("_window").removesuffix("_epilogue")
    return process if process in names else own if own in names else ""


def _whole(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value


def _timing(timing: DesignTiming, layers: Sequence[Mapping[str, Any]], slots: Sequence[SlotUse]) -> dict[str, Any]:
    """The simulated figures with what each process waits for, and the estimates beside them."""
    return {
        "interval": _whole(timing.interval),
        "latency": timing.latency,
        "ideal": timing.ideal,
        "formula": _slowest(layers),
        "origin": ORIGIN,
        "processes": [
            {"name": p.name, "cycles": p.cycles, "waits": [_wait(w) for w in p.waits]} for p in timing.processes
        ],
        "notes": list(timing.notes),
        **({"slots": [use.to_json() for use in slots]} if slots else {}),
    }


def _wait(w: WaitTime) -> dict[str, Any]:
    what = "room" if w.full else "words"
    return {"for": what, "stream": w.stream, "process": w.process, "cycles": _whole(w.cycles)}


def _slowest(layers: Sequence[Mapping[str, Any]]) -> int:
    return max((layer["cycles"] for layer in layers), default=0)


def _apart(timing: DesignTiming | None, layers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why simulated and estimated cycles differ, if they do, and which FIFOs had to stay small."""
    if timing is None:
        return []
    formula, found = _slowest(layers), list(timing.notes)
    if abs(timing.interval - formula) > APART * max(formula, 1):
        why = f"{', '.join(timing.slowest)} takes that long" if timing.slowest else "processes wait for one another"
        full = [(w.cycles, p, w) for p in timing.processes for w in p.waits if w.stream == timing.cause and w.full]
        for cycles, p, w in full[:1]:
            why = f"{p.name} waits {cycles:,.0f} of them for room in {w.stream}, which {w.process} reads"
        found.insert(
            0, f"simulated {timing.interval:,.10g} cycles a sample, {formula:,} by the layers' estimates: {why}"
        )
    return found


def _speed(
    layers: Sequence[Mapping[str, Any]],
    style: str,
    clock_hz: float,
    host: Sequence[Mapping[str, Any]],
    timing: DesignTiming | None,
) -> dict[str, Any]:
    """Latency of one inference, and inferences per second. Includes the seconds per sample of the host steps, which run
    before and after the device."""
    origin = ANALYTIC if all(layer["origin"] == ANALYTIC for layer in layers) else "mixed, see layers"
    total: float = sum(layer["cycles"] for layer in layers)
    interval: float = _slowest(layers) if style == "spatial" else total
    beside = {}
    if timing is not None:
        beside = {"formula_inferences_per_s": clock_hz / interval if interval else None}
        total, interval, origin = timing.latency, timing.interval, ORIGIN
        words = "from the first word in to the last word of the first result out, pipelines without latency"
    elif style == "spatial":
        words = "sum of all stages; stages overlap, so the first result comes no later than this"
    else:
        words = "sum of all layers, which run one after another"
    host_s = sum(step["seconds"] for step in host)
    if host_s:
        estimates = ", ".join(dict.fromkeys(step["origin"] for step in host))
        words, origin = f"{words}; and the processor's ops", f"{origin}; with the processor, {estimates}"
    seconds = interval / clock_hz + host_s
    return {
        "latency": {"cycles": _whole(total), "seconds": total / clock_hz + host_s, "note": words, "origin": origin},
        "throughput": {
            "inferences_per_s": 1 / seconds if seconds else None,
            "device_inferences_per_s": clock_hz / interval if interval else None,
            **beside,
            "host_seconds": host_s,
            "origin": origin,
        },
    }
