"""Shares of large sets of cases are even and together the whole; tables of pages are read as they are written."""

from __future__ import annotations

from tests.support.shares import counts_of, share

CASES = [f"{group}{n}" for group, count in (("a", 7), ("b", 1), ("c", 2)) for n in range(count)]


def test_turns_take_other_items_and_together_all() -> None:
    turns = [share(CASES, lambda c: c[0], 3, turn) for turn in range(3)]
    assert turns[0] == ["a0", "a3", "a6", "b0", "c0"]
    assert turns[1] == ["a1", "a4", "b0", "c1"]
    assert turns[2] == ["a2", "a5", "b0", "c0"]
    assert {case for turn in turns for case in turn} == set(CASES)


def test_numbers_of_a_page() -> None:
    page = "# x\n\n| op | cases | cpu | what |\n|---|--:|--:|---|\n| Add | 8 | 7 | x |\n| Acos | 2 | – | |\n"
    page += "| **all** | 10 | 7 | |\n\n| entry | cases |\n|---|--:|\n| relu | 4 |\n"
    assert counts_of(page) == {"Add": {"cases": 8, "cpu": 7}, "Acos": {"cases": 2}, "relu": {"cases": 4}}
