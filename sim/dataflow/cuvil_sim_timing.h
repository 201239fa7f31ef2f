// What a simulation with clocks found, as JSON: cycles are those of the processes' clocks.
//
//   {"processes": [{"name", "samples": [[begin, end, events], …]}, …],
//    "streams": [{"name", "writer", "reader", "depth", "most", "reads": [[waited, held, words, state], …],
//                 "writes": [[waited, clock], …]}, …]}
//
// One row a sample: of a process the cycles in which it began and ended it, and a digest of its reads' and writes' cycles;
// of a stream what its ends had counted when their processes ended it (ReadMark, WriteMark).
#ifndef CUVIL_SIM_TIMING_H
#define CUVIL_SIM_TIMING_H

#include <cuvil_sim_tasks.h>

namespace cuvil {
namespace sim {

inline std::string& timing() {
    static std::string text;
    return text;
}

inline void write_row(std::string& text, bool first, std::initializer_list<std::string> fields) {
    text += first ? "[" : ", [";
    const char* between = "";
    for (const std::string& field : fields) text += between + field, between = ", ";
    text += "]";
}

// Called while the streams are still there.
inline void collect_timing() {
    using std::to_string;
    std::string text = "{\"processes\": [";
    const char* between = "";
    for (const std::unique_ptr<Task>& task : Scheduler::instance().tasks()) {
        if (task->spawned || (task->parent && !task->parent->restarts)) continue;
        text += std::string(between) + "{\"name\": \"" + task->name + "\", \"samples\": [";
        between = ", ";
        for (const Sample& s : task->samples)
            write_row(text, &s == &task->samples[0], {to_string(s.begin), to_string(s.end), to_string(s.events)});
        text += "]}";
    }
    text += "], \"streams\": [";
    between = "";
    for (Channel* c : Scheduler::instance().channels()) {
        if (!c->reader || !c->writer) continue;
        c->settle();
        text += std::string(between) + "{\"name\": \"" + c->name + "\", \"writer\": \"" + c->writer->name + "\", \"reader\": \"" +
                c->reader->name + "\", \"depth\": " + to_string(c->depth) + ", \"most\": " + to_string(c->most) + ", \"reads\": [";
        between = ", ";
        for (const ReadMark& m : c->at_read)
            write_row(text, &m == &c->at_read[0],
                      {to_string(m.waited), to_string(m.held), to_string(m.read), to_string(m.state)});
        text += "], \"writes\": [";
        for (const WriteMark& m : c->at_write)
            write_row(text, &m == &c->at_write[0], {to_string(m.waited), to_string(m.clock)});
        text += "]}";
    }
    timing() = text + "]}";
}

}  // namespace sim
}  // namespace cuvil

#endif
