// What a simulated core knows of its memories, and what the simulated driver asks of a module of kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuvil_mlu {

// Remembers where in the source the next intrinsic stands.
void at(const char *file, int line);
// Stops the kernel. `rule` is a short name, `detail` says what broke it.
[[noreturn]] void violation(const char *rule, const char *detail, ...) __attribute__((format(printf, 2, 3)));

int task();
int tasks();
void vector_rules(const char *name, int n, size_t element);
void fill_rules(const char *name, int n, size_t element);
// An operand of a vector intrinsic: in NRAM, aligned, inside one array; read values must have been written.
void vector_operand(const char *name, const void *at, size_t bytes, bool writes);

}  // namespace cuvil_mlu

extern "C" {

struct cuvil_mlu_range {
  uintptr_t base;
  size_t bytes;
};

struct cuvil_mlu_device {
  int arch;  // 220, 270, 290, 322, 372
  size_t nram_bytes, wram_bytes, sram_bytes;
};

// A kernel: how to call it with pointers to its arguments, and the size of each.
struct cuvil_mlu_entry {
  const char *name;
  const void *function;
  void (*call)(void **arguments);
  int count;
  const int *bytes;
};

struct cuvil_mlu_launch {
  const cuvil_mlu_entry *entry;
  void **arguments;
  int tasks;
  const cuvil_mlu_device *device;
  const cuvil_mlu_range *gdram;  // by base
  int allocations;
  char *error;
  size_t error_bytes;
};

// Exported by every module: its kernels, and a run of one on all tasks (0, or 1 with the error's text).
const cuvil_mlu_entry *cuvil_mlu_entries(int *count);
int cuvil_mlu_run(const cuvil_mlu_launch *launch);

}
