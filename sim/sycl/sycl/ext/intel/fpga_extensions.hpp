// sycl::ext::intel on the host. Of pipes, CAPACITY is what hardware gets; here a pipe grows, unless there are clocks.
#ifndef CUVIL_SIM_SYCL_FPGA_EXTENSIONS_HPP
#define CUVIL_SIM_SYCL_FPGA_EXTENSIONS_HPP

#include <sycl/sycl.hpp>

namespace sycl::ext::intel {

inline int fpga_selector_v(const device &) { return 1; }
inline int fpga_emulator_selector_v(const device &) { return 1; }

// What multiplies inside a function: the same product on the host.
enum class Preference { DSP, Softlogic, Compiler_default };
enum class Propagate { On, Off };
template <Preference = Preference::DSP, Propagate = Propagate::On, class F> void math_dsp_control(F body) { body(); }

template <class Name, class T, std::int32_t CAPACITY = 0> class pipe {
    static_assert(CAPACITY >= 0, "a pipe has room for 0 or more words");

    static simulation::fifo<T> &fifo() {
        static simulation::fifo<T> held(__PRETTY_FUNCTION__, CAPACITY);
        return held;
    }

public:
    using value_type = T;
    static constexpr std::int32_t min_capacity = CAPACITY;

    static T read() { return fifo().take(); }
    static void write(const T &word) { fifo().put(word); }
};

}  // namespace sycl::ext::intel

#endif
