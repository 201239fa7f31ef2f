"""OpenTelemetry spans. Nothing is imported: who collects spans has imported OpenTelemetry before, and without that (or
without its SDK set up) everything here does nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from cuvil_hw.version import VERSION

_NAME = "cuvil"
_stages: ContextVar[ExitStack | None] = ContextVar("stages", default=None)


def span(name: str, **attributes: Any) -> Any:
    """A context manager: a span below the current one. An exception that leaves it is recorded. Attributes are named
    `cuvil.` and their keyword; those that are None are left out."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return nullcontext()
    given = {f"{_NAME}.{k}": v for k, v in attributes.items() if v is not None}
    return trace.get_tracer(_NAME, VERSION).start_as_current_span(name, attributes=given)


@contextmanager
def stages(name: str, **attributes: Any) -> Iterator[None]:
    """A span whose children are the stages that `stage` names meanwhile."""
    if "opentelemetry.trace" not in sys.modules:
        yield
        return
    with span(name, **attributes), ExitStack() as inside:
        token = _stages.set(inside)
        try:
            yield
        finally:
            _stages.reset(token)


def stage(name: str) -> None:
    """The stage before ends, this one begins; nothing where no `stages` is around."""
    inside = _stages.get()
    if inside is not None:
        inside.close()
        inside.enter_context(span(name))
