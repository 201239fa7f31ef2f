// Dataflow processes as cooperative tasks, for -DCUVIL_SIM_BOUNDED.
//
// Each process is a coroutine (ucontext) on a stack of its own; all run on the calling thread, in an order fixed by the
// program and, with back-pressure, by a seed: the same run gives the same schedule. A process gives way where a stream is
// empty (read) or full (write). When none can go on, run() throws std::runtime_error that names each process, its stream
// and whether it waits to read or to write. Time is not modelled: only order, depth and blocking.
#ifndef CUVIL_SIM_TASKS_H
#define CUVIL_SIM_TASKS_H

#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#ifndef CUVIL_SIM_STACK_BYTES
#define CUVIL_SIM_STACK_BYTES (8u << 20)  // address space; pages are committed when touched
#endif

namespace cuvil {
namespace sim {

// What the scheduler needs to know of a stream. `fill` and `depth` count words.
struct Channel {
    const char* name;
    std::size_t fill;
    std::size_t depth;
};

struct Cancelled {};  // unwinds a suspended process; deliberately no std::exception

struct Task {
    ucontext_t context;
    void* stack;
    const char* name;
    std::function<void()> body;
    Task* parent;               // the process whose nested region this task belongs to
    std::size_t children;       // unfinished tasks of that nested region
    const Channel* waits_on;
    bool writes;
    bool done;
    std::exception_ptr error;
};

class Scheduler {
    static constexpr std::size_t kGuardBytes = 4096;
    std::vector<std::unique_ptr<Task>> tasks_;
    std::vector<void*> stacks_;
    ucontext_t main_;
    Task* current_ = nullptr;
    bool cancelling_ = false;
    std::uint64_t random_ = 1;
    unsigned stall_percent_ = 0;

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
        Task& task = *self.current_;
        try {
            if (!self.cancelling_) task.body();
        } catch (const Cancelled&) {
        } catch (...) {
            task.error = std::current_exception();
        }
        task.done = true;
        swapcontext(&task.context, &self.main_);
    }
    void resume(Task& task) {
        current_ = &task;
        swapcontext(&main_, &task.context);
        current_ = nullptr;
        if (task.done) {
            if (task.parent) --task.parent->children;
            stacks_.push_back(task.stack);
            task.stack = nullptr;
        }
    }
    void give_way(const Channel* channel, bool writes) {
        Task& task = *current_;
        task.waits_on = channel;
        task.writes = writes;
        swapcontext(&task.context, &main_);
        if (cancelling_) throw Cancelled();
        task.waits_on = nullptr;
    }
    static bool blocked(const Channel& channel, bool writes) {
        return writes ? channel.fill >= channel.depth : channel.fill == 0;
    }
    static bool ready(const Task& task) {
        return !task.done && task.children == 0 && !(task.waits_on && blocked(*task.waits_on, task.writes));
    }
    void cancel_all() {
        cancelling_ = true;
        // Children first, so that a nested region's tasks are gone before the frame that holds their streams.
        for (std::size_t i = tasks_.size(); i-- > 0;)
            if (!tasks_[i]->done) resume(*tasks_[i]);
        cancelling_ = false;
        tasks_.clear();
    }
    std::string deadlock_report() const {
        std::string text = "deadlock, every process waits:";
        for (const std::unique_ptr<Task>& task : tasks_) {
            if (task->done || !task->waits_on) continue;
            text += std::string(" '") + task->name + "' waits to " +
                    (task->writes ? "write full stream '" : "read empty stream '") + task->waits_on->name + "' (" +
                    std::to_string(task->waits_on->fill) + " of " +
                    (task->waits_on->depth == SIZE_MAX ? std::string("any") : std::to_string(task->waits_on->depth)) +
                    " words);";
        }
        text.pop_back();
        return text;
    }
    void loop() {
        std::vector<std::size_t> order;
        for (;;) {
            bool unfinished = false, progress = false;
            order.clear();
            for (std::size_t i = 0; i < tasks_.size(); ++i) order.push_back(i);
            if (stall_percent_)
                for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
            for (std::size_t i : order) {
                Task& task = *tasks_[i];
                if (task.done) continue;
                unfinished = true;
                if (!ready(task)) continue;
                progress = true;
                resume(task);
                if (task.error) {
                    const std::exception_ptr error = task.error;
                    cancel_all();
                    std::rethrow_exception(error);
                }
            }
            if (!unfinished) break;
            if (!progress) {
                const std::string report = deadlock_report();
                cancel_all();
                throw std::runtime_error(report);
            }
        }
        tasks_.clear();
    }

  public:
    Scheduler(const Scheduler&) = delete;
    ~Scheduler() {
        for (void* stack : stacks_) munmap(stack, CUVIL_SIM_STACK_BYTES + kGuardBytes);
    }
    static Scheduler& instance() {
        static thread_local Scheduler scheduler;
        return scheduler;
    }
    // Back-pressure for the coming runs of this thread: before a read or write, a process gives way once with this chance.
    void set_stalls(std::uint64_t seed, unsigned percent) {
        random_ = seed;
        stall_percent_ = percent;
    }
    void wait(const Channel& channel, bool writes) {
        if (!current_) return;  // outside of a region (testbench): an empty read is an error of its own
        if (stall_percent_ && next_random() % 100 < stall_percent_) give_way(nullptr, writes);
        while (blocked(channel, writes)) give_way(&channel, writes);
    }
    void run(std::vector<std::pair<const char*, std::function<void()>>>& processes) {
        Task* parent = current_;
        for (auto& process : processes) {
            std::unique_ptr<Task> task(new Task());
            task->name = process.first;
            task->body = std::move(process.second);
            task->parent = parent;
            task->stack = take_stack();
            getcontext(&task->context);
            task->context.uc_stack.ss_sp = static_cast<char*>(task->stack) + kGuardBytes;
            task->context.uc_stack.ss_size = CUVIL_SIM_STACK_BYTES;
            task->context.uc_link = nullptr;
            makecontext(&task->context, &Scheduler::entry, 0);
            tasks_.push_back(std::move(task));
        }
        if (!parent) return loop();
        parent->children += processes.size();
        while (parent->children) give_way(nullptr, false);
    }
};

inline void wait(const Channel& channel, bool writes) { Scheduler::instance().wait(channel, writes); }

// What CUVIL_DATAFLOW_BEGIN … CUVIL_DATAFLOW_END expand to in this mode.
class Region {
    std::vector<std::pair<const char*, std::function<void()>>> processes_;

  public:
    template <class F> void add(const char* name, F body) { processes_.emplace_back(name, std::function<void()>(body)); }
    void run() { Scheduler::instance().run(processes_); }
};

}  // namespace sim
}  // namespace cuvil

#endif
