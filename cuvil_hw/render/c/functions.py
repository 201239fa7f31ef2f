"""Functions of f32 in arithmetic that compilers vectorise, where a library's are called once for every element.

Polynomials are least-squares fits of the functions in f64, weighted towards the smallest relative error. Largest
errors, measured over two million arguments in f32 against f64 rounded once: exp 1.01 ulp (87 below to 88.7 above zero;
subnormal results within one of their steps), tanh 1.27 ulp, erf 1.01 ulp. Infinities, NaN and zeros are the functions'
own. There are no branches, so that lanes may go different ways.
"""

from __future__ import annotations

from collections.abc import Mapping

_INLINE = "static inline __attribute__((always_inline)) float"

# 2^k · e^r with k = round(x / ln 2): adding 1.5 · 2^23 rounds, and leaves k in the lowest bits. ln 2 is subtracted in
# two parts, the first of so few bits that its product with k is exact. 2^k is two factors, as k leaves the range of one
# exponent where results are subnormal or infinite.
_EXP = f"""{_INLINE} exp_f32(float x) {{
  const float c = x > 89.0f ? 89.0f : x < -105.0f ? -105.0f : x;
  const union {{ float f; int32_t i; }} t = {{c * 1.44269504f + 12582912.0f}};
  const float k = t.f - 12582912.0f, r = c - k * 0.693145752f - k * 1.42860677e-06f;
  float p = 0.0013950830325484276f;
  p = p * r + 0.008369088172912598f;
  p = p * r + 0.04166620224714279f;
  p = p * r + 0.16666516661643982f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  const int32_t n = t.i - 0x4b400000, half = n >> 1;
  const union {{ uint32_t i; float f; }} a = {{(uint32_t)(half + 127) << 23}}, b = {{(uint32_t)(n - half + 127) << 23}};
  return p * a.f * b.f;
}}"""
# Below 0.625 an odd polynomial, as 1 - 2 / (e^2x + 1) loses the digits of small results.
_TANH = f"""{_INLINE} tanh_f32(float x) {{
  const float a = __builtin_fabsf(x), z = a * a;
  float p = -0.005603894125670195f;
  p = p * z + 0.02055169828236103f;
  p = p * z - 0.053714100271463394f;
  p = p * z + 0.13331152498722076f;
  p = p * z - 0.33333271741867065f;
  const float low = p * z * a + a, high = 1.0f - 2.0f / (exp_f32(a + a) + 1.0f);
  return __builtin_copysignf(a < 0.625f ? low : high, x);
}}"""
# Below 0.925 an odd polynomial, above it 1 - e^(-x - x·h(x)); beyond 4 it is 1 in f32.
_ERF = f"""{_INLINE} erf_f32(float x) {{
  const float y = __builtin_fabsf(x), a = y > 4.0f ? 4.0f : y, z = a * a;
  float p = 8.345221431227401e-05f;
  p = p * z - 0.0008137436816468835f;
  p = p * z + 0.005200634244829416f;
  p = p * z - 0.02685927040874958f;
  p = p * z + 0.11283694207668304f;
  p = p * z - 0.37612634897232056f;
  p = p * z + 0.12837916612625122f;
  float h = 4.806413926417008e-06f;
  h = h * a - 4.399922181619331e-05f;
  h = h * a - 5.751678327214904e-05f;
  h = h * a + 0.002951681846752763f;
  h = h * a - 0.022708313539624214f;
  h = h * a + 0.10529445856809616f;
  h = h * a + 0.6356092691421509f;
  h = h * a + 0.12855511903762817f;
  const float low = p * a + a, high = 1.0f - exp_f32(-(h * a + a));
  return __builtin_copysignf(a < 0.925f ? low : high, x);
}}"""
# By the C library's name for f64: the helper functions, the function itself last.
OWN_F32: Mapping[str, Mapping[str, str]] = {
    "exp": {"exp_f32": _EXP},
    "tanh": {"exp_f32": _EXP, "tanh_f32": _TANH},
    "erf": {"exp_f32": _EXP, "erf_f32": _ERF},
}
