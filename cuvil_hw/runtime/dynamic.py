"""A compiled program with open shapes: determines the sizes of a call and runs the program compiled for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from cuvil_hw.contract.device import Array, Port
from cuvil_hw.errors import CuvilError, DeviceError, InputError
from cuvil_hw.errors.quoting import visible, xml
from cuvil_hw.extent.domain import bind
from cuvil_hw.report.report import Report
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime import forks, native
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.executable import Executable, Run
from cuvil_hw.runtime.gate import Gate
from cuvil_hw.runtime.inputs import as_array, is_tensor, to_tensor
from cuvil_hw.runtime.open_program import OpenPort, OpenProgram, pack, unpack
from cuvil_hw.runtime.split import cut, join, parts

# Programs compiled on demand that are kept; the one used longest ago goes. Its build stays in the cache on disk.
KEEP = 16
T = TypeVar("T")
Compiler = Callable[[Mapping[str, int]], Artifact]


@dataclass
class _Slot:
    """The program for one size.

    `listed`: it was listed by the user and is never dropped. `gate`: counts the calls that use it. `turn`: number of
    its last use.
    """

    sizes: dict[str, int]
    listed: bool
    artifact: Artifact | None = None
    executable: Executable | None = None
    turn: int = 0
    gate: Gate = field(default_factory=Gate)
    lock: threading.Lock = field(default_factory=threading.Lock)


class DynamicExecutable:
    """A program that accepts every size within the bounds of its open dimensions. Made by `cuvil.compile` with
    `shapes=…` and by `cuvil.load`; called, saved and closed like an Executable, also from several threads.

    Each size has its own program; all share the weights. Listed sizes (`Dim(…, sizes=…)`) are compiled ahead. Any other
    size is compiled at its first call, in the process that has the model (the one that compiled it); the last KEEP of
    these are kept. Without the model, other sizes are padded, or cut into parts, for the listed programs if that gives
    exact results (`batch`); otherwise they are refused.
    """

    def __init__(
        self,
        program: OpenProgram,
        artifacts: Mapping[str, Artifact],
        interface: str | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        """`artifacts`: programs by key, at least one. `compiler`: compiles a program for any size, or raises. Raises
        ArtifactError."""
        self.program = program
        self._compiler = compiler
        self._slots = {key: _Slot(_sizes(key), True, artifact) for key, artifact in artifacts.items()}
        first = next(iter(artifacts.values()))
        self._template = Executable(first, interface)  # says how the model is called; never opened
        self.interface = self._template.interface
        self._turn = 0
        self._closed = False
        # One fabric holds one design at a time.
        rules = [axis.get("rule") for axis in first.manifest.profile.get("axes", ()) if isinstance(axis, Mapping)]
        self._one_at_a_time = "sum" in rules and self.interface == "hw"
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Reset the locks in a forked process: no other thread exists there."""
        self._state = threading.Lock()
        self._alone = threading.Lock() if self._one_at_a_time else None
        for slot in self._slots.values():
            slot.gate, slot.lock = Gate(), threading.Lock()

    @property
    def name(self) -> str:
        return self.program.model

    @property
    def inputs(self) -> tuple[OpenPort, ...]:
        return self.program.inputs

    @property
    def outputs(self) -> tuple[OpenPort, ...]:
        return self.program.outputs

    @property
    def sizes(self) -> tuple[dict[str, int], ...]:
        """The sizes that have a program, ordered by name."""
        with self._state:
            return tuple(dict(s.sizes) for _, s in sorted(self._slots.items()) if s.artifact is not None)

    @property
    def report(self) -> Report:
        """The report of the first size, with the open shapes; `at(B=8).report` is that of another size."""
        report = self._template.report
        report["open"] = {
            "dims": str(self.program.domain),
            "inputs": [str(p) for p in self.inputs],
            "outputs": [str(p) for p in self.outputs],
            "sizes": [self.program.domain.key(s) for s in self.sizes],
            "proven": self.program.proven,
            "batch": list(self.program.batch),
        }
        first = self.program.domain.key(_sizes(next(iter(self._slots))))
        proof = "proven for all of them" if self.program.proven else f"not proven for all: {self.program.note}"
        report["notes"] = [
            *report.get("notes", []),
            f"shapes are open: {self.program.domain}; figures are those of {first}",
            *(f"input {p}" for p in self.inputs),
            *(f"output {p}" for p in self.outputs),
            f"shape rules: {proof}",
        ]
        return report

    @property
    def proven(self) -> bool:
        """Whether the model's shape rules were proven for all sizes; `report` says why not."""
        return self.program.proven

    @property
    def batch(self) -> tuple[str, ...]:
        """Dimensions along which every row is computed independently (proven), so that sizes may be cut and padded."""
        return self.program.batch

    @property
    def programs(self) -> dict[str, Artifact]:
        """The program of each size that has one, by key (`B=8,S=64`)."""
        with self._state:
            return {key: s.artifact for key, s in sorted(self._slots.items()) if s.artifact is not None}

    @property
    def state(self) -> dict[str, Array]:
        """Empty: programs with open shapes keep nothing between calls."""
        return {}

    def reset(self) -> None:
        """Nothing to do: there is no state."""

    @property
    def sources(self) -> dict[str, str]:
        """Generated text files of every size: `B=8/model.c`."""
        programs = {key: Executable(a, self.interface) for key, a in self.programs.items()}
        return {f"{key}/{name}": text for key, p in programs.items() for name, text in p.sources.items()}

    @property
    def ir(self) -> str:
        """Level1 text with the open shapes as attributes."""
        return self.program.level1

    @property
    def artifact(self) -> Artifact:
        """All programs so far, in one artifact. Raises ArtifactError."""
        return pack(self.program, self.programs, self.report)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an artifact with every program so far. Raises ArtifactError; CuvilError for the name of a library,
        which has one size."""
        if native.kind_of(path) is not None:
            names = ", ".join(f"{d.name}=…" for d in self.program.domain.dims)
            raise CuvilError(f"{self.name}: has open shapes, and a library has one size: save one, program.at({names})")
        container.write(path, self.artifact)

    def at(self, /, **sizes: int) -> Executable:
        """A separate Executable for these sizes, compiled if needed; the caller closes it. Raises InputError for sizes
        outside the bounds, and what compiling raises."""
        if set(sizes) != {d.name for d in self.program.domain.dims}:
            names = ", ".join(d.name for d in self.program.domain.dims)
            raise InputError(f"{self.name}: give a size for each of {names}, not for {', '.join(sizes) or 'none'}")
        refusal = self.program.domain.refusal(sizes)
        if refusal is not None:
            raise InputError(f"{self.name}: {refusal}")
        return self._inside(sizes, lambda artifact, _: Executable(artifact, self.interface))

    def open(self) -> None:
        """Open the device with the first program now. Raises as `Executable.open` does."""
        self._inside(_sizes(next(iter(self._slots))), lambda _, executable: executable.open())

    def close(self) -> None:
        """Wait for calls in other threads, then free every device. May be called twice."""
        self._closed = True
        with self._state:
            slots = list(self._slots.values())
        for slot in slots:
            slot.gate.close()
            _shut(slot)

    def __copy__(self) -> DynamicExecutable:
        """The same programs, with devices of their own."""
        return DynamicExecutable(self.program, self.programs, self.interface, self._compiler)

    def __deepcopy__(self, memo: dict[int, Any]) -> DynamicExecutable:
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.name}: a program isn't pickled; save it, and cuvil.load it in the other process")

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        return self._template.structured(self.run(*args, **named).outputs)

    def run(self, /, *args: Any, **named: Any) -> Run:
        """As calling, but returns device time and counters too. Raises InputError for inputs of wrong sizes (naming
        input, dimension, size and rule), and what `Executable.run` raises."""
        values = self._template.bound(args, named)
        arrays = {p.name: as_array(values[p.name], Port(p.name, (), p.dtype)) for p in self.inputs}
        shapes = {p.name: p.shape for p in self.inputs}
        try:
            sizes = bind(shapes, {n: a.shape for n, a in arrays.items()}, self.program.domain)
        except InputError as e:
            raise InputError(f"{self.name}: {e}") from e
        with self._alone if self._alone is not None else nullcontext():
            dim = self._split_along(sizes)
            if dim is None:
                return self._run(sizes, values)
            return self._run_parts(sizes, dim, arrays, any(map(is_tensor, values.values())))

    def _run(self, sizes: dict[str, int], values: Mapping[str, Any]) -> Run:
        return self._inside(sizes, lambda _, executable: executable.run(dict(values)))

    def _inside(self, sizes: Mapping[str, int], use: Callable[[Artifact, Executable], T]) -> T:
        """Call `use` with the program of these sizes, which can't be dropped or closed meanwhile. Raises as `_slot`,
        `_made` and `use` do."""
        while True:
            slot = self._slot(sizes)
            with slot.gate.inside():
                if not slot.gate.closed:
                    return use(*self._made(slot))
            # It was shut between being found and being entered: find another.

    def _run_parts(self, sizes: dict[str, int], dim: str, arrays: Mapping[str, Array], tensors: bool) -> Run:
        cuts = parts(sizes[dim], self._beside(sizes, dim))
        runs = [self._run({**sizes, dim: p.size}, cut(arrays, self.inputs, dim, p)) for p in cuts]
        outputs: list[Any] = join([r.outputs for r in runs], self.outputs, dim, cuts)
        if tensors:
            outputs = [to_tensor(o, p.dtype) for o, p in zip(outputs, self.outputs, strict=True)]
        return Run(tuple(outputs), runs[0].samples, sum(r.device_seconds for r in runs), runs[-1].counters)

    def _split_along(self, sizes: Mapping[str, int]) -> str | None:
        """The dimension along which the call must be split, because these sizes have no program and can't get one but
        listed programs serve parts of it; None: no split is needed. Raises InputError when there is no way."""
        slot = self._slots.get(self.program.domain.key(sizes))
        if self._compiler is not None or (slot is not None and slot.artifact is not None):
            return None
        for dim in self.program.batch:
            if sizes[dim] and self._beside(sizes, dim):
                return dim
        key = self.program.domain.key(sizes)
        raise InputError(f"{self.name}: there is no program for {key}; {self._nearest(sizes)}")

    def _beside(self, sizes: Mapping[str, int], dim: str) -> list[int]:
        """The sizes of `dim` that have programs while all other dimensions have these sizes."""
        fixed = {n: v for n, v in sizes.items() if n != dim}
        beside = [s for s in self.sizes if fixed.items() <= s.items()]
        return sorted(s[dim] for s in beside if s[dim] > 0)

    def _nearest(self, sizes: Mapping[str, int]) -> str:
        def far(there: Mapping[str, int]) -> tuple[int, str]:
            return sum(abs(there[n] - v) for n, v in sizes.items()), self.program.domain.key(there)

        shown = " or ".join(self.program.domain.key(s) for s in sorted(self.sizes, key=far)[:3])
        return f"nearest are {shown}; compile it again with this size among Dim(…, sizes=…)"

    def _slot(self, sizes: Mapping[str, int]) -> _Slot:
        """The slot of these sizes, created if needed, with its gate open. It isn't dropped while a thread is inside its
        gate. Raises DeviceError after `close`."""
        with self._state:
            if self._closed:
                raise DeviceError(f"{self.name}: is closed; load it again with cuvil.load")
            self._turn += 1
            slot = self._slots.setdefault(self.program.domain.key(sizes), _Slot(dict(sizes), False))
            slot.turn = self._turn
            slot.gate.closed = False  # `_free` closed it, under this lock, and is done with it or was interrupted
            self._drop(slot)
            return slot

    def _made(self, slot: _Slot) -> tuple[Artifact, Executable]:
        """The slot's program, compiled once even if several threads wait for it. Call it inside the slot's gate."""
        with slot.lock:
            if slot.artifact is None:
                slot.artifact = self._compile(slot)
            if slot.executable is None:
                if self._alone is not None:
                    self._shut_others(slot)
                slot.executable = Executable(slot.artifact, self.interface)
            return slot.artifact, slot.executable

    def _compile(self, slot: _Slot) -> Artifact:
        if self._compiler is None:
            key = self.program.domain.key(slot.sizes)
            raise InputError(f"{self.name}: there is no program for {key}; {self._nearest(slot.sizes)}")
        try:
            return self._compiler(slot.sizes)
        except CuvilError as e:
            e.add_note(f"while compiling {self.name} for {self.program.domain.key(slot.sizes)}")
            raise

    def _shut_others(self, mine: _Slot) -> None:
        with self._state:
            for slot in self._slots.values():
                if slot is not mine:
                    _free(slot)

    def _drop(self, mine: _Slot) -> None:
        """Free programs that were compiled on demand, the least recently used first, until KEEP are left; also forget
        sizes that could not be compiled."""
        spare = [(s.turn, key) for key, s in self._slots.items() if not s.listed and s is not mine and s.gate.idle()]
        extra = sum(not s.listed and (s is mine or s.artifact is not None) for s in self._slots.values()) - KEEP
        for _, key in sorted(spare):
            slot = self._slots[key]
            if slot.artifact is None or extra > 0:
                had = slot.artifact is not None
                if _free(slot):
                    extra -= had
                    del self._slots[key]

    def __enter__(self) -> DynamicExecutable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        ins, outs = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        adapter = self._template.artifact.manifest.adapter
        where = f"for {adapter} ({self.interface})"
        return visible(f"<DynamicExecutable {self.name} {where}: ({ins}) -> ({outs}), {self.program.domain}>")

    def _repr_html_(self) -> str:
        """For notebooks: the program and the report of its first size."""
        return f"<p><code>{xml(repr(self))}</code></p>{self.report._repr_html_()}"


def restore(artifact: Artifact, interface: str | None) -> DynamicExecutable:
    """The program in an artifact of `DynamicExecutable.save`. Raises ArtifactError."""
    program, artifacts = unpack(artifact)
    return DynamicExecutable(program, artifacts, interface)


def _sizes(key: str) -> dict[str, int]:
    """The inverse of Domain.key."""
    return {name: int(size) for name, _, size in (part.partition("=") for part in key.split(","))}


def _free(slot: _Slot) -> bool:
    """Close the program, unless a thread is inside: then return False. Its gate stays closed until the slot is used
    again."""
    slot.gate.closed = True  # first: who enters from here on sees it and leaves
    if not slot.gate.idle():
        return False
    with slot.lock:
        _shut(slot)
    return True


def _shut(slot: _Slot) -> None:
    if slot.executable is not None:
        slot.executable.close()
        slot.executable = None


__all__: Sequence[str] = ("KEEP", "DynamicExecutable", "restore")
