// Record 48237706974d549c9e8f23ace1c35b213bd54046620535f1523e827297258021
#pragma OPENCL EXTENSION cl_intel_channels : enable

// An emulator may be given channels that hold whole samples, to run one kernel after another.
#ifndef CUVIL_DEPTH
#define CUVIL_DEPTH(depth, words) depth
#endif

typedef struct { char v[12]; } charx12;
typedef struct { char v[9]; } charx9;
typedef struct { char v[8]; } charx8;
typedef struct { int v[3]; } intx3;
channel charx12 v0 __attribute__((depth(CUVIL_DEPTH(2, 1))));
channel charx9 linear_0_out __attribute__((depth(CUVIL_DEPTH(2, 1))));
channel charx8 linear_1_out __attribute__((depth(CUVIL_DEPTH(2, 1))));
channel intx3 v1 __attribute__((depth(CUVIL_DEPTH(2, 1))));

__constant short linear_0_c_1[1][9] = {{4048, 12144, -12144, -8096, 0, 2313, -5397, -4048, -13879}};
__constant char linear_0_c[1][12][9] = {{{79, 32, -16, 48, -127, 0, -85, -127, 36},
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
__constant int linear_0_p[1][9] = {{644284447, 644284447, 644284447, 644284447, 644284447, 563748891,
    483213335, 644284447, 563748891}};
__constant short linear_1_c_3[1][8] = {{-7230, 8263, 4820, -4820, -16526, 4820, -16870, 0}};
__constant char linear_1_c_2[1][9][8] = {{{32, -54, -95, 32, -127, -111, 64, 0},
    {111, 18, 111, 79, -73, -48, -127, 0},
    {-79, 127, 127, -48, -91, -16, -79, 0},
    {79, 127, 127, 79, 73, 0, 64, 0},
    {-79, 0, 32, 127, -91, -48, 16, 0},
    {-127, -91, 127, -127, 36, 95, 127, 0},
    {64, -73, 32, 16, 109, 16, 64, 0},
    {-79, 109, 0, -32, 0, 127, 79, 0},
    {64, 36, 127, -127, -109, 111, -127, 0}}};
__constant int linear_1_p[1][8] = {{548593561, 480019366, 548593561, 548593561, 480019366, 548593561,
    548593561, 548593561}};
__constant short linear_2_c_5[1][3] = {{8377, -19547, 4887}};
__constant char linear_2_c_4[1][3][8] = {{{54, 91, 54, -127, 0, -54, 18, 0},
    {48, -79, -127, 0, 32, -95, 111, 0},
    {0, 127, 16, 64, 79, 0, -32, 0}}};

static inline char saturate_i64_i8(long x) { return (char)(x < -128 ? -128 : x > 127 ? 127 : x); }

// linear, rescale at 0: 9 outputs _ 12 inputs a cycle
__attribute__((max_global_work_dim(0)))
__kernel void linear_0(int samples) {
  charx12 x;
  charx9 y;
  int acc[9];
  for (int sample = 0; sample < samples; ++sample) {
    #pragma ii 1
    for (int sf = 0; sf < 1; ++sf) {
      x = read_channel_intel(v0);
      #pragma unroll
      for (int p = 0; p < 9; ++p) {
        acc[p] = linear_0_c_1[0][p];
      }
      #pragma unroll
      for (int s = 0; s < 12; ++s) {
        #pragma unroll
        for (int p = 0; p < 9; ++p) {
          acc[p] += (x.v[s] + 1) * linear_0_c[sf][s][p];
        }
      }
      #pragma unroll
      for (int p = 0; p < 9; ++p) {
        y.v[p] = saturate_i64_i8((((long)acc[p] * linear_0_p[0][p] + 68719476736L) >> 37) - 128);
      }
      write_channel_intel(linear_0_out, y);
    }
  }
}

// linear, rescale at 2: 8 outputs _ 9 inputs a cycle
__attribute__((max_global_work_dim(0)))
__kernel void linear_1(int samples) {
  charx9 x;
  charx8 y;
  int acc[8];
  for (int sample = 0; sample < samples; ++sample) {
    #pragma ii 1
    for (int sf = 0; sf < 1; ++sf) {
      x = read_channel_intel(linear_0_out);
      #pragma unroll
      for (int p = 0; p < 8; ++p) {
        acc[p] = linear_1_c_3[0][p];
      }
      #pragma unroll
      for (int s = 0; s < 9; ++s) {
        #pragma unroll
        for (int p = 0; p < 8; ++p) {
          acc[p] += (x.v[s] + 128) * linear_1_c_2[sf][s][p];
        }
      }
      #pragma unroll
      for (int p = 0; p < 8; ++p) {
        y.v[p] = saturate_i64_i8((((long)acc[p] * linear_1_p[0][p] + 68719476736L) >> 37) - 128);
      }
      write_channel_intel(linear_1_out, y);
    }
  }
}

// linear at 4: 3 outputs _ 8 inputs a cycle
__attribute__((max_global_work_dim(0)))
__kernel void linear_2(int samples) {
  charx8 x;
  intx3 y;
  int acc[3];
  for (int sample = 0; sample < samples; ++sample) {
    #pragma ii 1
    for (int sf = 0; sf < 1; ++sf) {
      x = read_channel_intel(linear_1_out);
      #pragma unroll
      for (int p = 0; p < 3; ++p) {
        int acc_1 = linear_2_c_5[0][p];
        #pragma unroll
        for (int s = 0; s < 8; ++s) {
          acc_1 += (x.v[s] + 128) * linear_2_c_4[sf][p][s];
        }
        acc[p] = (int)((uint)acc_1 << 14) >> 14;
      }
      #pragma unroll
      for (int p = 0; p < 3; ++p) {
        y.v[p] = acc[p];
      }
      write_channel_intel(v1, y);
    }
  }
}

// 12 i8 from the host's memory
__attribute__((max_global_work_dim(0)))
__kernel void read_v0(int samples, __global const char *restrict v0_1) {
  charx12 word;
  for (int sample = 0; sample < samples; ++sample) {
    #pragma ii 1
    for (int n = 0; n < 1; ++n) {
      const int i = sample * 12 + n * 12;
      #pragma unroll
      for (int l = 0; l < 12; ++l) {
        word.v[l] = v0_1[i + l];
      }
      write_channel_intel(v0, word);
    }
  }
}

// 3 i18 to the host's memory
__attribute__((max_global_work_dim(0)))
__kernel void write_v1(int samples, __global int *restrict v1_1) {
  intx3 word;
  for (int sample = 0; sample < samples; ++sample) {
    #pragma ii 1
    for (int n = 0; n < 1; ++n) {
      const int i = sample * 3 + n * 3;
      word = read_channel_intel(v1);
      #pragma unroll
      for (int l = 0; l < 3; ++l) {
        v1_1[i + l] = word.v[l];
      }
    }
  }
}
