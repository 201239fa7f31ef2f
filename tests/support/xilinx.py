"""Where Xilinx's own integer types are, the oracle that nobody here wrote."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest


def ap_types() -> Path:
    """Xilinx's own ap_types: the folder CUVIL_AP_TYPES, or the one inside an installed hls4ml; skips without either."""
    given = os.environ.get("CUVIL_AP_TYPES")
    if given:
        return Path(given)
    spec = importlib.util.find_spec("hls4ml")
    if spec is None or spec.origin is None:
        pytest.skip("needs Xilinx's ap_types: install hls4ml or set CUVIL_AP_TYPES")
    return Path(spec.origin).parent / "templates/vivado/ap_types"
