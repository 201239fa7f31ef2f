"""What keeps the processes of a streaming module from being one pipelined loop nest each."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from cuvil_hw.ir import legal
from cuvil_hw.ir.annotations import Comment, Role, text_of
from cuvil_hw.ir.flat import breaks


def unflat(module: ModuleOp) -> list[str]:
    """Empty: nothing. Divisions of a buffered stage are the model's own: where an element lies."""
    found = []
    for f in legal.functions(module):
        if text_of(f, Role) == "process":
            buffered = "buffered" in text_of(f, Comment)
            found += [f"{f.sym_name.data}: {b}" for b in breaks(f) if not (buffered and "power of two" in b)]
    return found
