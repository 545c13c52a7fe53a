"""Fan-out and join through the queue: enqueue a batch of jobs as one group, and go on when consumers have ended them.

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
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_spec
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, check_queues, under_key
from dagster_sqlqueue.orchestration.step_ids import StepIds, each_job, ids_of
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.results import JobOutcome, Results
from dagster_sqlqueue.schema import migrations

GROUP_TAG = "sqlqueue/group"
"""The tag of a run that joins a group, with the group's id."""


@dataclass(frozen=True, slots=True)
class EnqueuedGroup:
    """A batch that was enqueued as one group, passed from op to op.

    Attributes:
        id: of the group, to wait for.
        queue: the queue of its jobs.
        enqueued: how many jobs this call enqueued.
        merged: how many were merged into a live job with their unique key.
        repeated: whether an earlier attempt of the step or the run had enqueued the batch, and this call added nothing.
    """

    id: UUID
    queue: str
    enqueued: int
    merged: int
    repeated: bool


class GroupConfig(dg.Config):
    """The group that has ended; the sensor fills it in."""

    group_id: str = Field(description="The group.")
    members: int = Field(description="How many jobs the group had.")
    succeeded: int = Field(description="How many of them succeeded.")
    failed: int = Field(description="How many of them went to the dead letter.")
    cancelled: int = Field(description="How many of them were cancelled.")
    context: Any = Field(default=None, description="The value of `about` with which the group was enqueued.")

    @classmethod
    def of(cls, ended: GroupEnded) -> "GroupConfig":
        """Make the config for a group."""
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
    """Enqueue a batch as one group, in one transaction; add nothing if an earlier attempt of the same step has done so, in
    this run or in one that it retries or re-executes.

    Args:
        context: of the op or asset; the group's id comes from its root run and its step.
        queue: where the queues are.
        spec: the queue of the jobs.
        jobs: payloads or `NewJob`s in anything iterable, or the rows of a table; a generator is read in constant memory.
        joined_by: the queue that gets a job when the last of them has ended, the one of `build_group_sensor`; None: no
            queue does, and callers can wait for the group.
        about: a JSON value that the join gets as the group's `context`.
        part: distinguishes several groups of one step: a second one without it adds nothing, and a warning is logged.
        on_conflict: for a job whose unique key a live job has: `merge` makes that one a member, `ignore` leaves the new job
            out.

    Raises:
        InvalidPayload, InvalidInput, UnknownQueue: nothing was enqueued.
    """
    check_spec(spec)
    callback = None if joined_by is None else Callback(joined_by, context=about)
    check_queues(queue)
    ids = ids_of(context, "group", part)
    group = _enqueue(queue, spec, ids, each_job(jobs), callback, on_conflict)
    if group.repeated:
        # The jobs of a second group without its part are not there, and nothing else says so.
        context.log.warning(
            "group %s exists, and no job was added to it: an earlier attempt of this step or run enqueued it. To enqueue it"
            " anew, start a new run rather than re-execute this one; if this step enqueues several groups, give each of"
            " them a part=",
            group.id,
        )
    return group


def build_group_op(
    spec: QueueSpec[Any],
    *,
    joined_by: QueueSpec[GroupEnded] | str | None = None,
    name: str | None = None,
    resource_key: str = RESOURCE_KEY,
) -> dg.OpDefinition:
    """Build `enqueue_group` as an op: its input `jobs` is the batch, its output an `EnqueuedGroup`.

    Args:
        spec: the queue of the jobs.
        joined_by: the queue that gets a job when the last of them has ended.
        name: of the op; None: `enqueue_group_of_<queue>`.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: one of the queues is none.
    """
    check_spec(spec)
    if joined_by is not None:
        Callback(joined_by)

    @dg.op(
        name=name or f"enqueue_group_of_{spec.name}",
        description=f"Enqueues a batch of jobs on the queue {spec.name!r}, as one group.",
        out=dg.Out(EnqueuedGroup, description="The group."),
        tags={"kind": "sqlqueue"},
    )
    @under_key(resource_key)
    def enqueue(context: dg.OpExecutionContext, sqlqueue: SqlQueueResource, jobs: Any) -> dg.Output[EnqueuedGroup]:
        group = enqueue_group(context, sqlqueue.queue, spec, jobs, joined_by=joined_by)
        counts: dict[str, Any] = {
            "group": str(group.id),
            "enqueued": group.enqueued,
            "merged": group.merged,
            "repeated": group.repeated,
        }
        return dg.Output(group, metadata=counts)

    return enqueue


def group_results(
    queue: SqlQueue,
    group: EnqueuedGroup | Group | UUID | str,
    *,
    states: Iterable[str] | None = None,
    page: int = 1_000,
) -> Iterator[list[JobOutcome]]:
    """Read the outcomes of a group's jobs, with their results and errors, in pages: one page is in memory at a time.

    Args:
        queue: where the queues are.
        group: the group, or its id.
        states: read only jobs with these: `succeeded`, `failed`, `cancelled`; None: all.
        page: how many jobs a page has at most, 1 to 10,000.

    Raises:
        InvalidInput: an argument is not usable.
        UnknownGroup: no group has this id.
        UnknownJob: a job was trimmed since; its queue keeps ended jobs for too short a time.
    """
    check_queues(queue)
    id = group_id(group)
    wanted = None if states is None else list(states)
    groups = Groups(queue)
    with Results(queue, listen=False) as results:
        after = UUID(int=0)
        while members := groups.members(id, states=wanted, after=after, limit=page):
            yield list(results.outcomes(member.job_id for member in members).values())
            after = members[-1].job_id


def group_of_run(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> UUID:
    """Read the id of the group that a run joins, from the tag that `build_group_sensor` set.

    Raises:
        InvalidInput: the run has no such tag.
    """
    tag = context.run.tags.get(GROUP_TAG)
    if tag is None:
        raise InvalidInput(
            f"the run has no tag {GROUP_TAG!r}: it was not started by a group's sensor. To join a group by hand, give the"
            " run that tag with the group's id"
        )
    return group_id(tag)


def group_id(given: object) -> UUID:
    """Convert a group, or its id in any form, to the id.

    Raises:
        InvalidInput: it is neither.
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
        # All of it is one transaction: a group that exists has all of its jobs, and is closed.
        if closed:
            return EnqueuedGroup(id, spec.name, 0, 0, True)
        done = followers.enqueue_many(spec, ids.jobs(jobs), group=id, on_conflict=on_conflict, connection=connection)
        groups.close(id, connection=connection)
    return EnqueuedGroup(id, spec.name, done.inserted, done.merged, False)
