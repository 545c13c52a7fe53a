"""What is tried with SQL against the jobs that large batches have packed: with rows of `batch` by a consumer, and with their
ids by a producer.
"""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.errors import LeaseLost
from dagster_sqlqueue.queue.selection import Selection
from tests.roles.support import Staff, staffed
from tests.support import Work, rows, value

BULK = QueueSpec("bulk", Work, bucket_count=1)
JOBS = 5


@pytest.fixture
def mill(any_server: str) -> Iterator[Staff]:
    """Users of a schema with some jobs that are due."""
    with staffed(any_server, BULK) as staff:
        staff.owner.enqueue_many(BULK, [Work(n=n) for n in range(JOBS)])
        yield staff


def _packed(staff: Staff, connection: "psycopg.Connection[Any]") -> UUID:
    """A batch that has packed all jobs, as a driver makes it."""
    batch = uuid4()
    connection.execute(
        staff.text(
            "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner, created_at)"
            " VALUES (%s, 'k', 'bulk', 'sealing', now() + interval '1 hour', 'driver', '2020-01-01')"
        ),
        (batch,),
    )
    packing = staff.text("SELECT {s}.pack_batch(%s, 1, '{0}', 3600)")
    assert connection.execute(packing, (batch,)).fetchall() == [(JOBS,)]
    connection.execute(staff.text("UPDATE {s}.batch SET state = 'sealed' WHERE id = %s"), (batch,))
    return batch


def _there(staff: Staff) -> int:
    return int(value(staff.owner, "SELECT count(DISTINCT id) FROM {s}.job_all"))


@pytest.mark.parametrize("state", ["published", "abandoned"])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_batch_is_not_over_with_jobs_in_its_packs(mill: Staff, state: str, at_once: bool) -> None:
    """Neither in the transaction that packs them, nor in a later one."""
    over = mill.text("UPDATE {s}.batch SET state = %s WHERE id = %s")
    with mill.connected(Role.CONSUMER) as connection:
        connection.execute("BEGIN")
        batch = _packed(mill, connection)
        if at_once:
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        with pytest.raises(
            psycopg.errors.InsufficientPrivilege, match=f"batch {batch} is {state}, and has packed jobs"
        ):
            connection.execute(mill.text(f"UPDATE {{s}}.batch SET state = '{state}'; COMMIT"))
        connection.execute("ROLLBACK")
        assert _there(mill) == JOBS
        batch = _packed(mill, connection)
        with pytest.raises(
            psycopg.errors.InsufficientPrivilege, match=f"batch {batch} is {state}, and has packed jobs"
        ):
            connection.execute(over, (state, batch))
        settling = mill.text("SELECT ended, back FROM {s}.settle_batch(%s, 'queued', 'given back')")
        with connection.transaction():
            connection.execute(over, (state, batch))
            assert connection.execute(settling, (batch,)).fetchall() == [(0, JOBS)]
    assert rows(mill.owner, "SELECT state FROM {s}.batch") == [(state,)]
    assert _there(mill) == JOBS


def test_no_packed_job_goes_with_the_row_of_its_batch(mill: Staff) -> None:
    """Neither by the deletion of what is over, nor under another id."""
    with mill.connected(Role.CONSUMER) as connection:
        batch = _packed(mill, connection)
        connection.execute(
            mill.text(
                "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner)"
                " VALUES (gen_random_uuid(), 'k', 'bulk', 'published', now(), 'me')"
            )
        )
        for query in (
            "UPDATE {s}.batch SET id = gen_random_uuid()",
            "UPDATE {s}.batch SET created_at = '2020-01-01'",
            "DELETE FROM {s}.batch",
            "DELETE FROM {s}.batch_pack",
            "UPDATE {s}.batch_pack SET batch_id = gen_random_uuid()",
            "SELECT {s}.forget_batch(id, true) FROM {s}.batch",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(mill.text(query))
        connection.execute(mill.text("SELECT {s}.forget_batches('bulk')"))
    assert value(mill.owner, "SELECT count(*) FROM {s}.batch WHERE id = %s", batch) == 1
    assert _there(mill) == JOBS


def test_a_batch_with_packs_stays_one_of_their_queue(mill: Staff) -> None:
    """What is packed is not seen by who removes a reply queue, which the batch alone keeps."""
    rows(mill.owner, "INSERT INTO {s}.reply_queue VALUES ('bulk', 3600, '2020-01-01')")
    mill.owner.create_queue(QueueSpec("other", Work, bucket_count=1))
    with mill.connected(Role.CONSUMER) as connection:
        batch = _packed(mill, connection)
        other = mill.text("UPDATE {s}.batch SET queue = 'other' WHERE id = %s")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match='has packed jobs of queue "bulk"'):
            connection.execute(other, (batch,))
        removing = mill.text("SELECT {s}.remove_expired_reply_queue('bulk')")
        assert connection.execute(removing).fetchall() == [(False,)]
        # A driver that takes it over for other jobs gives these back first.
        connection.execute(mill.text("SELECT {s}.settle_batch(%s, 'queued', NULL)"), (batch,))
        connection.execute(other, (batch,))
    assert mill.users[Role.OPERATOR].maintain().ran
    assert _there(mill) == JOBS


@pytest.mark.parametrize("token", ["token + 2", "token - 1", "0", "9223372036854775807", "-9223372036854775808"])
def test_the_leases_of_packed_jobs_are_not_numbered_by_a_consumer(mill: Staff, token: str) -> None:
    """A driver that takes a batch over raises its token by one, and so all of these numbers."""
    numbers = "SELECT DISTINCT lease_no FROM {s}.live_job"
    with mill.connected(Role.CONSUMER) as connection:
        _packed(mill, connection)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="token of batch"):
            connection.execute(mill.text(f"UPDATE {{s}}.batch SET token = {token}"))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(
                mill.text(
                    "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner, token)"
                    " VALUES (gen_random_uuid(), 'other', 'bulk', 'sealing', now(), 'me', 7)"
                )
            )
        assert rows(mill.owner, numbers) == [(1,)]
        connection.execute(mill.text("UPDATE {s}.batch SET token = token + 1"))
    assert rows(mill.owner, numbers) == [(2,)]


def test_no_batch_takes_what_is_held_or_under_a_lease(mill: Staff) -> None:
    """Whatever moment it says its jobs are to be due by."""
    (leased,) = mill.owner.claim("bulk", limit=1, worker="w", lease_seconds=3_600)
    (held, *_) = (id for (id,) in rows(mill.owner, "SELECT id FROM {s}.job WHERE state = 'queued' ORDER BY id"))
    mill.users[Role.OPERATOR].hold_queued("bulk", Selection(ids=[held]), "a person decides")
    kept = "SELECT id, state, lease_no FROM {s}.job WHERE id = ANY (%s) ORDER BY id"
    before = rows(mill.owner, kept, [leased.id, held])
    with mill.connected(Role.CONSUMER) as connection:
        batch = uuid4()
        connection.execute(
            mill.text(
                "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner, sealed_at)"
                " VALUES (%s, 'k', 'bulk', 'sealing', now(), 'me', 'infinity')"
            ),
            (batch,),
        )
        packing = mill.text("SELECT {s}.pack_batch(%s, 1, '{0}', 3600)")
        assert connection.execute(packing, (batch,)).fetchall() == [(JOBS - 2,)]
        mill.owner.enqueue(BULK, Work(n=JOBS))
        moving = mill.text("SELECT moved FROM {s}.move_batch(%s, 'bulk', '{0}', 'infinity', '{}', 'me')")
        assert connection.execute(moving, (batch,)).fetchall() == [(1,)]
    assert rows(mill.owner, kept, [leased.id, held]) == before


@pytest.mark.parametrize("how", ["abandoned by an operator", "unpacked by who follows one", "swept"])
@pytest.mark.parametrize("claimed", [False, True])
def test_a_job_under_the_id_of_a_packed_one_does_not_take_its_place(mill: Staff, how: str, claimed: bool) -> None:
    contents = rows(mill.owner, "SELECT id, payload ->> 'n' FROM {s}.job ORDER BY id")
    ids = [id for id, _ in contents]
    mill.owner.create_queue(QueueSpec("other", Work, bucket_count=1))
    with mill.connected(Role.CONSUMER) as connection:
        batch = _packed(mill, connection)
    put = (
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, unique_key, payload)"
        " SELECT i, 'other', 0, 0, now(), '2100-01-01', 9, i::text, '{\"n\": -1}' FROM unnest(%s) AS i"
    )
    with mill.connected(Role.PRODUCER) as connection:
        connection.execute(mill.text(put), (ids,))
    intruders = mill.owner.claim("other", limit=JOBS, worker="w", lease_seconds=3_600) if claimed else []
    if how == "abandoned by an operator":
        rows(mill.users[Role.OPERATOR], "SELECT * FROM {s}.abandon_batch(%s, 'because', true, false)", batch)
    elif how == "swept":
        rows(mill.owner, "UPDATE {s}.batch SET lease_until = now() - interval '1 year'")
        assert mill.users[Role.OPERATOR].maintain().ran
    else:
        rows(mill.users[Role.PRODUCER], "SELECT * FROM {s}.keep_live(%s, true)", ids[:1])
    there = rows(
        mill.owner,
        "SELECT id, payload ->> 'n' FROM {s}.job WHERE queue = 'bulk' AND unique_key IS NULL AND max_attempts <> 9"
        " AND region = 'local' AND run_at < now() ORDER BY id",
    )
    assert there == contents
    assert value(mill.owner, "SELECT count(*) FROM {s}.job_all") == JOBS
    if claimed:
        with pytest.raises(LeaseLost, match=f"the lease of {JOBS} of {JOBS} jobs"):
            mill.owner.complete(intruders)
    assert value(mill.owner, "SELECT count(*) FROM {s}.job_all WHERE state = 'succeeded'") == 0
