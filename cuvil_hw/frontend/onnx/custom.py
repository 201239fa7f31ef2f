"""Operators of other domains that stand for registered ops."""

from __future__ import annotations

from typing import Any

from cuvil_hw.frontend.onnx.node import OnnxNode, Value
from cuvil_hw.ops.base import attributes
from cuvil_hw.ops.custom import CustomOp


def convert(n: OnnxNode, op: type[CustomOp], version: int) -> tuple[Value, ...]:
    """One node of the op's domain, which the model imports at `version`. Raises Refused."""
    if version != op.version:
        n.refuse(
            f"the model needs version {version} of it, version {op.version} is registered; register the op as it was "
            f"in version {version}, or export the model again"
        )
    kinds = dict(attributes(op))
    given = {a.name for a in n.proto.attribute}
    if unknown := sorted(given - set(kinds)):
        n.refuse(f"attribute {', '.join(unknown)} is not one of the registered op {op.mnemonic}")
    try:
        made = op(**{name: _value(kinds[name], n.attr(name)) for name in sorted(given)})
    except (TypeError, ValueError) as e:
        n.refuse(f"attributes don't fit the registered op {op.mnemonic}: {e}")
    return n.emitter.op(made, n.values, n.loc)


def _value(kind: str, value: Any) -> Any:
    match kind:
        case "ints" | "floats":
            return tuple((int if kind == "ints" else float)(v) for v in value)
        case "bool":
            return bool(value)
        case "int" | "float" | "str":
            return {"int": int, "float": float, "str": str}[kind](value)
    raise TypeError(f"no attribute is a {kind}")
