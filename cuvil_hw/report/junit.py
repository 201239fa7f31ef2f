"""JUnit XML, as CI services read it: the one writer of `cuvil test` and `cuvil hil`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from cuvil_hw.errors.quoting import visible
from cuvil_hw.report.file import write_bytes

_ELEMENTS = {"failed": "failure", "error": "error", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class JUnitCase:
    """One check. `status`: "passed", "failed" (wrong), "error" (it could not be found out) or "skipped"."""

    suite: str
    place: str
    name: str
    status: str
    why: str = ""
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)


def junit(cases: Sequence[JUnitCase]) -> bytes:
    """A `testsuites` document; cases of one suite stand together, in their order."""
    root = ElementTree.Element("testsuites")
    for name in dict.fromkeys(c.suite for c in cases):
        own = [c for c in cases if c.suite == name]
        statuses = [c.status for c in own]
        counts = {
            "tests": len(own),
            "failures": statuses.count("failed"),
            "errors": statuses.count("error"),
            "skipped": statuses.count("skipped"),
        }
        attributes = {"name": visible(name), **{k: str(n) for k, n in counts.items()}}
        attributes["time"] = f"{sum(c.seconds for c in own):.3f}"
        suite = ElementTree.SubElement(root, "testsuite", attributes)
        for c in own:
            attributes = {"classname": visible(c.place), "name": visible(c.name), "time": f"{c.seconds:.3f}"}
            case = ElementTree.SubElement(suite, "testcase", attributes)
            if c.status in _ELEMENTS:
                ElementTree.SubElement(case, _ELEMENTS[c.status], message=visible(c.why))
            for figure, value in c.figures.items():
                ElementTree.SubElement(case, "system-out").text = f"{visible(figure)} = {value}"
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def write_junit(path: str | os.PathLike[str], cases: Sequence[JUnitCase]) -> None:
    """Raises CuvilError when the file can't be written."""
    write_bytes(path, junit(cases))
