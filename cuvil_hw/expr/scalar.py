"""The operators of scalar expressions, one row each, with everything that Cuvil knows about one.

A new operator is a new row. A row may leave columns out: code that needs one then gets a CuvilError that names the
operator, the column and the target. No value of another operator is used instead.

Where the costs come from; they rank schedules and are no measurements:

- `cpu`: cycles of one operation, reciprocal throughput, in the order of magnitude of the tables that Agner Fog
  publishes for cores with two vector pipes; a `CallCost` goes to the C library once per element. Those of tan, atan,
  log1p and expm1 lie between their neighbours as glibc's scalar f32 functions do (measured over [0, 3] with gcc -O2,
  glibc 2.36 on a Xeon: exp, log, sin, cos 3 ns, atan 6, log1p 7, expm1 9, tanh, erf, tan 12).
- `gpu`: results per clock and SM relative to f32 additions, in the order of magnitude of "arithmetic instructions" in
  the CUDA C++ Programming Guide; tan, atan, log1p and expm1: analytic, not checked.
- `mlu`: operations on the scalar unit, all counted alike: analytic, not checked; Cambricon publishes nothing.
- `cores`: the f32 cores on an FPGA that an operator uses one after the other (adapters give their cost); a function
  without a core of its own is a range reduction and a polynomial: analytic, not checked, no vendor's implementation.
- `logic`: the kind of integer circuit, which sets its size on an FPGA; analytic, not checked. "free": not counted,
  it shares LUTs with what reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cuvil_hw.errors import CuvilError

Column = Literal["numpy", "signed", "unsigned", "real", "c", "cpu", "gpu", "mlu", "cores", "logic"]
Cores = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallCost:
    """Cycles of a library function, which has no vector form."""

    cycles: float


@dataclass(frozen=True, slots=True)
class Scalar:
    """One operator.

    Attributes:
        numpy: its meaning on arrays (integers wrap, bool is logic).
        signed, unsigned, real: the level2 op for operands of these types; None if it takes several ops (lower/emit.py).
        c: what C calls the level2 op on floats: an operator, or the function for double, to which a language adds its
            prefix or suffix (`Lang.math_f32`).

    The costs are described at the top of this module.
    """

    name: str
    numpy: Callable[..., Any] | None
    signed: str | None = None
    unsigned: str | None = None
    real: str | None = None
    c: str | None = None
    cpu: float | CallCost | None = None
    gpu: float | None = None
    mlu: float | None = None
    cores: Cores | None = None
    logic: str | None = None


def erf(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Error function: the C library's in f64, rounded to x's dtype."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype(np.float64)), np.float64).astype(x.dtype)


def _power(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # 0-d operands would take a shortcut through sqrt, which has other rules at -infinity
    return np.asarray(np.power(a.reshape(-1), b.reshape(-1)).reshape(a.shape))


def _cores(names: str, steps: int = 0) -> Cores:
    """`names`, followed by the cores of `steps` steps of a polynomial."""
    return (*names.split(), *("mul", "add") * steps)


NONE: Cores = ()
COMPARE: Cores = ("compare",)
_ROWS = (
    # name, numpy, level2 on signed and unsigned integers and on floats, C; cpu, gpu, mlu; cores of floats, logic
    Scalar("add", np.add, "arith.addi", "arith.addi", "arith.addf", "+", 1, 1, 1, ("add",), "adder"),
    Scalar("sub", np.subtract, "arith.subi", "arith.subi", "arith.subf", "-", 1, 1, 1, ("add",), "adder"),
    Scalar("mul", np.multiply, "arith.muli", "arith.muli", "arith.mulf", "*", 1, 1, 1, ("mul",), "product"),
    Scalar("div", np.divide, "arith.divsi", "arith.divui", "arith.divf", "/", 4, 10, 1, ("div",), "divider"),
    Scalar("floordiv", np.floor_divide, "arith.floordivsi", "arith.divui", None, None, 8, 16, 1, None, "divider"),
    Scalar("mod", np.mod, None, "arith.remui", None, None, 8, 20, 1, _cores("div round mul add compare"), "divider"),
    Scalar("rem", np.fmod, "arith.remsi", "arith.remui", "arith.remf", "fmod", 8, 16, 1, _cores("div round mul add"),
           "divider"),
    Scalar("min", np.minimum, "arith.minsi", "arith.minui", "arith.minimumf", None, 1, 1, 1, COMPARE * 2, "adder"),
    Scalar("max", np.maximum, "arith.maxsi", "arith.maxui", "arith.maximumf", None, 1, 1, 1, COMPARE * 2, "adder"),
    Scalar("pow", _power, None, None, "math.powf", "pow", CallCost(40), 40, 1, _cores("log mul exp")),
    Scalar("and", np.bitwise_and, "arith.andi", "arith.andi", None, "&", 1, 1, 1, None, "adder"),
    Scalar("or", np.bitwise_or, "arith.ori", "arith.ori", None, "|", 1, 1, 1, None, "adder"),
    Scalar("xor", np.bitwise_xor, "arith.xori", "arith.xori", None, "^", 1, 1, 1, None, "adder"),
    Scalar("shl", np.left_shift, "arith.shli", "arith.shli", None, "<<", 1, 1, 1, None, "shift"),
    Scalar("shr", np.right_shift, "arith.shrsi", "arith.shrui", None, ">>", 1, 1, 1, None, "shift"),
    Scalar("eq", np.equal, None, None, None, "==", 1, 1, 1, COMPARE, "free"),
    Scalar("ne", np.not_equal, None, None, None, "!=", 1, 1, 1, COMPARE, "free"),
    Scalar("lt", np.less, None, None, None, "<", 1, 1, 1, COMPARE, "free"),
    Scalar("le", np.less_equal, None, None, None, "<=", 1, 1, 1, COMPARE, "free"),
    Scalar("gt", np.greater, None, None, None, ">", 1, 1, 1, COMPARE, "free"),
    Scalar("ge", np.greater_equal, None, None, None, ">=", 1, 1, 1, COMPARE, "free"),
    Scalar("neg", np.negative, None, None, "arith.negf", "-", 1, 1, 1, NONE, "free"),
    Scalar("abs", np.abs, None, None, "math.absf", "fabs", 1, 1, 1, NONE, "free"),
    Scalar("not", np.invert, None, None, None, "~", 1, 1, 1, None, "free"),
    Scalar("isnan", np.isnan, None, None, None, None, 1, 1, 1, COMPARE),
    Scalar("isinf", np.isinf, None, None, None, None, 1, 1, 1, COMPARE),
    Scalar("floor", np.floor, None, None, "math.floor", "floor", 1, 1, 1, ("round",)),
    Scalar("ceil", np.ceil, None, None, "math.ceil", "ceil", 1, 1, 1, ("round",)),
    Scalar("round", np.rint, None, None, "math.roundeven", "rint", 1, 1, 1, ("round",)),
    Scalar("sqrt", np.sqrt, None, None, "math.sqrt", "sqrt", 5, 8, 1, ("sqrt",)),
    Scalar("exp", np.exp, None, None, "math.exp", "exp", CallCost(20), 10, 1, ("exp",)),
    Scalar("log", np.log, None, None, "math.log", "log", CallCost(20), 10, 1, ("log",)),
    Scalar("expm1", np.expm1, None, None, "math.expm1", "expm1", CallCost(25), 20, 1, _cores("exp add")),
    Scalar("log1p", np.log1p, None, None, "math.log1p", "log1p", CallCost(25), 20, 1, _cores("add log")),
    Scalar("tanh", np.tanh, None, None, "math.tanh", "tanh", CallCost(30), 20, 1, _cores("exp add add div")),
    Scalar("sigmoid", None, None, None, None, None, CallCost(25), 20, 1, _cores("exp add div")),
    Scalar("erf", erf, None, None, "math.erf", "erf", CallCost(30), 20, 1, _cores("exp div", 5)),
    Scalar("sin", np.sin, None, None, "math.sin", "sin", CallCost(25), 20, 1, _cores("round", 6)),
    Scalar("cos", np.cos, None, None, "math.cos", "cos", CallCost(25), 20, 1, _cores("round", 6)),
    Scalar("tan", np.tan, None, None, "math.tan", "tan", CallCost(30), 30, 1, _cores("round div", 12)),
    Scalar("atan", np.arctan, None, None, "math.atan", "atan", CallCost(25), 20, 1, _cores("div", 6)),
    # Conversions; which cores a cast takes depends on both types (adapters/streaming/analysis/floats.py).
    Scalar("cast", None, cpu=1, gpu=1, mlu=1, logic="free"),
    Scalar("bitcast", None, cpu=1, gpu=1, mlu=1, cores=NONE, logic="free"),
    Scalar("saturate", None, cpu=1, gpu=1, mlu=1, logic="adder"),
)  # fmt: skip

SCALARS: Mapping[str, Scalar] = {row.name: row for row in _ROWS}


def scalar(name: str) -> Scalar:
    """The row of an operator. Raises CuvilError for a name that isn't one."""
    if name not in SCALARS:
        raise CuvilError(f"{name!r} is no operator of scalar expressions; there are: {', '.join(SCALARS)}")
    return SCALARS[name]


def on_arrays(name: str) -> Callable[..., Any]:
    """The meaning of an operator on NumPy arrays."""
    found: Callable[..., Any] = column(name, "numpy", "NumPy")
    return found


def column(name: str, which: Column, target: str) -> Any:
    """The value of one column of an operator's row, for `target` (a name for messages). Raises CuvilError if the row
    has none."""
    if (found := getattr(scalar(name), which)) is None:
        raise CuvilError(
            f"scalar operator {name!r} has no {which!r} in its table (expr/scalar.py), which {target} needs"
        )
    return found
