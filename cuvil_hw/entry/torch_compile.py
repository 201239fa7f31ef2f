"""The backend `cuvil` of torch.compile, found by its entry point in group "torch_dynamo_backends".

Dynamo splits the user's function into graphs, guards them and decides when sizes become symbols. Each graph is compiled
at its first call, for inference, and again for other sizes. Parameters and buffers are constants of the program: every
call checks that they are the same tensors of the same version, and compiles again if they aren't.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from threading import Lock
from typing import Any, NoReturn

import torch
import torch.fx
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.utils import counters
from torch._guards import CompileContext

from cuvil_hw.api import compile
from cuvil_hw.entry.dynamo_breaks import CALLED, check_escapes, watch
from cuvil_hw.errors import CuvilError, DoesNotFit, Refusal, Unsupported
from cuvil_hw.frontend.torch.dynamo_graph import Alias, Computed, DynamoGraph, Given, Plan, plan, source_name
from cuvil_hw.frontend.torch.numbers import Counted, followed
from cuvil_hw.runtime.executable import Executable

LOG = logging.getLogger("cuvil")
KEPT = 16  # programs of one graph; the one that was not used for longest is given up for the next


@dataclass(frozen=True)
class BackendOptions:
    """What `torch.compile(model, backend="cuvil", options={…})` takes.

    Attributes:
        target, precision, calibration, interface, name: as in `cuvil.compile`.
        fallback: "eager" runs a graph that can't be compiled in PyTorch, with a warning in the log "cuvil" and a count
            in torch._dynamo.utils.counters["cuvil"]; without it such a graph raises.
        done: called with each compiled Executable.
        compiler: called instead of `cuvil.compile`.
    """

    target: Any = "cpu"
    precision: str | None = None
    calibration: Any = None
    interface: str | None = None
    name: str | None = None
    fallback: str | None = None
    done: Callable[[Executable], None] | None = None
    compiler: Callable[..., Executable] | None = None


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The function that Dynamo calls instead of `graph`. Raises CuvilError for unknown options.

    Calling it raises what `cuvil.compile` raises, mostly Unsupported with lines of the user's code. Results are for
    inference: if autograd is on they belong to its graph, but a backward pass through them raises CuvilError.
    """
    if mode is not None:
        raise CuvilError(f"backend cuvil has no mode {mode!r}; say what you want in options={{…}}")
    known = [f.name for f in fields(BackendOptions)]
    unknown = [name for name in options or {} if name not in known]
    if unknown:
        raise CuvilError(f"backend cuvil has no option {unknown[0]!r}; its options are {', '.join(known)}")
    counters["cuvil"][CALLED] += 1
    chosen = BackendOptions(**(options or {}))
    if chosen.fallback not in (None, "eager"):
        raise CuvilError(f"option fallback is {chosen.fallback!r}; it can be 'eager', or be left out to get an error")
    check_escapes(graph)
    return _Graph(graph, example_inputs, chosen)


watch(backend)


@dataclass(frozen=True)
class _Weight:
    """A tensor that was compiled into a program, with its version at that time."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    address: int

    def same(self, tensor: torch.Tensor) -> bool:
        return self.tensor() is tensor and tensor._version == self.version and tensor.data_ptr() == self.address


@dataclass(frozen=True)
class _Program:
    """A compiled graph. `program`: None if nothing is left to compute. `inputs`: its arguments, as positions among the
    graph's."""

    plan: Plan
    program: Executable | None
    inputs: tuple[int, ...]
    weights: Mapping[int, _Weight]
    names: Sequence[str]  # of the graph's arguments


class _Graph:
    """One graph of Dynamo: a program for each set of sizes, numbers and weights."""

    def __init__(self, graph: torch.fx.GraphModule, examples: Sequence[Any], options: BackendOptions) -> None:
        self._graph, self._options = graph, options
        nodes = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self._names = [n.name for n in nodes]
        # A float that changes from call to call comes as a tensor; the graph reads it with item().
        self._scalars = {i for i, n in enumerate(nodes) if getattr(n.meta.get("grapharg"), "pass_arg_as_tensor", False)}
        self._weights = {i for i, (n, x) in enumerate(zip(nodes, examples, strict=True)) if _is_weight(n, x)}
        self._parameters = {i for i in self._weights if isinstance(examples[i], torch.nn.Parameter)}
        self._counts = followed(graph, examples)
        self._labels = [source_name(n) for n in nodes]
        self._programs: OrderedDict[tuple[Any, ...], _Program | Unsupported | DoesNotFit] = OrderedDict()
        # As PyTorch's own logs call it: the frame, and how many times it was compiled before.
        self._title = f"graph_{CompileContext.current_compile_id() or ''}".replace("/", "_")
        self._lock = Lock()

    def __call__(self, *args: Any) -> Any:
        found = self._find(args)
        if isinstance(found, CuvilError):
            return self._refused(found, args)
        grad = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        for i in found.plan.written:
            self._check_written(args, i, grad)
        return _run(found, args, grad)

    def _find(self, args: Sequence[Any]) -> _Program | Unsupported | DoesNotFit:
        found = self._kept(args)
        if found is None:
            # PyTorch traces one thing at a time, and modules that ask whether they are compiled must hear what they
            # heard when Dynamo traced them.
            with compile_lock, torch.compiler._compile_session_context():
                found = self._kept(args) or self._compile(args)
        return found

    def _kept(self, args: Sequence[Any]) -> _Program | Unsupported | DoesNotFit | None:
        with self._lock:
            key = self._key(args)
            found = self._programs.get(key)
            if found is None or (isinstance(found, _Program) and not self._current(found, args)):
                return None
            self._programs.move_to_end(key)
            return found

    def _keep(self, args: Sequence[Any], found: _Program | Unsupported | DoesNotFit) -> None:
        with self._lock:
            key = self._key(args)  # made now: buffers may have become inputs
            self._programs[key] = found
            self._programs.move_to_end(key)
            if len(self._programs) > KEPT:
                self._programs.popitem(last=False)
                LOG.warning("a graph has more than %d sets of sizes, numbers or weights; the oldest is given up", KEPT)

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What a program depends on, other than the values of weights. Includes the identities of parameters, since
        modules that share code have different ones."""
        parts: list[Any] = []
        for i, a in enumerate(args):
            if i in self._weights:
                parts.append(id(a) if i in self._parameters else None)
            elif i in self._scalars:
                parts.append((float, float(a.item()).hex()))  # NaN is itself, and the zeros differ
            elif isinstance(a, torch.Tensor):
                parts.append((a.shape, a.stride(), a.dtype))
            elif i in self._counts:
                parts.append(type(a))
            else:
                parts.append((type(a), a.hex() if isinstance(a, float) else a))
        return tuple(parts)

    def _current(self, found: _Program, args: Sequence[Any]) -> bool:
        """Whether the weights are still those of the program. A buffer that changed while all parameters stayed is
        taken for state: it becomes an input of the next program."""
        changed = {i for i, w in found.weights.items() if not w.same(args[i])}
        if changed and not changed & self._parameters:
            self._weights -= changed
        return not changed

    def _compile(self, args: Sequence[Any]) -> _Program | Unsupported | DoesNotFit:
        made: _Program | Unsupported | DoesNotFit
        try:
            made = _unwrapped(self._made, args)
            counters["cuvil"]["programs"] += 1
        except (Unsupported, DoesNotFit) as e:
            counters["cuvil"]["refused"] += 1
            if self._options.fallback == "eager":
                LOG.warning("a graph runs in PyTorch, as fallback='eager' allows: %s", e)
            made = e.with_traceback(None)
        self._keep(args, made)
        return made

    def _made(self, args: Sequence[Any]) -> _Program:
        if torch.is_autocast_enabled("cpu"):
            raise Unsupported([Refusal("autocast", "is on; call the model outside of torch.autocast")], "torch.compile")
        scalars = {self._names[i]: args[i].item() for i in self._scalars}
        made = plan(self._graph, args, scalars, self._labels, bool(self._counts))
        self._weights -= set(made.written)
        fixed = {i: a for i, a in enumerate(args) if self._fixed(i, a)}
        inputs = tuple(i for i in range(len(args)) if i not in fixed)
        weights = {i: _Weight(weakref.ref(args[i]), args[i]._version, args[i].data_ptr()) for i in self._weights}
        program: Executable | None = None
        if made.picked or made.written:
            closed = DynamoGraph(self._graph, fixed, scalars, made, self._labels)
            options = self._options
            compiled = (options.compiler or compile)(
                closed,
                options.target,
                example_inputs=tuple(_tensor(args[i]) for i in inputs),
                calibration=options.calibration,
                precision=options.precision,
                interface=options.interface,
                name=options.name or self._title,
            )
            assert isinstance(compiled, Executable)  # all shapes are fixed
            program = compiled
            if options.done is not None:
                options.done(program)
        return _Program(made, program, inputs, weights, self._names)

    def _fixed(self, i: int, value: Any) -> bool:
        is_input = isinstance(value, torch.Tensor) or self._counts.get(i, False)
        return i in self._weights or i in self._scalars or not is_input

    def _check_written(self, args: Sequence[Any], i: int, grad: bool) -> None:
        """Raises Unsupported for an in-place write that can't be repeated on the caller's tensors."""
        reason = ""
        if grad and args[i].requires_grad:
            reason = "the graph writes into this input, which requires grad; call it under torch.no_grad()"
        memory = args[i].untyped_storage().data_ptr()
        for j, other in enumerate(args):
            if j != i and isinstance(other, torch.Tensor) and memory and other.untyped_storage().data_ptr() == memory:
                reason = f"the graph writes into this input, whose memory input {self._labels[j]} shares; clone one"
        if reason:
            raise Unsupported([Refusal(f"input {self._labels[i]}", reason)], "torch.compile")

    def _refused(self, error: Unsupported | DoesNotFit, args: Sequence[Any]) -> Any:
        if self._options.fallback != "eager":
            raise error.with_traceback(None)
        counters["cuvil"]["eager_calls"] += 1
        return self._graph(*args)


def _unwrapped(make: Callable[[Sequence[Any]], _Program], args: Sequence[Any]) -> _Program:
    """make(args); if torch.export wraps a refusal of ours in its own error, raises ours."""
    try:
        return make(args)
    except CuvilError as e:
        if isinstance(e.__cause__, Unsupported):
            raise e.__cause__ from None
        raise


def _is_weight(node: torch.fx.Node, example: Any) -> bool:
    """Whether the input is a parameter or registered buffer; Dynamo passes these as inputs of the graph."""
    if not isinstance(example, torch.Tensor) or example.is_inference():  # inference tensors count no versions
        return False
    source = str(getattr(getattr(node.meta.get("grapharg"), "source", None), "name", ""))
    return isinstance(example, torch.nn.Parameter) or "._buffers[" in source


def _tensor(value: Any) -> torch.Tensor:
    """An argument as a tensor; numbers become tensors without dimensions."""
    return value.detach() if isinstance(value, torch.Tensor) else torch.tensor(int(value))


def _run(found: _Program, args: Sequence[Any], grad: bool) -> tuple[Any, ...]:
    computed: Sequence[torch.Tensor] = ()
    if found.program is not None:
        outputs = found.program.run(*(_tensor(args[i]) for i in found.inputs)).outputs
        computed = [o if isinstance(o, torch.Tensor) else torch.from_numpy(o) for o in outputs]
    storages: dict[int, torch.Tensor] = {}
    results: list[Any] = [None] * len(found.plan.outputs)
    for i, output in enumerate(found.plan.outputs):
        if isinstance(output, Given):
            results[i] = output.value
        elif isinstance(output, Counted):
            results[i] = output.of(dict(zip(found.names, args, strict=True)))
        elif isinstance(output, Computed):
            results[i] = _laid_out(computed[output.result], output, storages)
    # Views are made after the writes: what they show is what eager mode leaves there.
    for i, value in zip(found.plan.written, computed[len(found.plan.picked) :], strict=True):
        args[i].copy_(value)
    for i, output in enumerate(found.plan.outputs):
        if isinstance(output, Alias):
            results[i] = args[output.argument] if output.view is None else output.view.of(args[output.argument])
    return _with_grad(found.plan, args, results) if grad else tuple(results)


def _laid_out(value: torch.Tensor, output: Computed, storages: dict[int, torch.Tensor]) -> torch.Tensor:
    """The result with the strides and device of eager mode, in the storage that it shares with other outputs."""
    if not output.plain:
        base = storages.get(output.storage) if output.storage is not None else None
        if base is None:
            base = torch.empty(output.elements, dtype=output.dtype)
        if output.storage is not None:
            storages[output.storage] = base
        value = output.place.fill(base, value)
    return value if output.device.type == "cpu" else value.to(output.device)


class _InferenceOnly(torch.autograd.Function):
    """The identity on results; its backward pass raises an error that says why there is no gradient."""

    @staticmethod
    def forward(ctx: Any, size: int, *tensors: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors[:size])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise CuvilError(
            "backward through a graph that backend cuvil compiled: it compiles for inference only, there is no "
            "gradient; call the model under torch.no_grad(), or train it without torch.compile(backend='cuvil')"
        )


def _with_grad(made: Plan, args: Sequence[Any], results: list[Any]) -> tuple[Any, ...]:
    """Connects the results that have a gradient in eager mode with the inputs that require one, so that `backward`
    raises."""
    chosen = [i for i, o in enumerate(made.outputs) if isinstance(o, Computed) and o.requires_grad]
    if chosen:
        sources = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
        connected = _InferenceOnly.apply(len(chosen), *(results[i] for i in chosen), *sources)  # type: ignore[no-untyped-call]
        for i, value in zip(chosen, connected, strict=True):
            results[i] = value
    return tuple(results)


__all__ = ["BackendOptions", "backend"]
