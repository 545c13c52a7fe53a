"""A batch, and the transaction that holds a transactional one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import sql

from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark.batches.lease import Held
from dagster_sqlqueue.spark.batches.loss import lost


@dataclass(frozen=True, slots=True)
class Batch:
    """A sealed set of jobs, the same for every reader and every read. It can be pickled: what is sent to another
    process reads and, if it is leased, reports; it never publishes a transactional batch.

    Attributes:
        id: of the batch; jobs that it ended have it in the archive.
        key: what it is for.
        queue: whose jobs they are.
        token: its fence: a takeover raises it.
        job_count: how many jobs it holds.
        mode: leased, or transactional. May differ from what was asked for, see `seal`.
        sealed_at: the moment by the database's clock at which every job of the batch was due.
        snapshot: for `SET TRANSACTION SNAPSHOT` of readers of a transactional batch; None: a leased one is read as it
            is. It can be imported until the batch is published or given up.
        filter: what the jobs' payloads contain; empty: there was no filter.
        attempt: of the batch: how often its key was sealed or taken over since it was published last, 1 the first time.
    """

    id: UUID
    key: str
    queue: str
    token: int
    job_count: int
    mode: Mode
    sealed_at: datetime
    snapshot: str | None = None
    filter: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1
    held: Held | None = field(default=None, repr=False, compare=False)
    """The transaction of a transactional batch, in the process that sealed it."""

    @property
    def condition(self) -> str:
        """The batch's jobs, as an SQL condition on the columns of the view `live_job`, every value quoted.

        Of a transactional batch it holds under `snapshot` alone, as a REPEATABLE READ transaction imports it.
        """
        if self.snapshot is None:
            return f"batch_id = {_literal(str(self.id))} AND state = 'running'"
        parts = [
            f"queue = {_literal(self.queue)}",
            f"available_at <= {_literal(self.sealed_at.isoformat())}",
            "attempt < max_attempts",
        ]
        if self.filter:
            parts.append(f"payload @> CAST({_literal(json.dumps(dict(self.filter)))} AS jsonb)")
        return " AND ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the transaction, which is this process's alone."""
        return Batch, (
            self.id,
            self.key,
            self.queue,
            self.token,
            self.job_count,
            self.mode,
            self.sealed_at,
            self.snapshot,
            dict(self.filter),
            self.attempt,
        )


def held_by(batch: Batch) -> Held:
    """Return the transaction of a transactional batch.

    Raises:
        BatchLost: another process sealed it: its transaction is not here.
    """
    if batch.held is None:
        raise lost(batch.key, "a transactional batch can be changed in the process alone that sealed it")
    return batch.held


def cuts(queue: SqlQueue, batches: Sequence[Batch], step: int) -> list[UUID]:
    """Return where to cut a read of batches into parts of so many jobs: the id that each part begins with.

    Args:
        queue: where they were sealed.
        batches: leased ones, or one transactional one.
        step: jobs of a part.

    Raises:
        BatchLost: the batch is transactional, and its transaction is over, or not this process's.
    """
    if batches[0].mode is Mode.TRANSACTIONAL:
        return held_by(batches[0]).cuts(step)
    ids = [batch.id for batch in batches]
    return [row[0] for row in queue.database.run("spark_batch_cuts", {"batch_ids": ids, "step": step})]


def _literal(text: str) -> str:
    return sql.Literal(text).as_string(None)
