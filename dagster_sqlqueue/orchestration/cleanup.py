"""Sensors that release the leases and the slot of failed and cancelled runs at once.

Nothing depends on them: leases and slots expire by themselves. Dagster handles five ended runs a tick, so they may be late.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import slots
from dagster_sqlqueue.orchestration.drain import DrainJob
from dagster_sqlqueue.orchestration.given import check_consumer, listed
from dagster_sqlqueue.orchestration.queue_sensor import check_interval
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.orchestration.run_claims import give_back, run_worker
from dagster_sqlqueue.orchestration.sensor import slot_of
from dagster_sqlqueue.orchestration.summary import report_ended_run

_NAMES_LIMIT = 60
"""The most characters of names in a prefix: Dagster's pages show the names of sensors in a column."""

_WATCHED = (DrainJob, dg.JobDefinition, dg.GraphDefinition, UnresolvedAssetJobDefinition)

_ENDED = {dg.DagsterRunStatus.FAILURE: "failed", dg.DagsterRunStatus.CANCELED: "cancelled"}


def build_cleanup_sensors(
    jobs: DrainJob[Any] | dg.JobDefinition | Sequence[DrainJob[Any] | dg.JobDefinition],
    *,
    prefix: str | None = None,
    resource_key: str = RESOURCE_KEY,
    minimum_interval_seconds: int = 5,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> list[dg.SensorDefinition]:
    """Build two sensors, for failed and for cancelled runs, that release what such a run still holds at once, before its
    leases and its slot expire. Consumers then claim these jobs one by one: a job that kills its run dies alone.

    A drain run that a user cancels, or that fails in its op, gives its jobs back itself, and a step of a graph that fails
    does so by the hook `give_back_on_failure`; these sensors are for runs that were killed.

    Args:
        jobs: the jobs to watch: consumers, and jobs of graphs that claim.
        prefix: the beginning of the sensors' names, `<prefix>_failed_runs` and `<prefix>_cancelled_runs`; None: the names of
            the jobs.
        resource_key: of the resource of all of these jobs.
        minimum_interval_seconds: between two ticks.
        default_status: whether they start with the code location, or when a user switches them on.

    Raises:
        InvalidInput: there is no job, something is none, two have the same name, or the interval is negative.
    """
    check_interval(minimum_interval_seconds)
    each = listed(jobs)
    for job in each:
        check_consumer("build_cleanup_sensors", job, _WATCHED)
    drains = {job.job.name: job for job in each if isinstance(job, DrainJob)}
    definitions = [job.job if isinstance(job, DrainJob) else job for job in each]
    names = [definition.name for definition in definitions]
    if not names or len(set(names)) < len(names):
        raise InvalidInput(
            f"the cleanup sensors need the jobs to watch, each once; given were: {', '.join(names) or 'none'}"
        )

    begin = joined_names(names) if prefix is None else prefix

    def build(status: dg.DagsterRunStatus, ended: str) -> dg.SensorDefinition:
        how = "failed" if status is dg.DagsterRunStatus.FAILURE else "was cancelled"

        @dg.run_status_sensor(
            run_status=status,
            name=f"{begin}_{ended}_runs",
            monitored_jobs=definitions,
            minimum_interval_seconds=minimum_interval_seconds,
            default_status=default_status,
            description=f"Releases the leases and the slot of a run that {how}, at once.",
        )
        @under_key(resource_key)
        def clean_up(context: dg.RunStatusSensorContext, sqlqueue: SqlQueueResource) -> None:
            run, queue = context.dagster_run, sqlqueue.queue
            drain = drains.get(run.job_name)
            given_back = give_back(queue, context.instance, run)
            if drain is not None:
                leases = queue.leases.end_leases(
                    drain.spec.name, run_worker(run.run_id), lease_seconds=drain.lease_seconds
                )
                given_back[drain.spec.name] = len(leases)
                report_ended_run(context.instance, run, queue, given_back, drain.spec.name)
            slot = None if drain is None else slot_of(run, drain.op.name)
            freed = slot is not None and slots.release(queue, slot)
            # No SkipReason: a tick handles several runs, and Dagster refuses one that skips some and acts on others.
            released = ", ".join(f"{count} jobs of {name} given back" for name, count in given_back.items())
            context.log.info(
                "run %s %s; %s%s", run.run_id, how, released or "it held nothing", "; its slot is free" * freed
            )

        return clean_up

    return [build(status, ended) for status, ended in _ENDED.items()]


def joined_names(names: Iterable[str]) -> str:
    """Join names to a part of a definition's name, the same for the same names in any order, and another for others.

    Returns:
        `a__b`; for long names the first one, their number and a hash of all.
    """
    ordered = sorted(names)
    joined = "__".join(ordered)
    if len(joined) <= _NAMES_LIMIT or len(ordered) == 1:
        return joined
    return f"{ordered[0]}_and_{len(ordered) - 1}_more_{hashlib.sha256(joined.encode()).hexdigest()[:8]}"
