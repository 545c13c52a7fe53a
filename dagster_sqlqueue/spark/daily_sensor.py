"""The sensor of a daily asset: it requests the days that can be computed, and delays those whose runs fail."""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import QueueSpec, check_spec
from dagster_sqlqueue.orchestration.fanout import DailyAccount, range_request, runs_in_progress
from dagster_sqlqueue.orchestration.queue_sensor import queue_sensor
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import day_checks
from dagster_sqlqueue.spark.batches import BACKOFF
from dagster_sqlqueue.spark.contents import READS, Upstream, upstream_of
from dagster_sqlqueue.spark.day_requests import DueDay, next_range
from dagster_sqlqueue.spark.local_days import NO_EVENTS

_CAP = 50_000
"""The most jobs that are read: with more events than that on their queue, the days are not over."""
_RUNS = 20
"""How many of the latest runs are checked for failures."""


def build_daily_sensor(
    asset: dg.AssetsDefinition,
    spec: QueueSpec[DailyAccount],
    *,
    name: str | None = None,
    minimum_interval_seconds: int = 30,
    days_per_run: int = 31,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    resource_key: str = RESOURCE_KEY,
) -> dg.SensorDefinition:
    """Return a sensor that materialises the days for which there is something to do, as one run.

    It requests days with due jobs of accounts that have no event of the day on their queue; days that a killed run left
    unfinished, or with files that are not in their place; and days of which events ended after they were computed, for
    which it makes the check `no_event_late` fail first. It requests a day whose runs fail or die again after the
    asset's backoff, doubled with each failure, which does not delay the others.

    Args:
        asset: from `sqlqueue_daily_asset`.
        spec: the queue of the daily jobs.
        name: the sensor's.
        minimum_interval_seconds: between two ticks.
        days_per_run: how many days one run has at most.
        default_status: off unless said otherwise.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: the queue is none, the asset is none of these, or `days_per_run` is no positive number.
    """
    check_spec(spec)
    partitions_def = asset.partitions_def
    if not isinstance(partitions_def, dg.DailyPartitionsDefinition):
        raise InvalidInput(f"asset {asset.key.to_user_string()} has no daily partitions; the daily sensor needs them")
    if days_per_run < 1:
        raise InvalidInput(f"days_per_run is {days_per_run}; it is a whole number from 1")
    metadata = asset.get_asset_spec(asset.key).metadata.get(READS)
    if metadata is None:
        raise InvalidInput(
            f"asset {asset.key.to_user_string()} consumes no daily jobs: make it by sqlqueue_daily_asset"
        )
    job = dg.define_asset_job(
        f"materialize_{asset.key.path[-1]}",
        dg.AssetSelection.assets(asset.key),
        executor_def=dg.in_process_executor,
        description=f"Materialises days of {asset.key.to_user_string()} from the due jobs of {spec.name!r}.",
    )
    work = _DailyWork(asset.key, spec.name, metadata.value)

    @dg.sensor(
        name=name or f"{spec.name}_sensor",
        target=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=f"Materialises {asset.key.path[-1]} for the days that there is something to do for on {spec.name!r}.",
    )
    @under_key(resource_key)
    def due_days(context: dg.SensorEvaluationContext, sqlqueue: SqlQueueResource) -> dg.RunRequest | dg.SkipReason:
        queue = sqlqueue.queue
        keys = partitions_def.get_partition_keys()
        late = work.late(context, queue, keys)
        days = work.days(queue, keys, late)
        if not any(day.wanted or day.waiting for day in days):
            return dg.SkipReason(work.nothing(queue, keys))
        if paused_at := queue.settings(spec.name).paused_at:
            return dg.SkipReason(
                f"{spec.name}: paused since {paused_at:%Y-%m-%d %H:%M} UTC, resume it with: sqlqueue resume"
            )
        # One that takes longer keeps the leases of its days, and those are not requested.
        if runs_in_progress(context.instance, job.name, datetime.now(UTC)):
            return dg.SkipReason(f"{spec.name}: a run is consuming already")
        if days[0].seen >= _CAP:
            return dg.SkipReason(f"{spec.name}: {_due(days)}; waiting for {work.events} to finish its backlog")
        if rest := _rest(context.instance, job.name, days):
            return dg.SkipReason(f"{spec.name}: {rest}")
        chosen = next_range(days, days_per_run)
        if not chosen:
            return dg.SkipReason(f"{spec.name}: {_why_none(days, work.events)}")
        return range_request(chosen[0].day, chosen[-1].day)

    return queue_sensor(due_days)


class _DailyWork:
    """What a sensor finds in the database.

    Args:
        key: of the asset.
        daily: the queue of the daily jobs.
        reads: the metadata `READS`.
    """

    def __init__(self, key: dg.AssetKey, daily: str, reads: Any) -> None:
        self._key = key
        self._daily = daily
        self._states: Sequence[str] = reads["states"]
        self._upstream: Upstream | None = upstream_of(reads["queue"], reads["columns"])
        self.events: str = reads["queue"]

    def days(self, queue: SqlQueue, keys: Sequence[str], late: Sequence[str]) -> list[DueDay]:
        """Return the days with something to do."""
        rows = queue.database.run("due_days", {**self._parameters(keys), "cap": _CAP, "late": list(late)})
        # A text between two days need not be one.
        partitions = set(keys)
        return [day for row in rows if (day := DueDay(*row)).day in partitions]

    def late(self, context: dg.SensorEvaluationContext, queue: SqlQueue, keys: Sequence[str]) -> list[str]:
        """Return the days of which events ended after they were computed, until they are computed again. It reads what
        is new since the last tick; the asset's check fails for it.
        """
        if self._upstream is None:
            return []
        until = queue.database.run("stream_now", {"queue": self.events})[0][0]
        before: dict[str, Any] = json.loads(context.cursor) if context.cursor else {"seen": until, "late": {}}
        noted: dict[str, float] = {
            day: at for day, at in before["late"].items() if not self._computed_since(context.instance, day, at)
        }
        span = {"after": before["seen"], "until": until, "states": list(self._states)}
        found = queue.database.run("late_days", {**self._parameters(keys), **span})
        if found:
            noted |= dict.fromkeys((day for day, *_ in found), time.time())
            context.instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    self._key,
                    day_checks.LATE,
                    passed=False,
                    description="; ".join(
                        f"{jobs:,} events of {day} ended after it was computed" for day, jobs, _ in found
                    ),
                    metadata={"late_days": dg.MetadataValue.json(sorted(noted))},
                )
            )
            for day, jobs, accounts in found:
                counts = {"late_events": jobs, "accounts": accounts}
                context.instance.report_runless_asset_event(
                    dg.AssetObservation(self._key, "Out of date: it is computed again.", counts, partition=day)
                )
        context.update_cursor(json.dumps({"seen": until, "late": noted}))
        return sorted(noted)

    def nothing(self, queue: SqlQueue, keys: Sequence[str]) -> str:
        """Return why there is nothing to do."""
        heads = queue.peek_heads(self._daily)
        if any(head.due_seconds >= 0 for head in heads):
            among = f"from {keys[0]} to {keys[-1]}" if keys else "none yet"
            return f"{self._daily}: no job is due for one of the asset's partitions ({among})"
        waits = [-head.due_seconds for head in heads]
        return f"{self._daily}: nothing due" + (f", next in {min(waits):.0f} s" if waits else "")

    def _parameters(self, keys: Sequence[str]) -> Mapping[str, Any]:
        known = self._upstream
        events = NO_EVENTS if known is None else known.parameters()
        return {
            **events,
            "events": events["queue"],
            "queue": self._daily,
            "prefix": f"{self._key.path[-1]}/",
            # Where an account's day ends before the partitions' one does, its jobs are due before their partition is there.
            "earliest": keys[0] if keys else "",
            "latest": keys[-1] if keys else "",
        }

    def _computed_since(self, instance: dg.DagsterInstance, day: str, at: float) -> bool:
        wanted = dg.AssetRecordsFilter(asset_key=self._key, asset_partitions=[day])
        records = instance.fetch_materializations(wanted, limit=1).records
        return bool(records) and records[0].timestamp > at


def _rest(instance: dg.DagsterInstance, job: str, days: Sequence[DueDay]) -> str | None:
    """Return why nothing is requested, if the latest runs failed before they had sealed anything: then no batch records
    it.
    """
    sealed = {day.owner for day in days}
    failed = []
    for record in instance.get_run_records(dg.RunsFilter(job_name=job), limit=_RUNS):
        run = record.dagster_run
        if run.status is not dg.DagsterRunStatus.FAILURE or f"run/{run.run_id}" in sealed:
            break
        failed.append(record)
    if not failed or failed[0].end_time is None:
        return None
    left = BACKOFF(len(failed)) - (time.time() - failed[0].end_time)
    if left <= 0:
        return None
    return f"the last {len(failed)} runs failed before they began; the next is asked for in {left:.0f} s"


def _why_none(days: Sequence[DueDay], events: str) -> str:
    resting = [day for day in days if day.wanted and not day.held and day.rest_seconds > 0]
    if resting:
        first = min(resting, key=lambda day: day.rest_seconds)
        others = f", and {len(resting) - 1} more days rest" if len(resting) > 1 else ""
        why = f" (the last time: {first.error.splitlines()[0][:200]})" if first.error else ""
        return (
            f"the run of {first.day} failed {first.failures} times in a row{why}; it is asked for again in"
            f" {first.rest_seconds:.0f} s{others}"
        )
    if held := [day for day in days if day.held]:
        return f"{held[0].day} is held by {held[0].owner!r}"
    return f"{_due(days)}; waiting for {events} to finish them"


def _due(days: Sequence[DueDay]) -> str:
    due = [day for day in days if day.jobs or day.waiting]
    count = sum(day.jobs + day.waiting for day in due)
    return f"{count} jobs due for {due[0].day} to {due[-1].day}" if due else "no job is due"
