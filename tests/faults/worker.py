"""What the processes of a fault run do. Each writes its history, one line as soon as it knows."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, Job, NewJob, QueueSpec, SqlQueue, statements
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.model import ClaimedJob
from dagster_sqlqueue.queue import Ending
from tests.core.support import Work

PLANTS: dict[str, tuple[str, str, str]] = {
    "an ending without the fence": ("finish", "AND j.lease_no = ended.lease_no", ""),
    "a claim that does not lock": ("claim_round_robin", "FOR UPDATE SKIP LOCKED", ""),
    "a lease number that does not grow": ("claim_round_robin", "lease_no = j.lease_no + 1", "lease_no = j.lease_no"),
    "an ending that does not reach the archive": (
        "finish",
        "FROM finished",
        "FROM finished WHERE hashtext(id::text) %% 10 <> 0",
    ),
    "an ending that leaves the job": (
        "finish",
        "DELETE FROM {job} AS j\n    USING",
        "UPDATE {job} AS j SET state = 'queued', available_at = statement_timestamp() FROM",
    ),
    "a claim that takes running jobs": (
        "claim_round_robin",
        "AND j.available_at <= statement_timestamp()",
        "AND (j.available_at <= statement_timestamp() OR j.state = 'running')",
    ),
}
"""Bugs by name: the statement, what is taken out of it, and what is put there."""


@dataclass(frozen=True)
class Task:
    """What one process is to do.

    Attributes:
        history: the file that it writes.
        lease_seconds, batch_size, job_timeout_seconds, linger_seconds: the consumer's.
        pause: seconds that each job takes.
        hang_until: the handler waits for this file to exist.
        go: the process begins when this file exists.
        plant: a bug out of `PLANTS`.
    """

    url: str
    schema: str
    history: Path
    lease_seconds: float = 30.0
    batch_size: int = 100
    job_timeout_seconds: float | None = None
    linger_seconds: float = 0.0
    pause: float = 0.0
    hang_until: Path | None = None
    go: Path | None = None
    plant: str | None = None
    jobs: int = 0


class History:
    """A file of events. A line is there as soon as the call returns, whatever happens to the process then."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, **facts: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, **facts}) + "\n").encode())


class Witness(SqlQueue):
    """A queue that writes down what it was told by the database."""

    def __init__(self, url: str, schema: str, history: History) -> None:
        super().__init__(url, schema=schema)
        self._history = history

    def claim(self, *arguments: Any, **named: Any) -> list[ClaimedJob]:
        jobs = super().claim(*arguments, **named)
        if jobs:
            self._history.note("claimed", jobs=[(str(job.id), job.lease_no) for job in jobs])
        return jobs

    def finish(self, endings: Sequence[Ending], **named: Any) -> set[UUID]:
        accepted = super().finish(endings, **named)
        jobs = [(ending.job.id in accepted, str(ending.job.id), ending.job.lease_no) for ending in endings]
        self._history.note("ended", jobs=[job[1:] for job in jobs if job[0]])
        self._history.note("refused", jobs=[job[1:] for job in jobs if not job[0]])
        return accepted


def plant(name: str) -> None:
    """Put a bug into a statement of this process."""
    statement, old, new = PLANTS[name]
    load = statements.load

    def planted(wanted: str, schema: str = statements.DEFAULT_SCHEMA, dialect: str = "postgresql") -> str:
        text = load(wanted, schema, dialect)
        if wanted != statement:
            return text
        job = f'"{schema}".job'
        before = old.replace("{job}", job)
        assert before in text, f"{statement} does not hold {before!r}"
        return text.replace(before, new.replace("{job}", job))

    statements.load = planted  # type: ignore[assignment]


def wait_for(path: Path) -> None:
    """Return when the file exists."""
    pause = threading.Event()
    while not path.exists():
        pause.wait(0.005)


def consume(task: Task) -> None:
    """Drain the queue; SIGTERM ends it after the job in hand."""
    if task.plant:
        plant(task.plant)
    history = History(task.history)
    pause = threading.Event()

    def handler(job: Job[Work]) -> None:
        history.note("handled", id=str(job.id), lease_no=job.lease_no)
        if task.hang_until:
            wait_for(task.hang_until)
        if task.pause:
            pause.wait(task.pause)

    spec = QueueSpec("work", Work, lease_seconds=task.lease_seconds)
    with Witness(task.url, task.schema, history) as queue:
        consumer = Consumer(
            queue,
            spec,
            handler,
            batch_size=task.batch_size,
            job_timeout_seconds=task.job_timeout_seconds,
        )
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        history.note("ready")
        if task.go:
            wait_for(task.go)
        history.note("drained", **asdict(consumer.drain(linger_seconds=task.linger_seconds)))


def produce(task: Task) -> None:
    """Enqueue one batch after another; what got no answer is sent again with the same ids."""
    history = History(task.history)
    spec = QueueSpec("work", Work)
    with SqlQueue(task.url, schema=task.schema) as queue:
        history.note("ready")
        if task.go:
            wait_for(task.go)
        for first in range(0, task.jobs, task.batch_size):
            batch = [NewJob(Work(n=n), id=uuid7()) for n in range(first, min(first + task.batch_size, task.jobs))]
            deadline = time.monotonic() + 60
            tries = 0
            while True:
                tries += 1
                with contextlib.suppress(DatabaseUnavailable):
                    queue.enqueue_many(spec, batch, sent_before=tries > 1)
                    break
                assert time.monotonic() < deadline
                threading.Event().wait(0.02)
            history.note("enqueued", ids=[str(job.id) for job in batch], tries=tries)
            if task.pause:
                threading.Event().wait(task.pause)
