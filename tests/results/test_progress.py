"""How far a running job is: written under its fence, shown while the attempt lasts, gone with the job."""

import threading
import time
from dataclasses import replace
from typing import Annotated

import pytest

from dagster_sqlqueue import Consumer, Done, Job, Mode, NewJob, QueueSpec, Reject, Retry, Sensitive, SqlQueue
from dagster_sqlqueue.consumer.progress import Reporter
from dagster_sqlqueue.errors import InvalidInput, LeaseLost
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.queue.leases import Leases
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.results import Results
from tests.gate.patience import PATIENCE
from tests.support import Work, claim, make_due, narrow_queue, rows, until, value
from tests.support.around import Around

STALE = "SELECT COALESCE(sum(writes), 0) FROM {s}.stale_write"
NOTES = "SELECT count(*) FROM {s}.job_progress"


def enqueue(queue: SqlQueue, spec: QueueSpec[Work], n: int = 1, **more: object) -> None:
    assert queue.enqueue(spec, NewJob(Work(n=n), **more))  # type: ignore[arg-type]


def said(results: Results, job: ClaimedJob) -> tuple[float, str | None] | None:
    progress = results.outcome(job.id).progress
    return progress and (progress.percent, progress.message)


def test_what_is_said_is_read(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    enqueue(queue, spec)
    (job,) = claim(queue)
    assert said(results, job) is None
    before = value(queue, "SELECT clock_timestamp()")
    queue.leases.note_progress(job, 12.5, "a first part")
    outcome = results.outcome(job.id)
    assert outcome.state == "running"
    assert outcome.progress
    assert (outcome.progress.percent, outcome.progress.message) == (12.5, "a first part")
    assert before <= outcome.progress.updated_at <= value(queue, "SELECT clock_timestamp()")
    queue.leases.note_progress(job, 100)
    assert said(results, job) == (100.0, None)
    assert value(queue, STALE) == 0


@pytest.mark.parametrize("state", list(ArchiveState))
def test_it_goes_with_the_job(queue: SqlQueue, spec: QueueSpec[Work], results: Results, state: ArchiveState) -> None:
    enqueue(queue, spec)
    (job,) = claim(queue)
    queue.leases.note_progress(job, 50)
    queue.leases.note_progress(job, 60)
    assert queue.finish([Ending(job, state, error="x")]) == {job.id}
    assert said(results, job) is None
    assert value(queue, NOTES) == 0


def test_the_next_attempt_begins_without_it(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    enqueue(queue, spec)
    (job,) = claim(queue)
    queue.leases.note_progress(job, 50, "the first attempt")
    queue.requeue([(job, Retry("again", 0))])
    assert said(results, job) is None
    (again,) = claim(queue)
    assert said(results, again) is None
    queue.leases.note_progress(again, 5, "the second")
    assert said(results, again) == (5.0, "the second")


def test_nor_does_the_attempt_that_took_over(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    enqueue(queue, spec)
    (zombie,) = claim(queue)
    queue.leases.note_progress(zombie, 50)
    make_due(queue)
    (taken,) = claim(queue)
    assert said(results, taken) is None
    with pytest.raises(LeaseLost, match=str(zombie.id)):
        queue.leases.note_progress(zombie, 60)
    assert value(queue, STALE) == 1
    assert said(results, taken) is None
    queue.leases.note_progress(taken, 10)
    with pytest.raises(LeaseLost):
        queue.leases.note_progress(zombie, 70)
    assert said(results, taken) == (10.0, None)
    assert value(queue, STALE) == 2


def test_after_the_end_it_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    enqueue(queue, spec)
    (job,) = claim(queue)
    queue.complete([job])
    with pytest.raises(LeaseLost):
        queue.leases.note_progress(job, 60)
    assert value(queue, NOTES) == 0
    assert value(queue, STALE) == 1


def test_a_job_set_aside_says_nothing(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    enqueue(queue, spec)
    (job,) = claim(queue)
    queue.leases.note_progress(job, 50)
    queue.hold([(job, "look")])
    assert said(results, job) is None
    with pytest.raises(LeaseLost):
        queue.leases.note_progress(job, 60)
    queue.cancel("work", Selection(ids=[job.id]))
    assert value(queue, NOTES) == 0


@pytest.mark.parametrize("limits", [{}, {"ordered": True}, {"max_running": 10}], ids=["free", "ordered", "limited"])
def test_in_every_kind_of_queue(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results, limits: dict[str, object]
) -> None:
    queue.create_queue(replace(spec, **limits))  # type: ignore[arg-type]
    enqueue(queue, spec, ordering_key="k")
    seen: list[object] = []

    def handler(job: Job[Work]) -> Done:
        job.progress(40, "nearly half")
        seen.append(said(results, job))  # type: ignore[arg-type]
        return Done()

    assert Consumer(queue, spec, handler).drain().succeeded == 1
    assert seen == [(40.0, "nearly half")]
    assert value(queue, NOTES) == 0


class Counting(Around):
    """Leases that remember what was written about progress."""

    def __init__(self, leases: Leases) -> None:
        super().__init__(leases)
        self.written: list[float] = []

    def note_progress(self, job: ClaimedJob, percent: float, message: str | None = None) -> None:
        self.inner.note_progress(job, percent, message)
        self.written.append(percent)


def test_a_handler_may_say_it_as_often_as_it_likes(
    url: str, queue: SqlQueue, spec: QueueSpec[Work], results: Results
) -> None:
    enqueue(queue, spec)
    with SqlQueue(url, schema=queue.database.schema) as own:
        own.leases = counting = Counting(own.leases)  # type: ignore[assignment]

        def handler(job: Job[Work]) -> Done:
            began = time.monotonic()
            for n in range(10_000):
                job.progress(n / 100)
            threads = [threading.Thread(target=job.progress, args=(99.99,)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert counting.written[0] == 0
            assert len(counting.written) <= 1 + (time.monotonic() - began) / 0.5
            until(lambda: job.progress(100) or said(results, job) == (100.0, None))  # type: ignore[func-returns-value, arg-type]
            return Done()

        # No heartbeat comes meanwhile, which would write as well.
        assert Consumer(own, spec, handler, lease_seconds=3_600).drain().succeeded == 1
        assert counting.written == sorted(counting.written)


def test_what_was_kept_is_written_with_the_next_heartbeat(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.consumer.progress.WRITE_SECONDS", 3_600.0)
    enqueue(queue, spec)

    def handler(job: Job[Work]) -> Done:
        job.progress(10)
        job.progress(20, "kept")
        until(lambda: said(results, job) == (20.0, "kept"))  # type: ignore[arg-type]
        return Done()

    assert Consumer(queue, spec, handler, lease_seconds=0.4, job_timeout_seconds=PATIENCE).drain().succeeded == 1


def test_a_handler_that_lost_its_job_gets_an_error(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    enqueue(queue, spec)
    raised_errors: list[LeaseLost] = []

    def handler(job: Job[Work]) -> Done:
        make_due(queue)
        assert claim(queue)
        for _ in range(2):
            with pytest.raises(LeaseLost) as raised:
                job.progress(50)
            raised_errors.append(raised.value)
        return Done()

    assert Consumer(queue, spec, handler).drain().stale == 1
    assert len(raised_errors) == 2
    # The second time it was known; then the end of the job was refused.
    assert value(queue, STALE) == 2
    assert value(queue, NOTES) == 0


def test_a_refusal_that_the_heartbeat_met_is_raised_at_the_next_word(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.consumer.progress.WRITE_SECONDS", 3600.0)
    enqueue(queue, spec)
    (job,) = claim(queue)
    reporter = Reporter(queue.leases)
    reporter.report(job, 10, None)
    reporter.report(job, 20, None)
    make_due(queue)
    assert claim(queue)
    reporter.flush()
    assert value(queue, STALE) == 1
    with pytest.raises(LeaseLost):
        reporter.report(job, 30, None)
    assert value(queue, STALE) == 1


def test_a_database_that_is_away_stops_no_handler(url: str, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    enqueue(queue, spec)
    (job,) = claim(queue)
    with narrow_queue(url, queue.database.schema) as narrow:
        reporter = Reporter(narrow.leases)
        with narrow.database.connection():
            reporter.report(job, 10, None)
        assert value(queue, NOTES) == 0
        reporter.flush()
    assert value(queue, "SELECT percent FROM {s}.job_progress") == 10


def test_in_transactional_mode_nothing_is_written(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    enqueue(queue, spec)

    def handler(job: Job[Work]) -> Done:
        job.progress(50, "half")
        assert value(queue, NOTES) == 0
        return Done()

    assert Consumer(queue, spec, handler, mode=Mode.TRANSACTIONAL).drain().succeeded == 1


@pytest.mark.parametrize("percent", [-1, 100.1, float("nan"), float("inf"), True, "50", None])
def test_a_percentage_that_is_none(queue: SqlQueue, spec: QueueSpec[Work], percent: object) -> None:
    enqueue(queue, spec, max_attempts=1)

    def handler(job: Job[Work]) -> Done:
        with pytest.raises(InvalidInput, match="0 to 100"):
            job.progress(percent)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="message"):
            job.progress(1, 7)  # type: ignore[arg-type]
        return Done()

    assert Consumer(queue, spec, handler).drain().succeeded == 1
    assert value(queue, NOTES) == 0


def test_a_message_is_stored_as_far_as_it_can_be(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    enqueue(queue, spec)
    seen: list[object] = []

    def handler(job: Job[Work]) -> Done:
        job.progress(1, "a\x00b" + "x" * 2_000)
        seen.append(said(results, job))  # type: ignore[arg-type]
        return Done()

    assert Consumer(queue, spec, handler).drain().succeeded == 1
    assert seen == [(1.0, "ab" + "x" * 998)]


class Secret(Work):
    """A payload that hides something."""

    token: Annotated[str, Sensitive()] = "none"


def test_a_message_quotes_nothing_that_the_payload_hides(queue: SqlQueue, results: Results) -> None:
    spec = QueueSpec("work", Secret)
    queue.create_queue(spec)
    queue.enqueue(spec, Secret(n=1, token="hunter2-hunter2"))
    seen: list[str | None] = []

    def handler(job: Job[Secret]) -> Done:
        job.progress(1, f"logging in with {job.payload.token}")
        seen.append((said(results, job) or (0, None))[1])  # type: ignore[arg-type]
        return Done()

    assert Consumer(queue, spec, handler).drain().succeeded == 1
    assert len(seen) == 1
    assert "logging in" in str(seen[0])
    assert "hunter2" not in str(seen[0])


def test_it_is_changed_in_place(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = '{s}.job_progress'::regclass"
    ((updates, in_place),) = rows(queue, query)
    enqueue(queue, spec)
    (job,) = claim(queue)
    for percent in range(101):
        queue.leases.note_progress(job, percent)

    def counted() -> bool:
        ((all_updates, all_in_place),) = rows(queue, query)
        return all_updates - updates >= 100 and all_in_place - in_place >= 0.95 * (all_updates - updates)

    until(counted, "the server's count of what was changed in place")


def test_maintenance_removes_what_was_left(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    enqueue(queue, spec)
    (job,) = claim(queue)
    queue.leases.note_progress(job, 50)
    rows(
        queue,
        "INSERT INTO {s}.job_progress (job_id, lease_no, percent, updated_at)"
        " SELECT gen_random_uuid(), 1, 50, now() FROM generate_series(1, 2500)",
    )
    assert queue.maintain().expired_removed >= 2_500
    assert rows(queue, "SELECT job_id FROM {s}.job_progress") == [(job.id,)]


TOO_LARGE = {"rows": "x" * 1_000_000}
RESULTS = {
    "too large": (TOO_LARGE, "the result has 1,000,012 bytes, the limit is 1,000,000"),
    "a NUL character": ({"text": "\x00"}, "text holds a NUL character"),
    "no JSON": ({"handle": object()}, "the result cannot be written as JSON"),
}


@pytest.mark.parametrize("case", list(RESULTS))
@pytest.mark.parametrize("mode", list(Mode))
def test_a_result_that_cannot_be_stored_is_rejected_with_the_reason(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results, case: str, mode: Mode
) -> None:
    result, reason = RESULTS[case]
    enqueue(queue, spec)
    calls: list[int] = []

    def handler(job: Job[Work]) -> Done:
        calls.append(job.attempt)
        return Done(result)  # type: ignore[arg-type]

    assert Consumer(queue, spec, handler, mode=mode).drain().failed == 1
    assert calls == [1]
    (job_id,) = (row[0] for row in rows(queue, "SELECT id FROM {s}.job_archive"))
    outcome = results.outcome(job_id)
    assert (outcome.state, outcome.result) == ("failed", None)
    assert reason in str(outcome.error)


def test_nothing_is_written_when_one_of_several_results_is_too_large(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    for n in range(3):
        enqueue(queue, spec, n)
    jobs = claim(queue)
    endings = [Ending(job, ArchiveState.SUCCEEDED, TOO_LARGE if n == 1 else n) for n, job in enumerate(jobs)]
    with pytest.raises(InvalidInput, match="1,000,012 bytes"):
        queue.finish(endings)
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE state = 'running'") == 3


def test_the_largest_result_is_kept(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    enqueue(queue, spec)
    (job,) = claim(queue)
    queue.finish([Ending(job, ArchiveState.SUCCEEDED, "x" * 999_998)])
    assert results.outcome(job.id).result == "x" * 999_998


def test_a_rejected_result_stops_the_key_of_a_queue_that_stops(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(replace(spec, ordered=True, on_poison="stop"))
    enqueue(queue, spec, ordering_key="k")
    assert Consumer(queue, spec, lambda job: Done(TOO_LARGE)).drain().held == 1
    assert "1,000,012 bytes" in value(queue, "SELECT error FROM {s}.job")


def test_a_handler_can_say_reject_itself(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    enqueue(queue, spec)
    assert Consumer(queue, spec, lambda job: Reject("never")).drain().failed == 1
