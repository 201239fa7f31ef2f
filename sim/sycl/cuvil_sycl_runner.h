// C ABI of one simulated design: CUVIL_SYCL_RUNNER(top(queue, samples, ports…)).
#ifndef CUVIL_SYCL_RUNNER_H
#define CUVIL_SYCL_RUNNER_H

#include <cstring>

#include <cuvil_sim_controls.h>
#include <sycl/sycl.hpp>

namespace sycl::simulation {

inline int failed(const std::string &why, char *error, long size) {
    std::strncpy(error, why.c_str(), size - 1);
    error[size - 1] = 0;
    for (fifo_base *f : fifos()) f->clear();
    return 1;
}

// With clocks every run begins with empty pipes, and a failure names its sample.
inline void begin() {
#ifdef CUVIL_SIM_BOUNDED
    for (fifo_base *f : fifos()) f->clear();
    cuvil::sim::timing().clear();
    cuvil::sim::Scheduler::instance().at_end = cuvil::sim::collect_timing;
#endif
}

inline std::string which() {
#ifdef CUVIL_SIM_BOUNDED
    return "sample " + std::to_string(cuvil::sim::Scheduler::instance().failed_sample) + ": ";
#else
    return "";
#endif
}

inline int left_over(char *error, long size) {
    for (const fifo_base *f : fifos())
        if (f->words() != 0)
            return failed(std::to_string(f->words()) + " words left in pipe " + f->name, error, size);
    return 0;
}

}  // namespace sycl::simulation

// 0, or 1 with a text in `error` (of `size` bytes).
#define CUVIL_SYCL_RUNNER(call)                                                                                          \
    extern "C" int cuvil_sycl_run(void *const *ports, int samples, char *error, long size) {                            \
        try {                                                                                                            \
            sycl::simulation::begin();                                                                                   \
            sycl::queue queue;                                                                                           \
            call;                                                                                                        \
        } catch (const std::exception &e) {                                                                              \
            return sycl::simulation::failed(sycl::simulation::which() + e.what(), error, size);                          \
        }                                                                                                                \
        return sycl::simulation::left_over(error, size);                                                                 \
    }

#endif
