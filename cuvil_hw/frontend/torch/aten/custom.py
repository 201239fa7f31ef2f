"""Operators of torch.library that stand for registered ops."""

from __future__ import annotations

from typing import Any

import torch

from cuvil_hw.frontend.shared.refusals import Refused
from cuvil_hw.frontend.torch.aten.emitter import TABLE, AtenEmitter, Converter, Result
from cuvil_hw.ops.base import attributes
from cuvil_hw.ops.custom import CustomOp, custom_ops

_entered: dict[str, type[CustomOp]] = {}


def enter() -> None:
    """Converters for all ops registered by now; those that are no longer registered go."""
    wanted = {name: op for op in custom_ops() for name in op.rules.torch}
    for name in [n for n in _entered if n not in wanted]:
        del TABLE[name], _entered[name]
    for name, op in wanted.items():
        TABLE[name] = _converter(name, op)
        _entered[name] = op


def _converter(name: str, op: type[CustomOp]) -> Converter:
    def convert(e: AtenEmitter, *args: Any) -> Result | tuple[Result, ...]:
        namespace, operator, overload = name.split(".")
        schema = getattr(getattr(getattr(torch.ops, namespace), operator), overload)._schema
        kinds = dict(attributes(op))
        operands, values = [], {}
        for argument, value in zip(schema.arguments, args, strict=True):
            if isinstance(argument.type, torch.TensorType):
                operands.append(value)
            elif argument.name in kinds and value is None:
                raise Refused(f"argument {argument.name} is None, which no attribute of a registered op can be")
            elif argument.name in kinds:
                values[argument.name] = tuple(value) if isinstance(value, list) else value
            else:
                raise Refused(f"argument {argument.name} is no attribute of the registered op {op.mnemonic}")
        results = e.builder.ops(op(**values), *map(e.ssa, operands), loc=e.loc)
        return results if len(results) > 1 else results[0]

    return convert
