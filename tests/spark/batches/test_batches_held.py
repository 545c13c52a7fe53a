"""Transactional batches: one transaction from the seal to the publication."""

import pickle
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import Done, Mode, NewJob, QueueSpec, Reject, SqlQueue
from dagster_sqlqueue.errors import BatchLost, InvalidInput
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import Batch
from dagster_sqlqueue.spark.batches.model import held_by
from tests.gate.patience import FULL, sized
from tests.spark.batches.held_support import ended, publish, seal
from tests.support import Work, caller, claim, make_due, rows, states, until, value
from tests.support.leased import ids_of, outcomes_of


def read(queue: SqlQueue, batch: Batch) -> list[int]:
    """The numbers of the batch's jobs as Spark reads them: on a connection of its own, by the snapshot."""
    with queue.database.connection() as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(batch.snapshot))
        found = connection.execute(
            f"SELECT (payload ->> 'n')::integer FROM \"{queue.database.schema}\".job WHERE {batch.condition}".encode()
        )
        return sorted(row[0] for row in found)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("filter", [{}, {"note": "x"}, {"note": "no 'such' \\ one"}])
def test_what_is_read_is_what_is_ended(filled: SqlQueue, overlap: bool, filter: dict[str, str]) -> None:
    claim(filled, 4)
    batch = seal(filled, overlap=overlap, filter=filter)
    numbers = read(filled, batch)
    assert (batch.mode, batch.token, len(numbers)) == (Mode.TRANSACTIONAL, 1, batch.job_count)
    publish(filled, batch)
    assert ended(filled) == numbers
    assert batches.outputs(filled, "k") == [{"at": "here"}]
    assert value(filled, "SELECT job_count FROM {s}.batch") == batch.job_count
    kept = {"claimed_by": "w", "attempt": 1, "lease_no": 1}
    columns = "claimed_by, attempt, lease_no, batch_id"
    assert rows(filled, f"SELECT DISTINCT {columns} FROM {{s}}.job_archive") == (
        [(*kept.values(), batch.id)] if numbers else []
    )


def test_until_it_is_published_nobody_sees_a_change_and_nobody_gets_a_job(filled: SqlQueue) -> None:
    batch = seal(filled)
    assert claim(filled) == []
    assert filled.depth("work").ready == 30
    with pytest.raises(BatchLost, match=r"batch 'k' is held by 'w' in its transaction"):
        seal(filled, patience_seconds=0)
    publish(filled, batch)
    assert filled.depth("work").live == 0


def test_results_and_the_end_of_the_jobs_are_one(filled: SqlQueue) -> None:
    rows(filled, "CREATE TABLE {s}.result (n integer)")
    insert = f"INSERT INTO {filled.database.schema}.result VALUES (1)".encode()

    def fails() -> None:
        with batches.publication(filled, seal(filled), output={}) as transaction:
            transaction.connection.execute(insert)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert (value(filled, "SELECT count(*) FROM {s}.result"), filled.depth("work").ready) == (0, 30)
    make_due(filled)
    with batches.publication(filled, seal(filled), output={}) as transaction:
        transaction.connection.execute(insert)
    assert (value(filled, "SELECT count(*) FROM {s}.result"), filled.depth("work").live) == (1, 0)
    assert rows(filled, "SELECT DISTINCT attempt FROM {s}.job_archive") == [(1,)]


def test_a_lost_connection_is_a_lost_batch_and_an_attempt_of_the_batch_alone(filled: SqlQueue) -> None:
    batch = seal(filled)
    _end_transactions(filled)
    with pytest.raises(BatchLost):
        publish(filled, batch)
    assert filled.depth("work").ready == 30
    make_due(filled)
    again = seal(filled)
    assert (again.id, again.token, again.attempt, again.job_count) == (batch.id, 2, 2, 30)
    publish(filled, again)
    assert rows(filled, "SELECT DISTINCT attempt, lease_no FROM {s}.job_archive") == [(1, 1)]


def _transaction_of(batch: Batch) -> "psycopg.Connection[Any]":
    return held_by(batch).transaction.connection


def _end_transactions(queue: SqlQueue) -> None:
    """End the server's side of every transaction that is open, as a crash of the driver or the network does. Also of one
    that is just being kept alive by a statement.
    """
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE xact_start IS NOT NULL"
        " AND backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()"
    )
    until(lambda: not rows(queue, end), "the end of all transactions")


def test_a_batch_that_kills_its_drivers_spends_its_own_attempts(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), max_attempts=1 + n % 2) for n in range(6)])
    for turn in range(1, 4):
        batch = seal(queue)
        assert (batch.job_count, batch.attempt) == (6, turn)
        _end_transactions(queue)
        make_due(queue)
    publish(queue, seal(queue))
    assert rows(queue, "SELECT DISTINCT attempt, state FROM {s}.job_archive") == [(1, "succeeded")]


def test_a_killed_one_can_be_gone_on_with_by_lease_and_the_other_way_round(filled: SqlQueue) -> None:
    seal(filled)
    _end_transactions(filled)
    make_due(filled)
    leased = batches.seal(filled, "work", "k", owner="w")
    assert (leased.mode, leased.job_count, leased.token) == (Mode.LEASED, 30, 2)
    make_due(filled)
    held = seal(filled)
    assert (held.mode, held.job_count, held.token) == (Mode.TRANSACTIONAL, 30, 3)
    publish(filled, held)
    assert rows(filled, "SELECT DISTINCT attempt, lease_no FROM {s}.job_archive") == [(1, 2)]


def test_jobs_of_an_abandoned_batch_are_as_they_were(filled: SqlQueue) -> None:
    batch = seal(filled)
    assert batches.abandon(filled, batch, "no memory") == 0
    with pytest.raises(BatchLost):
        publish(filled, batch)
    assert rows(filled, "SELECT state, attempt, error FROM {s}.batch") == [("abandoned", 1, "no memory")]
    assert {(job.attempt, job.lease_no, job.error) for job in claim(filled)} == {(1, 1, None)}


def test_an_overlapping_move_is_cancelled_when_the_batch_is_given_up(filled: SqlQueue, url: str) -> None:
    with caller(url) as other:
        other.execute(f"SELECT FROM {filled.database.schema}.job FOR UPDATE".encode())
        batch = seal(filled, overlap=True)
        assert batches.abandon(filled, batch, "never mind") == 0
    assert {job.attempt for job in until(lambda: claim(filled))} == {1}


def test_outcomes_of_single_jobs(filled: SqlQueue) -> None:
    batch = seal(filled)
    ids = ids_of(filled)
    reports = outcomes_of(ids)[:6]
    stranger = UUID(int=1)
    assert batches.report(filled, batch, [*reports, (stranger, Done())]) == {id for id, _ in reports}
    assert batches.report(filled, batch, [(ids[0], Reject("worse")), (ids[1], Done())]) == {ids[0], ids[1]}
    assert batches.outcomes(filled, batch) == {**dict(reports), ids[1]: Done()}
    rows(filled, "CREATE TABLE {s}.written (n integer)")
    with batches.publication(filled, batch, output={}) as transaction:
        transaction.connection.execute(f"INSERT INTO {filled.database.schema}.written VALUES (1)".encode())
        with pytest.raises(InvalidInput, match="report before its publication begins"):
            batches.report(filled, batch, [(ids[6], Done())])
    assert value(filled, "SELECT count(*) FROM {s}.written") == 1
    rows(filled, "DROP TABLE {s}.written")
    assert states(filled) == {
        **dict.fromkeys(range(30), "succeeded"),
        0: "failed",
        2: "queued",
        3: "held",
        4: "cancelled",
    }
    assert dict(rows(filled, "SELECT (payload ->> 'n')::integer, attempt FROM {s}.job")) == {2: 0, 3: 0}
    assert value(filled, "SELECT result FROM {s}.job_archive WHERE id = %s", ids[5]) == {"n": 5}
    assert value(filled, "SELECT count(*) FROM {s}.batch_outcome") == 0


def test_a_batch_that_went_to_another_process_reports_and_publishes_nothing(filled: SqlQueue) -> None:
    batch = seal(filled)
    sent = pickle.loads(pickle.dumps(batch))
    assert read(filled, sent) == list(range(30))
    for attempt in _attempts(filled, sent):
        with pytest.raises(BatchLost, match="in the process alone that sealed it"):
            attempt()
    publish(filled, batch)


def _attempts(queue: SqlQueue, batch: Batch) -> list[Callable[[], object]]:
    return [
        lambda: batches.report(queue, batch, [(UUID(int=1), Done())]),
        lambda: batches.outcomes(queue, batch),
        lambda: batches.abandon(queue, batch, "x"),
        lambda: publish(queue, batch),
    ]


def test_a_change_during_an_overlapping_move_is_a_lost_batch(filled: SqlQueue, url: str) -> None:
    with caller(url) as other:
        other.execute(f"UPDATE {filled.database.schema}.job SET priority = 1 WHERE payload ->> 'n' = '7'".encode())
        batch = seal(filled, overlap=True)
        numbers = read(filled, batch)
        other.commit()
        with pytest.raises(BatchLost, match="concurrent update"):
            publish(filled, batch)
    assert numbers == list(range(30))
    assert filled.depth("work").ready == 30


def test_kept_notices_a_lost_transaction(filled: SqlQueue) -> None:
    batch = seal(filled)

    def fails() -> None:
        with batches.kept(filled, [batch], lease_seconds=0.2) as check:
            check()
            _end_transactions(filled)
            until(lambda: check() is not None)

    with pytest.raises(BatchLost):
        fails()
    assert {job.attempt for job in claim(filled)} == {1}


def test_kept_is_heard_from_again_and_again(filled: SqlQueue) -> None:
    batch = seal(filled)
    pid = _transaction_of(batch).info.backend_pid
    heard = set()

    def often() -> bool:
        heard.update(rows(filled, "SELECT state_change FROM pg_stat_activity WHERE pid = %s", pid))
        return len(heard) > 4

    with batches.kept(filled, [batch], lease_seconds=0.2) as check:
        until(often, "statements in the transaction")
        check()
        publish(filled, batch)
    assert ended(filled) == list(range(30))


@pytest.mark.prove
def test_kept_keeps_a_transaction_past_its_lease(filled: SqlQueue) -> None:
    batch = seal(filled, lease_seconds=20)
    over = value(filled, "SELECT now() + interval '21 s'")
    with batches.kept(filled, [batch], lease_seconds=0.5) as check:
        until(lambda: value(filled, "SELECT clock_timestamp() > %s", over))
        check()
        publish(filled, batch)
    assert ended(filled) == list(range(30))


def test_a_silent_driver_loses_its_transaction_after_a_lease(filled: SqlQueue) -> None:
    lease, shown = sized((900, "15min"), (20, "20s"))
    batch = seal(filled, lease_seconds=lease)
    connection = _transaction_of(batch)
    patience = "SHOW idle_in_transaction_session_timeout"
    assert connection.execute(patience).fetchone() == (shown,)
    if not FULL:
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = '10ms'")
    # A claim that meets the end of the transaction may find a part of the jobs only.
    claimed: list[ClaimedJob] = []
    until(lambda: claimed.extend(claim(filled)) or len(claimed) == 30)
    with pytest.raises(BatchLost):
        publish(filled, batch)


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_written_at_a_publication_is_planned_as_the_server_is_set(filled: SqlQueue, mode: Mode) -> None:
    batch = batches.seal(filled, "work", "k", owner="w", mode=mode)
    with batches.publication(filled, batch, output={}) as transaction:
        assert transaction.connection.execute("SHOW enable_seqscan").fetchone() == ("on",)
    assert value(filled, "SHOW enable_seqscan") == "off"
    assert ended(filled) == list(range(30))


def test_several_batches_are_published_together_only_if_they_are_leased(filled: SqlQueue) -> None:
    one = batches.seal(filled, "work", "a", owner="w", filter={"note": "x"})
    two = batches.seal(filled, "work", "b", owner="w")
    with batches.publication(filled, one, two, output={"at": "both"}):
        pass
    assert ended(filled) == list(range(30))
    assert batches.outputs(filled, "a") == batches.outputs(filled, "b") == [{"at": "both"}]
    held = seal(filled)
    together = batches.publication(filled, held, one, output={})
    with pytest.raises(InvalidInput, match="2 batches cannot be published together"), together:
        pass
    with filled.database.transaction() as transaction, pytest.raises(InvalidInput, match="use publication"):
        batches.publish(filled, held, transaction, output={})
    publish(filled, held)
