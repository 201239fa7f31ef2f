"""How a kernel runs in the temporal style: as a pass of the shared engine, or as a loop nest of the vector unit."""

from __future__ import annotations

from dataclasses import dataclass, field

from cuvil_hw.adapters.temporal.engine import Cost, Engine, TiledConvolution
from cuvil_hw.adapters.temporal.layer import Sum
from cuvil_hw.schedule.kernel import Kernel
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import Profile

# A formula; tests hold it to the simulation with clocks. No board has been measured.
ORIGIN = "analytic"


@dataclass(frozen=True)
class EnginePass:
    """`work`: a tiled convolution, or an elementwise sum."""

    engine: Engine
    work: TiledConvolution | Sum = field(compare=False, repr=False)
    cost: Cost

    @property
    def kernel(self) -> Kernel:
        return self.work.layer.kernel if isinstance(self.work, TiledConvolution) else self.work.kernel

    def describe(self) -> str:
        if isinstance(self.work, Sum):
            return f"engine, sum of maps; bound by {self.cost.bound}"
        made = self.work
        kind = "" if made.dense else f" {made.layer.kind}"
        where = f"tiles {made.rows}×{made.cols}, {made.blocks}×{made.lanes} channels"
        return f"engine{kind}, {where}; bound by {self.cost.bound}"

    def estimate(self, profile: Profile) -> Estimate:
        return Estimate(self.cost.cycles / profile.clock_hz, self.cost.cycles, origin=ORIGIN)


@dataclass(frozen=True)
class VectorLoop:
    """`why`: what keeps the kernel from the engine; `around`: how many of its cycles lie outside of innermost loops."""

    kernel: Kernel = field(compare=False, repr=False)
    why: str
    cycles: int
    around: int

    def describe(self) -> str:
        return f"vector unit: {self.why}; bound by loops that read and write single elements"

    def estimate(self, profile: Profile) -> Estimate:
        return Estimate(self.cycles / profile.clock_hz, self.cycles, origin=ORIGIN)


Form = EnginePass | VectorLoop
