"""Passes by name, with options from text, and the pipelines that a compilation runs.

A pass is an xDSL `ModulePass`. One over level1 also reads and adds constants, which aren't in the module: it is a
`ProgramPass`, and what runs it gives it the program. Adapters and users may write passes of either kind.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError, VerifyException

from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Program
from cuvil_hw.passes import (
    accumulators,
    batch_norm,
    constant_folding,
    dce,
    decompose,
    fuse,
    integerize,
    matmul,
    narrow_floats,
    separate,
    stored,
    unroll,
)
from cuvil_hw.telemetry.spans import span

# Called after each pass with what it is called and the module that it left.
Observer = Callable[[str, ModuleOp], None]
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


class ProgramContext(Context):
    """The context of a pass over level1, with the program that the module is of."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program


@dataclass(frozen=True)
class ProgramPass(ModulePass):
    """A pass over the level1 module of a program, which it changes in place."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not isinstance(ctx, ProgramContext) or ctx.program.module is not op:
            raise CuvilError(
                f"pass {self.name} needs a program's constants; give it to cuvil_hw.passes.pipeline.run_passes"
            )
        self.run(ctx.program)

    @abstractmethod
    def run(self, program: Program) -> None: ...


@dataclass(frozen=True)
class FoldConstants(ProgramPass):
    """Constants folded, ops that do nothing removed. `dequantize`: weights held as integers become floats, too."""

    name: ClassVar[str] = "fold"
    dequantize: bool = False

    def run(self, program: Program) -> None:
        constant_folding.fold(program, self.dequantize)


@dataclass(frozen=True)
class Matmul(ProgramPass):
    """A matrix product with constant right side becomes a dense layer."""

    name: ClassVar[str] = "matmul"

    def run(self, program: Program) -> None:
        matmul.run(program)


@dataclass(frozen=True)
class FoldBatchNorm(ProgramPass):
    """Batch norms go into the weights of the layer before; elsewhere they become mul and add."""

    name: ClassVar[str] = "batch-norm"

    def run(self, program: Program) -> None:
        batch_norm.run(program)


@dataclass(frozen=True)
class NarrowFloats(ProgramPass):
    """Floats of 32 bits become floats of 16. `to`: "f16" or "bf16"."""

    name: ClassVar[str] = "narrow-floats"
    to: str = "f16"

    def run(self, program: Program) -> None:
        if self.to not in ("f16", "bf16"):
            raise CuvilError(f"pass {self.name}: to is f16 or bf16, not {self.to}")
        program.notes["precision"] = narrow_floats.run(program, self.to)


@dataclass(frozen=True)
class Integerize(ProgramPass):
    """Ops between dequantize and quantize become integer ops."""

    name: ClassVar[str] = "integerize"

    def run(self, program: Program) -> None:
        integerize.run(program)


@dataclass(frozen=True)
class Accumulators(ProgramPass):
    """Accumulators become as narrow as weights and known ranges allow."""

    name: ClassVar[str] = "accumulators"

    def run(self, program: Program) -> None:
        accumulators.run(program)


@dataclass(frozen=True)
class KeepIntegerWeights(ProgramPass):
    """Weights held as integers stay so beside floats; their scales follow the sum."""

    name: ClassVar[str] = "integer-weights"

    def run(self, program: Program) -> None:
        stored.run(program)


@dataclass(frozen=True)
class Decompose(ProgramPass):
    """Composite ops become smaller ones, all but those named in `keep`."""

    name: ClassVar[str] = "decompose"
    keep: tuple[str, ...] = ()

    def run(self, program: Program) -> None:
        decompose.run(program, lambda op, _, __: op.mnemonic not in self.keep)


@dataclass(frozen=True)
class Dce(ProgramPass):
    """Ops whose results nobody reads are removed."""

    name: ClassVar[str] = "dce"

    def run(self, program: Program) -> None:
        dce.run(program)


@dataclass(frozen=True)
class UnrollSteps(ProgramPass):
    """Loops become the ops of all their steps. `most`: only those of at most so many steps; 0: all."""

    name: ClassVar[str] = "unroll"
    most: int = 0

    def run(self, program: Program) -> None:
        unroll.run(program, self.most)


@dataclass(frozen=True)
class Fuse(ProgramPass):
    """Every op into one group that will be one kernel. `alone`: each into a group of its own; `epilogues`: skip
    connections join the kernels of the layers that they meet."""

    name: ClassVar[str] = "fuse"
    alone: bool = False
    epilogues: bool = False

    def run(self, program: Program) -> None:
        if self.alone:
            separate.run(program)
        else:
            fuse.run(program, residual_epilogue=self.epilogues)


PASSES: Mapping[str, type[ModulePass]] = MappingProxyType(
    {
        each.name: each
        for each in (
            FoldConstants, Matmul, FoldBatchNorm, NarrowFloats, Integerize, Accumulators, KeepIntegerWeights, Decompose,
            Dce, UnrollSteps, Fuse,
        )
    }
)  # fmt: skip
# What a compilation runs, and what `cuvil opt --pipeline` knows by name.
SIMPLIFY = "unroll{most=1},fold,batch-norm"
INTEGER = "integerize,accumulators"
FLOAT = "fold{dequantize=true}"
KERNELS = "decompose,fold,fuse"
PIPELINES: Mapping[str, str] = MappingProxyType(
    {
        "default": f"{SIMPLIFY},{INTEGER},{KERNELS}",
        "float": f"{SIMPLIFY},{FLOAT},{KERNELS}",
        "simplify": SIMPLIFY,
        "integer": INTEGER,
        "kernels": KERNELS,
    }
)


def parse_passes(spec: str) -> tuple[ModulePass, ...]:
    """The passes in a text such as "fold{dequantize=true},fuse", which is how xDSL and MLIR write them. Raises
    CuvilError for text that can't be read, an unknown pass, an option that it doesn't have or of a wrong type."""
    found = []
    try:
        for one in parse_pipeline(spec):
            if one.name not in PASSES:
                raise CuvilError(f"unknown pass {one.name!r}; there are: {', '.join(PASSES)}")
            found.append(PASSES[one.name].from_spec(one))
    except (ArgSpecParseError, ValueError) as e:
        why = str(e).strip().splitlines()[-1].strip()
        raise CuvilError(f"passes {spec!r}: {why}; write them as in 'fold{{dequantize=true}},fuse'") from e
    return tuple(found)


def run_pipeline(program: Program, passes: str | Iterable[str]) -> None:
    """Run passes, given as one text or several, on a program. Raises CuvilError as `parse_passes` and `run_passes`."""
    run_passes(program, parse_passes(passes if isinstance(passes, str) else ",".join(passes)))


def run_passes(program: Program, passes: Iterable[ModulePass]) -> None:
    """Run passes on a program. Raises CuvilError as `apply`."""
    apply(passes, program.module, ProgramContext(program))


def apply(passes: Iterable[ModulePass], module: ModuleOp, context: Context) -> None:
    """Run passes on a module of any level and tell who observes. The module is verified after the last, and after each
    where somebody observes: verifying takes a quarter of a compilation. Raises CuvilError when it is invalid."""
    ran = []
    for each in passes:
        ran.append(str(each.spec()))
        with span("cuvil.pass", spec=ran[-1]):
            each.apply(context, module)
        if _observer.get() is not None:
            _verify(module, ran[-1:])
            observe(ran[-1], module)
    if ran and _observer.get() is None:
        _verify(module, ran)


def _verify(module: ModuleOp, ran: Sequence[str]) -> None:
    try:
        module.verify()
    except VerifyException as e:
        which = "" if len(ran) == 1 else "; dump=folder, or cuvil opt --dump, says which"
        raise CuvilError(f"pass {' or '.join(ran)} left invalid IR{which}: {e}") from e


def observe(what: str, module: ModuleOp) -> None:
    """Tell who observes, if anybody does, what `what` made of a module."""
    if (observer := _observer.get()) is not None:
        observer(what, module)


@contextmanager
def observed(observer: Observer | None) -> Iterator[None]:
    """`observer` is called after each pass that is run meanwhile, in this thread or task; None: nobody is."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)
