"""Callbacks, their payloads and the rows of followers. No I/O."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import BaseModel, JsonValue

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.ids import derived_id
from dagster_sqlqueue.model.job import ArchiveState, NewJob
from dagster_sqlqueue.model.queue import QueueSpec, check_queue_name
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.queue import validation

ALL_STATES = tuple(ArchiveState)
_ANY = QueueSpec("callbacks", serialization.AnyObject)
_CONTEXT_BYTES = 100_000


class JobEnded(BaseModel):
    """The payload of a callback: how a job ended.

    Attributes:
        job_id: which job.
        queue: its queue.
        state: `succeeded`, `failed` or `cancelled`.
        result: what its handler returned with `Done`; None if nothing.
        error: of the last attempt that failed, or why it was cancelled.
        attempts: how many there were.
        finished_at: when it ended, by the database's clock.
        unique_key: of the job.
        submitted_id: the id under which the follower sent it; not the job's where it was merged into another one.
        context: what was given with the `Callback`.
        withheld: whether result and error are left out: a user who may not read them followed the job after its end.
    """

    job_id: UUID
    queue: str
    state: ArchiveState
    result: JsonValue
    error: str | None
    attempts: int
    finished_at: datetime
    unique_key: str | None
    submitted_id: UUID
    context: JsonValue
    withheld: bool = False


class GroupEnded(BaseModel):
    """The payload of a group's callback: how many of its jobs ended how.

    Attributes:
        group_id: which group.
        members: how many jobs it had.
        succeeded, failed, cancelled: how many of them ended so; together they are the members.
        created_at, ended_at: when it was made, and when it was closed and its last job had ended.
        context: what was given with the `Callback`.
    """

    group_id: UUID
    members: int
    succeeded: int
    failed: int
    cancelled: int
    created_at: datetime
    ended_at: datetime
    context: JsonValue


@dataclass(frozen=True, slots=True)
class Callback:
    """A job that is enqueued when another one has ended, in the transaction that ends it.

    Args:
        queue: where it is enqueued, by name or as declared; must exist. Its payload is a `JobEnded`, or a `GroupEnded`.
        states: the ends that enqueue it: `succeeded`, `failed`, `cancelled`. A group's is always enqueued.
        context: anything that JSON has; the payload has it too.
        priority: of the callback, 0 to 9, higher first.
        ordering_key: of the callback.

    Raises:
        InvalidInput: a value is not usable.
    """

    queue: "QueueSpec[Any] | str"
    states: Collection[str] = ALL_STATES
    context: Any = field(default=None, hash=False)
    priority: int = 0
    ordering_key: str | None = None

    def __post_init__(self) -> None:
        name = self.queue.name if isinstance(self.queue, QueueSpec) else check_queue_name(self.queue)
        object.__setattr__(self, "queue", name)
        object.__setattr__(self, "states", checked_states(self.states))
        try:
            validation.values(_ANY, NewJob({}, priority=self.priority, ordering_key=self.ordering_key))
        except InvalidInput as error:
            raise InvalidInput(f"the callback's {serialization.without_row(error)}") from None
        _context_text(self.context)

    @property
    def context_text(self) -> str | None:
        """The context as JSON; None for none."""
        return _context_text(self.context)


def checked_states(states: object) -> tuple[str, ...]:
    """The archive states, each once and in their order.

    Raises:
        InvalidInput: they are none, or there is another among them; the message names it.
    """
    known = ", ".join(repr(str(state)) for state in ArchiveState)
    if isinstance(states, str) or not isinstance(states, Collection) or not states:
        raise InvalidInput(f"states is {states!r}; give at least one of {known}, in a list")
    for state in states:
        if state not in list(ArchiveState):
            raise InvalidInput(f"states holds {state!r}; a job ends as one of {known}")
    return tuple(str(state) for state in ArchiveState if state in states)


def _context_text(context: object) -> str | None:
    if context is None:
        return None
    text = serialization.json_text("callback's context", context)
    if len(text) > _CONTEXT_BYTES:
        raise InvalidInput(
            f"the callback's context has {len(text):,} bytes, the limit is {_CONTEXT_BYTES:,}; store the data elsewhere and"
            " give a reference to it"
        )
    return text


class FollowerRow(NamedTuple):
    """A new row of the table `follower`: which job is followed, and how its end is notified.

    Attributes:
        id: of the follower; a follower that is sent again has the same one.
        job_id: the job.
        states: the ends of which the follower is notified.
        queue: where a callback is enqueued; None: nowhere.
        priority, ordering_key, context: of the callback.
        group_id: the group of which the job becomes a member; None: of none.
        notify: whether the end is notified, with the job's id, to connections that listen to the ends of jobs.
        submitted_id: the id under which the producer sent the job; None: its own.
    """

    id: UUID
    job_id: UUID
    states: Sequence[str] = ALL_STATES
    queue: str | None = None
    priority: int = 0
    ordering_key: str | None = None
    context: str | None = None
    group_id: UUID | None = None
    notify: bool = False
    submitted_id: UUID | None = None


def called_back(callback: Callback, job_id: UUID, submission: UUID) -> FollowerRow:
    """Return the follower that enqueues a callback.

    Args:
        callback: what to do.
        job_id: the job whose end it is about.
        submission: what it belongs to, the job as its submitter sent it: each submission has each callback once.
    """
    queue = str(callback.queue)
    parts = [queue, *callback.states, callback.priority, callback.ordering_key, callback.context_text]
    return FollowerRow(
        derived_id(submission, json.dumps(parts)),
        job_id,
        tuple(callback.states),
        queue,
        callback.priority,
        callback.ordering_key,
        callback.context_text,
        submitted_id=submission,
    )


def member(group_id: UUID, job_id: UUID) -> FollowerRow:
    """Return the follower that makes a job a member of a group."""
    return FollowerRow(derived_id(job_id, f"group {group_id}"), job_id, group_id=group_id)
