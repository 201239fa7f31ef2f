"""Makes adapters by name, those of other packages too."""

from __future__ import annotations

from cuvil_hw.adapters.base import Adapter
from cuvil_hw.contract.registry import ADAPTERS, blaming, find


def load_adapter(name: str) -> Adapter:
    """A new adapter. Raises CuvilError when it is unknown, claimed twice or fails to load."""
    made = find(ADAPTERS, name).load()
    with blaming(ADAPTERS, name):
        adapter: Adapter = made()
    return adapter
