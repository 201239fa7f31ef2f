"""The two generations of Cambricon's runtime as data: which calls, with which arguments, do what the device needs.

CNRT 4.x (MLU270), from cnrt.h 4.10: kernels are symbols of a library, arguments go through a buffer. CNRT 6.x, from
cnrt.h 6.14, for memory and queues, with CNDrv, from cn_api.h 2.15, for modules. The simulator stands behind the same
tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HOST_TO_DEVICE, DEVICE_TO_HOST, BLOCK = 0, 2, 1  # cnrtMemTransDir_t, cnrtFunctionType_t and KernelClass
ATTRIBUTE_NRAM_BYTES = 0x302


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One function of a library. `args`: "kind name", with kind from shim.KINDS; the value is the one called `name`, or
    a number. "out name" is a pointer to where the function leaves the value called `name`; "given name" a pointer to
    a 64-bit value. Every function returns a status, 0 for success, unless `checked` is False."""

    library: str
    symbol: str
    args: tuple[str, ...] = ()
    checked: bool = True


@dataclass(frozen=True, slots=True)
class Abi:
    """The libraries of one generation of devices, as Cuvil calls them.

    Attributes:
        libraries: file name by short name.
        operations: calls in order, by what they are for.
        error: what gives the text of a status, by library: returned, or left in "out text".
        host_kernels: kernels are symbols of a library in this process, not of a module on the device.
    """

    name: str
    libraries: Mapping[str, str]
    operations: Mapping[str, tuple[ApiCall, ...]]
    error: Mapping[str, ApiCall]
    host_kernels: bool


_MEMORY: Mapping[str, tuple[ApiCall, ...]] = {
    "allocate": (ApiCall("cnrt", "cnrtMalloc", ("out address", "size bytes")),),
    "free": (ApiCall("cnrt", "cnrtFree", ("ptr address",)),),
    "upload": (ApiCall("cnrt", "cnrtMemcpy", ("ptr device", "ptr host", "size bytes", f"i32 {HOST_TO_DEVICE}")),),
    "download": (ApiCall("cnrt", "cnrtMemcpy", ("ptr host", "ptr device", "size bytes", f"i32 {DEVICE_TO_HOST}")),),
}
_CNRT_ERROR = ApiCall("cnrt", "cnrtGetErrorStr", ("i32 status",))

CNRT4 = Abi(
    name="CNRT 4.x",
    libraries={"cnrt": "libcnrt.so"},
    operations={
        "open": (
            ApiCall("cnrt", "cnrtInit", ("u32 0",)),
            ApiCall("cnrt", "cnrtGetDeviceHandle", ("out device", "i32 ordinal")),
            ApiCall("cnrt", "cnrtSetCurrentDevice", ("u64 device",)),
        ),
        "enter": (ApiCall("cnrt", "cnrtSetCurrentDevice", ("u64 device",)),),  # a device is current in one thread only
        **_MEMORY,
        "make queue": (ApiCall("cnrt", "cnrtCreateQueue", ("out queue",)),),
        "destroy queue": (ApiCall("cnrt", "cnrtDestroyQueue", ("ptr queue",)),),
        "begin": (ApiCall("cnrt", "cnrtGetKernelParamsBuffer", ("out parameters",)),),
        "argument": (ApiCall("cnrt", "cnrtKernelParamsBufferAddParam", ("ptr parameters", "given value", "size 8")),),
        "launch": (
            ApiCall(
                "cnrt",
                "cnrtInvokeKernel_V2",
                ("ptr kernel", "dim3 tasks", "ptr parameters", f"i32 {BLOCK}", "ptr queue"),
            ),
        ),
        "end": (ApiCall("cnrt", "cnrtDestroyKernelParamsBuffer", ("ptr parameters",)),),
        "wait": (ApiCall("cnrt", "cnrtSyncQueue", ("ptr queue",)),),
    },
    error={"cnrt": _CNRT_ERROR},
    host_kernels=True,
)

CNRT6 = Abi(
    name="CNRT 6.x and CNDrv",
    libraries={"cnrt": "libcnrt.so", "cndrv": "libcndrv.so"},
    operations={
        "open": (
            ApiCall("cnrt", "cnrtSetDevice", ("i32 ordinal",)),
            ApiCall("cndrv", "cnInit", ("u32 0",)),
            ApiCall("cndrv", "cnDeviceGet", ("out device", "i32 ordinal")),
            ApiCall("cndrv", "cnSharedContextAcquire", ("out context", "u64 device")),
        ),
        # A context is current in one thread only.
        "enter": (
            ApiCall("cnrt", "cnrtSetDevice", ("i32 ordinal",)),
            ApiCall("cndrv", "cnCtxSetCurrent", ("ptr context",)),
        ),
        "attribute": (ApiCall("cnrt", "cnrtDeviceGetAttribute", ("out value", "i32 number", "i32 ordinal")),),
        **_MEMORY,
        "make queue": (ApiCall("cnrt", "cnrtQueueCreate", ("out queue",)),),
        "destroy queue": (ApiCall("cnrt", "cnrtQueueDestroy", ("ptr queue",)),),
        "load": (ApiCall("cndrv", "cnModuleLoadFatBinary", ("ptr image", "out module")),),
        "unload": (ApiCall("cndrv", "cnModuleUnload", ("ptr module",)),),
        "find": (ApiCall("cndrv", "cnModuleGetKernel", ("ptr module", "text symbol", "out kernel")),),
        "launch": (
            ApiCall(
                "cndrv",
                "cnInvokeKernel",
                (
                    "ptr kernel",
                    "u32 tasks",
                    "u32 1",
                    "u32 1",
                    f"u32 {BLOCK}",
                    "u32 0",
                    "ptr queue",
                    "ptr arguments",
                    "ptr 0",
                ),
            ),
        ),
        "wait": (ApiCall("cnrt", "cnrtQueueSync", ("ptr queue",)),),
    },
    error={"cnrt": _CNRT_ERROR, "cndrv": ApiCall("cndrv", "cnGetErrorString", ("i32 status", "out text"))},
    host_kernels=False,
)

# By the setting `cnrt` of a profile.
GENERATIONS: Mapping[int, Abi] = {4: CNRT4, 6: CNRT6}
