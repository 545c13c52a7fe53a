"""The daily jobs of several days, sealed in one pass into a batch for each."""

from collections import Counter
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import BatchLost
from dagster_sqlqueue.orchestration import DailyAccount
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import Batch
from tests.support import Work, make_due, rows, value

DAILY = QueueSpec("daily", DailyAccount, bucket_count=4)
EVENTS = {"queue": "work", "day_path": ["note"], "account_path": ["account"]}


def days_from(count: int) -> list[str]:
    return [(date(2013, 1, 1) + timedelta(days=n)).isoformat() for n in range(count)]


@pytest.fixture
def daily(queue: SqlQueue) -> SqlQueue:
    """Three accounts on each of twenty days."""
    queue.create_queue(DAILY)
    jobs = [DailyAccount(account=name, day=day, zone="UTC") for day in days_from(20) for name in ("a", "b", "c")]
    queue.enqueue_many(DAILY, jobs)
    return queue


def seal(queue: SqlQueue, days: Sequence[str], held: list[Batch] | None = None, **settings: Any) -> list[Batch]:
    keys = {f"asset/{day}": day for day in days}
    return batches.seal_days(queue, "daily", keys, owner="w", held=[] if held is None else held, **settings)


def days_of(queue: SqlQueue, batch: Batch) -> list[str]:
    found = rows(queue, "SELECT payload ->> 'day' FROM {s}.job WHERE batch_id = %s", batch.id)
    return [day for (day,) in found]


def test_each_day_has_its_jobs_in_a_batch_of_its_own(daily: SqlQueue) -> None:
    days = days_from(3)
    made = seal(daily, days)
    assert [(batch.key, batch.job_count, batch.attempt) for batch in made] == [(f"asset/{day}", 3, 1) for day in days]
    assert [days_of(daily, batch) for batch in made] == [[day] * 3 for day in days]
    with batches.publication(daily, *made, output={}):
        pass
    assert daily.archived("daily", since_seconds=3_600) == {"succeeded": 9}
    assert daily.depth("daily").ready == 51


def test_an_account_whose_day_is_open_is_left_on_that_day_alone(daily: SqlQueue, spec: QueueSpec[Work]) -> None:
    daily.enqueue(spec, Work(n=1, note="2013-01-02"))
    rows(daily, "UPDATE {s}.job SET payload = payload || '{{\"account\": \"b\"}}' WHERE queue = 'work'")
    assert [batch.job_count for batch in seal(daily, days_from(3), closed=EVENTS)] == [3, 2, 3]


def test_the_statements_do_not_grow_with_the_days(daily: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: Counter[str] = Counter()
    for kind in (Database, Transaction):

        def run(self: Any, name: str, parameters: Any, original: Any = kind.run) -> Any:
            ran[name] += 1
            return original(self, name, parameters)

        monkeypatch.setattr(kind, "run", run)
    seal(daily, days_from(2), closed=EVENTS)
    of_two = ran.copy()
    ran.clear()
    assert sum(batch.job_count for batch in seal(daily, days_from(20)[2:], closed=EVENTS)) == 54
    assert ran == of_two


def test_days_that_a_dead_driver_left_are_taken_over_with_the_others(daily: SqlQueue) -> None:
    left, _ = seal(daily, days_from(3)[1:], lease_seconds=3_600)
    make_due(daily)
    made = seal(daily, days_from(3))
    assert [(batch.job_count, batch.token, batch.attempt) for batch in made] == [(3, 1, 1), (3, 2, 2), (3, 2, 2)]
    assert made[1].id == left.id
    assert value(daily, "SELECT max(attempt) FROM {s}.job WHERE batch_id = %s", left.id) == 1
    with pytest.raises(BatchLost), batches.publication(daily, left, output={}):
        pass


def test_what_was_opened_is_known_when_another_day_is_held(daily: SqlQueue) -> None:
    """So that it is given up at once, and not when its lease is over."""
    seal(daily, days_from(3)[2:])
    held: list[Batch] = []
    with pytest.raises(BatchLost, match="asset/2013-01-03"), batches.kept(daily, held):
        seal(daily, days_from(3), held, patience_seconds=0)
    assert [batch.key for batch in held] == ["asset/2013-01-01", "asset/2013-01-02"]
    assert rows(daily, "SELECT key, state FROM {s}.batch ORDER BY key") == [
        ("asset/2013-01-01", "abandoned"),
        ("asset/2013-01-02", "abandoned"),
        ("asset/2013-01-03", "sealed"),
    ]
