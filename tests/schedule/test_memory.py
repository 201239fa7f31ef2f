"""Memory plans of random graphs, checked by replaying reads and writes; and that the checker itself sees faults."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil_hw.errors import DoesNotFit
from cuvil_hw.expr.nodes import Const
from cuvil_hw.schedule.kernel import Buffer, Kernel, KernelGraph
from cuvil_hw.schedule.memory import check_live, plan_memory, verify_plan
from cuvil_hw.schedule.resources import Resource
from cuvil_hw.types import TensorType


def graph(edges: list[tuple[str, tuple[str, ...]]], buffers: dict[str, tuple[str, int, str]]) -> KernelGraph:
    """`edges`: (output, inputs) per kernel; `buffers`: name → (role, elements, dtype)."""
    table = {n: Buffer(n, TensorType((size,), dtype), role) for n, (role, size, dtype) in buffers.items()}
    kernels = tuple(
        Kernel(f"k{i}", ins, out, table[out].type, (), Const("f32", 0.0), (), "") for i, (out, ins) in enumerate(edges)
    )
    return KernelGraph(
        "g",
        table,
        kernels,
        tuple(n for n, b in table.items() if b.role == "input"),
        tuple(n for n, b in table.items() if b.role == "output"),
        {},
    )


@st.composite
def graphs(draw: st.DrawFn) -> KernelGraph:
    count = draw(st.integers(1, 12))
    buffers = {"x": ("input", 100, "f32"), "w": ("const", 9, "i8"), "y": ("output", 10, "i8")}
    edges: list[tuple[str, tuple[str, ...]]] = []
    known = ["x", "w"]
    for i in range(count):
        inputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        out = "y" if i == count - 1 else f"t{i}"
        if out != "y":
            dtype = draw(st.sampled_from(["f32", "i8", "i5", "u4", "i18", "f16", "f64", "bool"]))
            buffers[out] = ("temp", draw(st.sampled_from([0, 1, 3, 16, 64, 65, 1000])), dtype)
        edges.append((out, tuple(inputs)))
        known.append(out)
    return graph(edges, buffers)


@settings(max_examples=200, deadline=None)
@given(graphs(), st.sampled_from([1, 16, 64]))
def test_no_live_buffers_share_bytes(g: KernelGraph, alignment: int) -> None:
    plan = plan_memory(g, alignment=alignment)
    assert verify_plan(g, plan) == []
    assert set(plan.offset_bytes) == {n for n, b in g.buffers.items() if b.role == "temp"}
    assert plan.lower_bound_bytes <= plan.size_bytes
    assert plan.size_bytes % alignment == 0
    assert plan_memory(g, alignment=alignment) == plan


def chain(sizes: list[int], dtype: str = "i8") -> KernelGraph:
    names = [f"t{i}" for i in range(len(sizes))]
    buffers = {"x": ("input", 8, dtype), "y": ("output", 64, "i8")}
    buffers |= {n: ("temp", s, dtype) for n, s in zip(names, sizes, strict=True)}
    steps = ["x", *names, "y"]
    return graph([(out, (src,)) for src, out in itertools.pairwise(steps)], buffers)


def test_time_for_thousands_of_buffers_is_bounded() -> None:
    """As many as a recurrent layer has steps; each is kept until all are joined."""
    steps = 6000
    edges = [("t0", ("x",)), *((f"t{i}", (f"t{i - 1}",)) for i in range(1, steps))]
    edges.append(("y", tuple(f"t{i}" for i in range(steps))))
    buffers = {"x": ("input", 8, "i8"), "y": ("output", 64, "i8")}
    buffers |= {f"t{i}": ("temp", 64, "i8") for i in range(steps)}
    before = time.process_time()
    plan = plan_memory(graph(edges, buffers), alignment=64)
    assert time.process_time() - before < 5  # each compared with each in Python: 16
    assert plan.size_bytes == plan.lower_bound_bytes == 64 * steps


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    plan = plan_memory(chain([640, 64, 1280, 128, 640]), alignment=64)
    assert plan.size_bytes == plan.lower_bound_bytes == 1280 + 128
    assert plan.lifetimes["t2"] == (2, 3)
    assert plan.peak_kernel == 3


def test_bytes_are_those_of_the_numpy_container() -> None:
    assert plan_memory(chain([10], "i18"), alignment=1).size_bytes == 40
    assert plan_memory(chain([10], "u4"), alignment=1).size_bytes == 10
    assert plan_memory(chain([10], "f16"), alignment=1).size_bytes == 20
    assert plan_memory(chain([10], "i18"), alignment=64).size_bytes == 64


def test_residual_keeps_the_skipped_buffer() -> None:
    g = graph(
        [("a", ("x",)), ("b", ("a",)), ("c", ("b",)), ("d", ("c", "a")), ("y", ("d",))],
        {"x": ("input", 1, "i8"), "y": ("output", 1, "i8")} | dict.fromkeys("abcd", ("temp", 64, "i8")),
    )
    plan = plan_memory(g, alignment=64)
    assert plan.size_bytes == plan.lower_bound_bytes == 192
    assert plan.lifetimes["a"] == (0, 3)


def test_output_is_never_scratch_even_when_read_again() -> None:
    """apache/tvm#8062: float temporaries must not land in the int8 output, whenever it is written."""
    g = graph(
        [("t", ("x",)), ("y", ("t",)), ("u", ("y",)), ("z", ("u",))],
        {
            "x": ("input", 4, "i8"),
            "y": ("output", 4, "i8"),
            "z": ("output", 4, "i8"),
            "t": ("temp", 4, "f32"),
            "u": ("temp", 4, "f32"),
        },
    )
    plan = plan_memory(g, alignment=64)
    assert set(plan.offset_bytes) == {"t", "u"}
    assert plan.size_bytes == 64
    placed = replace(plan, offset_bytes={**plan.offset_bytes, "y": 0})
    assert verify_plan(g, placed) == ["y has role output and must not be placed"]


def test_empty_and_unused() -> None:
    assert plan_memory(chain([]), alignment=64).size_bytes == 0
    assert plan_memory(chain([]), alignment=64).peak_kernel is None
    assert plan_memory(chain([0]), alignment=64).size_bytes == 0
    g = graph(
        [("a", ("x",)), ("dead", ("a",)), ("y", ("a",))],
        {"x": ("input", 1, "i8"), "y": ("output", 1, "i8"), "a": ("temp", 64, "i8"), "dead": ("temp", 64, "i8")},
    )
    assert plan_memory(g, alignment=64).size_bytes == 128


def test_checker_sees_each_fault() -> None:
    g = chain([64, 64, 64])
    good = plan_memory(g, alignment=64)

    def with_offsets(**change: int) -> list[str]:
        return verify_plan(g, replace(good, offset_bytes={**good.offset_bytes, **change}))

    assert with_offsets() == []
    assert "k1 writes t1 over its own input t0" in with_offsets(t0=0, t1=0, t2=64)
    assert "t1 is at 32, not a multiple of 64" in with_offsets(t1=32)
    assert "t1 at 128-192 is outside the arena of 128 bytes" in with_offsets(t1=128)
    assert verify_plan(g, replace(good, offset_bytes={"t0": 0, "t1": 64})) == ["t2 has no place"]
    residual = graph(
        [("a", ("x",)), ("b", ("x",)), ("y", ("a", "b"))],
        {"x": ("input", 1, "i8"), "y": ("output", 1, "i8"), "a": ("temp", 64, "i8"), "b": ("temp", 64, "i8")},
    )
    bad = replace(plan_memory(residual, alignment=64), offset_bytes={"a": 0, "b": 0})
    assert verify_plan(residual, bad) == ["k2 reads a, which something else has overwritten"]


def test_malformed_graphs_and_arguments() -> None:
    g = chain([8, 8])
    with pytest.raises(ValueError, match=r"k1 reads t1 before any kernel has written it"):
        plan_memory(_swapped(g), alignment=64)
    with pytest.raises(ValueError, match=r"48 is not a power of two"):
        plan_memory(g, alignment=48)


def _swapped(g: KernelGraph) -> KernelGraph:
    first, second, last = g.kernels
    return replace(g, kernels=(first, replace(last, name="k1"), replace(second, name="k2")))


def test_live_axis_counts_arena_constants_and_the_user_s_buffers() -> None:
    g = graph(
        [("t", ("x", "w")), ("y", ("t",))],
        {"x": ("input", 10, "f32"), "w": ("const", 100, "i8"), "t": ("temp", 30, "i8"), "y": ("output", 6, "i8")},
    )
    plan = plan_memory(g, alignment=64)
    need = 64 + 40 + 100 + 6
    assert check_live(g, plan, [Resource("ddr", need, "live", 1.0, "B"), Resource("lut", 1, "sum")], target="t") == need
    with pytest.raises(DoesNotFit, match=r"at least 420 bytes of ddr") as caught:
        check_live(g, plan, [Resource("ddr", need, "live", 0.5, "B")], target="t")
    assert (caught.value.layer, caught.value.axis, caught.value.need, caught.value.limit) == ("k0", "ddr", need, 105)
