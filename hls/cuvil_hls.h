// Hand-written part of every generated HLS design. Synthesizable C++14 for Vitis HLS; the simulators compile the same text.
//
//   vec<T, N>                        stream word of N lanes
//   saturate<OUT, LAYER>(x)          clip to the range of OUT
//   axis_to_stream, stream_to_axis   dataflow processes between AXI4-Stream words and lanes
//   CUVIL_DATAFLOW_BEGIN, CUVIL_PROCESS(name, call), CUVIL_DATAFLOW_END, CUVIL_STATIC
#ifndef CUVIL_HLS_H
#define CUVIL_HLS_H

#include <ap_axi_sdata.h>
#include <ap_int.h>
#include <hls_stream.h>

#ifdef CUVIL_SIM_COUNT
#include <cuvil_sim_count.h>
#endif

// Plain sequential calls for Vitis (beside #pragma HLS DATAFLOW) and for normal simulation; concurrent tasks with true FIFO
// depths when the simulator is built with CUVIL_SIM_BOUNDED. Processes share nothing but streams.
#ifdef CUVIL_SIM_BOUNDED
#include <cuvil_sim_tasks.h>
#define CUVIL_DATAFLOW_BEGIN { cuvil::sim::Region cuvil_region;
#define CUVIL_PROCESS(name, ...) cuvil_region.add(#name, [&] { __VA_ARGS__; });
#define CUVIL_DATAFLOW_END cuvil_region.run(); }
#else
#define CUVIL_DATAFLOW_BEGIN
#define CUVIL_PROCESS(name, ...) __VA_ARGS__;
#define CUVIL_DATAFLOW_END
#endif

// State that outlives a call (registers, memories): one copy in hardware, one copy per thread in simulation.
#ifdef __SYNTHESIS__
#define CUVIL_STATIC static
#else
#define CUVIL_STATIC static thread_local
#endif

// Before a `for` over lanes: in simulation GCC keeps the loop and turns it into vector instructions (else it unrolls short
// loops to scalar code first, three to five times slower). Nothing in hardware, where #pragma HLS UNROLL stands in the body.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__SYNTHESIS__)
#define CUVIL_LANES _Pragma("GCC unroll 1")
#else
#define CUVIL_LANES
#endif

namespace cuvil {

// A stream word of N lanes; lane 0 holds the element that comes first in memory.
template <class T, int N> struct vec {
    T v[N];
    T& operator[](int lane) { return v[lane]; }
    const T& operator[](int lane) const { return v[lane]; }
};

// Width, container (the integer that carries one element in a NumPy array) and range of an element type.
template <class T> struct element;
template <int W> struct element<ap_int<W> > {
    static const int width = W;
    static const int container_bits = W <= 8 ? 8 : W <= 16 ? 16 : W <= 32 ? 32 : 64;
    static const long long low = (long long)(~0ULL << (W - 1));
    static const long long high = ~low;
};
template <int W> struct element<ap_uint<W> > {
    static_assert(W <= 63, "unsigned elements have at most 63 bits");
    static const int width = W;
    static const int container_bits = W <= 8 ? 8 : W <= 16 ? 16 : W <= 32 ? 32 : 64;
    static const long long low = 0;
    static const long long high = (long long)(~0ULL >> (64 - W));
};
// Definitions: operators take their operands by reference, which unoptimised code does literally.
template <int W> const int element<ap_int<W> >::width;
template <int W> const int element<ap_int<W> >::container_bits;
template <int W> const long long element<ap_int<W> >::low;
template <int W> const long long element<ap_int<W> >::high;
template <int W> const int element<ap_uint<W> >::width;
template <int W> const int element<ap_uint<W> >::container_bits;
template <int W> const long long element<ap_uint<W> >::low;
template <int W> const long long element<ap_uint<W> >::high;

// Bounds as narrow C integers where they fit, so that narrow values are compared at their own width.
template <bool NARROW> struct bound { typedef long long type; };
template <> struct bound<true> { typedef int type; };

// x (an ap_int or ap_uint of up to 64 bits) clipped to the range of OUT. LAYER (0..1023) names the layer in the simulator's
// saturation counters, which exist only with CUVIL_SIM_COUNT: each clip counts once, low or high.
template <class OUT, int LAYER, class X> OUT saturate(const X& x) {
#pragma HLS INLINE
    static_assert(LAYER >= 0 && LAYER < 1024, "layer numbers are 0..1023");
    // Plain C integers and conditional expressions: loops over lanes then vectorise in simulation.
    typedef typename bound<(element<OUT>::high <= 0x7fffffffLL && element<X>::high <= 0x7fffffffLL)>::type number;
    const number low = (number)element<OUT>::low;
    const number high = (number)element<OUT>::high;
    const number value = (number)x;
#ifdef CUVIL_SIM_COUNT
    if (value < low) sim::count_low(LAYER);
    if (value > high) sim::count_high(LAYER);
#endif
    const number at_most = value > high ? high : value;
    return OUT(at_most < low ? low : at_most);
}

// The larger of x and low, a value of the same type (ReLU on integers).
template <int W> ap_int<W> at_least(const ap_int<W>& x, const ap_int<W>& low) {
#pragma HLS INLINE
    typedef typename bound<(W <= 32)>::type number;
    const number a = (number)x, b = (number)low;
    return ap_int<W>(a < b ? b : a);
}
template <int W> ap_uint<W> at_least(const ap_uint<W>& x, const ap_uint<W>& low) {
#pragma HLS INLINE
    typedef typename bound<(W <= 31)>::type number;
    static_assert(W <= 63, "unsigned elements have at most 63 bits");
    const number a = (number)x, b = (number)low;
    return ap_uint<W>(a < b ? b : a);
}

// ---- AXI4-Stream -------------------------------------------------------------------------------------------------------
//
// One tensor of COUNT elements of type T is sent as the bytes of its C-contiguous NumPy array:
//   * each element fills its container: 8, 16, 32 or 64 bits for up to 8, 16, 32 or 64 bits of width; signed values are
//     sign-extended, unsigned ones zero-extended; on the way in the spare high bits are ignored;
//   * elements follow each other in memory order, little-endian: element e sits in word e / PER at bit (e % PER) * container,
//     PER = BITS / container elements a word;
//   * every tensor starts at a fresh word: it takes ceil(COUNT / PER) words, and the spare bytes of the last are zero
//     (ignored on the way in);
//   * `last` ends a packet, which may carry many samples: it is set on the final word of an output where it was set on the
//     final word of the input sample that it belongs to (or of every sample, where nothing is passed on);
//   * keep and strb have one bit a byte: all are set, but for the spare bytes of a word with `last`, since a DMA takes a
//     partial word at the end of a packet only.
// On the lane side the same elements come as ceil(COUNT / LANES) words of LANES lanes; spare lanes of the last word are zero
// (ignored on the way out). COUNT, LANES and PER need not divide each other: where neither LANES nor PER divides the other,
// one element moves a cycle, else one AXI word or one lane word, whichever is narrower.

namespace axis {

template <int BITS, class T, int LANES, int COUNT> struct shape {
    static const int container = element<T>::container_bits;
    static_assert(container <= BITS, "an element must fit in one AXI4-Stream word");
    static_assert(COUNT > 0 && LANES > 0, "a tensor has at least one element and a word at least one lane");
    static const int per = BITS / container;
    static const int words = (COUNT + per - 1) / per;
    static const int vecs = (COUNT + LANES - 1) / LANES;
    static const int tail_bytes = (COUNT - (words - 1) * per) * (container / 8);
    // 0: several (or one) AXI words a lane word; 1: several lane words an AXI word; 2: neither.
    static const int kind = LANES % per == 0 ? 0 : per % LANES == 0 ? 1 : 2;
    static const int ratio = kind == 0 ? LANES / per : kind == 1 ? per / LANES : 1;
};
template <int B, class T, int L, int C> const int shape<B, T, L, C>::container;
template <int B, class T, int L, int C> const int shape<B, T, L, C>::per;
template <int B, class T, int L, int C> const int shape<B, T, L, C>::words;
template <int B, class T, int L, int C> const int shape<B, T, L, C>::vecs;
template <int B, class T, int L, int C> const int shape<B, T, L, C>::tail_bytes;
template <int B, class T, int L, int C> const int shape<B, T, L, C>::kind;
template <int B, class T, int L, int C> const int shape<B, T, L, C>::ratio;

template <int KIND> struct gearbox;

template <int BITS> void take(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, ap_uint<BITS>& data, bool& last) {
#pragma HLS INLINE
    const ap_axiu<BITS, 0, 0, 0> axi = in.read();
    data = axi.data;
    last = axi.last != 0;
}

// Whether a packet ends with this sample: always, or as a stream of one flag a sample says.
struct every_sample {};
inline bool ends_packet(every_sample&) { return true; }
template <class F> bool ends_packet(hls::stream<vec<F, 1> >& ends) {
#pragma HLS INLINE
    return ends.read().v[0] != F(0);
}

template <int BITS, class S, class ENDS>
void put(hls::stream<ap_axiu<BITS, 0, 0, 0> >& out, ap_uint<BITS> data, int word, ENDS& ends) {
#pragma HLS INLINE
    const unsigned long long all = ~0ULL >> (64 - BITS / 8);
    ap_axiu<BITS, 0, 0, 0> axi;
    bool last = false;
    if (word == S::words - 1) last = ends_packet(ends);
    axi.data = data;
    axi.keep = last ? all >> (BITS / 8 - S::tail_bytes) : all;
    axi.strb = axi.keep;
    axi.last = last;
    out.write(axi);
}

template <> struct gearbox<0> {
    template <int BITS, class E, int LANES, int COUNT, class T>
    static bool in(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, LANES> >& out) {
        typedef shape<BITS, E, LANES, COUNT> S;
        bool last = false;
        vec<T, LANES> lanes;
#pragma HLS ARRAY_PARTITION variable=lanes.v complete
        for (int i = 0; i < S::vecs; ++i) {
            for (int part = 0; part < S::ratio; ++part) {
#pragma HLS PIPELINE II=1
                const int word = i * S::ratio + part;
                ap_uint<BITS> data = 0;
                if (word < S::words) take(in, data, last);
                for (int p = 0; p < S::per; ++p) {
#pragma HLS UNROLL
                    const ap_uint<S::container> bits = data >> (p * S::container);
                    lanes.v[part * S::per + p] = word * S::per + p < COUNT ? T(E(bits)) : T(0);
                }
                if (part == S::ratio - 1) out.write(lanes);
            }
        }
        return last;
    }
    template <int BITS, class E, int LANES, int COUNT, class T, class ENDS>
    static void out(hls::stream<vec<T, LANES> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out, ENDS& ends) {
        typedef shape<BITS, E, LANES, COUNT> S;
        vec<T, LANES> lanes;
#pragma HLS ARRAY_PARTITION variable=lanes.v complete
        for (int i = 0; i < S::vecs; ++i) {
            for (int part = 0; part < S::ratio; ++part) {
#pragma HLS PIPELINE II=1
                const int word = i * S::ratio + part;
                if (part == 0) lanes = in.read();
                ap_uint<BITS> data = 0;
                for (int p = 0; p < S::per; ++p) {
#pragma HLS UNROLL
                    const ap_uint<S::container> bits = E(lanes.v[part * S::per + p]);
                    if (word * S::per + p < COUNT) data |= ap_uint<BITS>(bits) << (p * S::container);
                }
                if (word < S::words) put<BITS, S>(out, data, word, ends);
            }
        }
    }
};

template <> struct gearbox<1> {
    template <int BITS, class E, int LANES, int COUNT, class T>
    static bool in(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, LANES> >& out) {
        typedef shape<BITS, E, LANES, COUNT> S;
        bool last = false;
        ap_uint<BITS> data = 0;
        int part = 0;
        for (int i = 0; i < S::vecs; ++i) {
#pragma HLS PIPELINE II=1
            if (part == 0) take(in, data, last);
            vec<T, LANES> lanes;
            for (int l = 0; l < LANES; ++l) {
#pragma HLS UNROLL
                const ap_uint<S::container> bits = data >> (l * S::container);
                lanes.v[l] = i * LANES + l < COUNT ? T(E(bits)) : T(0);
            }
            out.write(lanes);
            data >>= LANES * S::container;
            part = part == S::ratio - 1 ? 0 : part + 1;
        }
        return last;
    }
    template <int BITS, class E, int LANES, int COUNT, class T, class ENDS>
    static void out(hls::stream<vec<T, LANES> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out, ENDS& ends) {
        typedef shape<BITS, E, LANES, COUNT> S;
        ap_uint<BITS> data = 0;
        int part = 0, word = 0;
        for (int i = 0; i < S::vecs; ++i) {
#pragma HLS PIPELINE II=1
            const vec<T, LANES> lanes = in.read();
            for (int l = 0; l < LANES; ++l) {
#pragma HLS UNROLL
                const ap_uint<S::container> bits = E(lanes.v[l]);
                if (i * LANES + l < COUNT) data |= ap_uint<BITS>(bits) << ((part * LANES + l) * S::container);
            }
            if (part == S::ratio - 1 || i == S::vecs - 1) {
                put<BITS, S>(out, data, word, ends);
                data = 0;
                part = 0;
                ++word;
            } else {
                ++part;
            }
        }
    }
};

template <> struct gearbox<2> {
    template <int BITS, class E, int LANES, int COUNT, class T>
    static bool in(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, LANES> >& out) {
        typedef shape<BITS, E, LANES, COUNT> S;
        bool last = false;
        vec<T, LANES> lanes;
#pragma HLS ARRAY_PARTITION variable=lanes.v complete
        ap_uint<BITS> data = 0;
        int part = 0, lane = 0;
        for (int e = 0; e < COUNT; ++e) {
#pragma HLS PIPELINE II=1
            if (part == 0) take(in, data, last);
            const ap_uint<S::container> bits = data;
            for (int l = 0; l < LANES; ++l) {
#pragma HLS UNROLL
                if (l == lane) lanes.v[l] = T(E(bits));
                else if (lane == 0) lanes.v[l] = T(0);
            }
            if (lane == LANES - 1 || e == COUNT - 1) out.write(lanes);
            data >>= S::container;
            part = part == S::per - 1 ? 0 : part + 1;
            lane = lane == LANES - 1 ? 0 : lane + 1;
        }
        return last;
    }
    template <int BITS, class E, int LANES, int COUNT, class T, class ENDS>
    static void out(hls::stream<vec<T, LANES> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out, ENDS& ends) {
        typedef shape<BITS, E, LANES, COUNT> S;
        vec<T, LANES> lanes;
#pragma HLS ARRAY_PARTITION variable=lanes.v complete
        ap_uint<BITS> data = 0;
        int part = 0, lane = 0, word = 0;
        for (int e = 0; e < COUNT; ++e) {
#pragma HLS PIPELINE II=1
            if (lane == 0) lanes = in.read();
            const ap_uint<S::container> bits = E(lanes.v[lane]);
            data |= ap_uint<BITS>(bits) << (part * S::container);
            lane = lane == LANES - 1 ? 0 : lane + 1;
            if (part == S::per - 1 || e == COUNT - 1) {
                put<BITS, S>(out, data, word, ends);
                data = 0;
                part = 0;
                ++word;
            } else {
                ++part;
            }
        }
    }
};

}  // namespace axis

// One tensor in. Reads exactly ceil(COUNT / PER) words, writes exactly ceil(COUNT / LANES). E: the element as it crosses the
// port, which says how it fills its container; T: the same bits as the processes carry them (ap_int<4> for ap_uint<4>, bool).
template <int BITS, class E, int LANES, int COUNT, class T>
void axis_to_stream(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, LANES> >& out) {
    axis::gearbox<axis::shape<BITS, E, LANES, COUNT>::kind>::template in<BITS, E, LANES, COUNT>(in, out);
}
// `ends` gets a flag a sample: whether its final word had `last`.
template <int BITS, class E, int LANES, int COUNT, class T, class F>
void axis_to_stream(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, LANES> >& out,
                    hls::stream<vec<F, 1> >& ends) {
    vec<F, 1> flag;
    flag.v[0] = F(axis::gearbox<axis::shape<BITS, E, LANES, COUNT>::kind>::template in<BITS, E, LANES, COUNT>(in, out));
    ends.write(flag);
}

// One tensor out, a packet of its own.
template <int BITS, class E, int LANES, int COUNT, class T>
void stream_to_axis(hls::stream<vec<T, LANES> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out) {
    axis::every_sample ends;
    axis::gearbox<axis::shape<BITS, E, LANES, COUNT>::kind>::template out<BITS, E, LANES, COUNT>(in, out, ends);
}
// One tensor out, which ends a packet if `ends` says so. The flag is read for the final word, not before: other words need
// not wait for the whole input.
template <int BITS, class E, int LANES, int COUNT, class T, class F>
void stream_to_axis(hls::stream<vec<T, LANES> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out,
                    hls::stream<vec<F, 1> >& ends) {
    axis::gearbox<axis::shape<BITS, E, LANES, COUNT>::kind>::template out<BITS, E, LANES, COUNT>(in, out, ends);
}

}  // namespace cuvil

#endif
