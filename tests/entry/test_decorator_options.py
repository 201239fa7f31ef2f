"""Options of `cuvil.compile` as a decorator: mistakes show where they are made, not at the first call."""

from __future__ import annotations

import pytest

import cuvil

pytest.importorskip("xdsl")


def test_an_unknown_option_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeError, match="no option 'max_trip'; did you mean max_trips"):
        cuvil.compile(target="cpu", max_trip=3)(lambda x: x)
