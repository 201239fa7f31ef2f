// Record da47cd6ba85dd2bbcc5eee50f266a8d235066c02bb5219fbb05579a09b2750e6
#include "mlp_int8_top.h"
#include "tables.h"

// linear, rescale at 0: 9 outputs _ 12 inputs a cycle, by 125 additions
static void linear_0(hls::stream<cuvil::vec<ap_int<8>, 12>>& in, hls::stream<cuvil::vec<ap_int<8>, 9>>& out) {
  #pragma HLS array_reshape variable=linear_0_p complete dim=2
  #pragma HLS array_reshape variable=linear_0_c_1 complete dim=2
  cuvil::vec<ap_int<8>, 12> x;
  cuvil::vec<ap_int<8>, 9> y;
  ap_int<9> factors[12];
  #pragma HLS array_partition variable=factors complete dim=1
  ap_int<19> acc[9];
  #pragma HLS array_partition variable=acc complete dim=1
  #pragma HLS pipeline II=1
  x = in.read();
  CUVIL_LANES
  for (int s = 0; s < 12; ++s) {
    #pragma HLS unroll
    factors[s] = ap_int<9>(x[s] + 1);
  }
  CUVIL_LANES
  for (int p = 0; p < 9; ++p) {
    #pragma HLS unroll
    acc[p] = linear_0_c_1[0][p];
  }
  linear_0_sums(factors, acc);
  CUVIL_LANES
  for (int p = 0; p < 9; ++p) {
    #pragma HLS unroll
    const ap_int<49> product = acc[p] * linear_0_p[0][p];
    #pragma HLS bind_op variable=product op=mul impl=dsp
    y[p] = cuvil::saturate<ap_int<8>, 0>(ap_int<49>((ap_int<49>(product + 68719476736LL) >> 37) - 128));
  }
  out.write(y);
}

// linear, rescale at 2: 8 outputs _ 9 inputs a cycle, by 77 additions
static void linear_1(hls::stream<cuvil::vec<ap_int<8>, 9>>& in, hls::stream<cuvil::vec<ap_int<8>, 8>>& out) {
  #pragma HLS array_reshape variable=linear_1_p complete dim=2
  #pragma HLS array_reshape variable=linear_1_c_3 complete dim=2
  cuvil::vec<ap_int<8>, 9> x;
  cuvil::vec<ap_int<8>, 8> y;
  ap_int<9> factors[9];
  #pragma HLS array_partition variable=factors complete dim=1
  ap_int<19> acc[8];
  #pragma HLS array_partition variable=acc complete dim=1
  #pragma HLS pipeline II=1
  x = in.read();
  CUVIL_LANES
  for (int s = 0; s < 9; ++s) {
    #pragma HLS unroll
    factors[s] = ap_uint<8>(x[s] + 128);
  }
  CUVIL_LANES
  for (int p = 0; p < 8; ++p) {
    #pragma HLS unroll
    acc[p] = linear_1_c_3[0][p];
  }
  linear_1_sums(factors, acc);
  CUVIL_LANES
  for (int p = 0; p < 8; ++p) {
    #pragma HLS unroll
    const ap_int<49> product = acc[p] * linear_1_p[0][p];
    #pragma HLS bind_op variable=product op=mul impl=dsp
    y[p] = cuvil::saturate<ap_int<8>, 1>(ap_int<49>((ap_int<49>(product + 68719476736LL) >> 37) - 128));
  }
  out.write(y);
}

// linear at 4: 3 outputs _ 8 inputs a cycle, by 29 additions
static void linear_2(hls::stream<cuvil::vec<ap_int<8>, 8>>& in, hls::stream<cuvil::vec<ap_int<18>, 3>>& out) {
  #pragma HLS array_reshape variable=linear_2_c_5 complete dim=2
  cuvil::vec<ap_int<8>, 8> x;
  cuvil::vec<ap_int<18>, 3> y;
  ap_int<9> factors[8];
  #pragma HLS array_partition variable=factors complete dim=1
  ap_int<18> acc[3];
  #pragma HLS array_partition variable=acc complete dim=1
  #pragma HLS pipeline II=1
  x = in.read();
  CUVIL_LANES
  for (int s = 0; s < 8; ++s) {
    #pragma HLS unroll
    factors[s] = ap_uint<8>(x[s] + 128);
  }
  for (int p = 0; p < 3; ++p) {
    #pragma HLS unroll
    acc[p] = linear_2_c_5[0][p];
  }
  linear_2_sums(factors, acc);
  for (int p = 0; p < 3; ++p) {
    #pragma HLS unroll
    y[p] = acc[p];
  }
  out.write(y);
}

// mlp_int8: v0 _ v1
void mlp_int8_top(hls::stream<ap_axiu<64, 0, 0, 0> >& v0, hls::stream<ap_axiu<64, 0, 0, 0> >& v1) {
  #pragma HLS interface axis port=v0
  #pragma HLS interface axis port=v1
  #pragma HLS dataflow
  hls::stream<cuvil::vec<ap_int<8>, 12>, 2> v0_1("v0_1");
  hls::stream<cuvil::vec<bool, 1>, 5> v0_ends("v0_ends");
  #pragma HLS bind_storage variable=v0_ends type=fifo impl=srl
  hls::stream<cuvil::vec<ap_int<8>, 9>, 2> linear_0_out("linear_0_out");
  hls::stream<cuvil::vec<ap_int<8>, 8>, 2> linear_1_out("linear_1_out");
  hls::stream<cuvil::vec<ap_int<18>, 3>, 2> v1_1("v1_1");
  CUVIL_DATAFLOW_BEGIN
  CUVIL_PROCESS(read_v0, cuvil::axis_to_stream<64, ap_int<8>, 12, 12>(v0, v0_1, v0_ends))
  CUVIL_PROCESS(linear_0, linear_0(v0_1, linear_0_out))
  CUVIL_PROCESS(linear_1, linear_1(linear_0_out, linear_1_out))
  CUVIL_PROCESS(linear_2, linear_2(linear_1_out, v1_1))
  CUVIL_PROCESS(write_v1, cuvil::stream_to_axis<64, ap_int<18>, 3, 3>(v1_1, v1, v0_ends))
  CUVIL_DATAFLOW_END
}
