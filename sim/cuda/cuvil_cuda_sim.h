// CUDA C++ on the host: included before emitted source, which is compiled unchanged. Threads of a block run one after
// another; where they meet (barrier, shuffle) they are fibers. Compiled with -fsanitize=thread and -DCUVIL_SIM_CHECK, every
// access to memory is looked at (cuvil_cuda_sim.cpp holds the checks; the sanitizer's own library isn't used).
#ifndef CUVIL_SIM_CUDA
#define CUVIL_SIM_CUDA 1

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

#define CUVIL_SIM_JOIN_(a, b) a##b
#define CUVIL_SIM_JOIN(a, b) CUVIL_SIM_JOIN_(a, b)
#ifdef CUVIL_SIM_CHECK
// A strip that nothing may touch before every shared array: an index past the end of one never lands in the next.
#define __shared__                                                                                              \
    static __attribute__((used, aligned(64))) char CUVIL_SIM_JOIN(cuvil_sim_redzone_, __COUNTER__)[256];        \
    static __attribute__((used))
#define CUVIL_SIM_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
#else
#define __shared__ static
#define CUVIL_SIM_UNCHECKED inline
#endif
#define CUVIL_SIM_HIDDEN __attribute__((visibility("hidden")))

struct cuvil_sim_dim {
    unsigned x, y, z;
};
extern CUVIL_SIM_HIDDEN cuvil_sim_dim threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace cuvil_sim {

CUVIL_SIM_HIDDEN void barrier(int line);
// All lanes of `mask` meet; the result is what lane `source` brought, own value where it is none of them.
CUVIL_SIM_HIDDEN std::uint64_t exchange(unsigned mask, std::uint64_t value, int source, int line);
CUVIL_SIM_HIDDEN int lane();
CUVIL_SIM_HIDDEN void enlist(const char* name, void (*call)(void** arguments));

template <class T>
T exchanged(unsigned mask, T value, int source, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = exchange(mask, bits, source, line);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class... P, std::size_t... I>
CUVIL_SIM_UNCHECKED void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<P*>(arguments[I])...);
}
template <class... P>
CUVIL_SIM_UNCHECKED void call(void (*kernel)(P...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<P...>());
}

struct Enlisted {
    Enlisted(const char* name, void (*thunk)(void**)) { enlist(name, thunk); }
};

inline float half_value(unsigned short bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? __builtin_nanf("") : sign * __builtin_inff();
    return sign * (exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp(static_cast<float>(fraction), -24));
}

// Nearest, ties to even.
inline unsigned short half_bits(double x) {
    const unsigned short sign = std::signbit(x) ? 0x8000 : 0;
    const double size = std::fabs(x);
    if (x != x) return 0x7fff;
    if (size >= 65520.0) return sign | 0x7c00;
    if (size < 6.103515625e-05) return sign | static_cast<unsigned short>(std::nearbyint(std::ldexp(size, 24)));
    int exponent;
    std::frexp(size, &exponent);
    const int fraction = static_cast<int>(std::nearbyint(std::ldexp(size, 11 - exponent)));
    return sign | static_cast<unsigned short>(((exponent + 14) << 10) + (fraction - 1024));
}

}  // namespace cuvil_sim

#define CUVIL_SIM_KERNEL(name)                                                                            \
    static CUVIL_SIM_UNCHECKED void cuvil_sim_call_##name(void** a) { cuvil_sim::call(&name, a); }        \
    static const cuvil_sim::Enlisted cuvil_sim_enlisted_##name(#name, &cuvil_sim_call_##name);

struct half_t {
    unsigned short bits;
    half_t() = default;
    half_t(float x) : bits(cuvil_sim::half_bits(x)) {}
    template <class T>
    explicit half_t(T x) : bits(cuvil_sim::half_bits(static_cast<double>(x))) {}
    operator float() const { return cuvil_sim::half_value(bits); }
};

#define __syncthreads() cuvil_sim::barrier(__LINE__)
#define __shfl_xor_sync(mask, value, lanes) cuvil_sim::exchanged(mask, value, cuvil_sim::lane() ^ (lanes), __LINE__)
#define __shfl_down_sync(mask, value, by) cuvil_sim::exchanged(mask, value, cuvil_sim::lane() + (by), __LINE__)
#define __shfl_up_sync(mask, value, by) cuvil_sim::exchanged(mask, value, cuvil_sim::lane() - (by), __LINE__)
#define __shfl_sync(mask, value, source) cuvil_sim::exchanged(mask, value, (source) & 31, __LINE__)

inline int __dp4a(int a, int b, int c) {
    unsigned sum = static_cast<unsigned>(c);
    for (int i = 0; i < 32; i += 8) sum += static_cast<unsigned>(static_cast<signed char>(a >> i) * static_cast<signed char>(b >> i));
    return static_cast<int>(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
    return c;
}

// Threads take turns, so a plain addition can't be interrupted.
template <class T>
CUVIL_SIM_UNCHECKED T atomicAdd(T* at, T value) {
    const T before = *at;
    *at = before + value;
    return before;
}

#endif
