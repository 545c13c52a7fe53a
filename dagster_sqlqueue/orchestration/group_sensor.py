"""The sensor that requests a run for each group of jobs that has ended."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import dagster as dg
import sqlalchemy as sa

from dagster_sqlqueue.consumer.handler import brief
from dagster_sqlqueue.errors import (
    DatabaseUnavailable,
    InvalidInput,
    InvalidPayload,
    QueueError,
    UnknownVersion,
    UnreadablePayload,
)
from dagster_sqlqueue.followers import GroupEnded
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.numbers import is_seconds, is_whole
from dagster_sqlqueue.model.outcome import Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.model.queue import QueueSpec, check_spec
from dagster_sqlqueue.orchestration.given import check_function, check_lists
from dagster_sqlqueue.orchestration.group_ops import GROUP_TAG, GroupConfig
from dagster_sqlqueue.orchestration.leased_jobs import settle_claimed
from dagster_sqlqueue.orchestration.queue_sensor import queue_sensor
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.schema import migrations

_LEASE_SECONDS = 300.0
"""The lease of a group's job: longer than Dagster lets a tick take."""

_MOST_GROUPS = 1_000

_OUTAGES = (DatabaseUnavailable, sa.exc.OperationalError)
"""What fails the tick instead of a group: the database, or Dagster's own, does not answer."""

_REFUSED = "refused"
"""The decision about a group for which no run can be requested."""

_Asked = Callable[[GroupEnded], dg.RunRequest]


@dataclass(frozen=True, slots=True)
class _Decision:
    """The decision about a group: in words, the outcome of the job that notified its end, and the run to request."""

    what: str
    outcome: Outcome
    request: dg.RunRequest | None = None


def build_group_sensor(
    spec: QueueSpec[GroupEnded],
    target: Any,
    *,
    name: str | None = None,
    ops: Iterable[str] = (),
    request: Callable[[GroupEnded], dg.RunRequest] | None = None,
    max_groups: int = 10,
    poll_seconds: float = 15.0,
    minimum_interval_seconds: int = 15,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    resource_key: str = RESOURCE_KEY,
) -> dg.SensorDefinition:
    """Build a sensor that runs a job, or materialises assets, once for each group of jobs that has ended.

    The end of a group is a job on the queue `spec`, enqueued in the transaction that ended the last of the group's jobs. The
    sensor completes it when the group's run has succeeded. If the run fails, or is cancelled, the job is retried by the
    queue's backoff with a new run, and after `max_attempts` it goes to the dead letter: redrive it from there. The sensor
    waits for a run that Dagster itself will retry. At most one run of a group is under way, and none starts after one has
    succeeded.

    Each run has the tag `sqlqueue/group` with the group's id, and `sqlqueue/group_members`, `…_succeeded`, `…_failed` and
    `…_cancelled` with the counts; see `group_of_run`. An error of the database fails the tick, so that users see it.

    A group whose request cannot be made (`request` raises, or returns something else), or that Dagster would refuse (a
    partition, job, asset or configuration that the target does not have), spends an attempt, and after `max_attempts` goes
    to the dead letter with the error; the other groups get their runs.

    Args:
        spec: the queue of the groups' ends, given as `joined_by` to `enqueue_group`; its payload is `GroupEnded`.
        target: what to run: a job, or assets, or a selection of these.
        name: of the sensor; None: `<queue>_groups`.
        ops: the names of the ops or assets with a `GroupConfig` as config, which the sensor fills in.
        request: makes the run's request for a group, with its config, partition or tags; the sensor replaces its run key.
        max_groups: the most groups that one tick handles.
        poll_seconds: the shortest time between two checks of a group's run.
        minimum_interval_seconds: between ticks.
        default_status: whether it starts with the code location, or when a user switches it on.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: the queue is none, its payload is not `GroupEnded`, `ops` is no list or
            `request` no function, or a number is out of range.
    """
    check_spec(spec)
    if not issubclass(spec.payload, GroupEnded):
        raise InvalidInput(
            f"the payload of queue {spec.name!r} is {spec.payload.__name__}; the ends of groups are GroupEnded, from"
            " dagster_sqlqueue.followers"
        )
    if not is_whole(max_groups, 1, _MOST_GROUPS):
        raise InvalidInput(f"max_groups is {max_groups!r}; it must be a whole number, 1 to {_MOST_GROUPS:,}")
    if not is_seconds(poll_seconds):
        raise InvalidInput(
            f"poll_seconds is {poll_seconds!r}; it must be a number of seconds above 0, at most a hundred years"
        )
    check_lists(ops=ops)
    if request is not None:
        check_function("request", request)
    configured = tuple(ops)
    if request is not None and configured:
        raise InvalidInput("ops and request were given; leave ops out, and set the config in the request")

    def asked(ended: GroupEnded) -> dg.RunRequest:
        if request is not None:
            made = request(ended)
            if not isinstance(made, dg.RunRequest):
                raise InvalidInput(f"request= returned {made!r:.100}; return a dagster.RunRequest")
            return made
        config = {op: {"config": GroupConfig.of(ended).model_dump()} for op in configured}
        return dg.RunRequest(run_config={"ops": config} if config else {})

    @dg.sensor(
        name=name or f"{spec.name}_groups",
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=f"Requests a run for each group of jobs whose end is on the queue {spec.name!r}.",
    )
    @under_key(resource_key)
    def ended_groups(context: dg.SensorEvaluationContext, sqlqueue: SqlQueueResource) -> dg.SensorResult:
        queue = sqlqueue.queue
        migrations.check(queue.database)
        claimed = queue.claim(
            spec.name, limit=max_groups, lease_seconds=_LEASE_SECONDS, worker=f"sensor/{spec.name}/{uuid4().hex[:8]}"
        )
        try:
            decisions = [_decide(context, ended_groups, spec, job, asked, poll_seconds) for job in claimed]
        except BaseException:
            # Otherwise they are due again when their leases expire.
            with contextlib.suppress(QueueError):
                queue.release(claimed)
            raise
        backoff = None if isinstance(spec.backoff, Backoff) else spec.backoff
        # Before Dagster gets the requests: if the tick dies after this, a later one requests the same runs, once.
        written = settle_claimed(
            queue.leases, [(job, made.outcome) for job, made in zip(claimed, decisions, strict=True)], backoff
        )
        stale = set(written.stale)
        requests = [
            made.request
            for job, made in zip(claimed, decisions, strict=True)
            if made.request is not None and job.id not in stale
        ]
        counts = Counter(made.what for made in decisions)
        status = ", ".join(f"{count} {what}" for what, count in counts.items()) or "no group has ended"
        for made in decisions:
            if made.what == _REFUSED and isinstance(made.outcome, Retry):
                context.log.warning("%s: %s", spec.name, made.outcome.error)
        context.log.info("%s: %s", spec.name, status)
        return (
            dg.SensorResult(run_requests=requests)
            if requests
            else dg.SensorResult(skip_reason=f"{spec.name}: {status}")
        )

    return queue_sensor(ended_groups)


def _decide(
    context: dg.SensorEvaluationContext,
    sensor: dg.SensorDefinition,
    spec: QueueSpec[GroupEnded],
    job: ClaimedJob,
    asked: _Asked,
    poll_seconds: float,
) -> _Decision:
    try:
        ended = serialization.parse(spec, job.payload)
    except (UnknownVersion, UnreadablePayload) as error:
        # As a consumer does: the error says to release the job once the code is mended.
        return _Decision("held", Hold(str(error)))
    except InvalidPayload as error:
        return _Decision("not a group's end", Reject(str(error)))
    runs = context.instance.get_runs(dg.RunsFilter(tags={GROUP_TAG: str(ended.group_id)}), limit=1)
    latest = runs[0] if runs else None
    judged = latest is not None and latest.run_id in (job.error or "")
    if latest is None or judged:
        return _request_or_refusal(
            context, sensor, ended, asked, None if latest is None else latest.run_id, poll_seconds
        )
    if not latest.is_finished or latest.is_complete_and_waiting_to_retry:
        return _Decision("under way", Snooze(poll_seconds))
    if latest.is_success:
        return _Decision("joined", Done({"run_id": latest.run_id}))
    # The next run is the one after that: the run's id in the error marks it as handled.
    return _Decision(
        "failed", Retry(f"run {latest.run_id} of the group {ended.group_id} ended as {latest.status.value}")
    )


def _request_or_refusal(
    context: dg.SensorEvaluationContext,
    sensor: dg.SensorDefinition,
    ended: GroupEnded,
    asked: _Asked,
    after: str | None,
    poll_seconds: float,
) -> _Decision:
    try:
        request = _request(ended, asked(ended), after)
        _check(context, sensor, request)
    except _OUTAGES:
        raise
    except Exception as error:
        # With the id of the run before, which stays marked as handled.
        where = f"the group {ended.group_id}" + (f" after run {after}" if after else "")
        return _Decision(
            _REFUSED, Retry(brief(f"no run can be requested for {where}: {type(error).__name__}: {error}"))
        )
    return _Decision("requested", Snooze(poll_seconds), request)


def _check(context: dg.SensorEvaluationContext, sensor: dg.SensorDefinition, request: dg.RunRequest) -> None:
    """Raise what Dagster would raise for the request after the tick, where it fails the requests of all groups."""
    if (repository := context.repository_def) is None:
        return
    if request.requires_backfill_daemon():
        sensor.validate_backfill_requests([request], context)
        return
    (resolved,) = sensor.resolve_run_requests([request], context, sensor.asset_selection, [])
    job = repository.get_job(resolved.job_name or sensor.job_name or "")
    if resolved.asset_selection is not None or resolved.asset_check_keys is not None:
        job = job.get_subset(
            asset_selection=set(resolved.asset_selection or ()),
            asset_check_selection=None if resolved.asset_check_keys is None else set(resolved.asset_check_keys),
        )
    dg.validate_run_config(job, resolved.run_config)


def _request(ended: GroupEnded, request: dg.RunRequest, after: str | None) -> dg.RunRequest:
    """The request with the group's tags, and a run key that stays the same until the run exists: Dagster starts only one."""
    counts = {
        "members": ended.members,
        "succeeded": ended.succeeded,
        "failed": ended.failed,
        "cancelled": ended.cancelled,
    }
    tags = {GROUP_TAG: str(ended.group_id), **{f"{GROUP_TAG}_{what}": str(count) for what, count in counts.items()}}
    key = f"group {ended.group_id}" + (f" after {after}" if after else "")
    return request.with_replaced_attrs(run_key=key, tags={**request.tags, **tags})
