"""A GPU through NVIDIA's driver API (cuda-python). The launches of a call are captured once as a CUDA graph and then
replayed."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuvil_hw.adapters.cuda.nvrtc import REMEDY, compile_source
from cuvil_hw.adapters.cuda.program import CudaProgram, Launch
from cuvil_hw.adapters.cuda.record import CudaRecord
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import check_seal, read
from cuvil_hw.errors import DeviceError, ToolNotFound
from cuvil_hw.runtime.forks import OneProcess

SOURCE = "model.cu"
# Graphs of different batch sizes that are kept; a caller with more of them captures again.
_GRAPHS = 16
_gpu = OneProcess("the GPU")


def open_gpu(target: str) -> Gpu:
    """The first GPU. Raises ToolNotFound without cuda-python or a driver, DeviceError without a GPU."""
    _gpu.check()
    api = _api()
    _gpu.enter()
    device = _do(api, api.cuDeviceGet(0))[0]
    text = bytes(_do(api, api.cuDeviceGetName(128, device))[0])
    return Gpu(f"{text.partition(bytes(1))[0].decode(errors='replace')} for {target}", api, device)


def _api() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as e:
        raise ToolNotFound("Python package cuda-python", "run on a GPU", REMEDY) from e
    try:
        _do(driver, driver.cuInit(0))
        count = int(_do(driver, driver.cuDeviceGetCount())[0])
    except (RuntimeError, DeviceError) as e:
        raise ToolNotFound(
            "NVIDIA driver (libcuda.so.1)", "run on a GPU", f"install NVIDIA's driver, or use interface='sim'; {e}"
        ) from e
    if not count:
        raise DeviceError("no NVIDIA GPU in this machine; use interface='sim'")
    return driver


def _do(api: Any, answer: Any) -> tuple[Any, ...]:
    status, *values = answer
    if int(status) != 0:
        raise DeviceError(f"CUDA driver: {getattr(status, 'name', status)}")
    return tuple(values)


@dataclass(slots=True)
class Gpu:
    name: str
    api: Any
    device: Any
    interface: str = "hw"

    def usable(self) -> str | None:
        return None

    def load(self, program: DeviceProgram) -> CudaProgram:
        """Compile for this GPU with NVRTC and load. Raises ToolNotFound, BuildFailed, DeviceError."""
        api = self.api
        kind = api.CUdevice_attribute
        major, minor = (
            int(_do(api, api.cuDeviceGetAttribute(a, self.device))[0])
            for a in (
                kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        source = (program.folder / SOURCE).read_bytes()
        check_seal(source, program)
        read(CudaRecord, program)  # before anything of it is compiled
        code = compile_source(source, f"sm_{major}{minor}", machine_code=True)
        return CudaProgram(program, GpuDriver(api, self.device, code))


class GpuDriver:
    """One module in the primary context of a GPU, with a stream of its own."""

    isolated = False
    part_s: float | None = None

    def __init__(self, api: Any, device: Any, code: bytes) -> None:
        self._api, self._device = api, device
        self._context = self._do(api.cuDevicePrimaryCtxRetain(device))[0]
        self._enter()
        self._module = self._do(api.cuModuleLoadData(code))[0]
        self._stream = self._do(api.cuStreamCreate(api.CUstream_flags.CU_STREAM_NON_BLOCKING))[0]
        self._begin, self._end = (self._do(api.cuEventCreate(0))[0] for _ in range(2))
        self._functions: dict[str, Any] = {}
        self._graphs: dict[tuple[Launch, ...], Any] = {}

    def _do(self, answer: Any) -> tuple[Any, ...]:
        return _do(self._api, answer)

    def _enter(self) -> None:
        """Contexts are current per thread. Raises DeviceError in a forked process."""
        _gpu.enter()
        self._do(self._api.cuCtxSetCurrent(self._context))

    def allocate(self, size: int) -> int:
        self._enter()
        return int(self._do(self._api.cuMemAlloc(max(size, 1)))[0])

    def free(self, address: int) -> None:
        self._enter()
        for graph in self._graphs.values():  # they hold addresses
            self._do(self._api.cuGraphExecDestroy(graph))
        self._graphs = {}
        self._do(self._api.cuMemFree(address))

    def upload(self, address: int, array: Array) -> None:
        self._enter()
        if array.nbytes:
            # On the stream of the launches: a copy from pageable memory on the default stream may return before its
            # bytes have arrived (CUDA driver API, "API synchronization behavior"), and this stream, which is a
            # non-blocking one, doesn't wait for that one. The array is the caller's, so it has to be read by then.
            self._do(self._api.cuMemcpyHtoDAsync(address, array.ctypes.data, array.nbytes, self._stream))
            self._do(self._api.cuStreamSynchronize(self._stream))

    def download(self, array: Array, address: int) -> None:
        self._enter()
        if array.nbytes:
            self._do(self._api.cuMemcpyDtoHAsync(array.ctypes.data, address, array.nbytes, self._stream))
            self._do(self._api.cuStreamSynchronize(self._stream))

    def run(self, launches: Sequence[Launch]) -> float:
        if not launches:
            return 0.0
        self._enter()
        api, key = self._api, tuple(launches)
        if key not in self._graphs:
            if len(self._graphs) >= _GRAPHS:
                self._do(api.cuGraphExecDestroy(self._graphs.pop(next(iter(self._graphs)))))
            self._graphs[key] = self._captured(launches)
        self._do(api.cuEventRecord(self._begin, self._stream))
        self._do(api.cuGraphLaunch(self._graphs[key], self._stream))
        self._do(api.cuEventRecord(self._end, self._stream))
        self._do(api.cuStreamSynchronize(self._stream))
        return float(self._do(api.cuEventElapsedTime(self._begin, self._end))[0]) / 1000

    def _captured(self, launches: Sequence[Launch]) -> Any:
        api = self._api
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        functions = [self._function(launch.symbol) for launch in launches]  # loading code would end the capture
        self._do(api.cuStreamBeginCapture(self._stream, mode))
        try:
            for launch, function in zip(launches, functions, strict=True):
                self._launch(launch, function)
        finally:
            graph = self._do(api.cuStreamEndCapture(self._stream))[0]
        try:
            return self._do(api.cuGraphInstantiate(graph, 0))[0]
        finally:
            self._do(api.cuGraphDestroy(graph))

    def _launch(self, launch: Launch, function: Any) -> None:
        values = (*(address for _, address, _ in launch.buffers), launch.samples)
        kinds = (*(ctypes.c_void_p for _ in launch.buffers), ctypes.c_int)
        self._do(
            self._api.cuLaunchKernel(
                function, launch.blocks, 1, 1, launch.threads, 1, 1, 0, self._stream, (values, kinds), 0
            )
        )

    def _function(self, symbol: str) -> Any:
        if symbol not in self._functions:
            self._functions[symbol] = self._do(self._api.cuModuleGetFunction(self._module, symbol.encode()))[0]
        return self._functions[symbol]

    def close(self) -> None:
        self._enter()
        for graph in self._graphs.values():
            self._do(self._api.cuGraphExecDestroy(graph))
        self._graphs = {}
        for event in (self._begin, self._end):
            self._do(self._api.cuEventDestroy(event))
        self._do(self._api.cuStreamDestroy(self._stream))
        self._do(self._api.cuModuleUnload(self._module))
        self._do(self._api.cuDevicePrimaryCtxRelease(self._device))
