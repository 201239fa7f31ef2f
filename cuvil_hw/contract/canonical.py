"""JSON with exactly one spelling per value, and a parser that refuses input that parsers may read differently."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# NaN and infinities have no JSON spelling, but limits of ops and quantization ranges may hold them.
_FLOAT = "$float"


def dump(value: Any) -> bytes:
    """Canonical JSON: sorted keys, ASCII, one final newline; tuples become lists, NumPy scalars numbers, and a float
    that is not finite {"$float": "nan" | "inf" | "-inf"}. Raises TypeError or ValueError for anything else."""
    plain = _plain(value)
    return (json.dumps(plain, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode("ascii")


def parse(data: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for malformed text, duplicate keys, bare NaN or too deep nesting."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_pairs, parse_constant=_refuse)
    except RecursionError as e:
        raise ValueError("nested too deeply") from e


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _FLOAT:
                raise TypeError(f"{key!r} can't be a key in canonical JSON")
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    raise TypeError(f"{type(value).__name__} has no canonical JSON form")


def _pairs(pairs: list[tuple[str, Any]]) -> Any:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    if _FLOAT in result:
        text = result[_FLOAT]
        if len(result) != 1 or text not in ("nan", "inf", "-inf"):
            raise ValueError(f"malformed {_FLOAT}")
        return float(text)
    return result


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
