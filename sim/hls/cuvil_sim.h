// C ABI runner of a generated HLS top function. The whole of a generated runner file is:
//
//   #include "top.h"          // void top(hls::stream<ap_axiu<64, 0, 0, 0> >& in0, …, hls::stream<…>& out0, …);
//   #include <cuvil_sim.h>
//   CUVIL_SIM_RUNNER(top, 1)  // the first 1 parameters are inputs, the others outputs
//
// It exports:
//   int cuvil_sim_run(const void* const* inputs, void* const* outputs, const long* in_bytes, const long* out_bytes,
//                     long samples, char* error, long error_size)
//       Runs top once per sample. inputs[i] holds samples * in_bytes[i] bytes, outputs[i] room for samples * out_bytes[i];
//       the byte counts are those of one sample's array. 0: done; 1: failed, `error` holds a text that names the sample
//       (the lowest one that failed).
//   void cuvil_sim_set_threads(int threads)
//       Worker threads; 0: as the environment's CUVIL_SIM_THREADS says, else one per hardware thread. Samples are
//       independent, results don't depend on it. A top with plain `static` variables needs 1 (see CUVIL_STATIC).
//   int cuvil_sim_counters(long* low, long* high, int n)
//       Clips per layer in the last run; fills n entries each, returns how many layers can be counted: 1024, or 0 where
//       the design was built without CUVIL_SIM_COUNT (then it fills nothing).
//   int cuvil_sim_set_stalls(unsigned long seed, int percent)
//       Random back-pressure of the coming runs, seeded per sample. 0: set; 1: built without CUVIL_SIM_BOUNDED.
#ifndef CUVIL_SIM_H
#define CUVIL_SIM_H

#include <ap_axi_sdata.h>
#include <hls_stream.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef CUVIL_SIM_COUNT
#include <cuvil_sim_count.h>
#endif

namespace cuvil {
namespace sim {

struct Settings {
    int threads = 0;
    unsigned long seed = 0;
    int stall_percent = 0;
};
inline Settings& settings() {
    static Settings value;
    return value;
}

struct Job {
    const void* const* inputs;
    void* const* outputs;
    const long* in_bytes;
    const long* out_bytes;
    long samples;
};

template <int BITS>
void feed(hls::stream<ap_axiu<BITS, 0, 0, 0> >& port, const unsigned char* bytes, long count) {
    const long step = BITS / 8;
    typename std::conditional<BITS == 64, std::uint64_t, std::uint32_t>::type raw;
    ap_axiu<BITS, 0, 0, 0> word;
    word.keep = ~0ull;
    word.strb = ~0ull;
    word.last = 0;
    long at = 0;
    for (; at + step < count; at += step) {
        raw = 0;
        std::memcpy(&raw, bytes + at, step);
        word.data = raw;
        port.write(word);
    }
    raw = 0;
    std::memcpy(&raw, bytes + at, count - at);
    word.data = raw;
    word.keep = ~0ull >> (64 - (count - at));
    word.strb = word.keep;
    word.last = 1;
    port.write(word);
}

template <int BITS>
void collect(hls::stream<ap_axiu<BITS, 0, 0, 0> >& port, unsigned char* bytes, long count, int index) {
    const long step = BITS / 8, words = (count + step - 1) / step;
    if (static_cast<long>(port.size()) != words)
        throw std::runtime_error("output " + std::to_string(index) + " has " + std::to_string(port.size()) +
                                 " word(s) where its tensor takes " + std::to_string(words));
    for (long at = 0; at < count; at += step) {
        const ap_axiu<BITS, 0, 0, 0> word = port.read();
        const long left = count - at < step ? count - at : step;
        const std::uint64_t raw = word.data.to_uint64();
        std::memcpy(bytes + at, &raw, left);
        if (word.last.to_bool() != (at + step >= count))
            throw std::runtime_error("output " + std::to_string(index) +
                                     (word.last.to_bool() ? " sets `last` before its final word: its DMA would stop early"
                                                          : " ends without `last`: its DMA would hang"));
        if (word.keep.to_uint64() != ~0ull >> (64 - left) || word.strb.to_uint64() != ~0ull >> (64 - left))
            throw std::runtime_error("output " + std::to_string(index) + " has a wrong keep or strb mask in word " +
                                     std::to_string(at / step));
    }
}

template <class Port> void prepare(Port& port) {
#ifdef CUVIL_SIM_BOUNDED
    port.set_depth(SIZE_MAX);  // the DMA engines on both sides are outside of the design
#else
    (void)port;
#endif
}
template <class Port> void forget(Port& port) {
    while (!port.empty()) port.read();
}

// The ports of one worker thread.
template <class... PORT> class Ports {
    std::tuple<PORT...> ports_;
    int inputs_;

    template <std::size_t I> auto& port() { return std::get<I>(ports_); }
    template <std::size_t I> int feed_one(const Job& job, long sample) {
        if (static_cast<int>(I) < inputs_)
            feed(port<I>(), static_cast<const unsigned char*>(job.inputs[I]) + sample * job.in_bytes[I], job.in_bytes[I]);
        return 0;
    }
    template <std::size_t I> int collect_one(const Job& job, long sample) {
        const int index = static_cast<int>(I) - inputs_;
        if (index >= 0)
            collect(port<I>(), static_cast<unsigned char*>(job.outputs[index]) + sample * job.out_bytes[index],
                    job.out_bytes[index], index);
        else if (!port<I>().empty())
            throw std::runtime_error("input " + std::to_string(I) + " has " + std::to_string(port<I>().size()) +
                                     " word(s) that the design never read");
        return 0;
    }
    template <std::size_t... I> void run(void (*top)(PORT&...), const Job& job, long sample, std::index_sequence<I...>) {
        const int fed[] = {0, feed_one<I>(job, sample)...};
        top(port<I>()...);
        const int collected[] = {0, collect_one<I>(job, sample)...};
        (void)fed, (void)collected;
#ifdef CUVIL_SIM_STREAM
        if (hls::sim::leftover()[0]) throw std::runtime_error(hls::sim::leftover());
#endif
    }
    template <std::size_t... I> void clear(std::index_sequence<I...>) {
        const int done[] = {0, (forget(port<I>()), 0)...};
        (void)done;
#ifdef CUVIL_SIM_STREAM
        hls::sim::leftover()[0] = 0;
#endif
    }
    template <std::size_t... I> Ports(int inputs, std::index_sequence<I...>) : inputs_(inputs) {
        const int done[] = {0, (prepare(port<I>()), 0)...};
        (void)done;
        clear(std::index_sequence_for<PORT...>());
    }

  public:
    explicit Ports(int inputs) : Ports(inputs, std::index_sequence_for<PORT...>()) {}
    void run(void (*top)(PORT&...), const Job& job, long sample) {
        run(top, job, sample, std::index_sequence_for<PORT...>());
    }
    void clear() { clear(std::index_sequence_for<PORT...>()); }
};

inline int thread_count() {
    if (settings().threads > 0) return settings().threads;
    const char* text = std::getenv("CUVIL_SIM_THREADS");
    const int asked = text ? std::atoi(text) : 0;
    if (asked > 0) return asked;
    const unsigned found = std::thread::hardware_concurrency();
    return found ? static_cast<int>(found) : 1;
}

template <class... PORT>
int run(void (*top)(PORT&...), int inputs, const Job& job, char* error, long error_size) {
    // Samples that a thread takes at a time: few where there are few, so that all threads have work until the end.
    const long asked = thread_count(), share = job.samples / (4 * asked);
    const long block = share < 1 ? 1 : share > 64 ? 64 : share;
    std::atomic<long> next(0);
    std::mutex lock;
    long failed = job.samples;
    std::string reason;
#ifdef CUVIL_SIM_COUNT
    reset_counts();
#endif
    auto work = [&] {
        Ports<PORT...> ports(inputs);
        for (long start; (start = next.fetch_add(block)) < job.samples;)
            for (long sample = start; sample < start + block && sample < job.samples; ++sample) {
                try {
#ifdef CUVIL_SIM_BOUNDED
                    Scheduler::instance().set_stalls(settings().seed + 0x9e3779b97f4a7c15ull * (sample + 1),
                                                     settings().stall_percent);
#endif
                    ports.run(top, job, sample);
                } catch (const std::exception& problem) {
                    std::lock_guard<std::mutex> guard(lock);
                    if (sample < failed) {
                        failed = sample;
                        reason = problem.what();
                    }
                    next.store(job.samples);  // blocks taken earlier still finish, so the lowest failure is found
                    ports.clear();
                    break;
                }
            }
#ifdef CUVIL_SIM_COUNT
        flush_counts();
#endif
    };
    const long blocks = (job.samples + block - 1) / block;
    const long threads = blocks < asked ? blocks : asked;
    std::vector<std::thread> workers;
    for (long i = 1; i < threads; ++i) {
        try {
            workers.emplace_back(work);
        } catch (const std::system_error&) {
            break;  // the system has no more threads to give: those that run do all the work
        }
    }
    work();
    for (std::thread& worker : workers) worker.join();
    if (failed == job.samples) return 0;
    if (error && error_size > 0)
        std::snprintf(error, error_size, "sample %ld: %s", failed, reason.c_str());
    return 1;
}

}  // namespace sim
}  // namespace cuvil

#ifdef CUVIL_SIM_COUNT
#define CUVIL_SIM_COUNTERS_BODY                                            \
    cuvil::sim::Counts& totals = cuvil::sim::totals();                     \
    for (int i = 0; i < n && i < cuvil::sim::kLayers; ++i) {               \
        low[i] = totals.low[i];                                            \
        high[i] = totals.high[i];                                          \
    }                                                                      \
    return cuvil::sim::kLayers;
#else
#define CUVIL_SIM_COUNTERS_BODY (void)low, (void)high, (void)n; return 0;
#endif
#ifdef CUVIL_SIM_BOUNDED
#define CUVIL_SIM_STALLS_RESULT 0
#else
#define CUVIL_SIM_STALLS_RESULT 1
#endif

#define CUVIL_SIM_RUNNER(TOP, INPUTS)                                                                                      \
    extern "C" int cuvil_sim_run(const void* const* inputs, void* const* outputs, const long* in_bytes,                    \
                                 const long* out_bytes, long samples, char* error, long error_size) {                      \
        return cuvil::sim::run(&TOP, INPUTS, cuvil::sim::Job{inputs, outputs, in_bytes, out_bytes, samples}, error,        \
                               error_size);                                                                                \
    }                                                                                                                      \
    extern "C" void cuvil_sim_set_threads(int threads) { cuvil::sim::settings().threads = threads; }                       \
    extern "C" int cuvil_sim_counters(long* low, long* high, int n) { CUVIL_SIM_COUNTERS_BODY }                            \
    extern "C" int cuvil_sim_set_stalls(unsigned long seed, int percent) {                                                 \
        cuvil::sim::settings().seed = seed;                                                                                \
        cuvil::sim::settings().stall_percent = percent;                                                                    \
        return CUVIL_SIM_STALLS_RESULT;                                                                                    \
    }

#endif
