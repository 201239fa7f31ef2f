"""A report: JSON data that says what was compiled, what it costs by estimate, and what was measured since.

Every figure has an origin: "analytic" (a formula of the adapter), "simulated", "measured (command)" or "vendor (file)".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA = "cuvil-report/1"


class Report(dict[str, Any]):
    """A report: JSON data with three views of it."""

    def text(self) -> str:
        """Plain text for a terminal."""
        from cuvil_hw.report.text import render

        return render(self)

    def html(self) -> str:
        """One self-contained HTML document."""
        from cuvil_hw.report.html import render

        return render(self)

    def save_html(self, path: str | Path) -> None:
        """Write the HTML file; what was there stays until the new one is whole. Raises CuvilError."""
        from cuvil_hw.report.file import write_text

        write_text(path, self.html())


def add_accuracy(
    report: dict[str, Any], name: str, float_metric: float, device_metric: float, samples: int, command: str
) -> None:
    """Add what an evaluation found. `name`: the metric, e.g. "top-1 accuracy"; `float_metric`: of the float model;
    `device_metric`: of the device or simulator, over the same `samples`; `command`: what reproduces it."""
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
    """Add what a device counted per layer over `samples` inputs, such as `Run.counters`; `origin`: e.g. "simulated"."""
    report["saturations"] = {
        "samples": int(samples),
        "origin": origin,
        "layers": {layer: {what: int(n) for what, n in counts.items()} for layer, counts in counters.items()},
    }
