"""Merges requests into batches for one worker, within a bound on latency, and refuses what would wait longer.

A batch goes out as soon as the worker is free: what came in meanwhile is merged, and nothing waits for requests that
may come. How long a call of n samples takes is a line a + b·n (what a call costs, and what moving and computing a
sample costs), fitted to the calls measured so far, old ones counting less. The same line says when a new request would
be answered; if that is beyond the bound, it is refused at once with the time to come again.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from time import monotonic

import numpy as np

from cuvil_hw.serve.faults import RequestError, Retired, WorkerDied, busy
from cuvil_hw.serve.wire import Array

_KEPT = 0.98  # weight of all earlier calls when another one is measured

Call = Callable[[Sequence[Array]], Awaitable[list[Array]]]


class CallTime:
    """Least squares of seconds over samples, with weights that decay."""

    def __init__(self, measured: Sequence[tuple[int, float]]) -> None:
        self._w = self._n = self._nn = self._t = self._nt = 0.0
        for samples, seconds in measured:
            self.add(samples, seconds)

    def add(self, n: int, t: float) -> None:
        self._w, self._n, self._nn = self._w * _KEPT + 1, self._n * _KEPT + n, self._nn * _KEPT + n * n
        self._t, self._nt = self._t * _KEPT + t, self._nt * _KEPT + n * t

    def line(self) -> tuple[float, float]:
        """Seconds of a call, and of each sample in it; neither is negative."""
        spread = self._w * self._nn - self._n**2
        if spread <= 1e-6 * self._w * self._nn:  # calls of one size only: all of it counts for the samples
            return 0.0, self._nt / self._nn if self._nn else 0.0
        each = max(0.0, (self._w * self._nt - self._n * self._t) / spread)
        fixed = (self._t - each * self._n) / self._w
        return (fixed, each) if fixed >= 0 else (0.0, self._nt / self._nn)

    def of(self, samples: int, most: int) -> float:
        """Seconds of calls of at most `most` samples that make `samples` together."""
        fixed, each = self.line()
        return fixed * -(-samples // most) + each * samples


@dataclass(slots=True)
class Waiting:
    """`samples`: along the first dimension of each array."""

    arrays: Sequence[Array]
    samples: int
    until: float
    done: asyncio.Future[list[Array]]
    since: float = field(default_factory=monotonic)


@dataclass(slots=True)
class Counts:
    """Since the version was loaded."""

    requests: int = 0
    samples: int = 0
    calls: int = 0
    refused: int = 0
    late: int = 0
    failed: int = 0
    restarts: int = 0


class Histogram:
    """Counts of seconds, cumulative as Prometheus has them."""

    BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self) -> None:
        self.total, self._counts = 0.0, [0] * (len(self.BOUNDS) + 1)

    def add(self, seconds: float) -> None:
        self.total += seconds
        self._counts[bisect_left(self.BOUNDS, seconds)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and how many are at most that."""
        return list(zip((*map(str, self.BOUNDS), "+Inf"), accumulate(self._counts), strict=True))


class Batcher:
    """The queue of one version of a model. `call` raises WorkerDied when the worker is gone; it is then called again,
    with another worker behind it, once for a merged batch and once for each request by itself."""

    def __init__(
        self, call: Call, times: Sequence[tuple[int, float]], max_batch: int, bound_s: float, timeout_s: float
    ) -> None:
        self.max_batch, self.bound_s, self.timeout_s = max_batch, bound_s, timeout_s
        self.time, self.counts, self.latency = CallTime(times), Counts(), Histogram()
        self._call, self._queue, self._arrived = call, deque[Waiting](), asyncio.Event()
        self._queued = self._inside = 0
        self._since = 0.0
        self._closing = False
        self._task = asyncio.create_task(self._run())

    @property
    def depth(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    async def submit(self, arrays: Sequence[Array], samples: int) -> list[Array]:
        """The outputs of a request. Raises RequestError: 429 when it would wait beyond the bound, 504 after the time
        limit, and what the program finds wrong with it; Retired after `close`."""
        if self._closing:
            raise Retired
        wait = self._wait()
        if (self._queue or self._inside) and wait + self.time.of(samples, self.max_batch) > self.bound_s:
            self.counts.refused += 1
            told = f"would be answered in {wait:.3g} s, more than the bound of {self.bound_s:g} s; come again"
            raise busy(told, wait)
        waiting = Waiting(arrays, samples, monotonic() + self.timeout_s, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._queued += samples
        self._arrived.set()
        return await waiting.done

    def _wait(self) -> float:
        """Seconds until a request that comes now would start, by the line."""
        running = 0.0
        if self._inside:
            running = max(0.0, self.time.of(self._inside, self.max_batch) - (monotonic() - self._since))
        return running + self.time.of(self._queued, self.max_batch)

    async def close(self) -> None:
        """Answer what waits, then end. Nobody may submit any more."""
        self._closing = True
        self._arrived.set()
        await self._task

    async def _run(self) -> None:
        batch: list[Waiting] = []
        try:
            while True:
                batch = self._take()
                if batch:
                    await self._answer(batch)
                elif self._closing:
                    return
                else:
                    self._arrived.clear()
                    await self._arrived.wait()
        finally:  # cancelled, when draining takes too long
            for waiting in (*batch, *self._queue):
                _fail(waiting, RequestError(503, "the version was shut down before it could answer", 1.0))

    def _take(self) -> list[Waiting]:
        """The oldest requests that go together: as many as the worker takes and the oldest one's bound allows."""
        batch: list[Waiting] = []
        samples, now = 0, monotonic()
        while self._queue:
            first = self._queue[0]
            if first.done.done() or first.until < now:  # the client has gone, or it waited too long
                if not first.done.done():
                    self.counts.late += 1
                    first.done.set_exception(RequestError(504, f"waited longer than {self.timeout_s:g} s; come again"))
            else:
                together = samples + first.samples
                late = batch and now - batch[0].since + self.time.of(together, together) > self.bound_s
                if batch and (together > self.max_batch or late):
                    break
                batch.append(first)
                samples = together
            self._queue.popleft()
            self._queued -= first.samples
        return batch

    async def _answer(self, batch: list[Waiting]) -> None:
        """Every future of the batch has a result or an exception afterwards."""
        parts = [batch]
        while parts:
            part = parts.pop(0)
            try:
                made = await self._together(part)
            except (RequestError, WorkerDied) as e:
                if len(part) > 1 and (isinstance(e, WorkerDied) or e.status in (400, 500)):
                    # One of them may be at fault: each by itself, so that the others get their answers.
                    parts = [[waiting] for waiting in part] + parts
                    continue
                self.counts.failed += len(part)
                for waiting in part:
                    _fail(waiting, e if isinstance(e, RequestError) else _lost())
            except Exception as e:
                for waiting in part:
                    _fail(waiting, RequestError(500, f"a fault of the server: {type(e).__name__}: {e}"))
            else:
                start = 0
                for waiting in part:
                    if not waiting.done.done():
                        self.latency.add(monotonic() - waiting.since)
                        waiting.done.set_result([a[start : start + waiting.samples] for a in made])
                    start += waiting.samples

    async def _together(self, part: list[Waiting]) -> list[Array]:
        samples = sum(w.samples for w in part)
        columns = zip(*(w.arrays for w in part), strict=True)
        arrays = [c[0] if len(c) == 1 else np.concatenate(c) for c in columns]
        self._inside, self._since = samples, monotonic()
        try:
            with contextlib.suppress(WorkerDied):
                return await self._timed(arrays, samples, len(part))
            return await self._timed(arrays, samples, len(part))
        finally:
            self._inside = 0

    async def _timed(self, arrays: Sequence[Array], samples: int, requests: int) -> list[Array]:
        start = monotonic()
        made = await self._call(arrays)
        self.time.add(samples, monotonic() - start)
        self.counts.calls += 1
        self.counts.samples += samples
        self.counts.requests += requests
        return made


def _fail(waiting: Waiting, error: RequestError) -> None:
    if not waiting.done.done():
        waiting.done.set_exception(error)


def _lost() -> RequestError:
    return RequestError(
        500, "the program's process ended while it ran this request, twice; the request may be at fault"
    )
