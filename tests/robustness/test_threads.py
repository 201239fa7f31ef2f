"""Threads, copies and interrupts: libraries are freed only when nobody is inside, and `close` always returns."""

from __future__ import annotations

import copy
import ctypes
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from cuvil_hw.errors import DeviceError
from cuvil_hw.runtime.gate import Gate
from tests.support.programs import DEVICES, data, program, saved, script

pytestmark = [pytest.mark.needs("g++"), pytest.mark.must_run]
INTERRUPTS = 3000  # unless `--full` is given, a fifth


@pytest.mark.parametrize("device", ["cpu", "zynq", "cuda"])
def test_a_copy_is_a_program_of_its_own(device: str) -> None:
    exe = program(device)
    x = data(0, 200)
    expected, stop, wrong = exe(x), threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            if not np.array_equal(exe(x), expected):
                wrong.append(device)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for make in (copy.copy, copy.deepcopy) * 3:
            twin = make(exe)
            np.testing.assert_array_equal(twin(x), expected)
            twin.close()
            with pytest.raises(DeviceError, match="is closed"):
                twin(x)
    finally:
        stop.set()
        thread.join()
    assert not wrong
    exe.close()


def test_two_programs_of_one_design_count_apart() -> None:
    """Each counts what it saturates itself, also while the other runs."""
    calm, wild = program("zynq-count"), program("zynq-count")
    quiet, loud = np.zeros((64, 2, 6, 6), np.float32), 1e6 * np.abs(data(0, 64))
    alone = program("zynq-count")
    alone(loud)
    expected = alone.run(loud[:0]).counters
    alone.close()
    assert any(sum(c.values()) for c in expected.values()), "the network doesn't saturate"
    runs, barrier = 6, threading.Barrier(2)

    def repeat(exe: object, x: np.ndarray) -> None:
        barrier.wait()
        for _ in range(runs):
            exe(x)  # type: ignore[operator]

    threads = [threading.Thread(target=repeat, args=pair) for pair in ((calm, quiet), (wild, loud))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(sum(c.values()) for c in calm.run(quiet[:1]).counters.values())
    counted = wild.run(loud[:0]).counters
    assert counted == {layer: {k: runs * v for k, v in c.items()} for layer, c in expected.items()}
    calm.close()
    wild.close()


class _Interrupt(BaseException):
    pass


def _raise_in(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Interrupt))


@pytest.mark.parametrize(("device", "count"), [("null", INTERRUPTS // 2), ("cpu", INTERRUPTS // 2)])
def test_interrupts_at_any_moment(device: str, count: int, full: bool) -> None:
    """An exception out of nowhere, as Ctrl-C is one: nobody counts as inside afterwards."""
    exe, x, count = program(device), data(0, 2), count if full else count // 5
    expected = exe(x)
    interrupted, stop, draw = [0], threading.Event(), random.Random(0)

    def work() -> None:
        while not stop.is_set():
            try:
                for _ in range(1000):
                    exe(x)
            except _Interrupt:
                interrupted[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    assert thread.ident is not None
    while interrupted[0] < count and thread.is_alive():
        _raise_in(thread.ident)
        time.sleep(draw.random() * 0.0005)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert interrupted[0] >= count
    closer = threading.Thread(target=exe.close, daemon=True)
    closer.start()
    closer.join(10)
    assert not closer.is_alive(), "close waits for a call that has ended"
    again = program(device)
    np.testing.assert_array_equal(again(x), expected)
    again.close()


SIGNALS = """
import random, signal, sys
import cuvil, numpy as np
class Stop(BaseException): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
exe, x, draw, caught = cuvil.load(*sys.argv[1:3]), np.zeros((2, 2, 6, 6), "f"), random.Random(0), 0
exe(x)
for _ in range(int(sys.argv[3])):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + draw.random() * 3e-4)
        while True:
            exe(x)
    except Stop:
        caught += 1
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.alarm(20)  # close must return
exe.close()
print(caught)
"""


def test_signals_at_any_moment(tmp_path: Path) -> None:
    done = script(SIGNALS, *map(str, saved("cpu", tmp_path)), "1000")
    assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr


CTRL_C = """
import signal, sys, time
import cuvil, numpy as np
exe = cuvil.load(*sys.argv[1:3])
exe(np.zeros((50, 2, 6, 6), "f"))
x = np.zeros((int(sys.argv[3]), 2, 6, 6), "f")
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
start = time.monotonic()
try:
    exe(x)
except KeyboardInterrupt:
    waited = time.monotonic() - start
else:
    waited = -1
exe.close()
print(waited)
"""


@pytest.mark.parametrize("device", [d for d in ("zynq", "cpu", "agilex-sycl", "mlu") if d in DEVICES])
def test_ctrl_c_does_not_wait_for_all_samples(device: str, tmp_path: Path) -> None:
    """A call of many seconds ends soon after it."""
    done = script(CTRL_C, *map(str, saved(device, tmp_path)), {"mlu": "10000"}.get(device, "500000"))
    assert done.returncode == 0, done.stderr
    assert 0.2 < float(done.stdout) < 5, f"{device}: {done.stdout}"


def test_close_from_a_handler_of_signals(tmp_path: Path) -> None:
    """Within a call, what the call uses is freed when it ends."""
    text = CTRL_C.replace("signal.default_int_handler", "lambda *_: exe.close()").replace(
        "else:", "except Exception as e:\n    print(type(e).__name__)\n    raise SystemExit(0)\nelse:"
    )
    done = script(text, *map(str, saved("cpu", tmp_path)), "300000")
    assert done.returncode == 0, done.stderr


def test_a_gate_waits_for_others_only() -> None:
    gate, entered, leave = Gate(), threading.Event(), threading.Event()

    def work() -> None:
        with gate.inside(), gate.inside():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(10)
    assert not gate.idle()
    assert not gate.close(0.01)
    with gate.inside():
        assert not gate.close(0.01)
    leave.set()
    thread.join()
    assert gate.idle()
    with gate.inside():
        assert not gate.close(), "this thread is inside itself"
    assert gate.close()


IMPORTS = """
import sys, threading
import cuvil, numpy as np
exe = cuvil.load(sys.argv[1], "hw")
x, failures, done = np.zeros((1, 2, 6, 6), "f"), [], threading.Event()
def call():
    while not done.is_set():
        try:
            exe(x)
        except Exception as e:
            failures.append(repr(e))
            return
        done.wait(1e-4)
threads = [threading.Thread(target=call) for _ in range(2)]
for t in threads: t.start()
assert "torch" not in sys.modules
import torch
done.set()
for t in threads: t.join()
assert not failures, failures
"""


@pytest.mark.needs("torch")
def test_calls_while_another_thread_imports_torch(tmp_path: Path) -> None:
    done = script(IMPORTS, str(saved("cpu", tmp_path)[0]))
    assert done.returncode == 0, done.stderr


FIRST = """
import sys, threading
import cuvil
failures, barrier = [], threading.Barrier(16)
def first():
    barrier.wait()
    try:
        cuvil.compile(sys.argv[1], "cpu", interface="null")
    except Exception as e:
        failures.append(repr(e))
threads = [threading.Thread(target=first) for _ in range(16)]
for t in threads: t.start()
for t in threads: t.join()
assert not failures, failures
"""


@pytest.mark.needs("onnx")
def test_sixteen_threads_compile_an_onnx_file_first(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    done = script(FIRST, str(tmp_path / "m.onnx"))
    assert done.returncode == 0, done.stderr
