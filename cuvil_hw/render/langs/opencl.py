"""OpenCL C as data: for Intel's FPGA compiler, with channels, and for devices without, with buffers in their place."""

from __future__ import annotations

from dataclasses import replace

from cuvil_hw import dtypes
from cuvil_hw.render.c.lang import C_KEYWORDS, C_LIBRARY, Lang

_WORDS = (
    "kernel global local constant private generic read_only write_only read_write channel pipe half quad complex "
    "uchar ushort uint ulong size_t ptrdiff_t intptr_t uintptr_t event_t sampler_t vec_step as_type clamp degrees "
    "max min mix radians step smoothstep sign cross dot distance length normalize select any all shuffle shuffle2 "
    "abs_diff add_sat hadd rhadd clz ctz mad_hi mad_sat mul_hi rotate sub_sat upsample popcount mad24 mul24 "
    "maxmag minmag mad fdim fract frexp hypot ilogb ldexp lgamma modf nan nextafter pown powr remquo rootn rsqrt "
    "sincos tgamma cbrt copysign erfc exp10 log10 isequal isfinite isless isnormal isordered bitselect barrier "
    "mem_fence prefetch vload2 vstore2 printf atomic_add atomic_inc atomic_max atomic_min get_global_id "
    "get_local_id get_work_dim read_channel_intel write_channel_intel"
)
_VECTORS = [f"{t}{n}" for t in ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "double")
            for n in (2, 3, 4, 8, 16)]  # fmt: skip

# A literal with LL would be 128 bits wide.
OPENCL = Lang(
    name="OpenCL C",
    types=dtypes.spellings("opencl"),
    index="int",
    boolean="bool",
    cast="({type}){x}",
    cast_calls=False,
    linkage={"process": "__attribute__((max_global_work_dim(0)))\n__kernel void"},
    pointer="__global {const}{type} *restrict {name}",
    keywords=C_KEYWORDS | C_LIBRARY | frozenset(_WORDS.split()) | frozenset(_VECTORS),
    preamble=(
        "#pragma OPENCL EXTENSION cl_intel_channels : enable\n\n"
        "// An emulator may be given channels that hold whole samples, to run one kernel after another.\n"
        "#ifndef CUVIL_DEPTH\n#define CUVIL_DEPTH(depth, words) depth\n#endif\n"
    ),
    table="__constant {type} {name}",
    math_f32="{name}",
    word="{type}x{lanes}",
    word_type="typedef struct {{ {type} v[{lanes}]; }} {word};",
    word_lanes=".v",
    global_stream="channel {word} {name} __attribute__((depth(CUVIL_DEPTH({depth}, {words}))));",
    stream_read="{word} = read_channel_intel({stream});",
    stream_write="write_channel_intel({stream}, {word});",
    pipeline="#pragma ii {ii}",
    unroll="#pragma unroll",
    hints_first=True,
    apart="#pragma ivdep array({name})",
    apart_steps="#pragma ivdep array({name}) safelen({steps})",
    placed={
        "registers": "__attribute__((register)) ",
        "lutram": '__attribute__((memory("MLAB"))) ',
        "bram": '__attribute__((memory("BLOCK_RAM"))) ',
    },
    wide_suffix="L",
    bitcast="as_{type}({x})",
)

# A stream is a buffer that its writer fills before its reader starts: kernels run one after another.
OPENCL_BUFFERS = replace(
    OPENCL,
    name="OpenCL C with buffers",
    linkage={"process": "__kernel void"},
    preamble="",
    global_stream="",
    stream_param="__global {word} *restrict {name}",
    stream_read="{word} = *{stream}++;",
    stream_write="*{stream}++ = {word};",
    pipeline="",
    apart="",
    apart_steps="",
    placed={},
)
