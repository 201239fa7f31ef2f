"""Statistics of every float value of a program over sample inputs: collected once, saved, used for any quantization
scheme."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import Operation, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.contract.calling import initial
from cuvil_hw.contract.device import Port
from cuvil_hw.contract.signature import flat_calls
from cuvil_hw.errors import CuvilError, InputError
from cuvil_hw.ir import level1, loops
from cuvil_hw.ir.program import Program, constant_value
from cuvil_hw.ops import base
from cuvil_hw.passes.quantize.scale import Scale
from cuvil_hw.passes.quantize.scores import scores
from cuvil_hw.report.file import write_text
from cuvil_hw.types import TensorType

Array = npt.NDArray[Any]
BINS = 2048
VERSION = 1
KEPT = 64  # samples on which the quantized program is tried


@dataclass(frozen=True, slots=True)
class ObservedRange:
    """The observed values of one tensor over all samples. `counts`: a histogram of magnitudes over [0, absmax], equal
    bins."""

    lo: float
    hi: float
    counts: tuple[int, ...] = field(repr=False, default=())

    @property
    def absmax(self) -> float:
        return max(-self.lo, self.hi, 0.0)

    def percentile(self, percent: float = 99.9) -> float:
        """The magnitude that `percent` percent of all elements don't exceed."""
        total = sum(self.counts)
        if not total:
            return self.absmax
        reached = np.cumsum(self.counts) >= total * percent / 100
        return self.absmax * (int(np.argmax(reached)) + 1) / len(self.counts)

    def best_clip(self, bits: int) -> float:
        """The magnitude at which clipping to `bits` bits (one of them the sign if needed) gives the smallest mean
        squared error."""
        counts = np.asarray(self.counts, np.float64)
        if not counts.sum():
            return self.absmax
        centres = (np.arange(len(counts)) + 0.5) * self.absmax / len(counts)
        steps = (1 << bits) - 1 if self.lo >= 0 or self.hi <= 0 else (1 << (bits - 1)) - 1
        best, least = self.absmax, np.inf
        for clip in np.linspace(0.02, 1.0, 99) * self.absmax:
            step = clip / steps
            error = centres - np.minimum(np.rint(centres / step) * step, clip) if step > 0 else centres
            cost = float((counts * error**2).sum())
            if cost < least:
                best, least = float(clip), cost
        return best

    def clipped(self, how: str, bits: int) -> tuple[float, float]:
        """(lo, hi) by "minmax", "percentile" or "mse"."""
        if how == "minmax":
            return self.lo, self.hi
        if not self.counts:
            raise CuvilError(f"ranges by {how} need histograms: collect the statistics with histograms=True")
        clip = self.percentile() if how == "percentile" else self.best_clip(bits)
        return max(self.lo, -clip), min(self.hi, clip)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The observed ranges of a program's float values.

    Attributes:
        ranges: by number of the value (arguments first, then results in order).
        program: digest of the program that they belong to.
        samples: number of inputs seen.
        kept: the first of these inputs, to try the quantized program on (not saved).
        doubts: reasons why the data may not be what the model expects.
    """

    program: str
    samples: int
    ranges: Mapping[int, ObservedRange]
    kept: tuple[Sequence[Array], ...] = field(default=(), compare=False, repr=False)
    doubts: tuple[str, ...] = field(default=(), compare=False)

    def save(self, path: str | Path) -> None:
        """Write them as JSON. Raises CuvilError."""
        ranges = {str(k): asdict(r) for k, r in self.ranges.items()}
        found = {"version": VERSION, "program": self.program, "samples": self.samples, "ranges": ranges}
        write_text(path, json.dumps(found))

    @staticmethod
    def load(path: str | Path) -> Statistics:
        """CuvilError when the file isn't what `save` wrote."""
        try:
            data = json.loads(Path(path).read_text())
            if data["version"] != VERSION:
                raise CuvilError(f"{path}: statistics of format {data['version']}, this version reads {VERSION}")
            ranges = {
                int(k): ObservedRange(float(r["lo"]), float(r["hi"]), tuple(int(c) for c in r["counts"]))
                for k, r in data["ranges"].items()
            }
            return Statistics(str(data["program"]), int(data["samples"]), ranges)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as e:
            raise CuvilError(f"{path}: not saved calibration statistics: {e!r}") from e


def digest(program: Program) -> str:
    """A digest of a program and its weights: statistics belong to exactly one program."""
    return hashlib.sha256(program.text().encode()).hexdigest()[:32]


def numbered(program: Program) -> dict[SSAValue, int]:
    """A stable number for every value of @main."""
    values = [*program.block.args, *(r for op in program.block.ops for r in op.results)]
    return {v: i for i, v in enumerate(values)}


def collect(program: Program, samples: Any, limit: int = 512, histograms: bool = True) -> Statistics:
    """Run the float program on samples in NumPy and record the range of every float value.

    State of the program starts at its initial value and passes from sample to sample.

    Args:
        samples: an array (N, *shape of one input, with or without its batch of 1) for a program with one input; a tuple
            or list with one such array per input; or an iterable (a list of tuples, a DataLoader) of samples or
            batches. Items after the inputs, such as labels, are ignored. Torch tensors are read as arrays.
        limit: at most this many samples are used.
        histograms: also record histograms, which only ranges by percentile or error need; takes a second run.

    Raises InputError: no samples, wrong shapes, NaN or infinite values.
    """
    lows: dict[SSAValue, float] = {}
    highs: dict[SSAValue, float] = {}
    used = list(islice(each(samples, [t for _, t in program.given], [n for n, _ in program.given]), limit))
    if not used:
        raise InputError("calibration data is empty: give at least one sample")
    run, masked, scale = FloatValues(program), scores(program), Scale(program)
    for seen in run.one_after_another(used):
        for value, array in seen.items():
            if value.owner in masked:  # -infinity is what a mask has
                array = array[~np.isinf(array)]
            lo, hi = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
            lows[value], highs[value] = min(lows.get(value, lo), lo), max(highs.get(value, hi), hi)
        scale.add(seen)
    for value in lows:
        if not (math.isfinite(lows[value]) and math.isfinite(highs[value])):
            at = level1.loc_of(value.owner) if isinstance(value.owner, Operation) else ""
            raise InputError(
                f"calibration: the model gives NaN or infinity at {at or 'an unnamed op'}; check the data's scaling"
            )
    counts = {v: np.zeros(BINS if histograms else 0, np.int64) for v in lows}
    for seen in run.one_after_another(used) if histograms else ():
        for value, array in seen.items():
            top = max(-lows[value], highs[value], 0.0)
            if top > 0:  # np.histogram leaves out what lies beyond
                counts[value] += np.histogram(np.abs(array), BINS, (0.0, top))[0]
    number = numbered(program)
    ranges = {number[v]: ObservedRange(lows[v], highs[v], tuple(int(c) for c in counts[v])) for v in lows}
    return Statistics(digest(program), len(used), ranges, tuple(used[:KEPT]), scale.doubts())


def check_varies(program: Program, stats: Statistics) -> None:
    """Raises InputError if every float input had the same value everywhere: no range can be learned from that."""
    kept = program.calling.kept_inputs
    given = [(n, name) for n, (name, _) in enumerate(program.inputs) if n in stats.ranges and name not in kept]
    seen = [(name, stats.ranges[n]) for n, name in given]  # arguments are the first values
    if stats.samples and seen and all(r.lo == r.hi for _, r in seen):
        names = ", ".join(f"{name} is {r.lo:g}" for name, r in seen)
        raise InputError(
            f"calibration data is constant: {names} in all elements of {stats.samples} sample(s), from which no range "
            "can be learnt; give inputs such as the model will get"
        )


def in_order(calibration: Any, program: Program) -> Any:
    """Named arrays in the order of the program's inputs; calls as one array per input. Raises InputError."""
    signature = program.calling.signature
    if signature is not None and not signature.plain and not isinstance(calibration, Mapping):
        return flat_calls(signature, calibration, [name for name, _ in program.given])
    if not isinstance(calibration, Mapping):
        return calibration
    names = [name for name, _ in program.given]
    if set(calibration) != set(names):
        given = ", ".join(sorted(map(str, calibration)))
        raise InputError(f"calibration names {given}; the inputs of {program.name} are {', '.join(names)}")
    arrays = tuple(calibration[name] for name in names)
    return arrays[0] if len(arrays) == 1 else arrays


def without_data(program: Program) -> Statistics:
    """Empty statistics, for schemes whose grid doesn't depend on data."""
    floats = [(v, n) for v, n in numbered(program).items() if dtypes.is_float(level1.type_of(v).dtype)]
    computed = [n for v, n in floats if not isinstance(v.owner, level1.ConstOp)]
    return Statistics(digest(program), 0, {n: ObservedRange(0.0, 0.0, ()) for n in computed})


class FloatValues:
    """Computes all values of a program except constants, one sample at a time; those of a loop for all steps, along an
    axis in front of their own."""

    def __init__(self, program: Program) -> None:
        self._args = program.block.args
        self._program = program
        end = program.block.last_op
        self._outputs = tuple(end.operands) if end is not None else ()
        self._known: dict[SSAValue, Array] = {}
        self._ops: dict[Operation, base.Op] = {}
        for operation in program.block.ops:
            if isinstance(operation, level1.ConstOp):
                self._known[operation.results[0]] = constant_value(operation, program.constants)
            elif isinstance(operation, level1.TensorOp):
                op = operation.op
                if all(v in self._known for v in operation.operands) and not loops.is_edge(operation):
                    results = base.evaluate(op, [self._known[v] for v in operation.operands])
                    self._known.update(zip(operation.results, results, strict=True))
                else:
                    self._ops[operation] = op
        self._items = loops.arranged(program.block)

    def one_after_another(self, samples: Iterable[Sequence[Array]]) -> Iterator[dict[SSAValue, Array]]:
        """The float values for each sample (of the inputs that a caller gives), with state carried over."""
        for seen in self.all_values(samples):
            yield {v: a for v, a in seen.items() if a.dtype.kind == "f"}

    def results(self, seen: Mapping[SSAValue, Array]) -> list[Array]:
        """The program's outputs, from the result of `all_values`."""
        return [seen[v] if v in seen else self._known[v] for v in self._outputs]

    def all_values(self, samples: Iterable[Sequence[Array]]) -> Iterator[dict[SSAValue, Array]]:
        """The values of every type for each sample, with state carried over."""
        program = self._program
        states, names = program.calling.states, [name for name, _ in program.inputs]
        ports = [Port(name, kind.shape, kind.dtype) for name, kind in program.inputs]
        kept = initial(program.calling, ports, program.constants)
        outputs = dict(zip((name for name, _ in program.outputs), self._outputs, strict=True))
        for sample in samples:
            given = dict(zip((name for name, _ in program.given), sample, strict=True)) | kept
            seen = self._all([given[name] for name in names])
            kept = {s.input: seen[v] if (v := outputs[s.output]) in seen else self._known[v] for s in states}
            yield seen

    def _all(self, inputs: Sequence[Array]) -> dict[SSAValue, Array]:
        values: dict[SSAValue, Array] = {**self._known, **dict(zip(self._args, inputs, strict=True))}
        steps: dict[SSAValue, list[Array]] = {}

        def apply(operation: Operation) -> None:
            if (op := self._ops.get(operation)) is not None:
                results = base.evaluate(op, [values[v] for v in operation.operands])
                values.update(zip(operation.results, results, strict=True))

        def seen(value: SSAValue, array: Array) -> None:
            if value not in self._known:
                steps.setdefault(value, []).append(array)

        loops.run(self._items, values, apply, seen)
        values.update({value: np.stack(arrays) for value, arrays in steps.items()})
        return {value: array for value, array in values.items() if value not in self._known}


def each(samples: Any, types: Sequence[TensorType], names: Sequence[str]) -> Iterator[list[Array]]:
    """Samples one by one, each a list of arrays with exactly the inputs' types. Raises InputError."""
    if samples is None:
        raise InputError("calibration data is empty: give an array (N, …), or an iterable of samples")
    if is_array(samples):
        if len(types) != 1:
            raise InputError(
                f"calibration: one array given, the model has inputs {', '.join(names)}; give a tuple of arrays"
            )
        yield from split([samples], types, names)
    elif (
        isinstance(samples, tuple | list)
        and len(samples) == len(types)
        and all(is_array(s) for s in samples)
        and stacked(samples, types)
    ):
        yield from split(samples, types, names)
    elif isinstance(samples, Iterable):
        for item in samples:
            if is_array(item):
                yield from split([item], types, names)
            elif isinstance(item, tuple | list) and len(item) >= len(types):
                yield from split(item[: len(types)], types, names)  # what follows are labels
            else:
                raise InputError(f"calibration: a sample is {type(item).__name__}, expected {len(types)} array(s)")
    else:
        raise InputError(f"calibration: {type(samples).__name__} is neither an array nor an iterable of samples")


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and hasattr(value, "numpy"))


def stacked(samples: Sequence[Any], types: Sequence[TensorType]) -> bool:
    """Whether a sequence holds one array per input (rather than samples of a model with one input)."""
    return len(types) > 1 or tuple(samples[0].shape) != types[0].shape


def as_array(value: Any) -> Array:
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def split(arrays: Sequence[Any], types: Sequence[TensorType], names: Sequence[str]) -> Iterator[list[Array]]:
    """Batches of all inputs as single samples."""
    columns: list[list[Array]] = []
    for value, kind, name in zip(arrays, types, names, strict=True):
        array = as_array(value)
        if array.dtype.kind not in "fiub":
            raise InputError(f"calibration input {name}: dtype {array.dtype}, expected numbers")
        if dtypes.is_float(kind.dtype) and array.dtype.kind != "f":
            raise InputError(
                f"calibration input {name} is {array.dtype}, the model takes {kind.dtype}: scale it as in training, "
                f"such as x.astype(numpy.{dtypes.to_numpy(kind.dtype)}) / 255 for pixels"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"calibration input {name} holds NaN or infinity")
        columns.append([np.asarray(a, dtypes.to_numpy(kind.dtype)) for a in rows(array, kind, name)])
    counts = {len(c) for c in columns}
    if len(counts) > 1:
        raise InputError(
            f"calibration: inputs have {', '.join(str(len(c)) for c in columns)} samples; give equally many of each"
        )
    yield from (list(row) for row in zip(*columns, strict=True))


def rows(array: Array, kind: TensorType, name: str) -> list[Array]:
    """The samples in `array`, each of exactly the input's shape."""
    if array.shape == kind.shape:
        return [array]
    if array.shape[1:] == kind.shape:  # a stack of inputs
        return list(array)
    batch = kind.shape[0] if kind.shape else 1
    if (
        array.ndim == kind.rank and array.shape[1:] == kind.shape[1:] and batch
    ):  # a larger batch; what doesn't fill one is left
        return [array[i : i + batch] for i in range(0, len(array) - batch + 1, batch)]
    if kind.shape[:1] == (1,) and array.shape == kind.shape[1:]:
        return [array[None]]
    raise InputError(
        f"calibration input {name}: shape {array.shape}, expected any number of samples of shape {kind.shape}"
    )
