// A simulated MLU core. Linked into every module of kernels, whose code was compiled with GCC's instrumentation of memory
// accesses (-fsanitize=thread and =bounds), answered here instead of by a sanitizer's runtime.
//
// NRAM, WRAM and SRAM are sections of the module. Every byte there has a state: never written (in this task), written, or
// between two arrays.
#include "bang.h"

#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <elf.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cuvil_mlu {
namespace {

enum State : unsigned char { UNWRITTEN, WRITTEN, GAP };

struct Array {
  uintptr_t base;
  size_t bytes;
  std::string owner, name;  // owner: the function that it is local to
  int space;
};

struct Space {
  const char *name, *section;
  uintptr_t base = 0, end = 0;
  std::vector<unsigned char> state;
};

enum { NRAM, WRAM, SRAM, SPACES, GDRAM, OTHER };
Space spaces[SPACES] = {{"NRAM", "mlu_nram"}, {"WRAM", "mlu_wram"}, {"SRAM", "mlu_sram"}};
const char *space_names[] = {"NRAM", "WRAM", "SRAM", "", "GDRAM", "no memory of the device"};
std::vector<Array> arrays;
std::string module_path;
uintptr_t module_base, module_end, stack_top;
const cuvil_mlu_launch *launch;
int current_task;
const char *current_file = "";
int current_line;
jmp_buf leave;
bool loaded;

// Text of what addr2line says of an address in this module: "model.mlu:12". It comes with the assembler that g++ needs.
std::string source_line(uintptr_t address) {
  char offset[32];
  snprintf(offset, sizeof offset, "0x%zx", size_t(address - module_base));
  int ends[2];
  if (pipe(ends) != 0) return offset;
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    close(ends[0]);
    execlp("addr2line", "addr2line", "-s", "-e", module_path.c_str(), offset, static_cast<char *>(nullptr));
    _exit(127);
  }
  close(ends[1]);
  std::string text;
  char part[256];
  for (ssize_t n; child > 0 && (n = read(ends[0], part, sizeof part)) > 0;) text.append(part, size_t(n));
  close(ends[0]);
  int status = 1;
  if (child > 0) waitpid(child, &status, 0);
  text = text.substr(0, text.find_first_of(" \n"));
  const bool known = status == 0 && !text.empty() && text[0] != '?';
  return known ? text : std::string(offset) + " of the module (addr2line would tell the line)";
}

[[noreturn]] void stop(const std::string &where, const char *rule, const std::string &detail) {
  snprintf(launch->error, launch->error_bytes, "kernel %s, %s, task %d: %s: %s", launch->entry->name, where.c_str(),
           current_task, rule, detail.c_str());
  longjmp(leave, 1);
}

std::string format(const char *text, va_list args) {
  char buffer[512];
  vsnprintf(buffer, sizeof buffer, text, args);
  return buffer;
}

std::string basename_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

// -- the module's own arrays ------------------------------------------------------------------------------------------

// `owner` and `name` of a mangled local variable (_ZZ6kernelE4tile), or an owner of "" for a global one.
void unmangle(const char *symbol, Array &array) {
  array.name = symbol;
  if (strncmp(symbol, "_ZZ", 3) != 0) return;
  char *end;
  const size_t n = strtoul(symbol + 3, &end, 10);
  if (n == 0 || strlen(end) < n) return;
  array.owner.assign(end, n);
  const char *inner = strchr(end + n, 'E');
  if (inner == nullptr) return;
  const size_t m = strtoul(inner + 1, &end, 10);
  if (m != 0 && strlen(end) >= m) array.name.assign(end, m);
}

std::vector<char> whole_file(const char *path) {
  std::vector<char> bytes;
  if (FILE *file = fopen(path, "rb")) {
    char part[1 << 16];
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) bytes.insert(bytes.end(), part, part + n);
    fclose(file);
  }
  return bytes;
}

// Reads this module's own symbol table: where each __nram__, __wram__ and __mlu_shared__ array lies, and whose it is.
void load_arrays() {
  Dl_info self;
  dladdr(reinterpret_cast<void *>(&load_arrays), &self);
  module_path = self.dli_fname;
  module_base = reinterpret_cast<uintptr_t>(self.dli_fbase);
  const std::vector<char> bytes = whole_file(self.dli_fname);
  const char *file = bytes.data();
  const auto *head = reinterpret_cast<const Elf64_Ehdr *>(file);
  const auto *parts = reinterpret_cast<const Elf64_Phdr *>(file + head->e_phoff);
  for (int i = 0; i < head->e_phnum; ++i)
    if (parts[i].p_type == PT_LOAD) module_end = std::max(module_end, module_base + parts[i].p_vaddr + parts[i].p_memsz);
  const auto *sections = reinterpret_cast<const Elf64_Shdr *>(file + head->e_shoff);
  const char *titles = file + sections[head->e_shstrndx].sh_offset;
  int of_section[SPACES] = {-1, -1, -1};
  for (int i = 0; i < head->e_shnum; ++i)
    for (int s = 0; s < SPACES; ++s)
      if (strcmp(titles + sections[i].sh_name, spaces[s].section) == 0) {
        of_section[s] = i;
        spaces[s].base = module_base + sections[i].sh_addr;
        spaces[s].end = spaces[s].base + sections[i].sh_size;
        spaces[s].state.assign(sections[i].sh_size, GAP);
      }
  for (int i = 0; i < head->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto *symbols = reinterpret_cast<const Elf64_Sym *>(file + sections[i].sh_offset);
    const char *names = file + sections[sections[i].sh_link].sh_offset;
    for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; ++k)
      for (int s = 0; s < SPACES; ++s)
        if (symbols[k].st_shndx == of_section[s] && ELF64_ST_TYPE(symbols[k].st_info) == STT_OBJECT &&
            symbols[k].st_size != 0) {
          Array array{module_base + symbols[k].st_value, symbols[k].st_size, "", "", s};
          unmangle(names + symbols[k].st_name, array);
          arrays.push_back(array);
        }
  }
  std::sort(arrays.begin(), arrays.end(), [](const Array &a, const Array &b) { return a.base < b.base; });
  loaded = true;
}

const Array *array_at(uintptr_t address) {
  auto after = std::upper_bound(arrays.begin(), arrays.end(), address,
                                [](uintptr_t x, const Array &a) { return x < a.base; });
  if (after == arrays.begin()) return nullptr;
  --after;
  return address < after->base + after->bytes ? &*after : nullptr;
}

// -- addresses --------------------------------------------------------------------------------------------------------

int space_of(uintptr_t address) {
  for (int s = 0; s < SPACES; ++s)
    if (address - spaces[s].base < spaces[s].end - spaces[s].base) return s;
  return OTHER;
}

const cuvil_mlu_range *allocation(uintptr_t address) {
  const auto *end = launch->gdram + launch->allocations;
  const auto *after =
      std::upper_bound(launch->gdram, end, address, [](uintptr_t x, const cuvil_mlu_range &r) { return x < r.base; });
  if (after == launch->gdram) return nullptr;
  --after;
  return address - after->base < after->bytes ? after : nullptr;
}

int kind_of(uintptr_t address) {
  const int s = space_of(address);
  return s != OTHER ? s : allocation(address) != nullptr ? GDRAM : OTHER;
}

std::string described(uintptr_t address) {
  if (const Array *a = array_at(address))
    return a->name + "[byte " + std::to_string(address - a->base) + " of " + std::to_string(a->bytes) + "]";
  return space_names[kind_of(address)];
}

// "" when `bytes` from `address` on may be accessed; else the rule that forbids it, with the detail.
const char *forbidden(uintptr_t address, size_t bytes, bool writes, std::string &detail) {
  const int s = space_of(address);
  if (s != OTHER) {
    unsigned char *state = &spaces[s].state[address - spaces[s].base];
    const size_t room = spaces[s].end - address;
    const size_t seen = std::min(bytes, room);
    const unsigned char *gap = static_cast<unsigned char *>(memchr(state, GAP, seen));
    const Array *first = array_at(address);
    const bool leaves = first != nullptr && address + bytes > first->base + first->bytes;
    if (gap != nullptr || seen < bytes || leaves) {
      detail = std::to_string(bytes) + " bytes from " + described(address) + " on leave the array";
      return "out of bounds";
    }
    if (writes) {
      memset(state, WRITTEN, bytes);
      return "";
    }
    const unsigned char *hole = static_cast<unsigned char *>(memchr(state, UNWRITTEN, bytes));
    if (hole == nullptr) return "";
    detail = described(address + size_t(hole - state)) + " is read before anything is written there";
    return "read before write";
  }
  if (const cuvil_mlu_range *r = allocation(address)) {
    if (address + bytes <= r->base + r->bytes) return "";
    detail = std::to_string(bytes) + " bytes from byte " + std::to_string(address - r->base) +
             " on leave the allocation of " + std::to_string(r->bytes) + " bytes in GDRAM";
    return "out of bounds";
  }
  detail = std::string("the address lies in ") + space_names[OTHER];
  return "out of bounds";
}

void touched(const void *pointer, size_t bytes, bool writes, const void *from) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const int s = space_of(address);
  if (s == NRAM) {  // the common case, kept short
    unsigned char *state = &spaces[s].state[address - spaces[s].base];
    bool fine = true;
    for (size_t i = 0; i < bytes; ++i) fine &= writes ? state[i] != GAP : state[i] == WRITTEN;
    if (fine) {
      if (writes) memset(state, WRITTEN, bytes);
      return;
    }
  }
  if (s == OTHER) {
    const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    if (address >= here && address < stack_top) return;  // a local variable
    if (address >= module_base && address < module_end) return;  // a table of the module
  }
  std::string detail;
  const char *rule = forbidden(address, bytes, writes, detail);
  if (*rule) stop(source_line(reinterpret_cast<uintptr_t>(from) - 1), rule, detail);
}

std::string here() { return basename_of(current_file) + ":" + std::to_string(current_line); }

void need(uintptr_t address, size_t bytes, bool writes) {
  std::string detail;
  const char *rule = forbidden(address, bytes, writes, detail);
  if (*rule) stop(here(), rule, detail);
}

struct Way {
  int from, to;
};

// From and to of every direction, in the order of mluMemcpyDirection_t; LDRAM is not simulated.
const int LDRAM = SPACES;
const Way ways[] = {
    {GDRAM, NRAM}, {NRAM, GDRAM}, {LDRAM, NRAM}, {NRAM, LDRAM}, {GDRAM, WRAM}, {WRAM, GDRAM}, {LDRAM, WRAM}, {WRAM, LDRAM},
    {NRAM, NRAM}, {NRAM, WRAM}, {WRAM, NRAM}, {GDRAM, SRAM}, {SRAM, GDRAM}, {LDRAM, SRAM}, {SRAM, LDRAM}, {SRAM, NRAM},
    {NRAM, SRAM}, {SRAM, WRAM}, {WRAM, SRAM}, {GDRAM, GDRAM}, {GDRAM, LDRAM}, {LDRAM, GDRAM}, {LDRAM, LDRAM}, {SRAM, SRAM},
};

void check_way(uintptr_t to, uintptr_t from, mluMemcpyDirection_t way) {
  const Way wanted = ways[way];
  const int a = kind_of(from), b = kind_of(to);
  if (a != wanted.from)
    violation("copy direction", "the source lies in %s, the direction says %s", space_names[a],
              wanted.from == LDRAM ? "LDRAM, which is not simulated" : space_names[wanted.from]);
  if (b != wanted.to)
    violation("copy direction", "the destination lies in %s, the direction says %s", space_names[b],
              wanted.to == LDRAM ? "LDRAM, which is not simulated" : space_names[wanted.to]);
}

void check_alignment(uintptr_t to, uintptr_t from, mluMemcpyDirection_t way, bool strided) {
  const Way w = ways[way];
  if ((w.from == WRAM && from % 8) || (w.to == WRAM && to % 8))
    violation("alignment", "addresses in WRAM are multiples of 8 bytes");
  if (!strided && way == NRAM2NRAM && (to % 64 || from % 64))
    violation("alignment", "copies within NRAM need addresses that are multiples of 64 bytes; source %% 64 is %d, "
              "destination %% 64 is %d", int(from % 64), int(to % 64));
}

void one_copy(uintptr_t to, uintptr_t from, size_t size) {
  if (size == 0) return;
  need(from, size, false);
  need(to, size, true);
  memmove(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), size);
}

void check_capacity() {
  const size_t limits[SPACES] = {launch->device->nram_bytes, launch->device->wram_bytes, launch->device->sram_bytes};
  int count;
  const cuvil_mlu_entry *entries = cuvil_mlu_entries(&count);
  for (int s = 0; s < SPACES; ++s) {
    size_t sum = 0;
    for (const Array &a : arrays) {
      bool others = false;
      for (int i = 0; i < count; ++i) others |= a.owner == entries[i].name && a.owner != launch->entry->name;
      if (a.space == s && !others) sum += a.bytes;
    }
    if (sum > limits[s])
      stop(source_line(reinterpret_cast<uintptr_t>(launch->entry->function)), "capacity",
           "its arrays take " + std::to_string(sum) + " bytes of " + space_names[s] + ", a core has " +
               std::to_string(limits[s]));
  }
}

void forget() {
  for (const Array &a : arrays) memset(&spaces[a.space].state[a.base - spaces[a.space].base], UNWRITTEN, a.bytes);
}

}  // namespace

void at(const char *file, int line) {
  current_file = file;
  current_line = line;
}

void violation(const char *rule, const char *detail, ...) {
  va_list args;
  va_start(args, detail);
  const std::string text = format(detail, args);
  va_end(args);
  stop(here(), rule, text);
}

int task() { return current_task; }
int tasks() { return launch->tasks; }

void copy(void *to, const void *from, int size, mluMemcpyDirection_t way) {
  const auto target = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
  if (size < 0) violation("copy size", "%d bytes", size);
  if (size == 0) return;
  check_way(target, source, way);
  check_alignment(target, source, way, false);
  one_copy(target, source, size_t(size));
}

void copy(void *to, const void *from, int size, mluMemcpyDirection_t way, int to_stride, int from_stride, int more) {
  auto target = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
  if (size < 0) violation("copy size", "%d bytes", size);
  if (more < 0 || more > 65535) violation("copy segments", "segnum is %d; it goes from 0 to 65535", more);
  if (size == 0) return;
  check_way(target, source, way);
  check_alignment(target, source, way, true);
  if ((ways[way].from == WRAM && from_stride % 8) || (ways[way].to == WRAM && to_stride % 8))
    violation("alignment", "strides in WRAM are multiples of 8 bytes");
  for (int i = 0; i <= more; ++i, target += uintptr_t(to_stride), source += uintptr_t(from_stride))
    one_copy(target, source, size_t(size));
}

void vector_rules(const char *name, int n, size_t element) {
  if (n <= 0) violation("vector size", "%s of %d elements", name, n);
  if (launch->device->arch < 300 && size_t(n) * element % 128)
    violation("vector size", "%s works on multiples of 128 bytes on this chip, not on %zu", name, size_t(n) * element);
}

void fill_rules(const char *name, int n, size_t element) {
  if (n <= 0) violation("vector size", "%s of %d elements", name, n);
  if (launch->device->arch < 300 && size_t(n) * element % 64)
    violation("vector size", "%s works on multiples of 64 bytes on this chip, not on %zu", name, size_t(n) * element);
}

void vector_operand(const char *name, const void *pointer, size_t bytes, bool writes) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (kind_of(address) != NRAM) violation("vector operand", "%s works on NRAM, not on %s", name, space_names[kind_of(address)]);
  if (launch->device->arch < 300 && address % 64)
    violation("alignment", "%s needs addresses that are multiples of 64 bytes on this chip; %% 64 is %d", name, int(address % 64));
  need(address, bytes, writes);
}

}  // namespace cuvil_mlu

using namespace cuvil_mlu;

// -- what instrumented code calls -------------------------------------------------------------------------------------

#define ACCESS(name, bytes, writes) \
  extern "C" void name(void *address) { touched(address, bytes, writes, __builtin_return_address(0)); }
#define ACCESSES(bytes)                           \
  ACCESS(__tsan_read##bytes, bytes, false)        \
  ACCESS(__tsan_write##bytes, bytes, true)
#define UNALIGNED(bytes)                                     \
  ACCESS(__tsan_unaligned_read##bytes, bytes, false)         \
  ACCESS(__tsan_unaligned_write##bytes, bytes, true)
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16) UNALIGNED(2) UNALIGNED(4) UNALIGNED(8) UNALIGNED(16)

extern "C" {

void __tsan_read_range(void *address, size_t bytes) { touched(address, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void *address, size_t bytes) { touched(address, bytes, true, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

struct ubsan_place {
  const char *file;
  uint32_t line, column;
};

void __ubsan_handle_out_of_bounds(const ubsan_place *place, uintptr_t index) {
  stop(basename_of(place->file) + ":" + std::to_string(place->line), "out of bounds",
       "index " + std::to_string(intptr_t(index)) + " leaves the array");
}

__attribute__((visibility("default"))) int cuvil_mlu_run(const cuvil_mlu_launch *asked) {
  launch = asked;
  current_task = 0;
  stack_top = reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) + 64;
  if (!loaded) load_arrays();
  if (setjmp(leave) != 0) return 1;
  check_capacity();
  for (current_task = 0; current_task < launch->tasks; ++current_task) {
    forget();
    launch->entry->call(launch->arguments);
  }
  return 0;
}

}
