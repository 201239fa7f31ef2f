"""Agilex 7 as the shared cost model sees it.

Figures of the Agilex 7 device overview and embedded memory guide: a DSP block makes four 9×9, two 18×19 or one 27×27
products; an M20K is 512×40, 1K×20 or 2K×10; an MLAB is 32×20 and takes the ten ALMs of its block. By the vendors' own
counts an ALM is 2.95 logic elements (487,200 are 1,437,240) and a LUT of six inputs 1.6 logic cells in 7 series (53,200
are 85,000) or 2.19 in UltraScale+ (117,120 are 256,200), so that an ALM does the work of 1.35 to 1.84 LUTs.

A DSP block multiplies and adds f32 by itself, one product and one sum (device overview); with all its register banks a
result takes four cycles. Quotients and functions come from its products and ALMs (floating-point IP user guide); their
figures are rounded and plan a design, as all here.
"""

from __future__ import annotations

from cuvil_hw.adapters.streaming.analysis.fabric import Fabric
from cuvil_hw.adapters.streaming.analysis.floats import FloatCore

LUTS_PER_ALM = 1.6

_FLOATS = {
    "add": FloatCore(1, 0, 32, 4), "mul": FloatCore(1, 0, 32, 4), "div": FloatCore(4, 400, 600, 16),
    "sqrt": FloatCore(3, 250, 400, 12), "exp": FloatCore(3, 400, 500, 14), "log": FloatCore(4, 700, 800, 16),
    "compare": FloatCore(0, 70, 40, 1), "round": FloatCore(0, 150, 100, 2), "to_float": FloatCore(0, 250, 200, 4),
    "to_int": FloatCore(0, 250, 150, 3),
}  # fmt: skip

AGILEX7 = Fabric(
    dsp_a=27,
    dsp_b=27,
    dsp_parts=((9, 9, 4), (18, 19, 2)),
    ram_shapes=((2048, 10), (1024, 20), (512, 40)),
    lutram_bits=32,
    floats=_FLOATS,
    fused=True,
    exact=False,
    lutram_width=20,
    lutram_luts=10 * LUTS_PER_ALM,
    shift_registers=False,
    cell=1 / LUTS_PER_ALM,
    lut="alm",
    ram="m20k",
    lutram="mlab",
)
