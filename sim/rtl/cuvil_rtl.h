// Runs a Verilator model clock by clock: words into its input ports, words out of its output ports, and what every FIFO in
// it does meanwhile. A word of a port crosses in ceil(bits / 8) bytes, lowest first.
//
// A design says what its ports are (cuvil_rtl_design.h shows all of it):
//   CUVIL_RTL_DESIGN(Vdesign, { bench.in(...); bench.out(...); })
#ifndef CUVIL_RTL_H
#define CUVIL_RTL_H

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <verilated.h>
#include <verilated_syms.h>
#if defined(CUVIL_RTL_FST)
#include <verilated_fst_c.h>
typedef VerilatedFstC CuvilTrace;
#elif defined(CUVIL_RTL_VCD)
#include <verilated_vcd_c.h>
typedef VerilatedVcdC CuvilTrace;
#endif

namespace cuvil {
namespace rtl {

const int IN_RESET = 4;  // cycles

// A port of the design, or the end of a FIFO.
struct Handshake {
    const CData* valid = nullptr;
    const CData* ready = nullptr;
    bool moves() const { return *valid && *ready; }
    bool starves() const { return *ready && !*valid; }
    bool blocked() const { return *valid && !*ready; }
};

// What the two ends of a channel had counted when their processes ended a sample.
struct ReadMark {
    long waited, held, read, state;
};
struct WriteMark {
    long waited, clock;
};

struct Process;

// A FIFO of the design; of a port only the end inside is there. `words`: of a sample.
struct Channel {
    std::string name;
    Handshake write, read;
    const void* fill = nullptr;  // words in it
    int fill_bytes = 0;
    uint32_t* limit = nullptr;
    long depth = 0, words = 1, most = 0, written = 0, taken = 0, held = 0, waits_write = 0, waits_read = 0;
    Process* writer = nullptr;
    Process* reader = nullptr;
    std::vector<ReadMark> at_read;
    std::vector<WriteMark> at_write;

    long words_in_it() const {
        uint32_t value = 0;
        if (fill) std::memcpy(&value, fill, fill_bytes);
        return value;
    }
};

struct Sample {
    long begin, end;
    uint64_t events;
};

// A sample ends for a process with its last word out; for one without outputs with its last word in.
struct Process {
    std::string name;
    std::vector<Channel*> inputs, outputs;
    std::vector<Sample> samples;
    long begin = -1;
    uint64_t events = 0;

    bool ended() const {
        const long next = long(samples.size()) + 1;
        for (const Channel* c : outputs)
            if (c->written < next * c->words) return false;
        if (outputs.empty())
            for (const Channel* c : inputs)
                if (c->taken < next * c->words) return false;
        return true;
    }
};

class Bench {
public:
    // A port: where its signals are, and how many bits a word has.
    void in(const char* name, void* data, int bits, CData& valid, const CData& ready, CData* last) {
        inputs_.push_back(port(name, data, bits, &valid, &ready, true));
        inputs_.back().last_driven = last;
    }
    void out(const char* name, void* data, int bits, const CData& valid, CData& ready, const CData* last) {
        outputs_.push_back(port(name, data, bits, &ready, &valid, false));
        outputs_.back().last_seen = last;
    }

    // Every FIFO directly in the top module. `table`: lines "channel writer reader words", of a port with "-" for the bench.
    void watch(VerilatedContext& context, const char* table) {
        std::map<std::string, std::string> scopes;
        for (const auto& entry : *context.scopeNameMap()) {
            const std::string path = entry.first, leaf = path.substr(path.rfind('.') + 1);
            if (leaf.compare(0, 5, "fifo_") == 0 && !scopes.count(leaf.substr(5))) scopes[leaf.substr(5)] = path;
        }
        char name[256], writer[256], reader[256];
        long words;
        int used;
        for (const char* at = table; std::sscanf(at, " %255s %255s %255s %ld%n", name, writer, reader, &words, &used) == 4;
             at += used) {
            channels_.emplace_back(new Channel);
            Channel& c = *channels_.back();
            c.name = name, c.words = words;
            if (const Port* port = port_of(name)) {
                c.write = c.read = port->ends();
            } else {
                if (!scopes.count(name)) throw std::runtime_error(std::string("the design has no FIFO fifo_") + name);
                const VerilatedScope* scope = context.scopeFind(scopes[name].c_str());
                c.write.valid = signal<CData>(*scope, "in_valid"), c.write.ready = signal<CData>(*scope, "in_ready");
                c.read.valid = signal<CData>(*scope, "out_valid"), c.read.ready = signal<CData>(*scope, "out_ready");
                const VerilatedVar* fill = scope->varFind("words");
                c.fill = fill->datap(), c.fill_bytes = int(fill->entSize());
                c.limit = signal<uint32_t>(*scope, "limit");
                c.depth = *c.limit;
            }
            (c.writer = process(writer))->outputs.push_back(&c);
            (c.reader = process(reader))->inputs.push_back(&c);
        }
    }

    void limit(const char* name, long words) {
        for (auto& c : channels_)
            if (c->name == name && c->limit) *c->limit = uint32_t(words > 0 && words < c->depth ? words : c->depth);
    }

    // Begin to count anew; the design is in reset then.
    void restart(uint64_t seed, int percent) {
        random_.seed(seed);
        percent_ = percent;
        clock_ = 0, samples_ = 0;
        for (auto& p : processes_) p->samples.clear(), p->begin = -1, p->events = 0;
        for (auto& c : channels_) {
            c->most = c->written = c->taken = c->held = c->waits_write = c->waits_read = 0;
            c->at_read.clear(), c->at_write.clear();
        }
    }

    // One run: the words of every input, room for those of every output. `samples`: of this run; `packet`: only the last of
    // them ends a packet. `patience`: cycles without a word moving after which the design counts as stuck. `half`: lets half
    // a cycle pass.
    template <class HALF>
    void run(const void* const* inputs, void* const* outputs, const long* in_words, const long* out_words, long samples,
             bool packet, long patience, HALF half) {
        for (size_t n = 0; n < inputs_.size(); ++n)
            inputs_[n].begin(const_cast<void*>(inputs[n]), in_words[n], samples, packet);
        for (size_t n = 0; n < outputs_.size(); ++n) outputs_[n].begin(outputs[n], out_words[n], samples, packet);
        samples_ += size_t(samples);
        long still = 0;
        while (pending()) {
            // Towards the end of patience nothing holds words back but the design.
            const int percent = 2 * still > patience ? 0 : percent_;
            for (Port& p : inputs_) p.drive(holds(percent));
            for (Port& p : outputs_) p.drive(holds(percent));
            half(0);
            bool moved = false;
            for (Port& p : inputs_) moved |= p.step();
            for (Port& p : outputs_) moved |= p.step();
            moved |= count();
            half(1);
            ++clock_;
            still = moved ? 0 : still + 1;
            if (still > patience) throw std::runtime_error(stuck(still));
        }
        rest();
    }

    // No port offers or takes anything.
    void rest() {
        for (Port& p : inputs_) p.rest();
        for (Port& p : outputs_) p.rest();
    }

    long clock() const { return clock_; }
    std::string timing() const;

private:
    // `valid` and `ready`: as the design sees them; an input drives the first, an output takes part in the second.
    struct Port {
        std::string name;
        uint8_t* data;
        size_t bytes;
        CData* driven;
        const CData* answer;
        CData* last_driven;
        const CData* last_seen;
        uint8_t* words = nullptr;
        long count = 0, each = 1, at = 0;
        bool input, packet = false, taken = false;

        Handshake ends() const {
            Handshake h;
            h.valid = input ? driven : answer, h.ready = input ? answer : driven;
            return h;
        }
        void begin(void* buffer, long words_each, long samples, bool one_packet) {
            words = static_cast<uint8_t*>(buffer), each = words_each, count = words_each * samples, at = 0, packet = one_packet;
        }
        bool last() const { return packet ? at == count - 1 : at % each == each - 1; }
        // Before the edge: what was offered stays until it is taken.
        void drive(bool hold) {
            if (!input) {
                *driven = at < count && !hold;
                return;
            }
            if (taken) *driven = 0, taken = false;
            if (at == count || *driven || hold) return;
            *driven = 1;
            std::memcpy(data, words + at * bytes, bytes);
            if (last_driven) *last_driven = last();
        }
        bool step() {
            if (!ends().moves()) return false;
            if (input) {
                taken = true;
            } else {
                std::memcpy(words + at * bytes, data, bytes);
                if (last_seen && bool(*last_seen) != last())
                    throw std::runtime_error("output " + name + (*last_seen ? " ended" : " didn't end") + " a packet with word " +
                                             std::to_string(at % each + 1) + " of " + std::to_string(each) + " of sample " +
                                             std::to_string(at / each));
            }
            ++at;
            return true;
        }
        void rest() { *driven = 0, taken = false; }
    };

    static Port port(const char* name, void* data, int bits, CData* driven, const CData* answer, bool input) {
        Port p{};
        p.name = name, p.data = static_cast<uint8_t*>(data), p.bytes = size_t(bits + 7) / 8;
        p.driven = driven, p.answer = answer, p.input = input;
        return p;
    }

    template <class T> static T* signal(const VerilatedScope& scope, const char* name) {
        const VerilatedVar* var = scope.varFind(name);
        if (!var) throw std::runtime_error(std::string(scope.name()) + " has no signal " + name);
        return static_cast<T*>(var->datap());
    }

    // "input_0" is the first input.
    const Port* port_of(const std::string& channel) const {
        for (const std::vector<Port>* ports : {&inputs_, &outputs_}) {
            const std::string head = ports == &inputs_ ? "input_" : "output_";
            for (size_t n = 0; n < ports->size(); ++n)
                if (channel == head + std::to_string(n)) return &(*ports)[n];
        }
        return nullptr;
    }

    Process* process(const std::string& name) {
        for (auto& p : processes_)
            if (p->name == name) return p.get();
        processes_.emplace_back(new Process);
        processes_.back()->name = name;
        return processes_.back().get();
    }

    // Words of the ports, or the end of a sample in a process whose words no output waits for.
    bool pending() const {
        for (const std::vector<Port>* ports : {&inputs_, &outputs_})
            for (const Port& p : *ports)
                if (p.at < p.count) return true;
        for (auto& p : processes_)
            if (p->samples.size() < samples_) return true;
        return false;
    }

    bool holds(int percent) { return percent > 0 && int(random_() % 100) < percent; }

    // Count this cycle; whether a word moved. A process that waits does so for one thing: room, else a word.
    bool count() {
        bool moved = false;
        for (auto& c : channels_) {
            const long fill = c->words_in_it();
            c->held += fill;
            if (fill > c->most) c->most = fill;
        }
        for (auto& p : processes_) {
            bool waits = false, acts = false;
            for (Channel* c : p->outputs) {
                if (c->write.moves()) {
                    ++c->written, acts = true;
                    mix(*p, c, 1);
                } else if (!waits && c->write.blocked()) {
                    waits = true, ++c->waits_write;
                }
            }
            for (Channel* c : p->inputs) {
                if (c->read.moves()) {
                    ++c->taken, acts = true;
                    mix(*p, c, 2);
                } else if (!waits && c->read.starves()) {
                    waits = true, ++c->waits_read;
                }
            }
            moved |= acts;
            if (acts && p->begin < 0) p->begin = clock_;
            if (acts && p->ended()) end(*p);
        }
        return moved;
    }

    void mix(Process& p, const Channel* c, uint64_t end) const {
        const uint64_t since = uint64_t(clock_ - (p.samples.empty() ? 0 : p.samples.back().end));
        p.events = (p.events ^ (since * 4 + end + (uint64_t(c->words) << 32))) * 1099511628211ULL;
    }

    void end(Process& p) {
        p.samples.push_back({p.begin, clock_ + 1, p.events});
        p.begin = -1, p.events = 0;
        for (Channel* c : p.inputs) c->at_read.push_back({c->waits_read, c->held, c->taken, c->words_in_it()});
        for (Channel* c : p.outputs) c->at_write.push_back({c->waits_write, clock_ + 1});
    }

    std::string stuck(long still) const {
        std::string text = "stuck: no word moved for " + std::to_string(still) + " cycles; ";
        std::string full, empty;
        for (auto& c : channels_) {
            if (c->fill && c->write.blocked())
                full += (full.empty() ? "" : ", ") + c->name + " (" + std::to_string(c->words_in_it()) + " words, from " +
                        c->writer->name + " to " + c->reader->name + ")";
            if (c->fill && c->read.starves())
                empty += (empty.empty() ? "" : ", ") + c->name + " (from " + c->writer->name + " to " + c->reader->name + ")";
        }
        text += "full FIFOs: " + (full.empty() ? "none" : full) + "; processes wait for words of: ";
        return text + (empty.empty() ? "none" : empty) + (full.empty() ? "" : "; a full FIFO is too small");
    }

    std::vector<Port> inputs_, outputs_;
    std::vector<std::unique_ptr<Channel>> channels_;
    std::vector<std::unique_ptr<Process>> processes_;
    std::mt19937_64 random_;
    int percent_ = 0;
    long clock_ = 0;
    size_t samples_ = 0;  // since the restart
};

// As cuvil_sim_timing.h has it.
inline std::string Bench::timing() const {
    using std::to_string;
    auto row = [](std::string& text, bool first, std::initializer_list<std::string> fields) {
        text += first ? "[" : ", [";
        const char* between = "";
        for (const std::string& field : fields) text += between + field, between = ", ";
        text += "]";
    };
    std::string text = "{\"processes\": [";
    const char* between = "";
    for (auto& p : processes_) {
        text += std::string(between) + "{\"name\": \"" + p->name + "\", \"samples\": [";
        between = ", ";
        for (const Sample& s : p->samples)
            row(text, &s == &p->samples[0], {to_string(s.begin), to_string(s.end), to_string(s.events)});
        text += "]}";
    }
    text += "], \"streams\": [";
    between = "";
    for (auto& c : channels_) {
        text += std::string(between) + "{\"name\": \"" + c->name + "\", \"writer\": \"" + c->writer->name +
                "\", \"reader\": \"" + c->reader->name + "\", \"depth\": " + to_string(c->limit ? *c->limit : 0) +
                ", \"most\": " + to_string(c->most) + ", \"reads\": [";
        between = ", ";
        for (const ReadMark& m : c->at_read)
            row(text, &m == &c->at_read[0], {to_string(m.waited), to_string(m.held), to_string(m.read), to_string(m.state)});
        text += "], \"writes\": [";
        for (const WriteMark& m : c->at_write) row(text, &m == &c->at_write[0], {to_string(m.waited), to_string(m.clock)});
        text += "]}";
    }
    return text + "]}";
}

}  // namespace rtl
}  // namespace cuvil

#endif
