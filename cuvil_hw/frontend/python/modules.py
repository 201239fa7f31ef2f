"""Modules whose forward loops over positions that nonzero found, or branches on values, such as mixture-of-experts
layers that run each expert on the tokens routed to it. Their forward is traced like a Python function.

torch.export and Dynamo can't follow such a loop: the number of iterations depends on values. See `hits`. Loops are
known from the source; where a forward branches is known when a trace of it has failed (`branching`).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils import _pytree as pytree

from cuvil_hw.frontend.python import calls  # noqa: F401  (what rewritten code calls)
from cuvil_hw.frontend.python.arrays import Array
from cuvil_hw.frontend.python.loops import loops
from cuvil_hw.frontend.python.number import Number
from cuvil_hw.frontend.python.rewriting import made_of, rewritten_loops
from cuvil_hw.frontend.python.trace import Trace, is_tracing, tracing
from cuvil_hw.frontend.torch.errors import is_the_users

_MAX_TRIPS = 32


def trace_loops(modules: Iterable[torch.nn.Module], branches: Collection[type[Any]] = ()) -> None:
    """Give modules of a copied model that have such a loop a traced forward, by changing their classes to derived
    ones; those of `branches`, too."""
    for module in modules:
        kind = type(module)
        if (loops(kind.forward) or kind in branches) and "forward" not in vars(module):
            module.__class__ = _derived(kind, kind in branches)


def forward_of(kind: type[Any]) -> Any:
    """A class's forward, traced where it has such a loop."""
    return _derived(kind, False).forward if loops(kind.forward) else kind.forward


def branching(error: BaseException, modules: Iterable[torch.nn.Module]) -> type[Any] | None:
    """The class of the innermost module in whose forward a trace failed as values decide there; None where it isn't one
    of these modules, or failed for another reason."""
    if "data-dependent" not in str(error).lower():
        return None
    seen = getattr(error, "real_stack", None)
    frames = [(f.filename, f.lineno) for f in seen or ()] or [(f.f_code.co_filename, n) for f, n in _raised(error)]
    kinds = {type(m) for m in modules}
    for file, line in reversed(frames):
        for kind in kinds:
            code = getattr(kind.forward, "__code__", None)
            ends = [n for *_, n in code.co_lines() if n] if code is not None and code.co_filename == file else []
            if ends and min(ends) <= (line or 0) <= max(ends) and is_the_users(file):
                return kind
    return None


def _raised(error: BaseException) -> Iterator[tuple[types.FrameType, int]]:
    return walk_tb(error.__traceback__)


@contextmanager
def _sizes_inside(values: Sequence[Any]) -> Iterator[None]:
    """Dynamo looks at the results alone, and misses sizes that stay inside; torch.export sees the operations."""
    mode = None if torch.compiler.is_exporting() else detect_fake_mode(values)
    if mode is None or mode.shape_env is None:
        yield
        return
    with mode.shape_env.ignore_fresh_unbacked_symbols():
        yield


_classes: dict[tuple[type[Any], bool], type[Any]] = {}


def _derived(kind: type[Any], whole: bool) -> type[Any]:
    """A class of which the forward is one step for Dynamo, and traced by what compiles the graph. `whole`: all of it is
    rewritten, not the loops alone."""
    if (kind, whole) not in _classes:
        _classes[kind, whole] = _made(kind, made_of if whole else rewritten_loops)
    return _classes[kind, whole]


def _made(kind: type[Any], rewritten: Callable[[Any], Any]) -> type[Any]:
    original = kind.forward

    def traced(module: Any, args: Any, named: Any) -> Any:
        if is_tracing():
            return rewritten(original)(module, *args, **named)
        with tracing(Trace(_MAX_TRIPS)) as trace, _sizes_inside(pytree.tree_leaves((args, named))):
            result = rewritten(original)(module, *args, **named)
            for check in trace.checks:
                torch._assert_async(check.ok, check.message)
        return pytree.tree_map(lambda v: v.tensor if isinstance(v, Array | Number) else v, result)

    step = torch._dynamo.nonstrict_trace(traced)

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        return step(self, args, named)

    forward.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]  # names of inputs come from it
    body = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    derived: type[Any] = types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(body))
    return derived
