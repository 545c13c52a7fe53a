"""The log of failures: a line for each failed attempt, in every mode, and none for anything else."""

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import pytest

from dagster_sqlqueue import (
    Backoff,
    Consumer,
    Done,
    Hold,
    Job,
    NewJob,
    QueueSpec,
    Reject,
    Retry,
    Sensitive,
    Snooze,
    SqlQueue,
)
from dagster_sqlqueue.consumer.failure_log import one_line
from dagster_sqlqueue.consumer.manager import AssignedSource, Manager
from dagster_sqlqueue.queue.selection import Selection
from tests.support import Work, claim, make_due, rows, states, until

LOGGER = "dagster_sqlqueue.failures"
_OF_JOB = re.compile(r"(?<=^queue work, )job ([0-9a-f-]{36}), ")


class Lines:
    """What the logger said, by level."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def said(self) -> list[tuple[str, str]]:
        """Level and text without the job's id, which is in `jobs`."""
        return [(record.levelname, _OF_JOB.sub("", record.getMessage(), count=1)) for record in self._records]

    @property
    def jobs(self) -> list[str | None]:
        """The id in each line; None where it has none."""
        found = [_OF_JOB.search(record.getMessage()) for record in self._records]
        return [match and match[1] for match in found]

    @property
    def _records(self) -> list[logging.LogRecord]:
        return [record for record in self._caplog.records if record.name == LOGGER]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    with caplog.at_level(logging.DEBUG, logger="dagster_sqlqueue"):
        yield Lines(caplog)


def _fails(job: Job[Work]) -> None:
    if job.payload.n == 0:
        raise ValueError("a long story\nof two lines")


async def _fails_async(job: Job[Work]) -> None:
    _fails(job)


def _fails_of_a_batch(jobs: list[Job[Work]]) -> list[Any]:
    return [Retry("ValueError: a long story of two lines") if job.payload.n == 0 else None for job in jobs]


MODES: dict[str, tuple[Any, dict[str, Any]]] = {
    "leased": (_fails, {}),
    "one by one": (_fails, {"batch_size": 1}),
    "transactional": (_fails, {"mode": "transactional"}),
    "threads": (_fails, {"concurrency": 2}),
    "async": (_fails_async, {}),
    "tasks": (_fails_async, {"concurrency": 2}),
    "batch": (_fails_of_a_batch, {"batch": True}),
}

FAILED = [
    ("WARNING", "queue work, attempt 1 of 2: retried in 0.0 s: ValueError: a long story of two lines"),
    ("ERROR", "queue work, attempt 2 of 2: dead letter: ValueError: a long story of two lines"),
]


@pytest.mark.parametrize("mode", MODES)
def test_each_failed_attempt_is_one_line_in_every_mode(
    queue: SqlQueue, spec: QueueSpec[Work], lines: Lines, mode: str
) -> None:
    handler, settings = MODES[mode]
    jobs = [queue.enqueue(spec, NewJob(Work(n=n), max_attempts=2)) for n in range(5)]
    summary = Consumer(queue, spec, handler, **settings).drain()
    assert (summary.succeeded, summary.retried, summary.failed) == (4, 1, 1)
    assert lines.said == FAILED
    assert lines.jobs == [str(jobs[0])] * len(FAILED)


def test_a_worker_of_a_manager_logs_failures_as_well(queue: SqlQueue, spec: QueueSpec[Work], lines: Lines) -> None:
    spec = replace(spec, strategy="assign")
    queue.create_queue(spec)
    job = queue.enqueue(spec, NewJob(Work(n=0), max_attempts=1))
    manager = Manager(queue, "work")
    with AssignedSource(queue, "work", "w") as source:
        consumer = Consumer(queue, spec, _fails, source=source, worker="w")
        assert consumer.drain().claimed == 0
        manager.assign()
        until(lambda: consumer.drain().failed)
    assert lines.said == [("ERROR", "queue work, attempt 1 of 1: dead letter: ValueError: a long story of two lines")]
    assert lines.jobs == [str(job)]


def test_the_delay_is_the_one_that_is_waited(queue: SqlQueue, spec: QueueSpec[Work], lines: Lines) -> None:
    queue.enqueue(spec, Work(n=0))
    Consumer(queue, replace(spec, backoff=lambda attempt: 3_600.0), _fails).drain()
    assert [text for _, text in lines.said] == [
        "queue work, attempt 1 of 3: retried in 3600.0 s: ValueError: a long story of two lines"
    ]
    assert rows(queue, "SELECT available_at > now() + interval '59 minutes' FROM {s}.job") == [(True,)]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_job_to_be_cancelled_is_not_said_to_be_retried(
    queue: SqlQueue, spec: QueueSpec[Work], lines: Lines, ordered: bool
) -> None:
    spec = replace(spec, ordered=ordered, backoff=Backoff(3_600, jitter=0))
    queue.create_queue(spec)
    job = queue.enqueue(spec, NewJob(Work(n=0), ordering_key="k" if ordered else None))

    def fails(job: Job[Work]) -> None:
        queue.cancel("work", Selection(ids=[job.id]))
        raise ValueError("it was in the middle")

    assert Consumer(queue, spec, fails).drain().retried == 1
    assert states(queue) == {0: "cancelled"}
    assert lines.said == [
        ("WARNING", "queue work, attempt 1 of 3: cancelled as requested: ValueError: it was in the middle")
    ]
    assert lines.jobs == [str(job)]


def test_what_is_no_failed_attempt_is_not_logged(queue: SqlQueue, spec: QueueSpec[Work], lines: Lines) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    outcomes = [Done(), Snooze(3_600), Hold("somebody is to look")]
    Consumer(queue, spec, lambda job: outcomes[job.payload.n]).drain()
    assert lines.said == []


def test_a_key_that_stops_is_an_error(queue: SqlQueue, spec: QueueSpec[Work], lines: Lines) -> None:
    spec = replace(spec, ordered=True, on_poison="stop")
    queue.create_queue(spec)
    job = queue.enqueue(spec, NewJob(Work(n=1), ordering_key="k"))
    Consumer(queue, spec, lambda job: Reject("it never fits")).drain()
    assert lines.said == [("ERROR", "queue work, attempt 1 of 3: held, its key stopped: it never fits")]
    assert lines.jobs == [str(job)]


@pytest.mark.parametrize("mode", ["leased", "transactional"])
def test_a_last_attempt_that_killed_its_consumer_is_an_error(
    queue: SqlQueue, spec: QueueSpec[Work], lines: Lines, mode: str
) -> None:
    job = queue.enqueue(spec, NewJob(Work(n=1), max_attempts=1))
    assert len(claim(queue)) == 1
    make_due(queue)
    assert Consumer(queue, spec, _fails, mode=mode).drain().buried == 1
    ((level, text),) = lines.said
    assert level == "ERROR"
    assert text.startswith("queue work, attempt 1 of 1: dead letter: ")
    assert "its consumer died or hung" in text
    assert lines.jobs == [str(job)]


def test_a_lease_that_was_lost_is_a_line(queue: SqlQueue, spec: QueueSpec[Work], lines: Lines) -> None:
    id = queue.enqueue(spec, Work(n=1))

    def overtaken(job: Job[Work]) -> None:
        make_due(queue)
        (mine,) = claim(queue)
        queue.complete([mine])

    assert Consumer(queue, spec, overtaken).drain().stale == 1
    assert lines.said == [
        ("WARNING", "queue work, attempt 1 of 3: lease lost: what became of it was refused"),
    ]
    assert lines.jobs == [str(id)]


class Login(Work):
    """With something to hide."""

    token: Annotated[str, Sensitive()] = ""


@pytest.mark.parametrize("mode", ["leased", "transactional"])
def test_no_secret_no_payload_and_no_second_line_get_there(
    queue: SqlQueue, caplog: pytest.LogCaptureFixture, lines: Lines, mode: str
) -> None:
    spec = QueueSpec("logins", Login, max_attempts=1)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Login(n=n, token="hush-hush", note="the payload") for n in range(3)])
    messages = ["refused hush-hush", "\x1b[31m" + "x" * 5_000, "at postgresql://ada:hunter2@db/shop"]

    def fails(job: Job[Login]) -> None:
        raise ValueError(messages[job.payload.n])

    Consumer(queue, spec, fails, mode=mode).drain()
    assert [level for level, _ in lines.said] == ["ERROR"] * 3
    everything = caplog.text
    for secret in ("hush-hush", "the payload", "hunter2", "Traceback", "\x1b"):
        assert secret not in everything
    assert all(len(text) < 400 and text.isprintable() for _, text in lines.said)


def test_what_could_not_be_committed_quotes_nothing_sensitive(queue: SqlQueue, lines: Lines) -> None:
    spec = QueueSpec("logins", Login, max_attempts=1)
    queue.create_queue(spec)
    queue.enqueue(spec, Login(n=1, token="hush-hush"))
    rows(queue, "CREATE TABLE {s}.seen (token text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    rows(queue, "INSERT INTO {s}.seen VALUES ('hush-hush')")

    def writes(job: Job[Login]) -> None:
        table = f'"{queue.database.schema}".seen'
        job.connection.execute(f"INSERT INTO {table} VALUES (%s)", [job.payload.token])

    try:
        Consumer(queue, spec, writes, mode="transactional").drain()
    finally:
        rows(queue, "DROP TABLE {s}.seen")
    ((level, text),) = lines.said
    assert level == "ERROR"
    assert "could not be committed" in text
    assert "hush-hush" not in text + queue.dead_letters("logins")[0].error


def test_an_error_is_cut_at_its_traceback() -> None:
    assert one_line("E: a\n\nb\n\nTraceback (most recent call last):\n  File") == "E: a b"
    assert one_line("E: a\n\n  + Exception Group Traceback (most recent call last):\n") == "E: a"
    assert one_line("x" * 301) == "x" * 298 + " …"
