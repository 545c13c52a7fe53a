"""The configs of the launchpad's jobs: the launchpad shows these fields with their descriptions and defaults."""

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
    """The queue."""

    queue: str = Field(default="", description="The queue's name. Empty: a dry run lists the queues.")
    dry_run: bool = Field(default=True, description="Change nothing; report what the run would change.")


class ShowConfig(dg.Config):
    """The job to show."""

    id: str | None = Field(
        default=None,
        description="The job's id, as tables, logs and `sqlqueue list` show it. Unset: the latest dead letters are listed.",
    )
    show_payloads: bool = Field(
        default=False,
        description="Show the payload and the result, too. All users who can open this run see them then; fields"
        " marked as sensitive are *** in any case.",
    )


class JobsConfig(QueueConfig):
    """A selection of jobs: by their ids, by conditions that must all hold, or all. Without one, a dry run lists jobs."""

    dry_run: bool = Field(
        default=True,
        description="Change nothing; count the jobs that the run would change, and show the first of them. Without a"
        " selection: show the first jobs that could be selected.",
    )
    ids: list[str] = Field(default=[], description="The ids of the jobs; leave the conditions empty then.")
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
    all: bool = Field(
        default=False, description="All jobs that the verb applies to; give neither ids nor conditions then."
    )
    limit: int = Field(
        default=LIMIT,
        description="The most jobs for one run, 1 to 10,000. The run reports whether there are more; launch it again then.",
    )
    show_payloads: bool = Field(
        default=False,
        description="Show payloads in the table. All users who can open this run see them then; fields marked as sensitive"
        " are *** in any case.",
    )


class RedriveConfig(JobsConfig):
    """The dead letters to redrive."""

    state: EndedState = Field(
        default="failed", description="The state of the jobs: failed (dead letters), or cancelled."
    )


class CancelConfig(JobsConfig):
    """The jobs to cancel, and the reason."""

    state: AnyState = Field(default="any", description="Condition: jobs in this state only.")
    reason: str = Field(default="cancelled from the launchpad", description="Reason; stored as the job's error.")


class HoldConfig(JobsConfig):
    """The queued jobs to hold, and the reason."""

    reason: str = Field(default="held from the launchpad", description="Reason; stored as the job's error.")


class ReleaseConfig(JobsConfig):
    """The held jobs to release."""


class RescheduleConfig(JobsConfig):
    """The queued jobs to reschedule, and the moment."""

    until: str | None = Field(
        default=None, description=f"The moment at which the jobs become due: {_MOMENT}. A past one means now."
    )
    seconds: float | None = Field(default=None, description="Instead of until: the seconds from now; 0 for now.")


class ReprioritiseConfig(JobsConfig):
    """The jobs to reprioritise, and the priority."""

    priority: int | None = Field(
        default=None, description="0 to 9, higher runs first. Only a dry run without a selection needs none."
    )
    state: AnyState = Field(default="any", description="Condition: jobs in this state only.")


class DeleteConfig(JobsConfig):
    """The jobs to delete for good."""

    state: DeletableState = Field(
        default="failed",
        description="Jobs in this state only; of jobs named by their ids, any that does not run.",
    )


class PauseConfig(QueueConfig):
    """The queue to pause."""

    until: str | None = Field(
        default=None, description=f"When the queue resumes by itself: {_MOMENT}. Unset: only when resumed."
    )
    wait_seconds: float = Field(
        default=0.0,
        description="How long to wait until no job of the queue runs, up to 3,600; 0 does not wait.",
    )


class ResumeConfig(QueueConfig):
    """The queue to resume."""


class RebucketConfig(QueueConfig):
    """The queue, and its new number of buckets."""

    buckets: int | None = Field(
        default=None,
        description=f"The new number of buckets, 1 to {MAX_BUCKETS:,}; no job moves. Unset: a dry run shows the number.",
    )


class TasksConfig(QueueConfig):
    """The tasks of people, and the operator who decides."""

    by: str | None = Field(
        default=None, description="Your name; kept in the job's history. Only a dry run without ids needs none."
    )
    ids: list[str] = Field(
        default=[],
        description=f"The jobs' ids, up to {MOST_TASKS}: all of them or none. A dry run without ids lists the tasks.",
    )
    revision: int | None = Field(
        default=None,
        description="For a single job: the revision of its task that you saw; the run refuses if it has changed since.",
    )
    dry_run: bool = Field(default=True, description="Change nothing; show the tasks, and what would be refused.")
    show_payloads: bool = Field(
        default=False,
        description="Show payloads and results in the table. All users who can open this run see them then; fields"
        " marked as sensitive are *** in any case.",
    )


class ApproveConfig(TasksConfig):
    """The tasks to approve."""

    reason: str | None = Field(default=None, description="A note; kept in the job's history.")


class RejectConfig(TasksConfig):
    """The tasks to reject, and the reason."""

    reason: str | None = Field(
        default=None, description="Reason; recorded in the job's history. Only a dry run without ids needs none."
    )
    reopen: bool = Field(
        default=False, description="Open the tasks for all operators; else they return to the ones who did them."
    )


class AssignConfig(TasksConfig):
    """The tasks to assign, and the assignee."""

    to: str | None = Field(
        default=None, description="The new assignee of the tasks. Only a dry run without ids needs none."
    )
    reason: str | None = Field(default=None, description="Reason; recorded in the job's history.")


Configured = TypeVar("Configured", bound=dg.Config)


def bound(config: type[Configured], queues: tuple[str, ...]) -> type[Configured]:
    """Restrict a config to these queues: a closed choice, and filled in if there is one."""
    if not queues or not issubclass(config, QueueConfig):
        return config
    one = len(queues) == 1
    # Dagster knows no optional choice.
    choice: Any = Literal[queues] if one else Literal["", *queues]
    field = Field(
        default=queues[0] if one else "",
        description=f"The queue.{'' if one else ' Empty: a dry run lists the queues.'}",
    )
    return create_model(
        config.__name__, __base__=config, __module__=config.__module__, __doc__=config.__doc__, queue=(choice, field)
    )


def names_no_queue(config: object) -> bool:
    """Whether a dry run is to be about a queue, and names none."""
    return isinstance(config, QueueConfig) and not config.queue and config.dry_run


def name_of(config: QueueConfig) -> str:
    """The name of the config's queue.

    Raises:
        InvalidInput: there is none.
    """
    if not config.queue:
        raise InvalidInput("queue is empty; name the queue, as a dry run without one lists them")
    return config.queue


def parsed_moment(name: str, text: str | None) -> datetime | None:
    """Parse a moment of the config; None: none was given.

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
