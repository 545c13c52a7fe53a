"""Timeouts of statements, locks and transactions: none of a role's ends a consumer, or has a handler run again."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import Consumer, Done, Hold, Job, Mode, QueueSpec, Retry, SqlQueue
from tests.support import Work, rows, states, until, value
from tests.support.pooler import pooler

TIMEOUTS = {
    "statement_timeout": "200ms",
    "lock_timeout": "150ms",
    "idle_in_transaction_session_timeout": "50ms",
    "transaction_timeout": "300ms",
}


@pytest.fixture
def timed(queue: SqlQueue, url: str) -> Iterator[str]:
    """URL of a user whose role has every timeout."""
    role = f"timed_{queue.database.schema}"
    rows(queue, f'CREATE ROLE "{role}" LOGIN SUPERUSER')
    for name, said in TIMEOUTS.items():
        if value(queue, "SELECT count(*) FROM pg_settings WHERE name = %s", name):
            rows(queue, f"ALTER ROLE \"{role}\" SET {name} = '{said}'")
    yield url.replace("://postgres@", f"://{role}@")
    rows(queue, f'DROP ROLE "{role}"')


@pytest.fixture(params=["direct", "pooled"])
def slow(request: pytest.FixtureRequest, queue: SqlQueue, timed: str) -> Iterator[SqlQueue]:
    """The queue, as that user: on connections of its own, and through a pooler."""
    schema = queue.database.schema
    if request.param == "direct":
        with SqlQueue(timed, schema=schema) as other:
            yield other
    else:
        with pooler(timed) as through, SqlQueue(through, schema=schema) as other:
            yield other


def shown(connection: "psycopg.Connection[Any]") -> list[str]:
    query = "SELECT current_setting(name) FROM unnest(%s::text[]) AS name WHERE current_setting(name, true) IS NOT NULL"
    return [said for (said,) in connection.execute(query, [list(TIMEOUTS)]).fetchall()]


def test_no_timeout_of_a_role_applies_to_the_library(slow: SqlQueue) -> None:
    with slow.database.transaction() as transaction:
        assert set(shown(transaction.connection)) == {"0"}
        assert shown(transaction.lend())[:2] == ["200ms", "150ms"]
        assert set(shown(transaction.connection)[2:]) == {"0"}
        assert shown(transaction.lend())[:2] == ["200ms", "150ms"]
        assert set(shown(transaction.connection)[2:]) == {"0"}
        transaction.take_back()
        assert set(shown(transaction.connection)) == {"0"}


def test_a_timeout_given_to_the_library_applies(queue: SqlQueue, timed: str) -> None:
    options = f"{timed}{'&' if '?' in timed else '?'}options=-c%20lock_timeout%3D7s"
    with (
        SqlQueue(options, schema=queue.database.schema, statement_timeout=9) as other,
        other.database.transaction() as transaction,
    ):
        assert shown(transaction.connection)[:2] == ["9s", "7s"]
        assert shown(transaction.lend())[:2] == ["9s", "7s"]
        assert shown(transaction.lend())[:2] == ["9s", "7s"]
        transaction.take_back()
        assert shown(transaction.connection)[:2] == ["9s", "7s"]


def test_the_end_of_a_job_waits_for_a_lock(slow: SqlQueue, queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND usename = %s AND clock_timestamp() - query_start > interval '400 ms'"
    )
    user = value(slow, "SELECT current_user")
    handled = _held_up(slow, spec, url, lambda job: None, lambda: value(queue, waiting, user))
    assert handled == [0]
    assert states(queue) == {0: "succeeded"}


def test_a_handler_may_take_its_time_in_a_transaction(slow: SqlQueue, spec: QueueSpec[Work]) -> None:
    slow.enqueue_many(spec, [Work(n=n) for n in range(3)])

    def handler(job: Job[Work]) -> None:
        job.connection.execute("SELECT 1")
        time.sleep(0.2)

    summary = Consumer(slow, spec, handler, mode=Mode.TRANSACTIONAL, batch_size=3).drain()
    assert (summary.succeeded, summary.retried) == (3, 0)


@pytest.mark.parametrize("concurrency", [None, 2])
@pytest.mark.parametrize("outcome", [Done(), Retry("again", after=3_600), Hold("look")])
def test_an_end_that_a_timeout_keeps_from_being_written_is_written_again(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    url: str,
    outcome: Any,
    concurrency: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with SqlQueue(url, schema=queue.database.schema, statement_timeout=0.3) as hasty:
        ended = _held_up(
            hasty,
            spec,
            url,
            lambda job: outcome,
            lambda: caplog.text.count("canceling statement due to statement timeout") > 1,
            concurrency=concurrency,
        )
    assert ended == [0]
    found = {"Done": "succeeded", "Retry": "queued", "Hold": "held"}[type(outcome).__name__]
    assert states(queue) == {0: found}


def test_a_claim_that_waits_for_longer_than_a_timeout_is_made_again(
    queue: SqlQueue, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = QueueSpec("work", Work, max_running=5)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    with (
        SqlQueue(url, schema=queue.database.schema, statement_timeout=0.3) as hasty,
        psycopg.connect(url) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute(f"SELECT \"{queue.database.schema}\".claim('work', 'other')").fetchall()
        drained = pool.submit(Consumer(hasty, spec, lambda job: None).drain)
        until(lambda: drained.done() or "canceling statement due to statement timeout" in caplog.text)
        other.rollback()
        assert drained.result().succeeded == 3


def _held_up(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    url: str,
    handler: Callable[[Job[Work]], Any],
    long_enough: Callable[[], Any],
    **settings: Any,
) -> list[int]:
    """Work one job off whose row another transaction locks until it has held up its end. Returns the jobs handled."""
    queue.enqueue(spec, Work(n=0))
    handled: list[int] = []
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:

        def locked(job: Job[Work]) -> Any:
            handled.append(job.payload.n)
            other.execute(f'SELECT FROM "{queue.database.schema}".job FOR UPDATE')
            return handler(job)

        drained = pool.submit(Consumer(queue, spec, locked, lease_seconds=300, **settings).drain)
        until(lambda: drained.done() or long_enough())
        other.rollback()
        drained.result()
    return handled
