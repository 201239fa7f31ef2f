// The part of SYCL 2020 that emitted designs use, on the host and without threads: a task runs when it is submitted.
// A pipe holds whatever is written; reading from an empty one, or leaving words in one, is an error.
#ifndef CUVIL_SIM_SYCL_HPP
#define CUVIL_SIM_SYCL_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

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

template <class T> struct fifo : fifo_base {
    std::deque<T> held;
    explicit fifo(const char *pretty) {
        name = pretty;
        fifos().push_back(this);
    }
    std::size_t words() const override { return held.size(); }
    void clear() override { held.clear(); }
};

// "… [with Name = x0_id; …]" → "x0": what the compiler says a pipe function is.
inline std::string pipe_name(const std::string &pretty) {
    const std::size_t at = pretty.find("Name = ");
    if (at == std::string::npos) return pretty;
    std::string name = pretty.substr(at + 7, pretty.find_first_of(";]", at) - at - 7);
    const std::size_t end = name.rfind("_id");
    return end == std::string::npos ? name : name.substr(0, end);
}

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
    template <class Name, class Task> event single_task(const Task &task) {
        task();
        return event();
    }
    void wait() {}
};

template <class T> T *malloc_device(std::size_t count, const queue &) {
    return static_cast<T *>(std::malloc(count * sizeof(T)));
}
inline void free(void *at, const queue &) { std::free(at); }

}  // namespace sycl

#endif
