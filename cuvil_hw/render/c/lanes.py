"""Helper functions on vectors that are single instructions of some processors: where the compiler may use those (its
macros tell), by its builtins, and in plain arithmetic elsewhere. So one file compiles for every level of a family.

No header of intrinsics is included: they take longer to read than a model's code.
"""

from __future__ import annotations

from collections.abc import Mapping

# a · b + c, rounded once where the processor can: by lanes' bits and bits of the vector.
_FMA: Mapping[tuple[str, int], tuple[str, str]] = {
    ("f32", 128): ("defined(__FMA__)", "__builtin_ia32_vfmaddps(a, b, c)"),
    ("f64", 128): ("defined(__FMA__)", "__builtin_ia32_vfmaddpd(a, b, c)"),
    ("f32", 256): ("defined(__FMA__)", "__builtin_ia32_vfmaddps256(a, b, c)"),
    ("f64", 256): ("defined(__FMA__)", "__builtin_ia32_vfmaddpd256(a, b, c)"),
    ("f32", 512): ("defined(__AVX512F__)", "__builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4)"),
    ("f64", 512): ("defined(__AVX512F__)", "__builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4)"),
}
_CONTRACTED = """
#if defined(__clang__)
#pragma clang fp contract(fast)
  return a * b + c;
#elif {condition}
  return {builtin};
#else
  return a * b + c;
#endif
"""
# x86's maximum gives its second operand where one of both is NaN.
_EXTREME: Mapping[tuple[str, int], tuple[str, str]] = {
    ("f32", 128): ("defined(__SSE__)", "ps"),
    ("f64", 128): ("defined(__SSE2__)", "pd"),
    ("f32", 256): ("defined(__AVX__)", "ps256"),
    ("f64", 256): ("defined(__AVX__)", "pd256"),
}
_PICKED = """
#if {condition}
  const {name} x = __builtin_ia32_{which}{suffix}(a, b);
  const __typeof__(a != a) m = a != a;
#else
  const {name} x = b;
  const __typeof__(a != a) m = a {sign} b | a != a;
#endif
  return ({name})(((__typeof__(m))a & m) | ((__typeof__(m))x & ~m));
"""
_PAIRS: Mapping[int, tuple[str, str]] = {
    128: ("defined(__SSE2__)", "__builtin_ia32_pmaddwd128(a, b)"),
    256: ("defined(__AVX2__)", "__builtin_ia32_pmaddwd256(a, b)"),
}
_ADDED = """
#if {condition}
  return c + ({name}){builtin};
#else
  return c + ((({name})a << 16) >> 16) * ((({name})b << 16) >> 16) + (({name})a >> 16) * (({name})b >> 16);
#endif
"""
# Of 64-bit products the even lanes come from one multiplication and the odd ones from another. AVX2 shifts 64 bits only
# as unsigned numbers: where the shift drops 32 bits or more, it is that of the upper half, which has a sign.
_RESCALED = """
#if defined(__AVX2__) && !defined(__clang__) && {lanes} == 8
  typedef long long wide __attribute__((vector_size(32)));
  typedef unsigned long long bits __attribute__((vector_size(32)));
  wide even = (wide)__builtin_ia32_pmuldq256(x, m);
  wide odd = (wide)__builtin_ia32_pmuldq256(({name})((bits)x >> 32), ({name})((bits)m >> 32));
  if (tie) {{
    even += (wide)((bits)even >> shift & 1);
    odd += (wide)((bits)odd >> shift & 1);
  }}
  even += offset;
  odd += offset;
  const int up = shift < 32 ? shift : 32;
  {name} y = __builtin_ia32_pblendd256(({name})((bits)even >> up), ({name})(((bits)odd >> up) << 32), 0xaa);
  y = (y >> (shift - up)) + zero;
  return __builtin_ia32_pminsd256(__builtin_ia32_pmaxsd256(y, low - ({name}){{}}), high - ({name}){{}});
#else
  {name} y;
  for (int n = 0; n < {lanes}; ++n) {{
    const long long p = (long long)x[n] * m[n];
    const int z = (int)((p + offset + (p >> shift & tie)) >> shift) + zero;
    y[n] = z < low ? low : z > high ? high : z;
  }}
  return y;
#endif
"""
# GCC widens eight bytes to 32 bits lane by lane, through general registers. The builtin gives integers.
_WIDENED = """
#if defined(__AVX2__) && !defined(__clang__)
  typedef long long two __attribute__((vector_size(16)));
  typedef char bytes __attribute__((vector_size(16)));
  typedef int ints __attribute__((vector_size(32)));
  const ints wide = (ints)__builtin_ia32_pmov{sign}xbd256((bytes)(two){{(long long)x, 0}});
  return __builtin_convertvector(wide, {name});
#else
  return __builtin_convertvector(x, {name});
#endif
"""
OPS = ("vector.fma", "arith.maximumf", "arith.minimumf", "cuvil.level2.add_pairs")
_NEVER = ("0", "a")


def helper(op: str, function: str, name: str, factors: str, bits: int, linkage: str) -> str:
    """The definition of `function` for an op in `OPS`. `name`: of the result's type, such as f32x8, of `bits`;
    `factors`: of its first operands' type."""
    lane = name.partition("x")[0]
    match op:
        case "vector.fma":
            condition, builtin = _FMA.get((lane, bits), _NEVER)
            parameters, body = "abc", _CONTRACTED.format(condition=condition, builtin=builtin)
        case "cuvil.level2.add_pairs":
            condition, builtin = _PAIRS.get(bits, _NEVER)
            text = f"{factors} a, {factors} b, {name} c"
            body = _ADDED.format(condition=condition, builtin=builtin, name=name)
            return f"{linkage} {name} {function}({text}) {{{body}}}"
        case _:
            which, sign = ("max", ">") if op == "arith.maximumf" else ("min", "<")
            condition, suffix = _EXTREME.get((lane, bits), ("0", ""))
            parameters = "ab"
            body = _PICKED.format(condition=condition, suffix=suffix, name=name, which=which, sign=sign)
    return f"{linkage} {name} {function}({', '.join(f'{name} {p}' for p in parameters)}) {{{body}}}"


def rescale(function: str, name: str, lanes: int, linkage: str) -> str:
    """The definition of `function` for RescaleOp on the vector type `name`."""
    text = f"{name} x, {name} m, long long offset, int shift, int zero, int low, int high, int tie"
    return f"{linkage} {name} {function}({text}) {{{_RESCALED.format(name=name, lanes=lanes)}}}"


def widen(function: str, name: str, given: str, linkage: str) -> str:
    """The definition of `function`, which widens eight bytes, a `given` such as u8x8, to `name`."""
    body = _WIDENED.format(name=name, sign="z" if given.startswith("u") else "s")
    return f"{linkage} {name} {function}({given} x) {{{body}}}"
