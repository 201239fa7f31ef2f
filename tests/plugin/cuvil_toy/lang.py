"""The accelerator's C dialect, as data for the renderer, and the header that its vendor's compiler would bring."""

from __future__ import annotations

from cuvil_hw.render.c.lang import C_KEYWORDS, C_LIBRARY, Lang

TOY_C = Lang(
    name="Toy C",
    types={t: f"toy_{t}" for t in ("f32", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")},
    index="toy_i32",
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
typedef int8_t toy_i8;
typedef int16_t toy_i16;
typedef int32_t toy_i32;
typedef int64_t toy_i64;
typedef uint8_t toy_u8;
typedef uint16_t toy_u16;
typedef uint32_t toy_u32;
typedef uint64_t toy_u64;
typedef float toy_f32;
typedef bool toy_bool;
#endif
"""
