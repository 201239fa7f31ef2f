"""The instruction sets of a family that one library holds code for, and how it chooses among them when it first runs.

The same C is compiled for each. Integers have the same bits from all; floats differ where a processor rounds a product
and its sum once (render/c/lanes.py). What is read is the processor itself, not the
system: a library needs no function of libc for it.
"""

from __future__ import annotations

from collections.abc import Mapping

# By machine, lowest first: as the compilers' -march, and when a processor (and the system, which keeps its registers)
# has it. Bits of CPUID and XCR0: Intel's manual, volume 2; "x86-64-v3", "-v4": the x86-64 psABI.
_X86 = """#include <cpuid.h>
static int highest(void) {
  unsigned a, b, c, d, kept = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  const unsigned first = 1u << 0 | 1u << 9 | 1u << 12 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 22 | 1u << 23 |
                         1u << 27 | 1u << 28 | 1u << 29;  // SSE3 to 4.2, FMA, CX16, MOVBE, POPCNT, XSAVE, AVX, F16C
  if ((c & first) != first) return 0;
  __asm__ volatile("xgetbv" : "=a"(kept), "=d"(d) : "c"(0));
  if ((kept & 0x6) != 0x6) return 0;
  if (!__get_cpuid(0x80000001u, &a, &b, &c, &d) || !(c & 1u << 5)) return 0;  // LZCNT
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
  const unsigned second = 1u << 3 | 1u << 5 | 1u << 8;  // BMI1, AVX2, BMI2
  if ((b & second) != second) return 0;
  const unsigned third = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;  // AVX-512 F, DQ, CD, BW, VL
  return (b & third) == third && (kept & 0xe6) == 0xe6 ? 2 : 1;
}
"""
# Bits 47 to 44 of ID_AA64ISAR0_EL1: dot products. Linux lets programs read it since 4.11.
_ARM = """static int highest(void) {
  unsigned long features;
  __asm__("mrs %0, ID_AA64ISAR0_EL1" : "=r"(features));
  return (features >> 44 & 15) != 0;
}
"""
_ONE = "static int highest(void) { return 0; }\n"
_FAMILIES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "x86_64": (("x86-64", "x86-64-v3", "x86-64-v4"), _X86),
    "aarch64": (("armv8-a", "armv8.2-a+dotprod"), _ARM),
}


def levels_of(machine: str, march: str) -> tuple[str, ...]:
    """The instruction sets that a library has code for: all of the family, or `march` alone if that is another one,
    which the profile asks for."""
    levels, _ = _FAMILIES.get(machine, ((), ""))
    return levels if march in levels else (march,)


def probe(machine: str, levels: tuple[str, ...]) -> str:
    """The C function `highest`: the number of the highest level that this processor has."""
    return _FAMILIES[machine][1] if len(levels) > 1 else _ONE
