// The shared engine of the temporal style: layers run one after another on it, with feature maps and weights in the board's
// memory. Synthesizable C++14 for Vitis HLS; the simulators compile the same text.
//
//   convolve<PE, SIMD, …>(p, weights, source, target)   convolutions, linear layers, pools: PE outputs × SIMD inputs a cycle
//   combine<E>(p, weights, source, target)              elementwise sums of one or two maps, rescaled
//
// `pass` (passes.h, made with the design) says what a layer is; its numbers are read from memory, so that one instance of the
// hardware runs every layer. A feature map lies row by row, channels last, each pixel padded to whole words.
//
// Each process is one perfect loop nest, or a loop that fills one half of a memory while it works on the other. Steps of a
// convolution: for each tile of output pixels, for each block of output channels, for each part of the sum. In which order a
// process reads and writes its streams follows from the pass alone, never from time.
#ifndef CUVIL_ENGINE_H
#define CUVIL_ENGINE_H

#include <cuvil_hls.h>

// What the simulator with clocks has to know, nothing elsewhere: where a pass starts, loops over the words of a burst, and
// cycles of a loop nest outside of its innermost loops.
#ifdef CUVIL_SIM_BOUNDED
#include <cuvil_sim_bursts.h>
#define CUVIL_NEXT_PASS cuvil::sim::next_pass();
#define CUVIL_READ_BURST(words) cuvil::sim::ReadBurst cuvil_burst(words);
#define CUVIL_WRITE_BURST(words) cuvil::sim::WriteBurst cuvil_burst(words);
#define CUVIL_BEAT cuvil_burst.beat();
#define CUVIL_AROUND_LOOPS(cycles) cuvil::sim::tick(cycles);
#else
#define CUVIL_NEXT_PASS
#define CUVIL_READ_BURST(words)
#define CUVIL_WRITE_BURST(words)
#define CUVIL_BEAT
#define CUVIL_AROUND_LOOPS(cycles)
#endif

#include "passes.h"

namespace cuvil {
namespace engine {

typedef ap_uint<64> word;         // of memory: eight bytes, the first in the lowest bits
typedef ap_int<9> feature;        // a signed or unsigned byte less its zero point
typedef vec<feature, 8> features;

inline int least(int a, int b) { return a < b ? a : b; }
inline int most(int a, int b) { return a < b ? b : a; }

// Output pixels of one step, and how much of the source they need.
struct tile {
    int y, x, rows, cols;
    int source_rows, source_cols;
    bool any;
};

inline tile tile_at(const pass& p, int y, int x) {
#pragma HLS INLINE
    tile t;
    t.y = y;
    t.x = x;
    t.any = y < p.out_rows;
    t.rows = least(p.tile_rows, p.out_rows - y);
    t.cols = least(p.tile_cols, p.out_cols - x);
    t.source_rows = (t.rows - 1) * p.stride_y + p.span_y;
    t.source_cols = (t.cols - 1) * p.stride_x + p.span_x;
    return t;
}

inline tile tile_after(const pass& p, const tile& t) {
#pragma HLS INLINE
    const bool row_done = t.x + p.tile_cols >= p.out_cols;
    return tile_at(p, row_done ? t.y + p.tile_rows : t.y, row_done ? 0 : t.x + p.tile_cols);
}

// ---- memory to streams ---------------------------------------------------------------------------------------------------

inline void burst(const word* memory, int at, int count, hls::stream<word>& out) {
#pragma HLS INLINE
    CUVIL_READ_BURST(count)
    for (int i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=1
        CUVIL_BEAT
        out.write(memory[at + i]);
    }
}

// What of the source each tile needs, without what lies outside: a burst for each row, or one where whole rows are needed.
inline void fetch_features(const pass& p, const word* source, hls::stream<word>& out) {
    for (tile t = tile_at(p, 0, 0); t.any; t = tile_after(p, t)) {
        const int above = t.y * p.stride_y - p.pad_y, before = t.x * p.stride_x - p.pad_x;
        const int top = most(above, 0), rows = least(above + t.source_rows, p.in_rows) - top;
        const int left = most(before, 0), cols = least(before + t.source_cols, p.in_cols) - left;
        const bool whole = cols == p.in_cols;
        const int bursts = rows <= 0 || cols <= 0 ? 0 : whole ? 1 : rows;
        const int length = (whole ? rows : 1) * cols * p.in_words;
        for (int n = 0; n < bursts; ++n) burst(source, p.source + ((top + n) * p.in_cols + left) * p.in_words, length, out);
    }
}

// The same with everything in its place: pixels outside hold `fill`, chunks are filled up, zero points subtracted.
template <int SIMD> void place_features(const pass& p, hls::stream<word>& in, hls::stream<features>& out) {
    for (tile t = tile_at(p, 0, 0); t.any; t = tile_after(p, t)) {
        const int top = t.y * p.stride_y - p.pad_y, left = t.x * p.stride_x - p.pad_x;
        int y = top, x = left, c = 0;
        const int count = t.source_rows * t.source_cols * p.chunks * (SIMD / 8);
        for (int i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=1
            const bool inside = y >= 0 && y < p.in_rows && x >= 0 && x < p.in_cols && c < p.in_words;
            word data = 0;
            if (inside) data = in.read();
            features f;
            for (int lane = 0; lane < 8; ++lane) {
#pragma HLS UNROLL
                const ap_uint<8> byte = data >> (8 * lane);
                const int value = p.source_signed ? int(ap_int<8>(byte)) : int(byte);
                f[lane] = inside ? value - p.zero : p.fill;
            }
            out.write(f);
            if (++c == p.chunks * (SIMD / 8)) {
                c = 0;
                if (++x == left + t.source_cols) {
                    x = left;
                    ++y;
                }
            }
        }
    }
}

// Before all the table; for each block of a tile the weights of its steps, then the parameters of its channels: those who read
// them need the next block's weights while they work on this one's sums.
inline void fetch_weights(const pass& p, const word* memory, hls::stream<word>& weights, hls::stream<word>& parameters) {
    burst(memory, p.table, p.table_words, parameters);
    for (tile t = tile_at(p, 0, 0); t.any; t = tile_after(p, t))
        for (int block = 0; block < p.blocks; ++block) {
            burst(memory, p.weights + block * p.parts * p.step_words, p.parts * p.step_words, weights);
            burst(memory, p.parameters + block * 2 * p.lanes, 2 * p.lanes, parameters);
        }
}

// ---- sums of products ----------------------------------------------------------------------------------------------------

// DENSE: acc[o] += Σ x[c]·w[o][c]. DEPTHWISE: acc[c] += x[c]·w[c]. LARGEST: acc[c] = max(acc[c], x[c]).
enum { DENSE, DEPTHWISE, LARGEST };

template <int PE, int SIMD>
void accumulate(int kind, bool first, const feature* x, const ap_int<8>* w, ap_int<32>* acc) {
#pragma HLS INLINE
    if (kind == DENSE) {
        for (int o = 0; o < PE; ++o) {
#pragma HLS UNROLL
            ap_int<32> sum = 0;
            CUVIL_LANES
            for (int c = 0; c < SIMD; ++c) {
#pragma HLS UNROLL
                sum += x[c] * w[o * SIMD + c];
            }
            acc[o] = first ? sum : ap_int<32>(acc[o] + sum);
        }
        return;
    }
    for (int c = 0; c < SIMD; ++c) {
#pragma HLS UNROLL
        const ap_int<32> term = kind == DEPTHWISE ? ap_int<32>(x[c] * w[c]) : ap_int<32>(x[c]);
        const ap_int<32> next = kind == DEPTHWISE ? ap_int<32>(acc[c] + term) : acc[c] < term ? term : acc[c];
        acc[c] = first ? term : next;
    }
}

// `words` of `steps`, evenly: due() is true in as many of the steps. At most one a step.
struct share {
    int words, steps, credit;
    bool due() {
#pragma HLS INLINE
        credit += words;
        const bool now = credit >= steps;
        if (now) credit -= steps;
        return now;
    }
};

// While the sums of a step run, the weights of the next step and the features of the next tile fill the other halves, evenly:
// reads that came as soon as they could would wait for words that nothing needs yet.
template <int PE, int SIMD, int FEATURES, int WEIGHTS>
void multiply(const pass& p, hls::stream<features>& in, hls::stream<word>& weights, hls::stream<vec<ap_int<32>, PE> >& out) {
    static_assert(SIMD % 8 == 0 && PE >= SIMD, "features come eight at a time, depthwise sums need a lane each");
    const int W = SIMD / 8;
    feature x[2 * FEATURES][SIMD];
    ap_int<8> w[2 * WEIGHTS][PE * SIMD];
#pragma HLS ARRAY_RESHAPE variable=x cyclic factor=8 dim=2
#pragma HLS ARRAY_PARTITION variable=x complete dim=2
#pragma HLS ARRAY_RESHAPE variable=w cyclic factor=8 dim=2
#pragma HLS ARRAY_PARTITION variable=w complete dim=2
#ifdef CUVIL_WEIGHTS_IN_URAM
#pragma HLS BIND_STORAGE variable=w type=ram_s2p impl=uram
#endif
    vec<ap_int<32>, PE> acc;
#pragma HLS ARRAY_PARTITION variable=acc.v complete
    for (int o = 0; o < PE; ++o) {
#pragma HLS UNROLL
        acc[o] = 0;
    }
    const int banks = p.kind == DENSE ? PE * W : W;
    const int taps_x = p.kernel_x * p.tap_x;
    int x_half = 0, w_half = 0;
    tile filling = tile_at(p, 0, 0);
    int rows = 0, cols = 0, pitch = 0;  // of the tile that is computed, and chunks from one of its source's rows to the next
    int filled = 0;                     // words of the tile that is filled
    share fills = {0, 0, 0};            // when they come
    int first_chunk = 0, same = 0;      // of the block's inputs; blocks so far that have the same
    int block = p.blocks - 1, part = p.parts - 1;
    int row = 0, col = 0, tap_row = 0, tap_col = 0, chunk = 0;
    bool first = true, more = true;
    fills.words = fills.steps = 1;  // the first tile comes at once, as nothing is computed yet
    while (more) {
        const bool turn = block == p.blocks - 1 && part == p.parts - 1;  // the next step has another tile
        const int sums = rows * cols * p.depth;
        const int wanted = (turn && !filling.any) ? 0 : p.step_words;
        const int needed = filling.any ? filling.source_rows * filling.source_cols * p.chunks * W : 0;
        const int steps = most(sums, wanted);
        share loads = {wanted, steps, 0};
        int bank = 0, line = 0, k = 0;
        for (int step = 0; step < steps || (turn && filled < needed); ++step) {
#pragma HLS PIPELINE II=1
#pragma HLS DEPENDENCE variable=x type=inter dependent=false
#pragma HLS DEPENDENCE variable=w type=inter dependent=false
            if (step < sums) {
                const int at = (row * p.stride_y + tap_row) * pitch + col + tap_col + first_chunk + chunk;
                accumulate<PE, SIMD>(p.kind, first, x[x_half * FEATURES + at], w[w_half * WEIGHTS + k], acc.v);
                first = false;
                k = k == p.depth - 1 ? 0 : k + 1;
                if (++chunk == p.sum_chunks) {
                    chunk = 0;
                    tap_col += p.tap_x;
                    if (tap_col == taps_x) {
                        tap_col = 0;
                        tap_row += p.tap_y;
                        if (tap_row == p.kernel_y * p.tap_y) {
                            tap_row = 0;
                            out.write(acc);
                            first = true;
                            col += p.step_x;
                            if (col == cols * p.step_x) {
                                col = 0;
                                row = row == rows - 1 ? 0 : row + 1;
                            }
                        }
                    }
                }
            }
            if (step < steps && loads.due()) {
                const word data = weights.read();
                for (int lane = 0; lane < 8; ++lane) {
#pragma HLS UNROLL
                    w[(1 - w_half) * WEIGHTS + line][8 * bank + lane] = ap_uint<8>(data >> (8 * lane));
                }
                bank = bank == banks - 1 ? 0 : bank + 1;
                line = bank == 0 ? line + 1 : line;
            }
            const bool due = step >= steps || fills.due();
            if (filled < needed && due) {
                const features f = in.read();
                for (int lane = 0; lane < 8; ++lane) {
#pragma HLS UNROLL
                    x[(1 - x_half) * FEATURES + filled / W][8 * (filled % W) + lane] = f[lane];
                }
                ++filled;
            }
        }
        w_half = 1 - w_half;
        part = part == p.parts - 1 ? 0 : part + 1;
        if (part == 0) {
            block = block == p.blocks - 1 ? 0 : block + 1;
            const bool next = ++same == p.same_blocks;
            first_chunk = block == 0 ? 0 : next ? first_chunk + p.next_chunks : first_chunk;
            same = block == 0 || next ? 0 : same;
        }
        if (turn) {
            more = filling.any;
            x_half = 1 - x_half;
            rows = filling.rows;
            cols = filling.cols;
            pitch = filling.source_cols * p.chunks;
            filled = 0;
            filling = tile_after(p, filling);
            fills.words = filling.any ? filling.source_rows * filling.source_cols * p.chunks * W : 0;
            fills.steps = p.blocks * p.parts * most(rows * cols * p.depth, p.step_words);
            fills.credit = 0;
        }
    }
}

// ---- rescale -------------------------------------------------------------------------------------------------------------

// value / 2^shift, rounded (`even`: ties to even, else down), moved, clipped, looked up.
inline ap_int<32> finished(const pass& p, long long value, int shift, const ap_uint<8>* table) {
#pragma HLS INLINE
    const long long odd = p.even ? ((1LL << shift) >> 1) - 1 + ((value >> shift) & 1) : 0;
    const long long moved = ((value + odd) >> shift) + p.out_zero;
    const int clipped = moved < p.low ? p.low : moved > p.high ? p.high : int(moved);
    return p.table_words ? int(table[clipped & 255]) : clipped;
}

// Elements of a word, assembled from its low end: E of them a step.
struct assembly {
    word data;
    int bits;
};
inline bool append(assembly& a, ap_int<32> value, int bytes) {
#pragma HLS INLINE
    const word fresh = bytes == 1 ? word(ap_uint<8>(value)) : bytes == 2 ? word(ap_uint<16>(value)) : word(ap_uint<32>(value));
    a.data |= word(fresh << a.bits);
    a.bits += 8 * bytes;
    return a.bits == 64;
}

inline void read_table(const pass& p, hls::stream<word>& in, ap_uint<8>* table) {
#pragma HLS INLINE
    for (int i = 0; i < p.table_words; ++i) {
#pragma HLS PIPELINE II=8
        const word data = in.read();
        for (int lane = 0; lane < 8; ++lane) table[8 * i + lane] = ap_uint<8>(data >> (8 * lane));
    }
}

// Sums to the elements of the target: multiplier and shift, then offset, of each channel of a block.
template <int PE, int E>
void rescale(const pass& p, hls::stream<word>& parameters, hls::stream<vec<ap_int<32>, PE> >& in, hls::stream<word>& out) {
    ap_uint<8> table[256];
    ap_int<32> multiplier[PE];
    ap_uint<6> shift[PE];
    long long offset[PE];
#pragma HLS ARRAY_PARTITION variable=multiplier cyclic factor=E
#pragma HLS ARRAY_PARTITION variable=shift cyclic factor=E
#pragma HLS ARRAY_PARTITION variable=offset cyclic factor=E
    read_table(p, parameters, table);
    for (tile t = tile_at(p, 0, 0); t.any; t = tile_after(p, t))
        for (int block = 0; block < p.blocks; ++block) {
            for (int o = 0; o < p.lanes; ++o) {
#pragma HLS PIPELINE II=2
                const word scale = parameters.read();
                multiplier[o] = ap_uint<32>(scale);
                shift[o] = ap_uint<6>(scale >> 32);
                offset[o] = (long long)parameters.read().to_uint64();
            }
            vec<ap_int<32>, PE> sums;
            assembly made = {0, 0};
            int o = 0;
            const int count = t.rows * t.cols * p.lanes;
            for (int i = 0; i < count; i += E) {
#pragma HLS PIPELINE II=1
                if (o == 0) sums = in.read();
                bool full = false;
                for (int e = 0; e < E; ++e) {
#pragma HLS UNROLL
                    const long long product = (long long)sums[o + e].to_int() * multiplier[o + e].to_int();
                    full = append(made, finished(p, product + offset[o + e], shift[o + e].to_int(), table), p.out_bytes);
                    if (full && (e == E - 1 || p.out_bytes * E > 8)) {
                        out.write(made.data);
                        made.data = 0;
                        made.bits = 0;
                    }
                }
                o = o + E == p.lanes ? 0 : o + E;
            }
        }
}

// ---- streams to memory ---------------------------------------------------------------------------------------------------

// Blocks of channels one after the other → pixel by pixel; one half of the memory fills while the other leaves.
template <int OUTPUTS> void reorder(const pass& p, hls::stream<word>& in, hls::stream<word>& out) {
    word memory[2 * OUTPUTS];
    int half = 0, leaving = 0;
    tile t = tile_at(p, 0, 0);
    while (t.any || leaving) {
        const int coming = t.any ? t.rows * t.cols * p.blocks * p.block_words : 0;
        const int end = t.rows * t.cols * p.out_words;
        int k = 0, pixel = 0, block = 0;
        for (int step = 0; step < most(coming, leaving); ++step) {
#pragma HLS PIPELINE II=1
#pragma HLS DEPENDENCE variable=memory type=inter dependent=false
            if (step < leaving) out.write(memory[(1 - half) * OUTPUTS + step]);
            if (step < coming) {
                const word data = in.read();
                if (block + k < p.out_words) memory[half * OUTPUTS + pixel + block + k] = data;
                if (++k == p.block_words) {
                    k = 0;
                    pixel += p.out_words;
                    if (pixel == end) {
                        pixel = 0;
                        block += p.block_words;
                    }
                }
            }
        }
        half = 1 - half;
        leaving = t.any ? end : 0;
        t = tile_after(p, t);
    }
}

inline void store_burst(hls::stream<word>& in, word* memory, int at, int count) {
#pragma HLS INLINE
    CUVIL_WRITE_BURST(count)
    for (int i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=1
        const word data = in.read();
        CUVIL_BEAT
        memory[at + i] = data;
    }
}

inline void store(const pass& p, hls::stream<word>& in, word* target) {
    for (tile t = tile_at(p, 0, 0); t.any; t = tile_after(p, t)) {
        const bool whole = t.cols == p.out_cols;
        const int length = (whole ? t.rows : 1) * t.cols * p.out_words;
        for (int n = 0; n < (whole ? 1 : t.rows); ++n)
            store_burst(in, target, p.target + ((t.y + n) * p.out_cols + t.x) * p.out_words, length);
    }
}

// ---- the units -----------------------------------------------------------------------------------------------------------

template <int PE, int SIMD, int E, int FEATURES, int WEIGHTS, int OUTPUTS>
void convolve(const pass& p, const word* weights, const word* source, word* target) {
#pragma HLS INLINE off
#pragma HLS DATAFLOW
    hls::stream<word, 512> fetched("fetched"), factors("factors");
    hls::stream<word, 2 * PE> parameters("parameters");  // of a block at least
    hls::stream<features> placed("placed");
    hls::stream<vec<ap_int<32>, PE>, 4> sums("sums");
    hls::stream<word, 16> elements("elements"), rows("rows");
    CUVIL_DATAFLOW_BEGIN
    CUVIL_PROCESS(fetch_features, fetch_features(p, source, fetched))
    CUVIL_PROCESS(place_features, place_features<SIMD>(p, fetched, placed))
    CUVIL_PROCESS(fetch_weights, fetch_weights(p, weights, factors, parameters))
    CUVIL_PROCESS(multiply, multiply<PE, SIMD, FEATURES, WEIGHTS>(p, placed, factors, sums))
    CUVIL_PROCESS(rescale, rescale<PE, E>(p, parameters, sums, elements))
    CUVIL_PROCESS(reorder, reorder<OUTPUTS>(p, elements, rows))
    CUVIL_PROCESS(store, store(p, rows, target))
    CUVIL_DATAFLOW_END
}

// first·p.scale + second·p.scale_second + offset, byte by byte; the second map is optional.
template <int E>
void add_scaled(const pass& p, hls::stream<word>& table_words, hls::stream<word>& first, hls::stream<word>& second,
                hls::stream<word>& out) {
    ap_uint<8> table[256];
    read_table(p, table_words, table);
    const long long offset = (long long)(unsigned(p.offset_low) | (unsigned long long)(unsigned(p.offset_high)) << 32);
    word a = 0, b = 0;
    assembly made = {0, 0};
    int lane = 0;
    for (int i = 0; i < 8 * p.out_words; i += E) {
#pragma HLS PIPELINE II=1
        if (lane == 0) {
            a = first.read();
            if (p.second >= 0) b = second.read();
        }
        for (int e = 0; e < E; ++e) {
#pragma HLS UNROLL
            const ap_uint<8> byte_a = a >> (8 * (lane + e)), byte_b = b >> (8 * (lane + e));
            const int value_a = p.source_signed ? int(ap_int<8>(byte_a)) : int(byte_a);
            const int value_b = p.second_signed ? int(ap_int<8>(byte_b)) : int(byte_b);
            const long long value = (long long)value_a * p.scale + (long long)value_b * p.scale_second + offset;
            append(made, finished(p, value, p.shift, table), 1);
        }
        lane = lane + E == 8 ? 0 : lane + E;
        if (lane == 0) {
            out.write(made.data);
            made.data = 0;
            made.bits = 0;
        }
    }
}

inline void fetch_second(const pass& p, const word* memory, hls::stream<word>& table, hls::stream<word>& out) {
    burst(memory, p.table, p.table_words, table);
    if (p.second >= 0) burst(memory, p.second, p.out_words, out);
}

template <int E> void combine(const pass& p, const word* weights, const word* source, word* target) {
#pragma HLS INLINE off
#pragma HLS DATAFLOW
    hls::stream<word, 64> table("table"), first("first"), second("second");
    hls::stream<word, 16> sums("sums");
    CUVIL_DATAFLOW_BEGIN
    CUVIL_PROCESS(fetch_first, burst(source, p.source, p.out_words, first))
    CUVIL_PROCESS(fetch_second, fetch_second(p, weights, table, second))
    CUVIL_PROCESS(add_scaled, add_scaled<E>(p, table, first, second, sums))
    CUVIL_PROCESS(store, store_burst(sums, target, p.target, p.out_words))
    CUVIL_DATAFLOW_END
}

}  // namespace engine
}  // namespace cuvil

#endif
