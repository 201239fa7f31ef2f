// Record 48237706974d549c9e8f23ace1c35b213bd54046620535f1523e827297258021
#include <cstdint>

#include <sycl/sycl.hpp>
#include <sycl/ext/intel/fpga_extensions.hpp>

struct int8_tx12 { int8_t v[12]; };
struct int8_tx9 { int8_t v[9]; };
struct int8_tx8 { int8_t v[8]; };
struct int32_tx3 { int32_t v[3]; };
class v0_id;
using v0 = sycl::ext::intel::pipe<v0_id, int8_tx12, 2>;
class linear_0_out_id;
using linear_0_out = sycl::ext::intel::pipe<linear_0_out_id, int8_tx9, 2>;
class linear_1_out_id;
using linear_1_out = sycl::ext::intel::pipe<linear_1_out_id, int8_tx8, 2>;
class v1_id;
using v1 = sycl::ext::intel::pipe<v1_id, int32_tx3, 2>;
class read_v0_task;
class linear_0_task;
class linear_1_task;
class linear_2_task;
class write_v1_task;

static constexpr int16_t linear_0_c_1[1][9] = {{4048, 12144, -12144, -8096, 0, 2313, -5397, -4048, -13879}};
static constexpr int8_t linear_0_c[1][12][9] = {{{79, 32, -16, 48, -127, 0, -85, -127, 36},
    {-111, 0, -16, 48, 111, -36, -64, 48, 109},
    {-79, -64, 48, 95, 48, -73, 0, -79, 54},
    {-64, -95, 16, -64, 16, -127, 85, 79, -36},
    {-79, 48, -95, 111, -64, 36, -85, 111, 127},
    {79, 64, 64, -127, 0, 54, 85, -16, 0},
    {95, -127, 64, -111, -79, 0, 64, 127, -36},
    {16, -111, 127, 127, 79, 127, -106, 64, -109},
    {-127, -16, 79, 127, 0, 127, -42, -48, -91},
    {-111, -32, -64, -48, -127, -91, 127, 95, 54},
    {-48, 111, -48, -95, -64, 36, 127, -32, 91},
    {-16, 0, 48, -48, 64, 36, 64, -111, -73}}};
static constexpr int32_t linear_0_p[1][9] = {{644284447, 644284447, 644284447, 644284447, 644284447, 563748891,
    483213335, 644284447, 563748891}};
static constexpr int16_t linear_1_c_3[1][8] = {{-7230, 8263, 4820, -4820, -16526, 4820, -16870, 0}};
static constexpr int8_t linear_1_c_2[1][9][8] = {{{32, -54, -95, 32, -127, -111, 64, 0},
    {111, 18, 111, 79, -73, -48, -127, 0},
    {-79, 127, 127, -48, -91, -16, -79, 0},
    {79, 127, 127, 79, 73, 0, 64, 0},
    {-79, 0, 32, 127, -91, -48, 16, 0},
    {-127, -91, 127, -127, 36, 95, 127, 0},
    {64, -73, 32, 16, 109, 16, 64, 0},
    {-79, 109, 0, -32, 0, 127, 79, 0},
    {64, 36, 127, -127, -109, 111, -127, 0}}};
static constexpr int32_t linear_1_p[1][8] = {{548593561, 480019366, 548593561, 548593561, 480019366, 548593561,
    548593561, 548593561}};
static constexpr int16_t linear_2_c_5[1][3] = {{8377, -19547, 4887}};
static constexpr int8_t linear_2_c_4[1][3][8] = {{{54, 91, 54, -127, 0, -54, 18, 0},
    {48, -79, -127, 0, 32, -95, 111, 0},
    {0, 127, 16, 64, 79, 0, -32, 0}}};

static inline int8_t saturate_i64_i8(int64_t x) { return int8_t(x < -128 ? -128 : x > 127 ? 127 : x); }

// linear, rescale at 0: 9 outputs _ 12 inputs a cycle
static void linear_0(int samples) {
  int8_tx12 x;
  int8_tx9 y;
  int32_t acc[9];
  for (int sample = 0; sample < samples; ++sample) {
    [[intel::initiation_interval(1)]]
    for (int sf = 0; sf < 1; ++sf) {
      x = v0::read();
      #pragma unroll
      for (int p = 0; p < 9; ++p) {
        acc[p] = linear_0_c_1[0][p];
      }
      #pragma unroll
      for (int s = 0; s < 12; ++s) {
        #pragma unroll
        for (int p = 0; p < 9; ++p) {
          int32_t product;
          sycl::ext::intel::math_dsp_control<sycl::ext::intel::Preference::DSP>([&] { product = (x.v[s] + 1) * linear_0_c[sf][s][p]; });
          acc[p] += product;
        }
      }
      #pragma unroll
      for (int p = 0; p < 9; ++p) {
        int64_t product;
        sycl::ext::intel::math_dsp_control<sycl::ext::intel::Preference::Softlogic>([&] { product = int64_t(acc[p]) * linear_0_p[0][p]; });
        y.v[p] = saturate_i64_i8(((product + 68719476736LL) >> 37) - 128);
      }
      linear_0_out::write(y);
    }
  }
}

// linear, rescale at 2: 8 outputs _ 9 inputs a cycle
static void linear_1(int samples) {
  int8_tx9 x;
  int8_tx8 y;
  int32_t acc[8];
  for (int sample = 0; sample < samples; ++sample) {
    [[intel::initiation_interval(1)]]
    for (int sf = 0; sf < 1; ++sf) {
      x = linear_0_out::read();
      #pragma unroll
      for (int p = 0; p < 8; ++p) {
        acc[p] = linear_1_c_3[0][p];
      }
      #pragma unroll
      for (int s = 0; s < 9; ++s) {
        #pragma unroll
        for (int p = 0; p < 8; ++p) {
          int32_t product;
          sycl::ext::intel::math_dsp_control<sycl::ext::intel::Preference::DSP>([&] { product = (x.v[s] + 128) * linear_1_c_2[sf][s][p]; });
          acc[p] += product;
        }
      }
      #pragma unroll
      for (int p = 0; p < 8; ++p) {
        int64_t product;
        sycl::ext::intel::math_dsp_control<sycl::ext::intel::Preference::DSP>([&] { product = int64_t(acc[p]) * linear_1_p[0][p]; });
        y.v[p] = saturate_i64_i8(((product + 68719476736LL) >> 37) - 128);
      }
      linear_1_out::write(y);
    }
  }
}

// linear at 4: 3 outputs _ 8 inputs a cycle
static void linear_2(int samples) {
  int8_tx8 x;
  int32_tx3 y;
  int32_t acc[3];
  for (int sample = 0; sample < samples; ++sample) {
    [[intel::initiation_interval(1)]]
    for (int sf = 0; sf < 1; ++sf) {
      x = linear_1_out::read();
      #pragma unroll
      for (int p = 0; p < 3; ++p) {
        int32_t acc_1 = linear_2_c_5[0][p];
        #pragma unroll
        for (int s = 0; s < 8; ++s) {
          int32_t product;
          sycl::ext::intel::math_dsp_control<sycl::ext::intel::Preference::DSP>([&] { product = (x.v[s] + 128) * linear_2_c_4[sf][p][s]; });
          acc_1 += product;
        }
        acc[p] = int32_t(uint32_t(acc_1) << 14) >> 14;
      }
      #pragma unroll
      for (int p = 0; p < 3; ++p) {
        y.v[p] = acc[p];
      }
      v1::write(y);
    }
  }
}

// 12 i8 from the host's memory
static void read_v0(int samples, const int8_t *v0_1) {
  int8_tx12 word;
  for (int sample = 0; sample < samples; ++sample) {
    [[intel::initiation_interval(1)]]
    for (int n = 0; n < 1; ++n) {
      const int i = sample * 12 + n * 12;
      #pragma unroll
      for (int l = 0; l < 12; ++l) {
        word.v[l] = v0_1[i + l];
      }
      v0::write(word);
    }
  }
}

// 3 i18 to the host's memory
static void write_v1(int samples, int32_t *v1_1) {
  int32_tx3 word;
  for (int sample = 0; sample < samples; ++sample) {
    [[intel::initiation_interval(1)]]
    for (int n = 0; n < 1; ++n) {
      const int i = sample * 3 + n * 3;
      word = v1::read();
      #pragma unroll
      for (int l = 0; l < 3; ++l) {
        v1_1[i + l] = word.v[l];
      }
    }
  }
}

// mlp_int8: v0 _ v1
void top(sycl::queue &queue, int samples, const int8_t *v0_1, int32_t *v1_1) {
  queue.single_task<class read_v0_task>([=]() { read_v0(samples, v0_1); });
  queue.single_task<class linear_0_task>([=]() { linear_0(samples); });
  queue.single_task<class linear_1_task>([=]() { linear_1(samples); });
  queue.single_task<class linear_2_task>([=]() { linear_2(samples); });
  queue.single_task<class write_v1_task>([=]() { write_v1(samples, v1_1); });
  queue.wait();
}
