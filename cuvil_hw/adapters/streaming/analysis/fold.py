"""Folding: how wide a streaming stage works, where its weights live, what multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil

from cuvil_hw.adapters.streaming.analysis.access import Words
from cuvil_hw.adapters.streaming.analysis.adders import ConstantProducts
from cuvil_hw.adapters.streaming.analysis.border import MAX_WORD_BITS, border_lanes
from cuvil_hw.adapters.streaming.analysis.fabric import bits
from cuvil_hw.adapters.streaming.analysis.floats import Cores, recurrence
from cuvil_hw.adapters.streaming.analysis.lines import Lines
from cuvil_hw.adapters.streaming.analysis.moved import lanes_agree
from cuvil_hw.adapters.streaming.analysis.reason import reason
from cuvil_hw.adapters.streaming.analysis.stage import Stage, lane_chain

MAX_MULTIPLIERS = 4096  # of a process: of arrays in registers HLS tools take no more elements


@dataclass(frozen=True, slots=True)
class Folding:
    """`pe` outputs and `simd` inputs of each a cycle; `memory`: of the weights, "bram", "lutram" or "" without weights;
    `multiplier`: of the weights, "dsp", "lut", "pair" (two products a DSP block), "adders" (constant products as
    additions, of `constants`), or "" where there is no choice; `rescale`: of all other products, "dsp" or "lut"
    likewise; `ii`: cycles between two steps of the stage's loop."""

    stage: Stage = field(compare=False, repr=False)
    pe: int = 1
    simd: int = 1
    memory: str = ""
    multiplier: str = ""
    rescale: str = ""
    ii: int = 1
    constants: ConstantProducts | None = field(default=None, compare=False, repr=False)

    @property
    def graph(self) -> ConstantProducts | None:
        """The constant products that this folding adds up without a multiplier."""
        return self.constants if self.multiplier == "adders" else None

    @property
    def lanes(self) -> tuple[int, int]:
        """Elements a word on the input and on the output side."""
        stage = self.stage
        if stage.kind == "border":
            whole = self.pe == max(stage.channels_in, stage.channels_out)
            return (stage.channels_in, stage.channels_out) if whole else (self.pe, self.pe)
        if stage.kind != "dense":
            return self.pe, self.tail or self.pe
        return self.simd // (stage.abreast if stage.reordered else 1), self.tail or self.pe

    @property
    def window_lanes(self) -> int:
        """Elements a word of the windows that a dense or depthwise stage reads."""
        return self.simd * (1 if self.stage.kind == "dense" else self.pe)

    @property
    def feeds(self) -> tuple[Words | None, ...]:
        """For each source of a stage with `moves`, what a process in front of it brings into order; None where none
        is needed."""
        return feeds(self.stage, self.pe, self.simd) or ()

    @property
    def gang(self) -> int:
        """Groups of outputs of which all are made in a step."""
        return max(1, self.pe * self.stage.groups // max(self.stage.channels_out, 1))

    def reads(self, n: int) -> tuple[int, int]:
        """Elements of a word that the stage reads of its source number `n`, and of one that the source's stream
        brings."""
        if self.stage.moves:
            feed, own = self.feeds[n], self.simd * self.gang if self.stage.kind == "dense" else self.pe
            return (own, own) if feed is None else feed.lanes[::-1]
        if not self.stage.operands:
            return self.lanes[0], self.lanes[0]
        return self.stage.operands[n].lanes(self.pe, self.simd)

    @property
    def between(self) -> int:
        """Steps from one word of sums to the next, on average."""
        return self.stage.tap_count * (self.stage.channels_in if self.stage.kind == "dense" else 1) // self.simd

    @property
    def tail(self) -> int:
        """Lanes of the epilogue where it is a process of its own, which works while the next sums are made: as few as
        keep up. 0 where all lanes have to, or where nothing is multiplied: wires to another process cost more then."""
        stage = self.stage
        if stage.kind not in ("dense", "depthwise") or stage.floats or not stage.products[1] or self.pe == 1:
            return 0
        fewest = next(n for n in lane_chain(stage.channels_out) if n * self.between >= self.pe or n == self.pe)
        return fewest if fewest < self.pe else 0

    def describe(self) -> str:
        weights = f" w@{self.memory}" if self.memory else ""
        taps = f" taps={self.stage.abreast}" if self.stage.abreast > 1 else ""
        across = self.simd // self.stage.abreast
        parts = [f"unroll o={self.pe} c={across}{taps}{weights}"] if self.stage.kind != "buffered" else []
        why = f" ({reason(self.stage.kernel)})" if self.stage.kind == "buffered" else ""
        parts.append(f"kind={self.stage.kind}{why}")
        parts += [f"multiplier={self.multiplier}"] if self.multiplier else []
        parts += [f"rescale={self.rescale}"] if self.rescale else []
        parts += [f"epilogue={self.tail}"] if self.tail else []
        stored = [o for o in self.stage.operands if o.stored]
        parts += [f"stored {o.buffer}={o.reorder(self.pe, self.simd).steps}" for o in stored]
        return "; ".join(parts + ([f"ii={self.ii}"] if self.ii > 1 else []))


def foldings(
    stage: Stage, cores: Cores, pairs: bool = False, constants: ConstantProducts | None = None
) -> Iterator[Folding]:
    """All foldings of a stage. `cores`: the float operators of the family; `pairs`: its multipliers hold two products
    of this stage; `constants`: all its products, where they may be additions."""
    multipliers, rescales = (("dsp", "lut") if found else ("",) for found in stage.products)
    if stage.kind == "buffered":
        for rescale in rescales:
            yield Folding(stage, rescale=rescale, ii=_interval(stage, cores, stage.side_by_side))
        return
    if stage.kind == "border":
        yield from (Folding(stage, pe) for pe in border_lanes(stage))
        return
    width_in = max((bits(stage.kernel.operand(s).type.dtype) for s in stage.sources), default=1)
    reduce = stage.kernel.reduce
    width_out = max(bits(stage.kernel.type.dtype), bits(reduce.dtype) if reduce is not None else 0)
    ways = _ways(stage)
    for pe in lane_chain(stage.lanes[-1].extent if stage.lanes else stage.channels_out):
        if pe * width_out > MAX_WORD_BITS:
            continue
        if stage.kind in ("map", "moved"):
            if _fits(stage, pe, 1) and feeds(stage, pe, 1) is not None:
                yield from (Folding(stage, pe, rescale=rescale) for rescale in rescales)
            continue
        ii = _interval(stage, cores, stage.channels_out // pe)
        for way, simd in ways:
            source = (simd if way.kind == "dense" else 1) * width_in
            if source > MAX_WORD_BITS or pe * simd > MAX_MULTIPLIERS or not _fits(way, pe, simd):
                continue
            if way.abreast > 1 and way.reordered and _window_bits(way, pe, width_in) > MAX_WORD_BITS:
                continue
            if feeds(way, pe, simd) is None:
                continue
            packed = ("pair",) if pairs and pe % 2 == 0 and pe * way.groups <= way.channels_out else ()
            kinds, whole = (*multipliers, *packed), (way.channels_out, way.tap_count * way.channels_in)
            if constants is not None and way.groups == 1 and whole == (pe, simd):
                kinds = tuple("adders" if kind == "lut" else kind for kind in kinds)
            for memory, multiplier, rescale in product(_memories(way, pe, simd), kinds, rescales):
                yield Folding(way, pe, simd, memory, multiplier, rescale, ii, constants)


def _ways(stage: Stage) -> list[tuple[Stage, int]]:
    """How many inputs of an output a step may take: of the channels of a tap, or of all channels of several taps."""
    dense = stage.kind == "dense"
    ways = [(stage, n) for n in (lane_chain(stage.channels_in) if dense and not stage.ordered else (1,))]
    if stage.floats or stage.operands or stage.moves or stage.kind not in ("dense", "depthwise"):
        return ways
    if stage.reordered and not Lines.of(stage, stage.channels_in).legal:
        return ways
    if dense:
        taps = lane_chain(stage.tap_count)[1:]
        return ways + [(replace(stage, abreast=n), n * stage.channels_in) for n in taps]
    if stage.reordered:
        ways.append((replace(stage, abreast=stage.tap_count), stage.tap_count))
    return ways


def _window_bits(stage: Stage, pe: int, width: int) -> int:
    """Of a word that holds a whole window."""
    return stage.tap_count * (stage.channels_in if stage.kind == "dense" else pe) * width


def _fits(stage: Stage, pe: int, simd: int) -> bool:
    """Whether its streams can bring words for so many outputs and inputs a step."""
    return all(
        o.fits(pe, simd) and o.lanes(pe, simd)[0] * bits(stage.kernel.operand(o.buffer).type.dtype) <= MAX_WORD_BITS
        for o in stage.operands
    )


def feeds(stage: Stage, pe: int, simd: int) -> tuple[Words | None, ...] | None:
    """What brings the elements of each source into the order of a stage with `moves`, None for one that comes in it;
    None where a source can't be brought."""
    lanes = pe
    if stage.kind == "dense" and stage.moves:
        each = stage.channels_out // stage.groups
        gang = max(1, pe // each)
        whole = stage.moves[0].access
        merged = whole.merged(len(stage.taps), gang) if whole is not None else None
        if (pe % each and each % pe) or (gang > 1 and simd != stage.channels_in) or merged is None:
            return None
        stage, lanes = replace(stage, moves=(replace(stage.moves[0], access=merged),)), simd * gang
    found: list[Words | None] = []
    for move, order in zip(stage.moves, stage.given, strict=False):
        if not lanes_agree(move, stage.lanes[-1], lanes):
            return None
        shape = stage.kernel.operand(move.load.buffer).type.shape
        legal = lane_chain(shape[order[-1]] if order else 1)
        if move.access is None:
            if lanes not in legal:
                return None
            found.append(None)
            continue
        width = bits(move.load.dtype)
        words = (move.access.words(n, lanes) for n in legal if n * width <= MAX_WORD_BITS)
        first = next((w for w in words if w is not None), None)
        if first is None:
            return None
        found.append(first)
    return tuple(found)


def _memories(stage: Stage, pe: int, simd: int) -> tuple[str, ...]:
    """Where weights may lie: nowhere when each is multiplied by one lane alone, which makes them wiring."""
    steps = stage.tap_count * (stage.channels_in if stage.kind == "dense" else 1) // simd
    folds = stage.channels_out // pe, steps
    return ("bram", "lutram") if any(t.shape(pe, simd, folds)[0] > 1 for t in stage.weights) else ("",)


def _interval(stage: Stage, cores: Cores, between: int) -> int:
    """Cycles from one step to the next, when a running value is used again after `between` steps."""
    reduce = stage.kernel.reduce
    wait = recurrence(reduce, cores) if reduce is not None and stage.floats else 0
    return ceil(wait / between) if wait > between else 1
