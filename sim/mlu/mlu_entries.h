// Turns a kernel into an entry of its module. A module's source ends with
//   CUVIL_MLU_MODULE(CUVIL_MLU_ENTRY(first), CUVIL_MLU_ENTRY(second))
#pragma once

#include <utility>

#include "mlu_core.h"

namespace cuvil_mlu {

template <auto F>
struct Thunk;

template <class... A, void (*F)(A...)>
struct Thunk<F> {
  static constexpr int bytes[sizeof...(A) + 1] = {int(sizeof(A))..., 0};

  template <size_t... I>
  __attribute__((no_sanitize("thread"))) static void spread(void **arguments, std::index_sequence<I...>) {
    (void)arguments;
    F(*static_cast<A *>(arguments[I])...);
  }

  __attribute__((no_sanitize("thread"))) static void call(void **arguments) {
    spread(arguments, std::index_sequence_for<A...>());
  }

  static cuvil_mlu_entry entry(const char *name) {
    return {name, reinterpret_cast<const void *>(F), call, int(sizeof...(A)), bytes};
  }
};

}  // namespace cuvil_mlu

#define CUVIL_MLU_ENTRY(name) ::cuvil_mlu::Thunk<&name>::entry(#name)
#define CUVIL_MLU_MODULE(...)                                                                               \
  extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) const cuvil_mlu_entry *          \
  cuvil_mlu_entries(int *count) {                                                                           \
    static const cuvil_mlu_entry entries[] = {__VA_ARGS__};                                                 \
    *count = int(sizeof entries / sizeof *entries);                                                         \
    return entries;                                                                                         \
  }
