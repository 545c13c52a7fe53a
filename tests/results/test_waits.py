"""Waiting for the ends of jobs: woken where the database can, polling where it cannot."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dagster_sqlqueue import QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.db.listener import Listener
from dagster_sqlqueue.errors import InvalidInput, QueueError, WaitTimedOut
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.results import Results, notifications
from tests.gate.patience import PATIENCE
from tests.results.support import FOLLOWERS, LONG, enqueued, heard, listeners, waiting
from tests.support import Work, caller, claim, rows, until, value


@pytest.mark.usefixtures("rare")
def test_a_wait_is_woken_by_the_end(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    (id,) = enqueued(queue, spec)
    (job,) = claim(queue)
    with waiting(lambda: results.wait(id, timeout_seconds=LONG)) as wait:
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
        queue.finish([Ending(job, ArchiveState.SUCCEEDED, {"n": 7})])
        outcome = wait.result(PATIENCE)
    assert (outcome.state, outcome.result) == ("succeeded", {"n": 7})
    assert value(queue, FOLLOWERS) == 0


@pytest.mark.parametrize("state", list(ArchiveState))
def test_by_every_end(queue: SqlQueue, spec: QueueSpec[Work], results: Results, state: ArchiveState) -> None:
    (id,) = enqueued(queue, spec)
    with waiting(lambda: results.wait(id, timeout_seconds=LONG)) as wait:
        until(lambda: value(queue, FOLLOWERS) == 1)
        (job,) = claim(queue)
        queue.requeue([(job, Retry("again", 0))])
        assert not wait.done()
        (job,) = claim(queue)
        queue.finish([Ending(job, state, error="x")])
        assert wait.result(PATIENCE).state == state


@pytest.mark.usefixtures("rare")
def test_by_an_operator(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    (id,) = enqueued(queue, spec)
    with waiting(lambda: results.wait(id, timeout_seconds=LONG)) as wait:
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
        queue.cancel("work", Selection(ids=[id]), reason="not wanted")
        assert wait.result(PATIENCE).error == "not wanted"


def test_what_has_ended_needs_no_wait(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    (id,) = enqueued(queue, spec)
    queue.complete(claim(queue))
    assert results.wait(id).succeeded
    assert results.wait(id, timeout_seconds=0).succeeded
    assert listeners(queue) == []


def test_all_waits_of_a_process_share_one_connection(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = enqueued(queue, spec, 40)
    jobs = {job.id: job for job in claim(queue)}
    with ThreadPoolExecutor(40) as pool:
        begun = [pool.submit(results.wait, id, timeout_seconds=LONG) for id in ids]
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 40)
        assert len(listeners(queue)) == 1
        for id in ids:
            queue.finish([Ending(jobs[id], ArchiveState.SUCCEEDED, str(id))])
        assert [wait.result(PATIENCE).result for wait in begun] == [str(id) for id in ids]
    assert len(listeners(queue)) == 1
    results.close()
    until(lambda: listeners(queue) == [])


def test_many_at_once(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = enqueued(queue, spec, 30)
    with waiting(lambda: results.wait_many([*reversed(ids), ids[0]], timeout_seconds=LONG)) as wait:
        until(lambda: value(queue, FOLLOWERS) == 30)
        queue.complete(claim(queue, 29))
        (last,) = claim(queue)
        assert not wait.done()
        queue.finish([Ending(last, ArchiveState.FAILED, error="x")])
        outcomes = wait.result(PATIENCE)
    assert list(outcomes) == list(reversed(ids))
    assert sum(outcome.succeeded for outcome in outcomes.values()) == 29


def test_in_time_or_not(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = enqueued(queue, spec, 3)
    jobs = claim(queue)
    queue.complete(jobs[:1])
    queue.leases.note_progress(jobs[1], 40, "sorting")
    with pytest.raises(WaitTimedOut, match=r"has not ended within 0\.3 seconds: it is running, 40 % done") as one:
        results.wait(jobs[1].id, timeout_seconds=0.3)
    assert isinstance(one.value, TimeoutError | QueueError)
    assert one.value.outcomes[jobs[1].id].progress.message == "sorting"
    with pytest.raises(WaitTimedOut, match="2 of 3 jobs have not ended") as many:
        results.wait_many(ids, timeout_seconds=0)
    assert list(many.value.outcomes) == ids
    assert sum(outcome.ended for outcome in many.value.outcomes.values()) == 1
    assert value(queue, FOLLOWERS) == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5", True])
def test_a_timeout_that_is_none(queue: SqlQueue, spec: QueueSpec[Work], results: Results, timeout: object) -> None:
    (id,) = enqueued(queue, spec)
    with pytest.raises(InvalidInput, match="timeout_seconds"):
        results.wait(id, timeout_seconds=timeout)  # type: ignore[arg-type]


def test_without_listening(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (id,) = enqueued(queue, spec)
    with Results(queue, listen=False) as results, waiting(lambda: results.wait(id, timeout_seconds=LONG)) as wait:
        until(lambda: wait.running())
        assert value(queue, FOLLOWERS) == 0
        assert listeners(queue) == []
        queue.complete(claim(queue))
        assert wait.result(PATIENCE).succeeded


def test_the_connection_is_given_back_when_nobody_waits(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(notifications, "_POLL_SECONDS", 0.05)
    for _ in range(2):
        (id,) = enqueued(queue, spec)
        with waiting(lambda id=id: results.wait(id, timeout_seconds=LONG)) as wait:  # type: ignore[misc]
            until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
            assert len(listeners(queue)) == 1
            queue.complete(claim(queue))
            assert wait.result(PATIENCE).succeeded
        until(lambda: listeners(queue) == [] and not heard(results))


def test_a_connection_that_is_about_to_listen_does_not_yet(fresh: SqlQueue, url: str) -> None:
    key = value(fresh, "SELECT CAST(CAST(CAST('{s}' AS regnamespace) AS oid) AS bigint)")
    rows(
        fresh,
        "CREATE OR REPLACE FUNCTION {s}.listen_to_ends() RETURNS void LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM pg_advisory_xact_lock({key}); END $$",
    )
    listener = Listener(fresh.database, "ended_listen", "a test")
    with caller(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [key])
        with waiting(listener.connect) as connecting:
            until(lambda: listeners(fresh), "the statement that listens")
            listening = listener.listening
            other.rollback()
            assert connecting.result(PATIENCE)
    assert (listening, listener.listening) == (False, True)
    listener.close()


@pytest.mark.usefixtures("rare")
def test_no_wake_up_is_lost(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    """Jobs that end while their wait begins: every one is seen without the poll that comes later."""
    (warm,) = enqueued(queue, spec)
    with waiting(lambda: results.wait(warm, timeout_seconds=LONG)) as wait:
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
        queue.complete(claim(queue))
        wait.result(PATIENCE)
    ids = enqueued(queue, spec, 150)
    jobs = {job.id: job for job in claim(queue, 200)}
    with ThreadPoolExecutor(1) as pool:
        for id in ids:
            wait = pool.submit(results.wait, id, timeout_seconds=LONG)
            queue.complete([jobs[id]])
            assert wait.result(PATIENCE).succeeded
    assert value(queue, FOLLOWERS) == 0


@pytest.mark.usefixtures("rare")
def test_awaited(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = enqueued(queue, spec, 20)
    jobs = {job.id: job for job in claim(queue)}

    async def both() -> list[Any]:
        begun = [asyncio.create_task(results.await_outcome(id, timeout_seconds=LONG)) for id in ids[:10]]
        rest = asyncio.create_task(results.await_outcomes(ids[10:], timeout_seconds=LONG))
        while not heard(results) or await asyncio.to_thread(value, queue, FOLLOWERS) < 20:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(queue.complete, [jobs[id] for id in ids])
        async with asyncio.timeout(PATIENCE):
            return [*await asyncio.gather(*begun), *(await rest).values()]

    done = asyncio.run(both())
    assert [outcome.id for outcome in done] == ids
    assert all(outcome.succeeded for outcome in done)
    assert value(queue, FOLLOWERS) == 0


def test_awaited_in_vain(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    (id,) = enqueued(queue, spec)

    async def cancelled() -> None:
        wait = asyncio.create_task(results.await_outcome(id))
        while await asyncio.to_thread(value, queue, FOLLOWERS) == 0:
            await asyncio.sleep(0.01)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    with pytest.raises(WaitTimedOut, match="it is queued"):
        asyncio.run(results.await_outcome(id, timeout_seconds=0.2))
    asyncio.run(cancelled())
    until(lambda: value(queue, FOLLOWERS) == 0)
