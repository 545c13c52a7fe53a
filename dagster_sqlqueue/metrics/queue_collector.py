"""The state of the queues, for Prometheus: a scrape is two statements, whose cost does not grow with the backlog."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import psycopg
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from dagster_sqlqueue.db.execution import Row
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.stats import QueueStats

logger = logging.getLogger("dagster_sqlqueue")

_STATES = ("ready", "running", "scheduled", "held", "parked")
_ENDS = ("succeeded", "failed", "cancelled")
_QUANTILES = {"0.5": "p50", "0.95": "p95", "0.99": "p99"}


class QueueCollector(Collector):
    """A collector for a registry of `prometheus_client`: the statistics of every queue of the schema, at each scrape.

    They are those of `SqlQueue.stats`, and of the batches of queues that have some, all of them gauges, in seconds,
    bytes and jobs a second. One without data, such as the waits of a queue in which no job ended, has no sample. If the
    database is unavailable, there is `sqlqueue_up 0` and nothing else; the reason is a warning in the log, once until it
    is available again.

    Args:
        queue: where the queues are. Scrapes that come at the same time need a connection of its pool each.

    Example:
        ```python
        prometheus_client.REGISTRY.register(QueueCollector(queue))
        ```
    """

    def __init__(self, queue: SqlQueue) -> None:
        self._database = queue.database
        self._was_up = True

    def describe(self) -> list[Metric]:
        """The metrics without samples: to register the collector asks no database."""
        return [*_scrape(0, 0.0), *_of_queues([]), *_of_batches([])]

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        began = time.perf_counter()
        found: Sequence[QueueStats] = ()
        batches: Sequence[Row] = ()
        reason = None
        try:
            found = [QueueStats(*row) for row in self._database.run("queue_stats_all", {})]
            batches = self._database.run("batch_stats", {})
        except (QueueError, psycopg.Error, SQLAlchemyError) as error:
            reason = _first_line(error)
        if reason is not None and self._was_up:
            logger.warning("metrics: %s", reason)
        self._was_up = reason is None
        yield from _scrape(int(reason is None), time.perf_counter() - began)
        yield from _of_queues(found)
        yield from _of_batches(batches)


def _scrape(up: int, seconds: float) -> Iterator[Metric]:
    yield GaugeMetricFamily("sqlqueue_up", "1: the database could be asked for its queues; 0: it could not.", value=up)
    yield GaugeMetricFamily(
        "sqlqueue_scrape_duration_seconds", "How long asking the database took.", value=seconds, unit="seconds"
    )


def _of_queues(found: Sequence[QueueStats]) -> Iterator[Metric]:
    yield _by(
        "sqlqueue_jobs",
        "Live jobs; each count stops at sqlqueue_jobs_counted_up_to and then means at least.",
        [([row.queue, state], getattr(row, state)) for row in found for state in _STATES],
        "state",
    )
    yield _of("sqlqueue_jobs_counted_up_to", "Where every count stops.", found, lambda row: row.counted_up_to)
    yield _of(
        "sqlqueue_oldest_ready_age_seconds",
        "How long the job that is due longest has been due; 0: none is due.",
        found,
        lambda row: row.oldest_ready_seconds or 0.0,
    )
    yield _of(
        "sqlqueue_next_due_seconds",
        "In how long the next scheduled job becomes due.",
        found,
        lambda row: row.next_due_seconds,
    )
    yield _of(
        "sqlqueue_paused",
        "1: the queue is paused and hands out no jobs.",
        found,
        lambda row: int(row.paused_at is not None),
    )
    for way, meaning in (("in", "became due"), ("out", "ended, in whatever way")):
        yield _by(
            f"sqlqueue_jobs_{way}_per_second",
            f"Jobs that {meaning}, a second, over the last minute or hour.",
            [
                ([row.queue, window], getattr(row, f"{way}_per_minute{suffix}") / 60)
                for row in found
                for window, suffix in (("1m", ""), ("1h", "_of_hour"))
            ],
            "window",
        )
    yield _by(
        "sqlqueue_jobs_ended_last_hour",
        "Jobs that ended in the last hour, the latest of them where they are more than the counts' limit.",
        [([row.queue, state], getattr(row, state)) for row in found for state in _ENDS],
        "state",
    )
    for what, meaning in (
        ("wait", "From when a job was wanted until its last start"),
        ("run", "From a job's last start until its end"),
    ):
        yield _by(
            f"sqlqueue_{what}_seconds",
            f"{meaning}, of the jobs that ended in the last hour.",
            [
                ([row.queue, quantile], value)
                for row in found
                for quantile, name in _QUANTILES.items()
                if (value := getattr(row, f"{what}_seconds_{name}")) is not None
            ],
            "quantile",
        )
    yield _of(
        "sqlqueue_payload_average_bytes",
        "Average size of the payloads, as stored, of the jobs that ended in the last hour.",
        found,
        lambda row: row.payload_bytes_average,
    )
    yield _of(
        "sqlqueue_payload_max_bytes",
        "Largest payload, as stored, of the jobs that ended in the last hour.",
        found,
        lambda row: row.payload_bytes_max,
    )
    yield _of("sqlqueue_dead_letters", "Jobs in the archive that failed.", found, lambda row: row.dead_letters)
    yield _of(
        "sqlqueue_stale_writes_today",
        "Writes refused since midnight UTC because the lease had passed on.",
        found,
        lambda row: row.stale_writes_today,
    )


def _of_batches(found: Sequence[Row]) -> Iterator[Metric]:
    """Yield the metrics of queues that have batches, as `batch_stats` returns them."""
    states = ("sealing", "sealed", "published", "abandoned")
    yield _by(
        "sqlqueue_batches",
        "Batches of Spark's that are open (sealing, sealed), and those of the last day that are over.",
        [([row[0], state], count) for row in found for state, count in zip(states, row[1:5], strict=True)],
        "state",
    )
    for place, name, meaning in (
        (5, "sqlqueue_batches_unmoved", "Published batches with files that are not in their place."),
        (6, "sqlqueue_batch_jobs", "Jobs that open batches hold."),
        (
            7,
            "sqlqueue_batch_oldest_open_age_seconds",
            "How long ago the first of the open batches was opened; 0: none is.",
        ),
    ):
        family = GaugeMetricFamily(name, meaning, labels=["queue"], unit=_unit(name))
        for row in found:
            family.add_metric([row[0]], row[place] or 0)
        yield family


def _by(name: str, meaning: str, samples: Sequence[tuple[list[str], float]], label: str) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=["queue", label], unit=_unit(name))
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _of(name: str, meaning: str, found: Sequence[QueueStats], value: Callable[[QueueStats], float | None]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=["queue"], unit=_unit(name))
    for row in found:
        if (number := value(row)) is not None:
            family.add_metric([row.queue], number)
    return family


def _unit(name: str) -> str:
    """Return the unit that a name ends with, if it does."""
    return next((unit for unit in ("seconds", "bytes") if name.endswith(f"_{unit}")), "")


def _first_line(error: Exception) -> str:
    return (str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__])[0]
