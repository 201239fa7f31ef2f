// Dataflow processes as coroutines with clocks, over channels of true depth (cuvil_sim_channel.h).
//
// Each process is a coroutine on a stack of its own; all run on the calling thread, one until it waits, then the next that can
// go on. Time is the clocks' alone: a tick() advances one, words carry cycles. A process whose read or write can't be done
// sleeps until it can; one that looks whether a word is there sleeps until that is decided, which it is at the latest when
// no other process can go on and its own clock is the smallest of those that look.
//
// When nothing can go on, run() throws std::runtime_error that names each process, its stream and whether it waits to read or
// to write, and the depths with which the design would have gone on to its end, found by letting one word more into a full
// FIFO at a time (Parks, Bounded Scheduling of Process Networks, 1995).
#ifndef CUVIL_SIM_TASKS_H
#define CUVIL_SIM_TASKS_H

#include <cuvil_sim_channel.h>
#include <cuvil_sim_switch.h>

#include <sys/mman.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#ifndef CUVIL_SIM_STACK_BYTES
#define CUVIL_SIM_STACK_BYTES (8u << 20)  // address space; pages are committed when touched
#endif
#define CUVIL_SIM_HIDDEN __attribute__((visibility("hidden")))

namespace cuvil {
namespace sim {

struct Cancelled {};  // unwinds a suspended process; deliberately no std::exception

// What a process did in one sample. `events`: digest of the cycles of its reads and writes, relative to `begin`.
struct Sample {
    Cycle begin, end;
    std::uint64_t events;
};

struct Task {
    Cycle clock = 0, begin = 0;
    std::uint64_t events = 0;
    const char* name = "";
    Context context;
    void* stack = nullptr;
    std::function<void()> body;
    long repeat = 1;           // how often the body runs: once a sample
    bool started = false;      // its body has begun its first sample
    Task* parent = nullptr;    // the process whose nested region this task belongs to
    std::size_t children = 0;  // unfinished tasks of that nested region
    long restarts = 0;         // how often tasks of a region in it run; 0: once, as any region's
    bool spawned = false;      // it had such a region
    const Channel* waits_on = nullptr;
    std::size_t number = 0;       // among the processes of a simulation, in the order of the source
    Cycle waited_for_memory = 0;  // of the board (cuvil_sim_bursts.h)
    bool writes = false, looks = false, done = false;
    std::vector<Channel*> inputs, outputs;
    std::vector<Sample> samples;
    std::exception_ptr error;

    void note(Cycle at) {
        events = (events ^ static_cast<std::uint64_t>(at - begin)) * 0x9e3779b97f4a7c15ull;
        events ^= events >> 29;
    }
};

// The process that runs. Code outside of all processes (testbenches) has a clock, too, and never waits.
template <class T> struct CUVIL_SIM_HIDDEN Running {
    static Task outside;
    static Task* now;
    static bool late;  // there are stalls
};
template <class T> Task Running<T>::outside;
template <class T> bool Running<T>::late = false;
template <class T> Task* Running<T>::now = &Running<T>::outside;
inline Task& running() { return *Running<void>::now; }
inline bool outside() { return Running<void>::now == &Running<void>::outside; }

// At the start of each iteration of a pipelined loop: `interval` cycles after the one before.
inline void tick(Cycle interval) { running().clock += interval; }

// Until the board's memory has given or taken a word.
inline void wait_for_memory(Cycle until) {
    Task& task = running();
    if (until <= task.clock) return;
    task.waited_for_memory += until - task.clock;
    task.clock = until;
}

class Scheduler {
    static constexpr std::size_t kGuardBytes = 4096;
    static constexpr std::uint64_t kMostGrowth = 1 << 22;  // words
    std::vector<std::unique_ptr<Task> > tasks_;
    std::vector<Task*> ready_, looking_;
    std::size_t next_ = 0;  // of ready_
    std::vector<void*> stacks_;
    std::vector<Channel*> channels_;
    std::map<std::string, std::uint64_t> depths_, grown_;
    Task main_;
    Task* failed_ = nullptr;
    Task* last_ = nullptr;  // waits for all others
    bool cancelling_ = false;
    std::uint64_t random_ = 1;
    unsigned stall_percent_ = 0;
    bool shuffled_ = false;

    Scheduler() = default;

    std::uint64_t next_random() {  // splitmix64 (Steele, Lea, Flood 2014)
        std::uint64_t z = (random_ += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    void* take_stack() {
        if (!stacks_.empty()) {
            void* stack = stacks_.back();
            stacks_.pop_back();
            return stack;
        }
        void* stack = mmap(nullptr, CUVIL_SIM_STACK_BYTES + kGuardBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED) throw std::bad_alloc();
        mprotect(stack, kGuardBytes, PROT_NONE);  // an overflow faults at once instead of writing into a neighbour
        return stack;
    }
    static void entry() {
        Scheduler& self = instance();
        Task& task = running();
        try {
            for (long n = 0; n < task.repeat && !self.cancelling_; ++n) {
                task.body();
                self.end_sample();
            }
        } catch (const Cancelled&) {
        } catch (...) {
            task.error = std::current_exception();
        }
        task.done = true;
        if (task.error && !self.cancelling_) self.failed_ = &task;
        Task* parent = task.parent;
        if (parent && --parent->children == 0) self.ready_.push_back(parent);
        if (parent && parent->clock < task.clock) parent->clock = task.clock;
        self.leave();
    }
    void to(Task& next) {
        Task& now = running();
        if (&next == &now) return;
        Running<void>::now = &next;
        change(now.context, next.context);
    }
    // Another process that can go on; null where none can, or where run() has to see to something.
    Task* pick() {
        if (failed_ || cancelling_) return nullptr;
        if (next_ == ready_.size()) {
            ready_.clear();
            next_ = 0;
        } else {
            if (shuffled_) std::swap(ready_[next_], ready_[next_ + next_random() % (ready_.size() - next_)]);
            Task* task = ready_[next_++];
            if (next_ >= 4096) {
                ready_.erase(ready_.begin(), ready_.begin() + next_);
                next_ = 0;
            }
            if (task->looks) stop_looking(*task);
            return task;
        }
        Task* first = nullptr;
        for (Task* task : looking_)
            if (!first || task->clock < first->clock || (task->clock == first->clock && task->number < first->number))
                first = task;
        if (first) {
            stop_looking(*first);
            if (!first->waits_on) return first;
            Channel& channel = const_cast<Channel&>(*first->waits_on);
            (first->writes ? channel.sleeping_writer_ : channel.sleeping_reader_) = nullptr;
        }
        return first;
    }
    void stop_looking(Task& task) {
        task.looks = false;
        for (std::size_t i = 0; i < looking_.size(); ++i)
            if (looking_[i] == &task) {
                looking_[i] = looking_.back();
                looking_.pop_back();
                break;
            }
    }
    void leave() {
        Task* next = pick();
        to(next ? *next : main_);
    }
    void give_way() {
        leave();
        if (cancelling_) throw Cancelled();
    }
    void cancel_all() {
        cancelling_ = true;
        // Children first, so that a nested region's tasks are gone before the frame that holds their streams.
        for (std::size_t i = tasks_.size(); i-- > 0;)
            if (!tasks_[i]->done) to(*tasks_[i]);
        cancelling_ = false;
        forget();
    }
    void forget() {
        for (std::unique_ptr<Task>& task : tasks_)
            if (task->stack) stacks_.push_back(task->stack);
        for (Channel* channel : channels_) channel->reader = channel->writer = nullptr;
        channels_.clear();
        tasks_.clear();
        ready_.clear();
        looking_.clear();
        grown_.clear();
        next_ = 0;
        failed_ = last_ = nullptr;
    }
    std::string deadlock_report() const {
        std::string text = "deadlock, every process waits:";
        for (const std::unique_ptr<Task>& task : tasks_) {
            if (task->done || !task->waits_on) continue;
            const Channel& channel = *task->waits_on;
            text += std::string(" '") + task->name + "' waits to " +
                    (task->writes ? "write full stream '" : "read empty stream '") + channel.name + "' (" +
                    std::to_string(channel.written - channel.read) + " of " + std::to_string(channel.depth) +
                    " words) since cycle " + std::to_string(task->clock) + ";";
        }
        text.pop_back();
        return text;
    }
    // The full FIFO to let one word more into: the shallowest on a circle of processes that wait for one another, else (a
    // process that hasn't come to a stream yet isn't known as its end) one that waits at the end of a chain of them, else
    // the shallowest of all; null where none is full.
    Channel* too_short() const {
        Channel *least = nullptr, *last = nullptr;
        const auto consider = [](Channel*& best, Channel* channel) {
            if (channel->port) return;
            if (!best || channel->depth < best->depth) best = channel;
        };
        for (const std::unique_ptr<Task>& start : tasks_) {
            std::vector<const Task*> path;
            for (const Task* at = start.get(); at && !at->done && at->waits_on;
                 at = at->writes ? at->waits_on->reader : at->waits_on->writer) {
                std::size_t first = 0;
                while (first < path.size() && path[first] != at) ++first;
                if (first < path.size()) {
                    Channel* best = nullptr;
                    for (; first < path.size(); ++first)
                        if (path[first]->writes) consider(best, const_cast<Channel*>(path[first]->waits_on));
                    if (best) return best;
                    break;
                }
                path.push_back(at);
                if (at->writes && !at->waits_on->reader) consider(last, const_cast<Channel*>(at->waits_on));
            }
            if (!start->done && start->waits_on && start->writes) consider(least, const_cast<Channel*>(start->waits_on));
        }
        return last ? last : least;
    }
    bool let_one_more_in() {
        Channel* channel = too_short();
        if (!channel) return false;
        grown_.emplace(channel->name, channel->depth);
        std::uint64_t growth = 0;
        for (const Channel* c : channels_) {
            const auto was = grown_.find(c->name);
            if (was != grown_.end()) growth += c->depth - was->second;
        }
        if (growth >= kMostGrowth) return false;
        ++channel->depth;
        Channel::wake(channel->sleeping_writer_);
        return true;
    }
    std::string enough() const {
        std::string text;
        for (const Channel* c : channels_) {
            const auto was = grown_.find(c->name);
            if (was == grown_.end()) continue;
            text += (text.empty() ? "; it goes on to its end where '" : ", '") + std::string(c->name) + "' has " +
                    std::to_string(c->depth) + " words instead of " + std::to_string(was->second);
        }
        return text;
    }
    static void drop(std::vector<Channel*>& list, Channel& channel) {
        for (std::size_t i = list.size(); i-- > 0;)
            if (list[i] == &channel) list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
    }
    bool unfinished() const {
        for (const std::unique_ptr<Task>& task : tasks_)
            if (!task->done && task.get() != last_) return true;
        return false;
    }
    void loop() {
        std::string stuck, remedy;
        long sample = 0;
        bool ended = false;
        for (;;) {
            if (Task* next = pick()) to(*next);
            if (failed_) {
                const std::exception_ptr error = failed_->error;
                failed_sample = static_cast<long>(failed_->samples.size());
                const bool after = !stuck.empty();
                cancel_all();
                if (!after) std::rethrow_exception(error);
                break;
            }
            if (next_ != ready_.size() || !looking_.empty()) continue;
            if (!unfinished()) {
                if (!ended && stuck.empty() && at_end) at_end();
                if (!ended) remedy = enough();
                ended = true;
                if (!last_) break;
                Task& task = *last_;
                last_ = nullptr;
                to(task);
                continue;
            }
            if (stuck.empty()) {
                stuck = deadlock_report();
                sample = completed();
            }
            if (!let_one_more_in()) break;
        }
        if (!stuck.empty()) {
            failed_sample = sample;
            if (!tasks_.empty()) cancel_all();
            throw std::runtime_error(stuck + remedy);
        }
    }
    long completed() const {  // samples that every process has ended, apart from nested regions
        long least = -1;
        for (const std::unique_ptr<Task>& task : tasks_)
            if (!task->spawned && (!task->parent || task->parent->restarts))
                if (least < 0 || static_cast<long>(task->samples.size()) < least)
                    least = static_cast<long>(task->samples.size());
        return least < 0 ? 0 : least;
    }

  public:
    long failed_sample = 0;        // of the run that threw
    std::function<void()> at_end;  // called when the processes of a simulation have ended, while their streams are there

    Scheduler(const Scheduler&) = delete;
    ~Scheduler() {
        for (void* stack : stacks_) munmap(stack, CUVIL_SIM_STACK_BYTES + kGuardBytes);
    }
    CUVIL_SIM_HIDDEN static Scheduler& instance() {
        static Scheduler scheduler;
        return scheduler;
    }
    // Back-pressure for the coming runs: before a read or write, a process is late with this chance, by up to 16 cycles.
    void set_stalls(std::uint64_t seed, unsigned percent) {
        random_ = seed;
        stall_percent_ = percent;
        Running<void>::late = percent || shuffled_;
    }
    // The host takes processes in another order: no figure may depend on it.
    void set_order(std::uint64_t seed) {
        shuffled_ = seed != 0;
        random_ = seed;
        Running<void>::late = stall_percent_ || shuffled_;
    }
    void stall() {
        if (next_random() % 100 < stall_percent_) running().clock += 1 + static_cast<Cycle>(next_random() % 16);
        if (!outside() && next_random() % 4 == 0) {
            ready_.push_back(&running());
            give_way();
        }
    }
    // Depth of a stream by its name, in place of the one that the source says; 0: as the source says.
    void set_depth(const std::string& name, std::uint64_t words) {
        if (words) depths_[name] = words;
        else depths_.erase(name);
    }
    std::uint64_t depth(const char* name, std::uint64_t words) const {
        if (depths_.empty()) return words;
        const auto found = depths_.find(name);
        return found == depths_.end() ? words : found->second;
    }
    void sleep(Channel& channel, bool writes, bool looks) {
        Task& task = running();
        task.waits_on = &channel;
        task.writes = writes;
        task.looks = looks;
        (writes ? channel.sleeping_writer_ : channel.sleeping_reader_) = &task;
        if (looks) looking_.push_back(&task);
        leave();
        if (cancelling_) throw Cancelled();
        task.waits_on = nullptr;
    }
    // Until no other process can do anything before this one's clock. Of several at one clock the first in the source is next.
    void wait_to_be_first() {
        Task& task = running();
        task.looks = true;
        looking_.push_back(&task);
        give_way();
    }
    void wake(Task& task) { ready_.push_back(&task); }
    void add(Channel& channel) { channels_.push_back(&channel); }
    void remove(Channel& channel) {
        drop(channels_, channel);
        if (channel.reader) drop(channel.reader->inputs, channel);
        if (channel.writer) drop(channel.writer->outputs, channel);
    }
    const std::vector<Channel*>& channels() const { return channels_; }
    const std::vector<std::unique_ptr<Task> >& tasks() const { return tasks_; }
    // The process has done one sample more.
    void end_sample() {
        Task& task = running();
        const std::size_t sample = task.samples.size();
        task.samples.push_back(Sample{task.begin, task.clock, task.events});
        task.begin = task.clock;
        task.events = 0;
        for (Channel* channel : task.inputs) channel->reader_ended(sample);
        for (Channel* channel : task.outputs) channel->writer_ended(sample, task.clock);
    }
    // Wait for all other processes.
    void wait_for_all() {
        last_ = &running();
        give_way();
    }
    // Runs processes to their end. Outside of a process this is a whole simulation.
    void run(std::vector<std::unique_ptr<Task> >& processes) {
        Task* parent = outside() ? nullptr : &running();
        for (std::unique_ptr<Task>& task : processes) {
            task->parent = parent;
            if (parent) task->clock = task->begin = parent->clock;
            task->stack = take_stack();
            prepare(task->context, static_cast<char*>(task->stack) + kGuardBytes, CUVIL_SIM_STACK_BYTES, &Scheduler::entry);
            task->number = tasks_.size();
            ready_.push_back(task.get());
            tasks_.push_back(std::move(task));
        }
        if (parent) {
            parent->children += processes.size();
            while (parent->children) give_way();
            return;
        }
        Task* testbench = Running<void>::now;
        Running<void>::now = &main_;
        try {
            loop();
        } catch (...) {
            Running<void>::now = testbench;
            throw;
        }
        Running<void>::now = testbench;
        forget();
    }
};

inline Channel::Channel(const char* channel_name, std::uint64_t words) : name(channel_name) { set_depth(words); }
inline Channel::~Channel() {
    if (reader || writer) Scheduler::instance().remove(*this);
    std::free(written_at_);
    std::free(read_at_);
}
inline void Channel::set_depth(std::uint64_t words) { depth = Scheduler::instance().depth(name, words); }
inline void Channel::wake(Task*& sleeper) {
    if (sleeper) Scheduler::instance().wake(*sleeper);
    sleeper = nullptr;
}
inline void Channel::stall() { Scheduler::instance().stall(); }
__attribute__((noinline, cold)) inline void Channel::bind(Task*& end, bool writes) {
    Task& task = running();
    if (!reader && !writer) Scheduler::instance().add(*this);
    if (end && end != &Running<void>::outside && !end->done)
        throw std::runtime_error(std::string("stream '") + name + "' is " + (writes ? "written" : "read") + " by two processes, '" +
                                 end->name + "' and '" + task.name + "'");
    end = &task;
    if (!outside()) (writes ? task.outputs : task.inputs).push_back(this);
}
__attribute__((noinline)) inline void Channel::wait_for_word() {
    while (read == written && !outside()) Scheduler::instance().sleep(*this, false, false);
}
__attribute__((noinline)) inline void Channel::wait_for_room() {
    while (written - read >= depth && !outside()) Scheduler::instance().sleep(*this, true, false);
}
inline void Channel::before_read() {
    if (__builtin_expect(reader != &running(), 0)) bind(reader, false);
    if (__builtin_expect(Running<void>::late, 0)) stall();
    if (read == written) wait_for_word();
}
inline void Channel::after_read() {
    Task& task = running();
    const Cycle there = written_at_[read & mask_];
    Cycle at = task.clock > there ? task.clock : there + 1;
    if (at <= last_read_) at = last_read_ + 1;
    waited_for_word += at - task.clock;
    held += at - there;
    task.clock = last_read_ = at;
    read_at_[read & mask_] = at;
    task.note(at);
    ++read;
    if (sleeping_writer_) wake(sleeping_writer_);
}
inline void Channel::before_write() {
    if (__builtin_expect(writer != &running(), 0)) bind(writer, true);
    if (__builtin_expect(Running<void>::late, 0)) stall();
    if (written - read >= depth) wait_for_room();
    judge();
}
inline void Channel::after_write() {
    Task& task = running();
    Cycle at = task.clock;
    if (written >= depth && read > written - depth) {
        const Cycle room = read_at_[(written - depth) & mask_];
        if (at <= room) at = room + 1;
    }
    if (at <= last_write_) at = last_write_ + 1;
    waited_for_room += at - task.clock;
    task.clock = last_write_ = at;
    written_at_[written & mask_] = at;
    task.note(at);
    ++written;
    if (sleeping_reader_) wake(sleeping_reader_);
}
// Whether a word was written before the clock of the process that asks.
inline bool Channel::sees_word() {
    if (reader != &running()) bind(reader, false);
    Task& task = running();
    if (outside()) return read != written;
    if (task.clock <= last_read_) task.clock = last_read_ + 1;
    if (read == written && !(writer && writer->clock >= task.clock)) Scheduler::instance().sleep(*this, false, true);
    if (read != written && written_at_[read & mask_] < task.clock) return true;
    last_read_ = task.clock;  // it has looked in this cycle
    return false;
}
inline bool Channel::sees_room() {
    if (writer != &running()) bind(writer, true);
    Task& task = running();
    if (outside()) return true;
    if (task.clock <= last_write_) task.clock = last_write_ + 1;
    if (written < depth) return true;
    if (written - read >= depth && !(reader && reader->clock >= task.clock)) Scheduler::instance().sleep(*this, true, true);
    if (written - read < depth && read_at_[(written - depth) & mask_] < task.clock) return true;
    last_write_ = task.clock;
    return false;
}
inline void Channel::reader_ended(std::size_t sample) {
    const std::uint64_t count = read < depth ? read : depth;
    recent.clear();
    for (std::uint64_t i = read - count; i < read; ++i) recent.push_back(read_at_[i & mask_]);
    at_read.push_back(ReadMark{waited_for_word, held, read, 0});
    if (at_write.size() > sample) digest(sample);
}
inline void Channel::writer_ended(std::size_t sample, Cycle clock) {
    at_write.push_back(WriteMark{waited_for_room, clock});
    if (at_read.size() == sample + 1) digest(sample);
}
// Reads of one sample decide about writes of later ones, unless they lie before the writer's clock.
inline void Channel::digest(std::size_t sample) {
    std::uint64_t state = recent.size();
    for (const Cycle at : recent) {
        const Cycle late = at + 1 - at_write[sample].clock;
        state = (state ^ static_cast<std::uint64_t>(late > 0 ? late : 0)) * 0x9e3779b97f4a7c15ull;
        state ^= state >> 29;
    }
    at_read[sample].state = state | 1;
}

// At the start of each iteration of a loop over samples, in a body that runs once for all of them.
inline void next_sample() {
    if (running().started) Scheduler::instance().end_sample();
    running().started = true;
}

// What CUVIL_DATAFLOW_BEGIN … CUVIL_DATAFLOW_END expand to in this mode.
class Region {
    std::vector<std::unique_ptr<Task> > processes_;

  public:
    template <class F> Task& add(const char* name, F body, long repeat = 1) {
        processes_.emplace_back(new Task());
        Task& task = *processes_.back();
        task.name = name;
        task.body = std::function<void()>(body);
        task.repeat = repeat;
        return task;
    }
    void run() {
        Task& parent = running();
        if (parent.restarts) {
            parent.spawned = true;
            for (std::unique_ptr<Task>& task : processes_) task->repeat = parent.restarts;
        }
        Scheduler::instance().run(processes_);
        if (parent.restarts) Scheduler::instance().wait_for_all();
    }
};

}  // namespace sim
}  // namespace cuvil

#endif
