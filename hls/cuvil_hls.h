// Hand-written part of every generated HLS design. Synthesizable C++14 for Vitis HLS; the simulators compile the same text.
//
//   vec<T, N>                        stream word of N lanes
//   saturate<OUT, LAYER>(x)          clip to the range of OUT
//   axis_to_stream, stream_to_axis   dataflow processes between AXI4-Stream words and lanes (axis_word_to_stream,
//                                    stream_to_axis_word: where a tensor is one word)
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

// x times 2 to the S, which W bits hold.
template <int W, int S> ap_int<W> up(const ap_int<W>& x) {
#pragma HLS INLINE
    return x << S;
}

// Two products with a factor in common, by one multiplier block: `high` and `low` lie S bits apart in its wide factor. S bits
// hold a product; where the lower one is negative, it has borrowed one from the upper, which gets it back.
template <int S> struct products { ap_int<S> low, high; };
template <int A, int B, int S>
products<S> multiply_pair(const ap_int<A>& shared, const ap_int<B>& low, const ap_int<B>& high) {
#pragma HLS INLINE
    const ap_int<B + S + 1> wide = ap_int<B + S + 1>(high) << S;
    const ap_int<B + S + 1> both = wide + low;
    const ap_int<A + B + S + 1> product = both * shared;
#pragma HLS bind_op variable=product op=mul impl=dsp
    products<S> result;
    result.low = product;
    const ap_uint<1> borrowed = result.low < 0;
    result.high = (product >> S) + borrowed;
    return result;
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
// (ignored on the way out). COUNT, LANES and PER need not divide each other: a step takes a whole word where one is needed
// and gives a whole word where there is one, so that a tensor takes as many steps as the side with more words has words
// (one more where the narrow side ends with part of a word).

namespace axis {

template <int BITS, class T, int LANES, int COUNT> struct shape {
    static const int container = element<T>::container_bits;
    static_assert(container <= BITS, "an element must fit in one AXI4-Stream word");
    static_assert(COUNT > 0 && LANES > 0, "a tensor has at least one element and a word at least one lane");
    static const int per = BITS / container;
    static const int words = (COUNT + per - 1) / per;
    static const int vecs = (COUNT + LANES - 1) / LANES;
    static const int tail_bytes = (COUNT - (words - 1) * per) * (container / 8);
};
template <int B, class T, int L, int C> const int shape<B, T, L, C>::container;
template <int B, class T, int L, int C> const int shape<B, T, L, C>::per;
template <int B, class T, int L, int C> const int shape<B, T, L, C>::words;
template <int B, class T, int L, int C> const int shape<B, T, L, C>::vecs;
template <int B, class T, int L, int C> const int shape<B, T, L, C>::tail_bytes;

constexpr int common(int a, int b) { return b == 0 ? a : common(b, a % b); }

// COUNT elements that come A at a time and leave B at a time; they move in groups of as many as divide both.
template <int A, int B, int COUNT> struct gears {
    static const int group = common(A, B);
    static const int room = A + B - group;  // what is left of a unit, and one more
    static const int ins = (COUNT + A - 1) / A;
    static const int outs = (COUNT + B - 1) / B;
    // Where units grow, each step takes one; what is left behind the last unit that was filled leaves by itself.
    static const bool rest = ins * A / B < outs && (ins - 1) * A % B + A >= B;
    static const int steps = B <= A ? outs : ins + (rest ? 1 : 0);
};
template <int A, int B, int C> const int gears<A, B, C>::group;
template <int A, int B, int C> const int gears<A, B, C>::room;
template <int A, int B, int C> const int gears<A, B, C>::ins;
template <int A, int B, int C> const int gears<A, B, C>::outs;
template <int A, int B, int C> const bool gears<A, B, C>::rest;
template <int A, int B, int C> const int gears<A, B, C>::steps;

// Put a unit of A elements behind `groups` groups that are held.
template <class G, int A, class T, int ROOM> void push(T (&held)[ROOM], const T (&unit)[A], int groups) {
#pragma HLS INLINE
    for (int k = 0; (k + 1) * G::group <= ROOM - A + G::group; ++k) {
#pragma HLS UNROLL
        for (int e = 0; e < A; ++e) {
#pragma HLS UNROLL
            if (k == groups) held[k * G::group + e] = unit[e];
        }
    }
}
// Drop a unit of B elements: the others move up.
template <int B, class T, int ROOM> void drop(T (&held)[ROOM]) {
#pragma HLS INLINE
    for (int l = 0; l + B < ROOM; ++l) {
#pragma HLS UNROLL
        held[l] = held[l + B];
    }
}

// The data of a word, and its part `p` of C bits.
template <int BITS> using bus = decltype(ap_axiu<BITS, 0, 0, 0>::data);
template <int C, class W> ap_uint<C> part(const W& data, int p) {
#pragma HLS INLINE
    return ap_uint<C>(data.range(p * C + C - 1, p * C));
}
template <int C, class W> void put_part(W& data, int p, const ap_uint<C>& bits) {
#pragma HLS INLINE
    data.range(p * C + C - 1, p * C) = bits;
}

template <int BITS> void take(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, bus<BITS>& data, bool& last) {
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
void put(hls::stream<ap_axiu<BITS, 0, 0, 0> >& out, const bus<BITS>& data, int word, ENDS& ends) {
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

template <int BITS, class E, int LANES, int COUNT, class T>
bool to_lanes(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, LANES> >& out) {
    typedef shape<BITS, E, LANES, COUNT> S;
    typedef gears<S::per, LANES, COUNT> G;
    T held[G::room];
#pragma HLS ARRAY_PARTITION variable=held complete
    for (int l = 0; l < G::room; ++l) {
#pragma HLS UNROLL
        held[l] = T(0);
    }
    bool last = false;
    int groups = 0, taken = 0, given = 0;
    for (int step = 0; step < G::steps; ++step) {
#pragma HLS PIPELINE II=1
        if (groups < LANES / G::group && taken < S::words) {
            bus<BITS> data = 0;
            T unit[S::per];
#pragma HLS ARRAY_PARTITION variable=unit complete
            take(in, data, last);
            for (int p = 0; p < S::per; ++p) {
#pragma HLS UNROLL
                unit[p] = T(E(part<S::container>(data, p)));
            }
            push<G>(held, unit, groups);
            groups += S::per / G::group;
            ++taken;
        }
        if (groups >= LANES / G::group || taken == S::words) {
            vec<T, LANES> lanes;
            for (int l = 0; l < LANES; ++l) {
#pragma HLS UNROLL
                lanes.v[l] = l < COUNT - (S::vecs - 1) * LANES || given < S::vecs - 1 ? held[l] : T(0);
            }
            out.write(lanes);
            drop<LANES>(held);
            groups -= LANES / G::group;
            ++given;
        }
    }
    return last;
}

template <int BITS, class E, int LANES, int COUNT, class T, class ENDS>
void from_lanes(hls::stream<vec<T, LANES> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out, ENDS& ends) {
    typedef shape<BITS, E, LANES, COUNT> S;
    typedef gears<LANES, S::per, COUNT> G;
    typedef ap_uint<S::container> C;
    C held[G::room];
#pragma HLS ARRAY_PARTITION variable=held complete
    for (int l = 0; l < G::room; ++l) {
#pragma HLS UNROLL
        held[l] = C(0);
    }
    int groups = 0, taken = 0, given = 0;
    for (int step = 0; step < G::steps; ++step) {
#pragma HLS PIPELINE II=1
        if (groups < S::per / G::group && taken < S::vecs) {
            const vec<T, LANES> lanes = in.read();
            C unit[LANES];
#pragma HLS ARRAY_PARTITION variable=unit complete
            for (int l = 0; l < LANES; ++l) {
#pragma HLS UNROLL
                const C bits = E(lanes.v[l]);
                unit[l] = bits;
            }
            push<G>(held, unit, groups);
            groups += LANES / G::group;
            ++taken;
        }
        if (groups >= S::per / G::group || taken == S::vecs) {
            bus<BITS> data = 0;
            for (int p = 0; p < S::per; ++p) {
#pragma HLS UNROLL
                if (p < COUNT - (S::words - 1) * S::per || given < S::words - 1)
                    put_part<S::container>(data, p, held[p]);
            }
            put<BITS, S>(out, data, given, ends);
            drop<S::per>(held);
            groups -= S::per / G::group;
            ++given;
        }
    }
}

// A tensor that is one word on both sides, at a step a sample: there is no loop, the process itself is the pipeline.
template <int BITS, class E, int COUNT, class T>
bool word_to_lanes(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, COUNT> >& out) {
#pragma HLS INLINE
    typedef shape<BITS, E, COUNT, COUNT> S;
    bus<BITS> data = 0;
    bool last = false;
    take(in, data, last);
    vec<T, COUNT> lanes;
    for (int l = 0; l < COUNT; ++l) {
#pragma HLS UNROLL
        lanes.v[l] = T(E(part<S::container>(data, l)));
    }
    out.write(lanes);
    return last;
}
template <int BITS, class E, int COUNT, class T, class ENDS>
void word_from_lanes(hls::stream<vec<T, COUNT> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out, ENDS& ends) {
#pragma HLS INLINE
    typedef shape<BITS, E, COUNT, COUNT> S;
    const vec<T, COUNT> lanes = in.read();
    bus<BITS> data = 0;
    for (int l = 0; l < COUNT; ++l) {
#pragma HLS UNROLL
        const ap_uint<S::container> bits = E(lanes.v[l]);
        put_part<S::container>(data, l, bits);
    }
    put<BITS, S>(out, data, 0, ends);
}

}  // namespace axis

// One tensor in. Reads exactly ceil(COUNT / PER) words, writes exactly ceil(COUNT / LANES). E: the element as it crosses the
// port, which says how it fills its container; T: the same bits as the processes carry them (ap_int<4> for ap_uint<4>, bool).
template <int BITS, class E, int LANES, int COUNT, class T>
void axis_to_stream(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, LANES> >& out) {
    axis::to_lanes<BITS, E, LANES, COUNT>(in, out);
}
// `ends` gets a flag a sample: whether its final word had `last`.
template <int BITS, class E, int LANES, int COUNT, class T, class F>
void axis_to_stream(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, LANES> >& out,
                    hls::stream<vec<F, 1> >& ends) {
    vec<F, 1> flag;
    flag.v[0] = F(axis::to_lanes<BITS, E, LANES, COUNT>(in, out));
    ends.write(flag);
}

// One tensor out, a packet of its own.
template <int BITS, class E, int LANES, int COUNT, class T>
void stream_to_axis(hls::stream<vec<T, LANES> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out) {
    axis::every_sample ends;
    axis::from_lanes<BITS, E, LANES, COUNT>(in, out, ends);
}
// One tensor out, which ends a packet if `ends` says so. The flag is read for the final word, not before: other words need
// not wait for the whole input.
template <int BITS, class E, int LANES, int COUNT, class T, class F>
void stream_to_axis(hls::stream<vec<T, LANES> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out,
                    hls::stream<vec<F, 1> >& ends) {
    axis::from_lanes<BITS, E, LANES, COUNT>(in, out, ends);
}

// Likewise for a tensor whose elements fill one word of the port, at most, and are all lanes: a sample a cycle.
template <int BITS, class E, int COUNT, class T>
void axis_word_to_stream(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, COUNT> >& out) {
#pragma HLS PIPELINE II=1
    axis::word_to_lanes<BITS, E, COUNT>(in, out);
}
template <int BITS, class E, int COUNT, class T, class F>
void axis_word_to_stream(hls::stream<ap_axiu<BITS, 0, 0, 0> >& in, hls::stream<vec<T, COUNT> >& out,
                         hls::stream<vec<F, 1> >& ends) {
#pragma HLS PIPELINE II=1
    vec<F, 1> flag;
    flag.v[0] = F(axis::word_to_lanes<BITS, E, COUNT>(in, out));
    ends.write(flag);
}
template <int BITS, class E, int COUNT, class T>
void stream_to_axis_word(hls::stream<vec<T, COUNT> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out) {
#pragma HLS PIPELINE II=1
    axis::every_sample ends;
    axis::word_from_lanes<BITS, E, COUNT>(in, out, ends);
}
template <int BITS, class E, int COUNT, class T, class F>
void stream_to_axis_word(hls::stream<vec<T, COUNT> >& in, hls::stream<ap_axiu<BITS, 0, 0, 0> >& out,
                         hls::stream<vec<F, 1> >& ends) {
#pragma HLS PIPELINE II=1
    axis::word_from_lanes<BITS, E, COUNT>(in, out, ends);
}

}  // namespace cuvil

#endif
