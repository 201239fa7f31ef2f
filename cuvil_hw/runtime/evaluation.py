"""Evaluates a program on data: accuracy against labels, and noise against the float model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.device import Array, Port, one_sample
from cuvil_hw.errors import InputError
from cuvil_hw.runtime.inputs import as_array

if TYPE_CHECKING:
    from cuvil_hw.runtime.executable import Executable

POOR_DB = 20.0  # below it the error is more than a tenth of the signal
CHUNK = 256  # samples of one run
# Outputs of the float model, one array for each, for samples one after another.
Reference = Callable[[Iterable[Sequence[Array]]], Iterator[Sequence[Array]]]


@dataclass
class Noise:
    """Sums over samples: the energy of the wanted values, and of their differences from the values that the program
    gave."""

    signal: float = 0.0
    noise: float = 0.0
    rows: int = 0
    same: int = 0

    def add(self, wanted: Array, got: Array) -> None:
        """Add one sample. Elements that aren't finite count only if they differ: the noise is then infinite (-99 dB).
        NaN never counts as the largest element."""
        a, b = (np.asarray(dtypes.numbers(np.asarray(x)), np.float64) for x in (wanted, got))
        equal = (a == b) | (np.isnan(a) & np.isnan(b))
        finite = np.isfinite(a) & np.isfinite(b)
        self.signal += float(np.square(a[np.isfinite(a)]).sum())
        self.noise += float(np.square(a[finite] - b[finite]).sum())
        if not (finite | equal).all():
            self.noise = math.inf
        if a.ndim and a.size:
            self.rows += 1
            self.same += int(a.argmax() == b.argmax() and not (np.isnan(a).any() or np.isnan(b).any()))

    @property
    def decibels(self) -> float | None:
        """Signal-to-noise ratio in dB; None: no difference at all; -99: no signal, or infinite noise."""
        if not self.noise:
            return None
        return round(10 * math.log10(self.signal / self.noise), 2) if self.signal and self.noise < math.inf else -99.0

    @property
    def same_largest(self) -> float | None:
        return self.same / self.rows if self.rows else None


def lost(decibels: float) -> str:
    """The error as a share of the signal, in words."""
    return f"{10 ** (-decibels / 20):.2g}"


def is_scores(shape: Sequence[int]) -> bool:
    """Whether an output of this shape holds one number for each of several classes."""
    return len(shape) >= 1 and shape[-1] > 1 and math.prod(shape) == shape[-1]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `Executable.evaluate`.

    Attributes:
        accuracy: share of samples, 0 to 1, whose largest output is the label; None without labels.
        top: by k, share of samples whose label is among the k largest outputs; empty without labels.
        float_accuracy: accuracy of the float model; None without labels or float model.
        sqnr_db: by output, signal-to-quantization-noise ratio against the float model, in dB; None: no difference.
        same_largest: share of samples whose largest element is the same as the float model's; None without float model.
        saturated: by input, share of elements outside the range seen in calibration.
        warnings: what is wrong, with figures.
    """

    samples: int
    accuracy: float | None = None
    top: Mapping[int, float] = field(default_factory=dict)
    float_accuracy: float | None = None
    sqnr_db: Mapping[str, float | None] = field(default_factory=dict)
    same_largest: float | None = None
    device_seconds: float = 0.0
    saturated: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def evaluate(
    program: Executable, data: Any, labels: Any, reference: Any, top: Sequence[int], built_in: Reference | None
) -> Evaluation:
    """See Executable.evaluate."""
    stacks = stacks_of(program.inputs, data)
    count = len(stacks[0])
    outputs, seconds = outputs_on(program, stacks, count)
    floats = _floats(program.outputs, stacks, reference, built_in)
    right = ranked(outputs[0], labels, top) if labels is not None else {}
    noise = {p.name: Noise() for p in program.outputs}
    for i, wanted in enumerate(floats or ()):
        for total, a, b in zip(noise.values(), wanted, outputs, strict=True):
            total.add(a, b[i])
    first = noise[program.outputs[0].name]
    by_float = None
    if floats is not None and labels is not None:
        by_float = ranked(np.stack([w[0] for w in floats]), labels, (1,))[1]
    ranges = {r["name"]: (r["lo"], r["hi"]) for r in program.report.get("quantization", {}).get("inputs", ())}
    known = [(p.name, s) for p, s in zip(program.inputs, stacks, strict=True) if p.name in ranges]
    beyond = {name: _beyond(stack, *ranges[name]) for name, stack in known}
    decibels = {name: total.decibels for name, total in noise.items()} if floats is not None else {}
    return Evaluation(
        samples=count,
        accuracy=right.get(1),
        top={k: share for k, share in right.items() if k != 1 or 1 in top},
        float_accuracy=by_float,
        sqnr_db=decibels,
        same_largest=first.same_largest if floats is not None and is_scores(program.outputs[0].shape) else None,
        device_seconds=seconds,
        saturated=beyond,
        warnings=(*_far(decibels), *_wrong_scale(program.inputs, stacks, ranges, beyond)),
    )


def _far(decibels: Mapping[str, float | None]) -> Iterator[str]:
    for name, value in decibels.items():
        if value is not None and value < POOR_DB:
            yield f"output {name}: {value:.1f} dB signal to noise against float: an error of {lost(value)} of it"


def _wrong_scale(
    ports: Sequence[Port],
    stacks: Sequence[Array],
    ranges: Mapping[str, tuple[float, float]],
    beyond: Mapping[str, float],
) -> Iterator[str]:
    for port, stack in zip(ports, stacks, strict=True):
        if port.name not in ranges or not stack.size:
            continue
        lo, hi = ranges[port.name]
        seen = f"[{stack.min():.4g}, {stack.max():.4g}] where calibration saw [{lo:.4g}, {hi:.4g}]"
        if beyond[port.name] > 0.1:
            yield (
                f"input {port.name}: is {seen}, {beyond[port.name]:.0%} of its elements saturate; calibrate with data "
                "of the same scale"
            )
        elif np.abs(stack).max() * 16 < max(abs(lo), abs(hi)):
            yield f"input {port.name}: is {seen}, less than 4 bits of its range; calibrate with data of the same scale"


def _beyond(stack: Array, lo: float, hi: float) -> float:
    margin = 0.01 * (hi - lo)
    return float(((stack < lo - margin) | (stack > hi + margin)).mean()) if stack.size else 0.0


def stacks_of(ports: Sequence[Port], data: Any) -> list[Array]:
    """(N, *shape of the port) of each input. Raises InputError."""
    if isinstance(data, Mapping):
        missing = [p.name for p in ports if p.name not in data]
        if missing or len(data) != len(ports):
            names = ", ".join(p.name for p in ports)
            raise InputError(f"data names {', '.join(map(str, data))}; the inputs are {names}")
        data = tuple(data[p.name] for p in ports)
    given = data if isinstance(data, tuple) else (data,)
    if len(given) != len(ports):
        raise InputError(f"{len(given)} arrays given, the program has inputs {', '.join(p.name for p in ports)}")
    stacks = []
    for value, port in zip(given, ports, strict=True):
        array = as_array(value, port)
        if array.shape[1:] != port.shape and (1, *array.shape[1:]) == port.shape:
            array = array[:, None]
        if not array.ndim or array.shape[1:] != port.shape:
            raise InputError(f"data for input {port.name!r} has shape {array.shape}, expected (N, *{port.shape})")
        stacks.append(array)
    if len({len(s) for s in stacks}) > 1 or not len(stacks[0]):
        counts = ", ".join(str(len(s)) for s in stacks)
        raise InputError(f"inputs have {counts} samples; give equally many of each, and one at least")
    return stacks


def outputs_on(program: Executable, stacks: Sequence[Array], count: int) -> tuple[list[Array], float]:
    """Every output as (N, *shape), and the device time in seconds. What the program writes into its inputs is
    discarded."""
    ports = [*program.inputs, *program.outputs]
    together = not program.state and one_sample(*ports)
    step = CHUNK if together else 1
    written = {w.input for w in program.artifact.manifest.calling.writes}
    program.reset()
    parts: list[Sequence[Array]] = []
    seconds = 0.0
    for start in range(0, count, step):
        parted = zip(program.inputs, (s[start : start + step] for s in stacks), strict=True)
        given = [np.array(s) if p.name in written else s for p, s in parted]
        pairs = zip(program.inputs, given, strict=True)
        ready = [g.reshape(-1, *p.shape[1:]) if together else g[0, ...] for p, g in pairs]
        run = program.run(dict(zip((p.name for p in program.inputs), ready, strict=True)))
        outputs = (as_array(r, p) for r, p in zip(run.outputs, program.outputs, strict=True))
        parts.append([o if together else o[None] for o in map(dtypes.numbers, outputs)])
        seconds += run.device_seconds
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return [a.reshape(count, *p.shape) for a, p in zip(joined, program.outputs, strict=True)], seconds


def _floats(
    ports: Sequence[Port], stacks: Sequence[Array], reference: Any, built_in: Reference | None
) -> list[Sequence[Array]] | None:
    """The float model's outputs for each sample, from `reference`: a function of the inputs, or arrays.

    Raises InputError when that isn't one array per output with one entry per sample.
    """
    if reference is None and built_in is None:
        return None
    count = len(stacks[0])
    if reference is not None and not callable(reference):
        arrays = reference if isinstance(reference, tuple) else (reference,)
        return list(zip(*_references(arrays, ports, (count,)), strict=True))
    if reference is None:
        assert built_in is not None
        return list(built_in(zip(*stacks, strict=True)))
    found: list[Sequence[Array]] = []
    for sample in zip(*stacks, strict=True):
        result = reference(*(np.array(s) for s in sample))  # it may write into them
        results = result if isinstance(result, tuple | list) else (result,)
        found.append(_references(results, ports, ()))
    return found


def _references(values: Sequence[Any], ports: Sequence[Port], lead: tuple[int, ...]) -> list[Array]:
    """(*lead, *shape) for each output; dimensions of 1 may be left out or added. Raises InputError."""
    if len(values) != len(ports):
        names = ", ".join(p.name for p in ports)
        raise InputError(f"reference has {len(values)} outputs; the program has {len(ports)}: {names}")
    found = []
    for value, port in zip(values, ports, strict=True):
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as e:  # ragged lists, tensors with gradients
            raise InputError(f"reference for output {port.name!r} is no array: {e}") from e
        wanted = (*lead, *port.shape)
        same = [n for n in array.shape[len(lead) :] if n != 1] == [n for n in port.shape if n != 1]
        if array.shape[: len(lead)] != lead or not same or array.dtype.kind not in "biuf":
            samples = f", a row for each of {lead[0]} samples" if lead else ""
            raise InputError(
                f"reference for output {port.name!r} is {array.dtype} {array.shape}, expected numbers {wanted}{samples}"
            )
        found.append(array.reshape(wanted))
    return found


def ranked(scores: Array, labels: Any, top: Sequence[int]) -> dict[int, float]:
    """Share of rows of `scores` (N, …) whose label is among the k largest elements, for k = 1 and each k of `top` that
    is less than the classes. Raises InputError as `places`."""
    found, classes = places(scores, labels), math.prod(scores.shape[1:])
    return {k: float((found < k).mean()) for k in sorted({1, *top}) if k < classes or k == 1}


def places(scores: Array, labels: Any) -> Array:
    """(N,): how many elements of each row of `scores` (N, …), counted through the row, are ahead of its label's; as
    many as there are classes for rows with NaN and for labels that are no class. `labels`: (N,) integers. Raises
    InputError."""
    wanted = np.asarray(labels)
    classes = math.prod(scores.shape[1:])
    one_each = wanted.ndim == 1 and wanted.dtype.kind in "iu" and scores.shape[:1] == wanted.shape
    if not one_each or not len(wanted) or classes < 2:
        raise InputError(
            f"labels of {wanted.dtype} {wanted.shape} for scores of shape {scores.shape}; give one whole number, the "
            "class, for each sample"
        )
    scores = scores.reshape(len(wanted), classes)
    own = np.take_along_axis(scores, np.clip(wanted, 0, scores.shape[1] - 1)[:, None].astype(np.int64), axis=1)
    at = np.arange(scores.shape[1])
    ahead = ((scores > own) | ((scores == own) & (at < wanted[:, None]))).sum(axis=1)  # the first of equals counts
    valid = (wanted >= 0) & (wanted < scores.shape[1])
    if scores.dtype.kind == "f":
        valid &= ~np.isnan(scores).any(axis=1)
    return np.where(valid, ahead, classes)
