"""PyTorch models with open shapes: torch.export traces them with symbolic extents and records what the trace hangs on.

A module is traced once for each region of sizes that goes the same way; every size of the region is then made from
that trace. An ExportedProgram has one trace, and its own ranges.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from cuvil_hw.errors import CuvilError
from cuvil_hw.extent.constraint import Compare
from cuvil_hw.extent.dim import LARGEST, Dim
from cuvil_hw.extent.domain import Domain, Shape, Sizes, bind, concrete, solvable
from cuvil_hw.extent.explore import Look
from cuvil_hw.extent.polynomial import Polynomial, symbol, whole
from cuvil_hw.extent.size import Assumption, of, sized
from cuvil_hw.extent.spec import Given, domain_of, shape_of
from cuvil_hw.frontend.shared.open_model import OpenModel, refuse_state, symbolic_text
from cuvil_hw.frontend.torch.call import example_call
from cuvil_hw.frontend.torch.export import decomposed, export_module, for_inference, sized_export, to_program
from cuvil_hw.frontend.torch.static_export import static
from cuvil_hw.frontend.torch.symints import Unfollowed, expression, extent, honest_sizes, rules, symint
from cuvil_hw.frontend.torch.twin import twin_of
from cuvil_hw.ir.program import Program

Make = Callable[..., Program]  # (sizes, trace, with named extents or not)
# Of torch's own questions about strides: any answer gives the same numbers.
_ABOUT_STRIDES = ("contiguous", "channels_last", "strides", "non_overlapping")


@dataclass(frozen=True)
class Exported:
    """An exported program and what its symbols are called."""

    exported: ExportedProgram
    symbols: Mapping[Any, Polynomial]


def open_torch(
    module: torch.nn.Module | ExportedProgram,
    example_inputs: Any,
    shapes: Given,
    constraints: Sequence[Any] = (),
    name: str | None = None,
    max_trips: int | None = None,
) -> OpenModel:
    """A model with open shapes.

    Args:
        shapes: by name or position of an argument (nested ones: names joined by "_"), every extent or the open ones
            by axis. The shapes of an ExportedProgram are its own; `shapes` may give its dimensions other names and
            narrower bounds.

    Raises CuvilError.
    """
    if isinstance(module, ExportedProgram):
        return _open_exported(module, shapes, constraints, name, max_trips)
    if example_inputs is None:
        raise CuvilError(f"{type(module).__name__} is a torch module: example inputs are needed to trace it")
    args, named = example_call(module, example_inputs)
    examples = dict(_leaves(module, args, named))
    inputs = _shapes_of({n: tuple(t.shape) for n, t in examples.items()}, shapes)
    domain = domain_of(shapes, constraints)
    solvable(inputs, domain)
    frozen = _frozen_twin(module)
    weights = dict([*frozen.named_parameters(), *frozen.named_buffers()])
    title = name or type(module).__name__

    def look(sizes: Sizes) -> Look:
        exported = _export(module, args, named, inputs, sizes)
        return _look(_traced(exported, inputs, sizes), make, inputs, domain, sizes)

    def plain(sizes: Sizes) -> Program:
        given = pytree.tree_unflatten(_examples(args, named, inputs, sizes), pytree.tree_structure((args, named)))
        made = to_program(decomposed(export_module(frozen, *given)), title, module.forward, max_trips)
        refuse_state(made)
        return made

    make = _maker(weights, title, module.forward, max_trips)
    return OpenModel(title, inputs, domain, look, make, _of_examples(inputs, examples, domain), plain)


def _frozen_twin(module: torch.nn.Module) -> torch.nn.Module:
    """The module with copies of its weights: sizes compiled later get those of now, whatever becomes of the module."""
    twin: torch.nn.Module = twin_of(module)
    copies: dict[int, torch.Tensor] = {}  # of shared ones, too
    for m in twin.modules():
        for stored in ("_parameters", "_buffers"):
            tensors = vars(m)[stored]
            for t in tensors.values():
                if t is not None and id(t) not in copies:
                    copies[id(t)] = _frozen(t)
            vars(m)[stored] = {n: None if t is None else copies[id(t)] for n, t in tensors.items()}
    return twin


def _frozen(weight: torch.Tensor) -> torch.Tensor:
    copied = weight.detach().clone()
    return torch.nn.Parameter(copied, requires_grad=False) if isinstance(weight, torch.nn.Parameter) else copied


def _of_examples(inputs: Mapping[str, Shape], examples: Mapping[str, torch.Tensor], domain: Domain) -> Sizes | None:
    """Sizes of the examples; None when they aren't allowed ones."""
    try:
        return bind(inputs, {n: tuple(t.shape) for n, t in examples.items()}, domain)
    except CuvilError:
        return None


def _maker(weights: Mapping[str, torch.Tensor], title: str, forward: Any, max_trips: int | None) -> Make:
    """Programs at some sizes from a trace, with the extents named where that is wanted."""

    def program(sizes: Sizes, source: Exported, named: bool = False) -> Program:
        def number(e: Any) -> int:
            return expression(symint(e), source.symbols).value(sizes)

        def extents(fake: torch.Tensor) -> tuple[int, ...] | None:
            return _named_extents(fake, source.symbols, sizes)

        if any(n.op == "get_attr" for n in source.exported.graph.nodes):  # branches and loops: graphs of their own
            at_sizes = _traced_again(source.exported, number, weights)
        else:
            at_sizes = static(source.exported, number, weights, extents if named else None)
        made = to_program(at_sizes, title, forward, max_trips)
        refuse_state(made)
        return made

    return program


def _traced_again(
    exported: ExportedProgram, number: Callable[[Any], int], weights: Mapping[str, torch.Tensor]
) -> ExportedProgram:
    """At fixed sizes, by torch.export. Raises CuvilError."""
    shapes = {n: tuple(number(e) for e in t.shape) for n, t in _user_inputs(exported).items()}
    made = _functional(sized_export(exported, None, shapes))
    for stored in (made.state_dict, made.constants):
        stored.update({n: weights[n] for n in stored if n in weights})
    return made


def _named_extents(fake: torch.Tensor, symbols: Mapping[Any, Polynomial], sizes: Sizes) -> tuple[int, ...] | None:
    try:
        named = [extent(e, symbols) for e in fake.shape]
    except Unfollowed:
        return None
    return tuple(sized(whole(e).value(sizes), e) for e in named)


def _leaves(module: torch.nn.Module, args: Any, named: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors among the arguments, named as torch.export names its placeholders."""
    for root, value in _by_parameter(module, args, named).items():
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if isinstance(leaf, torch.Tensor):
                keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in path]
                yield "_".join([root, *keys]), leaf


def _by_parameter(module: torch.nn.Module, args: Any, named: Any) -> dict[str, Any]:
    """Arguments by name of forward's parameter; those of **kwargs by their own."""
    bound = inspect.signature(module.forward).bind(*args, **named)
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        found.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return found


def _shapes_of(numbers: Mapping[str, tuple[int, ...]], shapes: Given) -> dict[str, Shape]:
    """Open shapes by name; keys of `shapes` may be positions."""
    names = list(numbers)
    given: dict[str, Any] = {}
    for key, value in shapes.items():
        if isinstance(key, int) and 0 <= key < len(names):
            key = names[key]
        if key not in numbers:
            raise CuvilError(f"shapes= names {key!r}; the inputs are {', '.join(names)}")
        if key in given:
            raise CuvilError(f"shapes= gives input {key!r} by name and by position; give it once")
        given[str(key)] = value
    return {
        n: shape_of(given[n], shape, f"shapes[{n!r}]") if n in given else tuple(shape) for n, shape in numbers.items()
    }


def _export(
    module: torch.nn.Module, args: Any, named: Any, inputs: Mapping[str, Shape], sizes: Sizes
) -> ExportedProgram:
    """Traced at `sizes`, the open extents symbolic. Raises CuvilError."""

    def open_axes(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return None
        # torch never lets a size of 0 or 1 stand for others.
        opened = [d for d, e in enumerate(next(leaves)) if isinstance(e, Polynomial) and leaf.shape[d] > 1]
        return dict.fromkeys(opened, torch.export.Dim.AUTO) or None

    args, named = pytree.tree_unflatten(_examples(args, named, inputs, sizes), pytree.tree_structure((args, named)))
    leaves = iter(inputs.values())
    axes_args, axes_named = pytree.tree_map(open_axes, (args, named))
    with for_inference(module, args, named) as twin, warnings.catch_warnings(), honest_sizes():
        warnings.simplefilter("ignore")
        try:
            dynamic = _by_parameter(module, axes_args, axes_named)
            return _functional(torch.export.export(twin, args, named, dynamic_shapes=dynamic, strict=False))
        except Exception:  # tracing runs the user's code
            # With plain numbers: either it says what is wrong in numbers, or it works at these sizes alone.
            fixed = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, (args, named))
            return _functional(export_module(module, *fixed))


def _examples(args: Any, named: Any, inputs: Mapping[str, Shape], sizes: Sizes) -> list[Any]:
    """The leaves of the arguments, tensors at `sizes`."""
    shapes = iter(inputs.values())

    def example(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = concrete(next(shapes), sizes)
        # Never the caller's own: torch marks tensors as dynamic.
        return leaf.clone() if tuple(leaf.shape) == shape else torch.zeros(shape, dtype=leaf.dtype)

    return [example(leaf) for leaf in pytree.tree_leaves((args, named))]


def _functional(exported: ExportedProgram) -> ExportedProgram:
    """With symbolic extents decomposed and free of writes, so that what is asked of sizes there is recorded, too."""
    return decomposed(exported)


def _user_inputs(exported: ExportedProgram) -> dict[str, torch.Tensor]:
    """Fake tensors of the inputs, by name."""
    fakes = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    names = [
        s.arg.name
        for s in exported.graph_signature.input_specs
        if s.kind == InputKind.USER_INPUT and not isinstance(s.arg, ConstantArgument)
    ]
    return {n: fakes[n] for n in names if isinstance(fakes[n], torch.Tensor)}


def _traced(exported: ExportedProgram, inputs: Mapping[str, Shape], sizes: Sizes) -> tuple[Exported, list[Assumption]]:
    """The trace with its symbols named as ours, and everything that it hangs on."""
    symbols: dict[Any, Polynomial] = {}
    placed: list[tuple[Any, Polynomial, str]] = []
    fakes = _user_inputs(exported)
    if set(fakes) != set(inputs):
        raise CuvilError(f"inputs are called {', '.join(fakes)} in the trace, {', '.join(inputs)} were expected")
    for name, shape in inputs.items():
        for d, (fake, wanted) in enumerate(zip(fakes[name].shape, shape, strict=True)):
            found = symint(fake)
            if getattr(found, "is_symbol", False):
                symbols.setdefault(found, whole(wanted))
            placed.append((found, whole(wanted), f"input {name!r}, dimension {d}"))
    assumptions = [_equal(found, wanted, where, symbols, sizes) for found, wanted, where in placed]
    environment = next((t.fake_mode.shape_env for t in fakes.values() if t.fake_mode.shape_env), None)  # type: ignore[attr-defined]
    for found in list(symbols):
        bounds = exported.range_constraints.get(found)
        if bounds is not None:
            low, high = int(bounds.lower), (inf if bounds.upper > LARGEST else int(bounds.upper))
            assumptions.append(Assumption(Compare(">=", symbols[found], whole(low)), "torch tells 0, 1 and more apart"))
            if high != inf:
                assumptions.append(Assumption(Compare("<=", symbols[found], whole(int(high))), "torch.export"))
    for guard in environment.guards if environment is not None else ():
        assumptions += _followed(guard, environment, symbols, sizes)
    trivial = [g for g in assumptions if (g.rule.a - g.rule.b).constant is None]
    return Exported(exported, symbols), trivial


def _equal(found: Any, wanted: Polynomial, where: str, symbols: Mapping[Any, Polynomial], sizes: Sizes) -> Assumption:
    try:
        return Assumption(Compare("==", wanted, expression(found, symbols)), where)
    except Unfollowed:
        return Assumption(Compare("==", wanted, whole(wanted.value(sizes))), where)


def _followed(guard: Any, environment: Any, symbols: Mapping[Any, Polynomial], sizes: Sizes) -> list[Assumption]:
    place = getattr(guard, "sloc", None)
    if any(word in str(place) for word in _ABOUT_STRIDES):
        return []
    # Lines of torch's own say nothing to the user.
    where = str(getattr(place, "maybe_user_loc", None) or "").partition(" in ")[0]
    try:
        return [Assumption(r, where) for r in rules(environment.replace(guard.expr), symbols)]
    except Unfollowed:
        # Nothing is known about other sizes than these: they are a region of their own.
        names = frozenset().union(*(e.symbols for e in symbols.values()))
        return [Assumption(Compare("==", symbol(n), whole(sizes[n])), where) for n in sorted(names)]


def _output_extents(trace: Exported, sizes: Sizes) -> list[tuple[int, ...]]:
    """Extents of the model's tensor outputs, as torch knows them; what can't be followed as numbers."""
    exported = trace.exported
    fakes = {n.name: n.meta.get("val") for n in exported.graph.nodes}
    results = [s.arg.name for s in exported.graph_signature.output_specs if s.kind == OutputKind.USER_OUTPUT]
    found = []
    for name in results:
        if isinstance(fake := fakes.get(name), torch.Tensor):
            named = _named_extents(fake, trace.symbols, sizes)
            found.append(tuple(int(e) for e in fake.shape) if named is None else named)
    return found


def _look(
    traced: tuple[Exported, list[Assumption]], make: Make, inputs: Mapping[str, Shape], domain: Domain, sizes: Sizes
) -> Look:
    trace, assumptions = traced
    program = make(sizes, trace, True)
    named = _output_extents(trace, sizes)
    shapes = named if len(named) == len(program.outputs) else [kind.shape for _, kind in program.outputs]
    outputs = tuple(
        (n, tuple(map(of, shape)), kind.dtype) for (n, kind), shape in zip(program.outputs, shapes, strict=True)
    )
    return Look(sizes, tuple(assumptions), outputs, trace, symbolic_text(program, inputs, domain, sizes))


def _open_exported(
    exported: ExportedProgram, shapes: Given, constraints: Sequence[Any], name: str | None, max_trips: int | None
) -> OpenModel:
    own, dims = _own_shapes(exported)
    hints = {n: tuple(0 if isinstance(e, Polynomial) else e for e in s) for n, s in own.items()}
    inputs = _renamed(own, hints, shapes)
    used = frozenset().union(*(whole(e).symbols for shape in inputs.values() for e in shape))
    domain = domain_of(shapes, constraints, [d for d in dims.values() if d.name in used])
    solvable(inputs, domain)
    stored = {**exported.state_dict, **exported.constants}
    weights = {n: _frozen(t) for n, t in stored.items() if isinstance(t, torch.Tensor)}
    title = name or "model"

    def look(sizes: Sizes) -> Look:
        trace, assumptions = _traced(_functional(exported), inputs, sizes)
        # torch itself runs a program that was exported for "2 and more" with a batch of 1, too.
        kept = [g for g in assumptions if not (g.rule.op == ">=" and g.rule.b.constant == 2)]
        broken = next((g for g in kept if not g.rule.holds(sizes)), None)
        if broken is not None:
            raise CuvilError(f"the program was exported for {broken}; export it again for other sizes")
        return _look((trace, kept), make, inputs, domain, sizes)

    make = _maker(weights, title, None, max_trips)
    return OpenModel(title, inputs, domain, look, make)


def _own_shapes(exported: ExportedProgram) -> tuple[dict[str, Shape], dict[str, Dim]]:
    """Open shapes of the program's inputs, and a dimension for each symbol in them: called as the input and axis where
    it stands alone."""
    fakes = _user_inputs(exported)
    named: dict[Any, str] = {}
    for name, fake in fakes.items():
        for d, e in enumerate(fake.shape):
            if getattr(symint(e), "is_symbol", False):
                named.setdefault(symint(e), f"{name}_{d}")
    for fake in fakes.values():
        for e in fake.shape:
            for s in getattr(symint(e), "free_symbols", ()):
                named.setdefault(s, str(s))
    dims = {}
    for s, name in named.items():
        bounds = exported.range_constraints.get(s)
        low = int(bounds.lower) if bounds is not None else 0
        high = None if bounds is None or bounds.upper > LARGEST else int(bounds.upper)
        dims[name] = Dim(name, 1 if low == 2 else low, high)
    symbols = {s: symbol(n) for s, n in named.items()}
    try:
        return {n: tuple(extent(e, symbols) for e in fake.shape) for n, fake in fakes.items()}, dims
    except Unfollowed as e:
        raise CuvilError(f"the exported program has an input extent {e}, which can't be followed; export it with "
                         "plain dimensions") from e  # fmt: skip


def _renamed(own: Mapping[str, Shape], hints: Mapping[str, tuple[int, ...]], shapes: Given) -> dict[str, Shape]:
    """The program's shapes with the caller's names for its dimensions."""
    found = dict(own)
    for key, value in shapes.items():
        name = list(own)[key] if isinstance(key, int) and 0 <= key < len(own) else str(key)
        if name not in own:
            raise CuvilError(f"shapes= names {key!r}; the inputs are {', '.join(own)}")
        extents: Any = value.items() if isinstance(value, Mapping) else enumerate(value)  # type: ignore[arg-type]
        opened = {d: e for d, e in extents if not isinstance(e, int)}
        for d in opened:
            if not isinstance(d, int) or not 0 <= d < len(own[name]) or not isinstance(own[name][d], Polynomial):
                raise CuvilError(f"shapes[{name!r}]: axis {d} is not open in the exported program: {own[name]}")
        placed = shape_of(opened, hints[name], f"shapes[{name!r}]")
        both = enumerate(zip(placed, own[name], strict=True))
        found[name] = tuple(p if d in opened else o for d, (p, o) in both)
    return found
