"""A producer, a consumer or a migration in a process of its own, by code of a version that may be a later one's.

python -m tests.upgrade.process ROLE VERSION URL SCHEMA: works until SIGTERM, and prints a line for each job that it enqueued
or ended. It ends with 0, or as `sqlqueue work` would, with the error on standard error.
"""

import sys
import threading
from typing import Any

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import Backoff, Consumer, Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.cli.exit_codes import code_of
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.schema import capabilities
from dagster_sqlqueue.schema.lock_waits import LockWaits
from tests.support import Work, on_sigterm
from tests.upgrade.made_up import MadeUp, become

SPEC = QueueSpec("work", Work, bucket_count=4, lease_seconds=300, max_attempts=3, backoff=Backoff(0, jitter=0))


def say(*words: object) -> None:
    """One line, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def produce(queue: SqlQueue, version: int, stopping: threading.Event) -> None:
    """Enqueue jobs one by one; a later version gives them labels where the schema has those."""
    connection: psycopg.Connection[Any]
    with queue.database.connection() as connection:
        while not stopping.wait(0.002):
            labels = version >= MadeUp.LABELS and capabilities.has(queue.database, MadeUp.LABELS)
            with connection.transaction():
                job = queue.enqueue(SPEC, NewJob(Work(n=0)), connection=connection)
                if labels:
                    text = sql.SQL("UPDATE {}.job SET label = 'new' WHERE id = %s")
                    connection.execute(text.format(sql.Identifier(queue.database.schema)), [job])
            say("put", job, "labelled" if labels else "plain")


def migrate(queue: SqlQueue) -> None:
    """Bring the schema to this code's version, patiently."""
    for migration in queue.migrate(LockWaits(0.2, 600.0)):
        say("applied", migration.version, "-")


def consume(queue: SqlQueue, stopping: threading.Event) -> None:
    """Work off until stopped."""

    def handle(job: Job[Work]) -> None:
        say("ended", job.id, "plain")

    consumer = Consumer(queue, SPEC, handle, batch_size=10)
    threading.Thread(target=lambda: (stopping.wait(), consumer.stop()), daemon=True).start()
    say("ready", "-", "-")
    consumer.drain(linger_seconds=float("inf"))


def main(role: str, version: int, url: str, schema: str) -> int:
    """Gives the exit code."""
    stopping = threading.Event()
    on_sigterm(stopping.set)
    with pytest.MonkeyPatch.context() as patch, SqlQueue(url, schema=schema) as queue:
        become(patch, version)
        try:
            if role == "producer":
                produce(queue, version, stopping)
            elif role == "migrate":
                migrate(queue)
            else:
                consume(queue, stopping)
        except QueueError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            return code_of(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
