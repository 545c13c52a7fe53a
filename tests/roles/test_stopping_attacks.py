"""Rows with which a user of a role would stop the work of others: what is refused, and what does no harm."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from dagster_sqlqueue import Consumer, NewJob, QueueSpec
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.errors import LeaseLost
from dagster_sqlqueue.orchestration import run_plan, slots
from tests.roles.support import Staff, staffed
from tests.support import Work, make_due, rows, states, value

WORK = QueueSpec("work", Work, bucket_count=1, ordered=True)

_RAW = (
    "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload, %COLUMN)"
    " VALUES (%s, 'work', 0, 0, now(), now(), 5, '{\"n\": 1}', %s%MORE)"
)


def _raw(column: str, more_columns: str = "", more: str = "") -> str:
    return _RAW.replace("%COLUMN", f"{column}{more_columns}").replace("%MORE", more)


@pytest.fixture
def mill(any_server: str) -> Iterator[Staff]:
    """Users of a schema with one ordered queue."""
    with staffed(any_server, WORK) as staff:
        yield staff


@pytest.mark.parametrize("backoff", ["{1,0,1,0}", "{-1,-1,-1,-1}", "{1,NaN,1,0}", "{Infinity,2,Infinity,0}", "{1}"])
@pytest.mark.parametrize("way", ["settled", "swept", "abandoned"])
def test_a_senseless_backoff_keeps_no_batch_from_its_end(mill: Staff, backoff: str, way: str) -> None:
    """A retry that a driver reports takes the queue's."""
    job, batch = uuid4(), uuid4()
    with mill.connected(Role.PRODUCER) as connection:
        connection.execute(mill.text(_raw("backoff")), (job, backoff))
    with mill.connected(Role.CONSUMER) as connection:
        connection.execute(
            mill.text(
                "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner)"
                " VALUES (%s, 'k', 'work', 'sealed', now() - interval '1 day', 'driver')"
            ),
            (batch,),
        )
        taken = (
            "UPDATE {s}.job SET batch_id = %s, state = 'running', available_at = 'infinity', lease_no = lease_no + 1,"
            " attempt = attempt + 1 WHERE id = %s"
        )
        connection.execute(mill.text(taken), (batch, job))
        report = "INSERT INTO {s}.batch_outcome (batch_id, job_id, state, spent) VALUES (%s, %s, 'queued', true)"
        connection.execute(mill.text(report), (batch, job))
        if way == "settled":
            connection.execute(mill.text("SELECT {s}.settle_batch(%s, 'succeeded', NULL)"), (batch,))
    if way == "swept":
        assert mill.users[Role.OPERATOR].maintain().batches_swept == 1
    if way == "abandoned":
        with mill.connected(Role.OPERATOR) as connection:
            connection.execute(mill.text("SELECT {s}.abandon_batch(%s, 'gone', true, false)"), (batch,))
    due = "SELECT available_at BETWEEN now() - interval '1 day' AND now() + interval '1 day' FROM {s}.job WHERE id = %s"
    assert value(mill.owner, due, job)
    assert states(mill.owner) == {1: "queued"}


@pytest.mark.parametrize(
    ("column", "told"),
    [
        *(("after", told) for told in ("Infinity", "NaN", "1e300", "-1")),
        *(("moment", told) for told in ("infinity", "-infinity", "20000-01-01")),
    ],
)
def test_a_report_names_a_moment_that_a_job_can_be_due_at(mill: Staff, column: str, told: str) -> None:
    columns = f"batch_id, job_id, state, spent, {column}"
    report = f"INSERT INTO {{s}}.batch_outcome ({columns}) VALUES (%s, %s, 'queued', true, %s)"
    with mill.connected(Role.CONSUMER) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(mill.text(report), (uuid4(), uuid4(), told))


@pytest.mark.parametrize("place", [0, -1, -(2**63)])
def test_no_job_has_a_place_before_the_first(mill: Staff, place: int) -> None:
    """Its key would wait for it for good."""
    with (
        mill.connected(Role.PRODUCER) as connection,
        pytest.raises(psycopg.errors.CheckViolation, match="job_order_no_is_positive_and_needs_an_ordering_key"),
    ):
        connection.execute(mill.text(_raw("order_no", ", ordering_key", ", 'k'")), (uuid4(), place))


def test_a_producer_takes_a_place_before_others_in_the_line_of_a_key(mill: Staff) -> None:
    """By SQL of its own, as docs/roles.md says: the others wait for its job, and for nothing else."""
    mill.owner.enqueue(WORK, NewJob(Work(n=2), ordering_key="k"))
    rows(mill.owner, "UPDATE {s}.job SET order_no = 7")
    mill.owner.enqueue(WORK, NewJob(Work(n=3), ordering_key="other"))
    with mill.connected(Role.PRODUCER) as connection:
        first = _raw("order_no", ", ordering_key", ", 'k'").replace("now(), now()", "'2100-01-01', '2100-01-01'")
        connection.execute(mill.text(first), (uuid4(), 1))
    done: list[int] = []
    Consumer(mill.users[Role.CONSUMER], WORK, lambda job: done.append(job.payload.n)).drain()
    assert done == [3]
    make_due(mill.owner)
    rows(mill.owner, "UPDATE {s}.job SET available_at = now() WHERE order_no = 1")
    Consumer(mill.users[Role.CONSUMER], WORK, lambda job: done.append(job.payload.n)).drain()
    assert done == [3, 1, 2]


def test_a_count_of_refused_writes_refuses_none_by_an_error(mill: Staff) -> None:
    mill.owner.enqueue(WORK, Work(n=1))
    (job,) = mill.owner.claim("work", limit=1, worker="w")
    rows(mill.owner, "UPDATE {s}.job SET lease_no = lease_no + 1")
    with mill.connected(Role.CONSUMER) as connection:
        connection.execute(
            mill.text("INSERT INTO {s}.stale_write SELECT 'work', (now() AT TIME ZONE 'UTC')::date, %s"), (2**63 - 1,)
        )
    for _ in range(2):
        with pytest.raises(LeaseLost):
            mill.owner.complete([job])


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "2100-01-01"])
def test_requests_for_runs_that_were_never_made_delay_none_for_longer_than_others(mill: Staff, moment: str) -> None:
    with mill.connected(Role.CONSUMER) as connection:
        connection.execute(mill.text("UPDATE {s}.bucket SET starts = 2147483647, asked_at = %s"), (moment,))
    asked = slots.asked(mill.owner, "work")
    assert {bucket: run_plan.retry_seconds(one) <= 0 for bucket, one in asked.items()} == {0: True}
