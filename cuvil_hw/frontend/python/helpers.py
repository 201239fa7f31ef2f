"""What rewritten code calls, under the name source.HELPERS: the modules that define such functions enter them here."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

helpers = types.SimpleNamespace(slice=slice)


def helper_function(f: F) -> F:
    """Make a function one that rewritten code calls by its name."""
    setattr(helpers, f.__name__, f)
    return f
