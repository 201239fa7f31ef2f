"""Converters of RNN, GRU and LSTM: loops over time; the products with the inputs are computed once for all steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.dynamic import dynamic_product
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import Converter, OnnxNode, Value
from cuvil_hw.frontend.onnx.shape import cut

Activation = Callable[[Value], Value]
Product = Callable[[Value, Value, Value | None], Value]  # x (B, K), weights (G·H, K), bias (G·H,)

_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
# alpha and beta where the node gives none, from the operators of the same names.
_PARAMETERS = {"LeakyRelu": (0.01, 0.0), "HardSigmoid": (0.2, 0.5), "Elu": (1.0, 0.0)}
_OPEN = ("ThresholdedRelu", "ScaledTanh", "Affine")  # runtimes disagree about what holds where the node gives none


def activation(n: OnnxNode, name: str, alpha: float, beta: float) -> Activation:
    plain = {
        "sigmoid": e.Sigmoid(),
        "tanh": e.Tanh(),
        "relu": e.Relu(),
        "softplus": e.Softplus(),
        "leakyrelu": e.LeakyRelu(alpha),
        "hardsigmoid": e.HardSigmoid(alpha, beta),
        "elu": e.Elu(alpha),
    }
    op = plain.get(name.lower())
    if op is not None:
        return lambda x: n.emit(op, x)
    match name.lower():
        case "affine":
            return lambda x: n.emit(e.Add(), n.emit(e.Mul(), x, n.like(alpha, x)), n.like(beta, x))
        case "scaledtanh":
            return lambda x: n.emit(e.Mul(), n.emit(e.Tanh(), n.emit(e.Mul(), x, n.like(beta, x))), n.like(alpha, x))
        case "softsign":
            return lambda x: n.emit(e.Div(), x, n.emit(e.Add(), n.emit(e.Abs(), x), n.like(1, x)))
        case "thresholdedrelu":
            return lambda x: n.emit(e.Where(), n.emit(e.Greater(), x, n.like(alpha, x)), x, n.like(0, x))
    n.refuse(f"activation {name!r}")


def activations(n: OnnxNode, directions: int) -> list[list[Activation]]:
    """Per direction, in the order of the gates."""
    kind = _kind(n)
    names = [v.decode() if isinstance(v, bytes) else v for v in n.attr("activations", ()) or ()]
    names = names or list(_DEFAULTS[kind]) * directions
    count = len(_DEFAULTS[kind])
    if len(names) != count * directions:
        n.refuse(f"{len(names)} activations for {directions} directions of {kind}")
    given = [list(n.attr(k, ()) or ()) for k in ("activation_alpha", "activation_beta")]
    made = []
    for name in names:
        defaults = next((v for k, v in _PARAMETERS.items() if k.lower() == name.lower()), (0.0, 0.0))
        takes = name.lower() in [k.lower() for k in (*_PARAMETERS, *_OPEN)]
        if name.lower() in [k.lower() for k in _OPEN] and not given[0]:
            n.refuse(f"activation {name} without activation_alpha: its default is not agreed upon")
        alpha, beta = (float(g.pop(0)) if g and takes else d for g, d in zip(given, defaults, strict=True))
        made.append(activation(n, name, alpha, beta))
    return [made[i : i + count] for i in range(0, len(made), count)]


def _kind(n: OnnxNode) -> str:
    return n.proto.op_type.removeprefix("DynamicQuantize")


@dataclass(frozen=True)
class Direction:
    """One direction. `r`: (G·H, H); `rb`: (G·H,) or None; `product`: x · rᵀ + b."""

    n: OnnxNode
    r: Value
    rb: Value | None
    peepholes: Value | None
    acts: list[Activation]
    hidden: int
    clip: float
    product: Product

    def gate(self, v: Value, g: int) -> Value:
        """Columns of gate `g` of (B, G·H)."""
        return cut(self.n, v, (0, g * self.hidden), (v.shape[0], self.hidden))

    def part(self, v: Value, g: int) -> Value:
        """Gate `g` of a vector (G·H,) or rows (G·H, H)."""
        starts = [g * self.hidden, *[0] * (v.rank - 1)]
        return cut(self.n, v, starts, [self.hidden, *v.shape[1:]])

    def recur(self, h: Value, r: Value | None = None, rb: Value | None = None) -> Value:
        """h · Rᵀ + Rb."""
        r, rb = (self.r, self.rb) if r is None else (r, rb)
        return self.product(h, r, rb)

    def add(self, a: Value, b: Value) -> Value:
        return self.n.emit(e.Add(), a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.n.binary(e.Mul(), a, b)

    def clipped(self, v: Value) -> Value:
        return self.n.emit(e.Clamp(-self.clip, self.clip), v) if self.clip else v

    def peep(self, v: Value, c: Value, g: int) -> Value:
        return v if self.peepholes is None else self.add(v, self.mul(c, self.part(self.peepholes, g)))

    def rnn(self, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
        return self.acts[0](self.clipped(self.add(x, self.recur(h)))), None

    def gru(self, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
        """Gates z, r, h; `linear_before_reset` multiplies by r after the recurrent product."""
        n = self.n
        f, g = self.acts
        if n.integer("linear_before_reset", 0):
            product = self.recur(h)
            z, r = (f(self.clipped(self.add(self.gate(x, i), self.gate(product, i)))) for i in (0, 1))
            new = self.mul(r, self.gate(product, 2))
        else:
            rows = [self.part(self.r, i) for i in range(3)]
            bias = [self.part(self.rb, i) if self.rb is not None else None for i in range(3)]
            z, r = (f(self.clipped(self.add(self.gate(x, i), self.recur(h, rows[i], bias[i])))) for i in (0, 1))
            new = self.recur(self.mul(r, h), rows[2], bias[2])
        new = g(self.clipped(self.add(self.gate(x, 2), new)))
        kept = n.emit(e.Sub(), n.like(1, z), z)
        return self.add(self.mul(kept, new), self.mul(z, h)), None

    def lstm(self, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
        """Gates i, o, f, c; peepholes i, o, f."""
        assert c is not None
        f, g, last = self.acts
        both = self.add(x, self.recur(h))
        i = f(self.clipped(self.peep(self.gate(both, 0), c, 0)))
        if self.n.integer("input_forget", 0):
            forget = self.n.emit(e.Sub(), self.n.like(1, i), i)
        else:
            forget = f(self.clipped(self.peep(self.gate(both, 2), c, 2)))
        c = self.add(self.mul(forget, c), self.mul(i, g(self.clipped(self.gate(both, 3)))))
        o = f(self.clipped(self.peep(self.gate(both, 1), c, 1)))
        return self.mul(o, last(c)), c


def _product(n: OnnxNode, quantized: int | None, d: int) -> Product:
    """The product with the weights of direction `d`.

    `quantized`: position of the operand with the scales of the weights (zero points follow it); then both sides are
    integers, x quantized by the range of all its rows.
    """

    def plain(x: Value, w: Value, bias: Value | None) -> Value:
        return n.emit(e.Linear(), x, w, bias) if bias is not None else n.emit(e.Linear(), x, w)

    if quantized is None:
        return plain
    scale, zero = (_row(n, n[i], d) for i in (quantized, quantized + 1))

    def dynamic(x: Value, w: Value, bias: Value | None) -> Value:
        return dynamic_product(
            n, x, n.transpose(w, (1, 0)), n.reshape(scale, (scale.type.size,)), n.reshape(zero, (zero.type.size,)), bias
        )

    return dynamic


def recurrent(n: OnnxNode, version: int) -> Sequence[Value]:
    """DynamicQuantizeLSTM has its weights transposed."""
    dynamic = n.proto.op_type != _kind(n)
    kind, w, r = _kind(n), *((n.transpose(v, (0, 2, 1)) if dynamic and v.rank == 3 else v) for v in (n[1], n[2]))
    batch_first = bool(n.integer("layout", 0))
    x = n.transpose(n[0], (1, 0, 2)) if batch_first else n[0]
    if x.rank != 3 or w.rank != 3 or r.rank != 3 or not x.shape[0]:
        n.refuse(f"x {x.shape}, w {w.shape}, r {r.shape}; three dimensions each, and a step at least")
    (steps, batch, features), (directions, wide, hidden) = x.shape, r.shape
    direction = n.attr("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional") or directions != 1 + (direction == "bidirectional"):
        n.refuse(f"direction {direction!r} with weights for {directions}")
    acts = activations(n, directions)
    mask = _mask(n, steps, batch)
    outputs: list[Value] = []
    last_h: list[Value] = []
    last_c: list[Value] = []
    for d in range(directions):
        bias = n.reshape(_row(n, n[3], d), (2 * wide,)) if n.has(3) else None
        halves = [cut(n, bias, (i * wide,), (wide,)) for i in (0, 1)] if bias is not None else [None, None]
        rows = n.reshape(x, (steps * batch, features))
        weights = n.reshape(_row(n, w, d), (wide, features))
        products = _product(n, 8 if dynamic else None, d)(rows, weights, halves[0])
        peepholes = n.reshape(_row(n, n[7], d), (3 * hidden,)) if n.has(7) else None
        layer = Direction(n, n.reshape(_row(n, r, d), (wide, hidden)), halves[1], peepholes, acts[d], hidden,
                          n.number("clip", 0.0), _product(n, 10 if dynamic else None, d))  # fmt: skip
        step = {"RNN": layer.rnn, "GRU": layer.gru, "LSTM": layer.lstm}[kind]
        states = [_state(n, i, d, (batch, hidden), x, batch_first) for i in ((5, 6) if kind == "LSTM" else (5,))]
        along, backward = (n.reshape(products, (steps, batch, wide)), *mask), int(direction == "reverse" or d == 1)
        number, *inside = n.emits(e.LoopBegin(steps, len(states), (backward,) * len(along)), *states, *along)
        h, c, at = inside[0], inside[1] if kind == "LSTM" else None, inside[len(states) :]
        new = [v for v in step(at[0], h, c) if v is not None]
        y = new[0]
        if mask:
            valid = n.expand(at[1], y.shape)
            y = n.emit(e.Where(), valid, y, n.like(0, y))
            new = [n.emit(e.Where(), valid, a, b) for a, b in zip(new, inside, strict=False)]
        *last, ys = n.emits(e.LoopEnd(steps, len(states), (backward,)), number, *new, y)
        outputs.append(n.reshape(ys, (steps, 1, batch, hidden)))
        for kept, value in zip((last_h, last_c), last, strict=False):
            kept.append(n.reshape(value, (1, batch, hidden)))
    results = [_join(n, outputs, 1), _join(n, last_h, 0), *([_join(n, last_c, 0)] if last_c else [])]
    if batch_first:
        results = [n.transpose(results[0], (2, 0, 1, 3)), *(n.transpose(v, (1, 0, 2)) for v in results[1:])]
    return results


def _join(n: OnnxNode, values: Sequence[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else n.emit(e.Concat(axis), *values)


def _row(n: OnnxNode, v: Value, d: int) -> Value:
    return cut(n, v, [d, *[0] * (v.rank - 1)], [1, *v.shape[1:]])


def _state(n: OnnxNode, i: int, d: int, shape: tuple[int, int], x: Value, batch_first: bool) -> Value:
    """Initial state of a direction, (B, H); zeros when absent."""
    if not n.has(i):
        return n.like(0, Value(x.type.with_shape(shape)))
    given = n.transpose(n[i], (1, 0, 2)) if batch_first else n[i]
    return n.reshape(_row(n, given, d), shape)


def _mask(n: OnnxNode, steps: int, batch: int) -> tuple[Value, ...]:
    """Per step, which samples are still within their sequence, (T, B, 1); nothing if all always are."""
    if not n.has(4) or (n[4].array is not None and (n[4].array >= steps).all()):
        return ()
    lengths = n.expand(n.reshape(cast_to(n, n[4], "i64"), (1, batch, 1)), (steps, batch, 1))
    numbers = np.broadcast_to(np.arange(steps)[:, None, None], (steps, batch, 1))
    return (n.emit(e.Less(), n.const(numbers, "i64"), lengths),)


RECURRENT: Mapping[str, Converter] = MappingProxyType(dict.fromkeys(_DEFAULTS, recurrent))
