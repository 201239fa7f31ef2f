"""Warns of code that Dynamo leaves to PyTorch in functions compiled with the backend `cuvil`.

Where Dynamo can't trace, it runs a part of the function, or all of it, in PyTorch, and only says so in its debug log.
The backend is then never called, or called only for the remaining parts.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
import torch.fx
from torch._dynamo import config
from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameAssert
from torch._dynamo.utils import counters

from cuvil_hw.frontend.torch.aten.emitter import from_data

LOG = logging.getLogger("cuvil")
_WRAPPED = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "compiler_fn")  # by version of torch
CALLED = "graphs"  # of counters["cuvil"]: how often the backend was given a graph


def watch(backend: Callable[..., Any]) -> None:
    """For `backend`, lets Dynamo trace selections by a computed mask (`x[mask]`, nonzero), and warns in the log "cuvil"
    of code that runs in PyTorch, once each time that Dynamo traces a function.

    Dynamo has no hook for functions that it gives up, and its callbacks don't survive torch._dynamo.reset(), so this
    wraps the internal step that traces. With fullgraph=True Dynamo uses another step, which raises.
    """
    _follow_masks(backend)
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


class Escapes(Exception):
    """A tensor selected by a computed mask, whose size only a run knows, would be a result of the graph."""


_again: ContextVar[bool] = ContextVar("again", default=False)  # whether the frame can be traced with breaks at masks


def check_escapes(graph: torch.fx.GraphModule) -> None:
    """Raises Escapes if a tensor selected by a mask is among the graph's results and Dynamo could split the graph
    there."""
    if _again.get() and any(_from_data(n.meta.get("example_value")) for n in graph.graph.output_node().all_input_nodes):
        raise Escapes


def _from_data(value: Any) -> bool:
    return any(map(from_data, value.shape if isinstance(value, torch.Tensor) else [value]))


def _follow_masks(backend: Callable[..., Any]) -> None:
    """Makes Dynamo trace nonzero and x[mask] into the graph while it traces for `backend`.

    By default Dynamo splits the graph there, by a setting of the whole process, which is changed during the trace only.
    If what was selected would leave the graph (Escapes), the frame is traced again with the user's setting: Dynamo
    splits it there and PyTorch does the selection. With fullgraph=True the backend refuses.
    """
    trace = ConvertFrameAssert.__call__

    @functools.wraps(trace)
    def traced(self: Any, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, *, skip: int = 0) -> Any:
        given = config.capture_dynamic_output_shape_ops
        if given or not _is(self, backend):
            return trace(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
        token = _again.set(not self._one_graph)
        try:
            with config.patch(capture_dynamic_output_shape_ops=True):
                return trace(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
        except Exception as error:  # Dynamo's, around what the backend raised
            if not _escapes(error):
                raise
        finally:
            _again.reset(token)
        return trace(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)

    ConvertFrameAssert.__call__ = traced  # type: ignore[method-assign]


def _escapes(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, Escapes):
        error = getattr(error, "inner_exception", None) or error.__cause__
    return error is not None


def _is(function: Any, backend: Callable[..., Any]) -> bool:
    """Whether `function` is the backend, also inside the wrappers of torch.compile and Dynamo."""
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
