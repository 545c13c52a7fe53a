"""Groups of jobs: one callback, enqueued once the last of them has ended."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from dagster_sqlqueue.db.executors import CallerConnection, check_connection
from dagster_sqlqueue.db.steps import Statement, Steps, adrive, drive
from dagster_sqlqueue.errors import InvalidInput, UnknownGroup
from dagster_sqlqueue.followers.base import FollowerVerbs
from dagster_sqlqueue.followers.follow import follow
from dagster_sqlqueue.followers.insert import all_known, joining
from dagster_sqlqueue.followers.model import Callback, checked_states, member
from dagster_sqlqueue.model.ids import uuid_of
from dagster_sqlqueue.model.numbers import is_whole

_MOST_SHOWN = 10_000
_NIL = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Group:
    """A group of jobs.

    Attributes:
        id: of the group.
        queue: where its callback goes; None: it has none.
        context: of the callback.
        members: how many jobs it has.
        pending: how many of them have not ended.
        succeeded, failed, cancelled: how many ended so. A job that was brought back after its end counts as it ended first.
        created_at: when it was opened.
        closed_at: since when nothing is added to it; None: it is open.
        ended_at: when it was closed and the last of its jobs had ended; None: it has not ended.
    """

    id: UUID
    queue: str | None
    context: Any
    members: int
    pending: int
    succeeded: int
    failed: int
    cancelled: int
    created_at: datetime
    closed_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Member:
    """A job of a group, and how it ended; None: it has not."""

    job_id: UUID
    state: str | None


class Groups(FollowerVerbs):
    """The groups of one schema.

    Args:
        queue: the queues of the schema.
    """

    def open(
        self, callback: Callback | None = None, *, id: UUID | None = None, connection: CallerConnection | None = None
    ) -> UUID:
        """Open a group. Jobs come into it by `Followers.enqueue(…, group=…)`, or by `add`, until it is closed.

        Args:
            callback: what is enqueued when the group has ended; its payload is a `GroupEnded`. None: no callback.
            id: the group's id, to be able to say the same again; made if None.
            connection: as for `SqlQueue.enqueue`.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownQueue: the callback's queue does not exist; nothing was opened.
        """
        check_connection(connection, "aopen")
        own, queues, opening = _open(callback, id)
        self._within(lambda executor: drive(opening(), executor), connection, queues)
        return own

    def add(self, group: UUID, jobs: Iterable[UUID], *, connection: CallerConnection | None = None) -> None:
        """Make jobs members of an open group; those that have ended are counted at once. Adding one again changes nothing.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownGroup, GroupClosed, UnknownJob: nothing was added.
        """
        check_connection(connection, "aadd")
        ids = _ids(group, jobs)
        self._within(lambda executor: drive(_add(group, ids), executor), connection)

    def close(self, group: UUID, *, connection: CallerConnection | None = None) -> None:
        """Close a group: nothing is added to it any more, its callback is enqueued when its last job has ended; at once, if
        all have, or if it has none. It is closed when the transaction commits, which waits for those that are adding to it.
        A closed one stays so.

        Raises:
            InvalidInput: this is no id.
            UnknownGroup: there is none of that id.
        """
        check_connection(connection, "aclose")
        id = _id(group)
        self._within(lambda executor: drive(_close(id), executor), connection)

    async def aopen(
        self,
        callback: Callback | None = None,
        *,
        id: UUID | None = None,
        connection: "psycopg.AsyncConnection[Any]",
    ) -> UUID:
        """`open` in the transaction of an asynchronous psycopg connection.

        Raises:
            InvalidInput, UnknownQueue: as for `open`.
        """
        transaction = self.database.awaited(connection)
        own, queues, opening = _open(callback, id)
        async with self._ablock(transaction, queues):
            await adrive(opening(), transaction)
        return own

    async def aadd(self, group: UUID, jobs: Iterable[UUID], *, connection: "psycopg.AsyncConnection[Any]") -> None:
        """`add` in the transaction of an asynchronous psycopg connection.

        Raises:
            InvalidInput, UnknownGroup, GroupClosed, UnknownJob: as for `add`.
        """
        transaction = self.database.awaited(connection)
        ids = _ids(group, jobs)
        async with self._ablock(transaction, ()):
            await adrive(_add(group, ids), transaction)

    async def aclose(self, group: UUID, *, connection: "psycopg.AsyncConnection[Any]") -> None:
        """`close` in the transaction of an asynchronous psycopg connection.

        Raises:
            InvalidInput: this is no id.
            UnknownGroup: there is none of that id.
        """
        transaction = self.database.awaited(connection)
        id = _id(group)
        async with self._ablock(transaction, ()):
            await adrive(_close(id), transaction)

    def group(self, id: UUID) -> Group:
        """A group as it is now.

        Raises:
            InvalidInput: this is no id.
            UnknownGroup: there is none of that id.
        """
        rows = self.database.run("group", {"id": _id(id)})
        if not rows:
            raise _unknown(id)
        return _group_of(rows[0])

    def groups(self, limit: int = 50) -> list[Group]:
        """The latest groups, the latest first.

        Args:
            limit: how many, 1 to 10,000.

        Raises:
            InvalidInput: the limit is out of range.
        """
        return [_group_of(row) for row in self.database.run("groups", {"limit": _limited(limit)})]

    def members(
        self, group: UUID, *, states: Iterable[str] | None = None, after: UUID = _NIL, limit: int = 1_000
    ) -> list[Member]:
        """The jobs of a group, in the order of their ids.

        Args:
            group: which.
            states: only those that ended so: `succeeded`, `failed`, `cancelled`; None: all.
            after: only those whose ids come after this one, to go on from where the last call ended.
            limit: how many, 1 to 10,000.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownGroup: there is none of that id.
        """
        wanted = None if states is None else list(checked_states(list(states)))
        parameters = {"id": _id(group), "states": wanted, "after": _id(after), "limit": _limited(limit)}
        rows = self.database.run("group_members", parameters)
        if not rows:
            self.group(group)
        return [Member(*row) for row in rows]


def _open(callback: object, id: object) -> tuple[UUID, list[str], Callable[[], Steps[None]]]:
    """Return the group's id, the callback's queue, and the steps that open it."""
    if callback is not None and not isinstance(callback, Callback):
        raise InvalidInput(f"callback is a {type(callback).__name__}; give a Callback(queue, …), or None")
    if id is not None and not isinstance(id, UUID):
        raise InvalidInput(f"id is {id!r}; it must be a uuid.UUID")
    own = id or uuid7()
    parameters = {
        "id": own,
        "queue": None if callback is None else str(callback.queue),
        "priority": 0 if callback is None else callback.priority,
        "ordering_key": None if callback is None else callback.ordering_key,
        "context": None if callback is None else callback.context_text,
    }

    def opening() -> Steps[None]:
        yield Statement("group_open", parameters)

    return own, [] if callback is None else [str(callback.queue)], opening


def _close(group: UUID) -> Steps[None]:
    if not (yield Statement("group_close", {"id": group})):
        raise _unknown(group)


def _id(given: object) -> UUID:
    """The id, also if its text was given."""
    id = uuid_of(given)
    if id is None:
        raise InvalidInput(f"{given!r:.100} is no id; give a uuid.UUID")
    return id


def _ids(group: UUID, jobs: Iterable[UUID]) -> list[UUID]:
    if isinstance(jobs, UUID | str):
        raise InvalidInput(f"{jobs!r:.100} is not several ids; give a list of them")
    ids = list(jobs)
    for given in (group, *ids):
        if not isinstance(given, UUID):
            raise InvalidInput(f"{given!r} is no id; give a uuid.UUID")
    return ids


def _add(group: UUID, jobs: Sequence[UUID]) -> Steps[None]:
    closed = yield from joining(group)
    rows = [member(group, job_id) for job_id in dict.fromkeys(jobs)]
    if closed:
        yield from all_known(group, rows)
    elif rows:
        yield from follow(rows)


def _limited(limit: int) -> int:
    if not is_whole(limit, 1, _MOST_SHOWN):
        raise InvalidInput(f"limit is {limit!r}; it must be 1 to {_MOST_SHOWN:,}")
    return limit


def _group_of(row: Sequence[Any]) -> Group:
    id, queue, context, *counts_and_moments = row
    return Group(id, queue, None if context is None else json.loads(context), *counts_and_moments)


def _unknown(group: UUID) -> UnknownGroup:
    return UnknownGroup(
        f"there is no group {group}; it may have been removed: groups are kept for 30 days after their end"
    )
