"""The drain loop: outcomes, leases, stopping."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dagster_sqlqueue import (
    Backoff,
    Consumer,
    Done,
    DrainSummary,
    Job,
    NewJob,
    QueueSpec,
    Reject,
    Retry,
    Snooze,
    SqlQueue,
)
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput, UnknownQueue
from tests.core.support import Work, claim, make_due, own_server, rows, until, value

Handler = Callable[[Job[Work]], Any]


def drain(queue: SqlQueue, spec: QueueSpec[Work], handler: Handler, **settings: Any) -> DrainSummary:
    return Consumer(queue, spec, handler, **settings).drain()


def archive(queue: SqlQueue) -> dict[int, tuple[Any, ...]]:
    found = rows(queue, "SELECT (payload ->> 'n')::integer, state, result, error, attempt FROM {s}.job_archive")
    return {row[0]: row[1:] for row in found}


def test_every_job_is_handled_once(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(1_050)])
    seen: list[int] = []
    summary = drain(queue, spec, lambda job: seen.append(job.payload.n))
    assert sorted(seen) == list(range(1_050))
    assert (summary.claimed, summary.succeeded, summary.stale, summary.failed) == (1_050, 1_050, 0, 0)
    assert summary.batches >= 11
    assert summary.jobs_per_second > 0
    assert queue.depth("work").live == 0


def test_the_handler_is_given_what_the_job_is(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job_id = queue.enqueue(spec, NewJob(Work(n=1), priority=4, unique_key="u", ordering_key="o", max_attempts=2))
    seen: list[Job[Work]] = []

    def handler(job: Job[Work]) -> Any:
        seen.append(job)
        return Retry("once more") if job.attempt == 1 else None

    drain(queue, spec, handler)
    first, second = seen
    assert (first.id, first.queue, first.payload, first.priority) == (job_id, "work", Work(n=1), 4)
    assert (first.unique_key, first.ordering_key, first.max_attempts) == ("u", "o", 2)
    assert (first.attempt, first.lease_no, first.error, first.last_attempt) == (1, 1, None, False)
    assert (second.attempt, second.lease_no, second.error, second.last_attempt) == (2, 2, "once more", True)


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (None, None),
        (Done(), None),
        (Done({"a": [1, None, 2.5, "ü😀"]}), {"a": [1, None, 2.5, "ü😀"]}),
        (Done("a literal \\u0000 is no NUL"), "a literal \\u0000 is no NUL"),
        (Done(False), False),
        (Done(0), 0),
    ],
)
def test_done_keeps_its_result(queue: SqlQueue, spec: QueueSpec[Work], outcome: Any, result: object) -> None:
    queue.enqueue(spec, Work(n=1))
    assert drain(queue, spec, lambda job: outcome).succeeded == 1
    assert archive(queue)[1][:2] == ("succeeded", result)


BAD = {
    "another value": (lambda: "done", "InvalidInput: the handler returned a str; return Done"),
    "a dictionary": (lambda: {"a": 1}, "InvalidInput: the handler returned a dict"),
    "a class": (lambda: Done, "InvalidInput: the handler returned a type"),
    "no JSON": (lambda: Done(object()), "not JSON serializable"),  # type: ignore[arg-type]
    "a set": (lambda: Done({1}), "not JSON serializable"),  # type: ignore[arg-type]
    "NaN": (lambda: Done(float("nan")), "not JSON compliant"),
    "infinity deep inside": (lambda: Done({"a": [float("inf")]}), "not JSON compliant"),
    "NUL": (lambda: Done("a\x00"), "NUL"),
    "NUL in a key": (lambda: Done({"a\x00": 1}), "NUL"),
    "a surrogate": (lambda: Done({"a": "\ud800"}), "surrogate"),
    "an exception": (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    "an exception with NUL": (lambda: int("\x00"), "ValueError: invalid literal"),
    "a reason that is no text": (lambda: Retry(ValueError("x")), "ValueError('x')"),  # type: ignore[arg-type]
    "no reason": (lambda: Reject(None), "give a text"),  # type: ignore[arg-type]
    "a delay that is no number": (lambda: Snooze("1"), "give seconds"),  # type: ignore[arg-type]
    "a delay that never ends": (lambda: Snooze(float("inf")), "give seconds"),
    "a delay that is NaN": (lambda: Retry("x", float("nan")), "give seconds"),
    "a negative delay": (lambda: Retry("x", -1), "give seconds"),
}
UNSTORABLE = {"no JSON", "a set", "NaN", "infinity deep inside", "NUL", "NUL in a key", "a surrogate"}


@pytest.mark.parametrize("kind", list(BAD))
def test_what_is_no_outcome_is_a_failed_attempt_and_hurts_no_other_job(
    queue: SqlQueue, spec: QueueSpec[Work], kind: str
) -> None:
    make, message = BAD[kind]
    queue.enqueue_many(spec, [NewJob(Work(n=n), max_attempts=2) for n in range(5)])
    summary = drain(queue, spec, lambda job: make() if job.payload.n == 2 else None)
    # A result that cannot be stored would be the same the next time.
    again = 0 if kind in UNSTORABLE else 1
    assert (summary.succeeded, summary.retried, summary.failed, summary.stale) == (4, again, 1, 0)
    state, _, error, attempt = archive(queue)[2]
    assert (state, attempt) == ("failed", 1 + again)
    assert message in error


def test_an_error_is_readable_whatever_it_holds(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    errors: list[Any] = [
        ValueError("a\x00b \ud800 ü"),
        ValueError("x" * 100_000),
        Unspeakable(),
        Retry("a\x00b \ud800 ü"),
        Reject("a\x00b \ud800 ü"),
    ]

    def handler(job: Job[Work]) -> Any:
        outcome = errors[job.payload.n]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    queue.enqueue_many(spec, [NewJob(Work(n=n), max_attempts=1) for n in range(5)])
    assert drain(queue, spec, handler).failed == 5
    found = archive(queue)
    assert found[0][2].startswith("ValueError: ab ? ü\n")
    assert "in handler" in found[0][2]
    assert len(found[1][2]) == 10_000
    assert "Unspeakable" in found[2][2]
    assert found[3][2] == found[4][2] == "ab ? ü"


def test_an_exception_is_retried_by_the_backoff_until_the_dead_letter(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, max_attempts=2, backoff=Backoff(100, jitter=0))
    queue.create_queue(spec)
    queue.enqueue(spec, Work(n=1))
    summary = drain(queue, spec, lambda job: 1 / 0)
    assert (summary.claimed, summary.retried, summary.failed) == (1, 1, 0)
    assert 99 < value(queue, "SELECT extract(epoch FROM available_at - now()) FROM {s}.job") <= 100
    make_due(queue)
    summary = drain(queue, spec, lambda job: 1 / 0)
    assert (summary.claimed, summary.retried, summary.failed) == (1, 0, 1)
    (dead,) = queue.dead_letters("work")
    assert (dead.error or "").startswith("ZeroDivisionError: division by zero\n\nTraceback")


def test_snooze_and_reject(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=0), Work(n=1)])
    summary = drain(queue, spec, lambda job: Snooze(60) if job.payload.n else Reject("never"))
    assert (summary.snoozed, summary.failed, summary.retried) == (1, 1, 0)
    assert archive(queue)[0] == ("failed", None, "never", 1)
    assert rows(queue, "SELECT attempt, state FROM {s}.job") == [(0, "queued")]


def test_a_payload_that_no_longer_fits_is_rejected_with_its_field(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    rows(queue, """UPDATE {s}.job SET payload = '{{"n": "x"}}' WHERE payload ->> 'n' = '1'""")
    summary = drain(queue, spec, lambda job: None)
    assert (summary.succeeded, summary.failed) == (2, 1)
    (dead,) = queue.dead_letters("work")
    assert "payload does not fit Work: n: Input should be a valid integer" in (dead.error or "")


def test_stop_gives_back_what_was_not_begun(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(50)])
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        seen.append(job.payload.n)
        if len(seen) == 3:
            consumer.stop()

    consumer = Consumer(queue, spec, handler)
    summary = consumer.drain()
    assert (summary.succeeded, summary.released, summary.claimed) == (3, 47, 50)
    again = claim(queue)
    assert len(again) == 47
    assert {job.attempt for job in again} == {1}


def test_stop_ends_a_lingering_drain_at_once(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    consumer = Consumer(queue, spec, lambda job: None)
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(consumer.drain, linger_seconds=60)
        until(lambda: value(queue, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%unnest%%'"))
        consumer.stop()
        assert draining.result(timeout=10).claimed == 0


def test_linger_picks_up_what_comes_meanwhile(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    seen = threading.Event()
    consumer = Consumer(queue, spec, lambda job: seen.set())
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(consumer.drain, linger_seconds=60)
        queue.enqueue(spec, Work(n=1))
        assert seen.wait(20)
        consumer.stop()
        assert draining.result(timeout=10).succeeded == 1


def test_budget_ends_the_drain_between_two_batches(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(30)])
    began = time.monotonic()

    def handler(job: Job[Work]) -> None:
        until(lambda: time.monotonic() - began > 0.3)

    consumer = Consumer(queue, spec, handler, batch_size=10)
    summary = consumer.drain(budget_seconds=0.2)
    assert (summary.batches, summary.succeeded) == (1, 10)
    assert queue.depth("work").ready == 20
    assert Consumer(queue, spec, lambda job: None).drain(budget_seconds=0).claimed == 0


def test_the_buckets_take_turns(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """A bucket that is never empty does not keep the others waiting."""
    queue.enqueue_many(spec, [Work(n=n) for n in range(400)])
    buckets: list[int] = []
    consumer = Consumer(queue, spec, lambda job: None, batch_size=10)
    original = queue.finish_and_claim

    def spy(endings: Any, *arguments: Any, **settings: Any) -> Any:
        buckets.append(endings[0].job.bucket)
        return original(endings, *arguments, **settings)

    queue.finish_and_claim = spy  # type: ignore[method-assign]
    consumer.drain()
    assert all(set(buckets[at : at + 4]) == {0, 1, 2, 3} for at in range(0, 24, 4))


def test_a_batch_that_was_claimed_ahead_is_given_back_when_the_drain_stops(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(60)])
    consumer = Consumer(queue, spec, lambda job: None, batch_size=10)
    original = queue.finish_and_claim

    def stopping(*arguments: Any, **settings: Any) -> Any:
        done = original(*arguments, **settings)
        consumer.stop()
        return done

    queue.finish_and_claim = stopping  # type: ignore[method-assign]
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
    beats: list[float] = []

    def handler(job: Job[Work]) -> None:
        begun.set()
        release.wait(30)

    consumer = Consumer(
        queue, spec, handler, lease_seconds=0.4, job_timeout_seconds=60, beat=lambda: beats.append(time.monotonic())
    )
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(consumer.drain)
        assert begun.wait(20)
        over = value(queue, "SELECT max(available_at) + interval '1.2 s' FROM {s}.job")
        stolen = until(
            lambda: claim(queue) or ["past"] * value(queue, "SELECT (clock_timestamp() > %s)::integer", over)
        )
        assert stolen == ["past"]
        release.set()
        summary = draining.result(timeout=20)
    assert (summary.succeeded, summary.stale) == (3, 0)
    assert rows(queue, "SELECT DISTINCT lease_no FROM {s}.job_archive") == [(1,)]
    assert len(beats) >= 4


def test_a_handler_that_hangs_loses_its_job_and_cannot_end_it(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), ordering_key="one") for n in range(4)])
    release, begun = threading.Event(), threading.Event()
    handled: Counter[int] = Counter()

    def hanging(job: Job[Work]) -> Any:
        begun.set()
        release.wait(30)
        return Done("too late")

    def quick(job: Job[Work]) -> Any:
        handled[job.payload.n] += 1
        return Done("in time")

    stuck = Consumer(queue, spec, hanging, lease_seconds=0.4, job_timeout_seconds=0.2, worker="stuck")
    other = Consumer(queue, spec, quick, worker="other")
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(stuck.drain)
        assert begun.wait(20)
        until(lambda: other.drain().succeeded == 4)
        release.set()
        summary = draining.result(timeout=20)
    assert (summary.claimed, summary.succeeded, summary.released) == (4, 0, 0)
    # The one that hung was refused; the others were found lost before they were begun, or refused at their end.
    assert summary.stale == 4
    assert handled == {0: 1, 1: 1, 2: 1, 3: 1}
    assert {row[:2] for row in archive(queue).values()} == {("succeeded", "in time")}
    assert rows(queue, "SELECT DISTINCT claimed_by, lease_no FROM {s}.job_archive") == [("other", 2)]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_handler_gives_everything_back(
    queue: SqlQueue, spec: QueueSpec[Work], kind: type[BaseException]
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(20)])
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        if len(seen) == 5:
            raise kind
        seen.append(job.payload.n)

    consumer = Consumer(queue, spec, handler)
    with pytest.raises(kind):
        consumer.drain()
    assert (consumer.summary.succeeded, consumer.summary.released) == (5, 15)
    again = claim(queue)
    assert len(again) == 15
    assert {job.attempt for job in again} == {1}
    assert not [thread for thread in threading.enumerate() if thread.name == "sqlqueue-heartbeat"]


def test_a_beat_that_fails_does_not_stop_the_heartbeats(
    queue: SqlQueue, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(spec, Work(n=1))
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        raise RuntimeError("no beat")

    def handler(job: Job[Work]) -> None:
        until(lambda: len(beats) >= 4)

    summary = drain(queue, spec, handler, lease_seconds=0.2, beat=beat)
    assert (summary.succeeded, summary.stale) == (1, 0)
    assert "heartbeat failed, it is tried again" in caplog.text


def test_a_drain_of_an_unknown_queue_says_so(queue: SqlQueue) -> None:
    with pytest.raises(UnknownQueue, match="no queue 'missing'"):
        drain(queue, QueueSpec("missing", Work), lambda job: None)


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
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(
    queue: SqlQueue, spec: QueueSpec[Work], settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        Consumer(queue, spec, lambda job: None, **settings)


def test_a_lost_lease_is_told_in_the_log(
    queue: SqlQueue, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(spec, Work(n=1))

    def overtaken(job: Job[Work]) -> None:
        make_due(queue)
        (mine,) = claim(queue)
        queue.complete([mine])

    assert drain(queue, spec, overtaken).stale == 1
    assert "work: 1 writes were refused: their leases had passed on" in caplog.text


class LosingAnswers(SqlQueue):
    """What it asks of the database happens; the first answer of each kind gets lost with the connection."""

    lost: set[str]

    def _lose(self, verb: str) -> None:
        if verb not in self.lost:
            self.lost.add(verb)
            raise DatabaseUnavailable(f"the answer to {verb} got lost")

    def finish(self, endings: Any, **named: Any) -> Any:
        accepted = super().finish(endings, **named)
        self._lose("finish")
        return accepted

    def finish_and_claim(self, *arguments: Any, **named: Any) -> Any:
        done = super().finish_and_claim(*arguments, **named)
        self._lose("finish")
        return done

    def requeue(self, jobs: Any, **named: Any) -> Any:
        accepted = super().requeue(jobs, **named)
        self._lose("requeue")
        return accepted


def test_an_ending_whose_answer_got_lost_is_found_again(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    losing = LosingAnswers(queue.database)
    losing.lost = set()
    summary = drain(losing, spec, lambda job: Snooze(60) if job.payload.n < 4 else None)
    assert losing.lost == {"finish", "requeue"}
    assert (summary.succeeded, summary.snoozed, summary.stale) == (6, 4, 0)
    assert queue.archived("work", since_seconds=60) == {"succeeded": 6}
    assert queue.depth("work").scheduled == 4


def test_a_database_that_stays_away_for_longer_than_a_lease_ends_the_drain(spec: QueueSpec[Work]) -> None:
    with own_server() as server, SqlQueue(server.url) as queue:
        queue.init()
        queue.create_queue(spec)
        queue.enqueue(spec, Work(n=1))
        consumer = Consumer(queue, spec, lambda job: server.stop(), lease_seconds=0.5)
        with pytest.raises(DatabaseUnavailable, match="check that the server runs"):
            consumer.drain()
        server.start()
        until(lambda: Consumer(queue, spec, lambda job: None).drain().succeeded)
        assert queue.archived("work", since_seconds=60) == {"succeeded": 1}
