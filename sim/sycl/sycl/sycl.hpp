// The part of SYCL 2020 that emitted designs use, on the host and without threads: a task runs when it is submitted.
// A pipe holds whatever is written; reading from an empty one, or leaving words in one, is an error.
//
// -DCUVIL_SIM_BOUNDED: tasks run side by side when the queue is waited for, with clocks, over pipes of their true capacity
// (sim/dataflow/cuvil_sim_channel.h).
#ifndef CUVIL_SIM_SYCL_HPP
#define CUVIL_SIM_SYCL_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef CUVIL_SIM_BOUNDED
#include <cuvil_sim_fifo.h>
#endif

namespace sycl {

template <class To, class From> To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast between types of different sizes");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

class event {
public:
    void wait() const {}
};

namespace simulation {

// Every pipe that was used, so that a run can check that all words were taken.
struct fifo_base {
    virtual ~fifo_base() = default;
    virtual std::size_t words() const = 0;
    virtual void clear() = 0;
    std::string name;
};

inline std::vector<fifo_base *> &fifos() {
    static std::vector<fifo_base *> all;
    return all;
}

// "… [with Name = x0_id; …]" → "x0": what the compiler says a function is that has Name as its parameter.
inline std::string class_name(const std::string &pretty, const char *ending) {
    const std::size_t at = pretty.find("Name = ");
    if (at == std::string::npos) return pretty;
    std::string name = pretty.substr(at + 7, pretty.find_first_of(";]", at) - at - 7);
    const std::size_t end = name.rfind(ending);
    return end == std::string::npos ? name : name.substr(0, end);
}

template <class T> struct fifo : fifo_base {
    fifo(const char *pretty, std::int32_t capacity) {
        name = class_name(pretty, "_id");
        fifos().push_back(this);
        depth = capacity > 0 ? capacity : 1;
        clear();
    }
    std::int32_t depth;
#ifdef CUVIL_SIM_BOUNDED
    std::unique_ptr<cuvil::sim::Fifo<T>> held;
    std::size_t words() const override { return held->held_now(); }
    void clear() override { held.reset(new cuvil::sim::Fifo<T>(name.c_str(), depth)); }
    T take() { return held->take(); }
    void put(const T &word) { held->put(word); }
#else
    std::deque<T> held;
    std::size_t words() const override { return held.size(); }
    void clear() override { held.clear(); }
    T take() {
        if (held.empty()) throw std::runtime_error("pipe " + name + " is read while empty");
        const T word = held.front();
        held.pop_front();
        return word;
    }
    void put(const T &word) { held.push_back(word); }
#endif
};

}  // namespace simulation

// Functions on floats. A device has its own approximations.
using std::atan;
using std::ceil;
using std::cos;
using std::erf;
using std::exp;
using std::expm1;
using std::fabs;
using std::floor;
using std::fmod;
using std::log;
using std::log1p;
using std::pow;
using std::rint;
using std::sin;
using std::sqrt;
using std::tan;
using std::tanh;

class device {};

class queue {
public:
    queue() = default;
    template <class Selector> explicit queue(const Selector &) {}
    event memcpy(void *to, const void *from, std::size_t bytes) {
        std::memcpy(to, from, bytes);
        return event();
    }
#ifdef CUVIL_SIM_BOUNDED
    template <class Name, class Task> event single_task(const Task &task) {
        static const std::string name = simulation::class_name(__PRETTY_FUNCTION__, "_task");
        tasks_->add(name.c_str(), task);
        return event();
    }
    void wait() {
        tasks_->run();
        tasks_.reset(new cuvil::sim::Region());
    }

private:
    std::unique_ptr<cuvil::sim::Region> tasks_{new cuvil::sim::Region()};
#else
    template <class Name, class Task> event single_task(const Task &task) {
        task();
        return event();
    }
    void wait() {}
#endif
};

template <class T> T *malloc_device(std::size_t count, const queue &) {
    return static_cast<T *>(std::malloc(count * sizeof(T)));
}
inline void free(void *at, const queue &) { std::free(at); }

}  // namespace sycl

#endif
