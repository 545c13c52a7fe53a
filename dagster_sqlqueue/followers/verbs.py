"""The verbs of followers that people call."""

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

import psycopg
import sqlalchemy as sa

from dagster_sqlqueue.enqueueing import check_connection
from dagster_sqlqueue.executors import CallerConnection, Executor
from dagster_sqlqueue.followers.following import drive, follow
from dagster_sqlqueue.followers.model import Callback, Following, called_back
from dagster_sqlqueue.queue import SqlQueue

T = TypeVar("T")


class Followers:
    """Who is told how jobs end.

    Args:
        queue: the queues of the schema.
    """

    def __init__(self, queue: SqlQueue) -> None:
        self.queue = queue
        self.database = queue.database

    def follow(self, job_id: UUID, *callbacks: Callback, connection: CallerConnection | None = None) -> bool:
        """Have callbacks put on their queues when a job has ended; if it has, they are put there at once.

        The same callback of the same job is put there once, however often this is said.

        Args:
            job_id: the job.
            callbacks: what to do.
            connection: as for `SqlQueue.enqueue`.

        Returns:
            Whether the end is still to come.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownQueue: a callback's queue does not exist. UnknownJob: the job is neither live nor in the archive.
                Nothing was changed.
        """
        check_connection(connection)
        rows = [called_back(callback, job_id, job_id) for callback in callbacks]
        done = self._run(rows, lambda executor: drive(follow(rows), executor), connection)
        return job_id in done.live

    def _run(self, rows: Sequence[Following], work: Callable[[Executor], T], connection: CallerConnection | None) -> T:
        try:
            if connection is None:
                return self.database.transact(work)
            with self.database.joined(connection).atomic() as joined:  # type: ignore[union-attr]
                return work(joined)
        except (psycopg.errors.ForeignKeyViolation, sa.exc.IntegrityError):
            for queue in sorted({row.queue for row in rows if row.queue is not None}):
                self.queue.check_exists(queue)
            raise
