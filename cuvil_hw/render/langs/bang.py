"""BANG C as data: Cambricon's C++ for MLU cores. The text compiles with cncc, and with g++ against sim/mlu.

Names and qualifiers: BANG 3.0 headers. Scalar functions are those of C's math.h, which these headers declare for the
device; MLUs have no double.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cuvil_hw import dtypes
from cuvil_hw.render.c.lang import C99, C_LIBRARY, CPP_KEYWORDS, Lang

_BANG_NAMES = (
    "taskId taskIdX taskIdY taskIdZ taskDim taskDimX taskDimY taskDimZ clusterId clusterDim coreId coreDim half "
    "GDRAM2NRAM NRAM2GDRAM GDRAM2WRAM WRAM2GDRAM NRAM2NRAM NRAM2WRAM WRAM2NRAM GDRAM2SRAM SRAM2GDRAM SRAM2NRAM "
    "NRAM2SRAM GDRAM2GDRAM"
)
_CALLS: Mapping[str, str] = {"gpu.block_id": "(int)taskId", "gpu.grid_dim": "(int)taskDim"}

BANG: Lang = replace(
    C99,
    vectors="",
    own_f32={},
    helpers={},
    unroll="",
    hints_first=False,
    name="BANG C",
    types=dtypes.spellings("bang"),
    linkage={"kernel": 'extern "C" __mlu_entry__ void'},
    pointer="{const}{type} *{name}",
    keywords=CPP_KEYWORDS | C_LIBRARY | frozenset(_BANG_NAMES.split()),
    preamble='#include <math.h>\n#include <stdint.h>\n\n#include "mlu.h"\n',
    helper="static __mlu_func__ inline",
    table="__mlu_const__ const {type} {name}",
    spaces={"nram": "__nram__ __attribute__((aligned(128))) {}"},
    calls=_CALLS,
    wrap=True,
    copy="__memcpy({target}, {source}, {bytes}, {source_space}2{target_space}{several});",
    copy_segments=", {target_stride}, {source_stride}, {more}",
    copy_spaces={"": "GDRAM", "nram": "NRAM"},
)
