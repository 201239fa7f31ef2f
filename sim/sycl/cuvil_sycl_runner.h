// C ABI of one simulated design: CUVIL_SYCL_RUNNER(top(queue, samples, ports…)).
#ifndef CUVIL_SYCL_RUNNER_H
#define CUVIL_SYCL_RUNNER_H

#include <cstring>

#include <sycl/sycl.hpp>

namespace sycl::simulation {

inline int failed(const std::string &why, char *error, long size) {
    std::strncpy(error, why.c_str(), size - 1);
    error[size - 1] = 0;
    for (fifo_base *f : fifos()) f->clear();
    return 1;
}

inline int left_over(char *error, long size) {
    for (const fifo_base *f : fifos())
        if (f->words() != 0)
            return failed(std::to_string(f->words()) + " words left in pipe " + pipe_name(f->name), error, size);
    return 0;
}

}  // namespace sycl::simulation

// 0, or 1 with a text in `error` (of `size` bytes).
#define CUVIL_SYCL_RUNNER(call)                                                                                          \
    extern "C" int cuvil_sycl_run(void *const *ports, int samples, char *error, long size) {                            \
        try {                                                                                                            \
            sycl::queue queue;                                                                                           \
            call;                                                                                                        \
        } catch (const std::exception &e) {                                                                              \
            return sycl::simulation::failed(e.what(), error, size);                                                      \
        }                                                                                                                \
        return sycl::simulation::left_over(error, size);                                                                 \
    }

#endif
