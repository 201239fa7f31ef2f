"""A program as a picture: DOT text for Graphviz, or SVG by our own layout.

A fusion group is a cluster of its ops in DOT and one box that lists them in SVG. Constants are no nodes: their types
stand with the op that reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xdsl.ir import Block, Operation, SSAValue

from cuvil_hw.errors.quoting import visible
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.report import drawing as picture
from cuvil_hw.report.drawing import Arrow, Box, Drawing
from cuvil_hw.report.words import in_the_model


def graph_of(program: Program) -> Drawing:
    """Inputs, top-level ops (a group is one node) and outputs, joined by tensors."""
    nodes, edges = [], []
    made: dict[SSAValue, str] = {}
    for i, (arg, (name, kind)) in enumerate(zip(program.block.args, program.inputs, strict=True)):
        made[arg] = f"in{i}"
        nodes.append(Box(f"in{i}", name, (str(kind),), "input", "input"))
    for number, operation in enumerate(program.block.ops):
        if isinstance(operation, level1.ConstOp) or operation is program.block.last_op:
            continue
        name = f"op{number}"
        nodes.append(_node(name, operation))
        edges += [Arrow(made[v], name, str(level1.type_of(v))) for v in dict.fromkeys(operation.operands) if v in made]
        made.update((result, name) for result in operation.results)
    for i, (value, (name, kind)) in enumerate(zip(_returned(program), program.outputs, strict=True)):
        nodes.append(Box(f"out{i}", name, (str(kind),), "output", "output"))
        if value in made:
            edges.append(Arrow(made[value], f"out{i}", str(kind)))
    return Drawing(tuple(nodes), tuple(dict.fromkeys(edges)))


def to_svg(program: Program) -> str:
    """One SVG document."""
    return picture.to_document(graph_of(program), f"{program.name}: level1 graph")


def to_dot(program: Program) -> str:
    """DOT text of every op, groups as clusters, shapes on the edges, source locations as tooltips."""
    lines = [
        f"digraph {_quote(program.name)} {{",
        '  rankdir=TB; node [shape=box, style=rounded, fontname="monospace"]; edge [fontname="monospace", fontsize=9];',
    ]
    made: dict[SSAValue, str] = {}
    for i, (arg, (name, kind)) in enumerate(zip(program.block.args, program.inputs, strict=True)):
        made[arg] = f"in{i}"
        lines.append(f"  in{i} [label={_quote(name, str(kind))}, shape=ellipse];")
    lines += _dot_ops(program.block, made, "op", "  ")
    for i, (value, (name, kind)) in enumerate(zip(_returned(program), program.outputs, strict=True)):
        lines.append(f"  out{i} [label={_quote(name, str(kind))}, shape=ellipse];")
        if value in made:
            lines.append(f"  {made[value]} -> out{i} [label={_quote(str(kind))}];")
    return "\n".join([*lines, "}"]) + "\n"


def _returned(program: Program) -> Sequence[SSAValue]:
    end = program.block.last_op
    return list(end.operands) if end is not None else []


def _consts(operands: Sequence[SSAValue]) -> list[str]:
    found = [v for v in operands if isinstance(v.owner, level1.ConstOp)]
    return [str(level1.type_of(v)) for v in found]


def _node(name: str, operation: Operation) -> Box:
    loc = level1.loc_of(operation)
    named = tuple(filter(None, [in_the_model(loc)]))
    result = ", ".join(str(level1.type_of(r)) for r in operation.results)
    if isinstance(operation, level1.GroupOp):
        ops = [o.spec.mnemonic for o in operation.body.block.ops if isinstance(o, level1.TensorOp)]
        return Box(name, operation.label.data, (*named, *_rows(ops), result), loc, "group")
    return Box(name, _mnemonic(operation), (*named, *_rows(_consts(operation.operands)), result), loc)


def _rows(words: Sequence[str]) -> Iterator[str]:
    """Words joined into lines of about 30 characters."""
    row = ""
    for word in words:
        if row and len(row) + len(word) > 30:
            yield row
            row = ""
        row = f"{row} · {word}" if row else word
    if row:
        yield row


def _mnemonic(operation: Operation) -> str:
    return operation.name.removeprefix(level1.PREFIX)


def _dot_ops(block: Block, made: dict[SSAValue, str], prefix: str, indent: str) -> list[str]:
    """Lines for the ops of a block; `made` gains the DOT node of every value."""
    lines: list[str] = []
    for number, operation in enumerate(block.ops):
        if isinstance(operation, level1.ConstOp) or operation is block.last_op:
            continue
        name = f"{prefix}{number}"
        if isinstance(operation, level1.GroupOp):
            lines += _dot_group(operation, made, name, indent)
            continue
        text = _quote(_mnemonic(operation), *_consts(operation.operands))
        tip = level1.loc_of(operation) or _mnemonic(operation)
        lines.append(f"{indent}{name} [label={text}, tooltip={_quote(tip)}];")
        lines += _dot_edges(operation.operands, made, name, indent)
        made.update((result, name) for result in operation.results)
    return lines


def _dot_group(group: level1.GroupOp, made: dict[SSAValue, str], name: str, indent: str) -> list[str]:
    inner: dict[SSAValue, str] = {
        arg: made[value] for arg, value in zip(group.body.block.args, group.operands, strict=True) if value in made
    }
    body = _dot_ops(group.body.block, inner, f"{name}_", indent + "  ")
    end = group.body.block.last_op
    yielded: Mapping[SSAValue, SSAValue] = dict(zip(group.results, end.operands if end else (), strict=True))
    made.update((result, inner[value]) for result, value in yielded.items() if value in inner)
    # Edges from outside belong to the outer graph, or Graphviz would draw their tails inside the cluster.
    outside = [line for line in body if " -> " in line and f"{name}_" not in line.split(" -> ")[0]]
    head = f"{indent}subgraph cluster_{name} {{"
    label = f"{indent}  label={_quote(group.label.data)}; tooltip={_quote(level1.loc_of(group) or group.label.data)};"
    return [head, label, *(line for line in body if line not in outside), f"{indent}}}", *(s[2:] for s in outside)]


def _dot_edges(operands: Sequence[SSAValue], made: Mapping[SSAValue, str], name: str, indent: str) -> list[str]:
    sources = {v: made[v] for v in operands if v in made}
    return [f"{indent}{s} -> {name} [label={_quote(str(level1.type_of(v)))}];" for v, s in sources.items()]


def _quote(*lines: str) -> str:
    """A DOT string. Backslashes are doubled, since DOT gives sequences such as \\N a meaning."""
    safe = [visible(line, "\n").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for line in lines]
    return '"' + "\\n".join(safe) + '"'
