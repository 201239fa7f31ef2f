"""Plug-ins of other packages, as entry points say, without installing any."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from cuvil_hw.contract import registry


def announce(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str, str]) -> None:
    found = []
    for name, value, package in entries:
        entry = EntryPoint(name, value, registry.DEVICES)
        vars(entry).update(dist=SimpleNamespace(name=package))
        found.append(entry)
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == registry.DEVICES else [])
