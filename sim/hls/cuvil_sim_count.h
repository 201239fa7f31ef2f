// Saturation counters per layer, for -DCUVIL_SIM_COUNT. Each thread counts on its own; flush_counts() adds its table to the
// totals of the run.
#ifndef CUVIL_SIM_COUNT_H
#define CUVIL_SIM_COUNT_H

#include <mutex>

namespace cuvil {
namespace sim {

constexpr int kLayers = 1024;

struct Counts {
    long low[kLayers];
    long high[kLayers];
};

inline Counts& counts() {
    static thread_local Counts table;
    return table;
}
inline Counts& totals() {
    static Counts table;
    return table;
}
inline std::mutex& totals_lock() {
    static std::mutex lock;
    return lock;
}
inline void flush_counts() {
    std::lock_guard<std::mutex> guard(totals_lock());
    Counts& mine = counts();
    Counts& sum = totals();
    for (int i = 0; i < kLayers; ++i) {
        sum.low[i] += mine.low[i];
        sum.high[i] += mine.high[i];
    }
    mine = Counts();
}
inline void reset_counts() {
    std::lock_guard<std::mutex> guard(totals_lock());
    totals() = Counts();
    counts() = Counts();
}

__attribute__((noinline, cold)) inline void count_low(int layer) { ++counts().low[layer]; }
__attribute__((noinline, cold)) inline void count_high(int layer) { ++counts().high[layer]; }

}  // namespace sim
}  // namespace cuvil

#endif
