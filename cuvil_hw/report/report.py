"""A report: JSON data about what was compiled, its estimated cost, and what was measured since.

Every figure has an origin: "analytic" (a formula of the adapter), "simulated", "measured (command)" or "vendor (file)".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuvil_hw.errors.quoting import xml
from cuvil_hw.report import html, text
from cuvil_hw.report.file import write_text

SCHEMA = "cuvil-report/1"


class Report(dict[str, Any]):
    """A report: JSON data with three views of it."""

    def text(self, width: int = 80) -> str:
        """Plain text; `width`: of its tables, in characters."""
        return text.render(self, width)

    def html(self, command: str = "") -> str:
        """One self-contained HTML document. Its foot says with which version and on which day it was made (as of
        $SOURCE_DATE_EPOCH, where that is set), and by which `command`."""
        return html.render(self, command)

    def save_html(self, path: str | Path, command: str = "") -> None:
        """Write the HTML file; what was there stays until the new one is whole. Raises CuvilError."""
        write_text(path, self.html(command))

    def _repr_html_(self) -> str:
        """For notebooks: the document in a frame of its own, so that its style stays inside."""
        if "schema" not in self:  # an artifact without a report
            return "<p>no report</p>"
        return f'<iframe sandbox style="width:100%;height:40em;border:0" srcdoc="{xml(self.html())}"></iframe>'


def add_accuracy(
    report: dict[str, Any], name: str, float_metric: float, device_metric: float, samples: int, command: str
) -> None:
    """Add the result of an evaluation to the report.

    Args:
        name: the metric, e.g. "top-1 accuracy".
        float_metric: its value for the float model.
        device_metric: its value for the device or simulator.
        samples: number of samples, the same for both.
        command: a command that reproduces it.
    """
    report.setdefault("accuracy", []).append(
        {
            "name": name,
            "float": float(float_metric),
            "device": float(device_metric),
            "samples": int(samples),
            "origin": f"measured ({command})",
        }
    )


def add_saturations(
    report: dict[str, Any], counters: Mapping[str, Mapping[str, int]], samples: int, origin: str
) -> None:
    """Add the saturation counts per layer over `samples` inputs, from `Run.counters`. `origin`: e.g. "simulated"."""
    report["saturations"] = {
        "samples": int(samples),
        "origin": origin,
        "layers": {layer: {what: int(n) for what, n in counts.items()} for layer, counts in counters.items()},
    }
