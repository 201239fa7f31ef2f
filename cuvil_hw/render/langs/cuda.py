"""CUDA C++ as data. The text compiles with NVRTC (no header at hand), with nvcc, and with g++ against sim/cuda."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cuvil_hw import dtypes
from cuvil_hw.render.c.lang import C99, C_LIBRARY, CPP_KEYWORDS, Lang

_CUDA_NAMES = (
    "threadIdx blockIdx blockDim gridDim warpSize half_t dim3 int2 int3 int4 float2 float3 float4 char4 uchar4 double2 "
    "signed_word samples"
)

_PREAMBLE = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fc00000)
#else
#include <cmath>
#include <cstdint>
#endif
"""

# Stored as its bits, computed in float, rounded once. A simulator brings a half_t of its own.
HALF = """
#ifndef CUVIL_SIM_CUDA
struct half_t {
  unsigned short bits;
  half_t() = default;
  __device__ half_t(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  template <class T>
  __device__ explicit half_t(T x) { asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"((double)x)); }
  __device__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};
#endif
"""

_CALLS: Mapping[str, str] = {
    "gpu.thread_id": "(int)threadIdx.{dim}",
    "gpu.block_id": "(int)blockIdx.{dim}",
    "gpu.block_dim": "(int)blockDim.{dim}",
    "gpu.grid_dim": "(int)gridDim.{dim}",
    "cuvil.level2.dot4": "__dp4a({0}, {1}, {2})",
    "cuvil.level2.shuffle_xor": "__shfl_xor_sync(0xffffffffu, {0}, {1})",
}

CUDA: Lang = replace(
    C99,
    vectors="",
    own_f32={},
    helpers={},
    unroll="",
    hints_first=False,
    name="CUDA C++",
    types=dtypes.spellings("cuda"),
    linkage={"kernel": 'extern "C" __global__ void __launch_bounds__({threads})'},
    pointer="{const}{type} *__restrict__ {name}",
    keywords=CPP_KEYWORDS | C_LIBRARY | frozenset(_CUDA_NAMES.split()),
    preamble=_PREAMBLE,
    helper="static __device__ __forceinline__",
    # Not __constant__: that memory is small, and slow where threads read different elements.
    table="static __device__ const {type} {name}",
    spaces={"shared": "__shared__ __align__(16) {}"},
    barrier="__syncthreads();",
    calls=_CALLS,
    word_load="*(const int *)&{0}",
    wrap=True,
    lanes="#pragma unroll",
    vector_lanes=1,
    bitcast="__builtin_bit_cast({type}, {x})",
)
