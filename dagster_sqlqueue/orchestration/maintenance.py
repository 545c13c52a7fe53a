"""Maintenance of a schema as a scheduled job: partitions ahead, trimming, removal of expired rows."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.assets import asset_key_among
from dagster_sqlqueue.orchestration.fanout import runs_in_progress
from dagster_sqlqueue.orchestration.given import check_mappings
from dagster_sqlqueue.orchestration.markdown import SHOWN
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, check_resource, under_key
from dagster_sqlqueue.orchestration.run_errors import library_errors_as_failures
from dagster_sqlqueue.queue.maintenance import MAX_DAYS_AHEAD, Maintained
from dagster_sqlqueue.schema import migrations
from dagster_sqlqueue.schema.partitions import DAYS_AHEAD


class MaintenanceConfig(dg.Config):
    """Options of a maintenance run."""

    days_ahead: int = Field(
        default=DAYS_AHEAD,
        description=f"For how many days after today to create the archive's partitions, 0 to {MAX_DAYS_AHEAD}.",
    )


def build_maintenance_schedule(
    *,
    name: str = "sqlqueue_maintenance",
    cron_schedule: str = "31 * * * *",
    execution_timezone: str = "UTC",
    days_ahead: int = DAYS_AHEAD,
    resource: SqlQueueResource | None = None,
    asset_keys: Mapping[str, dg.AssetKey] | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
    resource_key: str = RESOURCE_KEY,
) -> dg.ScheduleDefinition:
    """Build a schedule that maintains a schema, for all of its queues, as `sqlqueue maintain` does.

    A run creates partitions of the archive ahead, trims jobs that no retention keeps, with the steps of people, and removes
    expired rows: waiters, consumers, grants, slots, followers, groups, waits, progress and reply queues. Consumers go on
    meanwhile. Consumers also maintain the schema themselves when that is due; the schedule is for schemas without them, and
    for the repairs that only an operator may do. Several schedules do no harm: one run at a time maintains a schema, and a
    run that finds another one active ends as success and says so.

    Its database user is an operator.

    Args:
        name: the schedule's; its job is `<name>_job`.
        cron_schedule: once a day is enough for the partitions; more often keeps expired rows few.
        execution_timezone: of the cron schedule.
        days_ahead: for how many days after today to create partitions, 0 to 366; a run's config may override it.
        resource: a resource with a database user that is an operator; None: the code location's.
        asset_keys: of the queues whose assets are not `queues/<name>`, by queue; see `asset_key_of`.
        default_status: whether it starts with the code location, or when a user switches it on.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: days_ahead is out of range, or the resource or the asset keys are none.
    """
    if not is_whole(days_ahead, 0, MAX_DAYS_AHEAD):
        raise InvalidInput(f"days_ahead is {days_ahead!r}; it must be a whole number of days, 0 to {MAX_DAYS_AHEAD}")
    check_resource(resource)
    check_mappings(asset_keys=asset_keys)
    job = _job(name, resource, dict(asset_keys or {}), resource_key)

    @dg.schedule(
        name=name,
        target=job,
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=default_status,
        description="Creates partitions ahead, trims by retention and removes expired rows, for every queue of the schema.",
    )
    def maintenance(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if runs_in_progress(context.instance, job.name, context.scheduled_execution_time):
            return dg.SkipReason("a maintenance run is active already")
        return dg.RunRequest(run_config={"ops": {f"{name}_op": {"config": {"days_ahead": days_ahead}}}})

    return maintenance


def _job(
    name: str, resource: SqlQueueResource | None, asset_keys: Mapping[str, dg.AssetKey], resource_key: str
) -> dg.JobDefinition:
    @dg.op(
        name=f"{name}_op",
        description="Creates partitions of the archive ahead, trims it, and removes expired rows.",
        out=dg.Out(
            dg.Nothing,
            description="Stores nothing; the counts of created, moved and removed things are its metadata.",
        ),
        tags={"kind": "sqlqueue"},
    )
    @under_key(resource_key)
    def maintain(
        context: dg.OpExecutionContext, config: MaintenanceConfig, sqlqueue: SqlQueueResource
    ) -> dg.Output[None]:
        with library_errors_as_failures():
            migrations.check(sqlqueue.queue.database)
            done = sqlqueue.queue.maintain(days_ahead=config.days_ahead)
        if done.busy:
            context.log.warning("left for the next run, because the archive was in use: %s", _days(done.busy))
        context.log.info("%s", _said(done))
        for queue in sorted({*done.rows_deleted, *done.events_deleted})[:SHOWN]:
            counts = {
                "rows_trimmed": done.rows_deleted.get(queue, 0),
                "steps_of_people_trimmed": done.events_deleted.get(queue, 0),
            }
            context.log_event(dg.AssetObservation(asset_key_among(asset_keys, queue), metadata=counts))
        counts = _counts(done)
        metadata: dict[str, Any] = {"result": _said(done), "ran": done.ran, **counts}
        if done.ran:
            metadata["details"] = dg.MetadataValue.md(_details(done))
        return dg.Output(None, metadata=metadata)

    @dg.job(
        name=f"{name}_job",
        description="Maintains the schema of the queues: partitions, retention, expired rows.",
        executor_def=dg.in_process_executor,
        resource_defs=None if resource is None else {resource_key: resource},
        tags={"sqlqueue/maintenance": "maintain"},
    )
    def maintenance_job() -> None:
        maintain()

    return maintenance_job


def _counts(done: Maintained) -> dict[str, int]:
    if not done.ran:
        return {}
    return {
        "partitions_made": len(done.partitions_made),
        "partitions_dropped": len(done.partitions_dropped),
        "rows_moved": done.rows_moved,
        "rows_trimmed": sum(done.rows_deleted.values()),
        "steps_of_people_trimmed": sum(done.events_deleted.values()),
        "expired_removed": done.expired_removed,
        "batches_swept": done.batches_swept,
        "keys_healed": done.keys_healed,
        "jobs_moved": done.jobs_moved,
        "reply_queues_removed": len(done.queues_removed),
        "days_left_for_the_next_run": len(done.busy),
    }


def _said(done: Maintained) -> str:
    if not done.ran:
        return "another process maintains the schema; nothing was done here"
    found = [f"{count:,} {name.replace('_', ' ')}" for name, count in _counts(done).items() if count]
    return ", ".join(found) or "nothing had to be done"


def _details(done: Maintained) -> str:
    rows: list[tuple[str, object]] = [
        ("partitions made", _days(done.partitions_made)),
        ("partitions dropped", _days(done.partitions_dropped)),
        ("left for the next run", _days(done.busy)),
        ("reply queues removed", ", ".join(done.queues_removed)),
    ]
    queues = sorted({*done.rows_deleted, *done.events_deleted})
    rows += [
        (
            f"trimmed of {queue}",
            f"{done.rows_deleted.get(queue, 0):,} jobs, {done.events_deleted.get(queue, 0):,} steps of people",
        )
        for queue in queues[:SHOWN]
    ]
    shown = [(name, found) for name, found in rows if found]
    return markdown.table(["what", "which"], shown, 200) if shown else "Nothing had to be done."


def _days(days: Sequence[date]) -> str:
    return "" if not days else str(days[0]) if len(days) == 1 else f"{len(days)}, from {days[0]} to {days[-1]}"
