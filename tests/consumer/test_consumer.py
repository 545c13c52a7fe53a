"""The drain loop: batches and buckets, leases and heartbeats, stopping."""

import math
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Done, Hold, Job, NewJob, QueueSpec, Retry, Snooze, SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.queue.selection import Selection
from tests.gate.patience import PATIENCE
from tests.support import Work, claim, leases_go_on, make_due, own_server, rows, until, value
from tests.support.around import Around
from tests.support.drained import Clock, archive, drain


def test_every_job_is_handled_once(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(1_050)])
    seen: list[int] = []
    summary = drain(queue, spec, lambda job: seen.append(job.payload.n), batch_size=100)
    assert sorted(seen) == list(range(1_050))
    assert (summary.claimed, summary.succeeded, summary.stale, summary.failed) == (1_050, 1_050, 0, 0)
    assert summary.batches >= 11
    assert summary.jobs_per_second > 0
    assert queue.depth("work").live == 0


def test_a_consumer_counts_all_of_its_drains(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    consumer = Consumer(queue, spec, lambda job: None)
    seconds = [0.0]
    for n in range(1, 4):
        queue.enqueue(spec, Work(n=n))
        summary = consumer.drain()
        assert (summary.claimed, summary.succeeded) == (n, n)
        seconds.append(summary.seconds)
    assert seconds == sorted(set(seconds))


def test_stop_gives_back_what_was_not_begun(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(50)])
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        seen.append(job.payload.n)
        if len(seen) == 3:
            consumer.stop()

    consumer = Consumer(queue, spec, handler, batch_size=100)
    summary = consumer.drain()
    assert (summary.succeeded, summary.released, summary.claimed) == (3, 47, 50)
    again = claim(queue)
    assert len(again) == 47
    assert {job.attempt for job in again} == {1}


def test_stop_ends_a_lingering_drain_at_once(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    consumer = Consumer(queue, spec, lambda job: None)
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(consumer.drain, linger_seconds=3_600)
        try:
            until(lambda: value(queue, "SELECT count(*) FROM {s}.waiter"), "the wait for jobs")
        finally:
            consumer.stop()
        assert draining.result(PATIENCE).claimed == 0


def test_linger_picks_up_what_comes_meanwhile(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    seen = threading.Event()
    consumer = Consumer(queue, spec, lambda job: seen.set())
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(consumer.drain, linger_seconds=3_600)
        queue.enqueue(spec, Work(n=1))
        assert seen.wait(PATIENCE)
        consumer.stop()
        assert draining.result(PATIENCE).succeeded == 1


def test_budget_ends_the_drain_between_two_batches(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for module in ("consumer", "ahead"):
        monkeypatch.setattr(f"dagster_sqlqueue.consumer.{module}.time", clock)
    queue.enqueue_many(spec, [Work(n=n) for n in range(30)])

    def handler(job: Job[Work]) -> None:
        clock.ahead = 3_600

    consumer = Consumer(queue, spec, handler, batch_size=10)
    summary = consumer.drain(budget_seconds=3_600)
    assert (summary.batches, summary.succeeded) == (1, 10)
    assert queue.depth("work").ready == 20
    assert Consumer(queue, spec, lambda job: None).drain(budget_seconds=0).claimed == 0


def test_the_buckets_take_turns(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """A bucket that is never empty does not keep the others waiting."""
    queue.enqueue_many(spec, [Work(n=n) for n in range(400)])
    buckets: list[int] = []
    Consumer(queue, spec, lambda job: None, batch_size=10, on_claim=lambda jobs: buckets.append(jobs[0].bucket)).drain()
    assert all(set(buckets[at : at + 4]) == {0, 1, 2, 3} for at in range(0, 24, 4))


def test_a_batch_that_was_claimed_ahead_is_given_back_when_the_drain_stops(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(60)])
    consumer = Consumer(queue, spec, lambda job: None, batch_size=10)
    original = queue.leases.finish_and_claim

    def stopping(*arguments: Any, **settings: Any) -> Any:
        done = original(*arguments, **settings)
        consumer.stop()
        return done

    monkeypatch.setattr(queue.leases, "finish_and_claim", stopping)
    summary = consumer.drain()
    assert (summary.claimed, summary.succeeded, summary.released) == (20, 10, 10)
    assert rows(queue, "SELECT DISTINCT state, attempt FROM {s}.job") == [("queued", 0)]


def test_a_consumer_keeps_to_its_buckets(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(200)])
    summary = drain(queue, spec, lambda job: None, buckets=[1, 3])
    assert summary.succeeded > 50
    assert {head.bucket for head in queue.peek_heads("work")} == {0, 2}


def test_a_slow_handler_keeps_its_leases_by_heartbeats(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    release = threading.Event()
    begun = threading.Event()
    beats: list[int] = []

    def handler(job: Job[Work]) -> None:
        begun.set()
        release.wait(2 * PATIENCE)

    consumer = Consumer(
        *(queue, spec, handler),
        batch_size=100,
        lease_seconds=0.4,
        job_timeout_seconds=3_600,
        beat=lambda: beats.append(1),
    )
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(consumer.drain)
        assert begun.wait(PATIENCE)
        until(leases_go_on(queue), "leases that go on")
        until(lambda: len(beats) >= 4, "the beats")
        release.set()
        summary = draining.result(PATIENCE)
    assert (summary.succeeded, summary.stale) == (3, 0)
    assert rows(queue, "SELECT DISTINCT lease_no FROM {s}.job_archive") == [(1,)]


def test_a_handler_that_hangs_loses_its_job_and_cannot_end_it(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), ordering_key="one") for n in range(4)])
    release, begun = threading.Event(), threading.Event()
    handled: Counter[int] = Counter()

    def hanging(job: Job[Work]) -> Any:
        begun.set()
        release.wait(2 * PATIENCE)
        return Done("too late")

    def quick(job: Job[Work]) -> Any:
        handled[job.payload.n] += 1
        return Done("in time")

    stuck = Consumer(queue, spec, hanging, batch_size=100, lease_seconds=0.4, job_timeout_seconds=0.2, worker="stuck")
    other = Consumer(queue, spec, quick, worker="other")
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(stuck.drain)
        assert begun.wait(PATIENCE)
        until(lambda: other.drain().succeeded == 4)
        release.set()
        summary = draining.result(PATIENCE)
    assert (summary.claimed, summary.succeeded, summary.released) == (4, 0, 0)
    # The one that hung was refused; the others were found lost before they were begun, or refused at their end.
    assert summary.stale == 4
    assert handled == {0: 1, 1: 1, 2: 1, 3: 1}
    assert {row[:2] for row in archive(queue).values()} == {("succeeded", "in time")}
    assert rows(queue, "SELECT DISTINCT claimed_by, lease_no FROM {s}.job_archive") == [("other", 2)]


def test_an_interrupt_in_a_handler_gives_everything_back(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(20)])
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        if len(seen) == 5:
            raise KeyboardInterrupt
        seen.append(job.payload.n)

    consumer = Consumer(queue, spec, handler, batch_size=100)
    with pytest.raises(KeyboardInterrupt):
        consumer.drain()
    assert (consumer.summary.succeeded, consumer.summary.released) == (5, 15)
    again = claim(queue)
    assert len(again) == 15
    assert {job.attempt for job in again} == {1}
    assert not [thread for thread in threading.enumerate() if thread.name == "sqlqueue-heartbeat"]


@pytest.mark.parametrize("error", [RuntimeError("no beat"), SystemExit(1)])
def test_a_beat_that_fails_does_not_stop_the_heartbeats(
    queue: SqlQueue, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    queue.enqueue(spec, Work(n=1))
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        raise error

    def handler(job: Job[Work]) -> None:
        until(lambda: len(beats) >= 4)

    summary = drain(queue, spec, handler, lease_seconds=0.2, beat=beat)
    assert (summary.succeeded, summary.stale) == (1, 0)
    assert "heartbeat failed, it is tried again" in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"job_timeout_seconds": 0},
        {"lease_seconds": 0},
        {"lease_seconds": -1},
        {"batch_size": 0},
        {"batch_size": 10_001},
        {"buckets": []},
        {"buckets": [-1]},
        {"buckets": [1024]},
        {"buckets": [0.5]},
        {"worker": " "},
        {"worker": 7},
        {"worker": "a\x00"},
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(
    queue: SqlQueue, spec: QueueSpec[Work], settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        Consumer(queue, spec, lambda job: None, **settings)


def test_a_lost_lease_is_in_the_log(queue: SqlQueue, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture) -> None:
    queue.enqueue(spec, Work(n=1))

    def overtaken(job: Job[Work]) -> None:
        make_due(queue)
        (mine,) = claim(queue)
        queue.complete([mine])

    assert drain(queue, spec, overtaken).stale == 1
    assert "attempt 1 of 3: lease lost: what became of it was refused" in caplog.text


class LosingAnswers(Around):
    """What it asks of the database happens; the first answer of each kind gets lost with the connection."""

    lost: set[str]

    def _lose(self, verb: str) -> None:
        if verb not in self.lost:
            self.lost.add(verb)
            raise DatabaseUnavailable(f"the answer to {verb} got lost")

    def finish(self, endings: Any, **named: Any) -> Any:
        accepted = self.inner.finish(endings, **named)
        self._lose("finish")
        return accepted

    def finish_and_claim(self, *arguments: Any, **named: Any) -> Any:
        done = self.inner.finish_and_claim(*arguments, **named)
        self._lose("finish")
        return done

    def requeue(self, jobs: Any, **named: Any) -> Any:
        accepted = self.inner.requeue(jobs, **named)
        self._lose("requeue")
        return accepted


@pytest.fixture
def losing(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> LosingAnswers:
    losing = LosingAnswers(queue.leases)
    losing.lost = set()
    monkeypatch.setattr(queue, "leases", losing)
    return losing


def test_an_ending_whose_answer_got_lost_is_found_again(
    queue: SqlQueue, spec: QueueSpec[Work], losing: LosingAnswers
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    summary = drain(queue, spec, lambda job: Snooze(3_600) if job.payload.n < 4 else None, batch_size=100)
    assert losing.lost == {"finish", "requeue"}
    assert (summary.succeeded, summary.snoozed, summary.stale) == (6, 4, 0)
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 6}
    assert queue.depth("work").scheduled == 4


def test_a_job_to_be_cancelled_is_not_said_to_be_retried_where_the_answer_got_lost(
    queue: SqlQueue, spec: QueueSpec[Work], losing: LosingAnswers, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [queue.enqueue(spec, Work(n=n)) for n in range(2)]

    def fails(job: Job[Work]) -> Outcome:
        if job.id == ids[0]:
            queue.cancel("work", Selection(ids=[job.id]))
        return Retry("no luck", after=3_600)

    assert drain(queue, spec, fails, batch_size=100).retried == 2
    assert losing.lost == {"requeue"}
    said = {id: line.partition(f"job {id}, ")[2] for id in ids for line in caplog.messages if str(id) in line}
    assert said == {
        ids[0]: "attempt 1 of 3: cancelled as requested: no luck",
        ids[1]: "attempt 1 of 3: retried in 3600.0 s: no luck",
    }


@pytest.mark.parametrize("concurrency", [None, 2])
@pytest.mark.parametrize(
    ("outcome", "left"),
    [(None, ("succeeded", 1)), (Snooze(3_600), ("queued", 0)), (Retry("no"), ("queued", 1)), (Hold("no"), ("held", 0))],
)
def test_what_became_of_the_last_job_is_written_although_its_connection_is_lost_after_a_stop(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Outcome | None,
    left: tuple[str, int],
    concurrency: int | None,
) -> None:
    # No connection is tested before it is used.
    monkeypatch.setattr("dagster_sqlqueue.db.pool._TRUSTED_SECONDS", math.inf)
    name = f"stopped {queue.database.schema}"

    def handler(job: Job[Work]) -> Outcome | None:
        consumer.stop()
        killed = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = %s"
        assert set(rows(queue, killed, name)) == {(True,)}
        return outcome

    queue.enqueue(spec, Work(n=1))
    with SqlQueue(url, schema=queue.database.schema, application_name=name) as stopped:
        consumer = Consumer(stopped, spec, handler, concurrency=concurrency)
        summary = consumer.drain()
    assert (summary.handled, summary.stale, summary.released) == (1, 0, 0)
    assert rows(queue, "SELECT state, attempt FROM {s}.job_all") == [left]


@pytest.mark.prove
def test_a_database_that_stays_away_for_longer_than_a_lease_ends_the_drain(spec: QueueSpec[Work]) -> None:
    with own_server() as server, SqlQueue(server.url) as queue:
        queue.migrate()
        queue.create_queue(spec)
        queue.enqueue(spec, Work(n=1))
        consumer = Consumer(queue, spec, lambda job: server.stop(), lease_seconds=0.5)
        with pytest.raises(DatabaseUnavailable, match="check that the server runs"):
            consumer.drain()
        server.start()
        until(lambda: Consumer(queue, spec, lambda job: None).drain().succeeded)
        assert queue.archived("work", since_seconds=3_600) == {"succeeded": 1}
