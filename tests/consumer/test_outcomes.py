"""What a handler is given, and what becomes of a job by what it returns or raises."""

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from dagster_sqlqueue import (
    Backoff,
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
)
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.queue.leases import Leases
from tests.support import Work, make_due, rows, value
from tests.support.around import Around
from tests.support.drained import archive, drain


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


@pytest.mark.parametrize("reason", ["", " \n", "\x00"])
@pytest.mark.parametrize(
    ("outcome", "becomes"), [(Retry, "queued"), (Hold, "held"), (Reject, "failed"), (Cancel, "cancelled")]
)
def test_an_outcome_holds_where_an_exception_has_no_message(
    queue: SqlQueue, spec: QueueSpec[Work], outcome: Any, becomes: str, reason: str
) -> None:
    queue.enqueue(spec, NewJob(Work(n=0), backoff=Backoff(3600)))
    drain(queue, spec, lambda job: outcome(reason))
    found = queue.jobs("work", archived=becomes in ("failed", "cancelled"))
    assert [(job.state, job.error) for job in found] == [(becomes, "no reason was given")]


@pytest.mark.parametrize("outcome", [Retry, Hold, Reject, Cancel])
def test_a_reason_is_a_text(outcome: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{outcome.__name__} was given 7 as its reason; give a text"):
        outcome(7)


class Untold(Exception):
    """Its traceback cannot be made."""

    @property
    def __notes__(self) -> Any:
        raise RuntimeError("no notes")


def untold() -> Any:
    raise Untold("away")


class Numbers:
    """As arrays do, it compares each of its elements."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("The truth value of an array is ambiguous")


WEST = timezone(-timedelta(hours=5))

BAD = {
    "another value": (lambda: "done", "the handler returned a str; return Done"),
    "a dictionary": (lambda: {"a": 1}, "the handler returned a dict"),
    "truth": (lambda: True, "the handler returned a bool"),
    "an outcome in a list": (lambda: [Done()], "the handler returned a list"),
    "a future of a thread": (Future, "the handler returned a Future"),
    "an array": (Numbers, "the handler returned a Numbers"),
    "the class of an outcome": (lambda: Done, "the handler returned the class Done; return an instance, Done(…)"),
    "another class": (lambda: Work, "the handler returned a ModelMetaclass"),
    "no JSON": (lambda: Done(object()), "not JSON serializable"),  # type: ignore[arg-type]
    "a set": (lambda: Done({1}), "not JSON serializable"),  # type: ignore[arg-type]
    "NaN": (lambda: Done(float("nan")), "it is nan, a number that JSON does not have"),
    "infinity deep inside": (lambda: Done({"a": [float("inf")]}), "a.0 is inf, a number that JSON does not have"),
    "NUL": (lambda: Done("a\x00"), "NUL"),
    "NUL in a key": (lambda: Done({"a\x00": 1}), "NUL"),
    "a surrogate": (lambda: Done({"a": "\ud800"}), "surrogate"),
    "an exception": (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    "an exception without a traceback": (untold, "Untold: away\n\n(its traceback could not be made)"),
    "an exception with NUL": (lambda: int("\x00"), "ValueError: invalid literal"),
    "a reason that is no text": (lambda: Retry(ValueError("x")), "ValueError('x')"),  # type: ignore[arg-type]
    "no reason": (lambda: Reject(None), "give a text"),  # type: ignore[arg-type]
    "a delay that is no number": (lambda: Snooze("1"), "give a timedelta or seconds"),  # type: ignore[arg-type]
    "a moment after all years": (
        lambda: Snooze(datetime.max.replace(tzinfo=timezone(-timedelta(hours=5)))),
        "years 1 to 9999",
    ),
    "a delay that never ends": (lambda: Snooze(float("inf")), "give a timedelta or seconds"),
    "a truth value": (lambda: Snooze(True), "give a timedelta or seconds"),
    "a delay that is NaN": (lambda: Retry("x", float("nan")), "give a timedelta or seconds"),
    "a negative delay": (lambda: Retry("x", -1), "give a timedelta or seconds"),
    "a negative timedelta": (lambda: Snooze(timedelta(seconds=-1)), "give a timedelta or seconds"),
    "a timedelta that never ends": (lambda: Retry("x", timedelta.max), "give a timedelta or seconds"),
}
NO_OUTCOME = {
    "another value",
    "a dictionary",
    "truth",
    "an outcome in a list",
    "a future of a thread",
    "an array",
    "the class of an outcome",
    "another class",
}
UNSTORABLE = {"no JSON", "a set", "NaN", "infinity deep inside", "NUL", "NUL in a key", "a surrogate"}


@pytest.mark.parametrize("kind", list(BAD))
def test_what_is_no_outcome_is_the_dead_letter_or_a_failed_attempt_and_hurts_no_other_job(
    queue: SqlQueue, spec: QueueSpec[Work], kind: str
) -> None:
    make, message = BAD[kind]
    queue.enqueue_many(spec, [NewJob(Work(n=n), max_attempts=2) for n in range(5)])
    summary = drain(queue, spec, lambda job: make() if job.payload.n == 2 else None)
    # Of what is done: it would be the same the next time.
    again = 0 if kind in UNSTORABLE | NO_OUTCOME else 1
    assert (summary.succeeded, summary.retried, summary.failed, summary.stale) == (4, again, 1, 0)
    state, _, error, attempt = archive(queue)[2]
    assert (state, attempt) == ("failed", 1 + again)
    assert message in error
    assert ("The job is not retried" in error) == (kind in NO_OUTCOME)


@pytest.mark.parametrize("more", [{"concurrency": 3}, {"mode": Mode.TRANSACTIONAL}, {"batch": True}])
@pytest.mark.parametrize("awaited", [False, True])
def test_what_is_no_outcome_is_the_dead_letter_in_every_mode(
    queue: SqlQueue, spec: QueueSpec[Work], more: dict[str, Any], awaited: bool
) -> None:
    called: list[int] = []

    def one(job: Job[Work]) -> Any:
        called.append(job.payload.n)
        return {"sent": True} if job.payload.n == 2 else None

    async def one_awaited(job: Job[Work]) -> Any:
        return one(job)

    async def batch_awaited(jobs: Sequence[Job[Work]]) -> Any:
        return [one(job) for job in jobs]

    def batch(jobs: Sequence[Job[Work]]) -> Any:
        return [one(job) for job in jobs]

    if awaited and "mode" in more:
        more = {}
    handlers: tuple[Any, Any] = (one_awaited, batch_awaited) if awaited else (one, batch)
    queue.enqueue_many(spec, [NewJob(Work(n=n), max_attempts=3) for n in range(5)])
    summary = Consumer(queue, spec, handlers["batch" in more], **more).drain()
    assert (summary.succeeded, summary.retried, summary.failed) == (4, 0, 1)
    assert sorted(called) == [0, 1, 2, 3, 4]
    assert archive(queue)[2][2].startswith("the handler returned a dict; return Done")


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
    assert 70 < value(queue, "SELECT extract(epoch FROM available_at - now()) FROM {s}.job") <= 100
    make_due(queue)
    summary = drain(queue, spec, lambda job: 1 / 0)
    assert (summary.claimed, summary.retried, summary.failed) == (1, 0, 1)
    (dead,) = queue.dead_letters("work")
    assert (dead.error or "").startswith("ZeroDivisionError: division by zero\n\nTraceback")


DELAYS = (1.0, 2.0)


def of_a_list(attempt: int) -> float:
    return DELAYS[attempt + 1]


@pytest.mark.parametrize("more", [{"batch_size": 5}, {"concurrency": 2}, {"mode": Mode.TRANSACTIONAL}])
@pytest.mark.parametrize(
    ("backoff", "seconds", "says"),
    [
        pytest.param(of_a_list, 0, "with IndexError: tuple index out of range", id="an error"),
        pytest.param(lambda attempt: None, 0, "with TypeError", id="nothing"),
        pytest.param(lambda attempt: timedelta(seconds=9), 0, "with TypeError", id="a time span"),
        pytest.param(lambda attempt: float("nan"), 0, "it returned nan", id="no number"),
        pytest.param(lambda attempt: 2 ** (5_000 * attempt), 100 * 366 * 86_400, None, id="a very large number"),
        pytest.param(lambda attempt: float("inf"), 100 * 366 * 86_400, None, id="infinity"),
        pytest.param(lambda attempt: -1, 0, None, id="before now"),
    ],
)
def test_a_backoff_function_without_a_usable_answer_keeps_no_outcome_from_being_written(
    queue: SqlQueue,
    backoff: Any,
    seconds: float,
    says: str | None,
    more: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Tests share a SqlQueue, which warns once.
    monkeypatch.setattr(queue, "leases", Leases(queue.catalog))
    queue.create_queue(QueueSpec("work", Work, bucket_count=1, max_attempts=2, backoff=Backoff(0, jitter=0)))
    spec = QueueSpec("work", Work, bucket_count=1, max_attempts=2, backoff=backoff)
    queue.enqueue_many(spec, [Work(n=n) for n in range(5)])
    outcomes = {1: Snooze(3_600), 2: Hold("wait")}

    def handle(job: Job[Work]) -> Any:
        if job.payload.n in (0, 3) and job.attempt == 1:
            raise RuntimeError("away")
        return outcomes.get(job.payload.n)

    summary = drain(queue, spec, handle, **more)
    assert (summary.retried, summary.snoozed, summary.held, summary.released) == (2, 1, 1, 0)
    if seconds:
        assert summary.succeeded == 1
        left = "SELECT extract(epoch FROM available_at - now()) FROM {s}.job WHERE attempt = 1 AND state = 'queued'"
        assert [seconds - 600 < row[0] <= seconds for row in rows(queue, left)] == [True, True]
    else:
        assert summary.succeeded == 3
    warned = [record for record in caplog.records if "backoff function" in record.message]
    assert [says is not None and says in record.message for record in warned] == [True] * (says is not None)


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


@pytest.mark.parametrize("written", [True, False])
def test_an_interrupt_while_outcomes_are_written_loses_none(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: Around, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """It comes when the ends are written, or before."""
    queue.enqueue_many(spec, [Work(n=n) for n in range(30)])
    seen: list[int] = []

    def handle(job: Job[Work]) -> Retry | Hold | None:
        seen.append(job.payload.n)
        return {0: Retry("later", after=3_600), 1: Hold("for a person")}.get(job.payload.n % 5)

    def finish(*given: Any, **named: Any) -> None:
        if written:
            sending_claims.inner.finish(*given, **named)
        monkeypatch.undo()
        raise KeyboardInterrupt

    for verb in ("finish_and_claim", "finish"):
        monkeypatch.setattr(sending_claims, verb, lambda endings, *_, **__: finish(endings), raising=False)
    consumer = Consumer(queue, spec, handle, batch_size=10)
    with pytest.raises(KeyboardInterrupt):
        consumer.drain()
    assert len(seen) == 10
    assert (consumer.summary.succeeded, consumer.summary.retried, consumer.summary.held) == (
        sum(n % 5 > 1 for n in seen),
        sum(n % 5 == 0 for n in seen),
        sum(n % 5 == 1 for n in seen),
    )
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == consumer.summary.succeeded
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE state = 'running'") == 0
