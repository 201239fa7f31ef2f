"""The IR after every pass as files, and passes that an adapter adds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

import cuvil
from cuvil_hw.adapters import registry
from cuvil_hw.adapters.cpu.adapter import CpuAdapter
from cuvil_hw.ir.program import Program, parse
from cuvil_hw.passes.pipeline import ProgramPass

X = torch.linspace(-1, 1, 6).reshape(1, 6)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3), nn.Softmax(-1)).eval()


@pytest.mark.needs("gcc")
def test_every_pass_leaves_its_module_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there yet"
    data = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
    program = cuvil.compile(net(), "cpu", X, data, "int8", dump=folder)
    names = sorted(p.name for p in folder.iterdir())
    assert [n.split("-", 1)[0] for n in names] == [f"{i:02}" for i in range(len(names))]
    order = ["import", "fold", "quantize", "integerize", "divide", "fuse", "lower"]
    at = [next(i for i, n in enumerate(names) if n[3:].startswith(step)) for step in order]
    assert at == sorted(at)
    for name in names[: at[-1]]:
        parse((folder / name).read_text())  # what it holds is level1 text that can be read again
    assert "cuvil.level1.quantize" in (folder / names[at[2]]).read_text()
    assert "scf.for" in (folder / names[at[-1]]).read_text()
    without = cuvil.compile(net(), "cpu", X, data, "int8")
    assert np.array_equal(program(X.numpy()), without(X.numpy()))


@pytest.mark.needs("gcc")
def test_one_compilation_does_not_write_into_the_folder_of_another(tmp_path: Path) -> None:
    cuvil.compile(net(), "cpu", X, dump=tmp_path)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    cuvil.compile(net(), "cpu", X)
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_an_error_before_anything_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(cuvil.CuvilError, match=r"dump=.*can't make this folder"):
        cuvil.compile(net(), "cpu", X, dump=tmp_path / "file" / "below")


@dataclass(frozen=True)
class Negations(ProgramPass):
    """neg(neg(x)) stays; every op is counted."""

    name: ClassVar[str] = "count-ops"

    def run(self, program: Program) -> None:
        SEEN.append(f"level1 {len(list(program.ops()))}")


@dataclass(frozen=True)
class Functions(ModulePass):
    name: ClassVar[str] = "count-functions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        SEEN.append(f"level2 {len(list(op.ops))}")


SEEN: list[str] = []


class OwnCpu(CpuAdapter):
    level1_passes = (Negations(),)
    level2_passes = (Functions(),)


@pytest.mark.needs("gcc")
def test_an_adapter_adds_passes_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "load_adapter", lambda name: OwnCpu())
    SEEN.clear()
    program = cuvil.compile(net(), "cpu", X, dump=tmp_path)
    assert [line.split()[0] for line in SEEN] == ["level1", "level2"]
    assert all(int(line.split()[1]) > 2 for line in SEEN)
    names = [p.name[3:].partition(".")[0] for p in sorted(tmp_path.iterdir())]
    fused = next(i for i, n in enumerate(names) if n.startswith("fuse"))
    assert names.index("count-ops") < fused < names.index("count-functions")
    assert np.allclose(program(X.numpy()), net()(X).detach().numpy(), atol=1e-6)
