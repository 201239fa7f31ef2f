"""What a level2 module may hold once an adapter has lowered it, for each kind of target; and how one is read as text.

A sequential module (processors, GPUs, MLUs) has functions of role "kernel", which a host calls one after another. A
streaming module (FPGAs) has processes and one function of role "dataflow" that joins them: every stream has one writer
and one reader, every process runs once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, func, gpu, math, memref, scf, vector
from xdsl.dialects.builtin import (
    Builtin,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    MemRefType,
    ModuleOp,
    VectorType,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import ANNOTATIONS, Comment, ElementType, Handle, Name, Port, Role, noted, text_of

_ARITH = (
    "addi subi muli divsi divui remsi remui floordivsi ceildivsi ceildivui andi ori xori shli shrsi shrui maxsi minsi "
    "maxui minui cmpi select extsi extui trunci index_cast addf subf mulf divf remf negf maximumf minimumf maxnumf "
    "minnumf cmpf extf truncf sitofp uitofp fptosi fptoui bitcast"
)
_MATH = (
    "absf acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf exp exp2 expm1 floor log log10 "
    "log1p log2 powf round roundeven rsqrt sin sinh sqrt tan tanh trunc absi"
)
SCALAR = frozenset(
    [*(f"arith.{n}" for n in _ARITH.split()), *(f"math.{n}" for n in _MATH.split()), "cuvil.level2.saturate"]
)


def _names(dialect: str, ops: str) -> frozenset[str]:
    return frozenset(f"{dialect}.{op}" for op in ops.split())


_COMPUTE = (
    SCALAR
    | {"arith.constant", "func.return"}
    | _names("scf", "for if yield")
    | _names("memref", "alloca load store get_global")
)
_THREADS = _names("gpu", "thread_id block_id block_dim grid_dim barrier") | _names(
    "cuvil.level2", "shuffle_xor load_word dot4 copy"
)
_VECTORS = _names("vector", "load store broadcast fma") | _names("cuvil.level2", "widen splat_pair add_pairs rescale")
_WORDS = _names("cuvil.level2", "stream_read stream_write multiply_pair add_products")
_JOINTS = _names("cuvil.level2", "stream axis_read axis_write") | _names("func", "call return")
# Where threads meet: all of a block, or all of a warp, have to get there.
_MEETING = frozenset(("gpu.barrier", "cuvil.level2.shuffle_xor"))


@dataclass(frozen=True, slots=True)
class LegalOps:
    """What a module may hold. `ops`: names of the ops that may stand in a function, by the function's role."""

    name: str
    ops: Mapping[str, frozenset[str]]


SEQUENTIAL = LegalOps("sequential", {"kernel": _COMPUTE | _THREADS | _VECTORS})
STREAMING = LegalOps("streaming", {"process": _COMPUTE | _WORDS, "dataflow": _JOINTS})


def legal_ops_of(module: ModuleOp) -> LegalOps:
    """The ops that are legal in a module, by its roles: STREAMING, if it joins processes."""
    return STREAMING if any(text_of(f, Role) in STREAMING.ops for f in functions(module)) else SEQUENTIAL


def functions(module: ModuleOp) -> list[func.FuncOp]:
    return [op for op in module.body.block.ops if isinstance(op, func.FuncOp)]


def legal(module: ModuleOp, allowed: LegalOps | None = None) -> None:
    """Check a module: its ops' own rules, its annotations, and that it holds `allowed` ops only (None: those of
    `legal_ops_of`). Raises CuvilError with the op, its place and the reason."""
    _valid(module)
    _annotations(module)
    allowed = allowed or legal_ops_of(module)
    tables = {op.sym_name.data: op.type for op in module.body.block.ops if isinstance(op, memref.GlobalOp)}
    for op in module.body.block.ops:
        if isinstance(op, func.FuncOp):
            _function(op, allowed, tables)
        elif isinstance(op, memref.GlobalOp):
            _table(op)
        else:
            raise _fault(op, "a module holds tables (memref.global) and functions (func.func)")
    if allowed is STREAMING:
        _joined(module)


def context() -> Context:
    """A context that can parse level2 text."""
    made = Context()
    for d in (
        Builtin,
        func.Func,
        arith.Arith,
        math.Math,
        memref.MemRef,
        scf.Scf,
        vector.Vector,
        gpu.GPU,
        level2.dialect(),
    ):
        made.load_dialect(d)
    return made


def parse(text: str) -> ModuleOp:
    """A legal module from MLIR text. Raises CuvilError with line, column and reason, or as `legal` does."""
    try:
        module = Parser(context(), text).parse_module()
    except (ParseError, VerifyException) as e:
        raise CuvilError("\n".join(["level2 text is not valid", str(e), *getattr(e, "__notes__", [])])) from e
    legal(module)
    return module


def place(op: Operation) -> str:
    """Where an op stands: loops, function, and what the function says of itself."""
    loops, at = [], op.parent_op()
    while at is not None and not isinstance(at, func.FuncOp):
        if isinstance(at, scf.ForOp):
            loops.append(text_of(at, Name) or "a loop")
        at = at.parent_op()
    inside = f" in loop {' / '.join(reversed(loops))}" if loops else ""
    if not isinstance(at, func.FuncOp):
        return inside
    comment = text_of(at, Comment).partition("\n")[0]
    return f"{inside} of @{at.sym_name.data}{f' ({comment})' if comment else ''}"


def _fault(op: Operation, why: str) -> CuvilError:
    who = f"@{op.sym_name.data}" if isinstance(op, func.FuncOp | memref.GlobalOp) else op.name
    return CuvilError(f"level2: {who}{place(op)}: {why}")


def _valid(module: ModuleOp) -> None:
    """The ops' own rules."""
    try:
        module.verify()
    except VerifyException as whole:
        for op in module.walk():
            try:
                op.verify(verify_nested_ops=False)
            except VerifyException as e:
                raise _fault(op, str(e).partition("\n")[0]) from e
        raise CuvilError(f"level2 is not valid: {whole}") from whole


def _annotations(module: ModuleOp) -> None:
    known = {a.name: a for a in ANNOTATIONS}
    for op in module.walk():
        for key, value in op.attributes.items():
            if not key.startswith("cuvil."):
                continue
            kind = known.get(key)
            if kind is None:
                raise _fault(op, f"there is no annotation {key}; there are {', '.join(known)}")
            if not isinstance(value, kind):
                raise _fault(op, f"{key} is {value}, not a #{key}")
            if kind.ON and not isinstance(op, kind.ON):
                raise _fault(op, f"{key} belongs to {', '.join(o.name for o in kind.ON)}")
            try:
                value.check(op)
            except VerifyException as e:
                raise _fault(op, str(e)) from e


def _table(op: memref.GlobalOp) -> None:
    if noted(op, Handle) is None or noted(op, ElementType) is None:
        raise _fault(op, f"a table says by {Handle.name} and {ElementType.name} which constant it holds")
    kind, dtype = op.type, text_of(op, ElementType)
    if not isinstance(kind, MemRefType) or kind.element_type != level2.signless(dtype):
        raise _fault(op, f"a constant of {dtype} doesn't fit {kind}")


def _function(f: func.FuncOp, allowed: LegalOps, tables: Mapping[str, Attribute]) -> None:
    role = noted(f, Role)
    if role is None or role.data not in allowed.ops:
        has = f"role {role.data}" if role is not None else f"no {Role.name}"
        raise _fault(f, f"has {has}; functions of a {allowed.name} module have: {', '.join(allowed.ops)}")
    if f.function_type.outputs.data:
        raise _fault(f, "gives its results in memories and streams, not by value")
    if len(f.body.blocks) != 1:
        raise _fault(f, "has one block")
    for arg in f.body.block.args:
        _type(f, arg, argument=True)
    names = allowed.ops[role.data]
    for op in f.body.walk():
        if op.name not in names:
            raise _fault(op, f"a {role.data} of a {allowed.name} module doesn't hold this op")
        for value in (*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)):
            _type(op, value)
        if op.name in _MEETING and any(isinstance(o, scf.IfOp) for o in _around(op)):
            raise _fault(op, "threads meet where all of them come by, not under a condition")
        if isinstance(op, memref.GetGlobalOp) and tables.get(op.name_.root_reference.data) != op.memref.type:
            raise _fault(op, f"there is no table {op.name_.root_reference.data} of {op.memref.type}")


def _around(op: Operation) -> Iterator[Operation]:
    up = op.parent_op()
    while up is not None:
        yield up
        up = up.parent_op()


def _type(op: Operation, value: SSAValue, argument: bool = False) -> None:
    kind = value.type
    if isinstance(kind, MemRefType):
        shape = kind.get_shape()
        open_ = [d for d, n in enumerate(shape) if n < 0]
        if open_ and not (argument and open_ == [0]):
            raise _fault(op, f"{kind} has an open size; only the first of an argument, its samples, may be one")
        kind = kind.element_type
    elif isinstance(kind, level2.StreamType):
        kind = kind.element
    elif isinstance(kind, level2.AxisType):
        return
    if isinstance(kind, VectorType) and kind.get_num_dims() == 1:
        kind = kind.element_type
    if not _number(kind):
        raise _fault(
            op, f"{kind} is no type of level2: integers of 1 to 64 bits, f16, f32, f64, index, vectors of them"
        )


def _number(kind: Attribute) -> bool:
    if isinstance(kind, IntegerType):
        return bool(1 <= kind.width.data <= 64)
    return isinstance(kind, IndexType | Float16Type | Float32Type | Float64Type)


def _joined(module: ModuleOp) -> None:
    """Of a streaming module: one dataflow function, processes called once, streams with one end each."""
    byname = {f.sym_name.data: f for f in functions(module)}
    tops = [f for f in byname.values() if text_of(f, Role) == "dataflow"]
    if len(tops) != 1:
        raise CuvilError(f"level2: a streaming module has one function of role dataflow, not {len(tops)}")
    called: Counter[str] = Counter()
    ends: dict[str, Counter[SSAValue]] = {"read": Counter(), "written": Counter()}
    for op in tops[0].body.block.ops:
        if isinstance(op, func.CallOp):
            name = op.callee.root_reference.data
            if name not in byname:
                raise _fault(op, f"there is no function @{name}")
            called[name] += 1
            for side, streams in _ends(byname[name]).items():
                ends[side].update(op.arguments[n] for n in streams)
        elif isinstance(op, level2.AxisReadOp | level2.AxisWriteOp):
            reads = isinstance(op, level2.AxisReadOp)
            given = [v for v in (op.stream, op.ends) if v is not None]
            ends["written" if reads else "read"].update(given)
    for name, f in byname.items():
        if f is not tops[0] and called[name] != 1:
            raise _fault(f, f"a process runs once; @{tops[0].sym_name.data} calls it {called[name]} times")
    for op in tops[0].body.block.ops:
        if isinstance(op, level2.StreamOp):
            for side, found in ends.items():
                if found[op.output] != 1:
                    raise _fault(
                        op, f"stream {text_of(op, Name)} is {side} by {found[op.output]} processes, not by one"
                    )


def _ends(process: func.FuncOp) -> dict[str, list[int]]:
    """Positions of the streams that a process reads, and of those that it writes."""
    found: dict[str, list[int]] = {"read": [], "written": []}
    for n, arg in enumerate(process.body.block.args):
        uses = {type(use.operation) for use in arg.uses}
        if isinstance(arg.type, level2.StreamType):
            for kind, side in ((level2.StreamReadOp, "read"), (level2.StreamWriteOp, "written")):
                if kind in uses:
                    found[side].append(n)
        elif isinstance(arg.type, MemRefType) and noted(process, Port) is None:
            raise _fault(process, f"a process meets others in streams only; one with a memory is a {Port.name}")
    return found
