"""A graph of ATen calls → level1 ops, node by node; graphs inside it (branches, bodies of loops) the same way."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from xdsl.ir import Operation, SSAValue

from cuvil_hw.frontend.shared.refusals import Refusals, Refused
from cuvil_hw.frontend.torch import packed, packed_nodes
from cuvil_hw.frontend.torch.aten import converters  # noqa: F401  (fills the table)
from cuvil_hw.frontend.torch.aten.bfloat import as_computed, computed, operands
from cuvil_hw.frontend.torch.aten.complex import COMPLEX, PARTS, Pair, held_types, is_complex
from cuvil_hw.frontend.torch.aten.complex import convert as convert_complex
from cuvil_hw.frontend.torch.aten.emitter import DTYPES, PACKED, TABLE, AtenEmitter, Value, from_data
from cuvil_hw.frontend.torch.aten.shape import permuted
from cuvil_hw.frontend.torch.errors import called, line_of
from cuvil_hw.ir import level1
from cuvil_hw.ops.base import ShapeError
from cuvil_hw.types import TensorType

# Nodes that a model may grow to when its loops are unrolled.
MOST_NODES = 200_000
# Converters of control flow, checks and Python numbers by name: functions (walk, *args).
CONTROL: dict[str, Callable[..., Any]] = {}
_AND = ("aten.bitwise_and.Tensor", "aten.__and__.Tensor", "aten.logical_and.default")
_OR = ("aten.bitwise_or.Tensor", "aten.__or__.Tensor", "aten.logical_or.default")
# Take an integer that a tensor holds.
COMPUTED = ("aten.select.int", "aten.select_copy.int", "aten.select_scatter.default")
STRIDED = ("aten.as_strided.default", "aten.as_strided_copy.default")  # read their operand's memory
# Weights stay integers, so that the layers that read them can become integer ones.
_STAYS = "quantized_decomposed.dequantize"
_CHECKS = ("aten._assert_async", "aten._assert_scalar")
POISON = object()  # the result of a node that was refused and has no type either
Number = bool | int | float


@dataclass
class Walk:
    """The conversion of one model. `max_trips`: of loops whose end depends on values; `loc`: of the node at hand."""

    emitter: AtenEmitter
    max_trips: int | None = None
    refusals: Refusals = field(default_factory=Refusals)
    loc: str = ""
    nodes: int = 0

    def inline(self, module: torch.fx.GraphModule, operands: Sequence[Any]) -> list[Any]:
        """The results of a graph on `operands` (values, constants, numbers), its ops appended here."""
        env: dict[torch.fx.Node, Any] = {}
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        env.update(zip(placeholders, operands, strict=True))
        end = module.graph.output_node()
        self.run(module, env, live(module.graph, {end}))
        results = torch.fx.node.map_arg(end.args[0], lambda n: env[n])
        return list(results) if isinstance(results, list | tuple) else [results]

    def run(self, module: torch.fx.GraphModule, env: dict[torch.fx.Node, Any], wanted: set[torch.fx.Node]) -> None:
        """Convert the nodes in `wanted`, whose placeholders are in `env`."""
        for node in module.graph.nodes:
            if node not in wanted:
                continue
            if node.op == "get_attr":
                env[node] = operator.attrgetter(str(node.target))(module)
            elif node.op == "call_function":
                self.nodes += 1
                env[node] = self._node(node, env)

    def _node(self, node: torch.fx.Node, env: dict[torch.fx.Node, Any]) -> Any:
        """Convert one node. A refused one yields zeros of its type, so that the nodes after it are looked at too."""
        target, e = node.target, self.emitter
        if target is operator.getitem:
            return self._getitem(node, env)
        label = str(target)
        self.loc = location(node) or self.loc
        args, found = _arguments(node, env)
        try:
            if self.nodes > MOST_NODES:
                raise Refused(f"loops unrolled make more than {MOST_NODES:,} nodes")
            e.loc, poisoned = named_location(node) or self.loc, any(v is POISON for v in found)
            args = packed.with_masks(e, label, args, fake(node))
            if not poisoned and packed_nodes.takes_part(e, label, args):
                return packed_nodes.convert(e, target, args, fake(node), fold)
            if label in CONTROL and not poisoned:
                return CONTROL[label](self, *args)
            if not poisoned and not any(isinstance(v, SSAValue | Pair) for v in _flat(found)):
                if isinstance(target, torch._ops.OpOverload) and not label.startswith(_STAYS):
                    return fold(target, args)
                if arithmetic(target):
                    return target(*args)  # type: ignore[operator]
            complex_numbers = is_complex(args) or is_complex(fake(node)) or (label in COMPLEX and label not in TABLE)
            if poisoned and _depends_on_data(fake(node)):
                return POISON  # what it came from is refused already
            if label == "aten._pack_padded_sequence.default":
                raise Refused(PACKED)
            e.results = computed(label, held_types(fake(node)))
            if label not in (COMPLEX if complex_numbers and label in COMPLEX else TABLE):
                if isinstance(target, torch._ops.OperatorBase):
                    raise Refused("no level1 form")
                raise Refused("of a number that is read from a tensor has no level1 form; compute it as a tensor")
            if poisoned:
                return _placeholder(node, e)
            if complex_numbers:
                return convert_complex(e, label, args)
            if label in STRIDED:
                args[0] = permuted(e, args[0], _memory_order(fake(node.all_input_nodes[0])))
            if label not in COMPUTED:
                _want_known(target, args)
            known = merged(label, args)
            if known is not None:
                return known
            made = TABLE[label](e, *operands(e, label, args, fake(node)))
            return as_computed(e, annotated(made, e.results), fake(node))
        except (Refused, ShapeError) as error:
            if not _empty(node):
                self.refusals.add(called(target), str(error), self.loc)
            return _placeholder(node, e)

    def _getitem(self, node: torch.fx.Node, env: dict[torch.fx.Node, Any]) -> Any:
        source, index = node.args
        assert isinstance(source, torch.fx.Node)
        assert isinstance(index, int)
        if env[source] is POISON:
            return POISON
        value = env[source][index]
        if value is None:
            reason = f"its result {index} (such as indices or statistics) is used"
            self.refusals.add(called(source.target), reason, location(node))
            return POISON
        return value


def annotated(made: Any, results: Sequence[TensorType]) -> Any:
    """`made` by a converter, the open extents of its results written at their operations."""
    for value, kind in zip(made if isinstance(made, list | tuple) else [made], results, strict=False):
        if isinstance(value, SSAValue) and isinstance(value.owner, Operation) and len(value.owner.results) == 1:
            level1.annotate_shapes(value.owner, [kind])
    return made


def merged(label: str, args: Sequence[Any]) -> Value | None:
    """`known and x`, `known or x` for one known bool: the other operand or the constant, so that a loop that a counter
    bounds has a bound. None for anything else."""
    if label not in _AND + _OR or len(args) != 2:
        return None
    for known, other in (args, args[::-1]):
        if isinstance(known, torch.Tensor) and known.dtype == torch.bool and known.numel() == 1:
            if bool(known) == (label in _OR):
                return known
            scalar = isinstance(other, torch.Tensor) or (isinstance(other, SSAValue) and _is_bool_scalar(other))
            return other if scalar and known.dim() == 0 else None
    return None


def _is_bool_scalar(value: SSAValue) -> bool:
    return level1.type_of(value) == TensorType((), "bool")


def arithmetic(target: Any) -> bool:
    """Python's own functions of numbers, as sizes are computed with."""
    return callable(target) and getattr(target, "__module__", "") in ("_operator", "math", "torch")


def fake(node: torch.fx.Node) -> Any:
    return node.meta.get("val")


def location(node: torch.fx.Node) -> str:
    """`model.py:12`, the user's innermost line; else the module's path, such as `features.0`."""
    if line := line_of(node):
        return line
    return module_of(node)


def named_location(node: torch.fx.Node) -> str:
    """`model.py:12 features.0`: the line and the module; what is known of them."""
    return " ".join(filter(None, (line_of(node), module_of(node))))


def module_of(node: torch.fx.Node) -> str:
    """The path of the innermost module that a node comes from; empty for the model itself."""
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return str(paths[-1]) if paths else ""


def live(graph: torch.fx.Graph, wanted: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """Nodes that those in `wanted` depend on, and checks of values; the rest (unused results) is dropped."""
    found: set[torch.fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        check = str(node.target).startswith(_CHECKS) and not packed.is_layout_check(node, CONTROL)
        if node in wanted or check or any(user in found for user in node.users):
            found.add(node)
    return found


def _want_known(target: Any, args: Sequence[Any]) -> None:
    """Raises Refused when a number of the call, such as an axis or an extent, is an element of a tensor."""
    if isinstance(target, torch._ops.OpOverload):
        for argument, value in zip(target._schema.arguments, args, strict=True):
            kind = str(argument.type)
            whole = kind.removeprefix("Optional[").startswith(("int", "List[int"))
            parts = value if isinstance(value, list | tuple) else [value]
            if whole and any(isinstance(v, SSAValue) for v in parts):
                raise Refused(f"its {argument.name} is an element of a tensor, known only at run time")


def _depends_on_data(value: Any) -> bool:
    """Whether a result is no tensor, or one whose shape values decide."""
    return not isinstance(value, torch.Tensor) or any(map(from_data, value.shape))


def _memory_order(operand: torch.Tensor) -> list[int]:
    """The permutation of axes that brings a tensor into the order of its memory. Raises Refused when the tensor isn't
    all of it."""
    shape, strides = operand.shape, operand.stride()
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], -shape[d]))
    expected = operand.numel()
    dense = not operand.storage_offset() and operand.untyped_storage().nbytes() == expected * operand.element_size()
    for d in order:
        expected //= max(shape[d], 1)
        dense &= shape[d] == 1 or strides[d] == expected
    if not dense:
        raise Refused(
            "reads by strides the memory of a tensor that is part of another, which compiled tensors don't have; take "
            "x.clone() first, or use slices, unfold or index_select"
        )
    return order


def _arguments(node: torch.fx.Node, env: Mapping[torch.fx.Node, Any]) -> tuple[list[Any], list[Any]]:
    """All arguments of the schema in order, with defaults; and the values among them that came from other nodes."""
    found: list[Any] = []

    def value(n: torch.fx.Node) -> Any:
        found.append(env[n])
        return env[n]

    given = [torch.fx.node.map_arg(a, value) for a in node.args]
    named = {k: torch.fx.node.map_arg(a, value) for k, a in node.kwargs.items()}
    if not isinstance(node.target, torch._ops.OpOverload):
        return [*given, *named.values()], found
    schema = node.target._schema.arguments
    rest = [named.get(a.name, a.default_value) for a in schema[len(given) :]]
    return [*given, *rest], found


def fold(target: torch._ops.OpOverload[Any, Any], args: Sequence[Any]) -> Any:
    """A node that depends on no input, computed by torch now."""
    schema = target._schema.arguments
    seeded = torch.Tag.nondeterministic_seeded in target.tags
    if seeded and _draws({s.name: a for a, s in zip(args, schema, strict=True)}):
        raise Refused("draws random numbers; pass them as an input")
    positional = [a for a, s in zip(args, schema, strict=True) if not s.kwarg_only]
    named = {s.name: a for a, s in zip(args, schema, strict=True) if s.kwarg_only}
    with torch.no_grad():
        try:
            result = target(*positional, **named)
        except (IndexError, RuntimeError, ValueError) as e:  # such as a table that ends before the positions do
            raise Refused(f"on constants, torch can't compute it: {str(e).splitlines()[0]}") from e
        # Uninitialised memory would make builds differ.
        return result.zero_() if "empty" in target._schema.name else result


def _draws(args: Mapping[str, Any]) -> bool:
    """Whether an operator that can draw random numbers does: not in eval mode, nor when nothing is dropped."""
    if any(args.get(name) is False for name in ("train", "training")):
        return False
    shares = [args.get(name) for name in ("dropout_p", "dropout", "p")]
    return not any(isinstance(share, Number) and share == 0 for share in shares)


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for v in values:
        yield from v if isinstance(v, list | tuple) else [v]


def _empty(node: torch.fx.Node) -> bool:
    """Whether no result has elements: then there is nothing to compute, whatever the op."""
    results = fake(node) if isinstance(fake(node), list | tuple) else [fake(node)]
    return bool(results) and all(
        isinstance(r, torch.Tensor) and r.dtype in DTYPES and any(type(n) is int and n == 0 for n in r.shape)
        for r in results
    )


def _placeholder(node: torch.fx.Node, e: AtenEmitter) -> Any:
    def zeros(f: Any) -> Any:
        try:
            if not isinstance(f, torch.Tensor):
                return POISON
            zero = e.splat(0, held_types(f)[0])
            return Pair(zero, zero) if f.dtype in PARTS else zero
        except Refused:
            return POISON

    value = fake(node)
    return [zeros(f) for f in value] if isinstance(value, list | tuple) else zeros(value)
