// Runner of a generated HLS design behind a C ABI. A translation unit that includes this file, and nothing more, is the
// runner of whatever design it is linked with (cuvil_sim_design.h).
//
// It exports:
//   int cuvil_sim_run(const void* const* inputs, void* const* outputs, const long* in_bytes, const long* out_bytes,
//                     long samples, char* error, long error_size)
//       Runs top once per sample. inputs[i] holds samples * in_bytes[i] bytes, outputs[i] room for samples * out_bytes[i];
//       the byte counts are those of one sample's array. 0: done; 1: failed, `error` holds a text that names the sample
//       (the lowest one that failed).
//   void cuvil_sim_set_first(long first)
//       The number of the first sample of the coming runs, where one batch is run in parts. It is 0 at first.
//   void cuvil_sim_set_packets(int on)
//       1: all samples of a run are one packet, `last` is on its final word only; 0, as at first: each sample is one.
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

#include <cuvil_sim_design.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#ifdef CUVIL_SIM_COUNT
#include <cuvil_sim_count.h>
#endif

namespace cuvil {
namespace sim {

struct Settings {
    int threads = 0;
    long first = 0;
    bool packets = false;
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
void feed(hls::stream<ap_axiu<BITS, 0, 0, 0> >& port, const unsigned char* bytes, long count, bool last) {
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
    word.keep = last ? ~0ull >> (64 - (count - at)) : ~0ull;
    word.strb = word.keep;
    word.last = last;
    port.write(word);
}

template <int BITS>
void collect(hls::stream<ap_axiu<BITS, 0, 0, 0> >& port, unsigned char* bytes, long count, int index, bool last) {
    const long step = BITS / 8, words = (count + step - 1) / step;
    if (static_cast<long>(port.size()) != words)
        throw std::runtime_error("output " + std::to_string(index) + " has " + std::to_string(port.size()) +
                                 " word(s) where its tensor takes " + std::to_string(words));
    for (long at = 0; at < count; at += step) {
        const ap_axiu<BITS, 0, 0, 0> word = port.read();
        const long left = count - at < step ? count - at : step;
        const std::uint64_t raw = word.data.to_uint64();
        std::memcpy(bytes + at, &raw, left);
        if (word.last.to_bool() != (last && at + step >= count))
            throw std::runtime_error("output " + std::to_string(index) +
                                     (word.last.to_bool() ? " sets `last` before its final word: its DMA would stop early"
                                                          : " ends without `last`: its DMA would hang"));
        const std::uint64_t keep = ~0ull >> (64 - (word.last.to_bool() ? left : step));
        if (word.keep.to_uint64() != keep || word.strb.to_uint64() != keep)
            throw std::runtime_error("output " + std::to_string(index) + " has a wrong keep or strb mask in word " +
                                     std::to_string(at / step));
    }
}

// One port of one worker thread: its stream, filled or emptied by the DMA engine outside of the design.
class Port {
  public:
    virtual ~Port() = default;
    virtual void* stream() = 0;
    virtual void feed_from(const unsigned char* bytes, long count, bool last) = 0;
    virtual void collect_into(unsigned char* bytes, long count, int index, bool last) = 0;
    virtual std::size_t words() const = 0;
    virtual void forget() = 0;
};
template <int BITS> class PortOf : public Port {
    hls::stream<ap_axiu<BITS, 0, 0, 0> > stream_;

  public:
    PortOf() {
#ifdef CUVIL_SIM_BOUNDED
        stream_.set_depth(SIZE_MAX);  // the DMA engines on both sides are outside of the design
#endif
    }
    void* stream() override { return &stream_; }
    void feed_from(const unsigned char* bytes, long count, bool last) override { feed(stream_, bytes, count, last); }
    void collect_into(unsigned char* bytes, long count, int index, bool last) override {
        collect(stream_, bytes, count, index, last);
    }
    std::size_t words() const override { return const_cast<PortOf*>(this)->stream_.size(); }  // Xilinx's isn't const
    void forget() override {
        while (!stream_.empty()) stream_.read();
    }
};

// The ports of one worker thread.
class Ports {
    const Design& design_;
    std::vector<std::unique_ptr<Port> > ports_;
    std::vector<void*> streams_;

    static Port* make(int bits) {  // ap_axiu has no other widths
        switch (bits) {
            case 8: return new PortOf<8>();
            case 16: return new PortOf<16>();
            case 32: return new PortOf<32>();
            default: return new PortOf<64>();
        }
    }

  public:
    explicit Ports(const Design& design) : design_(design) {
        for (int i = 0; i < design.ports; ++i) {
            ports_.emplace_back(make(design.bits[i]));
            streams_.push_back(ports_.back()->stream());
        }
        clear();
    }
    void run(const Job& job, long sample) {
        const int inputs = design_.inputs;
        const bool last = !settings().packets || sample == job.samples - 1;
        for (int i = 0; i < inputs; ++i)
            ports_[i]->feed_from(static_cast<const unsigned char*>(job.inputs[i]) + sample * job.in_bytes[i], job.in_bytes[i],
                                 last);
        design_.call(streams_.data());
        for (int i = 0; i < inputs; ++i)
            if (ports_[i]->words())
                throw std::runtime_error("input " + std::to_string(i) + " has " + std::to_string(ports_[i]->words()) +
                                         " word(s) that the design never read");
        for (int i = 0; i < design_.ports - inputs; ++i)
            ports_[inputs + i]->collect_into(static_cast<unsigned char*>(job.outputs[i]) + sample * job.out_bytes[i],
                                             job.out_bytes[i], i, last);
#ifdef CUVIL_SIM_STREAM
        if (hls::sim::leftover()[0]) throw std::runtime_error(hls::sim::leftover());
#endif
    }
    void clear() {
        for (const std::unique_ptr<Port>& port : ports_) port->forget();
#ifdef CUVIL_SIM_STREAM
        hls::sim::leftover()[0] = 0;
#endif
    }
};

inline int thread_count() {
    if (settings().threads > 0) return settings().threads;
    const char* text = std::getenv("CUVIL_SIM_THREADS");
    const int asked = text ? std::atoi(text) : 0;
    if (asked > 0) return asked;
    const unsigned found = std::thread::hardware_concurrency();
    return found ? static_cast<int>(found) : 1;
}

inline int run(const Design& design, const Job& job, char* error, long error_size) {
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
        Ports ports(design);
        for (long start; (start = next.fetch_add(block)) < job.samples;)
            for (long sample = start; sample < start + block && sample < job.samples; ++sample) {
                try {
#ifdef CUVIL_SIM_BOUNDED
                    Scheduler::instance().set_stalls(settings().seed + 0x9e3779b97f4a7c15ull * (settings().first + sample + 1),
                                                     settings().stall_percent);
#endif
                    ports.run(job, sample);
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
        std::snprintf(error, error_size, "sample %ld: %s", settings().first + failed, reason.c_str());
    return 1;
}

}  // namespace sim
}  // namespace cuvil

extern "C" const cuvil::sim::Design* cuvil_sim_design();

extern "C" int cuvil_sim_run(const void* const* inputs, void* const* outputs, const long* in_bytes, const long* out_bytes,
                             long samples, char* error, long error_size) {
    return cuvil::sim::run(*cuvil_sim_design(), cuvil::sim::Job{inputs, outputs, in_bytes, out_bytes, samples}, error,
                           error_size);
}

extern "C" void cuvil_sim_set_first(long first) { cuvil::sim::settings().first = first; }

extern "C" void cuvil_sim_set_packets(int on) { cuvil::sim::settings().packets = on != 0; }

extern "C" void cuvil_sim_set_threads(int threads) { cuvil::sim::settings().threads = threads; }

extern "C" int cuvil_sim_counters(long* low, long* high, int n) {
#ifdef CUVIL_SIM_COUNT
    cuvil::sim::Counts& totals = cuvil::sim::totals();
    for (int i = 0; i < n && i < cuvil::sim::kLayers; ++i) {
        low[i] = totals.low[i];
        high[i] = totals.high[i];
    }
    return cuvil::sim::kLayers;
#else
    (void)low, (void)high, (void)n;
    return 0;
#endif
}

extern "C" int cuvil_sim_set_stalls(unsigned long seed, int percent) {
    cuvil::sim::settings().seed = seed;
    cuvil::sim::settings().stall_percent = percent;
#ifdef CUVIL_SIM_BOUNDED
    return 0;
#else
    return 1;
#endif
}

#endif
