"""What a task is, which steps it takes, and the rule that says what runs by itself. No I/O."""

import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model import outcome
from dagster_sqlqueue.model.numbers import is_number
from dagster_sqlqueue.payload.storable import unstorable_text

_NAME_LIMIT = 200
REASON_LIMIT = 10_000


class Stage(enum.StrEnum):
    """Where a task is; the last three are its ends."""

    OPEN = "open"
    """Anybody may take it."""
    ASSIGNED = "assigned"
    """One person does it."""
    IN_REVIEW = "in_review"
    """It is done, and has to be approved or rejected."""
    DONE = "done"
    """Its job succeeded."""
    GIVEN_BACK = "given_back"
    """Its job is in the automatic line again."""
    WITHDRAWN = "withdrawn"
    """Its job was released, cancelled or completed without the task."""


ENDS = (Stage.DONE, Stage.GIVEN_BACK, Stage.WITHDRAWN)


class Action(enum.StrEnum):
    """What can happen to a task."""

    HAND_OVER = "hand over"
    """A queued job was taken out of the automatic line."""
    ADOPT = "adopt"
    """A job that its handler, or an operator, had held became a task."""
    TAKE = "take"
    ASSIGN = "assign"
    UNASSIGN = "unassign"
    HOLD = "hold"
    RESUME = "resume"
    RESCHEDULE = "reschedule"
    SUBMIT = "submit"
    APPROVE = "approve"
    REJECT = "reject"
    GIVE_BACK = "give back"
    WITHDRAW = "withdraw"


@dataclass(frozen=True, slots=True)
class TaskState:
    """What is so of a task, whether the table says it or its history.

    Attributes:
        stage: where it is.
        review: whether what was done has to be approved.
        four_eyes: whether by another person than the one who did it.
        on_hold: held without a date: it cannot be taken or submitted before it is resumed.
        available_at: since when, or from when on, it is offered.
        revision: the number of its last event.
        assignee: whose it is; None while it is open.
        done_by: who did it; None unless it is done or in review.
        result: JSON text; None if there is none.
    """

    stage: Stage
    review: bool
    four_eyes: bool
    on_hold: bool
    available_at: datetime
    revision: int
    assignee: str | None = None
    done_by: str | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A job that people do.

    Attributes:
        id: the job's.
        queue: the job's.
        state: where the task is.
        opened_at: since when it is people's.
        payload: the job's, as JSON text; None if the job is not live any more.
        held: whether the job is still held. If not, it was decided about without the task, which is void.
    """

    id: UUID
    queue: str
    state: TaskState
    opened_at: datetime
    payload: str | None
    held: bool


def task_of(row: Sequence[Any]) -> Task:
    """The task in a row of `tasks_by_id.sql`."""
    (id, queue, stage, assignee, done_by, result, review, four_eyes, on_hold, available_at, opened_at, revision) = row[
        :12
    ]
    job_state, payload = row[12:14]
    found = TaskState(
        Stage(stage), review, four_eyes, on_hold, available_at, revision, assignee, done_by, same_text(result)
    )
    return Task(id, queue, found, opened_at, payload, job_state == "held")


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One step of a job while people had it.

    Attributes:
        job_id: whose.
        no: 1, 2, 3 … within the job.
        queue: the job's.
        at: when, by the database's clock.
        actor: who.
        action: what.
        reason: why; None if not given.
        details: what the step brought, by name.
    """

    job_id: UUID
    no: int
    queue: str
    at: datetime
    actor: str
    action: Action
    reason: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def event_of(row: Sequence[Any]) -> JobEvent:
    """The event in a row of `job_history.sql`."""
    job_id, no, queue, at, actor, action, reason, details = row
    return JobEvent(job_id, no, queue, at, actor, Action(action), reason, json.loads(details))


@dataclass(frozen=True, slots=True)
class AutomationRule:
    """How much of a queue runs by itself.

    Attributes:
        queue: whose rule it is.
        automatic_percent: of its jobs, 0.0 to 100.0. Which ones follows from their ids: as it grows, jobs only move from
            people to machines.
        always_people: JSON text; a job whose payload contains it is people's whatever the percentage is. None: no job.
        review: whether what people did has to be approved.
        four_eyes: whether another person has to approve it.
    """

    queue: str
    automatic_percent: float = 100.0
    always_people: str | None = None
    review: bool = False
    four_eyes: bool = False

    def covers(self, id: UUID) -> bool:
        """Whether the job with this id is automatic as far as the percentage says."""
        return point(id) < self.automatic_percent


def point(id: UUID) -> float:
    """Where a job stands between 0 and 100, for ever: ids that clients make in a row are spread evenly."""
    digest = hashlib.sha256(id.bytes).digest()
    return int.from_bytes(digest[:6], "big") / 2**48 * 100


def check_percent(value: object) -> float:
    """The percentage, if a rule may have it.

    Raises:
        InvalidInput: it may not.
    """
    if not is_number(value, 0, 100):
        raise InvalidInput(f"automatic_percent is {value!r}; it must be a number from 0 to 100")
    return float(value)


def check_name(what: str, name: object) -> str:
    """Return the name of a person, checked.

    Raises:
        InvalidInput: it is empty, too long, has spaces around it, or cannot be shown.
    """
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_LIMIT or name != name.strip() or not name.isprintable():
        raise InvalidInput(
            f"{what} is {name!r:.220}; give the name of a person: 1 to {_NAME_LIMIT} printable characters, without spaces"
            " around them"
        )
    return name


def check_reason(reason: object, *, needed: bool = False) -> str | None:
    """Return the reason of a step, checked; None if not given.

    Raises:
        InvalidInput: it cannot, or there has to be one.
    """
    if reason is None and not needed:
        return None
    said = outcome.check_reason(reason)
    if len(said) > REASON_LIMIT:
        raise InvalidInput(f"the reason has {len(said):,} characters; the limit is {REASON_LIMIT:,}")
    if problem := unstorable_text(said):
        raise InvalidInput(f"the reason {problem}")
    return said


def same_person(one: str | None, other: str) -> bool:
    """Return whether two names are the same person's: upper and lower case make no difference."""
    return one is not None and one.casefold() == other.casefold()


def same_text(result: str | None) -> str | None:
    """A JSON text written in one way, so that equal values are equal texts."""
    return None if result is None else json.dumps(json.loads(result), sort_keys=True)
