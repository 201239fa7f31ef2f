"""NVIDIA's run-time compiler, which needs no GPU and no driver: CUDA C++ to PTX or machine code."""

from __future__ import annotations

from typing import Any

from cuvil_hw.errors import BuildFailed, ToolNotFound, pip_install

# Floats keep their bits: no contraction of a·b + c, correctly rounded division and root, subnormals kept.
OPTIONS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")
REMEDY = pip_install("cuda")


def compile_source(source: bytes, architecture: str, *, machine_code: bool) -> bytes:
    """`source` for an architecture such as sm_90: machine code (cubin), or PTX.

    Raises ToolNotFound without cuda-python or NVRTC, BuildFailed with the compiler's log."""
    nvrtc = _nvrtc()
    virtual = architecture if machine_code else architecture.replace("sm_", "compute_")
    options = (f"--gpu-architecture={virtual}", *OPTIONS)
    program = _do(nvrtc, nvrtc.nvrtcCreateProgram(source, b"model.cu", 0, [], []))[0]
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0]
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildFailed(("nvrtc", *options, "model.cu"), int(status), _log(nvrtc, program))
        if machine_code:
            size, fetch = _do(nvrtc, nvrtc.nvrtcGetCUBINSize(program))[0], nvrtc.nvrtcGetCUBIN
        else:
            size, fetch = _do(nvrtc, nvrtc.nvrtcGetPTXSize(program))[0], nvrtc.nvrtcGetPTX
        text = bytes(int(size))
        _do(nvrtc, fetch(program, text))
        return text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def version() -> tuple[int, int]:
    """Version of NVRTC. Raises ToolNotFound."""
    nvrtc = _nvrtc()
    major, minor = _do(nvrtc, nvrtc.nvrtcVersion())
    return int(major), int(minor)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except ImportError as e:
        raise ToolNotFound("Python package cuda-python", "compile CUDA kernels", REMEDY) from e
    except RuntimeError as e:  # the package is there, the library that it loads isn't
        raise ToolNotFound("NVRTC (package nvidia-cuda-nvrtc)", "compile CUDA kernels", f"{REMEDY}; {e}") from e
    return nvrtc


def _do(nvrtc: Any, answer: Any) -> tuple[Any, ...]:
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildFailed(("nvrtc",), int(status), str(status))
    return tuple(values)


def _log(nvrtc: Any, program: Any) -> str:
    size = int(_do(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))[0])
    text = bytes(size)
    _do(nvrtc, nvrtc.nvrtcGetProgramLog(program, text))
    return text.rstrip(b"\0 \n").decode(errors="replace")
