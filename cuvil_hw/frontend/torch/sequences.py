"""Packed sequences of torch.nn.utils.rnn while a model is traced.

A packed sequence holds, step by step, the rows of the sequences that are that long: what a mask (T, B) of the padded
tensor selects. Packing selects by that mask, padding puts the selected rows back (packed.py follows both), and
recurrent layers run over all steps of the padded tensor and keep each sequence's state where the mask is false.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

State = tuple[torch.Tensor, ...]  # (h,) or (h, c), each (B, …)
MOST_STEPS = 4096
_MASK = "_cuvil_mask"  # attribute of a packed sequence's batch sizes
_LAYERS = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)


class Sequences(TorchFunctionMode):
    """Takes packing and padding over while a model is traced, and packed sequences in the layers of `module`."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        for m in module.modules():
            for kind in _LAYERS:
                if isinstance(m, kind) and type(m).forward is kind.forward:
                    vars(m)["forward"] = types.MethodType(_forward, m)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "_pack_padded_sequence":
            return pack(*args)
        if name == "_pad_packed_sequence":
            return pad(*args)
        return func(*args, **(kwargs or {}))


def pack(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """x (T, B, …), or (B, T, …), `lengths` (B,) → rows and batch sizes. What torch asks of lengths is demanded."""
    x = x.transpose(0, 1) if batch_first else x
    steps = x.shape[0]
    if not 0 < steps <= MOST_STEPS:
        raise ValueError(f"packed sequences of {steps} steps; 1 to {MOST_STEPS} are unrolled")
    ordered = (lengths[:-1] >= lengths[1:]).all()
    inside = (lengths > 0).all() & (lengths <= steps).all()
    torch._assert_async(ordered & inside, f"pack_padded_sequence takes lengths from 1 to {steps}, the largest first")
    mask = torch.arange(steps)[:, None] < lengths[None, :]
    counts = mask.sum(1)
    sizes = counts[counts > 0]
    torch._check(sizes.shape[0] <= steps)  # type: ignore[no-untyped-call]
    setattr(sizes, _MASK, mask)
    return x[mask], sizes


def pad(
    data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, value: float, total: int | torch.SymInt
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows back in a padded tensor, and lengths (B,). `total`: steps; a SymInt stands for those of the longest
    sequence, which is demanded to be as long as what was packed."""
    mask = mask_of(sizes)
    steps = mask.shape[0]
    lengths = mask.sum(0)
    if not isinstance(total, int):
        way = f"pad_packed_sequence gives as many steps as the longest sequence has; give total_length={steps}"
        torch._assert_async(lengths.max() == steps, way)
        total = steps
    y = unpacked(data, mask, value)
    if total > steps:
        y = torch.cat([y, y.new_full((total - steps, *y.shape[1:]), value)])
    return (y.transpose(0, 1) if batch_first else y), lengths


def mask_of(sizes: torch.Tensor) -> torch.Tensor:
    """(T, B): which steps of which sequence are packed."""
    mask = getattr(sizes, _MASK, None)
    if not isinstance(mask, torch.Tensor):
        raise ValueError("a packed sequence that pack_padded_sequence in this model hasn't made; give padded tensors")
    return mask


def unpacked(data: torch.Tensor, mask: torch.Tensor, value: float = 0) -> torch.Tensor:
    """Rows at their places in (T, B, …), `value` elsewhere."""
    empty = torch.full((*mask.shape, *data.shape[1:]), value, dtype=data.dtype, device=data.device)
    return empty.index_put((mask,), data)


def _forward(self: Any, input: Any, hx: Any = None) -> Any:
    """Of a recurrent layer."""
    if not isinstance(input, PackedSequence):
        return type(self).forward(self, input, hx)
    data, sizes, order, back = input
    mask = mask_of(sizes)
    x, states, names = unpacked(data, mask), _initial(self, hx, order, mask, data), self.all_weights
    step, sides = _STEPS[self.mode], 2 if self.bidirectional else 1
    last: list[State] = []
    for layer in range(self.num_layers):
        outputs = []
        for side in range(sides):
            i = layer * sides + side
            y, state = _over_time(step, x, mask, tuple(s[i] for s in states), _weights(self, names[i]), side == 1)
            outputs.append(y)
            last.append(state)
        x = torch.cat(outputs, -1)
    final = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    hidden = self.permute_hidden(final if self.mode == "LSTM" else final[0], back)
    return PackedSequence(x[mask], sizes, order, back), hidden


def _initial(layer: Any, hx: Any, order: Any, mask: torch.Tensor, data: torch.Tensor) -> State:
    """For each part of the state (layers · directions, B, …)."""
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    sizes = [layer.proj_size or layer.hidden_size, *([layer.hidden_size] if layer.mode == "LSTM" else [])]
    expected = [(rows, mask.shape[1], size) for size in sizes]
    if hx is None:
        return tuple(torch.zeros(shape, dtype=data.dtype, device=data.device) for shape in expected)
    given = tuple(hx) if layer.mode == "LSTM" else (hx,)
    for state, shape in zip(given, expected, strict=True):
        layer.check_hidden_size(state, shape)
    permuted = layer.permute_hidden(hx, order)
    return tuple(permuted) if layer.mode == "LSTM" else (permuted,)


def _weights(layer: Any, weights: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """w_ih, w_hh, b_ih, b_hh and the projection, None for what a layer hasn't."""
    plain = 4 if layer.bias else 2
    biases = weights[2:4] if layer.bias else (None, None)
    return (*weights[:2], *biases, weights[plain] if len(weights) > plain else None)


Step = Callable[[torch.Tensor, State, tuple[Any, ...]], State]


def _over_time(
    step: Step, x: torch.Tensor, mask: torch.Tensor, state: State, weights: tuple[Any, ...], backward: bool
) -> tuple[torch.Tensor, State]:
    """x (T, B, I) → (T, B, H) and the state after each sequence's own last step, or first one backward."""
    products = F.linear(x, weights[0], weights[2])
    outputs, steps = [], range(x.shape[0])
    for t in reversed(steps) if backward else steps:
        live = mask[t][:, None]
        made = zip(step(products[t], state, weights), state, strict=True)
        state = tuple(torch.where(live, new, old) for new, old in made)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backward else outputs), state


def _lstm(x: torch.Tensor, state: State, weights: tuple[Any, ...]) -> State:
    i, f, g, o = (x + F.linear(state[0], weights[1], weights[3])).chunk(4, 1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h if weights[4] is None else F.linear(h, weights[4])), c


def _gru(x: torch.Tensor, state: State, weights: tuple[Any, ...]) -> State:
    (h,) = state
    xr, xz, xn = x.chunk(3, 1)
    hr, hz, hn = F.linear(h, weights[1], weights[3]).chunk(3, 1)
    new = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return (new + torch.sigmoid(xz + hz) * (h - new),)


def _simple(activation: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    return lambda x, state, weights: (activation(x + F.linear(state[0], weights[1], weights[3])),)


_STEPS: dict[str, Step] = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _simple(torch.tanh), "RNN_RELU": _simple(torch.relu)}

__all__ = ["Sequences", "mask_of", "pack", "pad"]
