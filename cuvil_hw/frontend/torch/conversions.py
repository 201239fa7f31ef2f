"""Weights that a forward converts, `self.layer.to(dtype)`: those of a program are what they are when it is compiled, so
that only a conversion that changes nothing can be traced."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from cuvil_hw.errors import CuvilError

Convert = Callable[[torch.Tensor], torch.Tensor]


def keep_types(module: torch.nn.Module) -> None:
    """Let conversions of this module, which the trace owns, pass where its weights are what they would become. (torch
    swaps the tensors while it traces, which fails for weights in use, also where nothing changes.)"""
    vars(module)["_apply"] = MethodType(_apply, module)


def _apply(module: torch.nn.Module, convert: Convert, recurse: bool = True) -> torch.nn.Module:
    """In place of Module._apply. Raises CuvilError for a conversion that changes something."""
    if convert.__module__ != torch.nn.Module.__module__:  # no conversion: a function of the model's own
        return type(module)._apply(module, convert, recurse)  # type: ignore[no-any-return, no-untyped-call]
    for name, tensor in (*module.named_parameters(recurse=recurse), *module.named_buffers(recurse=recurse)):
        made: Any = convert(tensor)
        if (made.dtype, made.device) != (tensor.dtype, tensor.device):
            kind = made.dtype if made.dtype != tensor.dtype else made.device
            raise CuvilError(
                f"the forward converts {name} of {type(module).__name__} from {tensor.dtype} on {tensor.device} to "
                f"{kind}, and weights can't change while a program runs; convert them before: module.to({kind})"
            )
    return module


vars(_apply)["__cuvil__"] = True  # a stand-in while a function is traced, no state of the module

__all__ = ["keep_types"]
