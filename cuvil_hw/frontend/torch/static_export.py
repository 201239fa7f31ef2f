"""An exported program with symbolic extents, at given sizes: the same graph with numbers in it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
)

from cuvil_hw.errors import CuvilError
from cuvil_hw.frontend.torch.errors import reason
from cuvil_hw.frontend.torch.importer import location

Number = Callable[[Any], int]
Extents = Callable[[torch.Tensor], "tuple[int, ...] | None"]
_SYMBOLIC = (SymIntArgument, SymFloatArgument, SymBoolArgument)


def static(
    exported: ExportedProgram, number: Number, weights: Mapping[str, torch.Tensor], extents: Extents | None = None
) -> ExportedProgram:
    """`exported` with static extents and no arithmetic on them left.

    Args:
        number: gives the value of an extent of an input (SymInt or int).
        weights: by name, instead of the program's own state.
        extents: what the extents of a fake tensor of `exported` are called; its static twin then says so, too.

    Raises CuvilError that names the layer where the sizes don't fit.
    """
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    copies: dict[torch.fx.Node, Any] = {}
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for node in exported.graph.nodes:
            values[node] = value = _value(node, values, number, exported)
            if node.op == "call_function" and (value is None or isinstance(value, bool | int | float)):
                copies[node] = value
                continue
            copies[node] = made = graph.node_copy(node, lambda n: copies[n])
            made.name, made.meta = node.name, dict(node.meta)  # copies of some names get numbers
            if node.op in ("placeholder", "call_function"):
                made.meta["val"] = value
                if extents is not None:
                    _name_extents(node.meta.get("val"), value, extents)
    known = {n.name: v for n, v in values.items() if n.op == "call_function"}
    return ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=_signature(exported.graph_signature, known),
        state_dict={name: weights.get(name, t) for name, t in exported.state_dict.items()},
        range_constraints={},
        module_call_graph=copy.copy(exported.module_call_graph),
        constants={n: weights.get(n, t) if isinstance(t, torch.Tensor) else t for n, t in exported.constants.items()},
    )


def _value(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any], number: Number, exported: ExportedProgram) -> Any:
    """A node's value, tensors being fake."""
    match node.op:
        case "placeholder":
            fake = node.meta.get("val")
            if not isinstance(fake, torch.Tensor):
                return number(fake) if isinstance(fake, torch.SymInt) else fake
            return torch.empty([number(e) for e in fake.shape], dtype=fake.dtype, device="cpu")
        case "get_attr":
            return getattr(exported.graph_module, str(node.target))
        case "call_function":
            args = torch.fx.node.map_arg(node.args, lambda n: values[n])
            named = torch.fx.node.map_arg(node.kwargs, lambda n: values[n])
            assert callable(node.target)
            try:
                return node.target(*args, **named)
            except Exception as e:  # torch's own shape rules, of any operator
                raise CuvilError(f"{node.target} at {location(node) or node.name}: {reason(e)}") from e
    return None


def _name_extents(before: Any, after: Any, extents: Extents) -> None:
    pairs = zip(before, after, strict=True) if isinstance(before, list | tuple) else [(before, after)]
    for old, new in pairs:
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            named = extents(old)
            if named is not None:
                new.extents = named  # type: ignore[attr-defined]


def _signature(signature: ExportGraphSignature, known: Mapping[str, Any]) -> ExportGraphSignature:
    """Outputs that were arithmetic on extents are constants now."""
    outputs = []
    for spec in signature.output_specs:
        arg = spec.arg
        if isinstance(arg, _SYMBOLIC):
            arg = ConstantArgument(name=arg.name, value=known.get(arg.name, getattr(arg, "as_int", None)))
        outputs.append(OutputSpec(kind=spec.kind, arg=arg, target=spec.target))
    return ExportGraphSignature(input_specs=list(signature.input_specs), output_specs=outputs)
