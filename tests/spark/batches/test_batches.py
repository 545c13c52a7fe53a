"""Seal, read, publish: consuming a queue as a whole."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import BatchLost, InvalidInput, LeaseLost, QueuePaused, UnknownQueue
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import Batch, Swept
from tests.gate.patience import PATIENCE
from tests.support import Work, asked, caller, claim, leases_go_on, make_due, rows, until, value
from tests.support.leased import publish, seal


def test_seal_read_publish(filled: SqlQueue) -> None:
    batch = seal(filled, owner="me")
    assert (batch.job_count, batch.token, batch.key, batch.queue) == (30, 1, "k", "work")
    assert claim(filled) == []
    assert value(filled, "SELECT count(*) FROM {s}.job WHERE batch_id = %s AND claimed_by = 'me'", batch.id) == 30
    publish(filled, batch)
    assert filled.archived("work", since_seconds=3_600) == {"succeeded": 30}
    assert filled.depth("work").live == 0
    assert value(filled, "SELECT count(DISTINCT batch_id) FROM {s}.job_archive") == 1
    assert batches.outputs(filled, "k") == [{"at": "here"}]
    assert batches.outputs(filled, "other") == []


def test_a_filter_takes_its_jobs_only(filled: SqlQueue) -> None:
    batch = seal(filled, filter={"note": "x"})
    assert batch.job_count == 10
    publish(filled, batch)
    assert len(claim(filled)) == 20


def test_an_empty_batch_can_be_published(queue: SqlQueue) -> None:
    batch = seal(queue)
    assert batch.job_count == 0
    publish(queue, batch)
    assert batches.outputs(queue, "k") == [{"at": "here"}]


def test_the_outputs_come_latest_first(queue: SqlQueue) -> None:
    for turn in range(3):
        publish(queue, seal(queue), str(turn))
    assert batches.outputs(queue, "k", limit=2) == [{"at": "2"}, {"at": "1"}]


def test_what_is_not_due_or_held_by_others_stays(filled: SqlQueue) -> None:
    held = claim(filled, 10)
    rows(
        filled,
        "UPDATE {s}.job SET available_at = now() + interval '1 day' WHERE id IN"
        " (SELECT id FROM {s}.job WHERE state = 'queued' LIMIT 5)",
    )
    assert seal(filled).job_count == 15
    filled.complete(held)


def test_jobs_that_somebody_has_locked_stay_for_later(filled: SqlQueue, url: str) -> None:
    with caller(url) as other:
        mine = f'SELECT id FROM "{filled.database.schema}".job ORDER BY id LIMIT 7 FOR UPDATE'
        locked = {row[0] for row in other.execute(mine.encode())}
        batch = seal(filled)
        other.rollback()
    assert batch.job_count == 23
    assert {job.id for job in claim(filled)} == locked


def test_jobs_of_a_producer_that_commits_late_stay_for_later(filled: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with caller(url) as late:
        filled.enqueue_many(spec, [Work(n=100 + n) for n in range(5)], connection=late)
        batch = seal(filled)
        late.commit()
    assert batch.job_count == 30
    publish(filled, batch)
    assert filled.depth("work").ready == 5
    again = seal(filled)
    assert again.job_count == 5
    publish(filled, again)


def test_results_and_the_end_of_the_jobs_are_one(filled: SqlQueue) -> None:
    rows(filled, "CREATE TABLE {s}.result (n integer)")
    insert = f"INSERT INTO {filled.database.schema}.result VALUES (1)".encode()
    batch = seal(filled)

    def fails() -> None:
        with filled.database.transaction() as transaction:
            transaction.connection.execute(insert)
            batches.publish(filled, batch, transaction, output={})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert value(filled, "SELECT count(*) FROM {s}.result") == 0
    assert filled.depth("work").running == 30
    with filled.database.transaction() as transaction:
        transaction.connection.execute(insert)
        batches.publish(filled, batch, transaction, output={})
    assert value(filled, "SELECT count(*) FROM {s}.result") == 1
    assert filled.archived("work", since_seconds=3_600) == {"succeeded": 30}
    with pytest.raises(BatchLost, match="'k'"):
        publish(filled, batch)


def test_while_a_lease_runs_the_key_is_refused_with_its_owner(filled: SqlQueue) -> None:
    batch = seal(filled, owner="the owner", lease_seconds=900)
    with pytest.raises(BatchLost, match=r"batch 'k' is held by 'the owner' for (900|[78]\d\d) more seconds"):
        seal(filled, patience_seconds=0)
    publish(filled, batch)
    assert seal(filled, patience_seconds=0).job_count == 0


def test_waiting_ends_when_the_owner_publishes(filled: SqlQueue) -> None:
    batch = seal(filled, lease_seconds=900)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(seal, filled, patience_seconds=PATIENCE)
        until(lambda: asked(filled, "b.owner, CAST(EXTRACT"))
        publish(filled, batch)
        assert second.result(PATIENCE).job_count == 0


def test_who_was_overtaken_can_do_nothing_any_more(filled: SqlQueue) -> None:
    old = seal(filled, owner="old")
    make_due(filled)
    new = seal(filled, owner="new")
    assert (new.id, new.token, new.job_count) == (old.id, 2, 30)
    with pytest.raises(BatchLost):
        publish(filled, old)
    assert batches.abandon(filled, old, "x") == 0
    with pytest.raises(LeaseLost), batches.kept(filled, [old], lease_seconds=0.2) as check:
        until(lambda: check() is not None)
    publish(filled, new)
    assert rows(filled, "SELECT DISTINCT lease_no, attempt, claimed_by FROM {s}.job_archive") == [(2, 1, "new")]


def test_a_batch_whose_jobs_went_elsewhere_publishes_nothing(filled: SqlQueue) -> None:
    """No verb takes a job out of a batch; an administrator's hand may."""
    batch = seal(filled)
    rows(
        filled,
        "UPDATE {s}.job SET state = 'queued', available_at = now(), batch_id = NULL"
        " WHERE id = (SELECT id FROM {s}.job LIMIT 1)",
    )
    with pytest.raises(BatchLost, match="29 of its 30 jobs"):
        publish(filled, batch)
    (one,) = claim(filled, 100)
    filled.complete([one])
    assert filled.archived("work", since_seconds=3_600) == {"succeeded": 1}
    make_due(filled)
    assert seal(filled).job_count == 29


def test_a_takeover_with_another_filter_leaves_no_stranger_in_the_batch(filled: SqlQueue) -> None:
    """What is published is what fits the filter that it was sealed with."""
    seal(filled, filter={"note": "x"})
    make_due(filled)
    batch = seal(filled, filter={"note": "y"})
    assert batch.job_count == 20
    publish(filled, batch)
    assert len(claim(filled)) == 10


def test_abandoned_jobs_are_due_at_once_with_the_reason_and_have_spent_no_attempt(filled: SqlQueue) -> None:
    batch = seal(filled)
    assert batches.abandon(filled, batch, "no \x00 memory") == 30
    assert batches.abandon(filled, batch, "again") == 0
    with pytest.raises(BatchLost):
        publish(filled, batch)
    jobs = claim(filled)
    assert {(job.attempt, job.error) for job in jobs} == {(1, "no  memory")}
    filled.complete(jobs)


def test_runs_that_fail_or_die_are_attempts_of_the_batch_and_none_of_the_jobs(
    queue: SqlQueue, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), max_attempts=1 + n % 2) for n in range(6)])
    policy = Backoff(10, factor=3, max_seconds=50)
    for turn in range(1, 7, 2):
        batch = seal(queue, backoff=policy)
        assert (batch.job_count, batch.attempt) == (6, turn)
        make_due(queue)  # and this driver is gone
        batch = seal(queue, backoff=policy)
        assert (batch.job_count, batch.attempt) == (6, turn + 1)
        assert batches.abandon(queue, batch, f"turn {turn}") == 6
        assert rows(queue, "SELECT DISTINCT attempt, state FROM {s}.job") == [(0, "queued")]
    assert "batch 'k' is sealed for the 7. time in a row; the last time: turn 5" not in caplog.text
    last = seal(queue)
    assert "batch 'k' is sealed for the 7. time in a row; the last time: turn 5" in caplog.text
    assert "the last time: the lease of the batch ran out: its driver died or hung" in caplog.text
    publish(queue, last)
    assert rows(queue, "SELECT DISTINCT attempt, state FROM {s}.job_archive") == [(1, "succeeded")]
    assert seal(queue).attempt == 1


def test_jobs_without_an_attempt_left_are_not_sealed(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), max_attempts=1))
    rows(queue, "UPDATE {s}.job SET attempt = 1")
    assert seal(queue).job_count == 0
    (dead,) = queue.dead_letters("work")
    assert dead.error == "the lease ran out on the last attempt: its consumer died or hung"


def test_two_sealers_of_two_keys_share_the_jobs(filled: SqlQueue) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda key: seal(filled, key), ["a", "b"])
    assert first.job_count + second.job_count == 30
    publish(filled, first)
    publish(filled, second)
    assert filled.archived("work", since_seconds=3_600) == {"succeeded": 30}


def test_of_many_sealers_of_one_key_one_wins(filled: SqlQueue) -> None:
    def attempt(_: int) -> Batch | None:
        with suppress(BatchLost):
            return seal(filled, patience_seconds=0.05)
        return None

    with ThreadPoolExecutor(5) as pool:
        won = [batch for batch in pool.map(attempt, range(5)) if batch]
    (batch,) = won
    assert batch.job_count == 30


def test_an_unknown_queue(queue: SqlQueue) -> None:
    with pytest.raises(UnknownQueue):
        batches.seal(queue, "missing", "k", owner="w")


def test_kept_extends_the_lease_of_batch_and_jobs(filled: SqlQueue) -> None:
    batch = seal(filled, lease_seconds=0.6)
    goes_on = leases_go_on(filled, "batch", "lease_until")
    with batches.kept(filled, [batch], lease_seconds=0.6) as check:
        until(goes_on, "a lease that goes on")
        assert claim(filled) == []
        check()
        publish(filled, batch)


def test_kept_abandons_what_an_error_leaves_unpublished(filled: SqlQueue) -> None:
    done, open_ = seal(filled, "a", filter={"note": "x"}), seal(filled, "b")

    def fails() -> None:
        with batches.kept(filled, [done, open_]):
            publish(filled, done)
            raise ZeroDivisionError("no more")

    with pytest.raises(ZeroDivisionError):
        fails()
    assert filled.archived("work", since_seconds=3_600) == {"succeeded": 10}
    jobs = claim(filled)
    assert len(jobs) == 20
    assert {job.error for job in jobs} == {"the batch's run failed: ZeroDivisionError: no more"}
    assert not [thread for thread in threading.enumerate() if thread.name == "sqlqueue-batch-heartbeat"]


def test_kept_does_not_take_a_published_batch_for_lost(filled: SqlQueue) -> None:
    first, second = seal(filled, "a", filter={"note": "x"}, lease_seconds=5), seal(filled, "b", lease_seconds=5)
    with batches.kept(filled, [first, second], lease_seconds=0.2) as check:
        publish(filled, first)
        seen = set()
        until(lambda: seen.add(value(filled, "SELECT lease_until FROM {s}.batch WHERE key = 'b'")) or len(seen) > 3)
        check()
        publish(filled, second)
    assert filled.archived("work", since_seconds=3_600) == {"succeeded": 30}


def _seal_and_wait(url: str, schema: str, sending: Connection) -> None:
    with SqlQueue(url, schema=schema) as queue:
        batch = seal(queue, owner="killed", lease_seconds=300)
        with batches.kept(queue, [batch], lease_seconds=300):
            sending.send(batch)
            threading.Event().wait()


def test_a_killed_owners_batch_is_taken_over_when_its_lease_ran_out(url: str, filled: SqlQueue) -> None:
    context = multiprocessing.get_context("forkserver")
    receiving, sending = context.Pipe(duplex=False)
    owner = context.Process(target=_seal_and_wait, args=(url, filled.database.schema, sending))
    owner.start()
    assert receiving.poll(PATIENCE)
    former: Batch = receiving.recv()
    assert owner.pid
    os.kill(owner.pid, signal.SIGKILL)
    owner.join(PATIENCE)
    make_due(filled)
    batch = seal(filled, owner="heir", lease_seconds=300, patience_seconds=PATIENCE)
    assert (batch.id, batch.job_count, batch.token) == (former.id, 30, former.token + 1)
    with pytest.raises(BatchLost):
        publish(filled, former)
    publish(filled, batch)
    assert filled.archived("work", since_seconds=3_600) == {"succeeded": 30}


def test_a_queue_with_backoff_does_not_matter_to_a_batch(queue: SqlQueue) -> None:
    spec = QueueSpec("slow", Work, backoff=Backoff(1_000))
    queue.create_queue(spec)
    queue.enqueue(spec, Work(n=1))
    batches.abandon(queue, batches.seal(queue, "slow", "k", owner="w"), "again")
    assert batches.seal(queue, "slow", "k", owner="w").job_count == 1


def test_a_paused_queue_is_not_sealed(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    queue.pause("work")
    with pytest.raises(QueuePaused, match="Resume it with: sqlqueue resume work"):
        seal(queue)
    assert queue.depth("work").ready == 1


@pytest.mark.parametrize("settings", [{"ordered": True}, {"max_running": 2}, {"max_running_per_key": 2}])
def test_a_queue_that_lets_jobs_wait_for_others_is_not_sealed(queue: SqlQueue, settings: dict[str, Any]) -> None:
    spec = QueueSpec("work", Work, **settings)
    queue.create_queue(spec)
    queue.enqueue(spec, Work(n=1))
    with pytest.raises(InvalidInput, match="is ordered or has limits"):
        seal(queue)
    assert queue.depth("work").ready == 1


def test_a_sweep_gives_back_what_a_driver_left_behind(queue: SqlQueue) -> None:
    spec = QueueSpec("slow", Work, max_attempts=3, backoff=Backoff(1_000, factor=3, jitter=0))
    queue.create_queue(spec)
    queue.enqueue_many(spec, [NewJob(Work(n=n), max_attempts=n) for n in (1, 2, 3)])
    batches.seal(queue, "slow", "k", owner="w", lease_seconds=0.01)
    assert batches.sweep_batches(queue) == Swept()
    make_due(queue)
    assert queue.maintain().batches_swept == 1
    gone = "the lease of its batch ran out long ago: the driver died or hung"
    assert rows(queue, "SELECT DISTINCT state, attempt, available_at <= now(), error FROM {s}.job") == [
        ("queued", 0, True, gone)
    ]
    assert rows(queue, "SELECT state, attempt, error FROM {s}.batch") == [("abandoned", 1, gone)]
    assert queue.maintain().batches_swept == 0
    assert batches.seal(queue, "slow", "k", owner="w").attempt == 2


def test_a_heartbeat_writes_one_row(filled: SqlQueue) -> None:
    batch = seal(filled)
    before = rows(filled, "SELECT xmin::text, ctid::text FROM {s}.job ORDER BY id")
    extended = filled.database.run("batch_extend", {"batch_id": batch.id, "token": batch.token, "lease_seconds": 90.0})
    assert len(extended) == 1
    assert rows(filled, "SELECT xmin::text, ctid::text FROM {s}.job ORDER BY id") == before


def test_batches_are_forgotten_with_their_jobs_but_for_the_last(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    for _ in range(3):
        publish(queue, seal(queue))
    for key in ("k", "k", "other"):
        batches.abandon(queue, seal(queue, key), "no more")
    rows(queue, "UPDATE {s}.queue SET retention_days = 0")
    rows(queue, "UPDATE {s}.batch SET created_at = created_at - interval '40 days'")
    batches.sweep_batches(queue)
    assert value(queue, "SELECT count(*) FROM {s}.batch") == 6
    rows(queue, "UPDATE {s}.queue SET retention_days = 41 WHERE name = 'work'")
    batches.sweep_batches(queue)
    assert value(queue, "SELECT count(*) FROM {s}.batch") == 6
    rows(queue, "UPDATE {s}.queue SET retention_days = 30 WHERE name = 'work'")
    queue.maintain()
    kept = rows(queue, "SELECT key, state FROM {s}.batch ORDER BY created_at")
    assert kept == [("k", "published"), ("k", "abandoned"), ("other", "abandoned")]
    assert seal(queue).attempt == 3
    rows(queue, "UPDATE {s}.queue SET retention_days = 0 WHERE name = 'work'")
