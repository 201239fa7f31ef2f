"""The CUDA simulator finds planted faults, and runs what is right: hand-written kernels, checking build."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from cuvil_hw.adapters.cuda.program import Launch
from cuvil_hw.adapters.cuda.simulator import SimulatedDriver, build_simulator
from cuvil_hw.contract.device import Array
from cuvil_hw.errors import DeviceError

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++", "nm")]

# y[block][t] = x[block][63 - t], by way of shared memory
REVERSE = """
extern "C" __global__ void reverse(const int *__restrict__ x, int *__restrict__ y, int samples) {
  __shared__ __align__(16) int before[64];
  __shared__ __align__(16) int tile[64];
  const int t = threadIdx.x, at = blockIdx.x * 64;
  before[t] = t;
  tile[t] = x[at + t];
  BARRIER
  y[at + t] = tile[READ] + before[t] - t;
}
"""
SUM = """
extern "C" __global__ void sum(const float *__restrict__ x, float *__restrict__ y, int samples) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int lanes = 16; lanes; lanes /= 2) v += __shfl_xor_sync(0xffffffffu, v, lanes);
  const float down = __shfl_down_sync(0xffffffffu, v, 1), first = __shfl_sync(0xffffffffu, v, 0);
  if (threadIdx.x % 32 == 0) y[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = v + (down - first);
}
extern "C" __global__ void count(const int *__restrict__ x, int *__restrict__ y, int samples) {
  if (x[blockIdx.x * blockDim.x + threadIdx.x] > 0) atomicAdd(&y[0], 1);
}
extern "C" __global__ void dots(const int *__restrict__ x, int *__restrict__ y, int samples) {
  const int i = threadIdx.x;
  y[i] = __dp4a(x[i], x[i + 64], 7);
}
static __device__ const int table[3] = {5, 6, 7};
extern "C" __global__ void lookup(const int *__restrict__ x, int *__restrict__ y, int samples) {
  y[threadIdx.x] = table[x[threadIdx.x]];
}
"""
INTEGERS = "#include <cstdint>\n"


def run(
    source: str, kernel: str, x: Array, y: Array, blocks: int, threads: int, checked: bool = True, meets: bool = True
) -> Array:
    """y after one launch on x."""
    kernels = re.findall(r"void (\w+)\(", source)
    driver = SimulatedDriver(build_simulator((INTEGERS + source).encode(), kernels, checked=checked), checked=checked)
    places = [driver.allocate(a.nbytes) for a in (x, y)]
    for place, a in zip(places, (x, y), strict=True):
        driver.upload(place, np.ascontiguousarray(a))
    buffers = (("x", places[0], x.nbytes), ("y", places[1], y.nbytes))
    driver.run([Launch(kernel, kernel, blocks, threads, buffers, 1, meets)])
    result = np.empty_like(y)
    driver.download(result, places[1])
    driver.close()
    return result


def reverse(barrier: str = "__syncthreads();", read: str = "63 - t", threads: int = 64) -> Array:
    source = REVERSE.replace("BARRIER", barrier).replace("READ", read)
    return run(source, "reverse", X, np.zeros_like(X), len(X) // 64, threads)


X = np.random.default_rng(0).integers(-9, 9, 256).astype(np.int32)


def said(fault: str, expected: Sequence[str]) -> None:
    for part in ("kernel reverse", "block 0", *expected):
        assert part in fault, fault


def test_threads_that_meet_share_memory() -> None:
    np.testing.assert_array_equal(reverse(), X.reshape(4, 64)[:, ::-1].ravel())


def test_a_missing_barrier_is_a_race() -> None:
    with pytest.raises(DeviceError) as e:
        reverse(barrier="")
    said(str(e.value), ["shared-memory race", "thread 32 writes tile at byte 128, which thread 31 read with no"])


def test_two_threads_that_write_one_element_race() -> None:
    with pytest.raises(DeviceError, match="shared-memory race: block 0, thread 1 writes tile at byte 0, which"):
        reverse(barrier="tile[t / 2] = t; __syncthreads();")


def test_an_index_past_a_shared_array_does_not_reach_the_next() -> None:
    with pytest.raises(DeviceError) as e:
        reverse(read="64 - t")
    said(str(e.value), ["out-of-bounds", "thread 0 reads 4 bytes at byte 256 of tile, which has 256"])
    with pytest.raises(DeviceError, match="out-of-bounds: block 0, thread 0 reads 4 bytes at byte -4 of tile"):
        reverse(read="t - 1")


def test_an_index_outside_a_buffer() -> None:
    with pytest.raises(DeviceError, match="out-of-bounds: block 0, thread 0 writes 4 bytes at byte 1024 of y"):
        reverse(barrier="__syncthreads(); y[256 + t] = 0;")
    with pytest.raises(DeviceError, match="out-of-bounds: block 0, thread 0 reads 4 bytes at byte 4194304 of x"):
        reverse(read="63 - t + x[(1 << 20) + t]")


def test_threads_of_two_blocks_that_write_one_element_race() -> None:
    with pytest.raises(DeviceError, match="race: block 1, thread 0 writes y at byte 0, which thread 0 of block 0"):
        reverse(barrier="__syncthreads(); y[t] = t; at;")


@pytest.mark.parametrize(
    ("barrier", "expected"),
    [
        ("if (t < 32) __syncthreads(); return;", "thread 0 waits in line 9, thread 63 has ended"),
        ("if (t < 32) __syncthreads();\nelse __syncthreads();", "thread 0 waits in line 9, thread 63 waits in line 10"),
        ("for (int i = 0; i <= t / 32; ++i) __syncthreads();", "thread 32 waits in line 9, thread 31 has ended"),
        ("if (t == 9) return; __syncthreads();", "thread 0 waits in line 9, thread 9 has ended"),
    ],
)
def test_divergent_barriers(barrier: str, expected: str) -> None:
    with pytest.raises(DeviceError) as e:
        reverse(barrier=barrier)
    said(str(e.value), ["divergent barrier", expected])


def test_a_shuffle_that_some_lanes_miss() -> None:
    with pytest.raises(DeviceError, match="divergent shuffle: block 0, thread 47 waits in line 9 for lanes"):
        reverse(barrier="__syncthreads(); if (t % 32 < 16) before[t] = t + 0 * __shfl_xor_sync(0xffffffffu, t, 1);")


def test_a_word_must_lie_at_a_multiple_of_its_size() -> None:
    with pytest.raises(DeviceError, match="misaligned: block 0, thread 0 reads 4 bytes"):
        reverse(barrier="__syncthreads(); y[at] = *(const int *)((const char *)x + 1 + t);")


@pytest.mark.parametrize("checked", [True, False])
def test_shuffles_atomics_and_dot_products(checked: bool) -> None:
    x = np.random.default_rng(1).normal(size=256).astype(np.float32)
    got = run(SUM, "sum", x, np.zeros(8, np.float32), 2, 128, checked)
    np.testing.assert_allclose(got, x.reshape(8, 32).sum(1), rtol=1e-5)
    got = run(SUM, "count", X, np.zeros(1, np.int32), 4, 64, checked, False)
    assert got[0] == (X > 0).sum()
    words = np.random.default_rng(2).integers(-(2**31), 2**31, 128).astype(np.int32)
    got = run(SUM, "dots", words, np.zeros(64, np.int32), 1, 64, checked, False)
    a, b = (w.view(np.int8).reshape(64, 4).astype(np.int32) for w in (words[:64], words[64:]))
    np.testing.assert_array_equal(got, (a * b).sum(1) + 7)


def test_an_index_past_a_constant_table() -> None:
    x = np.arange(3, dtype=np.int32)
    np.testing.assert_array_equal(run(SUM, "lookup", x, np.zeros_like(x), 1, 3), [5, 6, 7])
    with pytest.raises(DeviceError, match="out-of-bounds: block 0, thread 2 reads 4 bytes at byte 12 of table"):
        run(SUM, "lookup", np.int32([0, 1, 3]), np.zeros_like(x), 1, 3)


def test_launches_that_no_gpu_takes() -> None:
    for blocks, threads in ((1, 1025), (1 << 31, 1), (0, 32)):
        with pytest.raises(DeviceError, match="launch limits"):
            run(SUM, "lookup", X[:3], np.zeros(3, np.int32), blocks, threads)
    with pytest.raises(DeviceError, match="has a shuffle, but wasn't launched as cooperative"):
        run(SUM, "sum", np.ones(64, np.float32), np.zeros(2, np.float32), 1, 64, False, False)


def test_half_precision_rounds_as_numpy() -> None:
    values = [0.0, -0.0, 1.0, 65504.0, 65519.99, 65520.0, -1e9, 6e-8, 2.9e-8, 6.1e-5, 1 / 3, np.inf, 2049.0, np.nan]
    source = """
extern "C" __global__ void half(const double *__restrict__ x, float *__restrict__ y, int samples) {
  y[threadIdx.x] = (float)(half_t)x[threadIdx.x];
}
"""
    got = run(source, "half", np.float64(values), np.zeros(len(values), np.float32), 1, len(values), False, False)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, np.float64(values).astype(np.float16).astype(np.float32))
