"""What a running job and its consumer report to each other: it is cancelled, it takes long, it is still at it."""

import time
from typing import Any

from dagster_sqlqueue import Cancel, Consumer, Job, NewJob, QueueSpec, Retry, SqlQueue
from tests.gate.patience import PATIENCE
from tests.support import Work, claim, leases_go_on, make_due, rows, states, until


def test_a_running_job_learns_that_it_is_not_wanted(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))

    def handler(job: Job[Work]) -> Any:
        rows(queue, "UPDATE {s}.job SET cancel_requested_at = now()")
        assert job.cancellation.wait(PATIENCE)
        assert job.cancelled
        return Cancel("as asked")

    assert Consumer(queue, spec, handler, lease_seconds=1).drain().cancelled == 1
    assert rows(queue, "SELECT state, error FROM {s}.job_archive") == [("cancelled", "as asked")]


def test_a_handler_that_asks_late_learns_it_too(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))

    def handler(job: Job[Work]) -> Any:
        rows(queue, "UPDATE {s}.job SET cancel_requested_at = now()")
        until(leases_go_on(queue), "a heartbeat")
        return Cancel("as asked") if job.cancelled else None

    assert Consumer(queue, spec, handler, lease_seconds=1).drain().cancelled == 1


def test_a_handler_that_outlives_its_job_does_not_learn_of_its_next_attempt(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue(spec, Work(n=1))
    seen: list[Job[Work]] = []

    def handler(job: Job[Work]) -> Any:
        seen.append(job)
        if job.attempt == 1:
            return Retry("again", 0)
        rows(queue, "UPDATE {s}.job SET cancel_requested_at = now()")
        assert job.cancellation.wait(PATIENCE)
        assert not seen[0].cancelled
        return Cancel("as asked")

    assert Consumer(queue, spec, handler, lease_seconds=1).drain().cancelled == 1
    assert [job.attempt for job in seen] == [1, 2]
    assert "payload=Work(n=1" in repr(seen[0])


def test_a_job_that_was_cancelled_while_its_consumer_died_is_not_begun_again(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue(spec, Work(n=1))
    claim(queue)
    rows(queue, "UPDATE {s}.job SET cancel_requested_at = now()")
    make_due(queue)
    assert claim(queue) == []
    assert states(queue) == {1: "cancelled"}


def test_a_job_may_say_how_long_it_takes(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """The consumer would let its lease run out after 0.1 s."""
    queue.enqueue(spec, NewJob(Work(n=1), timeout_seconds=3_600))

    def handler(job: Job[Work]) -> None:
        until(leases_go_on(queue), "a lease that goes on")

    summary = Consumer(queue, spec, handler, lease_seconds=0.8, job_timeout_seconds=0.1).drain()
    assert (summary.succeeded, summary.stale) == (1, 0)


def test_a_busy_handler_does_not_starve_the_heartbeat(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))

    def burns(job: Job[Work]) -> None:
        goes_on = leases_go_on(queue)

        def burnt() -> bool:
            began = time.monotonic()
            while time.monotonic() - began < 2.5:
                sum(range(10_000))
            return goes_on()

        until(burnt, "a lease that goes on")

    summary = Consumer(queue, spec, burns, lease_seconds=0.8).drain()
    assert (summary.succeeded, summary.stale) == (1, 0)
