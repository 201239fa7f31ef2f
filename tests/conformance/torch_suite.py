"""PyTorch's own suites (op_db: operators with sample inputs; module_db: modules), run on the reference and on the cpu
target.

A case passes when every result has the shape and dtype of eager PyTorch's, and values within the tolerance that
`torch.testing.assert_close` has for the dtype. Exporting and compiling cost more than running, so that many cases are
one model; where that can't be imported, it is taken apart until the reason is known for every case.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import cuvil
from cuvil_hw.errors import CuvilError, Unsupported
from cuvil_hw.frontend import load
from cuvil_hw.ir.program import Program, evaluate

Array = np.ndarray[Any, Any]
TOGETHER = 60  # cases exported as one model
PLACE = "case_"  # file names of made-up frames: the front end's places then say which case they mean


@dataclass(frozen=True)
class Case:
    """`run(*tensors)` gives the results: tensors, maybe in tuples. `expected`: its flat results in eager mode.
    `kind`: "plain" or "strided" (no tensor is contiguous)."""

    op: str
    dtype: str
    number: int
    kind: str
    run: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    expected: tuple[torch.Tensor, ...]

    @property
    def empty(self) -> bool:
        return any(t.numel() == 0 for t in (*self.tensors, *self.expected))

    @property
    def name(self) -> str:
        shapes = ", ".join(str(tuple(t.shape)) for t in self.tensors)
        return f"{self.op} {self.dtype} #{self.number} {self.kind} ({shapes})"


@dataclass(frozen=True)
class Outcome:
    """`result`: "passed", "refused", "untraced" (torch.export refuses it), "wrong" or "crashed", with `why`. `where` it
    was so: "import", "reference" or "cpu"."""

    case: Case
    result: str
    where: str = "cpu"
    why: str = ""


class Together(torch.nn.Module):
    """The cases side by side, their tensors one after the other."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.cases = tuple(cases)
        self.parts = torch.nn.ModuleList(c.run for c in cases if isinstance(c.run, torch.nn.Module))

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        results, start = [], 0
        for number, case in enumerate(self.cases):
            end = start + len(case.tensors)
            results.append(flat(framed(case.run, number)(*tensors[start:end])))
            start = end
        return results


def framed(f: Callable[..., Any], number: int) -> Callable[..., Any]:
    """`f` called from a file of its own; torch.export keeps the frames of functions of that name."""
    names: dict[str, Any] = {"f": f}
    exec(compile("def forward(*tensors): return f(*tensors)", f"{PLACE}{number}", "exec"), names)
    return names["forward"]  # type: ignore[no-any-return]


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors of a result. Raises TypeError for any that is none."""
    leaves = [v for v in pytree.tree_leaves(value) if v is not None]
    if not all(isinstance(v, torch.Tensor) for v in leaves):
        raise TypeError("a result is no tensor")
    return leaves


def tensors_of(cases: Sequence[Case]) -> tuple[torch.Tensor, ...]:
    # A copy each, since some operators write into their operands; strides as they are.
    return tuple(copied(t) for c in cases for t in c.tensors)


def copied(t: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t)


def differs(results: Sequence[Array], expected: Sequence[torch.Tensor]) -> str:
    """What is wrong with the results; empty when nothing is."""
    if len(results) != len(expected):
        return f"{len(results)} results, {len(expected)} expected"
    for have, want in zip(results, expected, strict=True):
        try:
            torch.testing.assert_close(torch.from_numpy(np.array(have)), want, equal_nan=True, check_stride=False)
        except AssertionError as e:
            return str(e)
    return ""


def judged(cases: Sequence[Case], results: Sequence[Array], where: str) -> list[Outcome]:
    outcomes, rest = [], list(results)
    for case in cases:
        mine, rest = rest[: len(case.expected)], rest[len(case.expected) :]
        why = differs(mine, case.expected)
        outcomes.append(Outcome(case, "wrong" if why else "passed", where, why))
    return outcomes


def imported(cases: Sequence[Case]) -> Program | CuvilError:
    try:
        return load(Together(cases), tensors_of(cases))
    except CuvilError as e:
        return e


def arrays(cases: Sequence[Case]) -> list[Array]:
    return [t.detach().numpy() for t in tensors_of(cases)]


def on_reference(cases: Sequence[Case]) -> Iterator[Outcome]:
    """An outcome of each case, in any order."""
    if not cases:
        return
    program = imported(cases)
    if isinstance(program, CuvilError):
        refused = blamed(program, len(cases))
        if len(cases) == 1:
            yield Outcome(cases[0], kind_of(program), "import", str(program))
        elif refused:
            for n, why in refused.items():
                yield Outcome(cases[n], kind_of(program), "import", why)
            yield from on_reference([c for n, c in enumerate(cases) if n not in refused])
        else:
            half = len(cases) // 2
            yield from on_reference(cases[:half])
            yield from on_reference(cases[half:])
        return
    try:
        results = evaluate(program, arrays(cases))
    except Exception as e:  # whatever it is, it is a crash of the case that does it
        if len(cases) == 1:
            yield Outcome(cases[0], "crashed", "reference", f"{type(e).__name__}: {e}")
        else:
            half = len(cases) // 2
            yield from on_reference(cases[:half])
            yield from on_reference(cases[half:])
        return
    yield from judged(cases, results, "reference")


def kind_of(error: CuvilError) -> str:
    if isinstance(error, Unsupported):
        return "refused"
    return "untraced" if "torch.export can't trace" in str(error) else "crashed"


def blamed(error: CuvilError, count: int) -> dict[int, str]:
    """Why by number of the case, read off the places that the error names."""
    if not isinstance(error, Unsupported):
        found = re.search(rf" at {PLACE}(\d+):1: ", str(error))
        return {int(found[1]): str(error)} if found and int(found[1]) < count else {}
    why: dict[int, str] = {}
    for refusal in error.refusals:
        for place in refusal.where:
            found = re.fullmatch(rf"{PLACE}(\d+):1", place)
            if found:
                why.setdefault(int(found[1]), f"{refusal.op}: {refusal.reason}")
    return why


def on_cpu(cases: Sequence[Case]) -> Iterator[Outcome]:
    """The same, of cases that pass on the reference."""
    try:
        with cuvil.compile(Together(cases), "cpu", example_inputs=tensors_of(cases)) as executable:
            results = executable(*arrays(cases))
        results = list(results) if isinstance(results, tuple) else [results]
        yield from judged(cases, results, "cpu")
    except Exception as e:
        if len(cases) > 1:
            half = len(cases) // 2
            yield from on_cpu(cases[:half])
            yield from on_cpu(cases[half:])
        else:
            refused = isinstance(e, CuvilError)
            yield Outcome(cases[0], "refused" if refused else "crashed", "cpu", f"{type(e).__name__}: {e}")


def run(cases: Sequence[Case], cpu: bool = True) -> list[Outcome]:
    """Cases of one operator stay together as long as they can."""
    outcomes: list[Outcome] = []
    for chunk in chunks(cases):
        outcomes += on_reference(chunk)
    if not cpu:
        return outcomes
    ready = [o.case for o in outcomes if o.result == "passed"]
    outcomes = [o for o in outcomes if o.result != "passed"]
    for chunk in chunks(ready):
        outcomes += on_cpu(chunk)
    return outcomes


def chunks(cases: Sequence[Case]) -> Iterator[list[Case]]:
    for start in range(0, len(cases), TOGETHER):
        yield list(cases[start : start + TOGETHER])


def op_cases(op: Any, dtype: torch.dtype, most: int = 0) -> list[Case]:
    """Cases of an OpInfo: its sample inputs as they are and, where that differs, with no contiguous tensor; each
    combination of shapes, strides and other arguments once. `most` > 0: at most that many, evenly chosen, all with a
    tensor of no elements among them."""
    name = op.name + (f" ({op.variant_test_name})" if op.variant_test_name else "")
    found: list[Case] = []
    seen = set()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        for number, sample in enumerate(samples):
            for kind, variant in (("plain", sample), ("strided", sample.noncontiguous())):
                leaves, spec = pytree.tree_flatten(((variant.input, *variant.args), variant.kwargs))
                where = tuple(i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor))
                tensors = tuple(copied(leaves[i]) for i in where)
                key = (str([v if i not in where else (v.shape, v.stride(), v.dtype) for i, v in enumerate(leaves)]), spec)
                if str(key) in seen:
                    continue
                seen.add(str(key))
                call = Call(op.op, tuple(None if i in where else v for i, v in enumerate(leaves)), where, spec)
                try:
                    expected = tuple(v.clone() for v in flat(call(*map(copied, tensors))))
                except Exception:  # eager PyTorch doesn't take it, or gives no tensors: no case
                    continue
                found.append(Case(name, str(dtype).removeprefix("torch."), number, kind, call, tensors, expected))
    return chosen(found, most) if most else found


@dataclass(frozen=True)
class Call:
    """A function of tensors: `f` with those at `where` among its flattened arguments."""

    f: Callable[..., Any]
    leaves: tuple[Any, ...]
    where: tuple[int, ...]
    spec: Any

    def __call__(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for i, t in zip(self.where, tensors, strict=True):
            leaves[i] = t
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.f(*args, **kwargs)


def chosen(cases: Sequence[Case], most: int) -> list[Case]:
    if len(cases) <= most:
        return list(cases)
    empty = [c for c in cases if c.empty][:most]
    rest = [c for c in cases if not c.empty]
    room = most - len(empty)
    picked = [rest[i * len(rest) // room] for i in range(room)] if room > 0 else []
    return [*empty, *picked]


__all__ = ["Case", "Outcome", "op_cases", "replace", "run"]
