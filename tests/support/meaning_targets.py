"""Cases of meaning on targets: each equals the reference, or is refused with a reason.

Many cases are one program, as starting a compiler costs as much as many small kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cuvil_hw.dtypes import BF16, numbers
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.ops import base
from cuvil_hw.target.profile import Profile
from cuvil_hw.types import TensorType
from tests.support.meaning_cases import Array, Case
from tests.support.onnx_targets import (
    PASSED,
    TARGETS,
    Ready,
    Result,
    adapter_of,
    compiled,
    halving,
    quick_builds,
    refusal,
    roomy,
    simplified,
)

TOGETHER = 200
# Relative, by bytes of the element: two of f16's steps; docs/numerics.md for f32; libraries of f64 differ in few units.
RTOL = {2: 2e-3, 4: 1e-5, 8: 1e-12}


@dataclass(frozen=True)
class Item:
    """A case, and what must come out."""

    case: Case
    want: tuple[Array, ...]


def wanted(case: Case) -> tuple[Array, ...]:
    return case.want or base.evaluate(case.op, case.arrays)


def types(case: Case) -> list[TensorType]:
    return [TensorType(a.shape, d) for a, d in zip(case.arrays, case.names, strict=True)]


def program(case: Case) -> Program:
    builder = Builder([(f"x{n}", kind) for n, kind in enumerate(types(case))])
    values = builder.ops(case.op, *[builder.input(n) for n in range(len(case.arrays))])
    return builder.finish([(f"y{n}", v) for n, v in enumerate(values)])


def differs(case: Case, results: Sequence[Array], want: Sequence[Array]) -> str:
    """What is wrong; empty when nothing is. Integers have the same bits; floats NaN and infinities in the same places,
    the signs of zeros where they are specified, and the rest within the tolerance."""
    for given, right in zip(results, want, strict=True):
        have = given.view(BF16) if given.dtype.name == "bfloat16" else given  # as callers get it
        if (have.shape, have.dtype) != (right.shape, right.dtype):
            return f"{case}: {have.dtype}{have.shape}, expected {right.dtype}{right.shape}"
        rtol = 2.0**-7 if right.dtype == BF16 else RTOL.get(right.dtype.itemsize, 0.0)  # a step of bf16 or two
        have, right = numbers(have), numbers(right)
        if right.dtype.kind != "f":
            wrong = have != right
        else:
            with np.errstate(all="ignore"):
                a, b = have.astype(np.float64), right.astype(np.float64)
                least = float(np.finfo(right.dtype).tiny)
                near = np.abs(a - b) <= rtol * np.abs(b) + max(case.atol, least)
            same = np.where(np.isfinite(a) & np.isfinite(b), near, (a == b) | (np.isnan(a) & np.isnan(b)))
            signs = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b)) if case.zeros else False
            wrong = ~same | signs
        if wrong.any():
            return f"{case}: {_where(case, wrong, have, right)}"
    return ""


def _where(case: Case, wrong: Array, have: Array, want: Array) -> str:
    at = tuple(int(p) for p in np.argwhere(wrong)[0])
    given = (
        [a[at] for a in case.arrays] if case.op.elementwise and all(a.shape == want.shape for a in case.arrays) else []
    )
    of = f" of {', '.join(map(str, given))}" if given else ""
    return f"{int(wrong.sum())} of {want.size} wrong, first at {list(at)}: {have[at]}{of}, expected {want[at]}"


def _attempt(items: Sequence[tuple[Item, Ready]], profile: Profile) -> list[Result]:
    with compiled([r for _, r in items], profile) as executable:
        given = {f"c{n}_x{k}": a for n, (i, _) in enumerate(items) for k, a in enumerate(i.case.arrays)}
        have = list(executable.run(**given).outputs)
    found = []
    for item, _ in items:
        mine, have = have[: len(item.want)], have[len(item.want) :]
        wrong = differs(item.case, mine, item.want)
        found.append(Result("wrong", wrong) if wrong else PASSED)
    return found


def prepared(case: Case) -> Ready:
    """The case as a program, made once for all targets."""
    if id(case) not in _prepared:
        _prepared[id(case)] = case, Ready(*simplified(program(case)))
    return _prepared[id(case)][1]


_prepared: dict[int, tuple[Case, Ready]] = {}  # holds the case, so that its id stays its own


def _refused(case: Case, one: Ready, profile: Profile) -> str:
    """Why the target doesn't take the case; empty when it may. Asks about the op alone first: that is much quicker."""
    given = types(case)
    if not case.op.composite:
        why = adapter_of(profile.adapter).refuses(case.op, given, base.infer(case.op, given), profile)
        if why is None:
            return ""
    return refusal(one, profile)


def on_target(target: str, cases: Sequence[Case]) -> list[Result]:
    """Result of each case on a column of TARGETS. Raises ToolNotFound when it can't run here."""
    profile = roomy(TARGETS[target])
    results: dict[int, Result] = {}
    groups: dict[str, list[tuple[int, tuple[Item, Ready]]]] = {}
    for n, case in enumerate(cases):
        one = prepared(case)
        why = _refused(case, one, profile)
        if why:
            results[n] = Result("refused", why)
        else:
            groups.setdefault(one.kind, []).append((n, (Item(case, wanted(case)), one)))
    with quick_builds():
        for found in groups.values():
            for start in range(0, len(found), TOGETHER):
                chunk = found[start : start + TOGETHER]
                found_here = halving([i for _, i in chunk], lambda some: _attempt(some, profile))
                results.update(zip([n for n, _ in chunk], found_here, strict=True))
    return [results[n] for n in range(len(cases))]
