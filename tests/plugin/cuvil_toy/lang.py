"""The accelerator's C dialect, as data for the renderer, and the header that its vendor's compiler would bring."""

from __future__ import annotations

from cuvil_hw.render.lang import C_KEYWORDS, C_LIBRARY, Lang

TOY_C = Lang(
    name="Toy C",
    native={8: "toy_s8", 16: "toy_s16", 32: "toy_s32", 64: "toy_s64"},
    native_unsigned={8: "toy_u8", 16: "toy_u16", 32: "toy_u32", 64: "toy_u64"},
    floats={"f32": "toy_f32"},
    index="toy_s32",
    boolean="toy_bool",
    cast="({type}){x}",
    cast_calls=False,
    linkage={"kernel": "TOY_KERNEL void"},
    pointer="TOY_GLOBAL {const}{type} *{name}",
    keywords=C_KEYWORDS | C_LIBRARY,
    preamble="#include <toy.h>\n",
    helper="TOY_INLINE",
    table="TOY_ROM {type} {name}",
)

HEADER = """\
#ifndef TOY_H
#define TOY_H
#include <stdbool.h>
#include <stdint.h>
#define TOY_KERNEL
#define TOY_GLOBAL
#define TOY_INLINE static inline
#define TOY_ROM static const
typedef int8_t toy_s8;
typedef int16_t toy_s16;
typedef int32_t toy_s32;
typedef int64_t toy_s64;
typedef uint8_t toy_u8;
typedef uint16_t toy_u16;
typedef uint32_t toy_u32;
typedef uint64_t toy_u64;
typedef float toy_f32;
typedef bool toy_bool;
#endif
"""
