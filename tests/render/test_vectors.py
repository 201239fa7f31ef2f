"""Vectors of C: what single instructions do on some processors means the same everywhere."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import func, vector
from xdsl.dialects.builtin import FunctionType, MemRefType, ModuleOp, VectorType, f32, f64, i32
from xdsl.ir import Block, Region

from cuvil_hw.adapters.cpu.device import CPU_FLAGS
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import Args, Role, annotate
from cuvil_hw.lower.emit import Emitter, Tables
from cuvil_hw.render.c.cfamily import render
from cuvil_hw.render.c.lang import C99
from cuvil_hw.runtime.compilers import cpu_flags

WIDE = {"i32": (i32, np.int32), "f32": (f32, np.float32), "f64": (f64, np.float64)}
CASES = [
    (narrow, wide, lanes)
    for narrow, wide, lanes in itertools.product(("i8", "u8", "i16", "u16"), WIDE, (4, 8, 16))
    if lanes * (8 if wide == "f64" else 4) <= 64
]


def widening(name: str, narrow: str, wide: Any, lanes: int) -> func.FuncOp:
    """y = the lanes of x, widened."""
    stored = level2.signless(narrow)
    block = Block(arg_types=[MemRefType(stored, [lanes]), MemRefType(wide, [lanes])])
    e = Emitter(block, Tables(ConstantStore()))
    zero = [e.const(0, "index")]
    loaded = e.put(vector.LoadOp(block.args[0], zero, VectorType(stored, [lanes])))
    widened = e.put(level2.WidenOp(loaded, narrow, VectorType(wide, [lanes])))
    e.do(vector.StoreOp(widened, block.args[1], zero))
    block.add_op(func.ReturnOp())
    op = func.FuncOp(name, FunctionType.from_lists([a.type for a in block.args], []), Region(block))
    annotate(op, Role("kernel"))
    annotate(op, Args(("x", "y")))
    return op


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_widened_lanes_keep_their_values(march: str, tmp_path: Path) -> None:
    if not set(CPU_FLAGS.get(march, ())) <= set(cpu_flags()):
        pytest.skip(f"this processor isn't {march}")
    module = ModuleOp([widening(f"f{n}", a, WIDE[b][0], lanes) for n, (a, b, lanes) in enumerate(CASES)])
    module.verify()
    (tmp_path / "f.c").write_text(render(module, C99, {}).replace("static void f", "void f"))
    command = ["gcc", "-std=gnu99", "-w", "-O2", f"-march={march}", "-fPIC", "-shared", "-o", "f.so", "f.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    for n, (narrow, wide, lanes) in enumerate(CASES):
        dtype = np.dtype(narrow.replace("u", "uint") if narrow[0] == "u" else narrow.replace("i", "int"))
        limits = np.iinfo(dtype)
        x = np.linspace(limits.min, limits.max, lanes).astype(dtype)
        y = np.zeros(lanes, WIDE[wide][1])
        getattr(library, f"f{n}")(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data))
        np.testing.assert_array_equal(y, x.astype(y.dtype), err_msg=f"{lanes} lanes of {narrow} as {wide}")
