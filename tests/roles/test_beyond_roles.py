"""What docs/roles.md says that lies beyond roles: queues of a schema, databases of a server, notifications and locks.

Each is done here, and so is what the page says to do about it.
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.errors import AccessRefused, DatabaseUnavailable
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue.endings import Ending
from tests.roles.support import Staff, staffed, url_of
from tests.support import Work, until, value
from tests.support.armed import armed

WORK = QueueSpec("work", Work, bucket_count=1)
OTHER = QueueSpec("other", Work, bucket_count=1)
LIMITED = QueueSpec("limited", Work, bucket_count=1, max_running=5)
ORDERED = QueueSpec("ordered", Work, bucket_count=1, ordered=True)


@pytest.fixture
def mill(any_server: str) -> Iterator[Staff]:
    """Users of a schema with several queues."""
    with staffed(any_server, WORK, OTHER, LIMITED, ORDERED) as staff:
        yield staff


@pytest.fixture
def stranger(mill: Staff) -> Iterator["psycopg.Connection[Any]"]:
    """A connection of a user who can log in to the server, and has no role of the schema."""
    name = f"{mill.schema}_stranger"
    with psycopg.connect(mill.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    with psycopg.connect(url_of(mill.url, name), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(mill.text("SELECT FROM {s}.queue"))
        yield connection


def test_a_role_is_for_every_queue_of_its_schema_and_for_no_other_schema(mill: Staff, any_server: str) -> None:
    with staffed(any_server, WORK) as apart:
        for spec in (WORK, OTHER):
            assert mill.users[Role.PRODUCER].enqueue(spec, Work(n=1))
            assert len(mill.users[Role.CONSUMER].claim(spec.name, limit=2, worker="w")) == 1
        elsewhere = url_of(mill.url, mill.user(Role.PRODUCER))
        with SqlQueue(elsewhere, schema=apart.schema) as outsider, pytest.raises(AccessRefused):
            outsider.enqueue(WORK, Work(n=2))
        assert apart.owner.depth("work").ready == 0


@contextlib.contextmanager
def _second_database(staff: Staff) -> Iterator[str]:
    """The URL of one more database of the server, dropped before the roles, which are to have nothing in it."""
    name = f"other_{uuid4().hex[:12]}"
    with psycopg.connect(staff.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield make_url(staff.url).set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


def test_a_producer_of_one_database_is_one_of_another_whose_schema_has_its_name(mill: Staff) -> None:
    """Once that one has made its roles; who may not connect is none."""
    with _second_database(mill) as there:
        theirs = url_of(there, mill.user(Role.PRODUCER))
        with SqlQueue(there, schema=mill.schema) as owner:
            owner.migrate()
            owner.create_queue(WORK)
            with SqlQueue(theirs, schema=mill.schema) as producer:
                with pytest.raises(AccessRefused):
                    producer.enqueue(WORK, Work(n=1))
                owner.install_roles()
                assert producer.enqueue(WORK, Work(n=2))
            assert owner.depth("work").ready == 1
            assert mill.owner.depth("work").ready == 0
            with psycopg.connect(there, autocommit=True) as connection:
                connection.execute(
                    sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(sql.Identifier(connection.info.dbname))
                )
            with (
                SqlQueue(theirs, schema=mill.schema) as producer,
                pytest.raises((AccessRefused, DatabaseUnavailable), match="CONNECT"),
            ):
                producer.enqueue(WORK, Work(n=3))
            assert owner.depth("work").ready == 1


def test_whoever_can_connect_notifies_consumers_of_jobs_that_are_not_there(
    mill: Staff, stranger: "psycopg.Connection[Any]"
) -> None:
    """On the channel that is common to all, and on that of one session: they look, and find nothing."""
    with armed(mill.owner, mill.url, 2) as sessions:
        stranger.execute("SELECT pg_notify(%s, 'work')", [mill.schema])
        stranger.execute("SELECT pg_notify(%s, 'work')", [sessions[0].channel])
        assert until(sessions[0].notifications) == [(mill.schema, "work"), ("own", "work")]
        assert until(sessions[1].notifications) == [(mill.schema, "work")]
    assert mill.users[Role.CONSUMER].claim("work", limit=1, worker="w") == []


def _claimed(staff: Staff, spec: QueueSpec[Work]) -> list[ClaimedJob]:
    return staff.users[Role.CONSUMER].claim(spec.name, limit=1, worker="w", lease_seconds=3_600)


def _claims(staff: Staff) -> Callable[[], int]:
    staff.owner.enqueue(LIMITED, Work(n=1))
    return lambda: len(_claimed(staff, LIMITED))


def _completes(staff: Staff) -> Callable[[], int]:
    staff.owner.enqueue(ORDERED, NewJob(Work(n=1), ordering_key="k"))
    jobs = _claimed(staff, ORDERED)
    endings = [Ending(job, ArchiveState.SUCCEEDED) for job in jobs]
    return lambda: len(staff.users[Role.CONSUMER].finish(endings))


@pytest.mark.parametrize(
    ("queue", "places", "prepared"), [("limited", [-1], _claims), ("ordered", list(range(64)), _completes)]
)
def test_whoever_can_connect_takes_the_locks_of_a_queue_and_others_wait_until_it_is_gone(
    mill: Staff,
    stranger: "psycopg.Connection[Any]",
    queue: str,
    places: list[int],
    prepared: Callable[[Staff], Callable[[], int]],
) -> None:
    """A DBA sees who has them, and ends that session."""
    delayed = prepared(mill)
    lock = "SELECT pg_advisory_lock(hashtext(%s || '/' || %s), place) FROM unnest(CAST(%s AS int[])) AS place"
    stranger.execute(lock, (mill.schema, queue, places))
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE CAST(%s AS integer) = ANY (pg_blocking_pids(pid))"
    pid = stranger.info.backend_pid
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(delayed)
        try:
            until(lambda: value(mill.owner, blocked, pid), "somebody to wait for the lock")
            assert not waiting.done()
        finally:
            value(mill.owner, "SELECT pg_terminate_backend(%s)", pid)
        assert waiting.result() == 1
