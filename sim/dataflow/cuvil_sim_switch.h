// Switching between coroutines: prepare() a context on a stack, then change() from one to another.
#ifndef CUVIL_SIM_SWITCH_H
#define CUVIL_SIM_SWITCH_H

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cuvil {
namespace sim {

#if defined(__x86_64__)
typedef void* Context;

// Saves what the System V ABI asks a callee to keep; a call of ucontext's costs a system call.
__attribute__((naked, noinline)) inline void switch_stacks(void** /*save*/, void* /*to*/) {
    asm("pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
        "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
        "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret");
}
inline void prepare(Context& context, void* stack, std::size_t bytes, void (*entry)()) {
    void** top = reinterpret_cast<void**>(static_cast<char*>(stack) + bytes);
    top[-1] = nullptr;  // entry() never returns
    top[-2] = reinterpret_cast<void*>(entry);
    for (int i = 3; i <= 8; ++i) top[-i] = nullptr;
    context = top - 8;
}
inline void change(Context& from, Context& to) { switch_stacks(&from, to); }
#else
typedef ucontext_t Context;

inline void prepare(Context& context, void* stack, std::size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
inline void change(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

}  // namespace sim
}  // namespace cuvil

#endif
