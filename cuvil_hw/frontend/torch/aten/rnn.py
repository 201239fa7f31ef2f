"""ATen converters of recurrent layers: loops over time, products with the inputs made once for all steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from xdsl.ir import SSAValue

from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.emitter import PACKED, AtenEmitter, Value, converts
from cuvil_hw.frontend.torch.aten.shape import joined, part, permuted
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.loop import LoopBegin, LoopEnd
from cuvil_hw.ops.nn import Linear


@dataclass(frozen=True)
class Weights:
    """Of one direction of one layer: `x` (G·H, I), `h` (G·H, P), biases (G·H,) or None, `project` (P, H) or None."""

    x: Value
    h: Value
    x_bias: Value | None
    h_bias: Value | None
    project: Value | None


State = tuple[Value, ...]  # (h,) or (h, c), each (B, …)
Step = Callable[[AtenEmitter, Weights, Value, State], State]


def _dense(e: AtenEmitter, x: Value, w: Value, b: Value | None) -> Value:
    return e.op(Linear(), x, w) if b is None else e.op(Linear(), x, w, b)


def _gates(e: AtenEmitter, v: Value, count: int) -> list[Value]:
    size = e.shape(v)[-1] // count
    return [part(e, v, len(e.shape(v)) - 1, i * size, size) for i in range(count)]


def _simple(activation: Op) -> Step:
    def step(e: AtenEmitter, w: Weights, x: Value, state: State) -> State:
        return (e.op(activation, e.op(ew.Add(), x, _dense(e, state[0], w.h, w.h_bias))),)

    return step


def _gru(e: AtenEmitter, w: Weights, x: Value, state: State) -> State:
    """Gates r, z, n; the reset gate multiplies the recurrent product with its bias."""
    (h,) = state
    xr, xz, xn = _gates(e, x, 3)
    hr, hz, hn = _gates(e, _dense(e, h, w.h, w.h_bias), 3)
    r = e.op(ew.Sigmoid(), e.op(ew.Add(), xr, hr))
    z = e.op(ew.Sigmoid(), e.op(ew.Add(), xz, hz))
    new = e.op(ew.Tanh(), e.op(ew.Add(), xn, e.op(ew.Mul(), r, hn)))
    return (e.op(ew.Add(), new, e.op(ew.Mul(), z, e.op(ew.Sub(), h, new))),)


def _lstm(e: AtenEmitter, w: Weights, x: Value, state: State) -> State:
    """Gates i, f, g, o."""
    h, c = state
    i, f, g, o = _gates(e, e.op(ew.Add(), x, _dense(e, h, w.h, w.h_bias)), 4)
    i, f, o = (e.op(ew.Sigmoid(), v) for v in (i, f, o))
    c = e.op(ew.Add(), e.op(ew.Mul(), f, c), e.op(ew.Mul(), i, e.op(ew.Tanh(), g)))
    h = e.op(ew.Mul(), o, e.op(ew.Tanh(), c))
    return (h if w.project is None else _dense(e, h, w.project, None)), c


def _direction(e: AtenEmitter, step: Step, w: Weights, x: Value, state: State, backward: bool) -> tuple[Value, State]:
    """x (T, B, I) → (T, B, P), and the last state."""
    steps, states = e.shape(x)[0], len(state)
    products = _dense(e, x, w.x, w.x_bias)
    begin, end = (edge(steps, states, (int(backward),)) for edge in (LoopBegin, LoopEnd))
    number, *inside = e.ops(begin, *state, products)
    state = step(e, w, inside[-1], tuple(inside[:-1]))
    *last, outputs = e.ops(end, number, *state, state[0])
    return outputs, tuple(last)


def _row(e: AtenEmitter, states: Value, i: int) -> Value:
    return e.reshape(part(e, states, 0, i, 1), e.shape(states)[1:])


def recurrent(
    e: AtenEmitter,
    step: Step,
    x: Value,
    initial: Sequence[Value],
    params: Sequence[Value],
    biases: bool,
    layers: int,
    train: bool,
    dropout: float,
    both: bool,
    batch_first: bool,
) -> list[Value]:
    """`initial`: one (layers · directions, B, …) for each part of the state; results: output and the last states."""
    if train and dropout:
        e.refuse("dropout between layers in training mode; call model.eval() first")
    x = permuted(e, x, (1, 0, 2)) if batch_first else x
    if not e.shape(x)[0]:
        e.refuse("a sequence without steps")
    directions = 2 if both else 1
    each = len(params) // (layers * directions)
    last: list[list[Value]] = [[] for _ in initial]
    for layer in range(layers):
        sides = []
        for d in range(directions):
            i = layer * directions + d
            wx, wh, *rest = params[i * each : (i + 1) * each]
            x_bias, h_bias = (rest[0], rest[1]) if biases else (None, None)
            weights = Weights(wx, wh, x_bias, h_bias, rest[2 * biases] if len(rest) > 2 * biases else None)
            state = tuple(_row(e, v, i) for v in initial)
            y, state = _direction(e, step, weights, x, state, d == 1)
            sides.append(y)
            for kept, value in zip(last, state, strict=True):
                kept.append(e.reshape(value, (1, *e.shape(value))))
        x = joined(e, sides, 2)
    return [permuted(e, x, (1, 0, 2)) if batch_first else x, *(joined(e, kept, 0) for kept in last)]


def _enter(target: str, step: Step) -> None:
    @converts(f"{target}.input")
    def convert(
        e: AtenEmitter,
        x: Value,
        initial: Value | Sequence[Value],
        params: Sequence[Value],
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        both: bool,
        batch_first: bool,
    ) -> list[Value]:
        states = [initial] if isinstance(initial, SSAValue | torch.Tensor) else initial  # LSTM has two
        return recurrent(e, step, x, states, params, biases, layers, train, dropout, both, batch_first)


_enter("lstm", _lstm)
_enter("gru", _gru)
_enter("rnn_tanh", _simple(ew.Tanh()))
_enter("rnn_relu", _simple(ew.Relu()))


@converts("lstm.data", "gru.data", "rnn_tanh.data", "rnn_relu.data")
def packed(e: AtenEmitter, *_: object) -> Value:
    e.refuse(PACKED)
