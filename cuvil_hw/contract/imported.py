"""Checks for classes of packages that must not be imported here: an object of such a class exists only if its package
has been imported already."""

from __future__ import annotations

import sys
from typing import Any


def imported_class(module: str, name: str) -> Any:
    """The class, or None if its package isn't imported yet, or is being imported by another thread right now."""
    return getattr(sys.modules.get(module), name, None)


def is_instance(value: Any, module: str, name: str) -> bool:
    """Whether `value` is of a class in a package that need not be imported."""
    kind = imported_class(module, name)
    return kind is not None and isinstance(value, kind)
