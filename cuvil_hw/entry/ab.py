"""Two builds of a model compared with statistics: latency, interleaved, and accuracy, on the same samples.

Latency: in each round both builds run the same samples, in random order, so that whatever else the machine does meets
both; the round's value is the logarithm of new over old time. Its mean gets a bootstrap confidence interval
(percentiles of resampled rounds; Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13), and the least
slowdown that would be found in four of five runs is (z(1 - alpha) + z(0.8)) standard errors above the tolerance.

Accuracy: McNemar's exact test of the samples on which exactly one build is right (a binomial test with p = 1/2; McNemar
1947), and a bootstrap interval of the difference over samples.

With both, each test takes half of alpha, so that two equal builds are told apart in at most a share alpha of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from time import perf_counter
from typing import Any

import numpy as np

from cuvil_hw.contract.device import Array
from cuvil_hw.errors import InputError
from cuvil_hw.runtime import evaluation, vectors
from cuvil_hw.runtime.executable import Executable

RESAMPLES = 4000
_BLOCK_S = 2e-3  # of calls that are timed together: far above the clock's resolution
_POWER = 0.8


@dataclass(frozen=True, slots=True)
class LatencyTest:
    """`old_s`, `new_s`: median seconds of a sample; `ratio` of new over old, with the bounds `low` and `high` of its
    confidence interval (each bound errs in a share alpha); `detectable`: the least that is found in 4 of 5 runs."""

    old_s: float
    new_s: float
    ratio: float
    low: float
    high: float
    detectable: float
    rounds: int
    alpha: float
    slower: bool


@dataclass(frozen=True, slots=True)
class AccuracyTest:
    """`lost`: samples that only the old build has right, `won`: only the new one; `p`: of at least `lost` of those
    where both are equally good; `low` and `high`: of the difference new - old."""

    old: float
    new: float
    low: float
    high: float
    lost: int
    won: int
    p: float
    samples: int
    alpha: float
    worse: bool


@dataclass(frozen=True, slots=True)
class AB:
    """`latency` None: not compared, and `note` says why; `accuracy` None: no labels. `same`: samples with equal
    outputs, to the bit."""

    latency: LatencyTest | None
    accuracy: AccuracyTest | None
    same: int
    samples: int
    note: str = ""

    @property
    def regressed(self) -> bool:
        return bool((self.latency and self.latency.slower) or (self.accuracy and self.accuracy.worse))


def compare(
    old: Executable, new: Executable, data: tuple[Any, ...], labels: Any = None, *,
    rounds: int = 100, alpha: float = 0.05, tolerance: float = 0.03, seed: int = 0,
) -> AB:  # fmt: skip
    """`data`: (N, *shape) of each input, in the order of `old`'s; `labels`: (N,) classes of the first output;
    `tolerance`: a slowdown up to which nothing is said. Raises InputError where the builds take different inputs or
    give different outputs, and what `run` raises."""
    ports = [[(p.name, p.shape) for p in (*e.inputs, *e.outputs)] for e in (old, new)]
    if ports[0] != ports[1]:
        raise InputError(f"{old.name} and {new.name} have different ports: {ports[0]} and {ports[1]}")
    stacks = evaluation.stacks_of(old.inputs, data)
    made = [evaluation.outputs_on(e, stacks, len(stacks[0]))[0] for e in (old, new)]
    samples = len(stacks[0])
    equal = [vectors.same(a, b).reshape(samples, -1).all(axis=1) for a, b in zip(*made, strict=True)]
    same = int(np.logical_and.reduce(equal).sum())
    draw = np.random.default_rng(seed)
    simulated = [e.interface for e in (old, new) if e.interface != "hw"]
    each = alpha / 2 if labels is not None and not simulated else alpha
    accuracy = None
    if labels is not None:
        right = [evaluation.places(m[0], labels) < 1 for m in made]
        accuracy = accuracy_test(right[0], right[1], each, draw)
    if simulated:
        return AB(None, accuracy, same, samples, f"latency isn't compared: the time of {simulated[0]} says nothing")
    before, after = interleaved(_timer(old, stacks), _timer(new, stacks), rounds, draw)
    return AB(latency_test(before, after, each, tolerance, draw), accuracy, same, samples)


def latency_test(old: Array, new: Array, alpha: float, tolerance: float, draw: np.random.Generator) -> LatencyTest:
    """`old`, `new`: (rounds,) seconds of a sample in the same rounds."""
    logs = np.log(new / old)
    means = _means(logs, draw)
    low, mean, high = np.quantile(means, alpha), float(logs.mean()), np.quantile(means, 1 - alpha)
    normal = NormalDist()
    reach = (normal.inv_cdf(1 - alpha) + normal.inv_cdf(_POWER)) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return LatencyTest(
        float(np.median(old)), float(np.median(new)), math.exp(mean), math.exp(low), math.exp(high),
        (1 + tolerance) * math.exp(reach), len(logs), alpha, bool(low > math.log1p(tolerance)),
    )  # fmt: skip


def accuracy_test(old: Array, new: Array, alpha: float, draw: np.random.Generator) -> AccuracyTest:
    """`old`, `new`: (samples,) whether each build is right."""
    lost, won = int((old & ~new).sum()), int((new & ~old).sum())
    p = _at_least(lost, lost + won)
    means = _means(new.astype(np.float64) - old, draw)
    low, high = np.quantile(means, (alpha, 1 - alpha))
    return AccuracyTest(
        float(old.mean()), float(new.mean()), float(low), float(high), lost, won, p, len(old), alpha, p < alpha
    )


def _at_least(k: int, n: int) -> float:
    """The probability of at least k heads of n throws of a fair coin."""
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2) for i in range(k, n + 1)]
    return min(1.0, math.fsum(map(math.exp, logs)))


def _means(values: Array, draw: np.random.Generator) -> Array:
    """Means of resamples. In parts, so that memory stays small."""
    parts, step = [], max(1, (1 << 22) // len(values))
    for start in range(0, RESAMPLES, step):
        chosen = draw.integers(0, len(values), (min(step, RESAMPLES - start), len(values)))
        parts.append(values[chosen].mean(axis=1))
    return np.concatenate(parts)


def interleaved(
    old: Callable[[int], float], new: Callable[[int], float], rounds: int, draw: np.random.Generator
) -> tuple[Array, Array]:
    """Seconds of a sample by round, of timers that run a sample so many times and give the seconds of all."""
    block = []
    for timer in (old, new):
        timer(1)
        block.append(max(1, math.ceil(_BLOCK_S / max(min(timer(1) for _ in range(3)), 1e-9))))
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for which in draw.permutation(2):
            times[which].append((old, new)[which](block[which]) / block[which])
    return np.array(times[0]), np.array(times[1])


def _timer(program: Executable, stacks: Sequence[Array]) -> Callable[[int], float]:
    """Runs samples one after another, from the first on."""
    names = [p.name for p in program.inputs]
    # A copy: a program may write into its inputs.
    samples = [dict(zip(names, (s[i].copy() for s in stacks), strict=True)) for i in range(min(len(stacks[0]), 64))]

    def timer(times: int) -> float:
        start = perf_counter()
        for i in range(times):
            program.run(samples[i % len(samples)])
        return perf_counter() - start

    return timer
