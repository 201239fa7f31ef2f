"""Counts what an emitted Vitis HLS source asks for: multipliers and memories of each process, read from the text alone.

Knows C++ as far as these sources use it, and nothing of the emitter. `count` gives, per function, every bound product
with the signed widths of its factors, and every array as the memories that pragmas make of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

_NATIVE = {f"{sign}int{bits}_t": bits + (sign == "u") for sign in ("", "u") for bits in (8, 16, 32, 64)}
_KIND = r"(?:ap_u?int<\d+>|u?int\d+_t|bool|float|int)"
_ARRAY = re.compile(rf"^(?:static const )?({_KIND}) (\w+)((?:\[\d+\])+)(?: = .*|;)$")
_WORD = re.compile(rf"^cuvil::vec<({_KIND}), (\d+)> (\w+);$")
_VALUE = re.compile(rf"^(?:const )?({_KIND}) (\w+) = (.*);$")
_LOOP = re.compile(r"^for \(.*< (\w+); .*\) \{$")
_FUNCTION = re.compile(r"^(?:static )?void (\w+)\((.*)\) \{$")
_PRAGMA = re.compile(r"^#pragma HLS (\w+) ?(.*)$")
_PAIR = re.compile(r"^const cuvil::products<\d+> \w+ = cuvil::multiply_pair<(\d+), (\d+), (\d+)>\(")
_FIFO = re.compile(rf"^hls::stream<cuvil::vec<({_KIND}), (\d+)>, (\d+)> (\w+)\(")


@dataclass(frozen=True)
class Multipliers:
    """`count` products of `a` by `b` bits, both signed. `impl`: as the pragma says."""

    impl: str
    count: int
    a: int
    b: int


@dataclass(frozen=True)
class Memories:
    """`count` memories of `words` words of `bits` bits. `impl`: as the pragma says, "" without one."""

    name: str
    impl: str
    words: int
    bits: int
    count: int = 1


@dataclass
class Counted:
    """What one function asks for. `loose`: products that no pragma binds; `calls`: arguments of each process."""

    multipliers: list[Multipliers] = field(default_factory=list)
    memories: list[Memories] = field(default_factory=list)
    fifos: list[Memories] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    calls: dict[str, list[str]] = field(default_factory=dict)


def count(source: str, tables: str) -> dict[str, Counted]:
    """By function of `source`; `tables` is the text of tables.h."""
    arrays = {
        m[2]: (m[1], _dims(m[3])) for line in tables.splitlines() if (m := _ARRAY.match(line.split(" = ")[0] + ";"))
    }
    return {name: _function(lines, arrays) for name, lines in _functions(source)}


def additions(tables: str) -> dict[str, int]:
    """Additions and subtractions of each function in the text of tables.h, but those that go into its results."""
    return {
        name: sum(len(re.findall(r" [+-] ", line)) for line in lines if not line.startswith("#"))
        for name, lines in _functions(tables)
    }


def _functions(source: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", []
    for line in source.splitlines():
        if found := _FUNCTION.match(line):
            name, lines = found[1], []
        elif line == "}" and name:
            yield name, lines
            name = ""
        elif name:
            lines.append(line.strip())


def _dims(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def _function(lines: list[str], tables: Mapping[str, tuple[str, list[int]]]) -> Counted:
    found, kinds, arrays = Counted(), {n: t for n, (t, _) in tables.items()}, dict(tables)
    used = set(re.findall(r"\w+", "\n".join(line for line in lines if not line.startswith("#"))))
    impl: dict[str, str] = {}
    gone: dict[str, set[int]] = {}
    wide: dict[str, set[int]] = {}
    reads: dict[str, int] = {}
    trips: list[int] = []
    unrolled: list[bool] = []
    products: dict[str, str] = {}
    local = []
    for line in lines:
        if line.startswith("CUVIL_"):
            if call := re.fullmatch(r"CUVIL_PROCESS\((\w+), \w+\((.*)\)\)", line):
                found.calls[call[1]] = call[2].split(", ")
            continue
        if found_fifo := _FIFO.match(line):
            kind, lanes, depth, name = found_fifo.groups()
            found.fifos.append(Memories(name, "", int(depth), int(lanes) * _bits(kind)))
        elif pragma := _PRAGMA.match(line):
            verb, rest = pragma.groups()
            options = dict(o.split("=", 1) for o in rest.split() if "=" in o)
            name = options.get("variable", "")
            match verb:
                case "bind_storage":
                    impl[name] = options["impl"]
                case "array_partition" | "array_reshape":
                    target = gone if verb == "array_partition" else wide
                    dim = int(options["dim"])
                    target.setdefault(name, set()).update([dim - 1] if dim else range(len(arrays[name][1])))
                case "unroll":
                    unrolled[-1] = True
                case "bind_op":
                    a, b = _factors(products.pop(name), kinds)
                    copies = prod(t for t, u in zip(trips, unrolled, strict=True) if u)
                    found.multipliers.append(Multipliers(options["impl"], copies, a, b))
        elif line.endswith("{") or line == "} else {":
            if line.startswith("}"):
                trips.pop(), unrolled.pop()
            loop = _LOOP.match(line)
            trips.append(int(loop[1]) if loop and loop[1].isdigit() else 1)
            unrolled.append(False)
        elif line == "}":
            trips.pop(), unrolled.pop()
        elif array := _ARRAY.match(line):
            kinds[array[2]], arrays[array[2]] = array[1], (array[1], _dims(array[3]))
            local.append(array[2])
        elif word := _WORD.match(line):
            kinds[word[3]] = word[1]
        elif pair := _PAIR.match(line):  # one product of S + B + 1 by A bits, in cuvil_hls.h
            a, b, s = map(int, pair.groups())
            copies = prod(t for t, u in zip(trips, unrolled, strict=True) if u)
            found.multipliers.append(Multipliers("dsp", copies, a, b + s + 1))
        else:
            value = _VALUE.match(line)
            if value:
                kinds[value[2]] = value[1]
            by_data = re.findall(r"(\w+)\[", line)
            for name in by_data:
                copies = prod(t for t, u in zip(trips, unrolled, strict=True) if u)
                reads[name] = max(reads.get(name, 1), copies)
            bare = _without_indices(line)
            if " * " in bare and not line.startswith("const int "):
                if value and value[2].startswith("product"):
                    products[value[2]] = value[3]
                else:
                    found.loose.append(line)
    found.loose += products.values()
    for name in [*local, *(t for t in tables if t in used)]:
        kind, shape = arrays[name]
        apart, beside = gone.get(name, set()), wide.get(name, set())
        words = prod(n for d, n in enumerate(shape) if d not in apart | beside)
        bits = prod(shape[d] for d in beside) * _bits(kind)
        copies = prod(shape[d] for d in apart)
        if name in tables and not beside and not apart:  # every lane reads a place of its own, two ports each
            copies = -(-reads.get(name, 1) // 2)
        if words > 1:
            found.memories.append(Memories(name, impl.get(name, ""), words, bits, copies))
    found.fifos = [Memories(f.name, impl.get(f.name, ""), f.words, f.bits) for f in found.fifos]
    return found


def _without_indices(line: str) -> str:
    while "[" in line:
        line, before = re.sub(r"\[[^\[\]]*\]", "", line), line
        if line == before:
            break
    return line


def _bits(kind: str) -> int:
    """Bits of an element in a memory."""
    if kind in ("bool", "float", "int"):
        return {"bool": 1, "float": 32, "int": 32}[kind]
    number = re.search(r"\d+", kind)
    assert number is not None
    return int(number[0])


def _factors(text: str, kinds: Mapping[str, str]) -> tuple[int, int]:
    """Signed widths of both sides of a product."""
    sides, depth, start = [], 0, 0
    wrapped = re.fullmatch(r"ap_u?int<\d+>\((.*)\)", text)
    if wrapped and _balanced(wrapped[1]) and " * " in _top(wrapped[1]):
        text = wrapped[1]
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if depth == 0 and text.startswith(" * ", i):
            sides.append(text[start:i])
            start = i + 3
    sides.append(text[start:])
    assert len(sides) == 2, text
    a, b = (_width(side, kinds) for side in sides)
    return a, b


def _top(text: str) -> str:
    """The text outside all parentheses and brackets."""
    while (inner := re.sub(r"[(\[][^()\[\]]*[)\]]", "", text)) != text:
        text = inner
    return text


def _balanced(text: str) -> bool:
    depth = 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if depth < 0:
            return False
    return depth == 0


def _width(text: str, kinds: Mapping[str, str]) -> int:
    """Bits of a factor as a signed number."""
    text = text.strip()
    if re.fullmatch(r"-?\d+(?:LL)?", text):
        value = int(text.removesuffix("LL"))
        return (value if value >= 0 else ~value).bit_length() + 1
    named = re.match(r"(ap_u?int<\d+>)\(", text) or re.match(r"(\w+)", text)
    assert named is not None, text
    kind = kinds.get(named[1], named[1])
    if kind in _NATIVE:
        return _NATIVE[kind]
    assert kind.startswith("ap_"), f"no width of {text}"
    return _bits(kind) + kind.startswith("ap_uint")
