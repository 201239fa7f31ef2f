"""PyTorch's own suites (op_db: operators with sample inputs; module_db: modules), run on the reference and on the cpu
target.

A case passes when every result has the shape and dtype of eager PyTorch's, and values within the tolerance that
`torch.testing.assert_close` has for the dtype. Exporting and compiling cost more than running, so that many cases are
one model; where that can't be imported, it is taken apart until the reason is known for every case.
"""

from __future__ import annotations

import copy
import linecache
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import cuvil
from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError, Unsupported
from cuvil_hw.frontend import load
from cuvil_hw.ir.program import Program, evaluate

Array = np.ndarray[Any, Any]
TOGETHER = 60  # cases exported as one model
PLACE = "case_"  # file names of made-up frames: the front end's places then say which case they mean


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


@dataclass(frozen=True)
class Case:
    """`run(*tensors)` gives the results: tensors, maybe in tuples. `expected`: its flat results in eager mode.
    `kind`: "plain" or "strided" (no tensor is contiguous)."""

    op: str
    dtype: str
    number: int
    kind: str
    run: Call
    tensors: tuple[torch.Tensor, ...]
    expected: tuple[torch.Tensor, ...]

    @property
    def empty(self) -> bool:
        return any(t.numel() == 0 for t in (*self.tensors, *self.expected))

    def double(self) -> Call:
        """What runs, in double precision."""
        f = self.run.f
        return replace(self.run, f=copy.deepcopy(f).double() if isinstance(f, torch.nn.Module) else f)

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
        self.parts = torch.nn.ModuleList(c.run.f for c in cases if isinstance(c.run.f, torch.nn.Module))
        self.calls = tuple(framed(c.run, number) for number, c in enumerate(self.cases))

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        results, start = [], 0
        for case, call in zip(self.cases, self.calls, strict=True):
            end = start + len(case.tensors)
            results.append(flat(call(*tensors[start:end])))
            start = end
        return results


def framed(f: Callable[..., Any], number: int) -> Callable[..., Any]:
    """`f` called from a file of its own; torch.export keeps the frames of functions of that name."""
    names: dict[str, Any] = {"f": f}
    text, file = "def forward(*tensors): return f(*tensors)\n", f"{PLACE}{number}"
    linecache.cache[file] = (len(text), None, [text], file)  # read where values decide
    exec(compile(text, file, "exec"), names)
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
    """With the same strides; elements that share memory still do."""
    if not t.numel():
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    memory = t.detach().as_strided((extent,), (1,), t.storage_offset()).clone()
    return memory.as_strided(t.shape, t.stride())


def _tensor(array: Array) -> torch.Tensor:
    if array.dtype == dtypes.BF16 or array.dtype.name == "bfloat16":  # of ml_dtypes
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def differs(case: Case, results: Sequence[Array]) -> str:
    """What is wrong with the results; empty when nothing is."""
    if len(results) != len(case.expected):
        return f"{len(results)} results, {len(case.expected)} expected"
    for i, (array, want) in enumerate(zip(results, case.expected, strict=True)):
        have = _tensor(array)
        try:
            torch.testing.assert_close(have, want, equal_nan=True, check_stride=False)
        except AssertionError as e:
            alike = have.shape == want.shape and have.dtype == want.dtype
            if not alike or not (as_exact(case, i, have, want) or (i == 1 and other_equals(case, results))):
                return str(e)
    return ""


# PyTorch doesn't say which of equal elements these choose; their results are (values, positions along an axis).
ANY_OF_EQUALS = ("kthvalue", "median", "nanmedian", "mode", "topk")


def other_equals(case: Case, results: Sequence[Array]) -> bool:
    """Whether positions that differ from eager PyTorch's are others of elements that are equal."""
    values, at = case.expected[0], torch.from_numpy(np.array(results[-1]))
    if not case.op.startswith(ANY_OF_EQUALS) or len(results) != 2 or at.dtype != torch.int64:
        return False
    x = torch.atleast_1d(case.tensors[0])
    if at.shape != values.shape:
        return False
    return any(_same_elements(x, d, v, a) for d in range(x.ndim) for v, a in _with_axis(values, at, d, x.ndim))


def _with_axis(values: torch.Tensor, at: torch.Tensor, d: int, rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if at.ndim == rank:
        return [(values, at)]
    return [(values.unsqueeze(d), at.unsqueeze(d))] if at.ndim == rank - 1 else []


def _same_elements(x: torch.Tensor, d: int, values: torch.Tensor, at: torch.Tensor) -> bool:
    beside = [n for a, n in enumerate(x.shape) if a != d] == [n for a, n in enumerate(at.shape) if a != d]
    if not beside or bool(((at < 0) | (at >= x.shape[d])).any()):
        return False
    distinct = at.sort(dim=d).values.diff(dim=d).ne(0).all()
    return bool(distinct) and torch.equal(x.gather(d, at), values)


def as_exact(case: Case, i: int, have: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether a float32 result is about as near to the one in double precision as eager PyTorch's own: on average at
    most twice, anywhere at most four times as far as its worst. Two correct sums in different orders may be further
    apart than the tolerance where terms cancel."""
    if want.dtype != torch.float32:
        return False
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = flat(case.double()(*(widened(t) for t in case.tensors)))[i]
    mine, eager = (have - exact).abs(), (want - exact).abs()
    return bool(mine.mean() <= 2 * eager.mean() and mine.max() <= 4 * eager.max())


def widened(t: torch.Tensor) -> torch.Tensor:
    return t.double() if t.dtype == torch.float32 else t


def judged(cases: Sequence[Case], results: Sequence[Array], where: str) -> list[Outcome]:
    outcomes, rest = [], list(results)
    for case in cases:
        mine, rest = rest[: len(case.expected)], rest[len(case.expected) :]
        why = differs(case, mine)
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
    """Why by number of the case, read off the places that the error names, or off the frames that it came through."""
    if not isinstance(error, Unsupported):
        frames = walk_tb(error.__cause__.__traceback__) if error.__cause__ is not None else ()
        files = [f.f_code.co_filename for f, _ in frames]
        numbers = [int(f.removeprefix(PLACE)) for f in files if re.fullmatch(rf"{PLACE}\d+", f)]
        return {numbers[0]: str(error)} if numbers and numbers[0] < count else {}
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
            results = pytree.tree_leaves(executable(*arrays(cases)))
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


def op_cases(op: Any, dtype: torch.dtype, most: int = 0, parts: int = 1) -> list[Case]:
    """Cases of an OpInfo: its sample inputs as they are and, where that differs, with no contiguous tensor; each
    combination of shapes, strides and other arguments once. `most` > 0: at most that many, evenly chosen, all with a
    tensor of no elements among them. `parts`: of these the first and then every so manieth."""
    name = op.name + (f" ({op.variant_test_name})" if op.variant_test_name else "")
    given: dict[str, Given] = {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
            for kind, v in (("plain", sample), ("strided", sample.noncontiguous())):
                g = taken(op.op, (v.input, *v.args), v.kwargs, number, kind)
                given.setdefault(g.key, g)
        found = [made(name, dtype, g) for g in chosen(list(given.values()), most)]
    return [case for case in found if case is not None][::parts]


@dataclass(frozen=True)
class Given:
    """What a case is made of."""

    number: int
    kind: str
    run: Call
    tensors: tuple[torch.Tensor, ...]

    @property
    def key(self) -> str:
        """Equal for those that differ in values only."""
        tensors = [(t.shape, t.stride(), t.dtype) for t in self.tensors]
        return str((tensors, self.run.leaves, self.run.where, self.run.spec))

    @property
    def empty(self) -> bool:
        return any(t.numel() == 0 for t in self.tensors)


def taken(f: Callable[..., Any], args: Any, kwargs: Any, number: int, kind: str) -> Given:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    where = tuple(i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor))
    call = Call(f, tuple(None if i in where else v for i, v in enumerate(leaves)), where, spec)
    return Given(number, kind, call, tuple(copied(leaves[i].detach()) for i in where))


def made(name: str, dtype: torch.dtype, g: Given) -> Case | None:
    """None where eager PyTorch doesn't take the arguments, or gives results that are no tensors."""
    try:
        expected = tuple(v.clone() for v in flat(g.run(*map(copied, g.tensors))))
    except Exception:
        return None
    return Case(name, str(dtype).removeprefix("torch."), g.number, g.kind, g.run, g.tensors, expected)


def module_cases(info: Any, dtype: torch.dtype, most: int = 0) -> list[Case]:
    """Cases of a ModuleInfo in eval mode, likewise."""
    given: list[Given] = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=False)
        for number, one in enumerate(inputs):
            built, forward = one.constructor_input, one.forward_input
            module = info.module_cls(*built.args, **built.kwargs).to(dtype).eval()
            for kind, change in (("plain", same), ("strided", strided)):
                args, kwargs = pytree.tree_map(change, (forward.args, forward.kwargs))
                given.append(taken(module, args, kwargs, number, kind))
        found = [made(info.name, dtype, g) for g in chosen(given, most)]
    return [case for case in found if case is not None]


def same(v: Any) -> Any:
    return v


def strided(v: Any) -> Any:
    """A tensor with the same elements, no two of them neighbours."""
    if not isinstance(v, torch.Tensor) or v.ndim == 0:
        return v
    wide = torch.empty((*v.shape, 2), dtype=v.dtype)
    wide[..., 0] = v
    return wide[..., 0]


def chosen(given: Sequence[Given], most: int) -> list[Given]:
    if not most or len(given) <= most:
        return list(given)
    empty = [g for g in given if g.empty][:most]
    rest = [g for g in given if not g.empty]
    room = most - len(empty)
    return [*empty, *(rest[i * len(rest) // room] for i in range(room))]


__all__ = ["Case", "Outcome", "module_cases", "op_cases", "run"]
