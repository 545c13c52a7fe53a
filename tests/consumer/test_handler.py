"""Handlers of a batch, and handlers that are awaited."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import (
    Cancel,
    Consumer,
    Done,
    Hold,
    Job,
    NewJob,
    QueueSpec,
    Reject,
    Retry,
    Snooze,
    SqlQueue,
    handles,
)
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ArchiveState, Mode
from dagster_sqlqueue.queue.endings import Ending
from tests.gate.patience import PATIENCE
from tests.support import Work, leases_go_on, rows, until, value


def enqueue(queue: SqlQueue, spec: QueueSpec[Work], count: int) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(count)])


def results(queue: SqlQueue) -> list[int]:
    return sorted(
        n for (n,) in rows(queue, "SELECT (result->>'n')::int FROM {s}.job_archive WHERE state = 'succeeded'")
    )


def test_a_batch_handler_is_called_once_for_each_claim(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    calls: list[int] = []

    def handler(jobs: Sequence[Job[Work]]) -> list[Done]:
        calls.append(len(jobs))
        return [Done({"n": job.payload.n}) for job in jobs]

    enqueue(queue, spec, 25)
    summary = Consumer(queue, spec, handler, batch=True, batch_size=10).drain()
    assert summary.succeeded == 25
    assert sum(calls) == 25
    assert max(calls) > 1, "batches of single jobs"
    assert len(calls) == summary.batches
    assert results(queue) == list(range(25))


def test_each_job_of_a_batch_has_its_own_outcome(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    outcomes = {0: Done(), 1: Retry("later", 60), 2: Snooze(60), 3: Hold("look"), 4: Reject("no"), 5: Cancel(), 6: None}

    def handler(jobs: Sequence[Job[Work]]) -> list[Any]:
        return [outcomes[job.payload.n] for job in jobs]

    enqueue(queue, spec, 7)
    summary = Consumer(queue, spec, handler, batch=True).drain()
    counted = summary.succeeded, summary.retried, summary.snoozed, summary.held, summary.failed, summary.cancelled
    assert counted == (2, 1, 1, 1, 1, 1)
    states = [rows(queue, f"SELECT (payload->>'n')::int, state FROM {{s}}.{table}") for table in ("job", "job_archive")]
    assert dict(states[0] + states[1]) == {
        0: "succeeded",
        1: "queued",
        2: "queued",
        3: "held",
        4: "failed",
        5: "cancelled",
        6: "succeeded",
    }


@pytest.mark.parametrize("given", [Reject("all of them"), [Reject("each")] * 5])
def test_one_outcome_holds_for_the_whole_batch(queue: SqlQueue, spec: QueueSpec[Work], given: Any) -> None:
    enqueue(queue, QueueSpec("work", Work, bucket_count=1), 5)
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    assert Consumer(queue, spec, lambda jobs: given, batch=True).drain().failed == 5


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (lambda jobs: [Done()], "was given 5 jobs and returned 1 outcomes"),
        (lambda jobs: [], "was given 5 jobs and returned 0 outcomes"),
        (lambda jobs: 7, "returned a int"),
        (lambda jobs: b"fives", "returned a bytes"),
        (lambda jobs: {job.id: Done() for job in jobs}, "returned a dict"),
        (lambda jobs: jobs[99], "IndexError"),
    ],
)
def test_a_batch_handler_that_fails_fails_every_job_of_the_batch(
    queue: SqlQueue, spec: QueueSpec[Work], handler: Callable[[Any], Any], reason: str
) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), max_attempts=2) for n in range(5)])
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    summary = Consumer(queue, spec, handler, batch=True).drain()
    # The work of one that returned is done; whose outcome is whose is not known.
    assert (summary.retried, summary.failed) == (5 if "Error" in reason else 0, 5)
    assert all(reason in (letter.error or "") for letter in queue.dead_letters("work"))


def test_a_payload_that_does_not_fit_is_kept_from_the_batch(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    enqueue(queue, spec, 3)
    rows(queue, "UPDATE {s}.job SET payload = jsonb_build_object('n', 'none') WHERE payload->>'n' = '1'")
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    seen: list[int] = []

    def handler(jobs: Sequence[Job[Work]]) -> None:
        seen.extend(job.payload.n for job in jobs)

    summary = Consumer(queue, spec, handler, batch=True).drain()
    assert (summary.succeeded, summary.failed) == (2, 1)
    assert sorted(seen) == [0, 2]


def test_an_async_handler_has_all_jobs_of_a_claim_in_flight(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    begun: list[int] = []

    async def handler(job: Job[Work]) -> Done:
        begun.append(job.payload.n)
        async with asyncio.timeout(PATIENCE):
            while len(begun) < 20:
                await asyncio.sleep(0)
        return Done({"n": job.payload.n})

    enqueue(queue, spec, 20)
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    assert Consumer(queue, spec, handler, batch_size=20).drain().succeeded == 20
    assert results(queue) == list(range(20))


def test_an_async_handler_of_a_batch(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    async def handler(jobs: Sequence[Job[Work]]) -> list[Done]:
        await asyncio.sleep(0)
        return [Done({"n": job.payload.n}) for job in jobs]

    enqueue(queue, spec, 12)
    assert Consumer(queue, spec, handler, batch=True).drain().succeeded == 12
    assert results(queue) == list(range(12))


def test_the_event_loop_is_the_same_for_every_batch_and_closed_at_the_end(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    loops: set[asyncio.AbstractEventLoop] = set()

    async def handler(job: Job[Work]) -> None:
        loops.add(asyncio.get_running_loop())

    enqueue(queue, spec, 30)
    assert Consumer(queue, spec, handler, batch_size=3).drain().batches >= 10
    (loop,) = loops
    assert loop.is_closed()


def test_async_handlers_fail_one_by_one(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    async def handler(job: Job[Work]) -> Done:
        await asyncio.sleep(0)
        if job.payload.n == 1:
            raise ValueError("the first one")
        if job.payload.n == 2:
            raise asyncio.CancelledError
        return Done({"n": job.payload.n})

    enqueue(queue, spec, 4)
    summary = Consumer(queue, spec, handler).drain()
    assert (summary.succeeded, summary.failed) == (2, 2)
    assert results(queue) == [0, 3]


def test_one_that_hangs_in_spite_of_its_timeout_loses_its_lease_and_no_other_job_does(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, max_attempts=3)
    enqueue(queue, spec, 4)
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    rows(queue, "UPDATE {s}.job SET timeout_seconds = 0.2 WHERE payload->>'n' = '1'")
    begun, other_has_it = threading.Event(), threading.Event()

    async def handler(job: Job[Work]) -> Done:
        begun.set()
        while not other_has_it.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.to_thread(other_has_it.wait, 3 * PATIENCE)
        return Done({"n": job.payload.n})

    # Looked at in one statement: between two, a slow machine may be late with the next beat of the others.
    hangs = "payload->>'n' = '1'"
    lost_alone = (
        f"SELECT max(available_at) FILTER (WHERE {hangs}) < clock_timestamp()"
        f" AND min(available_at) FILTER (WHERE NOT {hangs}) > clock_timestamp() FROM {{s}}.job"
    )

    def take_over() -> None:
        begun.wait(PATIENCE)
        until(lambda: value(queue, lost_alone), "the end of its lease")
        # In a bucket of its own: the leases of the others may be over before the next beat.
        rows(queue, f"UPDATE {{s}}.job SET bucket = 1 WHERE {hangs}")
        taken = queue.claim("work", buckets=[1], limit=1, lease_seconds=300, worker="other")
        assert [(job.attempt, job.payload) for job in taken] == [(1, '{"n": 1, "note": ""}')]
        assert queue.finish([Ending(taken[0], ArchiveState.SUCCEEDED, result={"n": 1})])
        other_has_it.set()

    thread = threading.Thread(target=take_over)
    thread.start()
    summary = Consumer(queue, spec, handler, lease_seconds=1, job_timeout_seconds=3_600).drain()
    thread.join()
    assert (summary.succeeded, summary.stale) == (3, 1)
    assert results(queue) == [0, 1, 2, 3]


def test_an_async_drain_that_is_interrupted_gives_back_what_is_in_flight(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    ended: list[int] = []

    async def handler(job: Job[Work]) -> Done:
        if job.payload.n == 0:
            raise KeyboardInterrupt
        try:
            await asyncio.sleep(3_600)
        finally:
            ended.append(job.payload.n)
        return Done()

    enqueue(queue, spec, 5)
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    with pytest.raises(KeyboardInterrupt):
        Consumer(queue, spec, handler).drain()
    depth = queue.depth("work")
    assert (depth.ready, depth.running) == (5, 0)
    assert set(ended) <= {1, 2, 3, 4}
    assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job") == [(0,)]


def test_inside_a_running_loop_it_says_what_to_do(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    async def handler(job: Job[Work]) -> None: ...

    async def main() -> None:
        with pytest.raises(InvalidInput, match=r"asyncio\.to_thread"):
            Consumer(queue, spec, handler).drain()
        assert (await asyncio.to_thread(Consumer(queue, spec, handler).drain)).succeeded == 1

    enqueue(queue, spec, 1)
    asyncio.run(main())


def test_transactional_mode_takes_plain_handlers_only(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    async def handler(job: Job[Work]) -> None: ...

    with pytest.raises(InvalidInput, match="an async one"):
        Consumer(queue, spec, handler, mode=Mode.TRANSACTIONAL)
    with pytest.raises(InvalidInput, match="a batch one"):
        Consumer(queue, spec, lambda jobs: None, batch=True, mode=Mode.TRANSACTIONAL)


def test_an_annotation_that_does_not_fit_the_call_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    def many(jobs: list[Job[Work]]) -> None: ...

    def sequence(jobs: Sequence[Job[Any]]) -> None: ...

    async def awaited(jobs: "list[Job[Work]]") -> None: ...

    def one(job: Job[Work]) -> None: ...

    def of_anything(jobs: list[Any]) -> None: ...

    def bare(jobs: list) -> None: ...  # type: ignore[type-arg]

    def described(jobs: Annotated[list[Job[Work]], "due"]) -> None: ...

    def beside_an_unknown(jobs: "list[Job[Work]]", other: "Nowhere" = None) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def unsaid(job: Any, tags: list[Job[Work]] | None = None) -> None: ...

    for handler in (many, sequence, awaited, of_anything, bare, described, beside_an_unknown):
        with pytest.raises(InvalidInput, match=r"takes a list of jobs by its annotation, .*; give batch=True"):
            Consumer(queue, spec, handler)
        with pytest.raises(InvalidInput, match="takes a list of jobs by its annotation"):
            handles(spec)(handler)  # type: ignore[arg-type]
        Consumer(queue, spec, handler, batch=True)
    with pytest.raises(InvalidInput, match="takes one job by its annotation, and batch=True calls it with a list"):
        Consumer(queue, spec, one, batch=True)
    for batch in (True, False):
        Consumer(queue, spec, unsaid, batch=batch)


def test_a_handler_of_another_model_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    class Other(BaseModel):
        n: int

    def one(job: Job[Other]) -> None: ...

    def many(jobs: list[Job[Other]]) -> None: ...

    def of_a_base(job: Job[BaseModel]) -> None: ...

    one.__annotations__["job"], many.__annotations__["jobs"] = Job[Other], list[Job[Other]]
    for handler, batch in ((one, False), (many, True)):
        with pytest.raises(InvalidInput, match=r"takes Job\[Other\], and the payloads of queue 'work' are Work"):
            Consumer(queue, spec, handler, batch=batch)
    Consumer(queue, spec, of_a_base)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"handler": None}, "the handler of queue 'work' is None; it must be a function of one job"),
        ({"handler": "send"}, "the handler of queue 'work' is 'send'"),
        ({"batch_size": "8"}, "batch_size is '8'; it must be 1 to 10,000"),
        ({"batch_size": True}, "batch_size is True"),
        ({"concurrency": "8"}, "concurrency is '8'; it must be 1 to 1,000"),
        ({"lease_seconds": timedelta(seconds=5)}, "lease_seconds is datetime.timedelta"),
        ({"job_timeout_seconds": float("nan")}, "job_timeout_seconds is nan; it must be positive"),
    ],
)
def test_what_would_fail_for_each_job_is_refused_at_once(
    queue: SqlQueue, spec: QueueSpec[Work], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        Consumer(queue, spec, **{"handler": lambda job: None, **given})


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"backoff": 5}, "backoff of queue 'work' is 5; it must be a Backoff"),
        ({"rate": (10, 60)}, "rate of queue 'work' is (10, 60); it must be a RateLimit"),
        ({"max_attempts": "3"}, "max_attempts of queue 'work' is '3'"),
    ],
)
def test_what_is_no_setting_of_a_queue_is_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        QueueSpec("work", Work, **setting)


def test_progress_of_jobs_side_by_side_is_written_for_each(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    seen: list[Any] = []

    async def handler(job: Job[Work]) -> None:
        job.progress(10 * job.payload.n, f"at {job.payload.n}")
        await asyncio.sleep(0)
        if job.payload.n == 3:
            seen.extend(rows(queue, "SELECT percent::int, message FROM {s}.job_progress ORDER BY percent"))

    enqueue(queue, spec, 4)
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    assert Consumer(queue, spec, handler).drain().succeeded == 4
    assert seen == [(0, "at 0"), (10, "at 1"), (20, "at 2"), (30, "at 3")]


def test_a_batch_that_takes_longer_than_its_lease_keeps_it(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    def handler(jobs: Sequence[Job[Work]]) -> None:
        until(leases_go_on(queue), "leases that go on")

    enqueue(queue, spec, 3)
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    summary = Consumer(queue, spec, handler, batch=True, lease_seconds=0.8).drain()
    assert (summary.succeeded, summary.stale) == (3, 0)
