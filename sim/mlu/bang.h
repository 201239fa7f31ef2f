// BANG C on the host: qualifiers, builtin variables and the intrinsics that the simulator models, each of which checks
// the documented rules. What isn't modelled isn't declared, so that it fails to compile rather than to simulate.
#pragma once

#include <cmath>
#include <cstdint>

#include "mlu_core.h"

typedef _Float16 half;

#define __mlu_entry__ __attribute__((visibility("default"), noinline))
#define __mlu_global__ __mlu_entry__
#define __mlu_func__
#define __mlu_device__
#define __mlu_const__ static
#define __nram__ static __attribute__((section("mlu_nram"), used))
#define __wram__ static __attribute__((section("mlu_wram"), used))
#define __mlu_shared__ static __attribute__((section("mlu_sram"), used))

// The order is the vendor's: values are 0 to 23.
enum mluMemcpyDirection_t {
  GDRAM2NRAM, NRAM2GDRAM, LDRAM2NRAM, NRAM2LDRAM, GDRAM2WRAM, WRAM2GDRAM, LDRAM2WRAM, WRAM2LDRAM,
  NRAM2NRAM, NRAM2WRAM, WRAM2NRAM, GDRAM2SRAM, SRAM2GDRAM, LDRAM2SRAM, SRAM2LDRAM, SRAM2NRAM,
  NRAM2SRAM, SRAM2WRAM, WRAM2SRAM, GDRAM2GDRAM, GDRAM2LDRAM, LDRAM2GDRAM, LDRAM2LDRAM, SRAM2SRAM,
};

namespace cuvil_mlu {

void copy(void *to, const void *from, int size, mluMemcpyDirection_t way);
void copy(void *to, const void *from, int size, mluMemcpyDirection_t way, int to_stride, int from_stride, int more);

template <class T, class F>
void elementwise(const char *name, T *to, const T *a, const T *b, int n, F f) {
  const size_t bytes = size_t(n) * sizeof(T);
  vector_rules(name, n, sizeof(T));
  vector_operand(name, a, bytes, false);
  vector_operand(name, b, bytes, false);
  vector_operand(name, to, bytes, true);
  for (int i = 0; i < n; ++i) to[i] = f(a[i], b[i]);
}

template <class T>
void bang_write_value(T *to, int n, T value) {
  fill_rules("__bang_write_value", n, sizeof(T));
  vector_operand("__bang_write_value", to, size_t(n) * sizeof(T), true);
  for (int i = 0; i < n; ++i) to[i] = value;
}

#define CUVIL_MLU_ELEMENTWISE(name, op)                                                          \
  template <class T>                                                                             \
  void bang_##name(T *to, const T *a, const T *b, int n) {                                       \
    elementwise("__bang_" #name, to, a, b, n, [](T x, T y) { return T(x op y); });               \
  }                                                                                              \
  template <class T>                                                                             \
  void bang_##name##_scalar(T *to, const T *a, T value, int n) {                                 \
    elementwise("__bang_" #name "_scalar", to, a, a, n, [value](T x, T) { return T(x op value); }); \
  }
CUVIL_MLU_ELEMENTWISE(add, +)
CUVIL_MLU_ELEMENTWISE(sub, -)
CUVIL_MLU_ELEMENTWISE(mul, *)
#undef CUVIL_MLU_ELEMENTWISE

}  // namespace cuvil_mlu

#define CUVIL_MLU_AT ::cuvil_mlu::at(__FILE__, __LINE__)
#define __memcpy(...) (CUVIL_MLU_AT, ::cuvil_mlu::copy(__VA_ARGS__))
#define __bang_add(...) (CUVIL_MLU_AT, ::cuvil_mlu::bang_add(__VA_ARGS__))
#define __bang_sub(...) (CUVIL_MLU_AT, ::cuvil_mlu::bang_sub(__VA_ARGS__))
#define __bang_mul(...) (CUVIL_MLU_AT, ::cuvil_mlu::bang_mul(__VA_ARGS__))
#define __bang_add_scalar(...) (CUVIL_MLU_AT, ::cuvil_mlu::bang_add_scalar(__VA_ARGS__))
#define __bang_sub_scalar(...) (CUVIL_MLU_AT, ::cuvil_mlu::bang_sub_scalar(__VA_ARGS__))
#define __bang_mul_scalar(...) (CUVIL_MLU_AT, ::cuvil_mlu::bang_mul_scalar(__VA_ARGS__))
#define __bang_write_value(...) (CUVIL_MLU_AT, ::cuvil_mlu::bang_write_value(__VA_ARGS__))

#define taskId (::cuvil_mlu::task())
#define taskDim (::cuvil_mlu::tasks())
