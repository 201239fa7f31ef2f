"""torch.cond, while_loop, scan, map and wrappers: branches selected, loops unrolled.

Level1 is straight-line. A condition known only at run time computes both branches and selects; a loop that ends by
values is unrolled to a bound, its later trips selected away, and guarded: a call whose loop needs more raises
GuardError.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from xdsl.ir import SSAValue

from cuvil_hw.frontend.shared.refusals import Refused
from cuvil_hw.frontend.torch.aten.emitter import Value, dtype_name
from cuvil_hw.frontend.torch.importer import CONTROL, POISON, Number, Walk, arithmetic, fold, merged
from cuvil_hw.frontend.torch.packed import counted
from cuvil_hw.ops import (
    Add,
    Concat,
    Equal,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    Maximum,
    Minimum,
    Mul,
    Neg,
    Op,
    Slice,
    Sub,
    Where,
)
from cuvil_hw.types import TensorType

MOST_TRIPS = 4096
_UNKNOWN = object()


def condition(w: Walk, value: Any) -> bool | SSAValue:
    """The predicate of a branch or loop: a Python bool where it is known, else a bool tensor of shape ()."""
    if isinstance(value, Number):
        return bool(value)
    if isinstance(value, torch.Tensor):
        return bool(value)
    if w.emitter.type(value).size != 1:
        raise Refused(f"a condition of shape {w.emitter.shape(value)}; one value expected")
    return w.emitter.ssa(w.emitter.reshape(w.emitter.cast(value, "bool"), ()))


def select(w: Walk, chosen: SSAValue, a: Any, b: Any) -> Any:
    """`chosen ? a : b`, where both have one type; `a` itself where both are the same value."""
    e = w.emitter
    if a is b or (isinstance(a, Number | None) and type(a) is type(b) and a == b):
        return a
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b):
        return a
    if any(v is POISON for v in (a, b)):
        return POISON
    if not all(isinstance(v, torch.Tensor | SSAValue) for v in (a, b)):
        raise Refused(f"a result is the Python number {a!r} or {b!r}, by values known only at run time; use tensors")
    if e.type(a) != e.type(b):
        raise Refused(f"its condition is known only at run time, and the results are {e.type(a)} and {e.type(b)}")
    return e.op(Where(), e.broadcast(chosen, e.shape(a)), a, b)


def cond(w: Walk, predicate: Any, yes: torch.fx.GraphModule, no: torch.fx.GraphModule, operands: Sequence[Any]) -> Any:
    chosen = condition(w, predicate)
    if isinstance(chosen, bool):
        return w.inline(yes if chosen else no, operands)
    e = w.emitter
    with e.builder.when(chosen, w.loc):
        first = w.inline(yes, operands)
    with e.builder.when(e.op(LogicalNot(), chosen), w.loc):
        second = w.inline(no, operands)
    return [select(w, chosen, a, b) for a, b in zip(first, second, strict=True)]


def while_loop(
    w: Walk,
    going_on: torch.fx.GraphModule,
    body: torch.fx.GraphModule,
    carried: Sequence[Any],
    fixed: Sequence[Any] = (),
) -> list[Any]:
    """Each trip works on what the one before computed, whether that counts or not, so that counters stay known;
    `results` are those of the last trip that counts."""
    e, at = w.emitter, w.loc
    state = results = list(carried)
    going: SSAValue | None = None  # whether the trip at hand counts; None: certainly
    bound, why = None, ""
    for trip in range(MOST_TRIPS + 1):
        again = _condition(w, going_on, [*state, *fixed], going, at)
        if again is False:
            return results
        if isinstance(again, SSAValue) and going is None:
            bound, why = _bound(w, going_on, body, state, fixed, trip, at)
        if isinstance(again, SSAValue):
            going = again if going is None else e.op(LogicalAnd(), going, again)
        if trip == bound and going is not None:
            e.builder.guard(e.op(LogicalNot(), going), why, at)
            return results
        if going is None:
            state = results = w.inline(body, [*state, *fixed])
            continue
        with e.builder.when(going, at):
            state = w.inline(body, [*state, *fixed])
        w.loc = e.loc = at
        results = [select(w, going, new, old) for new, old in zip(state, results, strict=True)]
    raise Refused(f"more than {MOST_TRIPS} trips, which would all be unrolled")


def _condition(
    w: Walk, going_on: torch.fx.GraphModule, operands: Sequence[Any], going: SSAValue | None, at: str
) -> bool | SSAValue:
    if going is None:
        again = condition(w, w.inline(going_on, operands)[0])
    else:
        with w.emitter.builder.when(going, at):
            again = condition(w, w.inline(going_on, operands)[0])
    w.loc = w.emitter.loc = at
    return again


def _bound(
    w: Walk,
    going_on: torch.fx.GraphModule,
    body: torch.fx.GraphModule,
    state: Sequence[Any],
    fixed: Sequence[Any],
    done: int,
    at: str,
) -> tuple[int | None, str]:
    """(most trips, what to say when they don't suffice); None where a counter ends the loop anyway. Raises Refused."""
    if w.max_trips is None:
        if _ends(going_on, body, state, fixed):
            return None, ""
        raise Refused(
            "how often it runs depends on values known only at run time: give compile(…, max_trips=N), or bound it by "
            "a counter that starts from a constant, such as (i < 10) & …"
        )
    bound = max(w.max_trips, done)
    return bound, f"the loop at {at} hadn't ended after {bound} trips; compile it with a larger max_trips"


def _ends(
    going_on: torch.fx.GraphModule, body: torch.fx.GraphModule, state: Sequence[Any], fixed: Sequence[Any]
) -> bool:
    """Whether known values alone end the loop, within MOST_TRIPS: followed without emitting anything."""
    known = [_UNKNOWN if isinstance(v, SSAValue) or v is POISON else v for v in state]
    constant = [_UNKNOWN if isinstance(v, SSAValue) or v is POISON else v for v in fixed]
    for _ in range(MOST_TRIPS):
        again = _follow(going_on, [*known, *constant])[0]
        if again is not _UNKNOWN and not bool(again):
            return True
        known = _follow(body, [*known, *constant])
        if all(v is _UNKNOWN for v in known):
            return False
    return False


def _follow(module: torch.fx.GraphModule, operands: Sequence[Any]) -> list[Any]:
    """A graph's results where they follow from known operands, else _UNKNOWN."""
    env: dict[torch.fx.Node, Any] = {}
    given = iter(operands)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "call_function":
            env[node] = _known_result(node, env)
        elif node.op == "get_attr":
            env[node] = _UNKNOWN
    results = torch.fx.node.map_arg(module.graph.output_node().args[0], lambda n: env[n])
    return list(results) if isinstance(results, list | tuple) else [results]


def _known_result(node: torch.fx.Node, env: Mapping[torch.fx.Node, Any]) -> Any:
    args = [torch.fx.node.map_arg(a, lambda n: env[n]) for a in node.args]
    label, target = str(node.target), node.target
    if any(env[n] is _UNKNOWN for n in node.all_input_nodes):
        found = merged(label, args)
        return _UNKNOWN if found is None else found
    if isinstance(target, torch._ops.OpOverload):
        named = {k: torch.fx.node.map_arg(a, lambda n: env[n]) for k, a in node.kwargs.items()}
        rest = [named.get(a.name, a.default_value) for a in target._schema.arguments[len(args) :]]
        return fold(target, [*args, *rest])
    return target(*args) if arithmetic(target) else _UNKNOWN  # type: ignore[operator]


def scan(
    w: Walk, body: torch.fx.GraphModule, init: Sequence[Any], xs: Sequence[Any], fixed: Sequence[Any] = ()
) -> list[Any]:
    """Carried values, then what each trip gave, stacked along axis 0."""
    state, rows = list(init), []
    for i in range(_length(w, xs)):
        made = w.inline(body, [*state, *(_slice(w, x, i) for x in xs), *fixed])
        state = made[: len(init)]
        rows.append(made[len(init) :])
    return [*state, *(_stack(w, column) for column in zip(*rows, strict=True))]


def map_impl(w: Walk, body: torch.fx.GraphModule, xs: Sequence[Any], fixed: Sequence[Any] = ()) -> list[Any]:
    return scan(w, body, (), xs, fixed)


def associative_scan(w: Walk, combine: torch.fx.GraphModule, xs: Sequence[Any], fixed: Sequence[Any] = ()) -> list[Any]:
    """One after another: the order that a definition by trees may choose."""
    rows = [[_slice(w, x, 0) for x in xs]]
    for i in range(1, _length(w, xs)):
        rows.append(w.inline(combine, [*rows[-1], *(_slice(w, x, i) for x in xs), *fixed]))
    return [_stack(w, column) for column in zip(*rows, strict=True)]


def _length(w: Walk, xs: Sequence[Any]) -> int:
    lengths = {w.emitter.shape(x)[0] for x in xs}
    if len(lengths) != 1 or not 1 <= min(lengths) <= MOST_TRIPS:
        raise Refused(f"runs over {sorted(lengths)} slices; one number from 1 to {MOST_TRIPS} can be unrolled")
    return lengths.pop()


def _slice(w: Walk, x: Any, i: int) -> Value:
    """x[i]"""
    if isinstance(x, torch.Tensor):
        return x[i]
    shape = w.emitter.shape(x)
    starts, sizes = (i, *(0,) * (len(shape) - 1)), (1, *shape[1:])
    return w.emitter.reshape(w.emitter.op(Slice(starts, sizes, (1,) * len(shape)), x), shape[1:])


def _stack(w: Walk, values: Sequence[Any]) -> Value:
    if POISON in values:
        raise Refused("a result of its body is refused")
    if all(isinstance(v, torch.Tensor) for v in values):
        return torch.stack(list(values))
    apart = [w.emitter.reshape(v, (1, *w.emitter.shape(v))) for v in values]
    return apart[0] if len(apart) == 1 else w.emitter.op(Concat(0), *apart)


def wrapped(w: Walk, *args: Any) -> list[Any]:
    """A wrapper without meaning for inference: what follows the graph among its arguments are the graph's."""
    at = next((i for i, a in enumerate(args) if isinstance(a, torch.fx.GraphModule)), None)
    if at is None:
        raise Refused("holds no graph")
    count = sum(n.op == "placeholder" for n in args[at].graph.nodes)
    operands: list[Any] = []
    for a in args[at + 1 :]:
        operands += a if isinstance(a, list | tuple) else [] if isinstance(a, str | dict) else [a]
    return w.inline(args[at], operands[:count])


def require(w: Walk, holds: Any, *rest: Any) -> None:
    """torch._assert_async and the like: the model's own check becomes a guard."""
    message = next((a for a in rest if isinstance(a, str)), "")
    ok = condition(w, holds)
    if isinstance(ok, bool):
        if not ok:
            raise Refused(f"always fails: {message}")
        return
    at = f"the check at {w.loc or 'an unnamed place'} failed"
    w.emitter.builder.guard(ok, f"{at}: {message}" if message else at, w.loc)


def item(w: Walk, x: Any, *rest: Any) -> Any:
    """A tensor's only element as Python's number: known, or of shape () in f64, i64 or bool."""
    if isinstance(x, torch.Tensor):
        return x.item()
    dtype = w.emitter.type(x).dtype
    wide = dtype if dtype == "bool" else "f64" if dtype.startswith("f") else "i64"
    return w.emitter.reshape(w.emitter.cast(x, wide), ())


def on_numbers(known: Callable[[Any, Any], Any], op: Op) -> Callable[..., Any]:
    """Python's operator on numbers, some of which `item` made."""

    def convert(w: Walk, a: Any, b: Any) -> Any:
        if isinstance(a, Number) and isinstance(b, Number):
            return known(a, b)
        kinds = {w.emitter.type(v).dtype for v in (a, b) if isinstance(v, SSAValue)}
        kinds |= {"f64" for v in (a, b) if isinstance(v, float)}
        if "bool" in kinds:
            raise Refused("arithmetic on a truth value known only at run time; use tensors")
        if (holds := _of_count(w, known, a, b)) is not None:
            return holds
        kind = TensorType((), "f64" if "f64" in kinds else "i64")
        return w.emitter.op(op, w.emitter.operand(a, kind), w.emitter.operand(b, kind))

    return convert


def _of_count(w: Walk, known: Callable[[Any, Any], Any], a: Any, b: Any) -> bool | None:
    """What is known of comparing how many elements a mask selects, as torch's own checks do."""
    mask = counted(a) if isinstance(a, SSAValue) else None
    if mask is None or not isinstance(b, int):
        return None
    most = w.emitter.type(mask).size
    return True if (known is operator.ge and b <= 0) or (known is operator.le and b >= most) else None


def size(w: Walk, x: Any, axis: int) -> int:
    return w.emitter.shape(x)[axis]


def on_truths(known: Callable[[Any, Any], Any], op: Op) -> Callable[..., Any]:
    """`and`, `or` of truth values."""

    def convert(w: Walk, a: Any, b: Any) -> Any:
        values = [condition(w, v) for v in (a, b)]
        constants = [v for v in values if isinstance(v, bool)]
        others = [v for v in values if not isinstance(v, bool)]
        if not others:
            return known(*constants)
        if constants:
            return others[0] if known(constants[0], True) != known(constants[0], False) else constants[0]
        return w.emitter.op(op, *others)

    return convert


def chosen(w: Walk, test: Any, a: Any, b: Any) -> Any:
    """One of two numbers."""
    holds = condition(w, test)
    if isinstance(holds, bool):
        return a if holds else b
    kind = TensorType((), "f64" if any(isinstance(v, float) for v in (a, b)) else "i64")
    return w.emitter.op(Where(), holds, w.emitter.operand(a, kind), w.emitter.operand(b, kind))


def scalar_tensor(w: Walk, value: Any, dtype: torch.dtype | None, *rest: Any) -> Value:
    """A number as a tensor of shape ()."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return w.emitter.cast(value, dtype_name(dtype)) if isinstance(value, SSAValue) else torch.tensor(value, dtype=dtype)


def total(w: Walk, values: Sequence[Any]) -> Any:
    return functools.reduce(lambda a, b: on_numbers(operator.add, Add())(w, a, b), values)


def differ(w: Walk, a: Any, b: Any) -> Any:
    return negated(w, on_numbers(operator.eq, Equal())(w, a, b))


def negative(w: Walk, value: Any) -> Any:
    return w.emitter.op(Neg(), value) if isinstance(value, SSAValue) else -value


def negated(w: Walk, value: Any) -> Any:
    """Not, of a truth value."""
    holds = condition(w, value)
    return not holds if isinstance(holds, bool) else w.emitter.op(LogicalNot(), holds)


CONTROL.update(
    {
        "aten.scalar_tensor.default": scalar_tensor,
        str(torch.sym_sum): total,
        str(operator.ne): differ,
        str(operator.neg): negative,
        str(torch.sym_not): negated,
        str(torch.sym_ite): chosen,
        str(operator.and_): on_truths(operator.and_, LogicalAnd()),
        str(operator.or_): on_truths(operator.or_, LogicalOr()),
        "aten.sym_size.int": size,
        "cond": cond,
        "while_loop": while_loop,
        "scan": scan,
        "map_impl": map_impl,
        "associative_scan": associative_scan,
        "aten._assert_async.msg": require,
        "aten._assert_async.default": require,
        "aten._assert_scalar.default": require,
        "aten.item.default": item,
        "aten._local_scalar_dense.default": item,
    }
)
for name in ("tag_activation_checkpoint", "wrap_activation_checkpoint", "wrap_with_set_grad_enabled"):
    CONTROL[name] = wrapped
for name in ("wrap_with_autocast", "wrap", "hints_wrapper", "invoke_subgraph", "strict_mode"):
    CONTROL[name] = wrapped
for known, op in (
    (operator.add, Add()),
    (operator.sub, Sub()),
    (operator.mul, Mul()),
    (operator.eq, Equal()),
    (operator.gt, Greater()),
    (operator.ge, GreaterEqual()),
    (operator.lt, Less()),
    (operator.le, LessEqual()),
    (torch.sym_min, Minimum()),
    (torch.sym_max, Maximum()),
):
    CONTROL[str(known)] = on_numbers(known, op)
