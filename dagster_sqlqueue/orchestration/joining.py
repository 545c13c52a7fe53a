"""Fan-out through the queue: a batch of jobs enqueued as one group, worked off by whoever consumes the queue, and joined.

A mapped step for each of a thousand things costs minutes of Dagster's own time; a job for each costs a row.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import dagster as dg
from pydantic import Field

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.followers import Callback, Followers, Group, GroupEnded, Groups
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.orchestration.repeating import StepIds, each_job, ids_of
from dagster_sqlqueue.orchestration.resource import SqlQueueResource
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.results import JobOutcome, Results
from dagster_sqlqueue.schema import migrations

GROUP_TAG = "sqlqueue/group"
"""On each run that joins a group: the group's id."""


@dataclass(frozen=True, slots=True)
class EnqueuedGroup:
    """A batch that was enqueued as one group, as it goes from op to op.

    Attributes:
        id: of the group, and what to wait for.
        queue: where its jobs are.
        enqueued: how many jobs were put there by this call.
        merged: how many joined a live job that had their unique key.
        repeated: the batch had been enqueued before, by an earlier attempt of the step or the run; this call added nothing.
    """

    id: UUID
    queue: str
    enqueued: int
    merged: int
    repeated: bool


class GroupConfig(dg.Config):
    """A group that has ended, for the ops and assets of the run that joins it; the sensor fills it in."""

    group_id: str = Field(description="The group.")
    members: int = Field(description="How many jobs it had.")
    succeeded: int = Field(description="How many of them succeeded.")
    failed: int = Field(description="How many of them went to the dead letter.")
    cancelled: int = Field(description="How many of them were cancelled.")
    context: Any = Field(default=None, description="What was said about the group when it was enqueued.")

    @classmethod
    def of(cls, ended: GroupEnded) -> "GroupConfig":
        """The config for a group."""
        return cls(
            group_id=str(ended.group_id),
            members=ended.members,
            succeeded=ended.succeeded,
            failed=ended.failed,
            cancelled=ended.cancelled,
            context=ended.context,
        )


def enqueue_group(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    queue: SqlQueue,
    spec: QueueSpec[Payload],
    jobs: object,
    *,
    joined_by: QueueSpec[GroupEnded] | str | None = None,
    about: Any = None,
    part: str = "",
    on_conflict: Literal["ignore", "merge"] = "merge",
) -> EnqueuedGroup:
    """Put a batch on a queue as one group, in one transaction. An attempt of the same step that has done so before, in this
    run or in one that this one retries or re-executes, is noticed: then nothing is added.

    Args:
        context: of the op or asset; the group's id comes from its root run and its step.
        queue: where the queues are.
        spec: the queue of the jobs.
        jobs: payloads or `NewJob`s in anything iterable, or the rows of a table; a generator is read in constant memory.
        joined_by: the queue that is told when the last of them has ended, the one of `build_group_sensor`; None: nobody is
            told, and the group can be waited for.
        about: anything that JSON has; whoever joins the group has it too.
        part: tells several groups of one step apart.
        on_conflict: what becomes of a job whose unique key a live job has: `merge` makes that one a member, `ignore` leaves
            the job out.

    Raises:
        InvalidPayload, InvalidInput, UnknownQueue: nothing was enqueued.
    """
    ids = ids_of(context, "group", part)
    callback = None if joined_by is None else Callback(joined_by, context=about)
    return _enqueue(queue, spec, ids, each_job(jobs), callback, on_conflict)


def build_group_op(
    spec: QueueSpec[Any], *, joined_by: QueueSpec[GroupEnded] | str | None = None, name: str | None = None
) -> dg.OpDefinition:
    """`enqueue_group` as an op: its input `jobs` is the batch, its output an `EnqueuedGroup`.

    Args:
        spec: the queue of the jobs.
        joined_by: the queue that is told when the last of them has ended.
        name: of the op; None: `enqueue_group_of_<queue>`.
    """

    @dg.op(
        name=name or f"enqueue_group_of_{spec.name}",
        description=f"Puts a batch of jobs on the queue {spec.name!r}, as one group.",
        out=dg.Out(EnqueuedGroup, description="The group."),
        tags={"kind": "sqlqueue"},
    )
    def enqueue(context: dg.OpExecutionContext, sqlqueue: SqlQueueResource, jobs: Any) -> dg.Output[EnqueuedGroup]:
        group = enqueue_group(context, sqlqueue.queue, spec, jobs, joined_by=joined_by)
        figures: dict[str, Any] = {
            "group": str(group.id),
            "enqueued": group.enqueued,
            "merged": group.merged,
            "repeated": group.repeated,
        }
        return dg.Output(group, metadata=figures)

    return enqueue


def group_results(
    queue: SqlQueue,
    group: EnqueuedGroup | Group | UUID | str,
    *,
    states: Iterable[str] | None = None,
    page: int = 1_000,
) -> Iterator[list[JobOutcome]]:
    """How the jobs of a group ended, with their results and errors, in pages: only one page is in memory at a time.

    Args:
        queue: where the queues are.
        group: which, or its id.
        states: only those that ended so: `succeeded`, `failed`, `cancelled`; None: all.
        page: how many jobs a page has at most, 1 to 10,000.

    Raises:
        InvalidInput: an argument is not usable.
        UnknownGroup: there is none of that id.
        UnknownJob: a job was trimmed since; its queue keeps ended jobs for too short a time.
    """
    id = group_id(group)
    wanted = None if states is None else list(states)
    groups = Groups(queue)
    with Results(queue, listen=False) as results:
        after = UUID(int=0)
        while members := groups.members(id, states=wanted, after=after, limit=page):
            yield list(results.outcomes(member.job_id for member in members).values())
            after = members[-1].job_id


def group_of_run(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> UUID:
    """The group that a run was started to join, by `build_group_sensor`.

    Raises:
        InvalidInput: the run joins none.
    """
    tag = context.run.tags.get(GROUP_TAG)
    if tag is None:
        raise InvalidInput(
            f"the run has no tag {GROUP_TAG!r}: it was not started by a group's sensor. To join a group by hand, give the"
            " run that tag with the group's id"
        )
    return group_id(tag)


def group_id(given: object) -> UUID:
    """The id of a group, however it is given.

    Raises:
        InvalidInput: it is none.
    """
    if isinstance(given, EnqueuedGroup | Group):
        return given.id
    try:
        return given if isinstance(given, UUID) else UUID(str(given))
    except ValueError:
        raise InvalidInput(f"{given!r:.100} is no group; give the EnqueuedGroup, or the group's id") from None


def _enqueue(
    queue: SqlQueue,
    spec: QueueSpec[Any],
    ids: StepIds,
    jobs: Iterable[Any],
    callback: Callback | None,
    on_conflict: Literal["ignore", "merge"],
) -> EnqueuedGroup:
    migrations.check(queue.database)
    id = ids.id("")
    groups, followers = Groups(queue), Followers(queue)
    with queue.database.transaction() as transaction:
        connection = transaction.connection
        groups.open(callback, id=id, connection=connection)
        ((closed,),) = transaction.run("group_join", {"id": id})
        # All of it is one transaction: a group that is there has all of its jobs, and is closed.
        if closed:
            return EnqueuedGroup(id, spec.name, 0, 0, True)
        done = followers.enqueue_many(spec, ids.jobs(jobs), group=id, on_conflict=on_conflict, connection=connection)
        groups.close(id, connection=connection)
    return EnqueuedGroup(id, spec.name, done.inserted, done.merged, False)
