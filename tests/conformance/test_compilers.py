"""Every C compiler that is found gives the numbers of PyTorch, at every optimisation level.

Whole programs of small integer reductions: few lanes, comparisons that count, 8-bit results. This is what compilers
have got wrong (compilers.py), on this machine's own instructions. `CUVIL_TEST_SHAPES=200` tries that many shapes;
`make compilers` does so.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import cuvil
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime.compilers import CCompiler
from cuvil_hw.target.profile import Profile, load_profile

pytestmark = [pytest.mark.must_run, pytest.mark.needs("gcc", "torch")]

SHAPES = int(os.environ.get("CUVIL_TEST_SHAPES", "8"))
NAMES = ["gcc", *(f"gcc-{n}" for n in range(9, 20)), "clang", *(f"clang-{n}" for n in range(11, 25))]
DTYPES = (torch.int8, torch.uint8, torch.bool)


def compilers() -> Iterator[str]:
    """Commands; a program that goes by two names, once."""
    found = {os.path.realpath(path): name for name in reversed(NAMES) if (path := shutil.which(name))}
    yield from reversed(found.values())
    if find_spec("ziglang"):
        yield f"{sys.executable} -m ziglang cc"


def shapes() -> list[tuple[int, ...]]:
    rng = np.random.default_rng(5)
    small = [(2, 2), (4,), (2,), (3,), (1, 4), (2, 3), (8,), (16,), (5, 3), (2, 2, 2), (33,), (4, 4), (2, 33)]
    more = [tuple(int(n) for n in rng.integers(1, 9, int(rng.integers(1, 4)))) for _ in range(SHAPES)]
    return [*small, *more][:SHAPES]


class Reductions(torch.nn.Module):
    def forward(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for x in xs:
            results += [x.any(), x.all(), (x != 0).sum(dtype=torch.int8), (x != 0).sum(0, dtype=torch.uint8)]
            results += [x.sum(-1), x.sum(-1, dtype=torch.int8), x.any(-1), x.all(0), torch.where(x != 0, x, 1).sum()]
            if x.dtype != torch.bool:
                results += [(x > 1).sum(dtype=torch.int8), x.amax(), (x.cumsum(0) > 2).any(), x.argmax()]
        return results


def profiles() -> dict[str, Profile]:
    base = load_profile("cpu")
    made = {}
    for n, name in enumerate(compilers()):
        for level in range(4) if n == 0 else (2, 3):
            settings = {**base.settings, "cc": name, "opt_level": level}
            made[f"{name} at {level}"] = replace(base, name=f"c{n}l{level}", settings=settings)
    return made


def test_small_integer_reductions_of_every_compiler_and_level() -> None:
    rng = np.random.default_rng(1)
    xs = []
    for dtype in DTYPES:
        for shape in shapes():
            zeros = rng.integers(0, 3, shape) == 0
            values = np.where(zeros, rng.integers(0, 5, shape), 0).astype(np.uint8)
            xs.append(torch.from_numpy(values).to(dtype))
    model = Reductions().eval()
    expected = [t.numpy() for t in model(*xs)]
    wanted = profiles()
    made = cuvil.compile_all(model, wanted.values(), example_inputs=tuple(xs))
    wrong = []
    for label, profile in wanted.items():
        for n, (got, right) in enumerate(zip(made[profile.name](*xs), expected, strict=True)):
            if not np.array_equal(np.asarray(got), right):
                wrong.append(f"{label}: output {n} is {np.asarray(got)}, right is {right}")
    assert not wrong, "\n".join(wrong[:20])


def test_sums_under_a_condition_of_every_compiler() -> None:
    """GCC 12.2 took one term's condition for its neighbour's where it joined the channels into one vector."""

    class Sums(torch.nn.Module):
        def forward(self, *xs: torch.Tensor) -> list[torch.Tensor]:
            return [x.cumsum(axis, dtype=x.dtype) for x in xs for axis in (1, 2)]

    kinds = (torch.int8, torch.int16, torch.int32, torch.int64)
    extents = [(c, 33) for c in range(2, 6)] + [(c, n) for c in (1, 2, 3) for n in (3, 4, 5)]
    xs = [(torch.arange(c * n).reshape(1, c, n) * 7 % 11 + 1).to(d) for c, n in extents for d in kinds]
    made = cuvil.compile_all(Sums().eval(), (wanted := profiles()).values(), example_inputs=tuple(xs))
    for label, profile in wanted.items():
        for got, right in zip(made[profile.name](*xs), Sums()(*xs), strict=True):
            np.testing.assert_array_equal(np.asarray(got), right.numpy(), err_msg=label)


@pytest.mark.parametrize(
    ("text", "clang", "march"),
    [
        ("gcc", False, "-march=x86-64-v3"),
        ("/opt/bin/aarch64-linux-gnu-gcc", False, "-march=x86-64-v3"),
        ("clang-14", True, "-march=x86-64-v3"),
        ("zig cc", True, "-march=x86_64_v3"),
        ("python3 -m ziglang cc -target x86_64-linux-gnu", True, "-march=x86_64_v3"),
        ("ccache cc", False, "-march=x86-64-v3"),
        ("gcc -fno-plt", False, "-march=x86-64-v3"),
    ],
)
def test_options_by_compiler(text: str, clang: bool, march: str) -> None:
    compiler = CCompiler.of(text)
    assert ("-fno-tree-slp-vectorize" in compiler.exact()) is not clang
    assert any("vect-cost-model" in option for option in compiler.optimised(2)) is not clang
    assert compiler.instructions("x86-64-v3") == (march,)


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("gcc", ""),
        ("gcc -fno-plt", ""),
        ("/usr/bin/aarch64-linux-gnu-gcc", "aarch64"),
        ("ccache aarch64-linux-gnu-gcc", "aarch64"),
        ("zig cc -target aarch64-linux-gnu", "aarch64"),
        ("clang --target=riscv64-linux-gnu", "riscv64"),
    ],
)
def test_the_machine_of_a_compiler(text: str, machine: str) -> None:
    assert CCompiler.of(text).machine == machine


@pytest.mark.parametrize("text", ["", "  ", "gcc 'x"])
def test_a_compiler_must_be_a_command(text: str) -> None:
    with pytest.raises(CuvilError, match="cc"):
        CCompiler.of(text)
