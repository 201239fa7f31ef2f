// What a design hands to the runner (cuvil_sim.h), in the translation unit of the design itself:
//
//   #include "top.cpp"           // void top(hls::stream<ap_axiu<64, 0, 0, 0> >& in0, …, hls::stream<…>& out0, …);
//   #include <cuvil_sim_design.h>
//   CUVIL_SIM_DESIGN(top, 1)     // the first 1 parameters are inputs, the others outputs
//
// The runner is the same for every design, so that it is compiled apart, once.
#ifndef CUVIL_SIM_DESIGN_H
#define CUVIL_SIM_DESIGN_H

#include <ap_axi_sdata.h>
#include <hls_stream.h>

#include <cstddef>
#include <utility>

namespace cuvil {
namespace sim {

// `bits`: width of each port's words; `call`: runs top on `ports` streams, each a hls::stream<ap_axiu<bits[i], 0, 0, 0> >*.
struct Design {
    void (*call)(void* const* streams);
    const int* bits;
    int ports;
    int inputs;
};

template <int... BITS> struct Widths { static const int value[]; };
template <int... BITS> const int Widths<BITS...>::value[] = {BITS...};

template <int... BITS>
constexpr Design design(void (*)(hls::stream<ap_axiu<BITS, 0, 0, 0> >&...), void (*call)(void* const*), int inputs) {
    return Design{call, Widths<BITS...>::value, static_cast<int>(sizeof...(BITS)), inputs};
}

template <class... PORT, std::size_t... I>
inline void call(void (*top)(PORT&...), void* const* streams, std::index_sequence<I...>) {
    top(*static_cast<PORT*>(streams[I])...);
}
template <class... PORT> inline void call(void (*top)(PORT&...), void* const* streams) {
    call(top, streams, std::index_sequence_for<PORT...>());
}

}  // namespace sim
}  // namespace cuvil

#define CUVIL_SIM_DESIGN(TOP, INPUTS)                                                                              \
    static void cuvil_sim_call(void* const* streams) { cuvil::sim::call(&TOP, streams); }                          \
    extern "C" const cuvil::sim::Design* cuvil_sim_design() {                                                      \
        static const cuvil::sim::Design about = cuvil::sim::design(&TOP, &cuvil_sim_call, INPUTS);                 \
        return &about;                                                                                             \
    }

#endif
