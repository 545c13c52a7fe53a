"""Each setting that a queue has in code and in the database: a difference is reported, and the database's is what holds."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dagster_sqlqueue import Backoff, Consumer, Done, Job, NewJob, QueueSpec, RateLimit, Reject, SqlQueue
from dagster_sqlqueue.consumer import upkeep
from dagster_sqlqueue.doctor.declarations import settings as doctor
from dagster_sqlqueue.doctor.server_checks import Verdict
from dagster_sqlqueue.model.declaration import declared
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, value
from tests.support.archived import archive

BASE: QueueSpec[Work] = QueueSpec("own", Work, bucket_count=4, max_attempts=3, backoff=Backoff(0, jitter=0))
HOUR = 3_600.0

Observe = Callable[[SqlQueue, QueueSpec[Work]], Any]
"""Has a consumer with the code's spec work, and returns what shows the setting."""


@dataclass(frozen=True)
class Setting:
    """Two values of a setting, and what is seen of each.

    Attributes:
        first, second: the values: arguments of `QueueSpec`.
        observe: looks.
        seen: what it sees where the queue has the first value, and the second one.
    """

    first: dict[str, Any]
    second: dict[str, Any]
    observe: Observe
    seen: tuple[Any, Any]


def _fill(queue: SqlQueue, spec: QueueSpec[Work], count: int, **more: Any) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), **more) for n in range(count)])


def _nothing(job: Job[Work]) -> None:
    """Succeeds."""


def _raises(job: Job[Work]) -> None:
    raise ValueError("no")


def _buckets(queue: SqlQueue, spec: QueueSpec[Work]) -> int:
    _fill(queue, spec, 100)
    assert Consumer(queue, spec, _nothing).drain().succeeded == 100
    return int(value(queue, "SELECT count(DISTINCT bucket) FROM {s}.job_archive"))


def _in_order(queue: SqlQueue, spec: QueueSpec[Work]) -> bool:
    """Whether jobs of several buckets come in the order in which they were due."""
    began = datetime.now(UTC) - timedelta(hours=1)
    queue.enqueue_many(spec, [NewJob(Work(n=n), run_at=began + timedelta(seconds=n)) for n in range(40)])
    order: list[int] = []
    Consumer(queue, spec, lambda job: order.append(job.payload.n), batch_size=40).drain()
    assert len(order) == 40
    return order == sorted(order)


def _at_once(queue: SqlQueue, spec: QueueSpec[Work]) -> int:
    """How many jobs of one key are under lease at a time."""
    _fill(queue, spec, 5, ordering_key="k")
    counts: list[int] = []

    def look(job: Job[Work]) -> None:
        counts.append(value(queue, "SELECT count(*) FROM {s}.job WHERE state = 'running'"))

    Consumer(queue, spec, look, batch_size=5).drain()
    assert len(counts) == 5
    return max(counts)


def _poisoned(queue: SqlQueue, spec: QueueSpec[Work]) -> str:
    _fill(queue, spec, 1, ordering_key="k")
    Consumer(queue, spec, lambda job: Reject("it never fits")).drain()
    return str(value(queue, "SELECT state FROM {s}.job_all"))


def _lease(queue: SqlQueue, spec: QueueSpec[Work]) -> float:
    _fill(queue, spec, 1)
    found: list[float] = []

    def look(job: Job[Work]) -> None:
        found.append(value(queue, "SELECT CAST(extract(epoch FROM available_at - started_at) AS float8) FROM {s}.job"))

    Consumer(queue, spec, look).drain()
    return found[0]


def _timed_out(queue: SqlQueue, spec: QueueSpec[Work]) -> str:
    async def handle(job: Job[Work]) -> Done:
        await asyncio.sleep(1)
        return Done()

    _fill(queue, spec, 1, max_attempts=1)
    Consumer(queue, spec, handle).drain()
    return str(value(queue, "SELECT state FROM {s}.job_all"))


def _attempts(queue: SqlQueue, spec: QueueSpec[Work]) -> int:
    _fill(queue, spec, 1)
    Consumer(queue, spec, _raises).drain()
    return int(value(queue, "SELECT attempt FROM {s}.job_archive"))


def _waits(queue: SqlQueue, spec: QueueSpec[Work]) -> list[int]:
    """How many hours jobs wait after their second attempt, each once."""
    _fill(queue, spec, 50)
    rows(queue, "UPDATE {s}.job SET attempt = 1, lease_no = 1")
    assert Consumer(queue, spec, _raises).drain().retried == 50
    hours = "SELECT DISTINCT CAST(round(extract(epoch FROM available_at - now()) / 3600) AS integer) FROM {s}.job"
    return [found for (found,) in rows(queue, hours)]


def _spread(queue: SqlQueue, spec: QueueSpec[Work]) -> bool:
    return len(_waits(queue, spec)) > 1


def _started(queue: SqlQueue, spec: QueueSpec[Work]) -> int:
    _fill(queue, spec, 6)
    consumer = Consumer(queue, spec, _nothing, batch_size=6)
    # A drain would wait for the end of the interval.
    with consumer.working():
        consumer.work_batch()
    return consumer.summary.succeeded


def _kept(queue: SqlQueue, spec: QueueSpec[Work]) -> int:
    archive(queue, datetime.now(UTC).date() - timedelta(days=10), name=spec.name, count=3)
    rows(queue, "UPDATE {s}.maintenance SET due_at = now()")
    Consumer(queue, spec, _nothing).drain()
    assert value(queue, "SELECT due_at > now() FROM {s}.maintenance")
    return int(value(queue, "SELECT count(*) FROM {s}.job_archive"))


def _backoff(*first: float) -> dict[str, Any]:
    return {"backoff": Backoff(*first)}


SETTINGS = {
    "bucket_count": Setting({"bucket_count": 1}, {"bucket_count": 4}, _buckets, (1, 4)),
    "strategy": Setting({"strategy": "fifo"}, {"strategy": "round_robin"}, _in_order, (True, False)),
    "ordered": Setting({"ordered": True}, {"ordered": False}, _at_once, (1, 5)),
    "on_poison": Setting(
        {"ordered": True, "on_poison": "stop"},
        {"ordered": True, "on_poison": "dead_letter"},
        _poisoned,
        ("held", "failed"),
    ),
    "lease_seconds": Setting({"lease_seconds": 500.0}, {"lease_seconds": 9_000.0}, _lease, (500.0, 9_000.0)),
    "timeout_seconds": Setting(
        {"timeout_seconds": 0.05}, {"timeout_seconds": HOUR}, _timed_out, ("failed", "succeeded")
    ),
    "max_attempts": Setting({"max_attempts": 2}, {"max_attempts": 4}, _attempts, (2, 4)),
    "backoff_seconds": Setting(
        _backoff(10 * HOUR, 1, 90 * HOUR, 0), _backoff(20 * HOUR, 1, 90 * HOUR, 0), _waits, ([10], [20])
    ),
    "backoff_factor": Setting(
        _backoff(10 * HOUR, 2, 90 * HOUR, 0), _backoff(10 * HOUR, 3, 90 * HOUR, 0), _waits, ([20], [30])
    ),
    "backoff_max_seconds": Setting(
        _backoff(90 * HOUR, 1, 10 * HOUR, 0), _backoff(90 * HOUR, 1, 20 * HOUR, 0), _waits, ([10], [20])
    ),
    "backoff_jitter": Setting(
        _backoff(90 * HOUR, 1, 90 * HOUR, 0), _backoff(90 * HOUR, 1, 90 * HOUR, 1), _spread, (False, True)
    ),
    "max_running": Setting({"max_running": 1}, {"max_running": 3}, _at_once, (1, 3)),
    "max_running_per_key": Setting({"max_running_per_key": 1}, {"max_running_per_key": 3}, _at_once, (1, 3)),
    "rate": Setting({"rate": RateLimit(2, HOUR)}, {"rate": RateLimit(4, HOUR)}, _started, (2, 4)),
    "retention_days": Setting({"retention_days": 3}, {"retention_days": 30}, _kept, (0, 3)),
}


def test_every_setting_is_among_them() -> None:
    assert SETTINGS.keys() == declared(BASE).keys()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_difference_is_reported_at_the_start_and_by_doctor(
    queue: SqlQueue, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    setting = SETTINGS[name]
    row, code = replace(BASE, **setting.first), replace(BASE, **setting.second)
    queue.create_queue(row)
    with caplog.at_level(logging.WARNING, logger="dagster_sqlqueue"):
        Consumer(queue, row, _nothing).drain()
        assert caplog.messages == []
        assert doctor(queue.database).verdict is Verdict.OK
        Consumer(queue, code, _nothing).drain()
    (line,) = caplog.messages
    named = line.partition("than the code: ")[2].partition(". The database's hold")[0]
    there, said = (str(declared(spec)[name]).removesuffix(".0") for spec in (row, code))
    assert named == f"{name} is {there} where the code says {said}"
    found = doctor(queue.database)
    assert found.verdict is Verdict.WARN
    assert named in found.found
    assert doctor(queue.database, [row]).verdict is Verdict.OK


@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@pytest.mark.parametrize("name", SETTINGS)
def test_what_the_database_has_holds(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str, swapped: bool
) -> None:
    monkeypatch.setattr(upkeep, "_checked_at", {})
    monkeypatch.setattr(upkeep, "_LEAVE_SECONDS", PATIENCE)
    queue: SqlQueue = request.getfixturevalue("fresh" if name == "retention_days" else "queue")
    setting = SETTINGS[name]
    row, code = (replace(BASE, **values) for values in (setting.first, setting.second))
    if swapped:
        row, code = code, row
    queue.create_queue(row)
    assert setting.observe(queue, code) == setting.seen[swapped]
