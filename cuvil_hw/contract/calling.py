"""What happens around a call besides computing outputs: state kept between calls, guards, inputs written back.

All of these are ordinary ports of the program, so every target supports them; this module says what the ports mean. It
is data and imports only NumPy: front ends create it, the artifact's manifest stores it, the executable applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.device import Array, Port
from cuvil_hw.contract.signature import Signature, ports
from cuvil_hw.errors import GuardError, InputError


@dataclass(frozen=True, slots=True)
class KeptState:
    """A value that the program keeps from call to call: `output` of one call becomes `input` of the next.

    `initial`: name of the constant that the first call gets (a digest in the constant store), of the type of both
    ports; "" for zeros.
    """

    input: str
    output: str
    initial: str = ""


@dataclass(frozen=True, slots=True)
class Guard:
    """A bool output that must be true everywhere. If it isn't, the other outputs are invalid and the call raises
    GuardError with `message`."""

    output: str
    message: str


@dataclass(frozen=True, slots=True)
class Write:
    """`output` is written into the caller's array that was given for `input`."""

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Range:
    """The range, `low` to `high` inclusive, that elements of the integer `input` must be in: indices that a caller
    gives. `part`: (start, count, step) along each axis, if only some elements are meant."""

    input: str
    low: int
    high: int
    part: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Calling:
    """What to do around a call; `states`, `guards` and `writes` name ports of the program.

    Callers don't see these ports, except inputs that are written back.

    Attributes:
        signature: how the model is called, if that is more than one array per port.
        rebuild: builds the model's own classes from outputs by name, if they are at hand (never stored).
        ranges: inputs, or parts of inputs, that are indices.
    """

    states: tuple[KeptState, ...] = ()
    guards: tuple[Guard, ...] = ()
    writes: tuple[Write, ...] = ()
    signature: Signature | None = None
    rebuild: Callable[[Mapping[str, Any]], Any] | None = field(default=None, compare=False, repr=False)
    ranges: tuple[Range, ...] = ()

    @property
    def kept_inputs(self) -> frozenset[str]:
        """Inputs that come from the executable's state, not from the caller."""
        return frozenset(s.input for s in self.states)

    @property
    def kept_outputs(self) -> frozenset[str]:
        """Outputs that the executable keeps and doesn't return."""
        pairs: tuple[KeptState | Write, ...] = (*self.states, *self.writes)
        return frozenset([*(p.output for p in pairs), *(g.output for g in self.guards)])


PLAIN = Calling()


def check(calling: Calling, inputs: Sequence[Port], outputs: Sequence[Port], constants: Mapping[str, Array]) -> None:
    """Raises ValueError when `calling` names ports or constants that don't exist or have the wrong type."""
    ins, outs = {p.name: p for p in inputs}, {p.name: p for p in outputs}
    pairs: list[KeptState | Write] = [*calling.states, *calling.writes]
    for name in (p.input for p in pairs):
        if name not in ins:
            raise ValueError(f"{name!r} is no input")
    for name in (*(p.output for p in pairs), *(g.output for g in calling.guards)):
        if name not in outs:
            raise ValueError(f"{name!r} is no output")
    for pair in pairs:
        if replace(ins[pair.input], name=pair.output) != outs[pair.output]:
            raise ValueError(f"{pair.input!r} and {pair.output!r} have different types")
    for guard in calling.guards:
        if outs[guard.output].dtype != "bool":
            raise ValueError(f"guard {guard.output!r} is {outs[guard.output].dtype}, not bool")
    for bounds in calling.ranges:
        if bounds.input not in ins or not dtypes.is_int(ins[bounds.input].dtype):
            raise ValueError(f"{bounds.input!r} is no input of integers")
        if bounds.part and not _is_part(bounds.part, ins[bounds.input].shape):
            raise ValueError(f"{bounds.part} is no part of {bounds.input!r}")
    if calling.signature is not None:
        given, kept = [n for p in calling.signature.parameters for n in ports(p.tree)], calling.kept_inputs
        if sorted(given) != sorted(set(ins) - kept):
            raise ValueError(f"the signature gives {', '.join(given)}; the inputs are {', '.join(set(ins) - kept)}")
        if unknown := [n for n in ports(calling.signature.result) if n not in set(outs) - calling.kept_outputs]:
            raise ValueError(f"the signature returns {unknown[0]!r}, which is no output that callers get")
    for state in calling.states:
        port = ins[state.input]
        if state.initial:
            array = constants.get(state.initial)
            if array is None or array.shape != port.shape or array.dtype != dtypes.to_numpy(port.dtype):
                raise ValueError(f"state {state.input!r} has no initial value of its type")


def _is_part(part: Sequence[tuple[int, int, int]], shape: Sequence[int]) -> bool:
    lines = zip(part, shape, strict=False)
    return len(part) == len(shape) and all(
        start >= 0 and n > 0 and step > 0 and start + (n - 1) * step < extent for (start, n, step), extent in lines
    )


def initial(calling: Calling, inputs: Sequence[Port], constants: Mapping[str, Array]) -> dict[str, Array]:
    """The state for the first call, by input name; fresh read-only arrays."""
    ports = {p.name: p for p in inputs}
    found = {}
    for state in calling.states:
        port = ports[state.input]
        array = np.zeros(port.shape, dtypes.to_numpy(port.dtype))
        if state.initial:
            array[...] = constants[state.initial]
        array.setflags(write=False)
        found[state.input] = array
    return found


def check_ranges(calling: Calling, inputs: Mapping[str, Array], program: str) -> None:
    """`inputs`: arrays that a caller gave, by name. Raises InputError for the first index outside its range."""
    for bounds in calling.ranges:
        given = inputs.get(bounds.input)
        if given is not None and bounds.part:  # of every sample
            lines: Any = [slice(start, start + n * step, step) for start, n, step in bounds.part]
            given = given[(..., *lines)]
        if given is not None and given.size:
            for found in (int(given.min()), int(given.max())):
                if not bounds.low <= found <= bounds.high:
                    raise InputError(
                        f"{program}: input {bounds.input!r} is an index from {bounds.low} to {bounds.high}; {found} is "
                        "given"
                    )


def check_guards(calling: Calling, outputs: Mapping[str, Array], program: str) -> None:
    """`outputs`: stacks (samples, *shape) by name. Raises GuardError for the first guard that is false."""
    for guard in calling.guards:
        ok = outputs[guard.output]
        if not ok.all():
            bad = np.flatnonzero(~ok.reshape(len(ok), -1).all(axis=1))
            at = f", sample {bad[0]} of {len(ok)}" if len(ok) > 1 else ""
            raise GuardError(f"{program}{at}: {guard.message}")
