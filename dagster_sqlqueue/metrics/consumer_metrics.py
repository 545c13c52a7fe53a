"""What the consumers of this process do, as Prometheus reads it: outcomes, the cost of claims, the time of handlers."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from dagster_sqlqueue.consumer.hooks import ConsumerHooks, HandlerCall
from dagster_sqlqueue.consumer.settlement import HANDLER_BOUNDS, DrainSummary

_OUTCOMES = ("succeeded", "retried", "snoozed", "failed", "held", "cancelled")
_PLAIN = {
    "claimed": ("sqlqueue_consumer_claimed_jobs", "Jobs taken."),
    "batches": ("sqlqueue_consumer_batches", "Claims that found something."),
    "released": ("sqlqueue_consumer_released_jobs", "Jobs taken and given back before they began."),
    "stale": ("sqlqueue_consumer_stale_writes", "Writes refused because the lease had passed on."),
}
_COUNTED = (*_OUTCOMES, *_PLAIN)
_CLAIM_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Working:
    """A consumer at work, and what it had counted before."""

    queue: str
    summary: DrainSummary
    before: DrainSummary

    def add_to(self, counts: dict[str, int]) -> None:
        """Add what it has counted since."""
        for name in _COUNTED:
            counts[name] += getattr(self.summary, name) - getattr(self.before, name)


class ConsumerMetrics(ConsumerHooks, Collector):
    """Count in a registry what consumers do, as a hook of theirs. One for each registry.

    Outcomes are counted when the database has accepted them, so that they are those of `Consumer.summary`. The time of a
    call of a handler that takes a batch is shared equally among its jobs.

    Args:
        registry: where the metrics are registered.

    Raises:
        ValueError: the registry has them already.

    Example:
        ```python
        metrics = ConsumerMetrics()
        Consumer(queue, emails, send_email, hooks=[metrics]).drain()
        ```
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._lock = threading.Lock()
        self._past: dict[str, dict[str, int]] = {}
        self._working: list[_Working] = []
        registry.register(self)
        self._claim_seconds = Histogram(
            "sqlqueue_consumer_claim_seconds",
            "How long a statement that takes jobs took; by verb, since some end the jobs before in the same round trip.",
            ["queue", "verb"],
            registry=registry,
            buckets=_CLAIM_BUCKETS,
        )
        self._handler_seconds = Histogram(
            "sqlqueue_consumer_handler_seconds",
            "How long the handler was at a job.",
            ["queue"],
            registry=registry,
            buckets=HANDLER_BOUNDS,
        )

    @contextmanager
    def around_work(self, queue: str, summary: DrainSummary) -> Iterator[None]:
        """Count what the consumer counts meanwhile."""
        working = _Working(queue, summary, replace(summary))
        with self._lock:
            self._past.setdefault(queue, dict.fromkeys(_COUNTED, 0))
            self._working.append(working)
        try:
            yield
        finally:
            with self._lock:
                self._working.remove(working)
                working.add_to(self._past[queue])

    def around_claim(self, queue: str, verb: str) -> AbstractContextManager[object]:
        """Measure how long it takes."""
        return self._claim_seconds.labels(queue, verb).time()

    @contextmanager
    def around_handler(self, call: HandlerCall) -> Iterator[None]:
        """Measure how long it takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            each = (time.perf_counter() - began) / len(call.jobs)
            for job in call.jobs:
                self._handler_seconds.labels(job.queue).observe(each)

    def describe(self) -> list[Metric]:
        """The counters without samples."""
        return list(counters({}))

    def collect(self) -> Iterator[Metric]:
        """The counters as they are now."""
        with self._lock:
            sums = {queue: dict(counts) for queue, counts in self._past.items()}
            for working in self._working:
                working.add_to(sums[working.queue])
        return counters(sums)


def counters(sums: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    """The counters of some queues, from the sums of `DrainSummary` by queue."""
    outcomes = CounterMetricFamily(
        "sqlqueue_consumer_outcomes",
        "Jobs that a handler worked on and whose outcome was accepted.",
        labels=["queue", "outcome"],
    )
    for queue, counts in sums.items():
        for outcome in _OUTCOMES:
            outcomes.add_metric([queue, outcome], counts[outcome])
    yield outcomes
    for field, (name, meaning) in _PLAIN.items():
        family = CounterMetricFamily(name, meaning, labels=["queue"])
        for queue, counts in sums.items():
            family.add_metric([queue], counts[field])
        yield family
