"""A compiled program that can be called. Needs NumPy and PyYAML only."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract import calling, canonical, registry, signature
from cuvil_hw.contract.device import Array, Loaded, Port, one_sample
from cuvil_hw.contract.timing import CYCLES, RTL, Timing, timing_of
from cuvil_hw.errors import ArtifactError, DeviceError, InputError
from cuvil_hw.errors.quoting import visible, xml
from cuvil_hw.report.report import Report
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime import evaluation, forks, native
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.bound import Bound, outputs_of
from cuvil_hw.runtime.bundle import ACCELERATED
from cuvil_hw.runtime.evaluation import Evaluation
from cuvil_hw.runtime.inputs import (
    as_array,
    bind,
    check_apart,
    check_writable,
    is_tensor,
    to_caller,
    to_tensor,
    write_back,
)
from cuvil_hw.runtime.opened import Opened
from cuvil_hw.runtime.parts import calling_of, host_programs, is_direct, load_on_device, type_of
from cuvil_hw.telemetry.spans import span


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one call.

    Attributes:
        outputs: fresh arrays (or CPU tensors), in the order of the ports.
        samples: number of samples that ran.
        device_seconds: time on the device for all samples.
        counters: by layer, what the device counted since it was opened, such as saturations.
    """

    outputs: tuple[Any, ...]
    samples: int
    device_seconds: float
    counters: Mapping[str, Mapping[str, int]]


class Executable:
    """A compiled program and the device that it runs on; call it with arrays. Made by `cuvil.compile` and `cuvil.load`.

    Device: opened by `open` or by the first call; closed by `close` or at the end of a `with` block. Calls from several
    threads are safe.

    Inputs: one NumPy array, torch tensor or nested list per input, by position or by name; `runtime/inputs.py` states
    the conversion rules. If the first dimension of every input and output is 1, N ≥ 0 samples may be passed at once;
    each gives the same result as alone. An input that the model writes into must be a tensor or a writable array of
    exactly its type; after the call it holds what the model wrote.

    Outputs: one output is returned as it is, several as a tuple. If any input is a torch tensor, results are CPU
    tensors without gradient, else arrays.

    State: a program with state (`state` isn't empty) keeps it from call to call. Calls then run one after another and
    take one sample each. A call that raises leaves the state unchanged.

    PyTorch models: the program is called like the model, with nested and keyword arguments, and returns the same
    structure. Arrays may also be given by the names of `inputs` (one mapping, or keywords). Python values that the
    model was compiled for may be left out if they are defaults; other values are refused. Results in the model's own
    classes are built by programs from `cuvil.compile`; programs from `cuvil.load` return dicts instead.
    """

    def __init__(
        self, artifact: Artifact, interface: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """`options`: of the interface, as cuvil.load takes them. Raises ArtifactError when the parts of the artifact
        contradict each other."""
        if "open" in artifact.manifest.info:
            raise ArtifactError(
                f"{artifact.manifest.model}: has open shapes: one program for each size; take one of them by "
                "cuvil.load(path).at(…)"
            )
        if ACCELERATED in artifact.manifest.info:
            raise ArtifactError(
                f"{artifact.manifest.model}: holds the programs of an accelerated model, which need the model's code; "
                "give the file to cuvil.accelerate(model, programs=…)"
            )
        self.artifact = artifact
        self.interface = interface if interface is not None else artifact.manifest.interface
        self.options = dict(options or {})
        constants = artifact.constants()
        self._prologue, self._epilogue = host_programs(artifact, constants)
        self._calling, self._initial = calling_of(artifact, constants)
        self._kept = dict(self._initial)
        self._closed = False
        # What was quantized: set by the compiler, not stored in artifacts.
        self.float_model: evaluation.Reference | None = None
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """A forked process opens its own device; the one opened by its parent stays the parent's."""
        self._turn = threading.Lock()  # of calls with state
        self._opening = threading.RLock()  # a handler of signals may call `close` while its thread opens
        self._opened: Opened | None = None
        self._direct: Any = None

    @property
    def name(self) -> str:
        return self.artifact.manifest.model

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs that a caller gives; state isn't among them."""
        kept = self._calling.kept_inputs
        return tuple(p for p in self.artifact.manifest.inputs if p.name not in kept)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs that a caller gets; state and guards aren't among them."""
        kept = self._calling.kept_outputs
        return tuple(p for p in self.artifact.manifest.outputs if p.name not in kept)

    @property
    def state(self) -> dict[str, Array]:
        """Copies of what is kept between calls, by name; empty for a program without state."""
        with self._turn:
            return {name: array.copy() for name, array in self._kept.items()}

    def reset(self) -> None:
        """Restore the initial state; waits for a running call."""
        with self._turn:
            self._kept = dict(self._initial)

    @property
    def report(self) -> Report:
        """The compiler's report: resources, cycles, choices; a dict with `text()`, `html()` and `save_html(path)`. A
        fresh copy."""
        try:
            return Report(canonical.parse(self.artifact.files.get(container.REPORT, b"{}")))
        except (ValueError, TypeError) as e:
            raise ArtifactError(f"{self.name}: {container.REPORT}: {e}; compile it again") from e

    @property
    def sources(self) -> dict[str, str]:
        """Generated text files by path; binary ones are left out."""
        found = {}
        for name, data in self.artifact.files.items():
            if name.startswith(container.SOURCES) and b"\0" not in data:
                try:
                    found[name.removeprefix(container.SOURCES)] = data.decode("utf-8")
                except UnicodeDecodeError:
                    continue
        return found

    @property
    def ir(self) -> str:
        """The level1 IR, as MLIR text."""
        return self.artifact.ir

    def open(self) -> None:
        """Open the device now. Raises ToolNotFound, DeviceError or CuvilError when it can't be, ArtifactError when the
        products are for another kind of machine."""
        self._open()

    def close(self) -> None:
        """Wait for calls in other threads, then free the device and the extracted files. May be called twice. If called
        during a call of the same thread (by a signal handler), they are freed when that call ends."""
        self._closed = True
        with self._opening:
            opened = self._opened
        if opened is not None:
            opened.close()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact; or, for a path that ends in .so, .a or .c, a library for C with its header beside it
        (docs/native.md). Raises ArtifactError; for a library CuvilError if the program can't be one, ToolNotFound and
        BuildFailed."""
        if native.kind_of(path) is not None:
            native.save(self.artifact, path)
        else:
            container.write(path, self.artifact)

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        if self._direct is not None and not named:
            made = self._direct(*args)
            if made is not None:
                return made
        return self.structured(self.run(*args, **named).outputs)

    def structured(self, outputs: Sequence[Any]) -> Any:
        """`outputs` of a run in the structure that a call returns."""
        called = self._calling.signature
        if called is None:
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        made = dict(zip((p.name for p in self.outputs), outputs, strict=True))
        if self._calling.rebuild is not None:
            return self._calling.rebuild(made)
        return signature.give(called.result, made)

    def run(self, /, *args: Any, **named: Any) -> Run:
        """As calling, but returns device time and counters too.

        Raises:
            InputError: wrong inputs.
            GuardError: values for which the program wasn't compiled, such as a loop that needs more iterations.
            DeviceError: from the device, or after `close`.

        Also raises what `open` raises.
        """
        values = self.bound(args, named)
        arrays = {p.name: as_array(values[p.name], p) for p in self.inputs}
        calling.check_ranges(self._calling, arrays, self.name)
        for write in self._calling.writes:
            check_writable(values[write.input], arrays[write.input], write.input)
            check_apart(values, write.input)
        n = self._samples(arrays)
        opened = self._open()
        try:
            turn = self._turn if self._calling.states else nullcontext()
            with span("cuvil.call", program=self.name, interface=self.interface, samples=n), turn, opened.inside():
                kept, loaded = dict(self._kept), opened.loaded()
                stacks = self._stack(arrays | kept, n)
                outputs, seconds = self._evaluate(loaded, stacks, n)
                made = dict(zip((p.name for p in self.artifact.manifest.outputs), outputs, strict=True))
                calling.check_guards(self._calling, made, self.name)
                kept.update({s.input: made[s.output][0].copy() for s in self._calling.states})
                counters = loaded.counters()
                self._kept = kept  # last: a call that raises leaves the state as it was
        finally:
            if opened.closed:
                opened.close()
        for write in self._calling.writes:
            write_back(values[write.input], made[write.output])
        results = self._fresh([made[p.name] for p in self.outputs], stacks, n)
        if any(is_tensor(v) for v in values.values()):
            results = [to_tensor(r, p.dtype) for r, p in zip(results, self.outputs, strict=True)]
        else:
            results = list(map(to_caller, results))
        return Run(tuple(results), n, seconds, counters)

    def bind(self, /, *args: Any, out: Any = None, **named: Any) -> Bound:
        """A call on these very arrays, for one that is made again and again: `call = program.bind(x, out=y)`; each
        `call()` reads what x holds then, writes y and returns it.

        Inputs: as in a call; a torch tensor on the CPU, or any object with `__dlpack__`, shares its memory where its
        type and layout are the port's. `out`: one array, a sequence, or a mapping by name; None: fresh arrays. Raises
        InputError for arrays that don't fit, and what `open` raises.
        """
        values = self.bound(args, named)
        arrays = {p.name: as_array(values[p.name], p) for p in self.inputs}
        outputs = outputs_of(out, self.outputs, self._samples(arrays))
        self._open()
        direct = None if self._direct is None else self._direct.bind(tuple(arrays.values()), outputs)
        return Bound(direct, lambda: self.run(values).outputs, outputs)

    def evaluate(
        self, data: Any, labels: Any = None, *, reference: Any = None, top: Sequence[int] = (1, 5)
    ) -> Evaluation:
        """Measure how well the program does on `data`. State starts anew; `data` is never changed, even if the model
        writes into its inputs.

        Args:
            data: (N, *shape of the input), or a tuple or mapping of such arrays, one per input.
            labels: (N,) the class of each sample, for accuracies by the first output. A row of scores with NaN is never
                right.
            reference: the float results to compare with: a function of the inputs (such as the PyTorch model, on
                arrays), or arrays. None: the float model, if `cuvil.compile` quantized it in this process.
            top: for each k, also report the share of samples whose label is among the k largest scores.

        Raises InputError for data, labels or references that don't fit, and what `run` raises.
        """
        return evaluation.evaluate(self, data, labels, reference, top, self.float_model)

    def timing(self, depths: Mapping[str, int] | None = None) -> Timing:
        """Cycles a sample, who waits for whom and how full FIFOs are in a streaming design: of its SystemVerilog where
        the interface of this executable is "rtl", else of its sources, simulated with clocks. `depths`: words of FIFOs
        by stream, instead of the design's own; "rtl" only makes them smaller.

        Raises CuvilError where the target can't or there is no such stream, DeviceError for a deadlock, and as `open`.
        """
        with Executable(self.artifact, RTL if self.interface == RTL else CYCLES) as twin:
            return timing_of(twin._open().loaded(), depths or {}, self.name)

    def bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by port. Raises InputError."""
        names, called = [p.name for p in self.inputs], self._calling.signature
        by_name = args[0] if len(args) == 1 and not named and isinstance(args[0], Mapping) else named
        by_port = called is None or (set(by_name) == set(names) and not (args and by_name is named))
        if called is not None and not by_port:
            return signature.take(called, args, named)
        return dict(zip(names, bind(self.inputs, args, named), strict=True))

    def __copy__(self) -> Executable:
        """The same program with its own device and its own state, which starts as a copy of this one's."""
        twin = Executable(self.artifact, self.interface, self.options)
        twin._kept = dict(self._kept)
        twin.float_model = self.float_model
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Executable:
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.name}: a program isn't pickled; save it, and cuvil.load it in the other process")

    def __enter__(self) -> Executable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        manifest = self.artifact.manifest
        ins, outs = (", ".join(f"{p.name}: {type_of(p)}" for p in ports) for ports in (self.inputs, self.outputs))
        return visible(f"<Executable {self.name} for {manifest.adapter} ({self.interface}): ({ins}) -> ({outs})>")

    def _repr_html_(self) -> str:
        """For notebooks: the program and its report."""
        return f"<p><code>{xml(repr(self))}</code></p>{self.report._repr_html_()}"

    def _stack(self, arrays: Mapping[str, Array], n: int) -> list[Array]:
        """All inputs as read-only (N, *shape)."""
        stacks = []
        for port in self.artifact.manifest.inputs:
            stack = arrays[port.name].reshape(n, *port.shape).view()
            stack.flags.writeable = False
            stacks.append(stack)
        return stacks

    def _samples(self, arrays: Mapping[str, Array]) -> int:
        """The number of samples given. Raises InputError for a wrong shape."""
        if all(arrays[p.name].shape == p.shape for p in self.inputs):
            return 1
        batched = not self._calling.states and one_sample(*self.inputs, *self.outputs)
        sizes: dict[str, int] = {}
        for port in self.inputs:
            array = arrays[port.name]
            if not batched or array.ndim != len(port.shape) or array.shape[1:] != port.shape[1:]:
                free = f" (or any number in place of the first {port.shape[0]})" if batched else ""
                if array.shape == port.shape:
                    continue
                raise InputError(f"input {port.name!r}: has shape {array.shape}, expected {port.shape}{free}")
            sizes[port.name] = array.shape[0]
        if len(set(sizes.values())) != 1:
            raise InputError(f"inputs disagree on the number of samples: {sizes}")
        return next(iter(sizes.values()))

    def _evaluate(self, loaded: Loaded, stacks: Sequence[Array], n: int) -> tuple[list[Array], float]:
        if n == 0:
            return [np.empty((0, *p.shape), dtypes.to_numpy(p.dtype)) for p in self.artifact.manifest.outputs], 0.0
        before = dict(zip(self._prologue.program.inputs, stacks, strict=True))
        with span("cuvil.host.before"):
            before = self._prologue.run(before, n)
            given = [np.require(v, requirements=["C", "A"]) for v in self._prologue.pick(before, n)]
        with span("cuvil.device"), registry.blaming(registry.DEVICES, self.artifact.manifest.adapter):
            results, seconds = loaded.run(given)
        ports = self.artifact.manifest.device_outputs
        if len(results) != len(ports):
            raise DeviceError(f"{self.name}: the device gave {len(results)} outputs, {len(ports)} are declared")
        for array, port in zip(results, ports, strict=True):
            if array.shape != (n, *port.shape) or array.dtype != dtypes.to_numpy(port.dtype):
                got, want = f"{array.dtype} {array.shape}", f"{port.dtype} {(n, *port.shape)}"
                raise DeviceError(f"{self.name}: the device gave {got} for {port.name!r}, expected {want}")
        after = before | dict(zip(self._epilogue.program.inputs, results, strict=True))
        with span("cuvil.host.after"):
            return self._epilogue.pick(self._epilogue.run(after, n), n), seconds

    def _fresh(self, outputs: Sequence[Array], stacks: Sequence[Array], n: int) -> list[Array]:
        """Outputs in their ports' shapes; they share memory with nothing else."""
        taken = [*stacks, *self._epilogue.constants.values()]
        results = []
        for array, port in zip(outputs, self.outputs, strict=True):
            shape = port.shape if n == 1 else (n * port.shape[0], *port.shape[1:])
            if not array.flags.writeable or any(np.may_share_memory(array, t) for t in taken):
                array = array.copy()
            array = np.ascontiguousarray(array).reshape(shape)
            taken.append(array)
            results.append(array)
        return results

    def _open(self) -> Opened:
        with self._opening:
            if self._opened is None and not self._closed:
                opened = Opened(
                    self.name, lambda folder: load_on_device(self.artifact, self.interface, self.options, folder)
                )
                if is_direct(self.artifact.manifest):
                    self._direct = getattr(opened.loaded(), "direct", None)
                # Not bound to self: runs when the executable is collected. Opened itself sees to the process's end.
                weakref.finalize(self, opened.close).atexit = False
                self._opened = opened
            if self._closed or self._opened is None:
                if self._opened is not None:
                    self._opened.close()
                raise DeviceError(f"{self.name}: is closed; load it again with cuvil.load")
            return self._opened
