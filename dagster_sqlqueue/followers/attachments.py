"""Follow jobs that exist already, and list their followers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from dagster_sqlqueue.db.executors import CallerConnection, check_connection
from dagster_sqlqueue.db.steps import adrive, drive
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.followers.base import FollowerVerbs
from dagster_sqlqueue.followers.follow import follow
from dagster_sqlqueue.followers.insert import queues_of, wishes_of
from dagster_sqlqueue.followers.model import Callback, FollowerRow, called_back
from dagster_sqlqueue.queue.selection import job_id as checked_id


@dataclass(frozen=True, slots=True)
class Follower:
    """A follower of a job.

    Attributes:
        id: of the follower.
        states: the ends of which it is notified.
        queue: where the callback goes; None: there is none.
        group_id: the group that the job is a member of; None: it is none's.
        notify: whether the end is notified to a connection that waits.
        created_at: since when.
    """

    id: UUID
    states: Sequence[str]
    queue: str | None
    group_id: UUID | None
    notify: bool
    created_at: datetime


class AttachmentVerbs(FollowerVerbs):
    """How jobs that are there are followed."""

    def follow(
        self, job_id: UUID, callbacks: Iterable[Callback] | Callback, *, connection: CallerConnection | None = None
    ) -> bool:
        """Have callbacks enqueued when a job has ended; if it has, they are enqueued at once.

        The same callback of the same job is enqueued once, however often this is called.

        Args:
            job_id: the job.
            callbacks: what to do.
            connection: as for `enqueue`.

        Returns:
            Whether the end is still to come.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownQueue: a callback's queue does not exist; nothing was changed.
            UnknownJob: the job is neither live nor in the archive; nothing was changed.
        """
        check_connection(connection, "afollow")
        rows, queues = _rows(job_id, callbacks)
        return job_id in self._within(lambda executor: drive(follow(rows), executor), connection, queues).live

    async def afollow(
        self,
        job_id: UUID,
        callbacks: Iterable[Callback] | Callback,
        *,
        connection: "psycopg.AsyncConnection[Any]",
    ) -> bool:
        """`follow` in the transaction of an asynchronous psycopg connection.

        Args:
            job_id: as for `follow`.
            callbacks: as for `follow`.
            connection: as for `aenqueue`.

        Returns:
            Whether the end is still to come.

        Raises:
            InvalidInput, UnknownQueue, UnknownJob: as for `follow`.
        """
        rows, queues = _rows(job_id, callbacks)
        transaction = self.database.awaited(connection)
        async with self._ablock(transaction, queues):
            done = await adrive(follow(rows), transaction)
        return job_id in done.live

    def of(self, job_id: UUID) -> list[Follower]:
        """Who follows a live job, and of which groups it is a member.

        Raises:
            InvalidInput: this is no job id.
        """
        return [Follower(*row) for row in self.database.run("followers_of", {"id": checked_id(job_id)})]


def _rows(job_id: UUID, callbacks: Iterable[Callback] | Callback) -> tuple[list[FollowerRow], list[str]]:
    wishes = wishes_of(callbacks, None)
    if not isinstance(job_id, UUID):
        raise InvalidInput(f"the job is {job_id!r}; give its id, a uuid.UUID")
    if not wishes.callbacks:
        raise InvalidInput("there is no callback; give at least one")
    return [called_back(callback, job_id, job_id) for callback in wishes.callbacks], queues_of(wishes)
