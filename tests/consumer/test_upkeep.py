"""Consumers maintain the schema when that is due, beside their work, and one of them at a time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Done, Job, Mode, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer import upkeep
from dagster_sqlqueue.queue.maintenance import Maintained, Maintenance
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, until, value


@pytest.fixture(autouse=True)
def due(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_checked_at", {})
    monkeypatch.setattr(upkeep, "_LEAVE_SECONDS", PATIENCE)
    rows(queue, "INSERT INTO {s}.maintenance (due_at) VALUES (now())")
    rows(queue, "INSERT INTO {s}.waiter VALUES ('work', 'gone', now() - interval '2 minutes')")


def left(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.waiter"))


@pytest.mark.parametrize("mode", list(Mode))
def test_a_consumer_maintains_when_it_is_due(queue: SqlQueue, spec: QueueSpec[Work], mode: Mode) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    assert Consumer(queue, spec, lambda job: Done(), mode=mode).drain().succeeded == 10
    assert left(queue) == 0
    assert value(queue, "SELECT due_at > now() FROM {s}.maintenance")


def test_one_that_is_set_not_to_does_not(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    Consumer(queue, spec, lambda job: Done(), maintain=False).drain()
    assert left(queue) == 1


def test_a_process_checks_once_a_minute(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    Consumer(queue, spec, lambda job: Done()).drain()
    rows(queue, "UPDATE {s}.maintenance SET due_at = now()")
    rows(queue, "INSERT INTO {s}.waiter VALUES ('work', 'gone', now() - interval '2 minutes')")
    Consumer(queue, spec, lambda job: Done()).drain()
    assert left(queue) == 1
    monkeypatch.setattr(upkeep, "CHECK_SECONDS", 0.0)
    Consumer(queue, spec, lambda job: Done()).drain()
    assert left(queue) == 0


def test_it_is_done_beside_the_work_and_by_one_of_all(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While maintenance stands still consumers go on, and none of them begins another."""
    monkeypatch.setattr(upkeep, "CHECK_SECONDS", 0.0)
    handled, runs, original = threading.Event(), [], Maintenance._maintain

    def waiting(self: Maintenance, at: Any, days_ahead: int, **given: Any) -> Maintained:
        runs.append(at)
        assert handled.wait(PATIENCE)
        return original(self, at, days_ahead, **given)

    monkeypatch.setattr(Maintenance, "_maintain", waiting)

    def handler(job: Job[Work]) -> Done:
        until(lambda: runs, "maintenance")
        if job.payload.n == 39:
            handled.set()
        return Done()

    queue.enqueue_many(spec, [Work(n=n) for n in range(40)])
    with ThreadPoolExecutor(2) as pool:
        drains = [pool.submit(Consumer(queue, spec, handler, batch_size=1).drain) for _ in range(2)]
        assert sum(drain.result(PATIENCE).succeeded for drain in drains) == 40
    assert len(runs) == 1
    assert left(queue) == 0


def test_a_consumer_that_is_stopped_leaves_the_rest(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    stopping: Callable[[], bool] = iter([False, False, True]).__next__
    assert Maintenance(queue.catalog).maintain_if_due(stopping=stopping).ran
    assert rows(queue, "SELECT done_at, held_until FROM {s}.maintenance") == [(None, None)]
    assert left(queue) == 1
    Consumer(queue, spec, lambda job: Done()).drain()
    assert left(queue) == 0


@pytest.mark.usefixtures("whole_day")
def test_days_ahead_are_made_and_old_ones_go(fresh: SqlQueue, spec: QueueSpec[Work], today: date) -> None:
    last, old = today + timedelta(days=7), today - timedelta(days=31)
    rows(fresh, f"DROP TABLE {{s}}.job_archive_{last:%Y%m%d}")
    rows(fresh, "SELECT {s}.make_archive_partition(%s)", old)
    rows(fresh, "UPDATE {s}.maintenance SET due_at = now()")
    Consumer(fresh, spec, lambda job: Done()).drain()
    there = "SELECT to_regclass(format('%%I.%%I', CAST(%s AS text), CAST(%s AS text))) IS NOT NULL"
    schema = fresh.database.schema
    assert value(fresh, there, schema, f"job_archive_{last:%Y%m%d}")
    assert not value(fresh, there, schema, f"job_archive_{old:%Y%m%d}")
