"""What a consumer tries with maintenance: with what it saw before the retention was changed, and with the runs of others."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.queue.maintenance import Maintenance
from tests.roles.support import Staff, staffed
from tests.support import Work, rows, until, value
from tests.support.archived import archive

KEPT = QueueSpec("kept", Work, retention_days=3)
OLD = "CAST(timezone('UTC', now()) AS date) - 9"
"""The day of the job, by the database's clock."""


@pytest.fixture
def mill(any_server: str) -> Iterator[Staff]:
    """Users of a schema with jobs that ended days ago, a step of people and a batch: none of them is kept any more."""
    with staffed(any_server, KEPT) as staff:
        for name in ("kept", "of_no_queue"):
            archive(staff.owner, value(staff.owner, f"SELECT {OLD}"), name=name)
        rows(
            staff.owner,
            "INSERT INTO {s}.job_event (job_id, no, queue, at, actor, action)"
            " VALUES (gen_random_uuid(), 1, 'kept', '2020-01-01', 'ann', 'approve')",
        )
        rows(
            staff.owner,
            "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner, created_at)"
            " SELECT gen_random_uuid(), 'k', 'kept', 'published', now(), 'me', at"
            " FROM unnest(ARRAY['2020-01-01'::timestamptz, now()]) AS at",
        )
        yield staff


_DELETING = {
    "a day": f"SELECT {{s}}.drop_archive_partition({OLD}, NULL)",
    "rows": "SELECT {s}.trim_archive('kept', 1000)",
    "rows of no queue": "SELECT {s}.trim_archive_of_no_queue(1000)",
    "steps": "SELECT {s}.trim_events('kept', '-infinity', gen_random_uuid(), 0, 1000)",
    "batches": "SELECT {s}.forget_batches('kept')",
}


def _there(staff: Staff) -> tuple[int, ...]:
    return tuple(
        value(staff.owner, f"SELECT count(*) FROM {{s}}.{name}") for name in ("job_archive", "job_event", "batch")
    )


@pytest.mark.parametrize("deleting", _DELETING)
@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_what_is_kept_by_now_is_not_deleted_by_what_was_seen_before(
    mill: Staff, deleting: str, level: psycopg.IsolationLevel
) -> None:
    before = _there(mill)
    with mill.connected(Role.CONSUMER) as connection:
        connection.isolation_level = level
        connection.autocommit = False
        connection.execute(mill.text("SELECT FROM {s}.queue"))
        rows(mill.owner, "UPDATE {s}.queue SET retention_days = 0")
        with pytest.raises(psycopg.errors.InvalidTransactionState, match="the retention may have changed"):
            connection.execute(mill.text(_DELETING[deleting]))
    assert _there(mill) == before


@pytest.mark.parametrize("deleting", _DELETING)
def test_what_is_kept_by_now_is_not_deleted_by_a_statement_that_began_before(mill: Staff, deleting: str) -> None:
    """It has the retention changed half-way, by another session, and its own snapshot is still the old one."""
    before = _there(mill)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"
    changing = "UPDATE {s}.queue SET retention_days = 0"
    with mill.connected(Role.CONSUMER) as connection, mill.connected(Role.OPERATOR) as other:
        connection.execute(
            "CREATE FUNCTION pg_temp.waits() RETURNS boolean LANGUAGE plpgsql"
            " AS $$ BEGIN PERFORM pg_advisory_lock(4711); RETURN true; END $$"
        )
        other.execute("SELECT pg_advisory_lock(4711)")
        call = _DELETING[deleting].replace("SELECT ", "SELECT pg_temp.waits(), ", 1)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(connection.execute, mill.text(call))
            try:
                until(lambda: value(mill.owner, waiting), "the statement to have begun")
                other.execute(mill.text(changing))
            finally:
                other.execute("SELECT pg_advisory_unlock(4711)")
            running.result()
    assert _there(mill) == before


def test_a_consumer_keeps_nobody_who_asks_from_maintaining_the_schema(mill: Staff) -> None:
    taking = "SELECT {s}.take_maintenance('me')"
    rows(mill.owner, "UPDATE {s}.maintenance SET due_at = now()")
    with mill.connected(Role.CONSUMER) as connection:
        ((run,),) = connection.execute(mill.text(taking)).fetchall()
        assert not Maintenance(mill.users[Role.CONSUMER].catalog).maintain_if_due(stopping=lambda: False).ran
        assert mill.users[Role.OPERATOR].maintain().ran
        assert mill.owner.maintain().ran
        noting = mill.text("SELECT {s}.note_maintenance(%s, false, true)")
        assert connection.execute(noting, (run,)).fetchall() == [(None,)]
        # None is due, and so none is begun.
        assert connection.execute(mill.text(taking)).fetchall() == [(None,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(mill.text("SELECT {s}.force_maintenance('me')"))


def test_a_run_is_ended_by_its_user_alone(mill: Staff) -> None:
    with mill.connected(Role.OPERATOR) as operator, mill.connected(Role.CONSUMER) as consumer:
        ((run,),) = operator.execute(mill.text("SELECT {s}.force_maintenance('me')")).fetchall()
        noting = mill.text("SELECT {s}.note_maintenance(%s, true, true)")
        assert consumer.execute(noting, (run,)).fetchall() == [(None,)]
        assert not mill.owner.maintain().ran
        assert operator.execute(noting, (run,)).fetchall() == [(True,)]
    assert mill.owner.maintain().ran
