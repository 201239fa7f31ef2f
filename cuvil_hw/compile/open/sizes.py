"""`cuvil.compile` for open shapes: prove the shape rules, compile the listed sizes, keep the model for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.compile.open.independent import stands_alone
from cuvil_hw.errors import CuvilError
from cuvil_hw.extent.constraint import Compare
from cuvil_hw.extent.domain import Domain, Sizes
from cuvil_hw.extent.explore import Explored, explore, fitted, refusal
from cuvil_hw.extent.polynomial import symbol, whole
from cuvil_hw.extent.solve import Question, Unknown, check_possible
from cuvil_hw.frontend.shared.open_model import OpenModel
from cuvil_hw.ir.program import Program, evaluate
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.dynamic import DynamicExecutable
from cuvil_hw.runtime.open_program import UNKNOWN, OpenPort, OpenProgram
from cuvil_hw.runtime.split import axis_of

# program at some sizes → its artifact
Make = Callable[[Program], Artifact]
_HALVINGS = 10


def compile_open(
    model: OpenModel, make: Make, *, ahead_only: bool = False, interface: str | None = None
) -> DynamicExecutable:
    """Prove the shape rules and compile the listed sizes.

    `make`: compiles a program with fixed shapes. `ahead_only`: only listed sizes can run. Raises CuvilError if no sizes
    are possible, or if the model doesn't accept some allowed sizes; and what `make` raises.
    """
    domain = model.domain
    check_possible(domain)
    if ahead_only and (names := ", ".join(d.name for d in domain.dims if not d.sizes)):
        raise CuvilError(
            f"{model.name}: this device only runs what is compiled ahead; list sizes of {names}, as in "
            "cuvil.Dim(…, sizes=(1, 8))"
        )
    explored = explore(domain, model.look)
    looks = [(look.sizes, [kind.shape for _, kind in _program(model, explored, look.sizes).outputs])
             for look in explored.looks]  # fmt: skip
    extremes = list(_extremes(model, explored))
    looks += [(sizes, [kind.shape for _, kind in p.outputs]) for sizes, p in extremes]
    first = explored.looks[0]
    ahead = domain.listed(model.example or first.sizes)
    explored = _checked(model, explored, [*(look.sizes for look in explored.looks), *(s for s, _ in extremes), *ahead])
    shapes = fitted([shape for _, shape, _ in first.outputs], looks, domain)
    outputs = tuple(OpenPort(n, s, dtype) for (n, _, dtype), s in zip(first.outputs, shapes, strict=True))
    kinds = {n: kind.dtype for n, kind in _program(model, explored, first.sizes).inputs}
    program = OpenProgram(
        model.name,
        domain,
        tuple(OpenPort(n, s, kinds[n]) for n, s in model.inputs.items() if n in kinds),
        outputs,
        explored.proven,
        explored.note,
        _batch(model, explored, outputs, ahead),
        first.text,
    )

    def compiler(sizes: Sizes) -> Artifact:
        made = _program(model, explored, sizes) if model.plain is None else model.plain(sizes)
        _check_outputs(made, outputs, sizes, domain)
        return make(made)

    artifacts = {}
    for sizes in ahead:
        try:
            artifacts[domain.key(sizes)] = compiler(sizes)
        except CuvilError as e:
            e.add_note(f"while compiling {model.name} for {domain.key(sizes)}")
            raise
    return DynamicExecutable(program, artifacts, interface, None if ahead_only else compiler)


def _program(model: OpenModel, explored: Explored, sizes: Sizes) -> Program:
    """The level1 program for sizes of the domain. Raises CuvilError."""
    look = explored.region(sizes)
    if look is None:
        look = model.look(sizes)
    return model.program(sizes, look.source)


def _checked(model: OpenModel, explored: Explored, at: Sequence[Sizes]) -> Explored:
    """`explored`, marked as unproven if a program made from it differs from one imported with plain numbers: Python
    code may behave differently for plain numbers, as in isinstance(n, int). Raises CuvilError."""
    seen: list[Sizes] = []
    for sizes in at if model.plain is not None and explored.proven else ():
        if sizes in seen:
            continue
        seen.append(sizes)
        assert model.plain is not None
        if not equal_programs(_program(model, explored, sizes), model.plain(sizes)):
            why = "with plain numbers the model computes something else than with open sizes"
            return replace(explored, proven=False, note=f"at {model.domain.key(sizes)}, {why}; the numbers count")
    return explored


def equal_programs(a: Program, b: Program) -> bool:
    """Whether the texts are equal, or else the results for random inputs, within float32's rounding."""
    if a.text() == b.text() or [kind for _, kind in a.outputs] != [kind for _, kind in b.outputs]:
        return [kind for _, kind in a.outputs] == [kind for _, kind in b.outputs]
    rng = np.random.default_rng(0)
    arrays = []
    for _, kind in a.inputs:
        whole_numbers = kind.dtype not in ("f32", "f64")
        values = rng.integers(0, 2, kind.shape) if whole_numbers else rng.standard_normal(kind.shape)
        arrays.append(np.asarray(values, dtypes.to_numpy(kind.dtype)))
    made = (evaluate(p, arrays) for p in (a, b))
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-4, equal_nan=True) for x, y in zip(*made, strict=True))


def _check_outputs(program: Program, outputs: Sequence[OpenPort], sizes: Sizes, domain: Domain) -> None:
    """Raises CuvilError (a bug in Cuvil) if the program's outputs aren't those that were predicted."""
    for port, (name, kind) in zip(outputs, program.outputs, strict=True):
        expected = [whole(e) for e in port.shape]
        wrong = len(expected) != kind.rank or any(
            UNKNOWN not in e.symbols and e.value(sizes) != n for e, n in zip(expected, kind.shape, strict=False)
        )
        if wrong:
            raise CuvilError(
                f"{program.name}: at {domain.key(sizes)}, output {name} has shape {kind.shape}, {port} was "
                "predicted; please report it, and compile with fixed shapes"
            )


def _extremes(model: OpenModel, explored: Explored) -> Iterator[tuple[Sizes, Program]]:
    """Import the model at the smallest and largest size of each dimension, to find failures that aren't shape rules,
    such as a position table that is too short. Raises CuvilError."""
    seen = [look.sizes for look in explored.looks]
    for dim in model.domain.dims:
        for largest in (False, True):
            sizes = _extreme(model.domain, dim.name, largest)
            if sizes is None or sizes in seen:
                continue
            seen.append(sizes)
            try:
                yield sizes, _program(model, explored, sizes)
            except CuvilError as e:
                good = next((look.sizes for look in explored.looks), None)
                raise refusal(model.domain, sizes, e, _border(model, explored, dim.name, sizes, good)) from e


def _extreme(domain: Domain, name: str, largest: bool) -> Sizes | None:
    """Allowed sizes with the smallest or largest possible of one dimension; None without upper bound."""
    dim = next(d for d in domain.dims if d.name == name)
    if largest and dim.max is None:
        return None
    question, low, high = Question(domain), dim.min, dim.max if dim.max is not None else dim.min
    best: Sizes | None = None
    try:
        best = question.find(Compare("==", symbol(name), whole(high if largest else low)))
        while best is None and dim.max is not None and low < high:
            middle = (low + high + largest) // 2
            found = question.find(Compare(">=" if largest else "<=", symbol(name), whole(middle)))
            if found is None:
                low, high = (low, middle - 1) if largest else (middle + 1, high)
            elif low == high - 1 or found[name] in (low, high):
                return found
            else:
                low, high = (found[name], high) if largest else (low, found[name])
    except Unknown:
        return None
    return best


def _border(model: OpenModel, explored: Explored, name: str, bad: Sizes, good: Sizes | None) -> str:
    """Up to which size the model works, in words, found by bisection."""
    if good is None or any(bad[n] != v and n != name for n, v in good.items() if model.domain.refusal({**bad, n: v})):
        return ""
    low, high = good[name], bad[name]
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        sizes = {**good, name: middle}
        if middle in (low, high) or model.domain.refusal(sizes) is not None:
            break
        try:
            _program(model, explored, sizes)
            low = middle
        except CuvilError:
            high = middle
    return f"it takes {name} = {low}, not {high}" if abs(high - low) == 1 else f"it takes {name} = {low}"


def _batch(
    model: OpenModel, explored: Explored, outputs: Sequence[OpenPort], ahead: Sequence[Sizes]
) -> tuple[str, ...]:
    """Dimensions along which rows are independent, at all sizes compiled ahead."""
    if not explored.proven:
        return ()
    ports = [OpenPort(n, s, "") for n, s in model.inputs.items()]
    found = []
    for dim in model.domain.dims:
        elsewhere = [p for p in (*ports, *outputs) if sum(dim.name in whole(e).symbols for e in p.shape) > 1]
        ins = {p.name: a for p in ports if (a := axis_of(p, dim.name)) is not None}
        outs = {p.name: a for p in outputs if (a := axis_of(p, dim.name)) is not None}
        others = {model.domain.key(s | {dim.name: 0}): s for s in map(dict, ahead)}
        if elsewhere or len(outs) != len(outputs):
            continue
        if all(_alone_at(model, explored, s, dim.name, ins, outs) for s in others.values()):
            found.append(dim.name)
    return tuple(found)


def _alone_at(
    model: OpenModel, explored: Explored, sizes: Sizes, dim: str, ins: Mapping[str, int], outs: Mapping[str, int]
) -> bool:
    """Proof at two sizes of the dimension, and that all other ways that the model goes are the same program."""
    found: list[Program] = []
    wanted = {look.sizes[dim] for look in explored.looks} | {2, 3, sizes[dim]}
    for size in sorted(wanted):
        at = {**sizes, dim: size}
        if model.domain.refusal(at) is None and size:
            found.append(_program(model, explored, at))
    several = [p for p in found if all(dict(p.inputs)[n].shape[a] > 1 for n, a in ins.items())]
    if len(several) < 2:
        return False
    first = several[0]
    return all(stands_alone(first, p, ins, outs) for p in found if p is not first)
