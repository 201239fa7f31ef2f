// Runs a design of the temporal style, whose ports all lead to one memory (m_axi), behind a C ABI:
//
//   #include "top.cpp"               // void top(const word* weights, …, int8_t* as_int8, …);
//   #include <cuvil_sim_memory.h>
//   CUVIL_SIM_MEMORY_DESIGN(top)
//
// It exports int cuvil_sim_memory_run(void* memory, char* error, long error_size): one sample; 0: done; 1: failed, `error`
// holds a text.
#ifndef CUVIL_SIM_MEMORY_H
#define CUVIL_SIM_MEMORY_H

#include <cstdio>
#include <exception>

namespace cuvil {
namespace sim {

template <class... POINTED> int run_in_memory(void (*top)(POINTED*...), void* memory, char* error, long error_size) {
    try {
        top(static_cast<POINTED*>(memory)...);
    } catch (const std::exception& problem) {
        if (error && error_size > 0) std::snprintf(error, error_size, "%s", problem.what());
        return 1;
    }
    return 0;
}

}  // namespace sim
}  // namespace cuvil

#define CUVIL_SIM_MEMORY_DESIGN(TOP)                                                         \
    extern "C" int cuvil_sim_memory_run(void* memory, char* error, long error_size) {        \
        return cuvil::sim::run_in_memory(&TOP, memory, error, error_size);                   \
    }

#endif
