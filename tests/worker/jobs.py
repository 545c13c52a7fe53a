"""Handlers for the processes of these tests. Each notes in a file what it begins and ends."""

import asyncio
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster_sqlqueue
from dagster_sqlqueue import Backoff, Cancel, Done, Job, QueueSpec, SqlQueue, handles
from dagster_sqlqueue.worker.shutdown import GRACE_SECONDS
from tests.support import Work

work = QueueSpec("work", Work, bucket_count=4, lease_seconds=300, max_attempts=3, backoff=Backoff(0, jitter=0))
other = QueueSpec("other", Work, lease_seconds=300)


def note(event: str, job: Job[Work]) -> None:
    """A line that is there as soon as this returns, whatever happens to the process then."""
    facts = {"queue": job.queue, "n": job.payload.n, "attempt": job.attempt, "lease_no": job.lease_no}
    line = json.dumps({"event": event, **facts, "pid": os.getpid()})
    file = os.open(os.environ["WORK_HISTORY"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (line + "\n").encode())
    os.close(file)


def wait_for_go() -> None:
    """Until the test says so."""
    pause = threading.Event()
    while not Path(os.environ["WORK_GO"]).exists():
        pause.wait(0.005)


@handles(work)
def handle(job: Job[Work]) -> Cancel | None:
    """Do what the payload's note says."""
    note("begun", job)
    match job.payload.note:
        case "wait":
            wait_for_go()
        case "wait in the database":
            job.connection.execute("SELECT pg_sleep(600)")
        case "stubborn":
            while not Path(os.environ["WORK_GO"]).exists():
                try:
                    wait_for_go()
                except KeyboardInterrupt:
                    note("interrupted", job)
        case "tidy up":
            try:
                wait_for_go()
            except KeyboardInterrupt:
                threading.Event().wait(GRACE_SECONDS + 1)
                note("tidied up", job)
                raise
        case "leave when cancelled":
            job.cancellation.wait()
            return Cancel("the worker stops")
        case "fail":
            raise ValueError("no such address")
        case "pause":
            threading.Event().wait(0.005)
        case "pause for long":
            threading.Event().wait(0.5)
    note("done", job)
    return None


@handles(other)
def handle_other(job: Job[Work]) -> None:
    """The other queue's."""
    note("begun", job)
    if job.payload.note == "wait":
        wait_for_go()
    note("done", job)


def pass_on(job: Job[Work], to: QueueSpec[Work]) -> None:
    """Enqueue the next lower number elsewhere, unless this is the last one."""
    note("begun", job)
    if job.payload.n > 0:
        with SqlQueue(os.environ["SQLQUEUE_URL"], schema=os.environ["SQLQUEUE_SCHEMA"]) as queue:
            queue.enqueue(to, Work(n=job.payload.n - 1))
    note("done", job)


@handles(work)
async def pass_to_other(job: Job[Work]) -> None:
    """Enqueue into the other queue."""
    await asyncio.to_thread(pass_on, job, other)


@handles(other)
def pass_to_work(job: Job[Work]) -> None:
    """Enqueue back."""
    pass_on(job, work)


@handles(work, concurrency=3)
async def handle_async(job: Job[Work]) -> None:
    """Wait as the payload's note says, three at a time."""
    note("begun", job)
    match job.payload.note:
        case "wait":
            while not Path(os.environ["WORK_GO"]).exists():
                await asyncio.sleep(0.005)
        case "wait in a thread":
            await asyncio.to_thread(wait_for_go)
    note("done", job)


by_batch = SimpleNamespace(spec=work, handler=lambda jobs: None, batch=True)
"""As the Dagster integration binds a handler of a batch."""


@handles(work)
def answer(job: Job[Work]) -> Any:
    """Return what is no outcome, or a result that is not JSON."""
    return {"sent": 1} if job.payload.note == "no outcome" else Done({"sent": {1}})  # type: ignore[dict-item]


@handles(work)
async def answer_async(job: Job[Work]) -> Any:
    """The same, awaited."""
    return answer(job)


def plain(job: Job[Work]) -> None:
    """A function without a queue."""


no_function = QueueSpec("work", Work)
number = dagster_sqlqueue.__version__
