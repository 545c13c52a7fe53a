"""A consumer's start: its queue is there, and the settings in which code and queue differ are reported."""

import logging
import threading
from dataclasses import fields, replace
from typing import Any

import pytest

from dagster_sqlqueue import Backoff, Consumer, Job, QueueSpec, RateLimit, SqlQueue
from dagster_sqlqueue.errors import UnknownQueue
from dagster_sqlqueue.model.declaration import declared, difference_cure, difference_line, differences
from tests.support import Work, rows, until, value

OTHER: dict[str, Any] = {
    "bucket_count": 3,
    "strategy": "fifo",
    "ordered": True,
    "on_poison": "stop",
    "lease_seconds": 1_234_567.5,
    "timeout_seconds": 7.0,
    "max_attempts": 8,
    "backoff": Backoff(1, 3, 100, 0.5),
    "max_running": 2,
    "max_running_per_key": 1,
    "rate": RateLimit(100, 60),
    "retention_days": 90,
}


def _done(job: Job[Work]) -> None:
    """Nothing to do."""


def test_the_first_consumer_makes_its_queue_as_the_code_declares_it(queue: SqlQueue) -> None:
    spec = QueueSpec("fresh", Work, **OTHER)
    assert Consumer(queue, spec, _done).drain().claimed == 0
    made = queue.settings("fresh")
    assert {name: getattr(made, name) for name in OTHER} == OTHER
    assert rows(queue, "SELECT count(*) FROM {s}.bucket WHERE queue = 'fresh'") == [(3,)]


def test_a_consumer_that_is_not_to_make_its_queue_says_that_there_is_none(queue: SqlQueue) -> None:
    with pytest.raises(UnknownQueue, match="there is no queue 'fresh'"):
        Consumer(queue, QueueSpec("fresh", Work), _done, create=False).drain()
    assert [settings.name for settings in queue.queues()] == ["work"]


def test_a_queue_that_is_there_is_left_as_it_is(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    before = queue.settings("work")
    assert queue.create_queue(replace(spec, max_attempts=77), change=False) == before
    Consumer(queue, replace(spec, max_attempts=78), _done).drain()
    assert queue.settings("work") == before


def test_of_consumers_that_begin_together_one_makes_the_queue(queue: SqlQueue) -> None:
    specs = [QueueSpec("fresh", Work, max_attempts=n) for n in range(1, 5)]
    threads = [threading.Thread(target=Consumer(queue, spec, _done).drain) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.settings("fresh").revision == 1, "nobody changed what another had made"


def test_differences_are_one_line_of_the_log_and_are_noted(
    queue: SqlQueue, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="dagster_sqlqueue"):
        Consumer(queue, spec, _done).drain()
        assert caplog.messages == [], "nothing differs"
        Consumer(queue, replace(spec, max_attempts=8, bucket_count=2), _done).drain()
    there = queue.settings("work")
    (line,) = caplog.messages
    assert line == (
        f"queue 'work' has other settings than the code: bucket_count is {there.bucket_count} where the code says 2,"
        f" max_attempts is {there.max_attempts} where the code says 8. The database's hold. To have those of the code:"
        " sqlqueue create work --max-attempts 8; sqlqueue rebucket work 2; else change the code"
    )
    noted = value(queue, "SELECT settings FROM {s}.queue_declaration WHERE queue = 'work'")
    assert (noted["max_attempts"], noted["bucket_count"]) == (8, 2)


def test_buckets_and_a_region_that_the_queue_does_not_have_are_named(
    queue: SqlQueue, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    last = len(queue.settings("work").regions) - 1
    with caplog.at_level(logging.WARNING, logger="dagster_sqlqueue"):
        Consumer(queue, spec, _done, buckets=[0, last], region="local").drain()
        assert caplog.messages == []
        Consumer(queue, spec, _done, buckets=[0, 99, 98], region="mars").drain()
    assert caplog.messages == [
        f"queue 'work' has the buckets 0 to {last}; nothing can be claimed from 98, 99",
        "no bucket of queue 'work' belongs to region 'mars' (there are: local), so none is claimed from first; give it"
        " some: sqlqueue region work mars --buckets 0",
    ]
    queue.set_region("work", "mars", [1])
    said: list[str] = []
    Consumer(queue, spec, _done, buckets=[99], region="mars", warn=said.append).drain()
    assert said == [f"queue 'work' has the buckets 0 to {last}; nothing can be claimed from 99"]


def test_what_was_noted_is_written_again_only_when_it_changes(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    def version() -> Any:
        return value(queue, "SELECT xmin::text || settings::text FROM {s}.queue_declaration")

    Consumer(queue, spec, _done).drain()
    first = version()
    Consumer(queue, spec, _done).drain()
    assert version() == first
    Consumer(queue, replace(spec, lease_seconds=77), _done).drain()
    assert version() != first


def test_every_setting_is_compared_and_the_cure_gives_the_code_s(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    assert {field.name for field in fields(QueueSpec)} == {"name", "payload", *OTHER}, "a new one is compared as well"
    other = QueueSpec("work", Work, **OTHER)
    there = queue.settings("work")
    code = declared(other)
    assert set(differences(code, there)) == set(code) == set(declared(spec))
    assert "rate is none where the code says 100/60s" in difference_line(code, there)
    cure = difference_cure(code, there)
    assert "--lease 1234567.5" in cure
    assert "--ordered --on-poison stop" in cure
    assert differences(declared(spec), there) == {}


def test_a_backoff_of_one_s_own_is_no_difference(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    assert differences(declared(replace(spec, backoff=lambda attempt: 1.0)), queue.settings("work")) == {}


def test_the_lease_is_the_queue_s_not_the_code_s(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(replace(spec, lease_seconds=9_000))
    queue.enqueue(spec, Work(n=1))
    ends: list[float] = []

    def handler(job: Job[Work]) -> None:
        ends.append(value(queue, "SELECT extract(epoch FROM available_at - started_at)::float8 FROM {s}.job"))

    Consumer(queue, spec, handler).drain()
    queue.enqueue(spec, Work(n=2))
    Consumer(queue, spec, handler, lease_seconds=500).drain()
    assert ends == [9_000, 500]


def test_a_lease_that_changes_while_a_consumer_runs_holds_for_what_it_claims_and_keeps(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    """Shorter by far, so that its heartbeat has to come sooner than the old lease would have it."""
    queue.create_queue(replace(spec, lease_seconds=9_000))
    queue.enqueue_many(spec, [Work(n=n) for n in range(4)])
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        seen.append(job.payload.n)
        if len(seen) == 1:
            queue.create_queue(replace(spec, lease_seconds=2))
        if len(seen) < 4:
            return
        # Past the end of the first lease of this claim by the database's clock: only a heartbeat keeps it so long.
        first = value(queue, "SELECT available_at FROM {s}.job")
        assert value(queue, "SELECT available_at < clock_timestamp() + interval '1 hour' FROM {s}.job")
        until(lambda: value(queue, "SELECT clock_timestamp() > %s FROM {s}.job", first))
        assert value(queue, "SELECT available_at > clock_timestamp() FROM {s}.job")

    summary = Consumer(queue, spec, handler, batch_size=1).drain()
    assert (summary.succeeded, summary.stale, summary.retried) == (4, 0, 0)
