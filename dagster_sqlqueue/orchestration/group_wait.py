"""Wait, in the run itself, until the last job of a group has ended."""

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import dagster as dg
from pydantic import Field

from dagster_sqlqueue.consumer.leased import while_away
from dagster_sqlqueue.errors import UnknownJob, WaitTimedOut
from dagster_sqlqueue.followers import Group, Groups
from dagster_sqlqueue.orchestration.group_ops import group_id
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, check_queues, under_key
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.results import Results

_NEAR = 100
"""For at most this many pending jobs the database notifies the ends; for more, the wait polls the group's counts."""

_FIRST_POLL_SECONDS = 0.05
_LAST_POLL_SECONDS = 1.0
_NOTIFIED_SECONDS = 30.0
_PATIENCE_SECONDS = 60.0
_MEMBERS_AT_ONCE = 10_000


class WaitConfig(dg.Config):
    """How long to wait, and for what."""

    timeout_seconds: float = Field(
        default=3600.0, gt=0, description="Fail the step if the group has not ended by then."
    )
    all_must_succeed: bool = Field(default=False, description="Fail the step if a job of the group did not succeed.")


def build_wait_op(*, name: str = "wait_for_group", resource_key: str = RESOURCE_KEY) -> dg.OpDefinition:
    """Build an op that waits in the run until the last job of a group has ended: `wait_for_group`, for any resource key.

    Args:
        name: of the op.
        resource_key: of the `SqlQueueResource`.
    """

    @dg.op(
        name=name,
        out=dg.Out(Group, description="The group, with its counts."),
        tags={"kind": "sqlqueue"},
    )
    @under_key(resource_key)
    def wait(
        context: dg.OpExecutionContext, config: WaitConfig, sqlqueue: SqlQueueResource, group: Any
    ) -> dg.Output[Group]:
        """Waits in the run until the last job of a group has ended: of an `EnqueuedGroup`, or of a group's id.

        The run occupies its place in Dagster meanwhile, and other consumers have to work the jobs off: for long waits use
        `build_group_sensor`.
        """
        return _wait(sqlqueue.queue, config, group)

    return wait


wait_for_group = build_wait_op()
"""The op of `build_wait_op` for the resource `sqlqueue`."""


def _wait(queue: SqlQueue, config: WaitConfig, group: Any) -> dg.Output[Group]:
    id = group_id(group)
    try:
        ended = await_group(queue, id, timeout_seconds=config.timeout_seconds)
    except WaitTimedOut as error:
        metadata = _counts(Groups(queue).group(id))
        raise dg.Failure(str(error), metadata=metadata, allow_retries=False) from None
    if config.all_must_succeed and ended.succeeded < ended.members:
        raise dg.Failure(
            f"{ended.members - ended.succeeded} of the {ended.members} jobs of group {id} did not succeed",
            metadata=_counts(ended),
            allow_retries=False,
        )
    return dg.Output(ended, metadata=_counts(ended))


def await_group(queue: SqlQueue, id: UUID, *, timeout_seconds: float) -> Group:
    """Wait until the last job of a group has ended, and the group is closed.

    The database notifies the ends of the last hundred jobs, if its user may wait for them. Otherwise, and while more are
    pending, the wait polls, at least once a second.

    Args:
        queue: where the queues are.
        id: the group's.
        timeout_seconds: the longest wait.

    Raises:
        InvalidInput: the queues are something else.
        UnknownGroup: no group has this id.
        WaitTimedOut: it has not ended in time; the message says how many jobs are pending, and names some.
        DatabaseUnavailable: the database was unavailable for a minute.
    """
    check_queues(queue)
    groups = Groups(queue)
    deadline = time.monotonic() + timeout_seconds
    pause = _FIRST_POLL_SECONDS
    patiently = while_away(f"group {id}", _PATIENCE_SECONDS)
    with Results(queue) as results:
        while True:
            group = patiently(groups.group, id)
            if group.ended_at is not None:
                return group
            left = deadline - time.monotonic()
            if left <= 0:
                raise _timed_out(groups, results, group, timeout_seconds)
            near = patiently(lambda: list(_pending(groups, id))) if 0 < group.pending <= _NEAR else []
            if near and _wait_notified(results, near, min(left, _NOTIFIED_SECONDS)):
                pause = _FIRST_POLL_SECONDS
            else:
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LAST_POLL_SECONDS)


def _wait_notified(results: Results, pending: list[UUID], seconds: float) -> bool:
    """Wait for the ends of these jobs. Returns false if one of them is not there."""
    try:
        results.wait_many(pending, timeout_seconds=seconds)
    except WaitTimedOut:
        return True
    except UnknownJob:
        # Its row was deleted by hand: maintenance will count it.
        return False
    return True


def _pending(groups: Groups, id: UUID) -> Iterator[UUID]:
    after = UUID(int=0)
    while members := groups.members(id, after=after, limit=_MEMBERS_AT_ONCE):
        yield from (member.job_id for member in members if member.state is None)
        after = members[-1].job_id
        if len(members) < _MEMBERS_AT_ONCE:
            return


def _timed_out(groups: Groups, results: Results, group: Group, seconds: float) -> WaitTimedOut:
    some = [job for job, _ in zip(_pending(groups, group.id), range(3), strict=False)]
    outcomes = results.outcomes(some)
    named = "".join(f"; job {one.id} is {one.state}" for one in outcomes.values())
    what = f"{group.pending} of its {group.members} jobs have not ended{named}" if group.pending else "it is not closed"
    return WaitTimedOut(f"group {group.id} has not ended within {seconds:g} seconds: {what}", outcomes)


def _counts(group: Group) -> dict[str, Any]:
    counts = {"members": group.members, "succeeded": group.succeeded, "failed": group.failed}
    return {"group": str(group.id), **counts, "cancelled": group.cancelled, "pending": group.pending}
