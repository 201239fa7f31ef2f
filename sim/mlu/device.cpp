#include "device.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mlu_core.h"

namespace cuvil_mlu {

struct Queue {
  std::string error;
};

struct Kernel {
  Module *module;
  const cuvil_mlu_entry *entry;
};

struct Module {
  void *library;
  int file;  // of a module that came as bytes; -1
  int (*run)(const cuvil_mlu_launch *);
  std::vector<Kernel> kernels;
};

namespace {

std::recursive_mutex lock;  // one core at a time: the arrays of a kernel exist once
std::map<uintptr_t, size_t> allocations;
size_t used;
std::map<const void *, Kernel> by_function;
Queue default_queue;
thread_local std::string error_text;
const cuvil_mlu_device device = {CUVIL_MLU_ARCH, CUVIL_MLU_NRAM_BYTES, CUVIL_MLU_WRAM_BYTES, CUVIL_MLU_SRAM_BYTES};

// A process that is forked while another thread is inside has no such thread: it would wait for ever. So forking waits
// for that thread, and the new process has a lock that nobody holds.
const int at_fork = pthread_atfork([] { lock.lock(); }, [] { lock.unlock(); }, [] { new (&lock) std::recursive_mutex; });

bool inside(uintptr_t address, size_t bytes) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return false;
  --after;
  return address + bytes <= after->first + after->second;
}

}  // namespace

int fail(const char *text, ...) {
  char buffer[2048];
  va_list args;
  va_start(args, text);
  vsnprintf(buffer, sizeof buffer, text, args);
  va_end(args);
  error_text = buffer;
  return 1;
}

const char *last_error() { return error_text.c_str(); }

int allocate(size_t bytes, uintptr_t *address) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (bytes == 0) return fail("an allocation of 0 bytes");
  if (bytes > CUVIL_MLU_GDRAM_BYTES - used)
    return fail("out of GDRAM: %zu bytes asked for, %zu of %zu are left", bytes, size_t(CUVIL_MLU_GDRAM_BYTES) - used,
                size_t(CUVIL_MLU_GDRAM_BYTES));
  // The bytes between allocations belong to none, so that running over the end of one is found.
  void *memory = aligned_alloc(256, (bytes + 511) / 256 * 256);
  if (memory == nullptr) return fail("the host has no %zu bytes for simulated GDRAM", bytes);
  memset(memory, 0xA5, bytes);
  *address = reinterpret_cast<uintptr_t>(memory);
  allocations[*address] = bytes;
  used += bytes;
  return 0;
}

int release(uintptr_t address) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  const auto found = allocations.find(address);
  if (found == allocations.end()) return fail("free of %#zx, which is no allocation", size_t(address));
  used -= found->second;
  allocations.erase(found);
  free(reinterpret_cast<void *>(address));
  return 0;
}

int copy_bytes(uintptr_t to, uintptr_t from, size_t bytes, bool to_device, bool from_device) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  if ((to_device && !inside(to, bytes)) || (from_device && !inside(from, bytes)))
    return fail("a copy of %zu bytes %s outside every allocation in GDRAM", bytes, to_device ? "to" : "from");
  if ((!to_device && inside(to, 1)) || (!from_device && inside(from, 1)))
    return fail("copy direction: a host address is expected, this one is in GDRAM");
  memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes);
  return 0;
}

void free_bytes(size_t *left, size_t *total) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  *left = CUVIL_MLU_GDRAM_BYTES - used;
  *total = CUVIL_MLU_GDRAM_BYTES;
}

int open_module(const char *path, Module **module) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fail("%s", dlerror());
  auto entries = reinterpret_cast<const cuvil_mlu_entry *(*)(int *)>(dlsym(library, "cuvil_mlu_entries"));
  auto run = reinterpret_cast<int (*)(const cuvil_mlu_launch *)>(dlsym(library, "cuvil_mlu_run"));
  if (entries == nullptr || run == nullptr) {
    dlclose(library);
    return fail("%s is no module of the simulator", path);
  }
  int count;
  const cuvil_mlu_entry *first = entries(&count);
  *module = new Module{library, -1, run, {}};
  for (int i = 0; i < count; ++i) {
    (*module)->kernels.push_back({*module, first + i});
    by_function[first[i].function] = {*module, first + i};
  }
  return 0;
}

int open_image(const void *image, Module **module) {
  const auto *head = static_cast<const Elf64_Ehdr *>(image);
  if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0) return fail("the image is no fat binary of the simulator");
  const size_t bytes = head->e_shoff + size_t(head->e_shnum) * head->e_shentsize;  // its section headers come last
  const int file = memfd_create("module", 0);
  if (file < 0 || write(file, image, bytes) != ssize_t(bytes)) return fail("the host has no %zu bytes for a module", bytes);
  // The loader takes what has a name that it knows for loaded, and keeps names of libraries that it could not unload:
  // the file's number may come again, so the moment is written into the name, in bits: "./" or "/".
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::string path = "/proc/self/fd/";
  for (unsigned long long ns = now.tv_sec * 1000000000ull + now.tv_nsec; ns != 0; ns >>= 1) path += ns & 1 ? "./" : "/";
  path += std::to_string(file);
  const int status = open_module(path.c_str(), module);
  if (status != 0)
    close(file);
  else
    (*module)->file = file;
  return status;
}

void close_module(Module *module) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  for (const Kernel &kernel : module->kernels) by_function.erase(kernel.entry->function);
  dlclose(module->library);
  if (module->file >= 0) close(module->file);
  delete module;
}

Kernel *find_kernel(Module *module, const char *name) {
  for (Kernel &kernel : module->kernels)
    if (dlsym(module->library, name) == kernel.entry->function) return &kernel;
  fail("no kernel %s in this module; is its entry extern \"C\"?", name);
  return nullptr;
}

Kernel *kernel_at(const void *function) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto found = by_function.find(function);
  if (found == by_function.end()) {
    // Host code that was linked with its kernels registers them by itself; here the library is asked when first used.
    Dl_info info;
    Module *module;
    if (dladdr(function, &info) == 0 || open_module(info.dli_fname, &module) != 0) return nullptr;
    found = by_function.find(function);
    if (found == by_function.end()) return fail("this function is no kernel"), nullptr;
  }
  return &found->second;
}

Queue *new_queue() { return new Queue; }
void delete_queue(Queue *queue) { delete queue; }

int enqueue(Queue *queue, Kernel *kernel, unsigned tasks, void **arguments) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (queue == nullptr) queue = &default_queue;
  if (!queue->error.empty()) return 0;  // nothing runs after a kernel that failed
  std::vector<cuvil_mlu_range> gdram;
  for (const auto &[base, bytes] : allocations) gdram.push_back({base, bytes});
  char error[1024] = "";
  const cuvil_mlu_launch launch = {kernel->entry, arguments, int(tasks), &device, gdram.data(), int(gdram.size()),
                                   error, sizeof error};
  if (kernel->module->run(&launch) != 0) queue->error = error;
  return 0;
}

int enqueue_packed(Queue *queue, Kernel *kernel, unsigned tasks, const unsigned char *packed, size_t bytes) {
  std::vector<void *> arguments;
  std::vector<unsigned char> copy(packed, packed + bytes);
  size_t at = 0;
  for (int i = 0; i < kernel->entry->count; at += size_t(kernel->entry->bytes[i]), ++i) {
    if (at + size_t(kernel->entry->bytes[i]) > bytes)
      return fail("kernel %s takes %d arguments; its parameter buffer ends before number %d", kernel->entry->name,
                  kernel->entry->count, i + 1);
    arguments.push_back(copy.data() + at);
  }
  if (at != bytes) return fail("kernel %s: %zu bytes of parameters too many", kernel->entry->name, bytes - at);
  return enqueue(queue, kernel, tasks, arguments.data());
}

int wait(Queue *queue) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (queue == nullptr) queue = &default_queue;
  if (queue->error.empty()) return 0;
  const std::string error = queue->error;
  queue->error.clear();
  return fail("%s", error.c_str());
}

int attribute(int number, int *value) {
  switch (number) {
    case 0x205: *value = CUVIL_MLU_CLUSTERS; return 0;
    case 0x206: *value = CUVIL_MLU_CORES; return 0;
    case 0x302: *value = CUVIL_MLU_NRAM_BYTES; return 0;
    case 0x303: *value = CUVIL_MLU_WRAM_BYTES; return 0;
    case 0x306: *value = CUVIL_MLU_SRAM_BYTES; return 0;
    case 0x405: *value = int(CUVIL_MLU_GDRAM_BYTES >> 20); return 0;
  }
  return fail("attribute %#x is not simulated", unsigned(number));
}

}  // namespace cuvil_mlu
