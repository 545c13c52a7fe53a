"""What docs/roles.md says that roles cannot prevent: each is done here, and so far it goes and no further."""

from collections.abc import Iterator

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.queue.maintenance import Maintenance
from dagster_sqlqueue.queue.selection import Selection
from tests.roles.support import Staff, staffed
from tests.support import Work, rows, value

WORK = QueueSpec("work", Work, bucket_count=1)


@pytest.fixture
def mill(any_server: str) -> Iterator[Staff]:
    """Users of a schema with one queue."""
    with staffed(any_server, WORK) as staff:
        yield staff


_SECOND = (
    "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
    " VALUES (%s, 'work', 0, 0, now(), now(), 5, '{\"n\": 666}')"
)


def test_a_producer_gives_the_id_of_an_ended_job_a_second_life(mill: Staff) -> None:
    """By SQL of its own, and not by enqueuing. The first job's row in the archive stays."""
    job = mill.owner.enqueue(WORK, Work(n=1))
    (first,) = mill.owner.claim("work", limit=1, worker="w")
    mill.owner.complete([first])
    with mill.connected(Role.PRODUCER) as connection:
        assert connection.execute(mill.text(_SECOND), (job,)).rowcount == 1
    (second,) = mill.owner.claim("work", limit=1, worker="w")
    assert (second.id, second.lease_no) == (job, first.lease_no)
    mill.owner.complete([second])
    lives = "SELECT payload ->> 'n' FROM {s}.job_archive WHERE id = %s ORDER BY finished_at"
    assert rows(mill.owner, lives, job) == [("1",), ("666",)]


def test_an_operator_has_an_old_lease_end_a_new_job(mill: Staff) -> None:
    """It may delete live jobs, as it does to cancel them, and enqueue."""
    job = mill.owner.enqueue(WORK, Work(n=1))
    (first,) = mill.owner.claim("work", limit=1, worker="first", lease_seconds=3_600)
    with mill.connected(Role.OPERATOR) as connection:
        assert connection.execute(mill.text("DELETE FROM {s}.job WHERE id = %s"), (job,)).rowcount == 1
        connection.execute(mill.text(_SECOND), (job,))
    (second,) = mill.owner.claim("work", limit=1, worker="second", lease_seconds=3_600)
    assert second.lease_no == first.lease_no
    mill.owner.complete([first])
    assert rows(mill.owner, "SELECT payload ->> 'n' FROM {s}.job_archive") == [("666",)]


def test_a_consumer_leases_jobs_without_an_end_and_an_operator_gets_them_back(mill: Staff) -> None:
    """As those of a batch that is said to be published, and was not settled: they have no packs, which are not left so."""
    job = mill.owner.enqueue(WORK, Work(n=1))
    with mill.connected(Role.CONSUMER) as connection:
        for query in (
            "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner)"
            " VALUES ('00000000-0000-0000-0000-000000000001', 'k', 'work', 'sealing', now(), 'me')",
            "UPDATE {s}.job SET state = 'running', available_at = 'infinity', lease_no = lease_no + 1, attempt = 1,"
            " batch_id = '00000000-0000-0000-0000-000000000001'",
            "UPDATE {s}.batch SET state = 'published'",
        ):
            connection.execute(mill.text(query))
    mill.owner.maintain()
    assert mill.owner.claim("work", limit=1, worker="w") == []
    with mill.connected(Role.OPERATOR) as connection:
        connection.execute(mill.text("UPDATE {s}.job SET available_at = now() WHERE id = %s"), (job,))
    assert [back.id for back in mill.owner.claim("work", limit=1, worker="w")] == [job]


def test_a_consumer_releases_what_is_held_and_ends_it(mill: Staff) -> None:
    job = mill.owner.enqueue(WORK, Work(n=1))
    mill.users[Role.OPERATOR].hold_queued("work", Selection(ids=[job]), "a person decides")
    ending = mill.text("SELECT * FROM {s}.end_locked(%s, '{succeeded}', '{null}', '{null}', 'me')")
    with mill.connected(Role.CONSUMER) as connection:
        assert connection.execute(ending, ([job],)).fetchall() == []
        connection.execute(mill.text("UPDATE {s}.job SET state = 'queued', available_at = now() WHERE id = %s"), (job,))
        assert connection.execute(ending, ([job],)).fetchall() == [(job,)]
    assert value(mill.owner, "SELECT state FROM {s}.job_archive WHERE id = %s", job) == "succeeded"


def test_a_consumer_says_that_maintenance_was_done(mill: Staff) -> None:
    """For an hour each time; who asks for it has it run."""
    rows(mill.owner, "UPDATE {s}.maintenance SET due_at = now()")
    with mill.connected(Role.CONSUMER) as connection:
        done = "SELECT {s}.note_maintenance({s}.take_maintenance('me'), true, true)"
        assert connection.execute(mill.text(done)).fetchall() == [(True,)]
    assert value(mill.owner, "SELECT due_at <= clock_timestamp() + interval '1 h' FROM {s}.maintenance") is True
    assert not Maintenance(mill.users[Role.CONSUMER].catalog).maintain_if_due(stopping=lambda: False).ran
    assert mill.users[Role.OPERATOR].maintain().ran


def test_an_operator_writes_the_record_of_a_job_anew_and_it_shows_when(mill: Staff) -> None:
    """With the job itself: it may delete both, and insert both. No step has another time than that of its writing."""
    job = mill.owner.enqueue(WORK, Work(n=1))
    put = "INSERT INTO {s}.job_event (job_id, no, queue, actor, action) VALUES (%s, 1, 'work', %s, 'approve')"
    with mill.connected(Role.OPERATOR) as connection:
        connection.execute(mill.text(put), (job, "bob"))
        for query in (
            "UPDATE {s}.job_event SET actor = 'alice'",
            "DELETE FROM {s}.job_event",
            "INSERT INTO {s}.job_event (job_id, no, queue, actor, action, at)"
            " VALUES (gen_random_uuid(), 1, 'work', 'alice', 'approve', '2020-01-01')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(mill.text(query))
        assert connection.execute(mill.text("DELETE FROM {s}.event_of_no_job")).rowcount == 0
        before = value(mill.owner, "SELECT clock_timestamp()")
        connection.execute(mill.text("DELETE FROM {s}.job WHERE id = %s"), (job,))
        assert connection.execute(mill.text("DELETE FROM {s}.event_of_no_job")).rowcount == 1
        connection.execute(mill.text(_SECOND), (job,))
        connection.execute(mill.text(put), (job, "alice"))
    assert rows(mill.owner, "SELECT actor, at > %s FROM {s}.job_event", before) == [("alice", True)]


def test_an_operator_moves_the_end_of_a_lease_and_ends_it_again(mill: Staff) -> None:
    """It numbers none: who held the lease holds it still, and of a job that nobody has claimed nobody has the lease."""
    claimed = mill.owner.enqueue(WORK, Work(n=1))
    (held,) = mill.owner.claim("work", limit=1, worker="w", lease_seconds=3_600)
    waiting = mill.owner.enqueue(WORK, Work(n=2))
    with mill.connected(Role.OPERATOR) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(mill.text("UPDATE {s}.job SET lease_no = lease_no + 1"))
        connection.execute(mill.text("UPDATE {s}.job SET state = 'running', available_at = 'infinity'"))
        assert mill.owner.claim("work", limit=2, worker="w") == []
        mill.owner.complete([held])
        connection.execute(mill.text("UPDATE {s}.job SET available_at = now() WHERE id = %s"), (waiting,))
    assert [job.id for job in mill.owner.claim("work", limit=2, worker="w")] == [waiting]
    assert claimed == held.id
