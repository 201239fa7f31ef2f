#include <cuvil_hls.h>
using cuvil::vec;
template <class T, int LANES, int COUNT>
static void number(hls::stream<vec<T, LANES> >& in, hls::stream<vec<T, LANES> >& out) {
    for (int i = 0; i * LANES < COUNT; ++i) {
        vec<T, LANES> v = in.read();
        for (int l = 0; l < LANES; ++l) v[l] += i * LANES + l;  // spare lanes become non-zero: they must not leak out
        out.write(v);
    }
}
typedef vec<ap_int<16>, 4> word;
const int WORDS = DIAMOND_ELEMENTS / 4;
static void split(hls::stream<word>& in, hls::stream<word>& left, hls::stream<word>& right) {
    for (int i = 0; i < WORDS; ++i) { const word v = in.read(); left.write(v); right.write(v); }
}
static void reversed(hls::stream<word>& in, hls::stream<word>& out) {  // needs every word before it writes one
    word all[WORDS];
    for (int i = 0; i < WORDS; ++i) all[i] = in.read();
    for (int i = WORDS; i-- > 0;) out.write(all[i]);
}
static void join(hls::stream<word>& left, hls::stream<word>& right, hls::stream<vec<ap_int<8>, 4> >& out) {
    for (int i = 0; i < WORDS; ++i) {
        const word a = left.read(), b = right.read();
        vec<ap_int<8>, 4> v;
        for (int l = 0; l < 4; ++l) v[l] = cuvil::saturate<ap_int<8>, 3>(a[l] + b[l]);
        out.write(v);
    }
}
static void inner(hls::stream<word>& in, hls::stream<word>& out) {  // a region inside a process
    hls::stream<word, 1> middle("middle");
    CUVIL_DATAFLOW_BEGIN
    CUVIL_PROCESS(copy, for (int i = 0; i < WORDS; ++i) middle.write(in.read()))
    CUVIL_PROCESS(reverse, reversed(middle, out))
    CUVIL_DATAFLOW_END
}
static void fault(hls::stream<vec<ap_int<32>, 1> >& mode, hls::stream<vec<ap_int<32>, 1> >& out) {
    vec<ap_int<32>, 1> m = mode.read();
    if (m[0] == 1) m = mode.read();  // one word more than there is
    if (m[0] == 2) out.write(m);     // one word more than is read
    out.write(m);
}
void top(INPUTS, hls::stream<ap_axiu<64, 0, 0, 0> >& in_diamond, hls::stream<ap_axiu<64, 0, 0, 0> >& in_mode,
         OUTPUTS, hls::stream<ap_axiu<64, 0, 0, 0> >& out_diamond, hls::stream<ap_axiu<64, 0, 0, 0> >& out_mode) {
    STREAMS
    hls::stream<word, 2> source("source"), right("right"), back("back");
    hls::stream<word, BYPASS_DEPTH> bypass("bypass");
    hls::stream<vec<ap_int<8>, 4>, 2> joined("joined");
    hls::stream<vec<ap_int<32>, 1>, 2> mode("mode"), echoed("echoed");
    CUVIL_DATAFLOW_BEGIN
    PROCESSES
    CUVIL_PROCESS(read_diamond, cuvil::axis_to_stream<64, ap_int<16>, 4, DIAMOND_ELEMENTS>(in_diamond, source))
    CUVIL_PROCESS(split, split(source, bypass, right))
    CUVIL_PROCESS(inner, inner(right, back))
    CUVIL_PROCESS(join, join(bypass, back, joined))
    CUVIL_PROCESS(write_diamond, cuvil::stream_to_axis<64, ap_int<8>, 4, DIAMOND_ELEMENTS>(joined, out_diamond))
    CUVIL_PROCESS(read_mode, cuvil::axis_to_stream<64, ap_int<32>, 1, 1>(in_mode, mode))
    CUVIL_PROCESS(fault, fault(mode, echoed))
    CUVIL_PROCESS(write_mode, cuvil::stream_to_axis<64, ap_int<32>, 1, 1>(echoed, out_mode))
    CUVIL_DATAFLOW_END
}
#include <cuvil_sim.h>
CUVIL_SIM_DESIGN(top, INPUT_COUNT)
