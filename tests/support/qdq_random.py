"""Random QDQ graphs whose scales are powers of two, with what they give in floats of 64 bits.

There every product, sum and mean is exact, ties of rounding are frequent, and half to even is what ONNX says of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from tests.support.qdq_graphs import Array, Graph

TYPES = ("int8", "uint8", "int8", "uint8", "int16", "uint16")
STEPS = ("conv", "conv", "gemm", "add", "sub", "three", "mul", "scaled", "shifted", "pool", "mean", "max", "concat",
         "resize", "requantize", "turn", "qlinear")  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A dequantized tensor: its name, its reals, its scale; `q`: the name, integers and zero point behind it."""

    name: str
    real: Array
    scale: float
    q: tuple[str, Array, int]


class Maker:
    """One graph and the integers of its outputs."""

    def __init__(self, seed: int, graph: Graph | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph() if graph is None else graph
        self.want: list[Array] = []
        self.trace: list[str] = []
        shape = (1, int(self.rng.integers(1, 5)), int(self.rng.integers(2, 7)), int(self.rng.integers(2, 7)))
        value = self.start(shape)
        for _ in range(int(self.rng.integers(1, 4))):
            value = self.step(value)
        self.graph.outputs.append(value.q[0])
        self.want.append(value.q[1])

    def power(self, lo: int, hi: int, shape: tuple[int, ...] = ()) -> Any:
        return np.exp2(self.rng.integers(lo, hi, shape)).astype(np.float64)

    def zero(self, dtype: str) -> int:
        info = np.iinfo(dtype)
        return int(self.rng.choice([0, 0, self.rng.integers(info.min, info.max + 1)]))

    def start(self, shape: tuple[int, ...]) -> Value:
        dtype = str(self.rng.choice(TYPES))
        info, zero, scale = np.iinfo(dtype), self.zero(dtype), float(self.power(-4, 3))
        q = self.rng.integers(info.min, info.max, shape, np.int64, endpoint=True)
        if self.rng.random() < 0.3:  # a float input, on and between the steps
            x = (self.rng.integers(-300, 300, shape) * scale / 2).astype(np.float32)
            name = f"x{len(self.graph.inputs)}"
            self.graph.inputs[name] = x
            return self.quantized(name, x.astype(np.float64), scale, zero, dtype)
        name = self.graph.input(q.astype(dtype), scale, zero)
        return Value(name, (q - zero) * scale, scale, (f"x{len(self.graph.inputs) - 1}", q.astype(dtype), zero))

    def quantized(self, name: str, real: Array, scale: float, zero: int, dtype: str) -> Value:
        info = np.iinfo(dtype)
        q = np.clip(np.rint(real / scale) + zero, info.min, info.max).astype(dtype)
        typed = np.asarray(zero, dtype)
        made = self.graph.op("QuantizeLinear", name, self.graph.const(np.float32(scale)), self.graph.const(typed))
        back = self.graph.real(made, scale, typed)
        return Value(back, (q.astype(np.int64) - zero) * scale, scale, (made, q, zero))

    def closed(self, name: str, real: Array) -> Value:
        """An activation perhaps, then a quantize with steps that make ties, and mostly no saturation."""
        g, rng = self.graph, self.rng
        match rng.integers(6):
            case 0:
                name, real = g.op("Relu", name), np.maximum(real, 0)
            case 1:
                low, high = -float(self.power(-2, 6)), float(self.power(-2, 6))
                name = g.op("Clip", name, g.const(np.float32(low)), g.const(np.float32(high)))
                real = np.clip(real, low, high)
            case 2:
                name, real = g.op("LeakyRelu", name, alpha=0.125), np.where(real < 0, real / 8, real)
        dtype = str(rng.choice(TYPES))
        top = max(float(np.abs(real).max()), 2.0**-6)
        fits = np.log2(top) - (np.iinfo(dtype).bits - 1)
        scale = float(np.exp2(np.ceil(fits) + rng.integers(-1, 4)))
        if rng.random() < 0.5:  # two to eight times the steps on which the numbers lie; what is large saturates
            finest = next((k for k in range(20, -40, -1) if not (real % 2.0**k).any()), 0)
            scale = 2.0 ** (finest + int(rng.integers(1, 4)))
        return self.quantized(name, real, scale, self.zero(dtype), dtype)

    def step(self, x: Value) -> Value:
        kind = str(self.rng.choice(STEPS))
        self.trace.append(kind)
        name, real = getattr(self, kind)(x)
        return self.closed(name, real) if kind != "qlinear" or name != x.name else x

    def weights(self, shape: tuple[int, ...], axis: int = 0) -> tuple[str, Array, Array]:
        q = self.rng.integers(-128, 128, shape).astype(np.int8)
        scale = self.power(-6, 2, (shape[axis],)) if self.rng.random() < 0.5 else self.power(-6, 2)
        spread = scale.reshape([-1 if d == axis else 1 for d in range(len(shape))]) if scale.ndim else scale
        return self.graph.weights(q, scale, axis), q * spread, scale

    def bias(self, count: int, scale: Array) -> tuple[list[str], Array]:
        """None, integers on the grid of the sums or on another, or floats."""
        g, rng = self.graph, self.rng
        match rng.integers(4):
            case 0:
                return [], np.zeros(count)
            case 1 | 2:
                grid = scale * float(self.power(-3, 4)) if rng.random() < 0.4 else scale
                q = rng.integers(-3000, 3000, count).astype(np.int32)
                return [g.real(g.const(q), grid, np.zeros(np.shape(grid), np.int32), 0)], q * grid
        b = (rng.integers(-50, 50, count) * self.power(-4, 8, (count,))).astype(np.float32)
        return [g.const(b)], b.astype(np.float64)

    def conv(self, x: Value) -> tuple[str, Array]:
        c, out = x.real.shape[1], int(self.rng.integers(1, 5))
        groups = c if self.rng.random() < 0.3 else 1
        out = c if groups > 1 else out
        k = int(self.rng.integers(1, min(3, *x.real.shape[2:]) + 1))
        stride, pad = int(self.rng.integers(1, 3)), int(self.rng.integers(2))
        w, real, scale = self.weights((out, c // groups, k, k))
        b, bias = self.bias(out, scale * x.scale)
        attributes = {"kernel_shape": [k, k], "strides": [stride] * 2, "pads": [pad] * 4, "group": groups}
        tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in (x.real, real, bias)]
        y = F.conv2d(*tensors, stride=stride, padding=pad, groups=groups).numpy()
        return self.graph.op("Conv", x.name, w, *b, **attributes), y

    def gemm(self, x: Value) -> tuple[str, Array]:
        flat, out = x.real.reshape(1, -1), int(self.rng.integers(1, 6))
        name = self.graph.op("Flatten", x.name)
        w, real, scale = self.weights((out, flat.shape[1]))
        b, bias = self.bias(out, scale * x.scale)
        shape = (1, out, 1, 1)
        y = self.graph.op("Reshape", self.graph.op("Gemm", name, w, *b, transB=1), self.graph.const(np.int64(shape)))
        return y, (flat @ real.T + bias).reshape(shape)

    def other(self, x: Value) -> Value:
        return self.start(x.real.shape) if self.rng.random() < 0.7 else x

    def add(self, x: Value) -> tuple[str, Array]:
        y = self.other(x)
        return self.graph.op("Add", x.name, y.name), x.real + y.real

    def sub(self, x: Value) -> tuple[str, Array]:
        y = self.other(x)
        return self.graph.op("Sub", x.name, y.name), x.real - y.real

    def three(self, x: Value) -> tuple[str, Array]:
        """x - y + z without a quantize between."""
        y, z = self.other(x), self.other(x)
        return self.graph.op("Add", z.name, self.graph.op("Sub", x.name, y.name)), x.real - y.real + z.real

    def mul(self, x: Value) -> tuple[str, Array]:
        y = self.other(x)
        return self.graph.op("Mul", x.name, y.name), x.real * y.real

    def constants(self, x: Value) -> Array:
        """One, per channel, spatial or for every element; of any sign, some zero."""
        _, c, h, w = x.real.shape
        shape = [(1,), (c, 1, 1), (h, w), (1, c, h, w)][int(self.rng.integers(4))]
        values = self.rng.choice([-3, -1, 0, 1, 1, 5], shape) * self.power(-6, 4, shape)
        return np.asarray(values, np.float32)

    def scaled(self, x: Value) -> tuple[str, Array]:
        c = self.constants(x)
        return self.graph.op("Mul", x.name, self.graph.const(c)), x.real * c

    def shifted(self, x: Value) -> tuple[str, Array]:
        c = self.constants(x)
        return self.graph.op("Add", self.graph.const(c), x.name), x.real + c

    def pool(self, x: Value) -> tuple[str, Array]:
        k = [int(v) for v in self.rng.integers(1, np.minimum(x.real.shape[2:], 3) + 1)]
        pads = [int(self.rng.integers(0, v // 2 + 1)) for v in k]
        counted = bool(self.rng.random() < 0.5)
        y = F.avg_pool2d(torch.from_numpy(x.real), k, 1, pads, count_include_pad=counted).numpy()
        attributes = {"kernel_shape": k, "pads": pads * 2, "count_include_pad": int(counted)}
        return self.graph.op("AveragePool", x.name, **attributes), y

    def mean(self, x: Value) -> tuple[str, Array]:
        return self.graph.op("GlobalAveragePool", x.name), x.real.mean((2, 3), keepdims=True)

    def max(self, x: Value) -> tuple[str, Array]:
        k = [int(v) for v in self.rng.integers(1, np.minimum(x.real.shape[2:], 3) + 1)]
        return self.graph.op("MaxPool", x.name, kernel_shape=k), F.max_pool2d(torch.from_numpy(x.real), k, 1).numpy()

    def concat(self, x: Value) -> tuple[str, Array]:
        y = self.other(x)
        return self.graph.op("Concat", x.name, y.name, axis=1), np.concatenate([x.real, y.real], 1)

    def resize(self, x: Value) -> tuple[str, Array]:
        scales = self.graph.const(np.float32([1, 1, 2, 2]))
        name = self.graph.op("Resize", x.name, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")
        return name, x.real.repeat(2, 2).repeat(2, 3)

    def requantize(self, x: Value) -> tuple[str, Array]:
        return x.name, x.real

    def turn(self, x: Value) -> tuple[str, Array]:
        return self.graph.op("Transpose", x.name, perm=[0, 2, 3, 1]), x.real.transpose(0, 2, 3, 1)

    def qlinear(self, x: Value) -> tuple[str, Array]:
        """QLinearConv of 1 x 1 and a dequantize of its result; nothing where the input isn't of 8 bits."""
        name, q, zero = x.q
        if q.dtype.itemsize > 1:
            return x.name, x.real
        g, out, c = self.graph, int(self.rng.integers(1, 4)), q.shape[1]
        w = self.rng.integers(-128, 128, (out, c, 1, 1)).astype(np.int8)
        scales, to = self.power(-6, 0, (out,)), float(self.power(0, 4))
        bias = self.rng.integers(-3000, 3000, out).astype(np.int32)
        to_zero = self.zero(q.dtype.name)
        operands = [np.float32(x.scale), np.asarray(zero, q.dtype), w, np.float32(scales), np.zeros(out, np.int8),
                    np.float32(to), np.asarray(to_zero, q.dtype), bias]  # fmt: skip
        made = g.op("QLinearConv", name, *map(g.const, operands))
        sums = np.einsum("nchw,oc->nohw", q.astype(np.int64) - zero, w[:, :, 0, 0].astype(np.int64))
        real = (sums + bias.reshape(1, -1, 1, 1)) * x.scale * scales.reshape(1, -1, 1, 1)
        info = np.iinfo(q.dtype)
        rounded = np.clip(np.rint(real / to) + to_zero, info.min, info.max)
        return g.real(made, to, np.asarray(to_zero, q.dtype)), (rounded - to_zero) * to
