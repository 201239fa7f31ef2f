// Runs a design of the temporal style, whose ports all lead to one memory (m_axi), behind a C ABI:
//
//   #include "top.cpp"               // void top(const word* weights, …, int8_t* as_int8, …);
//   #include <cuvil_sim_memory.h>
//   CUVIL_SIM_MEMORY_DESIGN(top)
//
// It exports int cuvil_sim_memory_run(void* memory, char* error, long error_size): one sample; 0: done; 1: failed, `error`
// holds a text. With CUVIL_SIM_BOUNDED also the controls of every simulation with clocks (cuvil_sim_controls.h) and
//
//   void cuvil_sim_set_memory(long latency, long word_time)
//       Of the board's memory: cycles to a burst's first word; 1,024ths of a cycle in which it moves eight bytes.
//   const char* cuvil_sim_passes()
//       What the last run found (cuvil_sim_bursts.h); valid until the next.
#ifndef CUVIL_SIM_MEMORY_H
#define CUVIL_SIM_MEMORY_H

#include <cstdio>
#include <exception>

#ifdef CUVIL_SIM_BOUNDED
#include <cuvil_sim_bursts.h>
#include <cuvil_sim_controls.h>

extern "C" void cuvil_sim_set_memory(long latency, long word_time) {
    cuvil::sim::BoardMemory::instance().latency = latency;
    cuvil::sim::BoardMemory::instance().word_time = word_time;
}
extern "C" const char* cuvil_sim_passes() { return cuvil::sim::Passes::instance().text.c_str(); }
#endif

namespace cuvil {
namespace sim {

template <class... POINTED> int run_in_memory(void (*top)(POINTED*...), void* memory, char* error, long error_size) {
    try {
#ifdef CUVIL_SIM_BOUNDED
        begin_passes();
#endif
        top(static_cast<POINTED*>(memory)...);
#ifdef CUVIL_SIM_BOUNDED
        end_passes();
#endif
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
