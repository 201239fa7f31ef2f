"""Random level1 graphs: directed acyclic, of a few ops on odd shapes and odd widths, several in one program.

A graph is made by steps. A step draws an op and its operands from what there is, and gives up where they don't go
together. Every number that a step needs is drawn from the graph's seed, so a seed is a graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.ops.base import Op, ShapeError, evaluate, infer
from cuvil_hw.ops.shape import BroadcastTo
from cuvil_hw.types import TensorType
from tests.support import fpga_networks

Array = np.ndarray[Any, Any]
NATIVE = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
ODD = ("i1", "u1", "i2", "u2", "i3", "i4", "u4", "i5", "u7", "i9", "i12", "u12", "i17", "u24", "i31", "i33", "i48")
LARGEST = 300  # elements of a tensor
ROUGH = 2.0**-17  # of the largest number in a graph's floats: what orders of sums and libraries may differ by


class Skip(Exception):
    """This op doesn't go with these operands."""


@dataclass(frozen=True)
class Value(fpga_networks.Value):
    """A tensor of a graph, with what it holds for one random input. `exact`: every target must give its very bits; else
    its floats may differ by ROUGH · `peak`, the largest magnitude that led to it."""

    exact: bool = True
    peak: float = 0.0


@dataclass
class Graph(fpga_networks.Network):
    """A graph under construction. `floats`: float inputs and ops may occur. `zero_sized`: extents of 0 may."""

    floats: bool = False
    zero_sized: bool = False
    values: list[Value] = field(default_factory=list)

    # operands
    def pick(self, want: Callable[[Value], bool] = lambda v: True) -> Value:
        """One of the values, later ones more often."""
        found = [v for v in self.values if want(v)]
        if not found:
            raise Skip
        return found[-1] if self.chance(0.5) else self.rng.choice(found)

    def integer(self, want: Callable[[Value], bool] = lambda v: True) -> Value:
        return self.pick(lambda v: dtypes.is_int(v.type.dtype) and want(v))

    def real(self, want: Callable[[Value], bool] = lambda v: True) -> Value:
        return self.pick(lambda v: dtypes.is_float(v.type.dtype) and want(v))

    def sure(self, x: Value) -> Value:
        """x, when all of it is exact."""
        if not x.exact:
            raise Skip
        return x

    def const(self, shape: Sequence[int], dtype: str, bound: int | None = None, data: Array | None = None) -> Value:
        array = random_data(self.draw, tuple(shape), dtype) if data is None else data
        if bound is not None:
            array = np.clip(array, -bound if dtype[0] == "i" else 0, bound)
        array = np.asarray(array, dtypes.to_numpy(dtype))
        return Value(self.builder.const(array, dtype), TensorType(tuple(shape), dtype), array, True, peak_of(array))

    def like(self, x: Value) -> Value:
        """Another value of x's type: one that there is, x itself, or a constant, whole or spread."""
        same = [v for v in self.values if v.type == x.type]
        drawn = self.rng.random()
        if drawn < 0.5 and len(same) > 1:
            return self.rng.choice(same)
        if drawn < 0.6:
            return x
        if drawn < 0.8:
            return self.const(x.type.shape, x.type.dtype)
        shape = [n if self.chance(0.5) else 1 for n in x.type.shape]
        while shape and self.chance(0.4):
            del shape[0]
        return self.op(BroadcastTo(x.type.shape), self.const(shape, x.type.dtype))

    def axis(self, x: Value) -> int:
        if not x.type.rank:
            raise Skip
        return self.rng.randrange(x.type.rank)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # steps
    def op(self, op: Op, *operands: Value, exact: bool = True) -> Value:  # type: ignore[override]
        """Put `op`, of one result, into the graph. `exact`: it loses nothing itself. Raises Skip where it can't be."""
        try:
            (kind,) = infer(op, [v.type for v in operands])
            if kind.size > LARGEST or (not self.zero_sized and kind.size == 0):
                raise Skip
            sure = exact and all(v.exact for v in operands)
            if not sure and not dtypes.is_float(kind.dtype):
                raise Skip  # an integer made of an uncertain float
            with np.errstate(all="ignore"):
                (data,) = evaluate(op, [v.data for v in operands])
        except (ShapeError, OverflowError) as e:
            raise Skip from e
        self.trace.append(f"{op} on {', '.join(str(v.type) for v in operands)}")
        made = self.builder.op(op, *[v.ssa for v in operands])
        return Value(made, kind, data, sure, max([v.peak for v in operands] + [peak_of(data)]))

    def results(self) -> list[Value]:
        """What nothing reads, mostly, and some of the rest; sometimes an input as it is."""
        chosen = [v for v in self.values if v.ssa.first_use is None and not self.chance(0.1)]
        chosen += [v for v in self.values if v.ssa.first_use is not None and self.chance(0.1)]
        return chosen or self.values[-1:]


def peak_of(array: Array) -> float:
    if array.dtype.kind != "f":
        return 0.0
    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    return float(finite.max(initial=0.0))


def random_data(draw: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Integers over the whole range, its ends often. Floats about ±4 with ties, both zeros and a few large ones."""
    if dtype == "bool":
        return draw.integers(0, 2, shape).astype(np.bool_)
    container = dtypes.to_numpy(dtype)
    if dtypes.is_float(dtype):
        x = np.where(draw.random(shape) < 0.5, draw.integers(-8, 9, shape) / 2, draw.normal(size=shape) * 2)
        x = np.where(draw.random(shape) < 0.05, draw.choice([0.0, -0.0, 100.0, -1000.0], shape), x)
        return np.asarray(x, container)
    lo, hi = dtypes.int_range(dtype)
    x = np.asarray(draw.integers(lo, hi, shape, container.type, endpoint=True), container)
    near = np.asarray([v for v in (lo, lo + 1, -1, 0, 1, 2, 3, hi - 1, hi) if lo <= v <= hi], container)
    return np.asarray(np.where(draw.random(shape) < 0.5, draw.choice(near, shape), x), container)


def input_types(seed: int, floats: bool, zero_sized: bool) -> list[TensorType]:
    rng = random.Random(f"inputs {seed}")
    found = []
    for _ in range(rng.choice([1, 1, 2])):
        rank = rng.choice([1, 2, 2, 3, 3, 4, 4, 4])
        shape = [rng.choice([1, 1, 2, 3, 4, 5, 7]) for _ in range(rank)]
        if rank > 1 and rng.random() < 0.8:
            shape[0] = 1
        while prod(shape) > LARGEST // 2:
            shape[rng.randrange(rank)] = 1
        if zero_sized and rng.random() < 0.5:
            shape[rng.randrange(rank)] = 0
        kinds = ["f32"] * 9 + ["i8", "bool", "i32"] if floats else [*NATIVE, *ODD, "i8", "u8", "i8", "u8", "bool"]
        found.append(TensorType(tuple(shape), rng.choice(kinds)))
    return found


@dataclass(frozen=True)
class Made:
    """A graph in a program. `inputs`, `outputs`: its share of the program's, by position."""

    seed: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    values: tuple[Value, ...]
    trace: tuple[str, ...]


Step = Callable[[Graph], Value]


@dataclass(frozen=True)
class Kind:
    """What graphs are made of."""

    steps: Sequence[Step]
    floats: bool = False
    zero_sized: bool = False


def program_of(seeds: Sequence[int], kind: Kind, most: int | None = None) -> tuple[Program, list[Made]]:
    """One program of the graphs of all seeds. `most`: steps of a graph at most, to shrink one."""
    types = [input_types(seed, kind.floats, kind.zero_sized) for seed in seeds]
    named = [(f"g{s}_x{n}", t) for s, ts in zip(seeds, types, strict=True) for n, t in enumerate(ts)]
    builder = Builder(named, f"graphs{seeds[0]}")
    made, outputs = [], []
    used = 0
    for seed, kinds in zip(seeds, types, strict=True):
        graph = Graph(builder, random.Random(seed), np.random.default_rng(seed), floats=kind.floats,
                      zero_sized=kind.zero_sized)  # fmt: skip
        places = tuple(range(used, used + len(kinds)))
        used += len(kinds)
        for n, place in enumerate(places):
            data = random_data(graph.draw, kinds[n].shape, kinds[n].dtype)
            graph.values.append(Value(builder.input(place), kinds[n], data, True, peak_of(data)))
            graph.trace.append(f"input {kinds[n]}")
        grow(graph, kind.steps, most)
        values = graph.results()
        mine = range(len(outputs), len(outputs) + len(values))
        outputs += [(f"g{seed}_y{n}", v.ssa) for n, v in enumerate(values)]
        made.append(Made(seed, places, tuple(mine), tuple(values), tuple(graph.trace)))
    return builder.finish(outputs), made


def grow(graph: Graph, steps: Sequence[Step], most: int | None) -> None:
    wanted = graph.rng.randint(2, 6)
    wanted = wanted if most is None else min(wanted, most)
    taken = 0
    for _ in range(wanted * 20):
        if taken == wanted:
            return
        try:
            graph.values.append(graph.rng.choice(steps)(graph))
            taken += 1
        except Skip:
            continue


def samples(made: Sequence[Made], program: Program, count: int) -> list[Array]:
    """(count, *shape) for each input of the program, of each graph's own seed: all lowest, all highest, random."""
    stacks: list[Array] = []
    for graph in made:
        draw = np.random.default_rng([graph.seed, 1])
        for place in graph.inputs:
            kind = program.inputs[place][1]
            stack = np.stack([random_data(draw, kind.shape, kind.dtype) for _ in range(count)])
            if dtypes.is_int(kind.dtype):
                stack[0], stack[1] = dtypes.int_range(kind.dtype)
            stacks.append(stack)
    return stacks
