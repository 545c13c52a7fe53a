"""Every outcome of a claimed job, and the refusal of each once another consumer has claimed it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from dagster_sqlqueue import Backoff
from dagster_sqlqueue.errors import InvalidInput, LeaseLost
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.outcome import Hold, Reject, Retry, Snooze
from dagster_sqlqueue.queue import Ending
from tests.conformance.conftest import Line
from tests.gate.patience import PATIENCE

HOUR = 3600.0


class Case(NamedTuple):
    """What is done with a claimed job, and what it is then.

    Attributes:
        attempt: how many are spent.
        wait: seconds until it is due again; None where that means nothing.
    """

    act: Callable[[Line, ClaimedJob], object]
    state: str
    attempt: int
    wait: float | None
    error: str | None = None
    result: Any = None


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def end(state: ArchiveState, **more: Any) -> Callable[[Line, ClaimedJob], object]:
    return lambda line, job: line.queue.finish([Ending(job, state, **more)])


CASES = {
    "complete": Case(lambda line, job: line.queue.complete([job]), "succeeded", 1, None),
    "finish with a result": Case(
        end(ArchiveState.SUCCEEDED, result={"a": [1, None]}), "succeeded", 1, None, None, {"a": [1, None]}
    ),
    "finish as failed": Case(end(ArchiveState.FAILED, error="never"), "failed", 1, None, "never"),
    "finish as cancelled": Case(end(ArchiveState.CANCELLED, error="not now"), "cancelled", 1, None, "not now"),
    "fail": Case(lambda line, job: line.queue.fail(job, "e"), "queued", 1, 0, "e"),
    "fail, for later": Case(lambda line, job: line.queue.fail(job, "e", after=HOUR), "queued", 1, HOUR, "e"),
    "fail, by a backoff": Case(
        lambda line, job: line.queue.fail(job, "e", backoff=Backoff.fixed(HOUR)), "queued", 1, HOUR, "e"
    ),
    "retry": Case(lambda line, job: line.queue.requeue([(job, Retry("e"))]), "queued", 1, 0, "e"),
    "retry, for later": Case(lambda line, job: line.queue.requeue([(job, Retry("e", HOUR))]), "queued", 1, HOUR, "e"),
    "snooze for seconds": Case(lambda line, job: line.queue.requeue([(job, Snooze(HOUR))]), "queued", 0, HOUR),
    "snooze until a moment": Case(
        lambda line, job: line.queue.requeue([(job, Snooze(in_an_hour()))]), "queued", 0, HOUR
    ),
    "snooze until a moment that has passed": Case(
        lambda line, job: line.queue.requeue([(job, Snooze(datetime(2000, 1, 1, tzinfo=UTC)))]), "queued", 0, 0
    ),
    "release": Case(lambda line, job: line.queue.release([job]), "queued", 0, 0),
    "hold": Case(lambda line, job: line.queue.hold([(job, "look")]), "held", 0, None, "look"),
    "heartbeat": Case(lambda line, job: line.queue.heartbeat([job], lease_seconds=HOUR), "running", 1, HOUR),
    "an error that cannot be stored as it is": Case(
        lambda line, job: line.queue.fail(job, "a\x00b\ud800"), "queued", 1, 0, "ab?"
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_what_becomes_of_a_claimed_job(line: Line, case: str) -> None:
    act, state, attempt, wait, error, result = CASES[case]
    job = line.claimed()
    act(line, job)
    row = line.row(job.id)
    assert (row.state, row.attempt, row.lease_no) == (state, attempt, 1)
    assert (row.error, row.result) == (error, result)
    assert row.wait is None if wait is None else abs((row.wait or 0.0) - wait) < PATIENCE
    again = line.take()
    if wait == 0:
        assert [(job.lease_no, job.attempt, job.error) for job in again] == [(2, attempt + 1, error)]
    else:
        assert again == []
    assert line.stale_writes() == 0


def test_the_last_failure_ends_in_the_dead_letter(line: Line) -> None:
    job = line.claimed(max_attempts=2)
    assert line.queue.fail(job, "first") is True
    assert line.queue.fail(line.one(), "second") is False
    row = line.row(job.id)
    assert (row.state, row.attempt, row.error) == ("failed", 2, "second")


def test_snoozes_and_holds_spend_no_attempt_however_many(line: Line) -> None:
    job = line.claimed(max_attempts=1)
    for _ in range(5):
        line.queue.requeue([(job, Snooze(0))])
        job = line.one()
        assert (job.attempt, job.last_attempt) == (1, True)
    line.queue.hold([(job, "look")])
    assert line.row(job.id).attempt == 0


def test_a_job_s_own_backoff_goes_before_all_others(line: Line) -> None:
    job = line.claimed(backoff=Backoff.fixed(HOUR))
    line.queue.fail(job, "e", backoff=Backoff.fixed(1))
    wait = line.row(job.id).wait
    assert wait is not None
    assert wait > HOUR - PATIENCE


def test_each_job_of_a_batch_ends_in_its_own_way(line: Line) -> None:
    line.put(*range(6))
    jobs = sorted(line.take(), key=lambda job: job.payload)
    line.queue.finish([Ending(jobs[0], ArchiveState.SUCCEEDED), Ending(jobs[1], ArchiveState.FAILED, error="x")])
    line.queue.requeue([(jobs[2], Retry("again", HOUR)), (jobs[3], Snooze(HOUR))])
    line.queue.hold([(jobs[4], "look")])
    assert line.queue.heartbeat([jobs[5]], lease_seconds=5).held == {jobs[5].id}
    assert line.states() == ["succeeded", "failed", "queued", "queued", "held", "running"]


def test_a_result_that_cannot_be_stored_ends_nothing(line: Line) -> None:
    line.put(1, 2)
    jobs = line.take()
    endings = [
        Ending(jobs[0], ArchiveState.SUCCEEDED),
        Ending(jobs[1], ArchiveState.SUCCEEDED, result={"x": float("nan")}),
    ]
    with pytest.raises(InvalidInput, match="result"):
        line.queue.finish(endings)
    assert line.states() == ["running", "running"]


@pytest.mark.parametrize("wrong", [-1.0, float("inf"), float("nan"), 4e9], ids=str)
def test_outcomes_that_make_no_sense(wrong: float, strategy: object) -> None:
    for outcome in (lambda: Retry("e", wrong), lambda: Snooze(wrong)):
        with pytest.raises(InvalidInput, match="delay"):
            outcome()
    with pytest.raises(InvalidInput, match="zone"):
        Snooze(datetime(2030, 1, 1))
    for reason in (lambda: Hold(None), lambda: Reject(7)):  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="text"):
            reason()


PASSED_ON: dict[str, Callable[[Line, ClaimedJob], object]] = {
    "claimed by somebody else": lambda line, job: (line.let_time_pass(), line.one(worker="other")),
    "given back": lambda line, job: line.queue.requeue([(job, Snooze(HOUR))]),
    "given back and claimed again": lambda line, job: (line.queue.release([job]), line.one()),
    "held": lambda line, job: line.queue.hold([(job, "look")]),
    "ended": lambda line, job: line.queue.complete([job]),
}


@pytest.mark.parametrize("how", list(PASSED_ON))
def test_every_write_under_a_lease_that_passed_on_is_refused_and_counted(line: Line, how: str) -> None:
    queue = line.queue
    job = line.claimed()
    PASSED_ON[how](line, job)
    before = line.row(job.id)._replace(wait=None)

    with pytest.raises(LeaseLost, match=str(job.id)):
        queue.complete([job])
    with pytest.raises(LeaseLost):
        queue.fail(job, "e")
    assert queue.finish([Ending(job, ArchiveState.CANCELLED)]) == set()
    assert queue.finish([Ending(job, ArchiveState.FAILED, error="e")]) == set()
    assert queue.requeue([(job, Retry("e", 0))]) == set()
    assert queue.requeue([(job, Snooze(0))]) == set()
    assert queue.requeue([(job, Snooze(in_an_hour()))]) == set()
    assert queue.release([job]) == set()
    assert queue.hold([(job, "look")]) == set()
    assert queue.heartbeat([job], lease_seconds=HOUR).held == set()

    assert line.row(job.id)._replace(wait=None) == before
    assert line.stale_writes() == 10


def test_a_refused_job_does_not_keep_others_from_ending(line: Line) -> None:
    line.put(1, 2, 3)
    jobs = line.take()
    line.queue.complete(jobs[:1])
    with pytest.raises(LeaseLost, match="1 of 3"):
        line.queue.complete(jobs)
    assert line.states() == ["succeeded"] * 3
    assert line.stale_writes() == 1


def test_a_lease_that_ran_out_is_good_until_somebody_else_has_the_job(line: Line) -> None:
    job = line.claimed()
    line.let_time_pass()
    assert line.queue.heartbeat([job], lease_seconds=HOUR).held == {job.id}
    line.let_time_pass()
    line.queue.complete([job])
    assert line.states() == ["succeeded"]


def test_nothing_at_all_is_no_write(line: Line) -> None:
    assert line.queue.finish([]) == line.queue.requeue([]) == line.queue.hold([]) == line.queue.release([]) == set()
    line.queue.complete([])
