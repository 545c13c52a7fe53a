"""What a handler in transactional mode sets on its connection ends with it: the next ones, and the queue, do not see it."""

from collections.abc import Iterator
from typing import Any

import pytest

from dagster_sqlqueue import Done, Job, NewJob, QueueSpec, SqlQueue
from tests.support import Work, rows, value
from tests.support.pooler import pooler
from tests.support.transactional import locked

SHOWN = """
SELECT
    current_user, session_user, COALESCE(current_setting('app.tenant', true), ''), current_setting('statement_timeout'),
    current_setting('default_transaction_read_only'), current_setting('transaction_read_only'), current_setting('TimeZone'),
    current_setting('enable_hashjoin'), current_setting('application_name'), current_setting('search_path')
"""


@pytest.fixture(params=["direct", "pooled"])
def single(request: pytest.FixtureRequest, queue: SqlQueue, url: str) -> Iterator[SqlQueue]:
    """The queue with one connection, of its own or through a pooler: what stays in its session is seen by all."""
    schema = queue.database.schema
    if request.param == "direct":
        with SqlQueue(url, schema=schema, pool_size=1) as other:
            yield other
    else:
        with pooler(url) as through, SqlQueue(through, schema=schema, pool_size=1) as other:
            yield other


@pytest.fixture
def role(queue: SqlQueue) -> Iterator[str]:
    """A role that may do nothing."""
    name = f"nobody_{queue.database.schema}"
    rows(queue, f'CREATE ROLE "{name}"')
    yield name
    rows(queue, f'DROP ROLE "{name}"')


@pytest.mark.parametrize(
    "statement",
    [
        'SET LOCAL ROLE "{role}"',
        'SET ROLE "{role}"',
        'SET SESSION AUTHORIZATION "{role}"',
        "SET LOCAL app.tenant = 'ada'",
        "SELECT set_config('app.tenant', 'ada', false)",
        "SET LOCAL statement_timeout = '1h'",
        "SET LOCAL enable_hashjoin = off",
        "SET search_path = pg_temp",
        "SET TimeZone = 'Europe/Vienna'",
        "SET TRANSACTION READ ONLY",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET application_name = 'another'",
    ],
)
def test_what_a_handler_sets_ends_with_it(single: SqlQueue, spec: QueueSpec[Work], role: str, statement: str) -> None:
    single.enqueue_many(spec, [Work(n=n) for n in range(5)])
    before = rows(single, SHOWN)
    seen: list[Any] = []

    def handler(job: Job[Work]) -> Any:
        if job.payload.n == 3:
            return Done()
        seen.extend(job.connection.execute(SHOWN).fetchall())
        if job.payload.n in (0, 4):
            job.connection.execute(statement.format(role=role))
        return Done()

    summary = locked(single, spec, handler, batch_size=5).drain()
    assert (summary.succeeded, summary.retried) == (5, 0)
    assert len(seen) == 4
    assert len(set(seen)) == 1
    assert rows(single, SHOWN) == before
    single.enqueue(spec, Work(n=9))
    assert locked(single, spec, lambda job: None).drain().succeeded == 1


def test_a_session_whose_transaction_a_handler_has_committed_is_not_used_again(
    single: SqlQueue, queue: SqlQueue, spec: QueueSpec[Work], role: str
) -> None:
    single.enqueue(spec, NewJob(Work(n=1), max_attempts=1))

    def handler(job: Job[Work]) -> None:
        job.connection.execute(f"SET ROLE \"{role}\"; SET app.tenant = 'ada'; COMMIT")

    assert locked(single, spec, handler).drain().failed == 1
    tenant = "SELECT COALESCE(current_setting('app.tenant', true), ''), current_user = session_user"
    assert rows(single, tenant) == [("", True)]
    assert "ended the transaction" in value(queue, "SELECT error FROM {s}.job_archive")
