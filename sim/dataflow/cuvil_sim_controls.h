// The C functions of every simulation with clocks, in the one translation unit that includes this. Without
// CUVIL_SIM_BOUNDED they do nothing and return 1, or "".
//
//   int cuvil_sim_set_stalls(unsigned long seed, int percent)
//       Random delays in the coming runs: chance that a process is late before a read or write.
//   int cuvil_sim_set_order(unsigned long seed)
//       The host takes processes in random order in the coming runs; 0: in its own.
//   int cuvil_sim_set_depth(const char* stream, long words)
//       Depth of a stream in the coming runs, instead of the source's; 0: the source's.
//   const char* cuvil_sim_timing()
//       What the last run found (cuvil_sim_timing.h); valid until the next.
#ifndef CUVIL_SIM_CONTROLS_H
#define CUVIL_SIM_CONTROLS_H

#ifdef CUVIL_SIM_BOUNDED

#include <cuvil_sim_timing.h>

extern "C" int cuvil_sim_set_stalls(unsigned long seed, int percent) {
    cuvil::sim::Scheduler::instance().set_stalls(seed, static_cast<unsigned>(percent));
    return 0;
}
extern "C" int cuvil_sim_set_order(unsigned long seed) {
    cuvil::sim::Scheduler::instance().set_order(seed);
    return 0;
}
extern "C" int cuvil_sim_set_depth(const char* stream, long words) {
    cuvil::sim::Scheduler::instance().set_depth(stream, static_cast<std::uint64_t>(words));
    return 0;
}
extern "C" const char* cuvil_sim_timing() { return cuvil::sim::timing().c_str(); }

#else

extern "C" int cuvil_sim_set_stalls(unsigned long, int) { return 1; }
extern "C" int cuvil_sim_set_order(unsigned long) { return 1; }
extern "C" int cuvil_sim_set_depth(const char*, long) { return 1; }
extern "C" const char* cuvil_sim_timing() { return ""; }

#endif

#endif
