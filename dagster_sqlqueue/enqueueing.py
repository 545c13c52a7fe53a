"""Putting in: one job or many, in the caller's transaction if he wants."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from dagster_sqlqueue import payloads
from dagster_sqlqueue.database import CallerConnection, Executor
from dagster_sqlqueue.model import NewJob
from dagster_sqlqueue.settings import Payload, QueueSpec
from dagster_sqlqueue.verbs import Verbs

_CHUNK = 2_000


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What `enqueue_many` did: jobs put on the queue, and jobs left out because they were there already."""

    inserted: int
    duplicates: int


class EnqueueingVerbs(Verbs):
    """How jobs are put on a queue."""

    def enqueue(
        self,
        spec: QueueSpec[Payload],
        job: "Payload | NewJob[Payload] | Mapping[str, Any]",
        *,
        connection: CallerConnection | None = None,
    ) -> UUID | None:
        """Put one job on the queue.

        Args:
            spec: the queue.
            job: its payload, or a `NewJob` with more to say.
            connection: a psycopg or SQLAlchemy connection or an ORM session whose transaction the job joins: rolled back
                means never enqueued. None: a transaction of its own, committed on return.

        Returns:
            The job's id; None when its unique key or id belongs to a live job.

        Raises:
            InvalidPayload, InvalidInput: nothing was enqueued.
            UnknownQueue: the queue does not exist.
        """
        values = payloads.values(spec, job)
        executor = self.database.joined(connection)
        if executor.run("enqueue", {"queue": spec.name, **values}):
            return cast(UUID, values["id"])
        self.check_exists(spec.name, executor)
        return None

    def enqueue_many(
        self,
        spec: QueueSpec[Payload],
        jobs: "Iterable[Payload | NewJob[Payload] | Mapping[str, Any]]",
        *,
        connection: CallerConnection | None = None,
        sent_before: bool = False,
    ) -> Enqueued:
        """Put many jobs on the queue, all of them or, if one is refused, none.

        Args:
            spec: the queue.
            jobs: payloads or `NewJob`s; a generator is read in constant memory.
            connection: as for `enqueue`.
            sent_before: the jobs carry their own ids and may have been enqueued, and even finished, before: those are
                left out. Costs a look into the archive for each job.

        Raises:
            InvalidPayload, InvalidInput: the message names the row, counted from 0; nothing was enqueued.
            UnknownQueue: the queue does not exist.
        """
        if connection is None:
            with self.database.transaction() as transaction:
                return self._enqueue_chunks(transaction, spec, jobs, sent_before)
        with self.database.joined(connection).atomic() as joined:  # type: ignore[union-attr]
            return self._enqueue_chunks(joined, spec, jobs, sent_before)

    def _enqueue_chunks(
        self, executor: Executor, spec: QueueSpec[Any], jobs: Iterable[Any], sent_before: bool
    ) -> Enqueued:
        self.check_exists(spec.name, executor)
        sent = inserted = 0
        for chunk in payloads.chunks(jobs, _CHUNK):
            arrays = payloads.columns(spec, chunk, first_row=sent)
            rows = executor.run("enqueue_many", {"queue": spec.name, **arrays})
            sent += len(chunk)
            inserted += len(rows)
            if sent_before and rows:
                inserted -= len(executor.run("forget_finished", {"ids": [row[0] for row in rows]}))
        return Enqueued(inserted, sent - inserted)
