"""The queues' metrics as Prometheus reads them, against those that `stats` returns."""

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from sqlalchemy import make_url

from dagster_sqlqueue import Backoff, Consumer, Job, NewJob, QueueSpec, Reject, SqlQueue
from dagster_sqlqueue.metrics import QueueCollector
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending, batch_admin
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.spark import batches
from tests.gate.patience import PATIENCE
from tests.metrics.support import key, scraped
from tests.support import Work, claim, make_due, own_server, rows
from tests.support.cleared import own_schema

OTHER = QueueSpec("other", Work, bucket_count=2, backoff=Backoff(0, jitter=0))


@pytest.fixture(scope="module")
def shared(any_server: str) -> Iterator[SqlQueue]:
    """On every server."""
    with own_schema(any_server, "metrics") as queue:
        yield queue


@pytest.fixture
def registry(queue: SqlQueue) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(QueueCollector(queue))
    return registry


@pytest.fixture
def busy(queue: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """Two queues: one with jobs in every state, the other paused and empty."""
    queue.create_queue(OTHER)
    queue.pause("other")
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])

    def handler(job: Job[Work]) -> Reject | None:
        return Reject("wrong") if job.payload.n < 3 else None

    Consumer(queue, spec, handler).drain()
    queue.enqueue(spec, Work(n=20))
    (stale,) = claim(queue, worker="first")
    make_due(queue)
    claim(queue, worker="second")
    assert queue.finish([Ending(stale, ArchiveState.SUCCEEDED)]) == set()
    queue.enqueue_many(spec, [Work(n=n) for n in range(21, 26)])
    claim(queue, 1)
    queue.enqueue_many(spec, [NewJob(Work(n=n), run_at=datetime.now(UTC) + timedelta(hours=1)) for n in range(30, 33)])
    queue.enqueue(spec, NewJob(Work(n=40), tags=["aside"]))
    queue.hold_queued("work", Selection(tags=["aside"]), reason="later")
    return queue


def test_the_metrics_of_batches(queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry) -> None:
    assert not [name for name, _ in scraped(registry) if name.startswith("sqlqueue_batch")]
    for n, unmoved in enumerate((False, True)):
        queue.enqueue(spec, Work(n=n))
        batch = batches.seal(queue, "work", f"k/{n}", owner="me")
        with batches.publication(queue, batch, output={}, unmoved=unmoved):
            pass
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    batches.abandon(queue, batches.seal(queue, "work", "bad", owner="me"), "no")
    open = batches.seal(queue, "work", "good", owner="me")
    rows(queue, "UPDATE {s}.batch SET created_at = now() - interval '1 hour' WHERE id = %s", open.id)
    samples = scraped(registry)
    of = {state: samples[key("sqlqueue_batches", queue="work", state=state)] for state in batch_admin.STATES}
    assert of == {"sealing": 0, "sealed": 1, "published": 2, "abandoned": 1}
    assert samples[key("sqlqueue_batches_unmoved", queue="work")] == 1
    assert samples[key("sqlqueue_batch_jobs", queue="work")] == 3
    assert 3_600 <= samples[key("sqlqueue_batch_oldest_open_age_seconds", queue="work")] < 3_600 + PATIENCE
    rows(queue, "UPDATE {s}.batch SET created_at = now() - interval '2 days'")
    later = scraped(registry)
    assert later[key("sqlqueue_batches", queue="work", state="published")] == 0
    assert later[key("sqlqueue_batches", queue="work", state="sealed")] == 1


def test_every_metric_is_that_of_stats(busy: SqlQueue, registry: CollectorRegistry) -> None:
    began = time.perf_counter()
    samples = scraped(registry)
    took = time.perf_counter() - began
    work, other = busy.stats("work"), busy.stats("other")
    assert (work.ready, work.running, work.scheduled, work.held) == (4, 2, 3, 1)
    assert (work.succeeded, work.failed, work.dead_letters, work.stale_writes_today) == (7, 3, 3, 1)
    assert samples[key("sqlqueue_up")] == 1
    assert 0 < samples[key("sqlqueue_scrape_duration_seconds")] <= took
    for stats in (work, other):
        named = {"queue": stats.queue}
        for state in ("ready", "running", "scheduled", "held", "parked"):
            assert samples[key("sqlqueue_jobs", **named, state=state)] == getattr(stats, state)
        for state in ("succeeded", "failed", "cancelled"):
            assert samples[key("sqlqueue_jobs_ended_last_hour", **named, state=state)] == getattr(stats, state)
        assert samples[key("sqlqueue_jobs_counted_up_to", **named)] == 10_000
        assert samples[key("sqlqueue_dead_letters", **named)] == stats.dead_letters
        assert samples[key("sqlqueue_stale_writes_today", **named)] == stats.stale_writes_today
    for quantile, name in (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99")):
        for what in ("wait", "run"):
            shown = samples[key(f"sqlqueue_{what}_seconds", queue="work", quantile=quantile)]
            assert shown == getattr(work, f"{what}_seconds_{name}")
    assert samples[key("sqlqueue_payload_average_bytes", queue="work")] == work.payload_bytes_average
    assert samples[key("sqlqueue_payload_max_bytes", queue="work")] == work.payload_bytes_max
    # Time passes between the two scrapes.
    assert work.oldest_ready_seconds is not None
    assert work.next_due_seconds is not None
    assert work.oldest_ready_seconds - PATIENCE < samples[key("sqlqueue_oldest_ready_age_seconds", queue="work")]
    assert samples[key("sqlqueue_oldest_ready_age_seconds", queue="work")] <= work.oldest_ready_seconds
    assert 3_000 < samples[key("sqlqueue_next_due_seconds", queue="work")] <= 3_600
    assert samples[key("sqlqueue_paused", queue="work")] == 0
    assert samples[key("sqlqueue_paused", queue="other")] == 1


def test_rates_are_a_second(queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(6)])
    Consumer(queue, spec, lambda job: None).drain()
    queue.enqueue_many(spec, [Work(n=n) for n in range(6, 10)])
    samples = scraped(registry)
    for window, seconds in (("1m", 60), ("1h", 3_600)):
        named = {"queue": "work", "window": window}
        assert samples[key("sqlqueue_jobs_in_per_second", **named)] == pytest.approx(10 / seconds)
        assert samples[key("sqlqueue_jobs_out_per_second", **named)] == pytest.approx(6 / seconds)


def test_what_there_is_nothing_to_say_of_has_no_sample(queue: SqlQueue, registry: CollectorRegistry) -> None:
    names = {name for name, _ in scraped(registry)}
    assert not names & {
        "sqlqueue_wait_seconds",
        "sqlqueue_run_seconds",
        "sqlqueue_next_due_seconds",
        "sqlqueue_payload_average_bytes",
        "sqlqueue_payload_max_bytes",
    }
    assert scraped(registry)[key("sqlqueue_oldest_ready_age_seconds", queue="work")] == 0


def test_the_text_is_open_metrics_as_well(busy: SqlQueue, registry: CollectorRegistry) -> None:
    families = {family.name: family for family in parse_openmetrics(generate_openmetrics(registry).decode())}
    described = {family.name for family in QueueCollector(busy).describe()}
    assert described == set(families)
    assert {family.type for family in families.values()} == {"gauge"}
    for name, family in families.items():
        assert family.documentation
        assert family.unit == next((unit for unit in ("seconds", "bytes") if name.endswith(f"_{unit}")), ""), name


def test_a_scrape_is_two_statements(
    busy: SqlQueue, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    run = type(busy.database).run

    def listening(self: Any, name: str, parameters: Any) -> Any:
        sent.append(name)
        return run(self, name, parameters)

    monkeypatch.setattr(type(busy.database), "run", listening)
    scraped(registry)
    assert sent == ["queue_stats_all", "batch_stats"]


def test_counts_stop_at_their_cap(queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry) -> None:
    queue.enqueue_many(spec, (Work(n=n) for n in range(10_050)))
    samples = scraped(registry)
    assert samples[key("sqlqueue_jobs", queue="work", state="ready")] == 10_000
    assert samples[key("sqlqueue_jobs_counted_up_to", queue="work")] == 10_000


@pytest.mark.prove
def test_a_database_that_is_away_is_reported_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    with own_server(settings=["fsync=off"]) as server, SqlQueue(server.url) as queue:
        queue.migrate()
        queue.create_queue(OTHER)
        registry = CollectorRegistry()
        registry.register(QueueCollector(queue))
        assert scraped(registry)[key("sqlqueue_up")] == 1
        server.stop()
        with caplog.at_level(logging.WARNING, logger="dagster_sqlqueue"):
            for _ in range(3):
                away = scraped(registry)
                assert away[key("sqlqueue_up")] == 0
                assert {name for name, _ in away} == {"sqlqueue_up", "sqlqueue_scrape_duration_seconds"}
        warnings = [record.getMessage() for record in caplog.records]
        assert len(warnings) == 1, "once, not at each scrape"
        assert warnings[0].startswith("metrics: cannot use the database")
        server.start()
        assert scraped(registry)[key("sqlqueue_jobs", queue="other", state="ready")] == 0


def test_registering_asks_no_database() -> None:
    registry = CollectorRegistry()
    with SqlQueue("postgresql://nobody:secret@127.0.0.1:1/none", connect_timeout=2) as queue:
        registry.register(QueueCollector(queue))
        assert scraped(registry)[key("sqlqueue_up")] == 0


def test_a_schema_that_is_missing_is_not_up(url: str, schema: str) -> None:
    registry = CollectorRegistry()
    with SqlQueue(url, schema=schema) as empty:
        registry.register(QueueCollector(empty))
        assert scraped(registry)[key("sqlqueue_up")] == 0


def test_a_user_without_the_right_is_refused_and_not_up(any_server: str, queue: SqlQueue, schema: str) -> None:
    registry = CollectorRegistry()
    role = f"metrics_{schema}"
    with psycopg.connect(any_server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        try:
            stranger = make_url(any_server).set(username=role)
            with SqlQueue(stranger.render_as_string(hide_password=False), schema=queue.database.schema) as barred:
                registry.register(QueueCollector(barred))
                assert scraped(registry)[key("sqlqueue_up")] == 0
        finally:
            connection.execute(f"DROP ROLE {role}".encode())
