"""Collects the report of one compilation from what its steps found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cuvil_hw.report.drawing import Drawing
from cuvil_hw.report.report import SCHEMA, Report
from cuvil_hw.runtime.host import HostProgram
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.memory import MemoryPlan
from cuvil_hw.schedule.resources import Resource
from cuvil_hw.schedule.space import Candidate, Choice
from cuvil_hw.types import TensorType

ANALYTIC = "analytic"


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
    """
    layers = [_layer(k, choice.candidate(k.name)) for k in kernels.kernels]
    return Report(
        {
            "schema": SCHEMA,
            "model": model,
            "target": dict(target),
            "precision": precision,
            "clock_hz": float(clock_hz),
            "style": choice.style,
            "layers": layers,
            "totals": [_total(axis, choice, fixed, live_bytes) for axis in axes],
            "bottleneck": _bottleneck(layers),
            "solver": {
                "objective_cycles": choice.objective,
                "bound_cycles": choice.bound,
                "gap": (choice.objective - choice.bound) / choice.objective if choice.objective > 0 else 0.0,
            },
            **_speed(layers, choice.style, clock_hz, host or ()),
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
            "notes": [*(f"warning: {text}" for text in (quantization or {}).get("warnings", ())), *notes],
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


def _total(axis: Resource, choice: Choice, fixed: Mapping[str, float], live_bytes: float) -> dict[str, Any]:
    used = float(live_bytes if axis.rule == "live" else choice.use.get(axis.name, 0.0))
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


def _bottleneck(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not layers:
        return None
    slowest = max(layers, key=lambda layer: layer["cycles"])
    return {"layer": slowest["name"], "cycles": slowest["cycles"], "origin": slowest["origin"]}


def _speed(
    layers: Sequence[Mapping[str, Any]], style: str, clock_hz: float, host: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Latency of one inference, and inferences per second. Includes the seconds per sample of the host steps, which run
    before and after the device."""
    origin = ANALYTIC if all(layer["origin"] == ANALYTIC for layer in layers) else "mixed, see layers"
    total = sum(layer["cycles"] for layer in layers)
    slowest = max((layer["cycles"] for layer in layers), default=0)
    if style == "spatial":
        words = "sum of all stages; stages overlap, so the first result comes no later than this"
        interval = slowest
    else:
        words, interval = "sum of all layers, which run one after another", total
    host_s = sum(step["seconds"] for step in host)
    if host_s:
        estimates = ", ".join(dict.fromkeys(step["origin"] for step in host))
        words, origin = f"{words}; and the processor's ops", f"{origin}; with the processor, {estimates}"
    seconds = interval / clock_hz + host_s
    return {
        "latency": {"cycles": total, "seconds": total / clock_hz + host_s, "note": words, "origin": origin},
        "throughput": {
            "inferences_per_s": 1 / seconds if seconds else None,
            "device_inferences_per_s": clock_hz / interval if interval else None,
            "host_seconds": host_s,
            "origin": origin,
        },
    }
