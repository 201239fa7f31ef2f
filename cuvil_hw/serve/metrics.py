"""Prometheus metrics of the server: counters that queues keep anyway, read when somebody asks for /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from cuvil_hw.serve.protocol import ByteBudget
from cuvil_hw.serve.repository import Repository

_LABELS = ("model", "version")


class ServeCollector(Collector):
    """Counters are of a version since it was loaded: a reload starts them at 0, as a restart would."""

    def __init__(self, repository: Repository, budget: ByteBudget) -> None:
        self._models, self._budget = repository, budget

    def collect(self) -> Iterable[Metric]:
        outcomes = CounterMetricFamily("cuvil_requests", "Requests by outcome.", labels=(*_LABELS, "outcome"))
        samples = CounterMetricFamily("cuvil_samples", "Samples that were computed.", labels=_LABELS)
        calls = CounterMetricFamily("cuvil_calls", "Calls of the device, each with a merged batch.", labels=_LABELS)
        restarts = CounterMetricFamily("cuvil_worker_restarts", "Worker processes that ended.", labels=_LABELS)
        waiting = GaugeMetricFamily("cuvil_queue_requests", "Requests that wait for the device.", labels=_LABELS)
        ready = GaugeMetricFamily("cuvil_version_ready", "1: the version has a worker.", labels=_LABELS)
        seconds = HistogramMetricFamily(
            "cuvil_request_seconds", "From a request's arrival in the queue to its answer.", labels=_LABELS
        )
        for name, model in self._models.models.items():
            for number, version in model.versions.items():
                place, counts = (name, str(number)), version.batcher.counts
                named = {"ok": counts.requests, "refused": counts.refused, "late": counts.late, "failed": counts.failed}
                for outcome, count in named.items():
                    outcomes.add_metric((*place, outcome), count)
                samples.add_metric(place, counts.samples)
                calls.add_metric(place, counts.calls)
                restarts.add_metric(place, counts.restarts)
                waiting.add_metric(place, version.batcher.depth)
                ready.add_metric(place, float(version.ready))
                seconds.add_metric(place, version.batcher.latency.buckets(), version.batcher.latency.total)
        held = GaugeMetricFamily("cuvil_held_bytes", "Bytes of requests and answers that are held.")
        held.add_metric((), self._budget.held)
        turned = CounterMetricFamily("cuvil_requests_without_room", "Requests refused because memory was full.")
        turned.add_metric((), self._budget.refused)
        yield from (outcomes, samples, calls, restarts, waiting, ready, seconds, held, turned)


def exposition(repository: Repository, budget: ByteBudget) -> Callable[[], tuple[str, bytes]]:
    """A function that gives content type and text of /metrics."""
    registry = CollectorRegistry()
    registry.register(ServeCollector(repository, budget))
    return lambda: (CONTENT_TYPE_LATEST, generate_latest(registry))
