"""The GPU device over a driver API of ours that has cuda-python's functions and runs kernels on the simulator."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.adapters.cuda import gpu
from cuvil_hw.adapters.cuda.program import CudaProgram, Launch
from cuvil_hw.adapters.cuda.simulator import SimulatedDriver, build_simulator
from cuvil_hw.contract.device import Array, DeviceProgram, Port
from cuvil_hw.errors import DeviceError
from cuvil_hw.ir.program import Builder, evaluate
from cuvil_hw.types import TensorType
from tests.adapters.cuda.test_cuda import conv, draw
from tests.support.cuda_runner import form, graph_of, plan_of


class Api:
    """What gpu.py calls of `cuda.bindings.driver`: each function gives (status, values…)."""

    def __init__(self, library: Path) -> None:
        self.sim = SimulatedDriver(library, checked=False)
        self.counts: Counter[str] = Counter()
        self.memory: set[int] = set()
        self.late: list[tuple[int, bytes]] = []
        self.queued: list[tuple[int, int, int]] = []
        self.captured: list[Launch] | None = None
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __getattr__(self, name: str) -> Any:
        """Functions whose effect nothing here depends on."""
        if not name.startswith("cu"):
            raise AttributeError(name)

        def function(*_: Any) -> tuple[int, str]:
            self.counts[name] += 1
            return 0, name

        return function

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        address = self.sim.allocate(size)
        self.memory.add(address)
        return 0, address

    def cuMemFree(self, address: int) -> tuple[int]:
        self.memory.remove(address)
        self.sim.free(address)
        return (0,)

    def cuMemcpyHtoD(self, to: int, source: int, size: int) -> tuple[int]:
        """From pageable memory: returns when the bytes are staged. A stream that doesn't block never waits for them."""
        self.late.append((to, ctypes.string_at(source, size)))
        return (0,)

    def cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: str) -> tuple[int]:
        assert stream == "cuStreamCreate"
        self.queued.append((to, source, size))
        return (0,)

    cuMemcpyDtoHAsync = cuMemcpyHtoDAsync

    def cuStreamSynchronize(self, stream: str) -> tuple[int]:
        assert stream == "cuStreamCreate"
        for to, source, size in self.queued:
            ctypes.memmove(to, source, size)
        self.queued.clear()
        return (0,)

    def cuModuleGetFunction(self, _: Any, name: bytes) -> tuple[int, str]:
        assert self.captured is None, "loading a function ends a capture"
        return 0, name.decode()

    def cuStreamBeginCapture(self, *_: Any) -> tuple[int]:
        self.captured = []
        return (0,)

    def cuStreamEndCapture(self, _: Any) -> tuple[int, list[Launch]]:
        graph, self.captured = self.captured, None
        assert graph is not None
        return 0, graph

    def cuGraphInstantiate(self, graph: list[Launch], _: int) -> tuple[int, list[Launch]]:
        self.counts["instantiate"] += 1
        return 0, graph

    def cuLaunchKernel(self, name: str, x: int, y: int, z: int, threads: int, *rest: Any) -> tuple[int]:
        ty, tz, shared, _, (values, kinds), extra = rest
        assert (y, z, ty, tz, shared, extra) == (1, 1, 1, 1, 0, 0)
        assert kinds == (*[ctypes.c_void_p] * (len(values) - 1), ctypes.c_int)
        assert self.captured is not None
        buffers = tuple(("", address, 0) for address in values[:-1])
        self.captured.append(Launch(name, name, x, threads, buffers, values[-1], True))
        return (0,)

    def cuGraphLaunch(self, graph: list[Launch], _: str) -> tuple[int]:
        self.counts["replay"] += 1
        self.cuStreamSynchronize(_)
        self.sim.run(graph)
        return (0,)

    def cuEventElapsedTime(self, *_: Any) -> tuple[int, float]:
        return 0, 2.5


@pytest.fixture
def api_and_program(tmp_path: Path) -> tuple[Api, DeviceProgram]:
    graph = graph_of(conv())
    plan = plan_of(graph, form("tile"))
    symbols = [entry["symbol"] for entry in plan.info["launches"]]  # type: ignore[attr-defined]
    api = Api(build_simulator(plan.files["model.cu"], symbols, checked=False))
    ports = [(Port(n, graph.buffers[n].type.shape, "i8"),) for n in (graph.inputs[0], graph.outputs[0])]
    return api, DeviceProgram("conv", tmp_path, *ports, plan.info, graph.constants)


@pytest.mark.must_run
@pytest.mark.needs("g++")
def test_launches_are_captured_once_and_replayed(api_and_program: tuple[Api, DeviceProgram]) -> None:
    api, program = api_and_program
    loaded = CudaProgram(program, gpu.GpuDriver(api, 0, b""))
    x = draw(3, 1, 10, 9, 11)
    want = np.concatenate([evaluate(conv(), [one])[0][None] for one in x])
    for _ in range(3):
        (got,), seconds = loaded.run([x])
        np.testing.assert_array_equal(got, want)
        assert seconds == 0.0025
    assert (api.counts["instantiate"], api.counts["replay"]) == (1, 3)
    np.testing.assert_array_equal(loaded.run([x[:1]])[0][0], want[:1])
    np.testing.assert_array_equal(loaded.run([np.concatenate([x, x])])[0][0], np.concatenate([want, want]))
    assert api.counts["instantiate"] == 3
    loaded.close()
    loaded.close()
    assert api.memory == set()
    assert api.counts["cuGraphExecDestroy"] == 3
    for name in ("cuStreamDestroy", "cuModuleUnload", "cuDevicePrimaryCtxRelease"):
        assert api.counts[name] == 1
    with pytest.raises(DeviceError, match="conv: is closed"):
        loaded.run([x])


@pytest.mark.needs("g++")
def test_an_error_of_the_driver_is_named(api_and_program: tuple[Api, DeviceProgram]) -> None:
    api, program = api_and_program
    api.cuMemAlloc = lambda _: (2, 0)  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(DeviceError, match="CUDA driver: 2"):
        CudaProgram(program, gpu.GpuDriver(api, 0, b""))


class Recorder:
    """A driver that keeps what it is asked to launch, and has no memory."""

    isolated = False
    part_s = None

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def allocate(self, size: int) -> int:
        return 256

    def run(self, launches: Sequence[Launch]) -> float:
        self.launches += launches
        return 0.0

    def free(self, address: int) -> None: ...

    def upload(self, address: int, array: Array) -> None: ...

    def download(self, array: Array, address: int) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("how", ["warp", "thread"])
def test_numbers_of_threads_stay_below_32_bits(how: str, tmp_path: Path) -> None:
    """Conv2d(1, 1, 7) on 28×28, 85,600 samples: 41 million outputs, a warp for each. A thread's number, and the number
    of the element after its last, are ints in the kernel."""
    b = Builder([("x", TensorType((1, 1, 28, 28), "i8"))], "wide")
    y = b.op(ops.Conv((1, 1), (0, 0, 0, 0), (1, 1), acc="i32"), b.input(0), b.const(draw(1, 1, 7, 7)))
    graph = graph_of(b.finish([("y", y)]))
    plan = plan_of(graph, form(how))
    recorder = Recorder()
    loaded = CudaProgram(DeviceProgram("wide", tmp_path, *graph.ports(), plan.info, graph.constants), recorder)
    loaded.run([np.zeros((85_600, 1, 1, 28, 28), np.int8)])
    assert recorder.launches
    elements = 22 * 22
    for launch in recorder.launches:
        every = launch.blocks * launch.threads
        step = every // 32 if how == "warp" else every
        assert every < 1 << 31
        assert launch.samples * elements + step < 1 << 31
        # All elements are computed, in several rounds where a grid doesn't hold them.
        assert launch.blocks == min(-(-launch.samples * elements // (launch.threads // (32 if how == "warp" else 1))),
                                    (1 << 30) // launch.threads)  # fmt: skip
    assert sum(launch.samples for launch in recorder.launches) == 85_600


@pytest.mark.needs("cuda")
def test_cuda_python_has_every_function_that_is_called() -> None:
    import inspect
    import re

    from cuda.bindings import driver

    names = set(re.findall(r"\b_?api\.(cu\w+|CU\w+)", inspect.getsource(gpu)))
    assert len(names) > 20
    assert [n for n in names if not hasattr(driver, n)] == []
