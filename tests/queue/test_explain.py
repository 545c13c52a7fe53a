"""Why a job is not claimed: each reason, made for real, and what a claim then does."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import NewJob, PoisonPolicy, QueueSpec, RateLimit, Retry, Selection, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownJob
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.explain import Why
from dagster_sqlqueue.spark import batches
from tests.support import Work, claim, make_due, rows

LATER = timedelta(hours=3, minutes=20)


def _put(queue: SqlQueue, spec: QueueSpec[Work], **more: Any) -> UUID:
    made = queue.enqueue(spec, NewJob(Work(n=1), **more))
    assert made is not None
    return made


def _whys(queue: SqlQueue, job: UUID) -> list[Why]:
    return [reason.why for reason in queue.explain(job).reasons]


def test_nothing_keeps_the_first_of_its_bucket(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    found = queue.explain(_put(queue, spec))
    assert (found.queue, found.state, found.reasons, found.claimable) == ("work", "queued", (), True)
    assert "Nothing keeps it" in found.text
    assert len(claim(queue)) == 1


def test_jobs_before_it_are_counted_by_priority_and_time(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    before = [_put(queue, spec, ordering_key="k", priority=priority) for priority in (9, 5, 5)]
    job = _put(queue, spec, ordering_key="k", priority=5)
    for other in [_put(queue, spec, ordering_key="k", priority=1), _put(queue, spec, ordering_key="k", priority=5)]:
        assert queue.explain(other).claimable
    found = queue.explain(job)
    assert _whys(queue, job) == [Why.BEHIND]
    assert found.claimable
    assert f"{len(before)} jobs are before it" in found.text
    assert "of its priority 5 or higher ones" in found.text


def test_a_job_for_later(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = _put(queue, spec, run_at=datetime.now(UTC) + LATER)
    found = queue.explain(job)
    assert [reason.why for reason in found.reasons] == [Why.SCHEDULED]
    assert not found.claimable
    assert "due in 3 h 19 min" in found.text or "due in 3 h 20 min" in found.text
    assert claim(queue) == []


def test_a_retry_says_what_was_spent_and_why(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = _put(queue, spec)
    queue.requeue([(claimed, Retry("no route", after=600)) for claimed in claim(queue)])
    found = queue.explain(job)
    assert [reason.why for reason in found.reasons] == [Why.SCHEDULED]
    assert "after 1 of 3 attempts" in found.text
    assert found.error == "no route"


def test_who_has_it(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = _put(queue, spec)
    queue.claim("work", limit=1, worker="host/7/a", lease_seconds=600)
    found = queue.explain(job)
    assert (found.state, [reason.why for reason in found.reasons]) == ("running", [Why.LEASED])
    assert "leased by host/7/a" in found.text
    assert "attempt 1 of 3" in found.text
    queue.cancel("work", Selection(ids=[job]))
    assert "it was asked to end" in queue.explain(job).text


def test_a_lease_that_ran_out_keeps_nobody(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = _put(queue, spec)
    queue.claim("work", limit=1, worker="dead", lease_seconds=600)
    make_due(queue)
    found = queue.explain(job)
    assert ([reason.why for reason in found.reasons], found.claimable) == ([Why.LEASE_OVER], True)
    assert "The lease of dead, attempt 1 of 3, ran out" in found.text
    assert [taken.id for taken in claim(queue)] == [job]


def test_held_and_paused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job, other = _put(queue, spec), _put(queue, spec)
    queue.hold_queued("work", Selection(ids=[job]), reason="look at it first")
    queue.pause("work")
    found = queue.explain(job)
    assert ([reason.why for reason in found.reasons], found.error) == ([Why.HELD], "look at it first")
    assert _whys(queue, other) == [Why.PAUSED]
    assert "resume it" in queue.explain(other).text
    assert claim(queue) == []
    queue.pause("work", until=7200)
    assert "it goes on in 2 h" in queue.explain(other).text or "it goes on in 1 h 59" in queue.explain(other).text
    queue.resume("work")
    assert [taken.id for taken in claim(queue)] == [other]


def test_an_ordered_key_names_the_job_that_goes_first(queue: SqlQueue, ordered: QueueSpec[Work]) -> None:
    first, second = (_put(queue, ordered, ordering_key="acme") for _ in range(2))
    assert _whys(queue, first) == []
    assert Why.TURN in _whys(queue, second)
    assert [job.id for job in queue.claim("work", limit=5, worker="w1", lease_seconds=600)] == [first]
    found = queue.explain(second)
    assert [reason.why for reason in found.reasons] == [Why.TURN]
    assert f"'acme', whose first job {first} is running by w1" in found.text
    assert claim(queue) == []


def test_a_key_that_stands_still_names_the_job_that_holds_it(queue: SqlQueue, ordered: QueueSpec[Work]) -> None:
    queue.create_queue(replace(ordered, on_poison=PoisonPolicy.STOP, max_attempts=1))
    first, second = (_put(queue, ordered, ordering_key="acme", max_attempts=1) for _ in range(2))
    (job,) = queue.claim("work", limit=5, worker="w", lease_seconds=600)
    queue.fail(job, "poison")
    assert f"whose first job {first} is held" in queue.explain(second).text


def test_limits_of_queue_key_and_rate(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(replace(spec, max_running=1, max_running_per_key=1, rate=RateLimit(1, 3_600)))
    for _ in range(2):
        _put(queue, spec, ordering_key="k")
    (taken,) = queue.claim("work", limit=1, worker="w", lease_seconds=600)
    (waiting,) = (row.id for row in queue.jobs("work") if row.id != taken.id)
    assert _whys(queue, waiting) == [Why.TURN, Why.LIMIT, Why.RATE]
    assert "the key 'k', of which 1 run" in queue.explain(waiting).text
    assert "1 jobs of its queue were started in the last 1 h" in queue.explain(waiting).text
    assert claim(queue) == []
    queue.complete([taken])
    assert _whys(queue, waiting) == [Why.RATE]


def test_a_batch_of_spark(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = _put(queue, spec)
    batches.seal(queue, "work", "daily/2013-07-04", owner="run 12")
    found = queue.explain(job)
    assert [reason.why for reason in found.reasons] == [Why.BATCH]
    assert "in the batch 'daily/2013-07-04' of run 12; its lease ends in" in found.text
    rows(queue, "UPDATE {s}.batch SET lease_until = now() - interval '1 minute'")
    assert "ran out 1 min ago" in queue.explain(job).text


@pytest.mark.parametrize(
    ("state", "brought_back"),
    [(ArchiveState.SUCCEEDED, False), (ArchiveState.FAILED, True), (ArchiveState.CANCELLED, True)],
)
def test_one_that_ended(queue: SqlQueue, spec: QueueSpec[Work], state: ArchiveState, brought_back: bool) -> None:
    job = _put(queue, spec)
    queue.finish([Ending(claimed, state) for claimed in claim(queue)])
    found = queue.explain(str(job))
    assert (found.state, [reason.why for reason in found.reasons], found.claimable) == (state, [Why.ENDED], False)
    assert ("redrive brings it back" in found.text) is brought_back


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda queue: queue.explain("seven"), InvalidInput, "'seven' is no job id"),
        (lambda queue: queue.explain(uuid4()), UnknownJob, "there is no job"),
    ],
)
def test_what_is_no_job(queue: SqlQueue, ask: Callable[[SqlQueue], object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ask(queue)
