"""Passes change a program in place: `run(program)`. Each module's docstring says what it does, before → after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Program
from cuvil_hw.passes import accumulators, batch_norm, dce, decompose, fold, fuse, integerize, matmul, separate, stored

# In the order in which a compilation runs them.
PASSES: Mapping[str, Callable[[Program], None]] = MappingProxyType(
    {
        "fold": fold.run,
        "fold-dequantize": fold.fold_dequantize,
        "matmul": matmul.run,
        "batch-norm": batch_norm.run,
        "integerize": integerize.run,
        "accumulators": accumulators.run,
        "integer-weights": stored.run,
        "decompose": decompose.run,
        "dce": dce.run,
        "fuse": fuse.run,
        "fuse-epilogues": fuse.run_epilogues,
        "separate": separate.run,
    }
)


def run_pipeline(program: Program, names: Iterable[str]) -> None:
    """Run passes by name and verify after each. Raises CuvilError: unknown name, or a pass that left invalid IR."""
    from xdsl.utils.exceptions import VerifyException

    for name in names:
        if name not in PASSES:
            raise CuvilError(f"unknown pass {name!r}; there are: {', '.join(PASSES)}")
        PASSES[name](program)
        try:
            program.verify()
        except VerifyException as e:
            raise CuvilError(f"pass {name} left invalid IR: {e}") from e
