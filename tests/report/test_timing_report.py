"""How the timing of a design is shown: bars that fill their row, all ties, nothing of a name that is markup."""

from __future__ import annotations

import pytest

from cuvil_hw.contract.timing import ProcessTiming, StreamTiming, Timing
from cuvil_hw.report import timing as views
from tests.report.test_report import EVIL, Page


def found(period: int = 1, slow: float = 100.0) -> Timing:
    processes = (
        ProcessTiming("read_x", 100.0, 40.0, 0.0, 60.0),
        ProcessTiming(EVIL, 100.0, slow, 100.0 - slow, 0.0),
        ProcessTiming("two", 100.0, slow, 0.0, 100.0 - slow),
        ProcessTiming("write_y", 100.0, 0.5, 99.5, 0.0),
    )
    streams = (
        StreamTiming("x", "read_x", EVIL, 2, 40.0, 2, 1.96, 100.0 - slow, 60.0),
        StreamTiming("between", EVIL, "two", 16, 10.0, 7, 3.0, 0.0, 0.0),
        StreamTiming("y", "two", "write_y", 2, 1.0, 1, 0.01, 99.5, 100.0 - slow),
    )
    return Timing("net", 1e8, 100.0, period, 350, 6, processes, streams)


def test_text_shows_who_waits_for_whom_and_all_bottlenecks() -> None:
    text = views.render(found(), 120)
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    assert rows["read_x"].count("█") == 8
    assert rows["read_x"].count("▒") == 12
    assert rows["read_x"].endswith(EVIL)
    assert rows["two *"].count("█") == 20
    assert rows["write_y"].count("░") == 20
    assert f"* bottleneck: {EVIL}, two" in text
    assert "cycles per sample: 100, 1,000,000 inferences/s" in text
    assert "first result: 350 cycles, 3.5 µs" in text
    assert max(map(len, views.render(found()).splitlines()[:20])) <= 80


def test_where_no_process_is_always_busy_short_fifos_are_named() -> None:
    text = views.render(found(slow=90.0), 120)
    assert f"bottleneck: every process waits at times; the busiest, for 90 cycles, {EVIL}, two" in text
    assert "empty at one time and full at another: x, y" in text


@pytest.mark.parametrize(
    ("period", "words"),
    [
        (0, "not in its steady state after 6 samples"),
        (1, "is like the one before"),
        (3, "after 3 samples"),
    ],
)
def test_text_says_whether_the_state_is_steady(period: int, words: str) -> None:
    assert words in views.render(found(period))


def test_html_is_whole_and_escaped() -> None:
    document = views.document(found(), "cuvil timing net.cuvil")
    page = Page(document)
    assert not page.open
    assert "script" not in page.tags
    assert document.count("<h2") == 3
    assert "cuvil timing net.cuvil" in document
    assert any(f"at x for {EVIL[:3]}" in text for text in page.text)
    widths = [float(value) for tag, name, value in page.attributes if tag == "rect" and name == "width"]
    assert len(widths) == 6  # shares of nothing aren't drawn
    assert sum(widths) == pytest.approx(4 * 740)
