"""The renderer: text of single functions, and integer meaning proven by compiling it as C99 and as HLS C++."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith, func, math, memref
from xdsl.dialects.builtin import (
    Float32Type,
    FloatAttr,
    FunctionType,
    IntegerType,
    MemRefType,
    ModuleOp,
    StringAttr,
    UnitAttr,
    f32,
    i8,
    i32,
)
from xdsl.ir import Block, Region, SSAValue

from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.data import folder
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import Args, Handle, Role, annotate
from cuvil_hw.lower.emit import Emitter, Tables
from cuvil_hw.render.c import inline
from cuvil_hw.render.c.cfamily import render, render_functions, render_tables
from cuvil_hw.render.c.inline import writes
from cuvil_hw.render.c.lang import C99, HLS_CPP, Lang
from cuvil_hw.render.c.names import comment_lines
from cuvil_hw.render.c.scalar import float_text
from tests.support.level2_random import NATIVE, function

C_FLAGS = ["gcc", "-std=c99", "-w", "-O1", "-fwrapv", "-fPIC", "-shared"]
HLS_FLAGS = ["g++", "-std=c++14", "-w", "-O1", "-fwrapv", "-fPIC", "-shared"]
HLS_FLAGS += [f"-I{folder('hls')}", f"-I{folder('sim') / 'hls'}"]


def kernel(block: Block, name: str = "f", role: str = "kernel", args: tuple[str, ...] = ()) -> ModuleOp:
    block.add_op(func.ReturnOp())
    op = func.FuncOp(name, FunctionType.from_lists([a.type for a in block.args], []), Region(block))
    annotate(op, Role(role))
    if args:
        annotate(op, Args(args))
    module = ModuleOp([op])
    module.verify()
    return module


def body_of(module: ModuleOp, lang: Lang = C99) -> str:
    """The text between the braces of the only function."""
    text = render_functions(module, lang)
    return text[text.index("{\n", text.index("void f(")) + 2 : text.rindex("}")].rstrip()


def emitter(*types: Any) -> tuple[Emitter, tuple[SSAValue, ...]]:
    block = Block(arg_types=list(types))
    return Emitter(block, Tables(ConstantStore())), tuple(block.args)


def vector(element: Any, *shape: int) -> MemRefType[Any]:
    return MemRefType(element, list(shape))


# -- meaning: random functions, compiled ----------------------------------------------------------------------


def _container(width: int) -> Any:
    return getattr(np, f"int{next(b for b in NATIVE if width <= b)}")


@pytest.mark.parametrize(("lang", "flags"), [(C99, C_FLAGS), (HLS_CPP, HLS_FLAGS)], ids=["c99", "hls"])
def test_random_integer_functions_mean_the_same(lang: Lang, flags: list[str], tmp_path: Path) -> None:
    cases = [(f"f{seed}", *function(seed, f"f{seed}")) for seed in range(60)]
    module = ModuleOp([op for _, op, *_ in cases])
    module.verify()
    text = render(module, lang, {}).replace("static void f", "void f")
    if lang is HLS_CPP:  # ap_int<N> and its container have the same bytes in the simulator
        text = text.replace("\nvoid f", '\nextern "C" void f')
    source = tmp_path / ("f.c" if lang is C99 else "f.cpp")
    source.write_text(text)
    subprocess.run([*flags, "-o", "f.so", source.name], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    for name, _, widths, inputs, wanted in cases:
        arrays = [np.zeros(1, _container(w)) for w in widths]
        for array, number in zip(arrays, inputs, strict=False):
            array[0] = number
        getattr(library, name)(*[ctypes.c_void_p(a.ctypes.data) for a in arrays])
        assert [int(a[0]) for a in arrays[len(inputs) :]] == wanted, name


# -- text -----------------------------------------------------------------------------------------------------


def test_a_load_stays_before_a_store_to_the_same_memory() -> None:
    e, (x, y) = emitter(vector(i32, 4), vector(i32, 4))
    zero, one = e.const(0, "index"), e.const(1, "index")
    old = e.load(x, zero)
    e.store(e.load(y, zero), x, zero)
    e.store(old, y, one)
    assert body_of(kernel(e.block, args=("x", "y"))) == "  const int32_t x_v = x[0];\n  x[0] = y[0];\n  y[1] = x_v;"


def test_carried_values_are_assigned_as_if_at_once() -> None:
    """Fibonacci: (a, b) = (b, a + b) needs a temporary; the nest below it goes on with the same variable."""
    e, (y,) = emitter(vector(i32, 2))
    a, b = e.loop(10, "n", lambda i, v: (v[1], e.put(arith.AddiOp(v[0], v[1]))), [e.const(0, "i32"), e.const(1, "i32")])
    e.store(a, y, e.const(0, "index"))
    e.store(b, y, e.const(1, "index"))
    text = body_of(kernel(e.block, args=("y",)))
    assert "const int32_t next_acc = acc_1;" in text
    assert text.index("acc_1 = acc + acc_1;") < text.index("acc = next_acc;")


def test_nested_sums_share_one_variable() -> None:
    e, (x, y) = emitter(vector(f32, 3, 4), vector(f32, 1))

    def inner(i: SSAValue, acc: tuple[SSAValue, ...]) -> tuple[SSAValue, ...]:
        return e.loop(4, "j", lambda j, a: (e.put(arith.AddfOp(a[0], e.load(x, i, j))),), acc)

    e.store(e.loop(3, "i", inner, [e.const(0.0, "f32")])[0], y, e.const(0, "index"))
    assert body_of(kernel(e.block, args=("x", "y"))) == (
        "  float acc = 0.0f;\n"
        "  for (int i = 0; i < 3; ++i) {\n"
        "    for (int j = 0; j < 4; ++j) {\n"
        "      acc += x[i * 4 + j];\n"
        "    }\n"
        "  }\n"
        "  y[0] = acc;"
    )


def test_a_guarded_load_is_a_conditional_expression() -> None:
    e, (x, y) = emitter(vector(i8, 4), vector(i8, 4))

    def body(i: SSAValue, _: Any) -> None:
        inside = e.compare("lt", i, e.const(2, "index"))
        e.store(e.branch(inside, lambda: [e.load(x, i)], lambda: [e.const(0, "i8")])[0], y, i)

    e.loop(4, "i", body)
    module = kernel(e.block, args=("x", "y"))
    assert "y[i] = i < 2 ? x[i] : 0;" in body_of(module)
    assert "y[i] = i < 2 ? x[i] : ap_int<8>(0);" in body_of(module, HLS_CPP)


def test_deep_choices_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as deep, about twice the work."""
    steps: list[int] = []
    monkeypatch.setattr(inline, "writes", lambda op: steps.append(1) or writes(op))
    taken = []
    for depth in (12, 24):
        steps.clear()
        e, (x, y) = emitter(vector(i8, 64), vector(i8, 64))

        def element(e: Emitter, i: SSAValue, x: SSAValue, left: int) -> SSAValue:
            if not left:
                return e.load(x, i)
            here = e.compare("lt", i, e.const(64 - left, "index"))
            return e.branch(here, lambda: [e.load(x, i)], lambda: [element(e, i, x, left - 1)])[0]

        i = e.const(5, "index")
        e.store(element(e, i, x, depth), y, i)
        assert body_of(kernel(e.block, args=("x", "y"))).count("?") == depth
        taken.append(len(steps))
    assert taken[1] < 2.5 * taken[0]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda e, a, b: e.put(arith.SubfOp(a, e.put(arith.SubfOp(b, a)))), "a - (b - a)"),
        (lambda e, a, b: e.put(arith.SubfOp(e.put(arith.SubfOp(b, a)), a)), "b - a - a"),
        (lambda e, a, b: e.put(arith.MulfOp(e.put(arith.AddfOp(a, b)), b)), "(a + b) * b"),
        (lambda e, a, b: e.put(arith.AddfOp(a, e.put(arith.AddfOp(a, b)))), "a + (a + b)"),
        (lambda e, a, b: e.put(arith.NegfOp(e.put(arith.NegfOp(a)))), "-(-a)"),
        (lambda e, a, b: e.put(arith.DivfOp(a, e.put(arith.MulfOp(a, b)))), "a / (a * b)"),
        (lambda e, a, b: e.put(math.ExpOp(e.put(arith.MulfOp(a, b)))), "exp_f32(a * b)"),
        (lambda e, a, b: e.put(arith.MaximumfOp(a, b)), "maximum_f32(a, b)"),
    ],
)
def test_float_expressions_keep_their_grouping(build: Any, text: str) -> None:
    e, (a, b, y) = emitter(f32, f32, vector(f32, 1))
    e.store(build(e, a, b), y, e.const(0, "index"))
    body = body_of(kernel(e.block, args=("a", "b", "y")))
    assert f"y[0] = {text};" in body


def test_hls_pragmas_streams_and_dataflow() -> None:
    kind = level2.stream_type(IntegerType(4), 2)
    e, (source, sink) = emitter(kind, kind)
    word = e.alloca([2], "i4", "word", word=True)
    e.alloca([3, 5], "i20", "line", bind="bram", partition=[0], reshape=[1])

    def body(i: SSAValue, _: Any) -> None:
        e.do(level2.StreamReadOp(source, word))
        v = e.load(word, e.const(0, "index"))
        clipped = level2.SaturateOp(e.put(arith.AddiOp(v, v)), "i4", 7, IntegerType(4))
        e.store(e.put(clipped), word, e.const(1, "index"))
        e.do(level2.StreamWriteOp(sink, word))

    e.loop(8, "i", body, pipeline=1)
    text = render_functions(kernel(e.block, "relu", "process", ("source", "sink")), HLS_CPP)
    port = "hls::stream<cuvil::vec<ap_int<4>, 2>>&"
    assert f"static void relu({port} source, {port} sink)" in text
    assert "#pragma HLS pipeline II=1" in text
    assert "#pragma HLS array_partition variable=line complete dim=1" in text
    assert "#pragma HLS array_reshape variable=line complete dim=2" in text
    assert "ap_int<20> line[3][5];" in text
    assert "word = source.read();" in text
    assert "sink.write(word);" in text
    assert "cuvil::saturate<ap_int<4>, 7>(" in text


@pytest.mark.parametrize(("unroll", "pragmas"), [(False, []), (True, ["#pragma GCC unroll 16"])])
def test_a_pipeline_means_nothing_in_c(unroll: bool, pragmas: list[str]) -> None:
    e, (y,) = emitter(vector(i32, 4))
    e.loop(4, "i", lambda i, _: e.store(e.const(1, "i32"), y, i), pipeline=1, unroll=unroll)
    lines = render_functions(kernel(e.block), C99).splitlines()
    assert [line.strip() for line in lines if "#pragma" in line] == pragmas
    streaming = kernel(Block(arg_types=[level2.stream_type(i8, 1)]))
    with pytest.raises(CuvilError, match="C99 has no streams"):
        render_functions(streaming, C99)


def test_trunc_to_an_odd_width_wraps_without_undefined_shifts() -> None:
    e, (x, y) = emitter(vector(i32, 1), vector(IntegerType(20), 1))
    zero = e.const(0, "index")
    e.store(e.put(arith.TruncIOp(e.load(x, zero), IntegerType(20))), y, zero)
    module = kernel(e.block, args=("x", "y"))
    assert body_of(module) == "  y[0] = (int32_t)((uint32_t)x[0] << 12) >> 12;"
    assert body_of(module, HLS_CPP) == "  y[0] = x[0];"  # ap_int<20> wraps on assignment


def test_names_that_the_language_reserves_are_changed() -> None:
    e, (x, y) = emitter(vector(f32, 1), vector(f32, 1))
    zero = e.const(0, "index")
    e.store(e.load(x, zero), y, zero)
    text = render_functions(kernel(e.block, "for", args=("int", "expf")), C99)
    assert "static void for_1(const float *restrict int_1, float *restrict expf_1) {" in text


def test_comments_cannot_swallow_the_next_line() -> None:
    assert comment_lines("a\\\nb??/\nç") == ["// a_", "// b_/", "// _"]


VALUES = [0.1, 1.0, -2.5e-8, 3.4028234e38, 1e-45, float("inf"), float("-inf"), -0.0, 16777217.0]


@pytest.mark.parametrize("value", VALUES)
def test_float_literals_read_back_exactly(value: float) -> None:
    single = float(np.float32(value))
    text = float_text(single, 32)
    numbers = {"INFINITY": np.inf, "-INFINITY": -np.inf}
    back = numbers[text] if text in numbers else np.float32(text.removesuffix("f"))
    assert np.float32(back).tobytes() == np.float32(value).tobytes()
    assert text in numbers or "." in text or "e" in text


# -- tables ---------------------------------------------------------------------------------------------------


def _table(array: Any, dtype: str, lang: Lang = C99) -> str:
    store = ConstantStore()
    tables = Tables(store)
    tables.add(np.asarray(array), dtype, "t")
    return render_tables(ModuleOp(list(tables.ops)), lang, store)


def test_tables_keep_values_exactly(tmp_path: Path) -> None:
    lowest = -(1 << 63)
    parts = [
        _table(np.array([[1, -2], [3, 4]], np.int8), "i8"),
        _table(np.array([lowest, 1 << 40], np.int64), "i64").replace(" t[", " u["),
        _table(np.array([0.1, np.inf, -np.nan], np.float32), "f32").replace(" t[", " v["),
        _table(np.array([200, 7], np.uint8), "u8").replace(" t[", " w["),
        _table(np.array([15, 7], np.uint8), "u4").replace(" t[", " z["),
    ]
    assert parts[0] == "static const int8_t t[2][2] = {{1, -2}, {3, 4}};\n"
    main = r"""
int main(void) {
  printf("%d %" PRId64 " %" PRId64 " %a %a ", t[1][0], u[0], u[1], v[0], v[1]);
  printf("%d %d %d %d", v[2] != v[2], w[0], z[0], z[1]);
  return 0;
}"""
    headers = "#include <inttypes.h>\n#include <math.h>\n#include <stdint.h>\n#include <stdio.h>\n"
    (tmp_path / "t.c").write_text(headers + "".join(parts) + main)
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", "-o", "t", "t.c"], cwd=tmp_path, check=True)
    shown = subprocess.run([tmp_path / "t"], capture_output=True, text=True, check=True).stdout
    assert shown == f"3 {lowest} {1 << 40} 0x1.99999ap-4 inf 1 -56 -1 7"


def test_big_tables_print_in_short_lines() -> None:
    data = np.random.default_rng(0).integers(-128, 128, (300, 1000), np.int8)
    text = _table(data, "i8", HLS_CPP)
    assert max(map(len, text.splitlines())) <= 110
    numbers = text[text.index("=") :].translate(str.maketrans("{};=", "    ")).replace(",", " ").split()
    assert np.array_equal(np.array(numbers, np.int64).reshape(data.shape), data)


def test_a_table_that_does_not_fit_its_constant_is_refused() -> None:
    op = memref.GlobalOp.get(StringAttr("t"), vector(i8, 3), UnitAttr())
    with pytest.raises(CuvilError, match=r"table t has no cuvil.handle"):
        render_tables(ModuleOp([op]), C99, {})
    annotate(op, Handle("d"))
    with pytest.raises(CuvilError, match=r"declared \(3,\), its constant has shape \(2,\)"):
        render_tables(ModuleOp([op.clone()]), C99, {"d": np.zeros(2, np.int8)})


def test_an_op_outside_level2_is_named() -> None:
    e, (x,) = emitter(vector(f32, 1))
    zero = e.const(0, "index")
    value = arith.ConstantOp(FloatAttr(1.0, Float32Type()))
    e.do(value)
    e.store(e.put(math.FPowIOp(value.result, e.const(3, "i32"))), x, zero)
    with pytest.raises(CuvilError, match=r"level2 op math.fpowi can't be rendered as C99"):
        render_functions(kernel(e.block), C99)


def test_a_statement_if_assigns_its_results() -> None:
    e, (x, y) = emitter(vector(f32, 4), vector(f32, 1))
    zero = e.const(0, "index")

    def summed() -> list[SSAValue]:
        return list(e.loop(4, "i", lambda i, a: (e.put(arith.AddfOp(a[0], e.load(x, i))),), [e.const(0.0, "f32")]))

    cond = e.put(arith.CmpfOp(e.load(x, zero), e.const(0.0, "f32"), "olt"))
    result = e.branch(cond, summed, lambda: [e.const(1.0, "f32")])
    e.store(result[0], y, zero)
    text = body_of(kernel(e.block, args=("x", "y")))
    assert "if (x[0] < 0.0f) {" in text
    assert "t = acc;" in text
    assert "} else {\n    t = 1.0f;\n  }\n  y[0] = t;" in text
