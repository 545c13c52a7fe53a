"""What is known of a job, live or ended, whatever its id was made of."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownJob
from dagster_sqlqueue.model.ids import stable_id
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.results import JobOutcome, Results
from dagster_sqlqueue.results.model import earliest_end
from tests.support import Work, caller, claim, rows, value


def enqueued(queue: SqlQueue, spec: QueueSpec[Work], n: int = 1, id: UUID | None = None) -> UUID:
    job = queue.enqueue(spec, NewJob(Work(n=n), id=id))
    assert job
    return job


def test_a_job_from_its_enqueue_to_its_end(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    id = enqueued(queue, spec)
    assert results.outcome(id) == JobOutcome(id, "work", "queued", 0, 3, None, None, None, None)
    (job,) = claim(queue)
    assert results.outcome(str(id)) == JobOutcome(id, "work", "running", 1, 3, None, None, None, None)
    queue.requeue([(job, Retry("not yet", 0))])
    assert results.outcome(id) == JobOutcome(id, "work", "queued", 1, 3, None, None, "not yet", None)
    (job,) = claim(queue)
    queue.finish([Ending(job, ArchiveState.SUCCEEDED, {"sum": [1, None]})])
    finished = value(queue, "SELECT finished_at FROM {s}.job_archive")
    outcome = results.outcome(id)
    assert outcome == JobOutcome(id, "work", "succeeded", 2, 3, finished, {"sum": [1, None]}, "not yet", None)
    assert outcome.ended
    assert outcome.succeeded


@pytest.mark.parametrize("result", [None, False, 0, "", [], {}, "null"])
def test_results_are_read_as_they_were_left(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results, result: object
) -> None:
    id = enqueued(queue, spec)
    (job,) = claim(queue)
    queue.finish([Ending(job, ArchiveState.SUCCEEDED, result)])
    found = results.outcome(id).result
    assert found == result
    assert type(found) is type(result)


def test_other_ends(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    failed, cancelled, held = (enqueued(queue, spec, n) for n in range(3))
    jobs = {job.id: job for job in claim(queue)}
    queue.finish([Ending(jobs[failed], ArchiveState.FAILED, error="broken")])
    queue.release([jobs[cancelled]])
    queue.cancel("work", Selection(ids=[cancelled]), reason="not wanted")
    queue.hold([(jobs[held], "look at it")])
    found = results.outcomes([held, failed, cancelled])
    assert list(found) == [held, failed, cancelled]
    assert [(o.state, o.error, o.ended, o.succeeded) for o in found.values()] == [
        ("held", "look at it", False, False),
        ("failed", "broken", True, False),
        ("cancelled", "not wanted", True, False),
    ]


def test_of_several_ends_the_latest_and_a_live_job_before_them(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results
) -> None:
    id = enqueued(queue, spec)
    for n in range(2):
        (job,) = claim(queue)
        queue.finish([Ending(job, ArchiveState.FAILED, error=f"broken {n}")])
        assert results.outcome(id).error == f"broken {n}"
        queue.redrive("work", Selection(ids=[id]))
        assert results.outcome(id).state == "queued"
    (job,) = claim(queue)
    queue.finish([Ending(job, ArchiveState.SUCCEEDED, n)])
    assert results.outcome(id).succeeded


IDS: dict[str, Callable[[], UUID]] = {
    "of now": uuid7,
    "random": uuid4,
    "of an event long ago": lambda: stable_id(datetime(2013, 1, 1, tzinfo=UTC), "x"),
    "of an event to come": lambda: stable_id(datetime.now(UTC) + timedelta(days=1_000), "x"),
    "of no time at all": lambda: UUID("ffffffff-ffff-7fff-bfff-ffffffffffff"),
}


@pytest.mark.parametrize("kind", list(IDS))
def test_whatever_the_id_was_made_of(queue: SqlQueue, spec: QueueSpec[Work], results: Results, kind: str) -> None:
    id = enqueued(queue, spec, id=IDS[kind]())
    assert results.outcome(id).state == "queued"
    queue.complete(claim(queue))
    assert results.outcome(id).succeeded
    assert results.wait(id, timeout_seconds=0).succeeded


def test_ids_of_several_kinds_together(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = [enqueued(queue, spec, n, make()) for n, make in enumerate(IDS.values())]
    queue.complete(claim(queue)[:3])
    assert {id: o.ended for id, o in results.outcomes(ids).items()} == {
        id: not rows(queue, "SELECT 1 FROM {s}.job WHERE id = %s", id) for id in ids
    }


def test_where_a_job_is_looked_for() -> None:
    moment = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
    early, late = stable_id(moment, "a"), stable_id(moment + timedelta(days=3), "b")
    assert earliest_end([late, early, uuid4()]) == "2026-05-03T12:30:00+00:00"
    assert earliest_end([uuid4()]) == "-infinity"
    assert earliest_end([UUID("00000000-0000-7000-8000-000000000000")]) == "1969-12-31T00:00:00+00:00"


def test_more_than_fit_in_one_statement(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    jobs = [NewJob(Work(n=n), id=uuid7()) for n in range(2_500)]
    queue.enqueue_many(spec, jobs)
    assert [o.state for o in results.outcomes(str(job.id) for job in jobs).values()] == ["queued"] * 2_500


@pytest.mark.parametrize("verb", ["outcome", "wait"])
def test_a_job_that_is_not_there(url: str, queue: SqlQueue, spec: QueueSpec[Work], results: Results, verb: str) -> None:
    missing = uuid4()
    with pytest.raises(UnknownJob, match=f"no job {missing}.*never enqueued"):
        getattr(results, verb)(missing)
    with caller(url) as connection:
        job = queue.enqueue(spec, Work(n=1), connection=connection)
        assert job
        with pytest.raises(UnknownJob, match="not committed"):
            getattr(results, verb)(job)


def test_several_of_which_some_are_not_there(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    there, missing = enqueued(queue, spec), [uuid4(), uuid4()]
    with pytest.raises(UnknownJob, match=rf"no job {missing[0]} \(and 1 more\)"):
        results.outcomes([there, *missing])
    with pytest.raises(UnknownJob):
        results.wait_many([there, *missing])
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0


@pytest.mark.parametrize("bad", ["", "x", 7, None, b"0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"])
def test_what_is_no_id(results: Results, bad: object) -> None:
    for verb in (results.outcome, results.wait):
        with pytest.raises(InvalidInput, match="no job id"):
            verb(bad)  # type: ignore[arg-type]


def test_one_id_is_not_several(results: Results) -> None:
    for given in (str(uuid4()), uuid4(), None):
        with pytest.raises(InvalidInput, match="a list of them"):
            results.wait_many(given)  # type: ignore[arg-type]
    assert results.outcomes([]) == {}
    assert results.wait_many([]) == {}
