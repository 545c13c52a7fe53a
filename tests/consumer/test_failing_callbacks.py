"""What callbacks and hooks raise ends the drain: what was claimed goes back, no attempt spent, and outcomes are written."""

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import Consumer, Job, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.consumer import ConsumerHooks
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.model.job import ClaimedJob
from tests.support import Work, claim, rows, value
from tests.support.claimed_ahead import fill_evenly
from tests.support.locked_ahead import LONG, SIZE

JOBS = 8 * SIZE
LATER = 5
"""Each job of this number is tried again later, so that outcomes of two kinds are to be written for a batch."""


class Failing:
    """An `on_claim` that raises an error at one of its calls, counted from 1; 0: at none."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error = at, error
        self.calls = 0
        self.announced: list[Any] = []

    def __call__(self, jobs: Sequence[ClaimedJob]) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        self.announced += [job.id for job in jobs]


class FailingHooks(ConsumerHooks):
    """Raises an error at one of the claims, counted from 1, before it or after it."""

    def __init__(self, at: int, error: BaseException, *, before: bool) -> None:
        self.at, self.error, self._before = at, error, before
        self.calls = 0

    @contextmanager
    def around_claim(self, queue: str, verb: str) -> Iterator[None]:
        self.calls += 1
        if self.calls != self.at:
            yield
            return
        if self._before:
            self.fail()
        yield
        self.fail()

    def fail(self) -> None:
        raise self.error


class Handler:
    """Handlers of each shape, which note the jobs that they have seen."""

    def __init__(self, later: int) -> None:
        self.seen: list[int] = []
        self.ids: list[Any] = []
        self._later = later

    def plain(self, job: Job[Work]) -> Retry | None:
        self.seen.append(job.payload.n)
        self.ids.append(job.id)
        return Retry("later", after=3_600) if self.is_later(job.payload.n) else None

    async def asynchronous(self, job: Job[Work]) -> Retry | None:
        return self.plain(job)

    def batch(self, jobs: list[Job[Work]]) -> list[Retry | None]:
        return [self.plain(job) for job in jobs]

    def is_later(self, n: int) -> bool:
        return self._later > 0 and n % self._later == 0


WAYS: dict[str, dict[str, Any]] = {
    "one batch after another": {},
    "a batch ahead": {"ahead": 1},
    "two batches ahead": {"ahead": 2},
    "a handler of a batch": {"shape": "batch", "batch": True},
    "an async handler": {"shape": "asynchronous"},
    "threads": {"concurrency": 4},
    "async handlers side by side": {"shape": "asynchronous", "concurrency": 4},
    "transactional": {"mode": "transactional"},
    "transactional, a batch ahead": {"mode": "transactional", "ahead": 1},
}


class Way:
    """One of the ways in which a consumer takes jobs, and its handler."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._settings = dict(WAYS[name])
        self.takes_all_at_once = name == "transactional, a batch ahead"
        ahead = self._settings.pop("ahead", 0)
        # What a handler that is interrupted beside others says of its job does not count, unless that succeeded.
        self.handler = Handler(0 if "concurrency" in self._settings else LATER)
        self._called = getattr(self.handler, self._settings.pop("shape", "plain"))
        monkeypatch.setattr("dagster_sqlqueue.consumer.queue_view._REFRESH_SECONDS", LONG)
        monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy.QUICK_SECONDS", LONG if ahead else 0.0)
        monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy._SECOND_SECONDS", math.inf)
        monkeypatch.setattr("dagster_sqlqueue.consumer.ahead._MUCH", 0.0 if ahead == 2 else math.inf)

    def consumer(self, queue: SqlQueue, spec: QueueSpec[Work], **given: Any) -> Consumer[Work]:
        settings = {"batch_size": SIZE, "lease_seconds": LONG, **self._settings, **given}
        return Consumer(queue, spec, self._called, **settings)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    return Way(request.param, monkeypatch)


def check_what_it_left(queue: SqlQueue, consumer: Consumer[Work], handler: Handler) -> None:
    """Of what was claimed each job has its outcome, or is on the queue as if it had not been claimed."""
    later = sum(map(handler.is_later, handler.seen))
    left = {(0, JOBS - len(handler.seen)), (1, later)}
    assert {(*row,) for row in rows(queue, "SELECT attempt, count(*) FROM {s}.job GROUP BY 1")} == {
        row for row in left if row[1]
    }
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE state <> 'queued'") == 0
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == len(handler.seen) - later
    summary = consumer.summary
    assert (summary.succeeded, summary.retried, summary.stale) == (len(handler.seen) - later, later, 0)
    assert summary.claimed == len(handler.seen) + summary.released


def check_ended(
    consumer: Consumer[Work], error: BaseException, raised_by: Callable[..., object] = Failing.__call__, **drain: Any
) -> None:
    """A drain ends with this error, as it was raised."""
    with pytest.raises(type(error)) as raised:
        consumer.drain(**drain)
    assert raised.value is error
    assert traceback.extract_tb(raised.tb)[-1].name == raised_by.__name__


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_every_job_has_its_outcome_or_goes_back(queue: SqlQueue, spec: QueueSpec[Work], way: Way, at: int) -> None:
    fill_evenly(queue, spec, JOBS)
    on_claim = Failing(at, LookupError("no such run"))
    consumer = way.consumer(queue, spec, on_claim=on_claim)
    check_ended(consumer, on_claim.error)
    assert len(way.handler.seen) < JOBS
    check_what_it_left(queue, consumer, way.handler)
    consumer.drain()
    assert sorted(way.handler.seen) == list(range(JOBS)), "each job once, and none with a wait for the end of a lease"
    assert set(way.handler.ids) <= set(on_claim.announced)
    check_what_it_left(queue, consumer, way.handler)
    assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job_archive") == [(1,)]


@pytest.mark.parametrize(
    "kind",
    [
        KeyboardInterrupt,
        SystemExit,
        DatabaseUnavailable,
        psycopg.OperationalError,
        psycopg.errors.QueryCanceled,
        psycopg.errors.SerializationFailure,
        psycopg.errors.UniqueViolation,
    ],
)
def test_interrupts_and_errors_of_a_database_end_it_like_any_other(
    queue: SqlQueue, spec: QueueSpec[Work], way: Way, kind: type[BaseException]
) -> None:
    """They are no errors of the queue's statements, which are repeated."""
    fill_evenly(queue, spec, JOBS)
    on_claim = Failing(3, kind("of on_claim"))
    consumer = way.consumer(queue, spec, on_claim=on_claim)
    check_ended(consumer, on_claim.error)
    check_what_it_left(queue, consumer, way.handler)


def test_one_that_fails_again_and_again_loses_nothing(queue: SqlQueue, spec: QueueSpec[Work], way: Way) -> None:
    fill_evenly(queue, spec, JOBS)
    for at in (4, 1, 2, 1):
        on_claim = Failing(at, LookupError("no such run"))
        consumer = way.consumer(queue, spec, on_claim=on_claim)
        check_ended(consumer, on_claim.error)
    way.consumer(queue, spec).drain()
    assert sorted(way.handler.seen) == list(range(JOBS))
    assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job_archive") == [(1,)]


def test_a_job_that_is_worked_off_by_itself_keeps_its_attempt(queue: SqlQueue, spec: QueueSpec[Work], way: Way) -> None:
    queue.enqueue(spec, Work(n=1))
    claim(queue)
    rows(queue, "UPDATE {s}.job SET available_at = now(), alone = false")
    on_claim = Failing(1, LookupError("no such run"))
    consumer = way.consumer(queue, spec, on_claim=on_claim)
    check_ended(consumer, on_claim.error)
    assert rows(queue, "SELECT state, attempt FROM {s}.job") == [("queued", 0)]
    assert consumer.drain().succeeded == 1
    assert value(queue, "SELECT attempt FROM {s}.job_archive") == 1


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", [LookupError, DatabaseUnavailable, KeyboardInterrupt])
def test_a_hook_around_a_claim_that_fails_loses_nothing(
    queue: SqlQueue, spec: QueueSpec[Work], way: Way, at: int, before: bool, kind: type[BaseException]
) -> None:
    fill_evenly(queue, spec, JOBS)
    hooks = FailingHooks(at, kind("of a hook"), before=before)
    consumer = way.consumer(queue, spec, hooks=[hooks])
    check_ended(consumer, hooks.error, hooks.fail)
    assert len(way.handler.seen) < JOBS
    check_what_it_left(queue, consumer, way.handler)
    consumer.drain()
    assert sorted(way.handler.seen) == list(range(JOBS))
    check_what_it_left(queue, consumer, way.handler)


@pytest.mark.parametrize("at", [1, 3])
def test_what_is_called_after_a_batch_and_fails_loses_nothing(
    queue: SqlQueue, spec: QueueSpec[Work], way: Way, at: int
) -> None:
    fill_evenly(queue, spec, JOBS)
    if way.takes_all_at_once:
        at = 1
    batches: list[object] = []
    error = LookupError("no such run")

    def after_batch(summary: object) -> None:
        batches.append(summary)
        if len(batches) == at:
            raise error

    consumer = way.consumer(queue, spec)
    check_ended(consumer, error, after_batch, after_batch=after_batch)
    check_what_it_left(queue, consumer, way.handler)
    consumer.drain()
    assert sorted(way.handler.seen) == list(range(JOBS))


def test_buckets_that_cannot_be_named_any_more_lose_nothing(queue: SqlQueue, spec: QueueSpec[Work], way: Way) -> None:
    """They are asked for when the consumer is made, at the beginning of its drain, and here once beside claims ahead."""
    fill_evenly(queue, spec, JOBS)
    asked: list[int] = []
    error = LookupError("no such table")

    def buckets() -> list[int]:
        asked.append(len(asked))
        if len(asked) == 3:
            raise error
        return [0, 1, 2, 3]

    def after_batch(summary: object) -> None:
        consumer._view.refresh_at = 0.0

    consumer = way.consumer(queue, spec, buckets=buckets)
    check_ended(consumer, error, buckets, after_batch=after_batch)
    check_what_it_left(queue, consumer, way.handler)
    consumer.drain()
    assert sorted(way.handler.seen) == list(range(JOBS))
