"""Merging, the bound on latency, back-pressure and faults of the queue, with a worker that is a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from cuvil_hw.serve.batching import Batcher, CallTime
from cuvil_hw.serve.faults import RequestError, Retired, WorkerDied

Array = np.ndarray[Any, Any]


class Device:
    """Doubles what it gets. It waits at `gate` in each call; refuses samples that are negative, dies on 666."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        (array,) = arrays
        self.calls.append(len(array))
        await self.gate.wait()
        if (array < 0).any():
            raise RequestError(400, "negative")
        if (array == 666).any():
            raise WorkerDied
        return [2 * array]


def batcher(device: Device, **options: Any) -> Batcher:
    given = {"times": [(1, 0.01), (8, 0.045)], "max_batch": 8, "bound_s": 10.0, "timeout_s": 5.0, **options}
    return Batcher(device, given.pop("times"), **given)


def run(test: Callable[[Device], Any]) -> Any:
    async def inside() -> Any:
        return await asyncio.wait_for(test(Device()), 20)

    return asyncio.run(inside())


def value(n: float) -> list[Array]:
    return [np.array([n], np.float64)]


def test_what_comes_while_the_device_is_busy_is_merged_and_each_gets_its_own() -> None:
    async def test(device: Device) -> None:
        queue = batcher(device)
        device.gate.clear()
        first = asyncio.create_task(queue.submit(value(0), 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [asyncio.create_task(queue.submit(value(n), 1)) for n in range(1, 11)]
        await asyncio.sleep(0)
        device.gate.set()
        made = await asyncio.gather(first, *others)
        assert [m[0].tolist() for m in made] == [[2.0 * n] for n in range(11)]
        assert device.calls == [1, 8, 2]
        await queue.close()

    run(test)


def test_a_request_that_is_wrong_fails_alone() -> None:
    async def test(device: Device) -> None:
        queue = batcher(device)
        device.gate.clear()
        sent = [asyncio.create_task(queue.submit(value(n), 1)) for n in (0, 1, -1, 2, 666, 3)]
        await asyncio.sleep(0.01)
        device.gate.set()
        made = await asyncio.gather(*sent, return_exceptions=True)
        assert [m[0][0] if isinstance(m, list) else m.status for m in made] == [0, 2, 400, 4, 500, 6]
        await queue.close()

    run(test)


def test_beyond_the_bound_it_is_refused_with_the_time_to_come_again() -> None:
    async def test(device: Device) -> None:
        queue = batcher(device, times=[(1, 100), (8, 800)], bound_s=350)
        device.gate.clear()
        sent = [asyncio.create_task(queue.submit(value(n), 1)) for n in range(3)]
        await asyncio.sleep(0.001)
        with pytest.raises(RequestError) as e:
            await queue.submit(value(3), 1)
        assert e.value.status == 429
        assert 200 < e.value.retry_after < 350
        assert queue.counts.refused == 1
        device.gate.set()
        await asyncio.gather(*sent)
        await queue.close()

    run(test)


def test_a_batch_is_no_larger_than_the_bound_of_its_oldest_allows() -> None:
    async def test(device: Device) -> None:
        queue = batcher(device, times=[(1, 0.01), (8, 0.08)], bound_s=0.2)
        device.gate.clear()
        sent = [asyncio.create_task(queue.submit(value(0), 1))]
        await asyncio.sleep(0.001)
        sent += [asyncio.create_task(queue.submit(value(n), 1)) for n in range(8)]
        await asyncio.sleep(0.15)  # of the 0.2 s 0.05 are left, in which at most 5 samples fit
        device.gate.set()
        await asyncio.gather(*sent)
        assert device.calls[0] == 1
        assert max(device.calls) <= 5
        await queue.close()

    run(test)


def test_closing_answers_what_waits_and_takes_nothing_new() -> None:
    async def test(device: Device) -> None:
        queue = batcher(device)
        device.gate.clear()
        sent = [asyncio.create_task(queue.submit(value(n), 1)) for n in range(5)]
        await asyncio.sleep(0.001)
        closing = asyncio.create_task(queue.close())
        await asyncio.sleep(0)
        with pytest.raises(Retired):
            await queue.submit(value(9), 1)
        device.gate.set()
        await closing
        assert [m[0][0] for m in await asyncio.gather(*sent)] == [0, 2, 4, 6, 8]

    run(test)


def test_cancelled_draining_leaves_nobody_waiting() -> None:
    async def test(device: Device) -> None:
        queue = batcher(device)
        device.gate.clear()
        sent = [asyncio.create_task(queue.submit(value(n), 1)) for n in range(3)]
        await asyncio.sleep(0.001)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(queue.close(), 0.01)
        made = await asyncio.gather(*sent, return_exceptions=True)
        assert [m.status for m in made if isinstance(m, RequestError)] == [503, 503, 503]

    run(test)


def test_the_time_of_a_call_is_a_line_through_what_was_measured() -> None:
    line = CallTime([(1, 0.003), (8, 0.010)])
    assert line.line() == (pytest.approx(0.002), pytest.approx(0.001))
    assert line.of(20, 8) == pytest.approx(3 * 0.002 + 20 * 0.001)
    for _ in range(300):  # the device becomes twice as slow
        line.add(1, 0.006)
        line.add(8, 0.020)
    assert line.line() == (pytest.approx(0.004, rel=0.02), pytest.approx(0.002, rel=0.02))
    assert CallTime([(4, 0.008)]).of(8, 4) == pytest.approx(0.016)
