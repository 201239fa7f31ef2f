"""Writes in place become values: `x.add_(y)` → `x = x.add(y)`, writes through slices and other views too.

torch does the same by tracing the model a second time, which takes as long as the first. Here the graph is rewritten by
the storages that its fake tensors share: after a write, the tensor that owns the storage has a new value, and views of
it are taken again where they are used. What isn't plain, such as a write into an input, is left to torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten
_DROPOUTS = frozenset("alpha_dropout dropout feature_alpha_dropout feature_dropout".split())
_SAME = _DROPOUTS | frozenset("alias contiguous detach detach_ lift_fresh to type_as".split())
_RESHAPES = frozenset("_unsafe_view flatten reshape reshape_as squeeze unflatten unsqueeze view view_as".split())


class _NotPlain(Exception):
    """What only torch's own way takes."""


def functional(exported: ExportedProgram) -> ExportedProgram | None:
    """The program without writes in place; None where it has none, or one that isn't plain."""
    writes = [n for n in exported.graph.nodes if _writes(n)]
    if not writes:
        return None
    try:
        values = _Values(exported, writes)
        values.run()
    except _NotPlain:
        return None
    graph_module = GraphModule(exported.graph_module, values.graph)
    graph_module.meta.update(exported.graph_module.meta)
    signature = exported.graph_signature
    outputs = [replace(s, arg=_renamed(s.arg, values.names)) for s in signature.output_specs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch about its own tree specs, which it copies
        return exported._update(graph_module, replace(signature, output_specs=outputs))


def _writes(node: Node) -> bool:
    """Whether a node writes into an argument. `detach_` only says that no gradient is wanted."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target is aten.detach_.default:
        return False
    return any(a.alias_info is not None and a.alias_info.is_write for a in node.target._schema.arguments)


def _without_write(target: torch._ops.OpOverload[Any, Any]) -> torch._ops.OpOverload[Any, Any]:
    """The overload that gives as a value what `target` writes. Its name may be another: that of `pow_.Scalar` is
    `pow.Tensor_Scalar`, and `pow.Scalar` takes the number first. Raises _NotPlain where there is none."""
    name = target._schema.name.removeprefix("aten::")
    packet = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    for overload in packet.overloads() if packet is not None else ():
        plain: torch._ops.OpOverload[Any, Any] = getattr(packet, overload)
        if len(plain._schema.returns) == 1 and _kinds(plain) == _kinds(target):
            return plain
    raise _NotPlain


def _kinds(target: torch._ops.OpOverload[Any, Any]) -> list[tuple[str, str]]:
    """Names and types of the arguments; the first has several names."""
    return [(a.name if i else "", str(a.type)) for i, a in enumerate(target._schema.arguments)]


def _renamed(arg: Any, names: Mapping[str, str]) -> Any:
    return replace(arg, name=names.get(arg.name, arg.name)) if hasattr(arg, "name") else arg


def _storages(value: Any) -> set[int]:
    if isinstance(value, torch.Tensor):
        return {int(value.untyped_storage()._cdata)}
    return set().union(*map(_storages, value)) if isinstance(value, list | tuple) else set()


def _drops_nothing(node: Node) -> bool:
    """Whether a dropout gives its operand itself. Its fake tensor is another's: torch forgets that."""
    if not isinstance(node.target, torch._ops.OpOverload) or len(node.args) != 3:
        return False
    return node.target._schema.name.removeprefix("aten::") in _DROPOUTS and not (node.args[1] and node.args[2])


@dataclass
class _Values:
    """The rewritten graph. `made`: for each old node the new one, and how many writes its storage had seen by then."""

    exported: ExportedProgram
    writes: list[Node]
    graph: Graph = field(default_factory=Graph)
    made: dict[Node, tuple[Node, int]] = field(default_factory=dict)
    owners: dict[int, Node] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Raises _NotPlain."""
        for node in self.exported.graph.nodes:
            if _drops_nothing(node):
                self.joined.update(dict.fromkeys(_storages(_val(node)), min(self._where(_first(node)))))
        self.counts = {s: 0 for n in self.writes for s in self._where(_first(n))}
        for node in self.exported.graph.nodes:
            for s in self._where(node) if isinstance(_val(node), torch.Tensor) else ():
                self.owners.setdefault(s, node)
            if _writes(node):
                self._write(node)
            else:
                self.made[node] = (self._copy(node), self._count(node))
            if node.op == "placeholder":
                self.made[node][0].name = node.name  # a graph names no node like a builtin, such as `input`
        specs = self.exported.graph_signature.output_specs
        end = self.exported.graph.output_node()
        for spec, old in zip(specs, end.args[0], strict=True):
            if isinstance(old, Node):
                self.names[str(spec.arg.name)] = self._now(old).name

    def _where(self, node: Node) -> set[int]:
        """The storages of a node's tensors."""
        return {self.joined.get(s, s) for s in _storages(_val(node))}

    def _count(self, node: Node) -> int:
        """How many writes a node's storages have seen."""
        return sum(self.counts.get(s, 0) for s in self._where(node))

    def _copy(self, node: Node) -> Node:
        return self.graph.node_copy(node, self._now)

    def _now(self, node: Node) -> Node:
        """The value of an old node as it is after all writes so far; a view is taken again."""
        made, count = self.made[node]
        if count != self._count(node):
            made = self._now(_first(node)) if _writes(node) else self._copy(node)
            self.made[node] = (made, self._count(node))
        return made

    def _write(self, node: Node) -> None:
        target, into = node.target, _first(node)
        assert isinstance(target, torch._ops.OpOverload)
        if torch.Tag.inplace_view in target.tags:
            raise _NotPlain
        plain = _without_write(target)
        kept = _val(into)
        if self._where(node) != self._where(into):
            raise _NotPlain  # fake tensors that weren't made together
        args = [torch.fx.node.map_arg(a, self._now) for a in node.args]
        value = self._call(
            node, plain, *args, **{k: torch.fx.node.map_arg(a, self._now) for k, a in node.kwargs.items()}
        )
        if _val(value).dtype != kept.dtype:
            value = self._call(node, aten.to.dtype, value, kept.dtype)
        if _val(value).shape != kept.shape:
            value = self._call(node, aten.expand.default, value, list(kept.shape))
        self._store(node, into, value)
        self.made[node] = (value, self._count(node))

    def _store(self, write: Node, into: Node, value: Node) -> None:
        """Make `value` that of `into`, and of what it is a view of."""
        (storage,) = self._where(into)
        owner, chain = self.owners[storage], [into]
        whole = _val(owner)
        if owner.op != "call_function" or whole.numel() * whole.element_size() != whole.untyped_storage().nbytes():
            raise _NotPlain
        while chain[-1] is not owner:
            chain.append(_first(chain[-1]))
            if self._where(chain[-1]) != {storage}:
                raise _NotPlain
        before = {n: self._now(n) for n in chain}
        values = [value]
        for view, source in pairwise(chain):
            values.append(self._put(write, view, before[source], values[-1]))
        self.counts[storage] += 1
        for node, new in zip(chain, values, strict=True):
            self.made[node] = (new, self._count(node))

    def _put(self, write: Node, view: Node, source: Node, value: Node) -> Node:
        """`source` with `value` where `view`, taken of it, looks. Raises _NotPlain."""
        if _writes(view):
            return value
        if not isinstance(view.target, torch._ops.OpOverload):
            raise _NotPlain
        name, old = view.target._schema.name.removeprefix("aten::"), _val(source)
        if _val(view).dtype != old.dtype or len(view.all_input_nodes) > 1:
            raise _NotPlain  # bits read as another type, or a place that a value decides
        schema = view.target._schema.arguments[1:]
        rest = [*view.args[1:], *(view.kwargs.get(a.name, a.default_value) for a in schema[len(view.args) - 1 :])]
        if name in _SAME:
            return value
        if name in _RESHAPES:
            return self._call(write, aten.reshape.default, value, list(old.shape))
        if name == "select":
            return self._call(write, aten.select_scatter.default, source, value, *rest)
        if name == "slice":
            return self._call(write, aten.slice_scatter.default, source, value, *rest)
        if name == "transpose":
            return self._call(write, aten.transpose.int, value, *rest)
        if name == "permute":
            axes = [d % old.ndim for d in rest[0]]  # type: ignore[union-attr]
            return self._call(write, aten.permute.default, value, [axes.index(d) for d in range(old.ndim)])
        raise _NotPlain

    def _call(self, write: Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """A call at the place of `write`, with the fake tensor that it gives."""
        made = self.graph.call_function(target, tuple(args), kwargs)
        mode = _val(write).fake_mode
        with mode, torch.no_grad():
            result = target(*torch.fx.node.map_arg(args, _val), **torch.fx.node.map_arg(kwargs, _val))
        made.meta = {**write.meta, "val": result}
        return made


def _val(node: Any) -> Any:
    """A node's fake tensor. Raises _NotPlain where a size is open."""
    value = node.meta.get("val")
    if isinstance(value, FakeTensor) and not all(isinstance(n, int) for n in value.shape):
        raise _NotPlain
    return value


def _first(node: Node) -> Node:
    """What a view is taken of, or a write goes into."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Node):
        raise _NotPlain
    return first


__all__ = ["functional"]
