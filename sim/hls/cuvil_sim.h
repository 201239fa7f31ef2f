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
//
// Built with -DCUVIL_SIM_BOUNDED, a run is one simulation: processes run side by side on one thread, each sample after sample
// without a pause (a dataflow region that restarts by itself), and so do the DMA engines outside of the design, which offer and
// take a word a cycle. cuvil_sim_controls.h has its functions.
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
#include <cuvil_sim_controls.h>

namespace cuvil {
namespace sim {

struct Settings {
    int threads = 0;
    long first = 0;
    bool packets = false;
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

// A DMA engine moves a word a cycle.
inline void beat() {
#ifdef CUVIL_SIM_BOUNDED
    tick(1);
#endif
}

// The data of a word as pieces of up to 64 bits, in memory's order.
template <int BITS> void fill(ap_axiu<BITS, 0, 0, 0>& word, const unsigned char* bytes, long count) {
    for (int low = 0; low < BITS; low += 64, bytes += 8, count -= 8) {
        std::uint64_t raw = 0;
        if (count > 0) std::memcpy(&raw, bytes, count < 8 ? count : 8);
        word.data.range((low + 64 < BITS ? low + 64 : BITS) - 1, low) = raw;
    }
}
template <int BITS> void empty(const ap_axiu<BITS, 0, 0, 0>& word, unsigned char* bytes, long count) {
    for (int low = 0; low < BITS && count > 0; low += 64, bytes += 8, count -= 8) {
        const std::uint64_t raw = word.data.range((low + 64 < BITS ? low + 64 : BITS) - 1, low).to_uint64();
        std::memcpy(bytes, &raw, count < 8 ? count : 8);
    }
}

template <int BITS>
void feed(hls::stream<ap_axiu<BITS, 0, 0, 0> >& port, const unsigned char* bytes, long count, bool last) {
    const long step = BITS / 8;
    ap_axiu<BITS, 0, 0, 0> word;
    word.keep = ~0ull;
    word.strb = ~0ull;
    word.last = 0;
    long at = 0;
    for (; at + step < count; at += step) {
        fill<BITS>(word, bytes + at, step);
        beat();
        port.write(word);
    }
    fill<BITS>(word, bytes + at, count - at);
    word.keep = last ? ~0ull >> (64 - (count - at)) : ~0ull;
    word.strb = word.keep;
    word.last = last;
    beat();
    port.write(word);
}

template <int BITS>
void collect(hls::stream<ap_axiu<BITS, 0, 0, 0> >& port, unsigned char* bytes, long count, int index, bool last) {
    const long step = BITS / 8, words = (count + step - 1) / step;
#ifndef CUVIL_SIM_BOUNDED
    if (static_cast<long>(port.size()) != words)
        throw std::runtime_error("output " + std::to_string(index) + " has " + std::to_string(port.size()) +
                                 " word(s) where its tensor takes " + std::to_string(words));
#else
    (void)words;
#endif
    for (long at = 0; at < count; at += step) {
        beat();
        const ap_axiu<BITS, 0, 0, 0> word = port.read();
        const long left = count - at < step ? count - at : step;
        empty<BITS>(word, bytes + at, left);
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
    explicit PortOf(const char* name) : stream_(name) {
#ifdef CUVIL_SIM_BOUNDED
        stream_.channel().port = true;
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
    std::vector<std::string> names_;
    std::vector<std::unique_ptr<Port> > ports_;
    std::vector<void*> streams_;

    static Port* make(int bits, const char* name) {  // ap_axiu has no other widths
        switch (bits) {
            case 8: return new PortOf<8>(name);
            case 16: return new PortOf<16>(name);
            case 32: return new PortOf<32>(name);
            case 64: return new PortOf<64>(name);
            case 128: return new PortOf<128>(name);
            case 256: return new PortOf<256>(name);
            default: return new PortOf<512>(name);
        }
    }

  public:
    explicit Ports(const Design& design) : design_(design) {
        for (int i = 0; i < design.ports; ++i)
            names_.push_back(i < design.inputs ? "input " + std::to_string(i) : "output " + std::to_string(i - design.inputs));
        for (int i = 0; i < design.ports; ++i) {
            ports_.emplace_back(make(design.bits[i], names_[i].c_str()));
            streams_.push_back(ports_.back()->stream());
        }
        clear();
    }
    void run(const Job& job, long sample) {
        const int inputs = design_.inputs;
        for (int i = 0; i < inputs; ++i) feed_sample(job, i, sample);
        design_.call(streams_.data());
        check_read();
        for (int i = 0; i < design_.ports - inputs; ++i) collect_sample(job, i, sample);
        check_left_over();
    }
#ifdef CUVIL_SIM_BOUNDED
    // All samples of a job.
    void run(const Job& job) {
        const int inputs = design_.inputs;
        std::vector<long> done(static_cast<std::size_t>(design_.ports), 0);
        Region region;
        for (int i = 0; i < inputs; ++i) {
            Task& dma = region.add(names_[i].c_str(), [&, i] { feed_sample(job, i, done[i]++); }, job.samples);
            dma.clock = dma.begin = -1;  // the first word is there in cycle 0, the design can read it in cycle 1
        }
        Task& top = region.add("top", [&] {
            design_.call(streams_.data());
            // A design without a dataflow region is one process.
            for (long n = 1; n < job.samples && !running().spawned; ++n) {
                Scheduler::instance().end_sample();
                design_.call(streams_.data());
            }
        });
        top.restarts = job.samples;
        for (int i = 0; i < design_.ports - inputs; ++i)
            region.add(names_[inputs + i].c_str(), [&, i, inputs] { collect_sample(job, i, done[inputs + i]++); }, job.samples);
        Scheduler::instance().at_end = collect_timing;
        region.run();
        check_read();
        check_left_over();
    }
#endif

  private:
    static bool last(const Job& job, long sample) { return !settings().packets || sample == job.samples - 1; }
    void feed_sample(const Job& job, int i, long sample) {
        const unsigned char* bytes = static_cast<const unsigned char*>(job.inputs[i]) + sample * job.in_bytes[i];
        ports_[i]->feed_from(bytes, job.in_bytes[i], last(job, sample));
    }
    void collect_sample(const Job& job, int i, long sample) {
        unsigned char* bytes = static_cast<unsigned char*>(job.outputs[i]) + sample * job.out_bytes[i];
        ports_[design_.inputs + i]->collect_into(bytes, job.out_bytes[i], i, last(job, sample));
    }
    void check_read() const {
        for (int i = 0; i < design_.inputs; ++i)
            if (ports_[i]->words())
                throw std::runtime_error("input " + std::to_string(i) + " has " + std::to_string(ports_[i]->words()) +
                                         " word(s) that the design never read");
    }
    static void check_left_over() {
#ifdef CUVIL_SIM_STREAM
        if (hls::sim::leftover()[0]) throw std::runtime_error(hls::sim::leftover());
#endif
    }

  public:
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

#ifdef CUVIL_SIM_BOUNDED

inline int run(const Design& design, const Job& job, char* error, long error_size) {
    std::string reason;
    long failed = 0;
    timing().clear();
    // A thread of its own: what designs keep between samples (CUVIL_STATIC) starts anew with every run.
    std::thread worker([&] {
        Ports ports(design);
        try {
            ports.run(job);
        } catch (const std::exception& problem) {
            reason = problem.what();
            failed = Scheduler::instance().failed_sample;
            ports.clear();
        }
    });
    worker.join();
    if (reason.empty()) return 0;
    if (error && error_size > 0)
        std::snprintf(error, error_size, "sample %ld: %s", settings().first + failed, reason.c_str());
    return 1;
}

#else

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

#endif

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

#endif
