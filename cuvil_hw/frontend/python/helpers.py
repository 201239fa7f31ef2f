"""What rewritten code calls, under the name source.HELPERS."""

from __future__ import annotations

from builtins import slice as slice

from cuvil_hw.frontend.python.calls import attribute, call, made, new, shown
from cuvil_hw.frontend.python.changes import augment, augment_item, del_item, get_item, set_item
from cuvil_hw.frontend.python.flow import (
    all_of,
    and_,
    any_of,
    attempt,
    branch,
    check,
    choose,
    compare,
    failed,
    items,
    listed,
    none_of,
    not_,
    or_,
    raises,
    result,
    sequence,
    starred,
    static,
    trips,
)
from cuvil_hw.frontend.python.outside import get, outer
from cuvil_hw.frontend.python.values import NEVER, UNSET

__all__ = [
    "NEVER",
    "UNSET",
    "all_of",
    "and_",
    "any_of",
    "attempt",
    "attribute",
    "augment",
    "augment_item",
    "branch",
    "call",
    "check",
    "choose",
    "compare",
    "del_item",
    "failed",
    "get",
    "get_item",
    "items",
    "listed",
    "made",
    "new",
    "none_of",
    "not_",
    "or_",
    "outer",
    "raises",
    "result",
    "sequence",
    "set_item",
    "shown",
    "slice",
    "starred",
    "static",
    "trips",
]
