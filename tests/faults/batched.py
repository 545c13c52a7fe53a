"""What the driver of a batch does in a fault run: seals, reads, reports, publishes; and the judgement over what is left.

The driver counts its statements, so that a test can have it die after each of them in turn. It notes each one when the
database has answered.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from dagster_sqlqueue import Mode, Reject, Retry, SqlQueue
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.execution import Parameters, Row
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import Batch
from tests.faults.task import History
from tests.gate import plugin
from tests.support import rows

KEY = "k"
BAD, AGAIN = 0, 1
"""The payload's number of the job that no driver can use, and of the one that each wants again at its first attempt."""


@dataclass(frozen=True)
class Drive:
    """What one driver is to do.

    Attributes:
        name: its own; the owner of its batch.
        history: the file that it writes.
        dies_after: the number of the statement after which it dies; None: never.
        dies_at: or the name of that statement.
        cut: whether its connections are cut then by the server, instead.
    """

    url: str
    schema: str
    history: Path
    name: str
    mode: Mode
    overlap: bool = False
    dies_after: int | None = None
    dies_at: str | None = None
    cut: bool = False


class Driver:
    """Counts the statements of this process, and ends it, or its connections, at one of them."""

    def __init__(self, task: Drive) -> None:
        self._task = task
        self._history = History(task.history)
        self._count = 0

    def note(self, event: str, **facts: Any) -> None:
        """Write down, and count."""
        self._history.note(event, driver=self._task.name, **facts)
        self._count += 1
        if self._count == self._task.dies_after or (self._task.dies_at and facts.get("name") == self._task.dies_at):
            self._end()

    def _end(self) -> None:
        if not self._task.cut:
            os.kill(os.getpid(), signal.SIGKILL)
        with psycopg.connect(self._task.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name = %s AND pid <> pg_backend_pid()",
                (self._task.name,),
            )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have every statement noted."""
        kinds: list[Any] = [Database, Transaction]
        originals: list[Callable[..., Sequence[Row]]] = [kind.run for kind in kinds]

        def watched(original: Callable[..., Sequence[Row]]) -> Callable[..., Sequence[Row]]:
            def run(executor: object, name: str, parameters: Parameters) -> Sequence[Row]:
                found = original(executor, name, parameters)
                bucket = parameters.get("bucket")
                self.note("ran", name=name, bucket=bucket)
                return found

            return run

        for kind, original in zip(kinds, originals, strict=True):
            kind.run = watched(original)
        try:
            yield
        finally:
            for kind, original in zip(kinds, originals, strict=True):
                kind.run = original


def drive(task: Drive) -> None:
    """Consume once. What goes wrong is noted, and the process ends well."""
    driver = Driver(task)
    with SqlQueue(Database(task.url, schema=task.schema, application_name=task.name)) as queue, driver.watching():
        try:
            batch = batches.seal(
                queue, "work", KEY, owner=task.name, mode=task.mode, lease_seconds=30, overlap=task.overlap
            )
            consume(queue, batch, read(task.url, task.schema, batch))
            driver.note("published")
        except (QueueError, psycopg.errors.UndefinedObject) as error:
            # A reader finds the snapshot gone when the transaction that exported it is.
            driver.note("lost", why=f"{type(error).__name__}: {error}")


def read(url: str, schema: str, batch: Batch) -> list[tuple[UUID, int, int]]:
    """The batch's jobs as Spark reads them: id, number, and which attempt this is."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if batch.snapshot:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(batch.snapshot))
        begun = 0 if batch.snapshot is None else 1
        query = (
            f"SELECT id, (payload ->> 'n')::integer, attempt + {begun} FROM \"{schema}\".job WHERE {batch.condition}"
        )
        return connection.execute(query.encode()).fetchall()


def consume(queue: SqlQueue, batch: Batch, jobs: Sequence[tuple[UUID, int, int]]) -> None:
    """Report what is bad, and publish the effects of the others."""
    reported = [(id, Reject("bad")) for id, n, _ in jobs if n == BAD]
    reported += [(id, Retry("again", after=0)) for id, n, attempt in jobs if n == AGAIN and attempt == 1]
    batches.report(queue, batch, reported)
    good = [id for id, _, _ in jobs if id not in dict(reported)]
    with batches.publication(queue, batch, output={}) as transaction:
        insert = f'INSERT INTO "{queue.database.schema}".effect SELECT unnest(%s::uuid[])'
        transaction.connection.execute(insert.encode(), (good,))


@plugin.verdict
def verdict(queue: SqlQueue) -> list[str]:
    """Everything that is wrong with what drivers left, in words."""
    archived = rows(
        queue,
        "SELECT id, (payload ->> 'n')::integer, state, attempt FROM {s}.job_archive ORDER BY id",
    )
    effects = Counter(id for (id,) in rows(queue, "SELECT job FROM {s}.effect"))
    wrong = [f"job {id} ended {count} times" for id, count in Counter(row[0] for row in archived).items() if count > 1]
    wrong += [f"job {id} has not ended" for (id,) in rows(queue, "SELECT id FROM {s}.job")]
    leftover = rows(queue, "SELECT batch_id FROM {s}.batch_outcome")
    wrong += [f"batch {id} has outcomes that were not done" for (id,) in leftover]
    for id, n, state, attempt in archived:
        if state != ("failed" if n == BAD else "succeeded"):
            wrong.append(f"job {n} ended as {state}")
        if effects[id] != (state == "succeeded"):
            wrong.append(f"job {n} ended as {state} and has {effects[id]} effects")
        # However many drivers died: an attempt is spent by what is reported of a job.
        expected = 2 if n == AGAIN else 1
        if attempt != expected:
            wrong.append(f"job {n} ended at attempt {attempt}, and {expected} were due")
    return wrong + [f"{id} has an effect and no end" for id in effects.keys() - {row[0] for row in archived}]
