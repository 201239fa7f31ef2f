"""What can be said of a model before it is compiled: shapes, precision hazards, what each target runs."""

from cuvil_hw.entry.check.coverage import Coverage
from cuvil_hw.entry.check.hazards import Hazard
from cuvil_hw.entry.check.model import Check, Layer, check

__all__ = ["Check", "Coverage", "Hazard", "Layer", "check"]
