"""What a handler may do to the transaction, or the connection, that is its job's: it stops nobody but its job."""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import Job, NewJob, QueueSpec, Retry, SqlQueue
from tests.support import Work, rows, value
from tests.support.transactional import locked


def swallowing(job: Job[Work], effect: str) -> None:
    with contextlib.suppress(psycopg.Error):
        job.connection.execute("SELECT 1 / 0")


def committing(job: Job[Work], effect: str) -> None:
    job.connection.execute("COMMIT")


def committing_and_going_on(job: Job[Work], effect: str) -> None:
    job.connection.execute("COMMIT; BEGIN")


def rolling_back(job: Job[Work], effect: str) -> None:
    job.connection.execute("ROLLBACK")


def committing_and_failing(job: Job[Work], effect: str) -> None:
    job.connection.execute("COMMIT")
    raise ValueError


def committing_and_retrying(job: Job[Work], effect: str) -> Retry:
    job.connection.execute("COMMIT; BEGIN")
    return Retry("again", after=0)


def closing(job: Job[Work], effect: str) -> None:
    job.connection.close()


def closing_by_a_block(job: Job[Work], effect: str) -> None:
    with job.connection as connection:
        connection.execute("SELECT 1 / 0")


OPEN: list[object] = []


def leaving_a_block_open(job: Job[Work], effect: str) -> None:
    block = job.connection.transaction()
    block.__enter__()
    # It would be left with its last reference.
    OPEN.append(block)


def leaving_a_copy_open(job: Job[Work], effect: str) -> None:
    copy = job.connection.cursor().copy(f"COPY {effect} FROM STDIN".encode())
    copy.__enter__()
    OPEN.append(copy)


def leaving_a_stream_open(job: Job[Work], effect: str) -> None:
    stream = job.connection.cursor().stream("SELECT generate_series(1, 1000)")
    next(stream)
    OPEN.append(stream)


def leaving_a_pipeline_open(job: Job[Work], effect: str) -> None:
    pipeline = job.connection.pipeline()
    pipeline.__enter__()
    job.connection.execute(f"INSERT INTO {effect} VALUES (5)".encode())
    OPEN.append(pipeline)


def ending_the_session(job: Job[Work], effect: str) -> None:
    job.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def refused_at_the_commit(state: str) -> Callable[[Job[Work], str], None]:
    def refused(job: Job[Work], effect: str) -> None:
        job.connection.execute(f"INSERT INTO {effect}_refused VALUES ('{state}')".encode())

    return refused


def missing_something_at_the_commit(job: Job[Work], effect: str) -> None:
    job.connection.execute(f"INSERT INTO {effect}_refused VALUES ('missing')".encode())


def failing_at_the_commit(job: Job[Work], effect: str) -> None:
    job.connection.execute(f"INSERT INTO {effect}_once VALUES (1), (1)".encode())


DISTURBING: dict[str, tuple[Callable[[Job[Work], str], Any], str]] = {
    "a swallowed error": (swallowing, "a statement failed"),
    "a COMMIT": (committing, "ended the transaction"),
    "a COMMIT, and another transaction": (committing_and_going_on, "ended the transaction"),
    "a ROLLBACK": (rolling_back, "ended the transaction"),
    "a COMMIT, and an error": (committing_and_failing, "ended the transaction"),
    "a COMMIT, another transaction, and a retry": (committing_and_retrying, "ended the transaction"),
    "a connection closed": (closing, "closed the connection"),
    "a connection closed by its block": (closing_by_a_block, "closed the connection"),
    "a block left open": (leaving_a_block_open, "ended the transaction"),
    "a COPY left open": (leaving_a_copy_open, "left a COPY, a stream or a pipeline"),
    "a stream left open": (leaving_a_stream_open, "left a COPY, a stream or a pipeline"),
    "a pipeline left open": (leaving_a_pipeline_open, "left a COPY, a stream or a pipeline"),
    "what fails at the commit": (failing_at_the_commit, "could not be committed: UniqueViolation"),
    "a lock not available at the commit": (refused_at_the_commit("55P03"), "could not be committed: LockNotAvailable"),
    "a time-out at the commit": (refused_at_the_commit("57014"), "could not be committed: QueryCanceled"),
    "a foreign server away at the commit": (refused_at_the_commit("08001"), "could not be committed: SqlclientUnable"),
    "a connection failure at the commit": (refused_at_the_commit("08006"), "could not be committed: ConnectionFailure"),
    "a table of the schema missing at the commit": (
        missing_something_at_the_commit,
        "could not be committed: SchemaMis",
    ),
    "the end of the session": (ending_the_session, "the connection that is the job's was lost twice"),
    "a race lost at each commit": (refused_at_the_commit("40001"), "could not be committed: SerializationFailure"),
    "a right refused at the commit": (refused_at_the_commit("42501"), "could not be committed: AccessRefused"),
}


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("kind", DISTURBING)
def test_a_job_that_spoils_its_transaction_fails_by_itself(
    queue: SqlQueue, spec: QueueSpec[Work], effect: str, kind: str, batch_size: int
) -> None:
    disturb, words = DISTURBING[kind]
    queue.enqueue_many(spec, [Work(n=n) for n in range(8)])

    def handle(job: Job[Work]) -> Any:
        job.connection.execute(f"INSERT INTO {effect} VALUES ({job.payload.n})".encode())
        if job.payload.n == 5:
            return disturb(job, effect)
        return None

    drains = 0
    while queue.depth("work").live:
        locked(queue, spec, handle, batch_size=batch_size).drain()
        drains += 1
        assert drains <= 3
    ended = rows(queue, "SELECT CAST(payload ->> 'n' AS integer), state, attempt FROM {s}.job_archive ORDER BY 1")
    assert ended == [(n, "failed", 3) if n == 5 else (n, "succeeded", 1) for n in range(8)]
    assert words in value(queue, "SELECT error FROM {s}.job_archive WHERE state = 'failed'")
    written = Counter(n for (n,) in rows(queue, "SELECT n FROM {s}.effect"))
    assert set(written) - {5} == {0, 1, 2, 3, 4, 6, 7}
    if "COMMIT" not in kind:
        assert written == Counter([0, 1, 2, 3, 4, 6, 7])


def test_a_pool_without_a_connection_for_the_handler_is_named(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), max_attempts=1))
    with SqlQueue(url, schema=queue.database.schema, pool_size=1, connect_timeout=1) as single:
        assert locked(single, spec, lambda job: single.depth("work")).drain().failed == 1
    error = value(queue, "SELECT error FROM {s}.job_archive")
    assert "raise pool_size to the number of threads that use the queue, and by one for each consumer in trans" in error
