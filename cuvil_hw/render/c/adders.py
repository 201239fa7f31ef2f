"""Graphs of additions as functions: a statement for each value that is used again, or where a line is full."""

from __future__ import annotations

from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.adders import Adders, Addition
from cuvil_hw.render.c.lang import Lang

_LINE = 96  # characters of an expression that is still written inside another one


def function(graph: Adders, name: str, accumulator: int, lang: Lang) -> str:
    """The function that adds the outputs of a graph to its second array, whose elements have `accumulator` bits."""
    if not lang.shifted_up:
        raise CuvilError(f"{lang.name} has no sums of constant products ({name})")
    first = graph.inputs
    uses = [0] * (first + len(graph.sums))
    for s in graph.sums:
        uses[s.a] += 1
        uses[s.b] += 1
    for output in graph.outputs:
        if output is not None:
            uses[output[0]] += 1
    texts = [f"x[{n}]" for n in range(first)]
    lines = []

    def shifted(value: int, by: int) -> str:
        return lang.shifted_up.format(bits=graph.bits(value) + by, by=by, x=texts[value]) if by else texts[value]

    def added(s: Addition) -> str:
        right = shifted(s.b, s.b_shift)
        right = f"({right})" if not s.b_shift and " " in right else right
        return f"{shifted(s.a, s.a_shift)} {'+' if s.sign > 0 else '-'} {right}"

    for n, s in enumerate(graph.sums, first):
        text = added(s)
        if uses[n] > 1 or len(text) > _LINE:
            lines.append(f"const {lang.arbitrary.format(graph.bits(n))} t{n - first} = {text};")
            text = f"t{n - first}"
        texts.append(text)
    for n, output in enumerate(graph.outputs):
        if output is not None:
            value, shift, sign = output
            lines.append(f"y[{n}] {'+' if sign > 0 else '-'}= {shifted(value, shift)};")
    kind_in, kind_out = (lang.arbitrary.format(b) for b in (graph.bits(0), accumulator))
    what = f"// {len(graph.outputs)} sums of {first} products by constants: {len(graph.sums)} additions"
    head = f"static void {name}(const {kind_in} (&x)[{first}], {kind_out} (&y)[{len(graph.outputs)}]) {{"
    return "\n".join([what, head, *(f"  {line}" for line in (lang.inline, *lines)), "}", ""])
