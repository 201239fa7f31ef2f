"""Where everything lies in the one memory of a temporal design, and the table of its passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cuvil_hw.adapters.temporal import descriptor
from cuvil_hw.adapters.temporal.descriptor import FIRST_LOOP, Pass, convolution_pass, row_length, sum_pass
from cuvil_hw.adapters.temporal.engine import TiledConvolution
from cuvil_hw.adapters.temporal.form import EnginePass, Form, VectorLoop
from cuvil_hw.adapters.temporal.image import WORD_BYTES
from cuvil_hw.adapters.temporal.memory import aligned, padded_bytes
from cuvil_hw.adapters.temporal.record import Factors, Plain
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.memory import buffer_bytes


@dataclass
class Layout:
    """Bytes. `table`: the passes, then tables and parameters; `at`: of buffers."""

    table: bytes
    at: Mapping[str, int]
    factors: Sequence[Factors]
    plain: Sequence[Plain]
    memory_bytes: int


@dataclass
class _Room:
    """Pieces of memory, one after the other."""

    end: int
    pieces: list[tuple[int, bytes]] = field(default_factory=list)

    def take(self, size: int) -> int:
        at = self.end
        self.end = aligned(at + size)
        return at

    def put(self, data: bytes) -> int:
        at = self.take(len(data))
        self.pieces.append((at, data))
        return at


def laid_out(design: Design, forms: Sequence[Form], functions: Mapping[str, int]) -> Layout:
    """`functions`: number of the loop function of each kernel that has one."""
    graph = design.graph
    loops = [f for f in forms if isinstance(f, VectorLoop)]
    length = row_length(max((len(f.kernel.inputs) + 1 for f in loops), default=0))
    room = _Room(aligned(len(forms) * length * 4))
    fixed = [_fixed(form, room) for form in forms]
    table_end = room.end
    factors = [_factors(form, room) for form in forms]
    plain = {}
    for name in dict.fromkeys(n for f in loops for n in f.kernel.inputs if graph.buffers[n].role == "const"):
        plain[name] = Plain(room.take(buffer_bytes(graph.buffers[name])), graph.buffers[name].digest)
    at = {name: p.at for name, p in plain.items()}
    for name in (*graph.inputs, *graph.outputs):
        at[name] = room.take(padded_bytes(graph.buffers[name]))
    arena = room.take(design.memory.size_bytes)
    at |= {name: arena + offset for name, offset in design.memory.offset_bytes.items()}
    rows = []
    for form, where, weights in zip(forms, fixed, factors, strict=True):
        places = []
        if isinstance(form, VectorLoop):
            made = Pass(FIRST_LOOP + functions[form.kernel.name])
            places = [at[n] for n in (*form.kernel.inputs, form.kernel.output)]
        else:
            made = _pass(form, {n: a // WORD_BYTES for n, a in at.items()}, where, weights)
        rows.append(made.row(length, places))
    table = bytearray(table_end)
    for start, data in ((0, descriptor.table_of_passes(rows)), *room.pieces):
        table[start : start + len(data)] = data
    return Layout(bytes(table), at, [f for f in factors if f is not None], list(plain.values()), room.end)


def _fixed(form: Form, room: _Room) -> dict[str, int]:
    """Words of a pass's table and parameters."""
    if isinstance(form, VectorLoop):
        return {}
    where = {}
    finish = form.work.layer.finish if isinstance(form.work, TiledConvolution) else form.work.finish
    if finish.table:
        where["table"] = room.put(descriptor.table_bytes(finish)) // WORD_BYTES
    if isinstance(form.work, TiledConvolution):
        where["parameters"] = room.put(descriptor.parameter_bytes(form.work)) // WORD_BYTES
    return where


def _factors(form: Form, room: _Room) -> Factors | None:
    if (
        not isinstance(form, EnginePass)
        or not isinstance(form.work, TiledConvolution)
        or form.work.layer.weights is None
    ):
        return None
    made, layer = form.work, form.work.layer
    weights = layer.weights
    assert weights is not None
    at = room.take(made.blocks * made.parts * made.step_words * WORD_BYTES)
    inputs = layer.channels_in if made.dense else 1
    return Factors(
        at, weights.digest, weights.order, layer.channels_out, made.taps, inputs, weights.zero, layer.kind, made.lanes,
        made.engine.inputs,
    )  # fmt: skip


def _pass(form: EnginePass, words: Mapping[str, int], where: Mapping[str, int], weights: Factors | None) -> Pass:
    target = words[form.kernel.output]
    if isinstance(form.work, TiledConvolution):
        first = weights.at // WORD_BYTES if weights is not None else 0
        return convolution_pass(form.work, source=words[form.work.layer.source], target=target, weights=first, **where)
    sources = [words[s] for s in form.work.sources]
    second = {"second": sources[1]} if len(sources) > 1 else {}
    return sum_pass(form.work, source=sources[0], target=target, **second, **where)
