"""The top function of a temporal design: a loop over the table of passes that calls one instance of each unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import IntegerType, MemRefType, ModuleOp
from xdsl.dialects.func import FuncOp

from cuvil_hw.adapters.temporal.descriptor import COMBINE, CONVOLVE, FIRST_LOOP
from cuvil_hw.adapters.temporal.engine import Engine
from cuvil_hw.render.c.cfamily import render_functions, symbols
from cuvil_hw.render.c.lang import C99, CPP_KEYWORDS, Lang
from cuvil_hw.render.c.scalar import declared

# Loop nests in native types: they read and write memory, whose elements have native sizes.
NESTS: Lang = replace(
    C99, name="C++", pointer="{const}{type} *{name}", keywords=C99.keywords | CPP_KEYWORDS,
    pipeline="#pragma HLS pipeline II={ii}", hints_first=False,
    own_f32={},
)  # fmt: skip
ENGINE_PORTS = ("weights", "source", "target")
_BURSTS = "max_read_burst_length=256 max_write_burst_length=256 num_read_outstanding=8 num_write_outstanding=8"


def memory_types(module: ModuleOp) -> dict[str, str]:
    """Name of the port for each C type that the loop nests read or write, by that type."""
    found = {}
    for function in (op for op in module.body.block.ops if isinstance(op, FuncOp)):
        for arg in function.body.block.args:
            assert isinstance(arg.type, MemRefType)
            kind = declared(arg.type.element_type, NESTS)
            found[kind] = f"as_{kind.removesuffix('_t')}"
    return dict(sorted(found.items()))


def top(
    module: ModuleOp,
    engine: Engine | None,
    passes: int,
    name: str,
    units: Sequence[int],
    around: Mapping[int, int],
) -> str:
    """`units`: those that the passes use; what none needs isn't built. `around`: cycles of each loop nest outside of
    its innermost loops, for the simulator."""
    typed = memory_types(module)
    ports = ["const cuvil::engine::word *weights", "const cuvil::engine::word *source", "cuvil::engine::word *target"]
    ports += [f"{kind} *{port}" for kind, port in typed.items()]
    pragmas = [f"#pragma HLS interface m_axi port={port} offset=slave bundle={port} {_BURSTS}" for port in ENGINE_PORTS]
    pragmas += [f"#pragma HLS interface m_axi port={port} offset=slave bundle=nests" for port in typed.values()]
    pragmas += [f"#pragma HLS interface s_axilite port={port}" for port in (*ENGINE_PORTS, *typed.values(), "return")]
    cases = []
    if engine is not None and CONVOLVE in units:
        e = engine
        sizes = f"{e.outputs}, {e.inputs}, {e.lanes}, {e.features}, {e.weights}, {e.results}"
        cases.append((CONVOLVE, f"cuvil::engine::convolve<{sizes}>(p, weights, source, target);"))
    if engine is not None and COMBINE in units:
        cases.append((COMBINE, f"cuvil::engine::combine<{engine.lanes}>(p, weights, source, target);"))
    for n, call in enumerate(_calls(module, typed)):
        cases.append((FIRST_LOOP + n, f"CUVIL_AROUND_LOOPS({around[n]})\n                {call}"))
    body = "\n".join(
        f"            case {unit}:\n                {call}\n                break;" for unit, call in cases
    )
    return f"""void {name}({_wrapped(ports, 4)}) {{
{chr(10).join(pragmas)}
    for (int n = 0; n < {passes}; ++n) {{
        const cuvil::engine::pass p = cuvil::engine::read_pass(weights, n);
        switch (p.unit) {{
{body}
            default:
                break;
        }}
    }}
}}
"""


def _calls(module: ModuleOp, typed: Mapping[str, str]) -> list[str]:
    names = symbols(module, NESTS)
    calls = []
    for function in (op for op in module.body.block.ops if isinstance(op, FuncOp)):
        args = []
        for n, arg in enumerate(function.body.block.args):
            assert isinstance(arg.type, MemRefType)
            kind = declared(arg.type.element_type, NESTS)
            size = 1 if isinstance(arg.type.element_type, IntegerType) and arg.type.element_type.width.data <= 8 else 0
            args.append(f"{typed[kind]} + p.places[{n}]{'' if size else f' / sizeof({kind})'}")
        calls.append(f"{names[function.sym_name.data]}({_wrapped(args, 20)});")
    return calls


def _wrapped(parts: Sequence[str], indent: int) -> str:
    """On one line where that is short, else each on its own."""
    if sum(len(p) + 2 for p in parts) + indent < 100:
        return ", ".join(parts)
    start = "\n" + " " * indent
    return start + f",{start}".join(parts)


def nests(module: ModuleOp) -> str:
    return render_functions(module, NESTS)
