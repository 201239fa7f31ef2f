"""For the tests of packages that add a target."""

from __future__ import annotations

from cuvil_hw.entry.adapter_check import check_adapter as check_adapter

__all__ = ["check_adapter"]
