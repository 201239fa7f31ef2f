"""Text of a library's header and of the functions around the generated code. Imports NumPy only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from cuvil_hw import dtypes
from cuvil_hw.contract.calling import Range
from cuvil_hw.contract.device import Port
from cuvil_hw.contract.native import Native, Origin
from cuvil_hw.contract.record import port_bytes
from cuvil_hw.dtypes import to_numpy

ALIGN = 64  # of scratch memory and of constants: a cache line, and the widest vector
_CONTAINERS = {"float32": "float", "float64": "double", "bool": "bool"}


def identifier(text: str) -> str:
    """A C identifier from a file's name: what no identifier has becomes "_"."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name[:1].isalpha() else f"m{name}"


def literal(text: str) -> str:
    """A C string. Outside text may stand in it: all but plain characters becomes octal escapes of its UTF-8, and "?",
    which could start a trigraph, too."""
    plain = "".join(
        chr(b) if chr(b).isalnum() or chr(b) in " _-.,:;()[]<>=/+*" else f"\\{b:03o}" for b in text.encode()
    )
    return f'"{plain}"'


def type_of(dtype: str) -> str:
    """The C type of an element. Narrow floats are their bits: not every C compiler has such a type."""
    kind = to_numpy(dtype)
    fallback = f"{'u' if kind.kind != 'i' else ''}int{kind.itemsize * 8}_t"
    return _CONTAINERS.get(kind.name, fallback)


@dataclass(frozen=True, slots=True)
class Places:
    """What lies where.

    Attributes:
        workspace: bytes of the generated code's scratch memory, at the start of the arena.
        constants: of the generated code, in order: their offsets among all constants.
        named: likewise, of constants that the functions around it use, by name, and of first states, by input.
    """

    workspace: int
    constants: tuple[int, ...]
    named: Mapping[str, int] = field(default_factory=dict)

    def guards(self, native: Native) -> dict[str, int]:
        """Where in the arena the guards of a call lie; they are no outputs for callers."""
        sizes = {p.name: port_bytes(p) for p in native.outputs}
        at, found = -(-self.workspace // ALIGN) * ALIGN, {}
        for guard in native.calling.guards:
            found[guard.output] = at
            at += sizes[guard.output]
        return found

    def arena(self, native: Native) -> int:
        """Bytes that a caller gives: whatever their address, an aligned arena lies in them."""
        sizes = {p.name: port_bytes(p) for p in native.outputs}
        guards = self.guards(native)
        end = max((at + sizes[name] for name, at in guards.items()), default=self.workspace)
        return end + ALIGN - 1 if end else 0


def returned(native: Native) -> list[Port]:
    """The outputs that a caller gets: state and what is written into inputs among them, guards not."""
    guards = {g.output for g in native.calling.guards}
    return [p for p in native.outputs if p.name not in guards]


def header(native: Native, places: Places, levels: Sequence[str], about: Sequence[str]) -> str:
    """`levels`: instruction sets that there is code for. `about`: lines of the comment at its start, already safe."""
    name = identifier(native.stem)
    big, outs = name.upper(), returned(native)
    lines = [
        f"#ifndef {big}_H", f"#define {big}_H", "",
        *(f"// {line}" for line in about), "",
        "#include <stdbool.h>", "#include <stddef.h>", "#include <stdint.h>", "",
        f"#define {big}_ARENA_BYTES {places.arena(native)}",
        f"#define {big}_INPUTS {len(native.inputs)}",
        f"#define {big}_OUTPUTS {len(outs)}",
        f"#define {big}_LEVELS {len(levels)}", "",
    ]  # fmt: skip
    states = {s.output: s.input for s in native.calling.states}
    writes = {w.output: w.input for w in native.calling.writes}
    index = {p.name: n for n, p in enumerate(native.inputs)}
    for what, ports in (("INPUT", native.inputs), ("OUTPUT", outs)):
        for n, port in enumerate(ports):
            lines += _port_lines(f"{big}_{what}_{n}", port)
            if what == "OUTPUT" and port.name in states:
                lines.append(f"// State: give it as input {index[states[port.name]]} of the next call.")
            if what == "OUTPUT" and port.name in writes:
                lines.append(f"// What the model writes into input {index[writes[port.name]]}.")
            lines.append("")
    lines += [
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        f"typedef struct {name}_port {{", "  const char *name;", "  const char *dtype;", "  int rank;",
        "  const int64_t *shape;", "  size_t bytes;", f"}} {name}_port;", "",
        "// Computes one sample. in, out: an array for each input and output, in order, row by row, aligned as their",
        "// element type; they must not overlap. arena: memory for this call alone; NULL if it needs none. Calls with",
        "// arenas of their own may run at the same time. Returns 0, or a number of which the next function gives the",
        "// meaning.",
        f"int {name}_run(const void *const *in, void *const *out, void *arena);",
        f"const char *{name}_error(int code);", "",
        "// Bytes of an arena, of any alignment.",
        f"size_t {name}_arena_bytes(void);", "",
        "// What the constants above say, for callers without this header. NULL for a number that there isn't.",
        f"int {name}_inputs(void);", f"int {name}_outputs(void);",
        f"const {name}_port *{name}_input(int number);", f"const {name}_port *{name}_output(int number);", "",
        "// The first value of an input that is state; NULL for other inputs.",
        f"const void *{name}_initial(int input);", "",
        "// There may be code for several instruction sets, numbered from the lowest. Integers have the same bits from",
        "// all; float sums are rounded once a product where the processor can, and twice elsewhere. The highest that",
        "// this processor has is taken; tests may select another. select returns 0, or -1 for a level that the",
        "// processor or the library hasn't.",
        f"const char *{name}_level_name(int level);",
        f"int {name}_level(void);",
        f"int {name}_select(int level);", "",
        "#ifdef __cplusplus", "}", "#endif", "", "#endif", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _port_lines(start: str, port: Port) -> list[str]:
    shape = ", ".join(map(str, port.shape))
    return [
        f"#define {start}_NAME {literal(port.name)}",
        f"#define {start}_DTYPE {literal(port.dtype)}",
        f"#define {start}_TYPE {type_of(port.dtype)}",
        f"#define {start}_RANK {len(port.shape)}",
        f"#define {start}_SHAPE {{{shape}}}",
        f"#define {start}_SIZE {prod(port.shape)}",
        f"#define {start}_BYTES {port_bytes(port)}",
    ]


def source(native: Native, places: Places, blob: str, levels: Sequence[str], probe: str) -> str:
    """The functions of the header. `blob`: definition of NAME_data, the constants. `probe`: of `highest`
    (levels.py)."""
    name = identifier(native.stem)
    outs = returned(native)
    errors = [f"input {r.input} is an index from {r.low} to {r.high}" for r in native.calling.ranges]
    errors += [guard.message for guard in native.calling.guards]
    return "\n".join(
        [
            f'#include "{native.stem}.h"', "", "#include <string.h>", "",
            "#define API __attribute__((visibility(\"default\")))", "",
            "typedef int Kernels(const void *const *, void *const *, const void *const *, void *);",
            *(f"Kernels {name}_kernels_{n};" for n in range(len(levels))), "",
            blob, "", probe, *_selection(name, levels),
            *_ports(name, "inputs", native.inputs), *_ports(name, "outputs", outs),
            f"API int {name}_run(const void *const *in, void *const *out, void *arena) {{",
            *(f"  {line}" for line in _body(native, places)), "}", "",
            f"API const char *{name}_error(int code) {{",
            *(f"  if (code == {n}) return {literal(text)};" for n, text in enumerate(errors, 1)),
            '  return code == 0 ? "" : "unknown";', "}", "",
            f"API size_t {name}_arena_bytes(void) {{ return {places.arena(native)}; }}", "",
            f"API const void *{name}_initial(int input) {{",
            *(f"  if (input == {n}) return {name}_data + {at};" for n, at in _initial(native, places)),
            "  (void)input;", "  return NULL;", "}", "",
        ]
    )  # fmt: skip


def _selection(name: str, levels: Sequence[str]) -> list[str]:
    """Threads that find out at the same time find the same."""
    return [
        f"static Kernels *const kernels[] = {{{', '.join(f'{name}_kernels_{n}' for n in range(len(levels)))}}};",
        "static int selected = -1;", "",
        f"API int {name}_level(void) {{",
        "  int level = __atomic_load_n(&selected, __ATOMIC_RELAXED);",
        "  if (level < 0) __atomic_store_n(&selected, level = highest(), __ATOMIC_RELAXED);",
        "  return level;", "}", "",
        f"API int {name}_select(int level) {{",
        f"  if (level < 0 || level >= {len(levels)} || level > highest()) return -1;",
        "  __atomic_store_n(&selected, level, __ATOMIC_RELAXED);", "  return 0;", "}", "",
        f"API const char *{name}_level_name(int level) {{",
        f"  static const char *const names[] = {{{', '.join(literal(x or 'default') for x in levels)}}};",
        f"  return level >= 0 && level < {len(levels)} ? names[level] : NULL;", "}", "",
    ]  # fmt: skip


def _initial(native: Native, places: Places) -> Iterator[tuple[int, int]]:
    index = {p.name: n for n, p in enumerate(native.inputs)}
    for state in native.calling.states:
        yield index[state.input], places.named[state.input]


def _ports(name: str, what: str, ports: Sequence[Port]) -> list[str]:
    rows = [
        f"  {{{literal(p.name)}, {literal(p.dtype)}, {len(p.shape)}, "
        f"(const int64_t[]){{{', '.join(map(str, p.shape)) or '0'}}}, {port_bytes(p)}}},"
        for p in ports
    ]
    one = what.removesuffix("s")
    return [
        *([f"static const {name}_port {what}[] = {{", *rows, "};"] if rows else []),
        f"API int {name}_{what}(void) {{ return {len(ports)}; }}", "",
        f"API const {name}_port *{name}_{one}(int number) {{",
        f"  return number >= 0 && number < {len(ports)} ? &{what}[number] : NULL;" if rows else "  (void)number;",
        *([] if rows else ["  return NULL;"]), "}", "",
    ]  # fmt: skip


def _body(native: Native, places: Places) -> Iterator[str]:
    name, guards = identifier(native.stem), places.guards(native)
    place = {p.name: f"out[{n}]" for n, p in enumerate(returned(native))}
    place |= {output: f"memory + {at}" for output, at in guards.items()}
    constants = ", ".join(f"{name}_data + {at}" for at in places.constants)
    if places.constants:
        yield f"const void *const constants[] = {{{constants}}};"
    else:
        yield "const void *const *constants = NULL;"
    yield f"char *memory = (char *)(((uintptr_t)arena + {ALIGN - 1}) & ~(uintptr_t){ALIGN - 1});"
    for code, bounds in enumerate(native.calling.ranges, 1):
        yield from _range(native, bounds, code)

    def value(wire: Origin) -> str:
        return f"in[{wire.at}]" if wire.source == "input" else f"{name}_data + {places.named[wire.constant]}"

    first: dict[int, str] = {}  # of each output of the device, where it is written
    copies = []
    for port, wire in zip(native.outputs, native.made, strict=True):
        if wire.source == "device" and wire.at not in first:
            first[wire.at] = place[port.name]
        else:
            origin = first[wire.at] if wire.source == "device" else value(wire)
            copies.append(f"memcpy({place[port.name]}, {origin}, {port_bytes(port)});")
    given = ", ".join(map(value, native.given))
    yield f"const void *const given[] = {{{given}}};" if given else "const void *const *given = NULL;"
    made = ", ".join(first[n] for n in sorted(first))
    yield f"void *const made[] = {{{made}}};" if made else "void *const *made = NULL;"
    if not native.inputs:
        yield "(void)in;"
    if not place:
        yield "(void)out;"
    yield f"int code = kernels[{name}_level()](given, made, constants, memory);"
    yield "if (code != 0) return -1;"
    yield from copies
    sizes = {p.name: port_bytes(p) for p in native.outputs}
    for code, guard in enumerate(native.calling.guards, 1 + len(native.calling.ranges)):
        yield f"for (int i = 0; i < {sizes[guard.output]}; ++i) {{"
        yield f"  if (!(memory + {guards[guard.output]})[i]) return {code};"
        yield "}"
    yield "return 0;"


def _range(native: Native, bounds: Range, code: int) -> Iterator[str]:
    """Refuses indices outside their range, before anything reads by them."""
    at = next(n for n, p in enumerate(native.inputs) if p.name == bounds.input)
    port = native.inputs[at]
    part = bounds.part or tuple((0, extent, 1) for extent in port.shape)
    stride, terms = prod(port.shape), []
    yield "{"
    yield f"  const {type_of(port.dtype)} *index = in[{at}];"
    for d, ((start, count, step), extent) in enumerate(zip(part, port.shape, strict=True)):
        stride //= max(extent, 1)
        yield f"  for (int64_t i{d} = 0; i{d} < {count}; ++i{d})"
        terms.append(f"({start} + i{d} * {step}) * {stride}")
    element = f"index[{' + '.join(terms) or '0'}]"
    tests = []
    low, high = dtypes.int_range(port.dtype)
    if bounds.low > low:
        tests.append(f"{element} < {bounds.low}")
    if bounds.high < high:
        tests.append(f"{element} > {bounds.high}")
    yield f"    if ({' || '.join(tests) or '0'}) return {code};"
    yield "}"
