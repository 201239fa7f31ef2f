"""Classes of packages that may not be imported: an object of one can only exist where its package is."""

from __future__ import annotations

import sys
from typing import Any


def imported_class(module: str, name: str) -> Any:
    """The class, or None where nobody has imported it. While another thread imports a package, its module is there
    already and its classes aren't yet."""
    return getattr(sys.modules.get(module), name, None)


def is_instance(value: Any, module: str, name: str) -> bool:
    """Whether `value` is of a class of a package that needs not be imported."""
    kind = imported_class(module, name)
    return kind is not None and isinstance(value, kind)
