"""Says what Dynamo leaves to PyTorch in functions that backend `cuvil` compiles.

Where Dynamo can't trace, it runs a part of the function, or all of it, in PyTorch, and tells its debug log only; the
backend is then not called, or called for the other parts.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from torch._dynamo.convert_frame import ConvertFrame
from torch._dynamo.utils import counters

LOG = logging.getLogger("cuvil")
_WRAPPED = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "compiler_fn")  # by version of torch
CALLED = "graphs"  # of counters["cuvil"]: how often the backend was given a graph


def watch(backend: Callable[..., Any]) -> None:
    """Warns in the log "cuvil" of what runs in PyTorch, once for each time that Dynamo traces a function for `backend`.

    Dynamo has no hook for a function that it gives up, and its callbacks don't survive torch._dynamo.reset(): the step
    that traces is wrapped. With fullgraph=True another one is used, which raises.
    """
    trace = ConvertFrame.__call__

    @functools.wraps(trace)
    def traced(self: Any, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0) -> Any:
        if not _is(self, backend):
            return trace(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
        calls, known = counters["cuvil"][CALLED], _reasons()
        result = trace(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
        reasons = [text for text, count in _reasons().items() if count > known.get(text, 0)]
        if reasons:
            _warn(frame, reasons[0], partly=counters["cuvil"][CALLED] > calls)
        return result

    ConvertFrame.__call__ = traced  # type: ignore[method-assign]


def _is(function: Any, backend: Callable[..., Any]) -> bool:
    """Whether `function` is the backend, as torch.compile and Dynamo wrap it."""
    while function is not None and function is not backend:
        inner = (getattr(function, name, None) for name in _WRAPPED)
        function = next((f for f in inner if f is not None), None)
    return function is not None


def _reasons() -> dict[str, int]:
    return dict(counters["unimplemented"]) | dict(counters["graph_break"])


def _warn(frame: Any, reason: str, partly: bool) -> None:
    counters["cuvil"]["left_to_pytorch"] += 1
    code, inner = frame.f_code, frame.f_locals.get("fn")
    name = f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
    if "torch/_dynamo" in code.co_filename.replace("\\", "/") and inner is not None:  # around a module of PyTorch
        name = type(getattr(inner, "__self__", inner)).__name__
    LOG.warning(
        "%s of %s runs in PyTorch, not compiled, as Dynamo can't trace it: %s. fullgraph=True makes this an error; "
        "cuvil.compile, which doesn't use Dynamo, may take it",
        "a part" if partly else "all",
        name,
        summary(reason),
    )


def summary(text: str) -> str:
    """One line of Dynamo's text: what it met, why that stops it, and the first hint that helps here."""
    what, *rest = [line.strip() for line in text.splitlines() if "capture_dynamic_output_shape_ops" not in line]
    why = [line.removeprefix("Explanation: ") for line in rest if line.startswith("Explanation: ")]
    hints = [line.removeprefix("Hint: ") for line in rest if line.startswith("Hint: ")]
    return "; ".join(part.rstrip(".") for part in (what, *why[:1], *hints[:1]))
