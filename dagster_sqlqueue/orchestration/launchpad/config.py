"""What people fill in: the launchpad shows these fields with their descriptions and defaults."""

from datetime import datetime
from typing import Any, Literal, TypeVar

import dagster as dg
from pydantic import Field, create_model

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import MAX_BUCKETS
from dagster_sqlqueue.queue.selection import moment_in_utc

LIMIT = 1_000
MOST_TASKS = 100

AnyState = Literal["any", "queued", "running", "held"]
EndedState = Literal["failed", "cancelled"]
DeletableState = Literal["failed", "cancelled", "succeeded", "queued", "held"]

_MOMENT = "2026-01-31T08:00:00Z, or with an offset such as +02:00"


class QueueConfig(dg.Config):
    """Which queue."""

    queue: str = Field(description="The queue's name.")


class ShowConfig(dg.Config):
    """Which job to show."""

    id: str = Field(description="The job's id, as tables, logs and `sqlqueue list` show it.")
    show_payloads: bool = Field(
        default=False,
        description="Show the payload and the result, too. Everybody who may look at this run sees them then; fields"
        " marked as sensitive are *** in any case.",
    )


class JobsConfig(QueueConfig):
    """Which jobs: some by their ids, those that meet every condition given, or all."""

    dry_run: bool = Field(
        default=True, description="Change nothing; say how many jobs it would be, and show the first of them."
    )
    ids: list[str] = Field(default=[], description="These jobs, by their ids; leave the conditions empty then.")
    tags: list[str] = Field(default=[], description="Condition: the job has all of these tags.")
    payload: dict[str, Any] = Field(
        default={}, description="Condition: the payload contains these fields with these values."
    )
    ordering_key: str | None = Field(default=None, description="Condition: the job has this ordering key.")
    error_contains: str | None = Field(
        default=None, description="Condition: the job's last error contains this text, in the same case."
    )
    since: str | None = Field(
        default=None,
        description=f"Condition: enqueued (of ended jobs: ended) at this moment or later: {_MOMENT}.",
    )
    before: str | None = Field(
        default=None, description=f"Condition: enqueued (of ended jobs: ended) before this moment: {_MOMENT}."
    )
    all: bool = Field(default=False, description="Every job that this is for; give neither ids nor conditions then.")
    limit: int = Field(
        default=LIMIT,
        description="The most jobs for one run, 1 to 10,000. The run says whether there are more; start it again then.",
    )
    show_payloads: bool = Field(
        default=False,
        description="Show payloads in the table. Everybody who may look at this run sees them then; fields marked as"
        " sensitive are *** in any case.",
    )


class RedriveConfig(JobsConfig):
    """Which dead letters to bring back."""

    state: EndedState = Field(default="failed", description="How the jobs ended: dead letters, or cancelled ones.")


class CancelConfig(JobsConfig):
    """Which jobs to cancel, and why."""

    state: AnyState = Field(default="any", description="Condition: jobs in this state only.")
    reason: str = Field(default="cancelled from the launchpad", description="Why; kept as the job's error.")


class HoldConfig(JobsConfig):
    """Which queued jobs to set aside, and why."""

    reason: str = Field(default="held from the launchpad", description="Why; kept as the job's error.")


class ReleaseConfig(JobsConfig):
    """Which held jobs to let go."""


class RescheduleConfig(JobsConfig):
    """Which queued jobs are to be due at another moment, and when."""

    until: str | None = Field(
        default=None, description=f"When they are to become due: {_MOMENT}. What has passed means now."
    )
    seconds: float | None = Field(default=None, description="Instead of until: so many seconds from now; 0 for now.")


class ReprioritiseConfig(JobsConfig):
    """Which jobs get another priority."""

    priority: int = Field(description="0 to 9, higher runs first.")
    state: AnyState = Field(default="any", description="Condition: jobs in this state only.")


class DeleteConfig(JobsConfig):
    """Which jobs to delete for good."""

    state: DeletableState = Field(
        default="failed",
        description="Jobs in this state only; of jobs named by their ids, any that does not run.",
    )


class PauseConfig(QueueConfig):
    """Which queue to pause."""

    until: str | None = Field(
        default=None, description=f"When it goes on by itself: {_MOMENT}. Not given: when it is resumed."
    )
    wait_seconds: float = Field(
        default=0.0,
        description="Wait until nothing of the queue runs any more, for so long at most, up to 3,600; 0 does not wait.",
    )


class ResumeConfig(QueueConfig):
    """Which queue to resume."""


class RebucketConfig(QueueConfig):
    """How many buckets a queue is to have."""

    buckets: int = Field(description=f"How many buckets from now on, 1 to {MAX_BUCKETS:,}. No job is moved.")
    dry_run: bool = Field(default=True, description="Change nothing; say what it would be.")


class TasksConfig(QueueConfig):
    """Which tasks of people, and who decides."""

    by: str = Field(description="Who decides this: your name. Kept in the job's history.")
    ids: list[str] = Field(
        default=[],
        description=f"The jobs' ids, up to {MOST_TASKS}: all of them or none. A dry run without ids shows those there are.",
    )
    revision: int | None = Field(
        default=None,
        description="For a single job: its task's revision when you looked at it; refused if somebody has decided since.",
    )
    dry_run: bool = Field(default=True, description="Change nothing; show the tasks, and what would be refused.")
    show_payloads: bool = Field(
        default=False,
        description="Show payloads and results in the table. Everybody who may look at this run sees them then; fields"
        " marked as sensitive are *** in any case.",
    )


class ApproveConfig(TasksConfig):
    """Which tasks to approve."""

    reason: str | None = Field(default=None, description="What there is to say; kept in the job's history.")


class RejectConfig(TasksConfig):
    """Which tasks to send back, and why."""

    reason: str = Field(description="Why; kept in the job's history.")
    reopen: bool = Field(default=False, description="Open them for anybody; else they go back to who did them.")


class AssignConfig(TasksConfig):
    """Whose tasks are to be."""

    to: str = Field(description="Whose they are to be.")
    reason: str | None = Field(default=None, description="Why; kept in the job's history.")


Configured = TypeVar("Configured", bound=dg.Config)


def bound(config: type[Configured], queues: tuple[str, ...]) -> type[Configured]:
    """The same config for these queues alone: a closed choice, and filled in where there is one."""
    if not queues or not issubclass(config, QueueConfig):
        return config
    choice: Any = Literal[queues]
    field = Field(default=queues[0] if len(queues) == 1 else ..., description="The queue.")
    return create_model(
        config.__name__, __base__=config, __module__=config.__module__, __doc__=config.__doc__, queue=(choice, field)
    )


def parsed_moment(name: str, text: str | None) -> datetime | None:
    """The moment that was filled in; None if none was.

    Raises:
        InvalidInput: it is no date and time with a zone.
    """
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(f"{name} is {text!r}, which is not a time; write it as 2026-01-31T08:00:00Z") from None
    if when.utcoffset() is None:
        raise InvalidInput(f"{name} is {text!r}, without a time zone; end it with Z for UTC, or an offset as +02:00")
    return moment_in_utc(name, when)
