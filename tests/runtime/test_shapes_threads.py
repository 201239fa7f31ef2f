"""Open shapes: programs that go while other threads look for them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw.errors import DeviceError
from cuvil_hw.runtime import dynamic
from cuvil_hw.runtime.dynamic import DynamicExecutable
from cuvil_hw.runtime.gate import Gate
from tests.frontend.onnx.test_shapes_onnx import draw, model, node


@pytest.mark.parametrize("enter", ["run", "at"])
def test_a_program_is_not_dropped_under_who_has_just_found_it(enter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread enters between the look whether anybody is inside and the drop."""
    monkeypatch.setattr(dynamic, "KEEP", 1)
    net = model([node("Mul", "x,x", "y")], {"x": ["n", 3]}, 1, {})
    program = cuvil.compile(net, "cpu", shapes={"n": cuvil.Dim("N", 1, 64, sizes=(1,))})
    assert isinstance(program, DynamicExecutable)
    x = draw(2, 3)
    program(x)
    found, go, entered, leave = (threading.Event() for _ in range(4))
    slot_of, made, idle = program._slot, program._made, Gate.idle
    results: list[Any] = []

    def slot(sizes: Mapping[str, int]) -> Any:
        got = slot_of(sizes)
        if threading.current_thread() is late and not found.is_set():
            found.set()
            assert go.wait(30)
        return got

    def inside(slot: Any) -> Any:
        if threading.current_thread() is late:
            entered.set()
            assert leave.wait(30)
        return made(slot)

    def looked(gate: Any) -> bool:
        was = idle(gate)
        if gate is mine and not go.is_set():
            go.set()
            assert entered.wait(30)
        return was

    mine = program._slots["N=2"].gate
    monkeypatch.setattr(program, "_slot", slot)
    monkeypatch.setattr(program, "_made", inside)
    monkeypatch.setattr(Gate, "idle", looked)

    def call() -> None:
        results.append(program(x) if enter == "run" else program.at(N=2)(x))

    late = threading.Thread(target=call)
    late.start()
    assert found.wait(30)
    program(draw(3, 3))
    assert "N=2" in program._slots  # somebody is inside
    leave.set()
    late.join(30)
    assert [np.array_equal(r, x * x) for r in results] == [True]
    program.close()


def test_nobody_enters_a_program_that_was_dropped_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "KEEP", 1)
    net = model([node("Mul", "x,x", "y")], {"x": ["n", 3]}, 1, {})
    program = cuvil.compile(net, "cpu", shapes={"n": cuvil.Dim("N", 1, 64, sizes=(1,))})
    assert isinstance(program, DynamicExecutable)
    program(draw(2, 3))
    old, slot_of, found = program._slots["N=2"], program._slot, []
    program(draw(3, 3))
    assert old.gate.closed
    assert old.executable is None

    def stale(sizes: Mapping[str, int]) -> Any:
        found.append(sizes)
        return old if len(found) == 1 else slot_of(sizes)

    monkeypatch.setattr(program, "_slot", stale)
    x = draw(2, 3)
    assert np.array_equal(program.at(N=2)(x), x * x)
    assert len(found) == 2
    found.clear()
    program.open()
    assert len(found) == 2
    assert old.executable is None
    program._slots["N=1"].gate.closed = True  # left so by an interrupt
    program(draw(1, 3))
    found.clear()
    program.close()
    with pytest.raises(DeviceError, match="is closed"):
        program.at(N=2)
