// What designs with floats need beside cuvil_hls.h: functions, and floats on AXI4-Stream ports.
#ifndef CUVIL_HLS_FLOAT_H
#define CUVIL_HLS_FLOAT_H

#include <cmath>

#include <cuvil_hls.h>
#include <hls_math.h>

namespace cuvil {

// A float as it crosses a port: its IEEE 754 bits in a container of their own width. A port's E where its T is a float.
template <class T> class ieee;
template <> class ieee<float> {
    union {
        float value;
        unsigned int bits;
    } both_;

  public:
    ieee(const ap_uint<32>& bits) { both_.bits = (unsigned int)bits; }
    ieee(float value) { both_.value = value; }
    operator float() const { return both_.value; }
    operator ap_uint<32>() const { return ap_uint<32>(both_.bits); }
};

template <> struct element<ieee<float> > {
    static const int width = 32;
    static const int container_bits = 32;
};

}  // namespace cuvil

#endif
