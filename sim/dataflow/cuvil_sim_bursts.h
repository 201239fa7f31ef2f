// The board's memory in time, for designs of the temporal style: bursts of words of eight bytes through AXI masters.
//
// A burst is asked for in turns of 16 words (the longest burst of AXI3), of which a port has at most 8 under way. The memory
// serves turns in the order in which they are asked for, each as long as its bytes take; the first word comes `latency` cycles
// after that, and a port moves a word a cycle. A write has ended `latency` cycles after its last word.
//
// Nothing depends on the order in which the host runs the processes: a turn is served when no process can ask earlier.
#ifndef CUVIL_SIM_BURSTS_H
#define CUVIL_SIM_BURSTS_H

#include <cuvil_sim_tasks.h>

namespace cuvil {
namespace sim {

constexpr int kTurn = 16, kUnderWay = 8, kPorts = 3;
constexpr Cycle kFraction = 1024;  // the memory's own clock counts parts of a cycle

struct BoardMemory {
    Cycle latency = 0;
    Cycle word_time = 0;  // parts of a cycle in which it moves eight bytes
    Cycle free = 0;       // from when on it serves, in parts of a cycle

    CUVIL_SIM_HIDDEN static BoardMemory& instance() {
        static BoardMemory memory;
        return memory;
    }
    // When the memory begins a turn of so many words that is asked for now; in parts of a cycle.
    Cycle serve(int words) {
        const bool contended = word_time * kPorts > kFraction;
        if (contended && !outside()) Scheduler::instance().wait_to_be_first();
        const Cycle asked = running().clock * kFraction;
        const Cycle start = contended && free > asked ? free : asked;
        free = start + words * word_time;
        return start;
    }
};

class ReadBurst {
    Cycle begins_[kUnderWay];  // of the turns under way
    int words_, asked_ = 0, read_ = 0;

    void ask() {
        if (asked_ >= words_) return;
        const int words = words_ - asked_ < kTurn ? words_ - asked_ : kTurn;
        begins_[asked_ / kTurn % kUnderWay] = BoardMemory::instance().serve(words);
        asked_ += words;
    }

  public:
    explicit ReadBurst(int words) : words_(words) {
        for (int turn = 0; turn < kUnderWay; ++turn) ask();
    }
    // Before each word.
    void beat() {
        const BoardMemory& memory = BoardMemory::instance();
        const Cycle begin = begins_[read_ / kTurn % kUnderWay];
        wait_for_memory((begin + (read_ % kTurn + 1) * memory.word_time) / kFraction + memory.latency);
        if (++read_ % kTurn == 0) ask();
    }
};

class WriteBurst {
    Cycle begin_ = 0;
    int words_, written_ = 0;

  public:
    explicit WriteBurst(int words) : words_(words) {}
    ~WriteBurst() {
        if (words_) wait_for_memory(running().clock + BoardMemory::instance().latency);
    }
    // Before each word.
    void beat() {
        BoardMemory& memory = BoardMemory::instance();
        const int left = words_ - written_;
        if (written_ % kTurn == 0) begin_ = memory.serve(left < kTurn ? left : kTurn);
        wait_for_memory((begin_ + (written_ % kTurn + 1) * memory.word_time) / kFraction);
        ++written_;
    }
};

// ---- passes: one after another, each with clocks that begin at 0 -----------------------------------------------------------

struct Pass {
    Cycle cycles = 0;
    std::string processes, streams;  // JSON
};

struct Passes {
    std::vector<Pass> all;
    std::string text;  // JSON, of the last run

    CUVIL_SIM_HIDDEN static Passes& instance() {
        static Passes passes;
        return passes;
    }
    // What happened outside of processes since the last call belongs to the pass before.
    void close() {
        if (!all.empty()) all.back().cycles += running().clock;
        running().clock = 0;
        BoardMemory::instance().free = 0;
    }
};

inline void next_pass() {
    Passes::instance().close();
    Passes::instance().all.push_back(Pass());
}

// Called when the processes of a pass have ended, while their streams are there.
inline void collect_pass() {
    using std::to_string;
    Pass& pass = Passes::instance().all.back();
    Cycle last = 0;
    for (const std::unique_ptr<Task>& task : Scheduler::instance().tasks()) {
        if (task->clock > last) last = task->clock;
        pass.processes += std::string(pass.processes.empty() ? "" : ", ") + "[\"" + task->name + "\", " + to_string(task->clock) +
                          ", " + to_string(task->waited_for_memory) + "]";
    }
    for (Channel* c : Scheduler::instance().channels()) {
        if (!c->reader || !c->writer) continue;
        c->settle();
        pass.streams += std::string(pass.streams.empty() ? "" : ", ") + "[\"" + c->name + "\", \"" + c->writer->name + "\", \"" +
                        c->reader->name + "\"";
        for (const Cycle count : {Cycle(c->depth), Cycle(c->read), Cycle(c->most), c->held, c->waited_for_word, c->waited_for_room})
            pass.streams += ", " + to_string(count);
        pass.streams += "]";
    }
    pass.cycles += last;
    BoardMemory::instance().free = 0;
}

inline void begin_passes() {
    Passes::instance().all.clear();
    running().clock = 0;
    BoardMemory::instance().free = 0;
    Scheduler::instance().at_end = collect_pass;
}

// {"passes": [{"cycles", "processes": [[name, cycles, waited for memory], …],
//              "streams": [[name, writer, reader, depth, words, most, held, waited for words, waited for room], …]}, …]}
inline void end_passes() {
    Passes& passes = Passes::instance();
    passes.close();
    passes.text = "{\"passes\": [";
    for (const Pass& pass : passes.all)
        passes.text += std::string(&pass == &passes.all[0] ? "" : ", ") + "{\"cycles\": " + std::to_string(pass.cycles) +
                       ", \"processes\": [" + pass.processes + "], \"streams\": [" + pass.streams + "]}";
    passes.text += "]}";
}

}  // namespace sim
}  // namespace cuvil

#endif
