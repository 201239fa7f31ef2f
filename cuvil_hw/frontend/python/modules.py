"""Modules whose forward loops over positions that nonzero found, such as mixture-of-experts layers that run each expert
on the tokens routed to it. Their forward is traced like a Python function.

torch.export and Dynamo can't follow such a loop: the number of iterations depends on values. See `hits`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils import _pytree as pytree

from cuvil_hw.frontend.python import calls  # noqa: F401  (what rewritten code calls)
from cuvil_hw.frontend.python.arrays import Array
from cuvil_hw.frontend.python.loops import loops
from cuvil_hw.frontend.python.number import Number
from cuvil_hw.frontend.python.rewriting import rewritten_loops
from cuvil_hw.frontend.python.trace import Trace, is_tracing, tracing

_MAX_TRIPS = 32


def trace_loops(modules: Iterable[torch.nn.Module]) -> None:
    """Give modules of a copied model that have such a loop a traced forward, by changing their classes to derived
    ones."""
    for module in modules:
        kind = type(module)
        if loops(kind.forward) and "forward" not in vars(module):
            module.__class__ = _derived(kind)


def forward_of(kind: type[Any]) -> Any:
    """A class's forward, traced where it has such a loop."""
    return _derived(kind).forward if loops(kind.forward) else kind.forward


@contextmanager
def _sizes_inside(values: Sequence[Any]) -> Iterator[None]:
    """Dynamo looks at the results alone, and misses sizes that stay inside; torch.export sees the operations."""
    mode = None if torch.compiler.is_exporting() else detect_fake_mode(values)
    if mode is None or mode.shape_env is None:
        yield
        return
    with mode.shape_env.ignore_fresh_unbacked_symbols():
        yield


_classes: dict[type[Any], type[Any]] = {}


def _derived(kind: type[Any]) -> type[Any]:
    """A class of which the forward is one step for Dynamo, and traced by what compiles the graph."""
    if kind not in _classes:
        _classes[kind] = _made(kind)
    return _classes[kind]


def _made(kind: type[Any]) -> type[Any]:
    original = kind.forward

    def traced(module: Any, args: Any, named: Any) -> Any:
        if is_tracing():
            return rewritten_loops(original)(module, *args, **named)
        with tracing(Trace(_MAX_TRIPS)) as trace, _sizes_inside(pytree.tree_leaves((args, named))):
            result = rewritten_loops(original)(module, *args, **named)
            for check in trace.checks:
                torch._assert_async(check.ok, check.message)
        return pytree.tree_map(lambda v: v.tensor if isinstance(v, Array | Number) else v, result)

    step = torch._dynamo.nonstrict_trace(traced)

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        return step(self, args, named)

    body = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    derived: type[Any] = types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(body))
    return derived
