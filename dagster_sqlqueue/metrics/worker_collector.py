"""What a worker of one process or of several does, for Prometheus: the counts that the worker itself keeps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dagster_sqlqueue.consumer.settlement import HANDLER_BOUNDS
from dagster_sqlqueue.metrics.consumer_metrics import counters


class Worked(Protocol):
    """What was done for one queue."""

    @property
    def queue(self) -> str:
        """Its name."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """As in `DrainSummary`."""
        ...

    @property
    def in_flight(self) -> int:
        """Jobs that a handler is at."""
        ...

    @property
    def handler_seconds(self) -> float:
        """How long handlers took for jobs, all together."""
        ...

    @property
    def spread(self) -> Sequence[int]:
        """How many jobs took up to each of `HANDLER_BOUNDS` and longer than the one before it; last, those that took longer
        than all of them.
        """
        ...


class WorkerCollector(Collector):
    """The metrics of `ConsumerMetrics`, but for the cost of claims, and the jobs in flight.

    Args:
        stats: returns what was done so far, for each queue; called at each scrape, in its thread.
    """

    def __init__(self, stats: Callable[[], Sequence[Worked]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield the stats as they are now."""
        found = self._stats()
        yield from counters({one.queue: one.counts for one in found})
        seconds = HistogramMetricFamily(
            "sqlqueue_consumer_handler_seconds", "How long the handler was at a job.", labels=["queue"]
        )
        flight = GaugeMetricFamily("sqlqueue_consumer_jobs_in_flight", "Jobs that a handler is at.", labels=["queue"])
        for one in found:
            bounds = [*(str(bound) for bound in HANDLER_BOUNDS), "+Inf"]
            buckets = list(zip(bounds, accumulate(one.spread), strict=True))
            seconds.add_metric([one.queue], buckets, one.handler_seconds)
            flight.add_metric([one.queue], one.in_flight)
        yield seconds
        yield flight
