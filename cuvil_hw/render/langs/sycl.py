"""SYCL 2020 with Intel's FPGA extensions of oneAPI 2025.0 as data."""

from __future__ import annotations

from cuvil_hw import dtypes
from cuvil_hw.render.c.lang import C_LIBRARY, CPP_KEYWORDS, Lang

_MULTIPLY = (
    "{type} {name};\nsycl::ext::intel::math_dsp_control<sycl::ext::intel::Preference::%s>([&] {{ {name} = {x}; }});"
)

SYCL = Lang(
    name="SYCL",
    types=dtypes.spellings("sycl"),
    index="int",
    boolean="bool",
    cast="{type}({x})",
    cast_calls=True,
    linkage={"process": "static void", "dataflow": "void"},
    pointer="{const}{type} *{name}",
    keywords=CPP_KEYWORDS | C_LIBRARY | {"sycl", "queue"},
    preamble="#include <cstdint>\n\n#include <sycl/sycl.hpp>\n#include <sycl/ext/intel/fpga_extensions.hpp>\n",
    table="static constexpr {type} {name}",
    math_f32="sycl::{name}",
    bitcast="sycl::bit_cast<{type}>({x})",
    first_param={"dataflow": "sycl::queue &queue"},
    word="{type}x{lanes}",
    word_type="struct {word} {{ {type} v[{lanes}]; }};",
    word_lanes=".v",
    global_stream="class {name}_id;\nusing {name} = sycl::ext::intel::pipe<{name}_id, {word}, {depth}>;",
    stream_read="{word} = {stream}::read();",
    stream_write="{stream}::write({word});",
    dataflow=("", "", "queue.single_task<class {name}_task>([=]() {{ {call}; }});", "queue.wait();"),
    product={"dsp": _MULTIPLY % "DSP", "lut": _MULTIPLY % "Softlogic"},
    pipeline="[[intel::initiation_interval({ii})]]",
    unroll="#pragma unroll",
    hints_first=True,
    apart="[[intel::ivdep({name})]]",
    apart_steps="[[intel::ivdep({name}, {steps})]]",
    placed={
        "registers": "[[intel::fpga_register]] ",
        "lutram": '[[intel::fpga_memory("MLAB")]] ',
        "bram": '[[intel::fpga_memory("BLOCK_RAM")]] ',
    },
)
