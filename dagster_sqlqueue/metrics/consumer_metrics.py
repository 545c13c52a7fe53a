"""What the consumers of this process do, as Prometheus reads it: outcomes, the cost of claims, the time of handlers."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from dagster_sqlqueue.consumer import Consumer
from dagster_sqlqueue.consumer.caller import is_async
from dagster_sqlqueue.consumer.handler import Handler
from dagster_sqlqueue.consumer.settlement import HANDLER_BOUNDS, DrainSummary
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import Job
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.queue import SqlQueue

P = ParamSpec("P")
R = TypeVar("R")

_OUTCOMES = ("succeeded", "retried", "snoozed", "failed", "held", "cancelled")
_PLAIN = {
    "claimed": ("sqlqueue_consumer_claimed_jobs", "Jobs taken."),
    "batches": ("sqlqueue_consumer_batches", "Claims that found something."),
    "released": ("sqlqueue_consumer_released_jobs", "Jobs taken and given back unbegun, when a drain was stopped."),
    "stale": ("sqlqueue_consumer_stale_writes", "Writes refused because the lease had passed on."),
}
_COUNTED = (*_OUTCOMES, *_PLAIN)
_CLAIM_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ConsumerMetrics(Collector):
    """Makes consumers whose work is counted in a registry. One for each registry.

    Outcomes are counted when the database has accepted them, so that they are those of `Consumer.summary`.

    Args:
        registry: where the metrics are registered.

    Raises:
        ValueError: the registry has them already.

    Example:
        ```python
        metrics = ConsumerMetrics()
        metrics.consumer(queue, emails, send_email).drain()
        ```
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._lock = threading.Lock()
        self._past: dict[str, dict[str, int]] = {}
        self._live: list[tuple[weakref.ref[Consumer[Any]], str, DrainSummary]] = []
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

    def consumer(
        self, queue: SqlQueue, spec: QueueSpec[Payload], handler: Handler[Payload], **options: Any
    ) -> Consumer[Payload]:
        """A consumer that is counted.

        Args:
            queue: where the queue is; it stays the caller's to close.
            spec: the queue.
            handler: called for one job at a time.
            options: further arguments of `Consumer`.

        Raises:
            InvalidInput: an argument is out of range.
        """
        timed = _TimedQueue(queue, self._claim_seconds)
        made = Consumer(timed, spec, self.handler(handler), **options)
        with self._lock:
            self._past.setdefault(spec.name, dict.fromkeys(_COUNTED, 0))
            self._forget_gone()
            self._live.append((weakref.ref(made), spec.name, made.summary))
        return made

    def handler(self, handler: Handler[Payload]) -> Handler[Payload]:
        """A handler whose time is measured, and nothing else: for a consumer that something else makes.

        Raises:
            InvalidInput: it is `async`.
        """
        if is_async(handler):
            raise InvalidInput(
                "the handler is async; make it a plain function, which may call asyncio.run(…) for its job"
            )

        @wraps(handler)
        def measured(job: Job[Payload]) -> Outcome | None:
            with self._handler_seconds.labels(job.queue).time():
                return handler(job)

        return measured

    def describe(self) -> list[Metric]:
        """The counters without samples."""
        return list(counters({}))

    def collect(self) -> Iterator[Metric]:
        """The counters as they are now."""
        with self._lock:
            sums = {queue: dict(counts) for queue, counts in self._past.items()}
            for _, queue, summary in self._live:
                _add(sums[queue], summary)
        return counters(sums)

    def _forget_gone(self) -> None:
        """Keep the counts of consumers that are no more, and nothing else of them."""
        for consumer, queue, summary in self._live:
            if consumer() is None:
                _add(self._past[queue], summary)
        self._live = [entry for entry in self._live if entry[0]() is not None]


class _TimedQueue(SqlQueue):
    """The same queues on the same connections; what takes jobs is timed, once for each call of a consumer."""

    def __init__(self, queue: SqlQueue, seconds: Histogram) -> None:
        super().__init__(queue.database)
        self._seconds = seconds
        leases = self.leases
        leases.claim = self._timed("claim", leases.claim, 0)
        leases.finish_and_claim = self._timed("finish_and_claim", leases.finish_and_claim, 1)
        leases.lock_due = self._timed("lock_due", leases.lock_due, 1)
        leases.finish_and_lock = self._timed("finish_and_lock", leases.finish_and_lock, 2)

    def _timed(self, verb: str, call: Callable[P, R], place: int) -> Callable[P, R]:
        """The verb, timed; the queue's name is its argument at this place."""

        def timed(*given: P.args, **how: P.kwargs) -> R:
            began = time.perf_counter()
            try:
                return call(*given, **how)
            finally:
                self._seconds.labels(given[place], verb).observe(time.perf_counter() - began)

        return timed


def _add(counts: dict[str, int], summary: DrainSummary) -> None:
    for name in _COUNTED:
        counts[name] += getattr(summary, name)


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
