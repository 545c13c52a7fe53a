"""How many jobs a consumer claims at a time where nobody said it."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Job, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.ahead_policy import QUICK_SECONDS
from dagster_sqlqueue.consumer.batch_size import BEHIND_SECONDS, BatchSize
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.model.job import ClaimedJob
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, until


def sizes(queue: SqlQueue, spec: QueueSpec[Work], handler: Any, jobs: int, **given: Any) -> list[int]:
    """The sizes of the claims that it took to work so many jobs off."""
    found: list[int] = []

    def claimed(batch: Sequence[ClaimedJob]) -> None:
        found.append(len(batch))

    queue.enqueue_many(spec, [Work(n=n) for n in range(jobs)])
    assert Consumer(queue, spec, handler, on_claim=claimed, **given).drain().succeeded == jobs
    return found


def nothing(job: Job[Work]) -> None: ...


def of_a_batch(jobs: Sequence[Job[Work]]) -> None: ...


async def awaited(job: Job[Work]) -> None: ...


def test_a_quick_handler_is_given_large_batches(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    found = sizes(queue, spec, nothing, 4_000)
    assert found[0] == 1
    assert found[1] <= 4
    assert 100 < max(found) <= 500
    assert sum(found) == 4_000


def test_what_a_slow_handler_has_not_begun_is_left_to_others(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    at_second, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    def slow(job: Job[Work]) -> None:
        calls.append(job.payload.n)
        if len(calls) == 1:
            threading.Event().wait(1.1 * QUICK_SECONDS)
        else:
            at_second.set()
            go_on.wait(PATIENCE)

    queue.enqueue_many(spec, [Work(n=n) for n in range(40)])
    first, second = Consumer(queue, spec, slow), Consumer(queue, spec, nothing)
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(first.drain)
        assert at_second.wait(PATIENCE)
        assert second.drain().succeeded == 38
        go_on.set()
        assert draining.result(PATIENCE).succeeded == 2


@pytest.mark.parametrize("ahead", [False, True], ids=["in hand", "and claimed ahead"])
def test_what_waits_for_a_slow_job_among_quick_ones_is_given_back(
    queue: SqlQueue, spec: QueueSpec[Work], ahead: bool
) -> None:
    jobs = 3_000 if ahead else 40
    slow, go_on = threading.Event(), threading.Event()
    at = 1_500 if ahead else 10
    calls: list[int] = []

    def first_slow(job: Job[Work]) -> None:
        calls.append(job.payload.n)
        if len(calls) == at:
            slow.set()
            go_on.wait(2 * PATIENCE)

    queue.enqueue_many(spec, [Work(n=n) for n in range(jobs)])
    first, second = Consumer(queue, spec, first_slow), Consumer(queue, spec, nothing)
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(first.drain)
        assert slow.wait(PATIENCE)
        until(lambda: second.drain().succeeded == jobs - at, "the jobs behind the slow one")
        go_on.set()
        summary = draining.result(PATIENCE)
    assert (summary.succeeded, summary.stale) == (at, 0)
    assert summary.claimed == at + summary.released
    assert summary.released > 0
    assert rows(queue, "SELECT state, max(attempt), max(lease_no) <= 3, count(*) FROM {s}.job_archive GROUP BY 1") == [
        ("succeeded", 1, True, jobs)
    ]


@contextlib.contextmanager
def away(queue: SqlQueue) -> Iterator[Callable[[], None]]:
    """A database that loses each connection that gives a job back, until it is called back, or the block ends."""

    def come_back() -> None:
        rows(queue, "DROP TRIGGER IF EXISTS gone ON {s}.job")
        rows(queue, "DROP FUNCTION IF EXISTS {s}.gone")

    rows(
        queue,
        "CREATE FUNCTION {s}.gone() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$",
    )
    rows(
        queue,
        "CREATE TRIGGER gone BEFORE UPDATE ON {s}.job FOR EACH ROW WHEN (NEW.state = 'queued')"
        " EXECUTE FUNCTION {s}.gone()",
    )
    try:
        yield come_back
    finally:
        come_back()


@pytest.mark.parametrize("back", [True, False], ids=["it comes back", "it stays away"])
def test_what_could_not_be_given_back_is_tried_again_and_not_counted_before(
    queue: SqlQueue, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture, back: bool
) -> None:
    at_slow, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    def slow(job: Job[Work]) -> None:
        calls.append(job.payload.n)
        if len(calls) == 10:
            at_slow.set()
            go_on.wait(2 * PATIENCE)

    queue.enqueue_many(spec, [Work(n=n) for n in range(40)])
    first, second = Consumer(queue, spec, slow), Consumer(queue, spec, nothing)
    with away(queue) as come_back, ThreadPoolExecutor(1) as pool:
        draining = pool.submit(first.drain)
        assert at_slow.wait(PATIENCE)
        until(lambda: "heartbeat failed, it is tried again" in caplog.text, "an attempt to give jobs back")
        if back:
            come_back()
            until(lambda: second.drain() and second.summary.succeeded == 30, "the jobs behind the slow one")
            go_on.set()
            summary = draining.result(PATIENCE)
            assert (summary.claimed, summary.stale) == (10 + summary.released, 0)
            assert summary.released > 0
        else:
            go_on.set()
            with pytest.raises(DatabaseUnavailable):
                draining.result(PATIENCE)
            assert first.summary.released == 0
    assert first.summary.succeeded == 10


def test_a_batch_whose_size_was_given_stays_together(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    second = Consumer(queue, spec, nothing)

    def slow(job: Job[Work]) -> None:
        threading.Event().wait(1.5 * BEHIND_SECONDS if job.payload.n == 0 else 0)
        assert second.drain().succeeded == 0

    assert Consumer(queue, spec, slow, batch_size=10).drain().succeeded == 10


@pytest.mark.parametrize(
    ("handler", "given"),
    [
        (nothing, {"batch_size": 100}),
        (nothing, {"mode": "transactional"}),
        (of_a_batch, {"batch": True}),
        (awaited, {}),
    ],
)
def test_others_are_given_a_hundred_at_a_time(
    queue: SqlQueue, spec: QueueSpec[Work], handler: Any, given: dict[str, Any]
) -> None:
    """Whose jobs take their time together, or who said at the beginning how many they take."""
    assert max(sizes(queue, spec, handler, 1_500, **given)) == 100


def test_what_consumers_share_is_not_taken_by_one(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(replace(spec, max_running=1_500))
    assert max(sizes(queue, spec, nothing, 1_500)) == 100


def test_it_goes_by_a_tenth_of_a_second() -> None:
    size = BatchSize(None, measured=True)
    assert size.now == 1
    size.took(1, 1.0)
    assert size.now == 1
    for following in (4, 16, 64, 256, 500):
        size.took(size.now, 0.0)
        assert size.now == following, "one batch does not say everything"
    size.took(100, 0.1)
    assert size.now == 125, "a quarter, and not the 100 that fit"
    size.took(100, 0.1)
    assert size.now == 100
    size.took(10, 1.0)
    assert size.now == 25
    for _ in range(3):
        size.took(1, 1.0)
    assert size.now == 1
    for _ in range(6):
        size.took(size.now, 0.0)
    assert size.now == 500
    size.took(0, 5.0)
    assert size.now == 500, "nothing was handled"


def test_a_size_that_was_given_stays() -> None:
    size = BatchSize(7, measured=True)
    size.took(7, 0.001)
    assert size.now == 7
    with pytest.raises(InvalidInput, match="1 to 10,000"):
        BatchSize(0)
