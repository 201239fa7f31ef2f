"""ONNX graph → level1 program: one pass over the nodes, static shapes, constants folded, all refusals collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError, Unsupported
from cuvil_hw.errors.quoting import visible
from cuvil_hw.extent import size
from cuvil_hw.frontend.onnx import bfloat, control, custom
from cuvil_hw.frontend.onnx.converters import CONVERTERS, refusal_reason
from cuvil_hw.frontend.onnx.declared import check_batch, contradictions, fixed_batch
from cuvil_hw.frontend.onnx.function import body_of, missing, tensor_type
from cuvil_hw.frontend.onnx.inputs import input_types, known_inputs, other_batch
from cuvil_hw.frontend.onnx.load import read
from cuvil_hw.frontend.onnx.node import DTYPES, LARGEST_FOLD, Array, OnnxEmitter, OnnxNode, Result, Value, decode
from cuvil_hw.frontend.onnx.scope import MOST_NODES, Budget, Scope
from cuvil_hw.frontend.shared.refusals import Refusals, Refused
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.ops.base import ShapeError, too_large
from cuvil_hw.ops.custom import for_onnx
from cuvil_hw.types import TensorType

CONTROL = ("If", "Loop", "Scan")
LARGEST_LENGTH = 1 << 20  # of what onnx.reference computes at import
# What onnx.reference raises on operands that an operator can't take.
_REFERENCE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AttributeError, KeyError)


# What Python raises on numbers and lists that an operator doesn't define.
_DAMAGE = (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


class _Follows(Exception):
    """Raised when a graph inside a node uses an outside value that was refused; the refusal is already reported."""


def load_onnx(
    model: str | Path | onnx.ModelProto,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, Any] | None = None,
    max_trips: int | None = None,
) -> Program:
    """Import an ONNX model as a level1 program. Any opset; models before opset 7 are converted first.

    Args:
        model: path of an .onnx file (weights in external files are read too), or a ModelProto.
        shapes: static shapes by input name, for inputs whose shape the file leaves open. The leading dimension may
            differ from the file's. An open leading dimension that isn't given becomes 1, and `notes["assumed"]` says
            so.
        constants: a number or array by input name; these inputs become constants, like inputs with an initializer.
        max_trips: number of iterations compiled for loops whose end depends on values.

    Raises:
        Unsupported: lists every operator, attribute and element type that can't be compiled, with counts and node
            names.
        CuvilError: the file is missing, damaged or invalid; shapes are unknown or contradictory.
    """
    proto, name = read(model)
    title = Path(model).stem if isinstance(model, str | Path) else proto.graph.name or "model"
    arrays = {n: _array(n, a) for n, a in (constants or {}).items()}
    types, assumed = input_types(proto.graph, name, shapes or {}, arrays)
    batch = other_batch(proto.graph, types, shapes or {}, name)
    known = known_inputs(types, arrays, name)
    inputs = tuple((n, t) for n, t in types if n not in known)
    builder = Builder(inputs, title)
    scope = Scope(
        name,
        values={
            **{n: Value(t, ssa=builder.input(i)) for i, (n, t) in enumerate(inputs)},
            **{n: Value(t, known[n]) for n, t in types if n in known},
        },
        versions={("" if o.domain == "ai.onnx" else o.domain): o.version for o in proto.opset_import},
        emitter=OnnxEmitter(builder),
        refusals=Refusals(),
        budget=Budget(),
        max_trips=max_trips,
    )
    try:
        _convert_graph(proto.graph, scope)
        scope.refusals.check(name)
        if batch is not None:
            check_batch(proto.graph, scope.values, batch, name)
    except Unsupported as e:
        if batch is not None:
            e.add_note(fixed_batch(batch))
        raise
    results = [scope.output(o.name) for o in proto.graph.output]
    with size.unrecorded():
        named = zip((o.name for o in proto.graph.output), map(scope.emitter.ssa, results), strict=True)
        program = builder.finish(list(named))
    program.notes["extents"] = tuple(tuple(map(size.of, v.shape)) for v in results)
    _drop_unused(program)
    if assumed:
        program.notes["assumed"] = assumed
    program.notes["contradictions"] = contradictions(proto.graph, scope.values, batch)
    return program


def _array(name: str, given: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(given)
    except ValueError as e:
        raise CuvilError(f"constants[{name!r}] is no array: {e}") from None


def _convert_graph(graph: onnx.GraphProto, scope: Scope) -> None:
    """Convert the nodes on which the outputs of a graph depend; also used for branches of an If and bodies of loops."""
    _read_initializers(graph, scope.values, scope.refusals, scope.name)
    nodes, used = _needed(graph)
    for node in nodes:
        results = _convert(node, used, scope)
        if results is None:
            inferred = _inferred(node, scope)
            results = [scope.emitter.placeholder(inferred[o]) if o in inferred else None for o in node.output]
        scope.values.update(zip(node.output, results, strict=False))


def _read_initializers(graph: onnx.GraphProto, values: dict[str, Value | None], refusals: Refusals, name: str) -> None:
    for tensor in graph.initializer:
        try:
            array, dtype = decode(tensor)
        except Refused as e:
            refusals.add("initializer", str(e), tensor.name)
            values[tensor.name] = None
            continue
        except CuvilError as e:
            raise CuvilError(f"{name}: {e}") from e
        values[tensor.name] = Value(TensorType(tuple(array.shape), dtype), array)
    for sparse in graph.sparse_initializer:
        refusals.add("initializer", "sparse tensors are not supported", sparse.values.name)
        values[sparse.values.name] = None


def _names_read(node: onnx.NodeProto) -> set[str]:
    """The names that a node reads, including those that its subgraphs read from outside."""
    names = {i for i in node.input if i}
    for a in node.attribute:
        for inner in ([a.g] if a.HasField("g") else []) + list(a.graphs):
            names |= {o.name for o in inner.output}.union(*(_names_read(n) for n in inner.node))
    return names


def _needed(graph: onnx.GraphProto) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes that the outputs depend on, in order, and all names that something reads."""
    used = {o.name for o in graph.output}
    kept = []
    for node in reversed(graph.node):
        if any(o in used for o in node.output if o):
            kept.append(node)
            used |= _names_read(node)
    return kept[::-1], used


def _convert(node: onnx.NodeProto, used: set[str], scope: Scope) -> Sequence[Value | None] | None:
    """The results of one node; None if it was refused, or depends on something refused."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    version, emitter = scope.versions.get(domain, 0), scope.emitter
    op_type = visible(f"{domain}.{node.op_type}" if domain else node.op_type)
    label = visible(node.name or next((o for o in node.output if o), ""))
    loc = f'onnx node "{label}" ({visible(node.op_type)})'
    size.at(loc)
    absent = None if domain or for_onnx(domain, node.op_type) is not None else missing(node.op_type, version)
    operands = [scope.values.get(i) if i else None for i in node.input]
    if any(i and v is None for i, v in zip(node.input, operands, strict=True)):
        if absent or not _known(node, domain):
            scope.refusals.add(op_type, absent or refusal_reason(domain, node.op_type), label)
        return None
    try:
        if absent:
            raise Refused(absent)
        if not scope.budget.spend():
            raise Refused(f"loops unrolled and functions expanded make more than {MOST_NODES:,} nodes")
        folded = None if _known(node, domain) else _fold(node, domain, version, operands, emitter)
        if folded is not None:
            return folded
        while operands and operands[-1] is None:
            operands.pop()
        n = OnnxNode(node, tuple(operands), tuple(o in used for o in node.output), loc, emitter)
        result = _results(n, domain, version, scope)
        return (result,) if isinstance(result, Value) else result
    except _Follows:
        return None
    except (Refused, ShapeError) as e:
        scope.refusals.add(op_type, str(e), label)
        return None
    except MemoryError:
        scope.refusals.add(op_type, "computing it at import takes more memory than there is", label)
        return None
    except _DAMAGE as e:  # what a damaged file can make of attributes is beyond any list of checks
        reason = f"its attributes and operands can't be converted ({type(e).__name__}: {e}); check them against ONNX's "
        scope.refusals.add(op_type, f"{reason}definition, and report it if they keep to it", label)
        return None
    except CuvilError as e:
        raise CuvilError(f"{loc}: {e}") from e


def _known(node: onnx.NodeProto, domain: str) -> bool:
    return (
        (domain, node.op_type) in CONVERTERS
        or (not domain and node.op_type in CONTROL)
        or for_onnx(domain, node.op_type) is not None
    )


def _results(n: OnnxNode, domain: str, version: int, scope: Scope) -> Result:
    """The results by a converter, as control flow, or by expanding ONNX's own definition of the operator."""
    op_type = n.proto.op_type
    if (registered := for_onnx(domain, op_type)) is not None:
        return custom.convert(n, registered, version)
    convert = CONVERTERS.get((domain, op_type))
    if convert is not None:
        return bfloat.convert(n, version, convert)
    if not domain and op_type == "If":
        return control.if_(n, scope, _run)
    if not domain and op_type == "Loop":
        return control.loop(n, scope, _run)
    if not domain and op_type == "Scan":
        return control.scan(n, scope, _run, version)
    body = body_of(n.proto, domain, version, n.inputs)
    if body is None:
        raise Refused(refusal_reason(domain, op_type))
    given = {name: v for name, v in zip(body.input, n.inputs, strict=False) if v is not None}
    versions = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in body.opset_import}
    inner = scope.body(given, {**scope.versions, **versions})
    wanted = [o for o, w in zip(body.output, n.wanted, strict=False) if w]
    graph = onnx.GraphProto(node=body.node, output=[onnx.ValueInfoProto(name=o) for o in wanted])
    results = dict(zip(wanted, _run(graph, inner), strict=True))
    return [results.get(o) or n.const(0, "f32") for o in body.output]


def _run(graph: onnx.GraphProto, scope: Scope) -> list[Value]:
    """The outputs of a graph inside a node. Raises Refused with the first thing in it that is refused."""
    _convert_graph(graph, scope)
    refused = scope.refusals.first()
    if refused is not None:
        raise Refused(f"inside it, {refused[0]}: {refused[1]}")
    if any(scope.values.get(o.name) is None for o in graph.output):
        raise _Follows
    return [scope.output(o.name) for o in graph.output]


def _fold(
    node: onnx.NodeProto, domain: str, version: int, operands: Sequence[Value | None], emitter: OnnxEmitter
) -> list[Value] | None:
    """An operator without converter on constants only: its value by ONNX's own reference; None when it isn't that."""
    arrays: dict[str, Array] = {}
    for name, value in zip(node.input, operands, strict=True):
        if value is None:
            continue
        if value.array is None or value.dtype not in ("f32", "f64", "bool", "i8", "u8", "i16", "u16", "i32", "i64"):
            return None
        emitter.pin((value,))
        arrays[name] = value.array
        # A single number may be a length, which the reference goes through in Python.
        if value.type.size > LARGEST_FOLD or (value.array.dtype.kind in "iu" and not value.rank and
                                              abs(int(value.array)) > LARGEST_LENGTH):  # fmt: skip
            raise Refused(f"on constants of such a size: {name!r} is {value.array.reshape(-1)[0]} of {value.type}")
    random = node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial")
    if domain or random or not arrays or any(a.HasField("g") for a in node.attribute):
        return None
    from onnx.reference import ReferenceEvaluator

    helper = onnx.helper
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in arrays.items()
    ]
    outputs = [o for o in node.output if o]
    graph = onnx.helper.make_graph([node], "fold", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    opsets = [onnx.helper.make_opsetid("", version)]
    try:
        results = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets)).run(None, arrays)
        if not all(isinstance(r, np.ndarray | np.generic) for r in results):  # a sequence
            return None
        found = {o: emitter.const(r, dtypes.from_numpy(r.dtype)) for o, r in zip(outputs, results, strict=True)}
    except _REFERENCE_ERRORS as e:
        raise Refused(f"on constants, onnx.reference can't compute it: {e}") from e
    return [found[o] if o else emitter.const(0, "f32") for o in node.output]


def _inferred(node: onnx.NodeProto, scope: Scope) -> dict[str, TensorType]:
    """Static types of a refused node's outputs by ONNX's own shape inference, so that later nodes can be checked; empty
    if it fails.

    That inference is native code, which reads outside its arrays for attributes such as a negative `batch_dims`. It is
    therefore given one node at a time, without graphs and without numbers that are no extent or non-negative axis.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = scope.versions.get(domain, 0)
    numbers = [i for a in node.attribute for i in (a.i, *a.ints)]
    known = {name: scope.values.get(name) for name in node.input if name}
    if any(a.HasField("g") or a.graphs for a in node.attribute) or not all(0 <= i < 1 << 31 for i in numbers):
        return {}
    types = {name: tensor_type(v) for name, v in known.items() if v is not None}
    if len(types) != len(known):
        return {}
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
        opsets = [onnx.helper.make_opsetid(d, v) for d, v in scope.versions.items()]
        made = onnx.shape_inference.infer_node_outputs(schema, node, types, opset_imports=opsets)
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError,
            ValueError, TypeError, RuntimeError, KeyError):  # fmt: skip
        return {}
    found: dict[str, TensorType] = {}
    for name, info in made.items():
        tensor = info.tensor_type
        known_type = info.WhichOneof("value") == "tensor_type" and tensor.HasField("shape")
        if known_type and tensor.elem_type in DTYPES and all(d.HasField("dim_value") for d in tensor.shape.dim):
            kind = TensorType(tuple(int(d.dim_value) for d in tensor.shape.dim), DTYPES[tensor.elem_type])
            if min(kind.shape, default=0) >= 0 and not too_large(kind):
                found[name] = kind
    return found


def _drop_unused(program: Program) -> None:
    """Erase ops whose results nobody reads, such as shape arithmetic."""
    for operation in reversed(list(program.block.ops)):
        pure = isinstance(operation, level1.TensorOp | level1.ConstOp)
        if pure and all(r.first_use is None for r in operation.results):
            operation.detach()  # type: ignore[no-untyped-call]
            operation.erase()
