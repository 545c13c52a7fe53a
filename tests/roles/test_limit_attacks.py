"""What a consumer tries with the limits of a queue: it blocks others for moments, not for good."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from dagster_sqlqueue import NewJob, QueueSpec, RateLimit
from dagster_sqlqueue.db.permissions import Role
from tests.roles.support import Staff, staffed
from tests.support import Work, rows, value

RUNNING = QueueSpec("running", Work, bucket_count=1, max_running=2)
TURNS = QueueSpec("turns", Work, bucket_count=1, max_running=2, ordered=True)
WIDE = QueueSpec("wide", Work, bucket_count=1, max_running=10_000)
RATED = QueueSpec("rated", Work, bucket_count=1, rate=RateLimit(2, 3_600))


@pytest.fixture
def mill(any_server: str) -> Iterator[Staff]:
    """Users of a schema with limited queues, and jobs on them that are due."""
    with staffed(any_server, RUNNING, TURNS, WIDE, RATED) as staff:
        for spec in (RUNNING, TURNS, RATED):
            staff.owner.enqueue_many(spec, [NewJob(Work(n=n), ordering_key=str(n)) for n in range(9)])
        yield staff


@pytest.mark.parametrize("queue", ["running", "turns", "rated"])
def test_a_consumer_reserves_nothing_for_longer_than_a_minute(mill: Staff, queue: str) -> None:
    put = mill.text("INSERT INTO {s}.limit_reservation (id, queue, jobs, expires_at) VALUES (%s, %s, 2000000000, %s)")
    with mill.connected(Role.CONSUMER) as connection:
        for until in ("infinity", "2100-01-01"):
            connection.execute(put, (uuid4(), queue, until))
    assert len(mill.owner.claim(queue, limit=9, worker="w")) == 2
    assert value(mill.owner, "SELECT count(*) FROM {s}.limit_reservation") == 0


def test_who_is_far_from_a_limit_reserves_beside_what_is_for_too_long(mill: Staff) -> None:
    put = "INSERT INTO {s}.limit_reservation (id, queue, jobs, expires_at) VALUES (%s, 'wide', 2000000000, 'infinity')"
    with mill.connected(Role.CONSUMER) as connection:
        connection.execute(mill.text(put), (uuid4(),))
    revision = value(mill.owner, "SELECT revision FROM {s}.queue WHERE name = 'wide'")
    mine = uuid4()
    wanted = {"queue": "wide", "revision": revision, "reservation": mine, "limit": 10}
    assert [id for id, *_ in mill.users[Role.CONSUMER].database.run("limit_reserve", wanted)] == [mine]
    assert rows(mill.owner, "SELECT id FROM {s}.limit_reservation") == [(mine,)]


def test_a_consumer_does_not_say_when_jobs_were_started(mill: Staff) -> None:
    with mill.connected(Role.CONSUMER) as connection:
        for query in (
            "INSERT INTO {s}.rate_start (queue, started_at, starts) VALUES ('rated', 'infinity', 2)",
            "UPDATE {s}.rate_start SET started_at = 'infinity'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(mill.text(query))
        connection.execute(mill.text("INSERT INTO {s}.rate_start (queue, starts) VALUES ('rated', 1)"))
    assert value(mill.owner, "SELECT started_at <= clock_timestamp() FROM {s}.rate_start") is True
    assert len(mill.owner.claim("rated", limit=9, worker="w")) == 1


def test_a_consumer_blocks_a_queue_for_moments_and_has_more_run_than_may(mill: Staff) -> None:
    """Cannot be prevented: who claims keeps the accounts of the limits."""
    with mill.connected(Role.CONSUMER) as connection:
        reserving = (
            "INSERT INTO {s}.limit_reservation (id, queue, jobs, expires_at)"
            " VALUES (%s, %s, 9, now() + interval '50 s')"
        )
        for queue in ("running", "rated"):
            connection.execute(mill.text(reserving), (uuid4(), queue))
            assert mill.owner.claim(queue, limit=9, worker="w") == []
        connection.execute(mill.text("DELETE FROM {s}.limit_reservation"))
        for forgets, queue in (
            ("UPDATE {s}.job SET limited = false WHERE queue = 'running'", "running"),
            ("DELETE FROM {s}.rate_start", "rated"),
        ):
            assert len(mill.owner.claim(queue, limit=9, worker="w", lease_seconds=3_600)) == 2
            assert mill.owner.claim(queue, limit=9, worker="w") == []
            connection.execute(mill.text(forgets))
            assert len(mill.owner.claim(queue, limit=9, worker="w", lease_seconds=3_600)) == 2
