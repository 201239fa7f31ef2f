"""Level2 as text: each .mlir file is parsed, checked, printed and run, and says in CHECK lines what must come out.

A file begins with lines of these kinds: `// RUN: function arguments…` (as cuvil opt takes them, then blocks=2,
samples=2), `// CONSTANT: digest dtype numbers`, `// PASSES: memory-ports`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.lowering.ports import memory_ports
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import ANNOTATIONS
from cuvil_hw.ir.interpreter.text import interpreted
from cuvil_hw.ir.legal import legal, parse
from tests.ir.test_filecheck import check

FILES = sorted((Path(__file__).parent / "level2").glob("*.mlir"))
PASSES = {"memory-ports": memory_ports}


def header(source: str, key: str) -> list[list[str]]:
    prefix = f"// {key}: "
    return [line.removeprefix(prefix).split() for line in source.splitlines() if line.startswith(prefix)]


@pytest.mark.needs("filecheck")
@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_what_it_is_and_does(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    module = parse(source)
    for names in header(source, "PASSES"):
        for name in names:
            module = PASSES[name](module)
            legal(module)
    constants = {
        digest: np.array([int(n) for n in numbers.split(",")], dtypes.to_numpy(dtype))
        for digest, dtype, numbers in header(source, "CONSTANT")
    }
    printed = str(module) + "\n"
    for name, *given in header(source, "RUN"):
        options = {key: int(n) for word in given if "=" in word for key, n in [word.split("=")]}
        printed += interpreted(module, name, [word for word in given if "=" not in word], constants, **options)
    result = check(file, printed)
    assert result.returncode == 0, result.stdout + result.stderr + printed
    assert str(parse(str(module))) == str(module)  # what is printed can be read again
    assert check(file, "builtin.module {}").returncode != 0, f"{file.name} accepts anything"


def test_every_op_annotation_and_pass_of_level2_has_a_file() -> None:
    lines = [line for file in FILES for line in file.read_text(encoding="utf-8").splitlines()]
    code = "\n".join(line for line in lines if not line.startswith("//"))
    assert [op.name for op in level2.dialect().operations if op.name not in code] == []
    assert [a.name for a in ANNOTATIONS if f"#{a.name}" not in code and a.name != "cuvil.port"] == []
    assert {name for line in lines if line.startswith("// PASSES: ") for name in line.split()[2:]} == set(PASSES)
