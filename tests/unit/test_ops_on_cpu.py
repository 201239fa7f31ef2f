"""Every op that has loops, compiled for this processor, gives what its meaning says: many ops in one program each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.ir.program import Builder
from cuvil_hw.ops.base import Op
from cuvil_hw.types import TensorType
from tests.unit import cpu_runner
from tests.unit.op_checks import Array, sample
from tests.unit.test_ops_elementwise import BINARY, UNARY

Case = tuple[Op, Sequence[Array], Sequence[str]]
FLOATS = ("f16", "f32", "f64")
ALL = ("f32", "f64", "i8", "u8", "i5", "i20", "u32", "i64", "u64", "bool")


def case(op: Op, shapes: Sequence[Sequence[int]], dtype: str, special: bool = True) -> Case:
    rng = np.random.default_rng(len(str(op)))
    return op, [sample(rng, s, dtype, special) for s in shapes], [dtype] * len(shapes)


def reductions() -> list[Case]:
    cases = []
    for cls in (ops.ReduceSum, ops.ReduceProd, ops.ReduceMean, ops.ReduceMax, ops.ReduceMin):
        for axes in ((0,), (1, 2), (0, 2)):
            cases += [case(cls(axes, keep), [(3, 4, 5)], "f32", keep) for keep in (False, True)]
            if cls is not ops.ReduceMean:
                cases.append(case(cls(axes), [(3, 4, 5)], "i16"))
    for arg in (ops.ArgMax, ops.ArgMin):
        for last in (False, True):
            cases += [case(arg(1, last, last), [(3, 5, 2)], d) for d in ("f32", "i8", "u3")]
    return cases


def moves() -> list[Case]:
    rng = np.random.default_rng(0)
    indices = np.int64([[0, -1], [4, 2]])
    where = [sample(rng, (9,), "bool"), *(sample(rng, (9,), "f32", special=True) for _ in range(2))]
    return [
        case(ops.Reshape((4, 6)), [(2, 3, 4)], "f32"),
        case(ops.Transpose((2, 0, 1)), [(2, 3, 4)], "i8"),
        case(ops.Slice((1, 3), (2, 2), (1, -2)), [(3, 4)], "f32"),
        case(ops.Pad((1, 0, 2, 1), 7.0), [(3, 4)], "i8"),
        case(ops.Pad((1, 0, 2, 1), 0.0, "reflect"), [(3, 4)], "f32"),
        case(ops.Pad((1, 0, 2, 1), 0.0, "edge"), [(3, 4)], "f32"),
        case(ops.Concat(1), [(2, 3), (2, 1), (2, 0), (2, 2)], "f32"),
        case(ops.BroadcastTo((2, 3, 4)), [(3, 1)], "i5"),
        (ops.Gather(1), [sample(rng, (2, 5, 3), "f32"), indices], ["f32", "i64"]),
        (ops.Where(), where, ["bool", "f32", "f32"]),
    ]


def layers() -> list[Case]:
    rng = np.random.default_rng(1)
    x, w, q, k = (sample(rng, s, d) for s, d in (
        ((1, 4, 5, 6), "f32"), ((6, 2, 3, 2), "f32"), ((1, 4, 5, 6), "u8"), ((6, 2, 3, 2), "i8")))  # fmt: skip
    window = ((2, 1), (1, 0, 1, 1), (1, 2))
    pool = ((2, 3), *window)
    stats = [np.abs(sample(rng, (4,), "f32")) for _ in range(4)]
    odd = sample(rng, (1, 4, 5, 6), "f32", special=True)
    return [
        (ops.Conv(*window, 2), [x, w, sample(rng, (6,), "f32")], ["f32"] * 3),
        (ops.Conv(*window, 2, 7, (1, -2, 3, -4, 5, -6), "i24"), [q, k], ["u8", "i8"]),
        (ops.Linear(), [x, sample(rng, (3, 6), "f32")], ["f32"] * 2),
        (ops.MatMul(), [x, sample(rng, (6, 5), "f32")], ["f32"] * 2),
        (ops.MatMul(3, (1, 2), "i20"), [q, sample(rng, (6, 2), "i8")], ["u8", "i8"]),
        (ops.MaxPool(*pool), [odd], ["f32"]),
        (ops.MaxPool(*pool), [k.reshape(1, 4, 3, 6)], ["i8"]),
        (ops.SumPool(*pool, "i12", 3), [q], ["u8"]),
        (ops.AvgPool(*pool), [x], ["f32"]),
        (ops.AvgPool(*pool, True, (1, 0)), [x], ["f32"]),
        (ops.BatchNorm(), [x, *stats], ["f32"] * 5),
        (ops.Quantize((0.1, 0.2, 0.3, 0.4), (1,), "i5"), [odd], ["f32"]),
        (ops.Quantize((0.25,), (3,), "u4", zero_first=True), [odd], ["f32"]),
        (ops.Quantize((0.25,), (1 << 20,), "i24", zero_first=True), [odd], ["f32"]),
        (ops.Dequantize((0.5,), (1, 2, 3, 4)), [q], ["u8"]),
        (ops.Rescale((1 << 29, 3, 77, 1 << 30), 31, "i4", 128, 1), [q], ["u8"]),
        (ops.Lut(tuple(range(-128, 128)), "i8"), [q], ["u8"]),
    ]


GROUPS: dict[str, list[Case]] = {
    **{f"unary {d}": [case(op, [(40,)], d) for op, _, _ in UNARY] for d in FLOATS},
    "unary integers": [case(op, [(20,)], d) for op, integers, _ in UNARY for d in integers],
    **{f"binary {d}": [case(op, [(60,), (60,)], d) for op, names in BINARY if d in names] for d in FLOATS},
    "binary integers": [case(op, [(60,), (60,)], d) for op, names in BINARY for d in names if d not in FLOATS],
    "casts": [case(ops.Cast(to), [(15,)], d) for d in ALL for to in ALL],
    "moves": moves(),
    "reductions": reductions(),
    "layers": layers(),
}


@pytest.mark.needs("cc")
@pytest.mark.parametrize("name", GROUPS)
def test_compiled_ops_are_their_meaning(name: str) -> None:
    operands: list[tuple[Array, str]] = [
        o for _, arrays, names in GROUPS[name] for o in zip(arrays, names, strict=True)
    ]
    builder = Builder([(f"x{n}", TensorType(a.shape, d)) for n, (a, d) in enumerate(operands)])
    outputs: list[Any] = []
    taken = 0
    for op, arrays, _ in GROUPS[name]:
        outputs.append(builder.op(op, *[builder.input(taken + n) for n in range(len(arrays))]))
        taken += len(arrays)
    program = builder.finish([(f"y{n}", v) for n, v in enumerate(outputs)])
    cpu_runner.check(program, *[a for a, _ in operands], rtol=2e-3 if "f16" in name else 1e-5)
