"""Data types by the names of the Open Inference Protocol, which Triton shares."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.device import Port

# BF16 is held as its bits, which JSON can't carry.
KINDS: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": dtypes.to_numpy("bf16"),
}
_NAMES = {dtype: name for name, dtype in KINDS.items()}


def kind_of(port: Port) -> str:
    """Element types that NumPy hasn't (i4, u2, …) are of the type that holds them."""
    return _NAMES[dtypes.to_numpy(port.dtype)]
