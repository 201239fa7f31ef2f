// Runs blocks and threads of emitted CUDA C++ and, in the checking build, watches every access to memory.
//
// A launch ends at the first violation, which names block, thread and rule:
//   out-of-bounds        an access outside the launch's buffers, shared arrays and constant tables
//   misaligned           a word that doesn't begin at a multiple of its size
//   shared-memory race   two threads of a block, one writing, no barrier between them
//   global-memory race   two threads, one writing, not in one block with a barrier between them
//   divergent barrier    threads of a block that wait at different barriers, or some of which have ended
//   divergent shuffle    lanes that wait for lanes that never come
#include "cuvil_cuda_sim.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

CUVIL_SIM_HIDDEN cuvil_sim_dim threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr int kMostThreads = 1024;

// -- fibers ----------------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
using Context = void*;
extern "C" void cuvil_sim_switch(void** save, void* to);
// What the System V ABI asks a callee to keep; a call of ucontext's costs a system call.
asm(R"(
.text
.type cuvil_sim_switch,@function
cuvil_sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuvil_sim_switch, .-cuvil_sim_switch
)");
void prepare(Context& context, char* stack, void (*entry)()) {
    void** top = reinterpret_cast<void**>(stack + kStackBytes);
    top[-1] = nullptr;
    top[-2] = reinterpret_cast<void*>(entry);
    std::fill(top - 8, top - 2, nullptr);
    context = top - 8;
}
void change(Context& from, Context& to) { cuvil_sim_switch(&from, to); }
#else
using Context = ucontext_t;
void prepare(Context& context, char* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
void change(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

enum State { kReady, kBarrier, kShuffle, kEnded };

struct Thread {
    Context context;
    State state;
    int line;
    int phase;  // of the shuffle that it waits for
};

struct Warp {
    std::uint64_t value[2][32];
    unsigned arrived;
    int phase;
};

struct Span {
    std::uintptr_t begin, end;
    std::string name;
    bool shared;
    bool writable;
};

// Who touched a byte last. `reader`: 0 none, -1 several threads, else thread + 1.
struct Touch {
    std::uint32_t write_epoch, read_epoch;
    int writer, reader;
    unsigned write_block, read_block;
};

Thread threads[kMostThreads];
Warp warps[kMostThreads / 32];
char* stacks = nullptr;
Context scheduler;
int current = -1;  // number of the running thread
bool fibers = false;
std::string failure;
void (*kernel)(void**) = nullptr;
void** arguments = nullptr;
std::map<std::string, void (*)(void**)>* kernels = nullptr;

// The checking build's knowledge.
std::vector<Span> spans, symbols;
std::vector<std::vector<Touch>> touched, touched_symbols;
std::uint32_t epoch = 0;  // grows at every barrier and every block
bool watching = false;

[[noreturn]] void fail(const char* rule, const std::string& what) {
    failure = std::string(rule) + ": " + what;
    change(threads[current].context, scheduler);  // never comes back: the launch is over
    __builtin_unreachable();
}

void entry() {
    kernel(arguments);
    threads[current].state = kEnded;
    change(threads[current].context, scheduler);
}

std::string place(int thread) {
    return "block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(thread);
}

// The rule that is broken when no thread can go on; "" when all wait at one barrier.
std::string stuck(int count) {
    int waiting = -1, other = -1, shuffling = -1;
    for (int t = 0; t < count; ++t) {
        if (threads[t].state == kShuffle) shuffling = t;
        if (threads[t].state == kBarrier && waiting < 0) waiting = t;
    }
    if (shuffling >= 0) {
        return "divergent shuffle: " + place(shuffling) + " waits in line " + std::to_string(threads[shuffling].line) +
               " for lanes that don't come";
    }
    for (int t = 0; t < count; ++t) {
        if (threads[t].state != kBarrier || threads[t].line != threads[waiting].line) other = t;
    }
    if (other < 0) return "";
    const std::string at = "divergent barrier: " + place(waiting) + " waits in line " +
                           std::to_string(threads[waiting].line) + ", thread " + std::to_string(other);
    return at + (threads[other].state == kEnded ? " has ended" : " waits in line " + std::to_string(threads[other].line));
}

void run_block_of_fibers(int count) {
    for (int t = 0; t < count; ++t) {
        threads[t].state = kReady;
        prepare(threads[t].context, stacks + t * kStackBytes, &entry);
    }
    for (int w = 0; w * 32 < count; ++w) warps[w].arrived = warps[w].phase = 0;
    for (int ended = 0;;) {
        bool moved = false;
        for (int t = 0; t < count; ++t) {
            if (threads[t].state != kReady) continue;
            moved = true;
            current = t;
            threadIdx.x = t;
            change(scheduler, threads[t].context);
            if (!failure.empty()) return;
            ended += threads[t].state == kEnded;
        }
        if (ended == count) return;
        if (moved) continue;
        failure = stuck(count);
        if (!failure.empty()) return;
        for (int t = 0; t < count; ++t) threads[t].state = kReady;
        ++epoch;
    }
}

void run(long blocks, int count) {
    blockDim = {static_cast<unsigned>(count), 1, 1};
    gridDim = {static_cast<unsigned>(blocks), 1, 1};
    for (long b = 0; b < blocks && failure.empty(); ++b) {
        blockIdx = {static_cast<unsigned>(b), 0, 0};
        threadIdx = {0, 0, 0};
        ++epoch;
        if (fibers) {
            run_block_of_fibers(count);
        } else {
            for (int t = 0; t < count; ++t) {
                threadIdx.x = t;
                kernel(arguments);
            }
        }
    }
}

// -- checks ----------------------------------------------------------------------------------------------------------

long find(const std::vector<Span>& in, std::uintptr_t at) {
    auto after = std::upper_bound(in.begin(), in.end(), at, [](std::uintptr_t a, const Span& s) { return a < s.begin; });
    return after - in.begin() - 1;
}

std::string thread_name(int thread, unsigned block) {
    return "thread " + std::to_string(thread) + (block == blockIdx.x ? "" : " of block " + std::to_string(block));
}

void race(const Span& span, std::vector<Touch>& all, std::uintptr_t at, std::size_t size, bool writes) {
    if (all.empty()) all.resize(span.end - span.begin);
    const int me = static_cast<int>(current);
    const char* rule = span.shared ? "shared-memory race" : "global-memory race";
    for (std::size_t n = at - span.begin; n < at - span.begin + size; ++n) {
        Touch& t = all[n];
        // Of another block: it may run at the same time, whatever its epoch. Blocks don't share shared memory.
        const auto together = [&](std::uint32_t when, unsigned block) {
            return span.shared ? when == epoch : block != blockIdx.x || when == epoch;
        };
        const bool own_write = t.writer == me + 1 && t.write_block == blockIdx.x;
        if (t.writer && !own_write && together(t.write_epoch, t.write_block)) {
            fail(rule, place(me) + (writes ? " writes " : " reads ") + span.name + " at byte " + std::to_string(n) +
                           ", which " + thread_name(t.writer - 1, t.write_block) + " writes with no barrier between");
        }
        const bool own_read = t.reader == me + 1 && t.read_block == blockIdx.x;
        if (writes && t.reader && !own_read && together(t.read_epoch, t.read_block)) {
            const std::string who = t.reader < 0 ? "several threads" : thread_name(t.reader - 1, t.read_block);
            fail(rule, place(me) + " writes " + span.name + " at byte " + std::to_string(n) + ", which " + who +
                           " read with no barrier between");
        }
        if (writes) {
            t.writer = me + 1, t.write_epoch = epoch, t.write_block = blockIdx.x;
        } else if (!t.reader || !together(t.read_epoch, t.read_block)) {
            t.reader = me + 1, t.read_epoch = epoch, t.read_block = blockIdx.x;
        } else if (!own_read) {
            t.reader = -1;
        }
    }
}

void access(const void* pointer, std::size_t size, bool writes, bool aligned = true) {
    if (!watching || current < 0) return;
    const auto at = reinterpret_cast<std::uintptr_t>(pointer);
    const auto stack = reinterpret_cast<std::uintptr_t>(stacks) + current * kStackBytes;
    if (at - stack < kStackBytes) return;
    for (const cuvil_sim_dim* d : {&threadIdx, &blockIdx, &blockDim, &gridDim}) {
        if (at - reinterpret_cast<std::uintptr_t>(d) < sizeof *d) return;
    }
    const char* what = writes ? " writes " : " reads ";
    const std::string bytes = std::to_string(size) + " bytes";
    if (aligned && at % size) fail("misaligned", place(current) + what + bytes + " at an address that they don't divide");
    for (auto* in : {&spans, &symbols}) {
        const long n = find(*in, at);
        if (n < 0) continue;
        const Span& span = (*in)[n];
        if (at + size <= span.end) {
            if (writes && !span.writable) fail("out-of-bounds", place(current) + " writes " + span.name + ", which is constant");
            if (span.writable) race(span, (in == &spans ? touched : touched_symbols)[n], at, size, writes);
            return;
        }
    }
    std::string near;
    std::uintptr_t best = ~std::uintptr_t(0);
    for (auto* in : {&spans, &symbols}) {
        for (const Span& s : *in) {
            const std::uintptr_t far = at < s.begin ? s.begin - at : at - s.begin;
            if (far < best) {
                best = far;
                near = " at byte " + std::string(at < s.begin ? "-" : "") + std::to_string(far) + " of " + s.name + ", which has " +
                       std::to_string(s.end - s.begin);
            }
        }
    }
    fail("out-of-bounds", place(current) + what + bytes + near);
}

}  // namespace

// -- what emitted code calls -------------------------------------------------------------------------------------------

void cuvil_sim::enlist(const char* name, void (*call)(void**)) {
    if (!kernels) kernels = new std::map<std::string, void (*)(void**)>;
    (*kernels)[name] = call;
}

int cuvil_sim::lane() { return static_cast<int>(threadIdx.x & 31); }

void cuvil_sim::barrier(int line) {
    if (!fibers) throw std::logic_error("the kernel has a barrier, but wasn't launched as cooperative");
    Thread& me = threads[current];
    me.state = kBarrier;
    me.line = line;
    change(me.context, scheduler);
}

std::uint64_t cuvil_sim::exchange(unsigned mask, std::uint64_t value, int source, int line) {
    if (!fibers) throw std::logic_error("the kernel has a shuffle, but wasn't launched as cooperative");
    const int lane = current & 31;
    Warp& warp = warps[current / 32];
    Thread& me = threads[current];
    if (!(mask >> lane & 1)) fail("divergent shuffle", place(current) + " isn't in its own mask, line " + std::to_string(line));
    me.phase = warp.phase & 1;
    warp.value[me.phase][lane] = value;
    warp.arrived |= 1u << lane;
    me.state = kShuffle;
    me.line = line;
    if (warp.arrived == mask) {
        for (int l = 0; l < 32; ++l) {
            if (mask >> l & 1) threads[(current & ~31) + l].state = kReady;
        }
        warp.arrived = 0;
        ++warp.phase;
    } else {
        change(me.context, scheduler);
    }
    return source >= 0 && source < 32 && (mask >> source & 1) ? warp.value[me.phase][source] : value;
}

extern "C" {

__attribute__((visibility("default"))) int cuvil_cuda_checks() {
#ifdef CUVIL_SIM_CHECK
    return 1;
#else
    return 0;
#endif
}

// Shared arrays and constant tables, as the symbol table of the library has them.
__attribute__((visibility("default"))) void cuvil_cuda_symbols(long n, const std::uintptr_t* begin, const long* bytes,
                                                               const char* const* name, const int* shared) {
    symbols.clear();
    for (long i = 0; i < n; ++i) symbols.push_back({begin[i], begin[i] + bytes[i], name[i], shared[i] != 0, shared[i] != 0});
    std::sort(symbols.begin(), symbols.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
}

// One launch. `given`: pointers to the arguments, as for cuLaunchKernel; `buffers`: what the kernel may touch.
// Returns 0, or 1 with the violation in `error`.
__attribute__((visibility("default"))) int cuvil_cuda_launch(const char* name, long blocks, int count, int cooperative,
                                                             void** given, long buffers, const std::uintptr_t* begin,
                                                             const long* bytes, const int* writable,
                                                             const char* const* names, char* error, long error_bytes) {
    const auto found = kernels ? kernels->find(name) : std::map<std::string, void (*)(void**)>::iterator();
    failure.clear();
    if (!kernels || found == kernels->end()) {
        failure = std::string("no kernel of that name: ") + name;
    } else if (count < 1 || count > kMostThreads || blocks < 1 || blocks > 2147483647L) {
        failure = "launch limits: " + std::to_string(blocks) + " blocks of " + std::to_string(count) + " threads";
    } else {
        if (!stacks) {
            void* got = mmap(nullptr, kMostThreads * kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            stacks = got == MAP_FAILED ? nullptr : static_cast<char*>(got);
        }
        if (!stacks) {
            failure = "no memory for the stacks of threads";
        } else {
            kernel = found->second;
            arguments = given;
            fibers = cooperative || cuvil_cuda_checks();
            spans.clear();
            for (long i = 0; i < buffers; ++i) {
                if (bytes[i]) spans.push_back({begin[i], begin[i] + bytes[i], names[i], false, writable[i] != 0});
            }
            std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
            touched.assign(spans.size(), {});
            touched_symbols.resize(symbols.size());
            watching = cuvil_cuda_checks();
            current = -1;
            try {
                run(blocks, count);
            } catch (const std::logic_error& e) {
                failure = e.what();
            }
            watching = false;
            current = -1;
        }
    }
    if (failure.empty()) return 0;
    std::snprintf(error, error_bytes, "%s", failure.c_str());
    return 1;
}

// What g++ -fsanitize=thread calls before each access.
#define CUVIL_SIM_HOOK(size)                                                                               \
    CUVIL_SIM_HIDDEN void __tsan_read##size(void* p) { access(p, size, false); }                           \
    CUVIL_SIM_HIDDEN void __tsan_write##size(void* p) { access(p, size, true); }                           \
    CUVIL_SIM_HIDDEN void __tsan_unaligned_read##size(void* p) { access(p, size, false, false); }          \
    CUVIL_SIM_HIDDEN void __tsan_unaligned_write##size(void* p) { access(p, size, true, false); }
CUVIL_SIM_HOOK(1)
CUVIL_SIM_HOOK(2)
CUVIL_SIM_HOOK(4)
CUVIL_SIM_HOOK(8)
CUVIL_SIM_HOOK(16)
CUVIL_SIM_HIDDEN void __tsan_read_range(void* p, std::size_t n) { access(p, n, false, false); }
CUVIL_SIM_HIDDEN void __tsan_write_range(void* p, std::size_t n) { access(p, n, true, false); }
CUVIL_SIM_HIDDEN void __tsan_func_entry(void*) {}
CUVIL_SIM_HIDDEN void __tsan_func_exit(void) {}
CUVIL_SIM_HIDDEN void __tsan_init(void) {}

}  // extern "C"
